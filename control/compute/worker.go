package compute

import (
	"context"
	"net/http"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/route"
)

const (
	workersPath = root + "/workers"
	nodePath    = workersPath + "/{id}"

	maxWorker = 2 << 20 // bytes of a registration: a policy of 1 MiB and as much around it
)

// nodeID is the input of a route that is a node's.
type nodeID struct {
	ID string `path:"id"`
}

func (p *Plane) workers() {
	route.Handle(&p.Plane, route.Op{
		Method: http.MethodPut, Path: nodePath, Summary: "Register a node, or say what it is now",
		Takes: api.WorkerPut{}, Limit: maxWorker, Gives: api.WorkerStored{},
	}, func(ctx context.Context, in *struct {
		ID      string `path:"id"`
		RawBody []byte `contentType:"application/json"`
	}) (any, error) {
		var w api.WorkerPut
		if err := route.Read(in.RawBody, &w); err != nil {
			return nil, err
		}
		return p.putWorker(ctx, in.ID, w)
	})
	route.Handle(&p.Plane, route.Op{
		Method: http.MethodGet, Path: workersPath, Summary: "List the org's nodes", Gives: api.Workers{},
	}, func(ctx context.Context, _ *struct{}) (any, error) {
		f, err := p.person(route.From(ctx))
		if err != nil {
			return nil, err
		}
		return api.Workers{Workers: f.Workers()}, nil
	})
	route.Handle(&p.Plane, route.Op{
		Method: http.MethodDelete, Path: nodePath, Summary: "Remove a node and end its credential",
	}, func(ctx context.Context, in *nodeID) (any, error) {
		return nil, p.deleteWorker(ctx, in.ID)
	})
}

func (p *Plane) putWorker(ctx context.Context, id string, w api.WorkerPut) (any, error) {
	if !api.ValidWorker(id) {
		return nil, api.Refuse(api.Invalid, "%.80q is no node's id: want 1 to 63 of a-z, 0-9 and '-'", id)
	}
	if err := w.Check(); err != nil {
		return nil, api.Refuse(api.Invalid, "body: %v", err)
	}
	c := route.From(ctx)
	if c.Node != nil {
		f, err := p.node(c, id)
		if err != nil {
			return nil, err
		}
		stored, err := f.Refresh(ctx, id, w)
		return api.WorkerStored{Worker: stored, Org: c.Owner}, err
	}
	f, err := p.person(c)
	if err != nil {
		return nil, err
	}
	stored, credential, err := f.Link(ctx, id, w, c.Requester())
	return api.WorkerStored{Worker: stored, Org: c.Owner, Credential: credential}, err
}

func (p *Plane) deleteWorker(ctx context.Context, id string) error {
	c := route.From(ctx)
	if c.Node != nil {
		f, err := p.node(c, id)
		if err != nil {
			return err
		}
		return f.Unlink(ctx, id, func(string) error { return nil })
	}
	f, err := p.person(c)
	if err != nil {
		return err
	}
	return f.Unlink(ctx, id, func(linkedBy string) error {
		if c.Admin || c.Requester() == linkedBy {
			return nil
		}
		return api.Refuse(api.Forbidden, "only an admin of the org, or %s who linked it, removes node %s", linkedBy, id)
	})
}
