// Package compute serves /v1/compute/fleet: the linked machines of an org, the
// work that its members ask of them, and the long polls by which the machines
// learn of it (HIP-1172 A2, A4, A5, A10).
//
// # Who is trusted with what
//
// A person's token opens the org's own nodes, activities and events, and those of
// no other org: what is foreign is answered as what does not exist. A node's
// credential opens the routes below its own address and nothing else. That the
// machine takes an activity is for its owner's policy file to say, on the machine;
// the copy that the node sent here is a mirror, by which an enqueue is refused
// before it costs anything, and it is believed for no more than that.
//
// # The promise of a claim
//
// An envelope is offered until its node reports a state of it, and a stop is
// repeated until the end is reported; so an answer that is lost loses nothing, and
// one that comes twice starts nothing twice, for the agent knows its activities by
// id. A held claim is answered at once when its node is given work, is to end some,
// or is removed: package db says how, and what a crash at any moment leaves.
package compute

import (
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/control/route"
)

const root = "/v1/compute/fleet"

// Config says what a Plane is made of; every field is required.
type Config struct {
	Store    *db.Store
	Now      func() time.Time
	Log      *slog.Logger
	Enqueues Rate // of one requester
}

// A Plane is the routes over one store.
type Plane struct {
	route.Plane
	store    *db.Store
	enqueues *limiter

	once     sync.Once
	draining chan struct{} // closed by Drain
}

// Register adds the routes to a and mux, which must be what a routes on.
func Register(a huma.API, mux *http.ServeMux, cfg Config) *Plane {
	p := &Plane{
		Plane:    route.Plane{API: a, Log: cfg.Log, Tag: "compute", Root: "/v1/compute"},
		store:    cfg.Store,
		enqueues: newLimiter(cfg.Enqueues, cfg.Now),
		draining: make(chan struct{}),
	}
	p.workers()
	p.claims()
	p.activities()
	p.events()
	p.trees(mux)
	return p
}

// Drain answers every held claim and poll at once, with nothing to do, and holds
// none from then on.
func (p *Plane) Drain() { p.once.Do(func() { close(p.draining) }) }

// person is the caller's fleet, when the caller is a person.
func (p *Plane) person(c route.Caller) (*db.Fleet, error) {
	if c.Node != nil {
		return nil, api.Refuse(api.Forbidden, "a node's credential opens nothing but its node's own routes")
	}
	return p.store.Fleet(c.Owner)
}

// node is the caller's fleet, when the caller is the node named id.
func (p *Plane) node(c route.Caller, id string) (*db.Fleet, error) {
	if c.Node == nil || c.Node.ID != id {
		return nil, api.Refuse(api.Forbidden, "only the credential of node %.80q opens this route", id)
	}
	return p.store.Fleet(c.Node.Org)
}
