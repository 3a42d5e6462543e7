// Package research serves /v1/research: the routes of HIP-1334 over package db.
//
// A handler reads its request strictly, calls one method of the store and
// answers canonical JSON, as package route does it; every rule of the record is
// the store's. The only route without a [route.Caller] is the PUT of an upload
// grant, whose address is signed.
package research

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/control/route"
)

// Body limits by route, in bytes. Past one the answer is 413.
const (
	maxObject   = 1 << 20                       // one dataset, gate or report
	maxItems    = 64 << 20                      // an append of items
	maxEvents   = 16 << 20                      // an append of events
	maxRegister = api.MaxInline/3*4 + maxObject // a registration and its base64
)

// A Plane is the routes over one store.
type Plane struct {
	route.Plane
	store *db.Store
	now   func() time.Time
}

// Register adds the routes to a and mux, which must be what a routes on.
func Register(a huma.API, mux *http.ServeMux, store *db.Store, now func() time.Time, log *slog.Logger) {
	p := &Plane{Plane: route.Plane{API: a, Log: log, Tag: "research", Root: "/v1/research"}, store: store, now: now}
	p.documentVariants()
	p.datasets()
	p.artifacts(mux)
	p.gates()
	p.determinism()
	p.runs()
}

// org opens the record that a request may see: its principal's.
func (p *Plane) org(ctx context.Context) (*db.Org, error) {
	return p.store.Org(route.From(ctx).Owner)
}

// handle registers an operation whose handler is fn, on the caller's org.
func handle[In any](p *Plane, op route.Op, fn func(context.Context, *db.Org, *In) (any, error)) {
	route.Handle(&p.Plane, op, func(ctx context.Context, in *In) (any, error) {
		org, err := p.org(ctx)
		if err != nil {
			return nil, err
		}
		return fn(ctx, org, in)
	})
}

// instantQuery checks a query that is an instant.
func instantQuery(name, value string) error {
	if value == "" {
		return nil
	}
	if _, err := time.Parse(time.RFC3339, value); err != nil {
		return api.Refuse(api.Invalid, "%s: %q is not an RFC 3339 instant", name, value)
	}
	return nil
}
