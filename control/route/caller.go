package route

import (
	"context"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
)

// A Caller is whom a request speaks for: a person of an org or, when Node is set,
// one linked machine of it. A node's Identity has the org as its Owner, and neither
// name nor rights.
type Caller struct {
	api.Identity
	Node *Node

	// Run is the one run whose record the caller may write; empty: any. A node's
	// activity is of one.
	Run string
}

// A Node is what a node credential is bound to.
type Node struct {
	Org, ID string
	Key     string // of the install
	// LinkedBy is who linked it, as org/name.
	LinkedBy string
}

// Requester is the caller's name within every org: org/name.
func (c Caller) Requester() string { return c.Owner + "/" + c.Name }

type callerKey struct{}

// MayRecord says why the caller may not write the record of a run, nil when it may.
func (c Caller) MayRecord(run string) error {
	if c.Run != "" && !activity.Records(c.Run, run) {
		return api.Refuse(api.Forbidden, "run %.80q is not one of activity %s, whose record this is", run, c.Run)
	}
	return nil
}

// With returns ctx for a request of c.
func With(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// From returns whom a request speaks for. It panics where nobody was asked: a
// handler without a caller is a hole and not a refusal.
func From(ctx context.Context) Caller {
	c, ok := ctx.Value(callerKey{}).(Caller)
	if !ok {
		panic("route: a request reached a handler without a caller")
	}
	return c
}
