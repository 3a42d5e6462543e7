package store

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/durable"
)

// A Source is where trees come from. An error of its methods that wraps [ErrRefused]
// is final; after any other the call is made again.
type Source interface {
	// Tree lists the files of a tree.
	Tree(ctx context.Context, hash string) ([]policy.TreeFile, error)

	// Open gives the bytes of one of its files from offset on. ctx bounds the
	// reading too.
	Open(ctx context.Context, hash, sha256 string, offset int64) (io.ReadCloser, error)
}

// ErrRefused is what a Source answers when asking again would not help.
var ErrRefused = errors.New("the source refuses")

// An Error is why a tree is not here.
type Error struct {
	code activity.Code
	err  error
}

// Code is Pull, Integrity or Capacity.
func (e *Error) Code() activity.Code { return e.code }
func (e *Error) Error() string       { return e.err.Error() }
func (e *Error) Unwrap() error       { return e.err }

// A Store is a folder of trees. Its methods may be called concurrently.
type Store struct {
	dir   string
	fs    durable.FS
	disk  durable.Disk
	space func(dir string) (policy.Free, error)

	mu   sync.Mutex
	size map[string]int64 // bytes of the trees that are here
	pins map[string]int
}

// Open returns the store in dir, and makes its folders where they are missing. What
// an earlier life did not finish is removed.
func Open(dir string) (*Store, error) {
	return nil, errors.New("opening the store: not yet")
}

// Has reports whether a tree is here, whole.
func (s *Store) Has(hash string) bool { return false }

// Used is how many bytes the trees have together.
func (s *Store) Used() int64 { return 0 }

// Pin keeps a tree, which need not be here yet, from being evicted until Unpin was
// called as often. It is not durable: it is done again after a restart. A tree counts
// as used until its last Unpin.
func (s *Store) Pin(hash string)   {}
func (s *Store) Unpin(hash string) {}

// Pull sees to it that a tree is here. It fetches, verifies and keeps it, unless it
// is here already, and evicts what is needed for that: see the package's contract.
// limit is the most bytes that all trees together may have, the policy's caps.disk;
// held is how much of the file system is promised to work that is running.
//
// progress, which may be nil, is called after each piece with the bytes done and due.
//
// The error is an [*Error], or what ended ctx.
func (s *Store) Pull(ctx context.Context, src Source, hash string, limit, held int64, progress func(done, total int64)) error {
	return &Error{activity.Pull, errors.New("not yet")}
}
