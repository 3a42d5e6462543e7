package agent

import "context"

// keeper is what the loop needs of the store: package agent/store, with this node's
// routes as its source (pull.go). Its methods may be called concurrently.
type keeper interface {
	// Has reports whether a tree is in the store, whole and verified.
	Has(hash string) bool

	// Pin keeps a tree from being evicted, also one that is not there yet, until
	// Unpin was called as often.
	Pin(hash string)
	Unpin(hash string)

	// Pull brings the tree of an activity into the store and returns when it is there
	// whole, verified and durable, or with an error that says its A5 code by
	//
	//	Code() activity.Code    pull, integrity, source or capacity
	//
	// A failure of the network or the server is waited out, by the rules of claims,
	// until ctx ends, and is then no error but ctx's; progress is told of bytes, of
	// this tree, from the caller's goroutine. limit is the most bytes that all trees
	// may have, and held what of the file system is promised to work that runs.
	Pull(ctx context.Context, act, hash string, limit, held int64, progress func(done, total int64)) error
}

// recorder sends what a workload records: record.go.
type recorder interface {
	// Record sends what lies and comes to lie in the activity's spool, and returns
	// nil when ended is closed and the cloud has acknowledged all that can be, or
	// ctx's error. A spool that is not there is empty; what is in one beside a record may
	// go once nil is returned. An error of its own is final:
	// something of the record will never be sent, and says what.
	Record(ctx context.Context, act string, ended <-chan struct{}) error
}
