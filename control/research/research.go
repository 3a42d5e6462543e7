// Package research serves /v1/research: the routes of HIP-1334 over package db.
//
// A handler reads its request strictly, calls one method of the store and
// answers canonical JSON; every rule of the record is the store's. Bodies of
// objects that are hashed never pass through a generic decoder: they go raw to
// package canon, which refuses what others repair.
//
// The package neither authenticates nor chooses an org: its caller puts the
// principal of a request into its context with [WithPrincipal]. The only route
// without one is the PUT of an upload grant, whose address is signed.
package research

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/spool/canon"
)

// Body limits by route, in bytes. Past one the answer is 413.
const (
	maxObject   = 1 << 20                       // one dataset or gate
	maxItems    = 64 << 20                      // an append of items
	maxEvents   = 16 << 20                      // an append of events
	maxRegister = api.MaxInline/3*4 + maxObject // a registration and its base64
)

// slowBody is how long a JSON body may take to arrive.
const slowBody = 60 * time.Second

// A Plane is the routes over one store.
type Plane struct {
	store *db.Store
	now   func() time.Time
	log   *slog.Logger
	api   huma.API
}

// Register adds the routes to a and mux, which must be what a routes on.
func Register(a huma.API, mux *http.ServeMux, store *db.Store, now func() time.Time, log *slog.Logger) {
	p := &Plane{store: store, now: now, log: log, api: a}
	p.documentVariants()
	p.datasets()
	p.artifacts(mux)
	p.gates()
	p.runs()
}

type principalKey struct{}

// WithPrincipal returns ctx for a request that speaks for id.
func WithPrincipal(ctx context.Context, id api.Identity) context.Context {
	return context.WithValue(ctx, principalKey{}, id)
}

// Principal returns whom a request speaks for.
func Principal(ctx context.Context) api.Identity {
	id, ok := ctx.Value(principalKey{}).(api.Identity)
	if !ok {
		panic("research: a request reached a handler without a principal")
	}
	return id
}

// org opens the record that a request may see: its principal's.
func (p *Plane) org(ctx context.Context) (*db.Org, error) {
	return p.store.Org(Principal(ctx).Owner)
}

// answer is a huma output of bytes that are canonical JSON already.
type answer struct {
	ContentType string `header:"Content-Type"`
	Body        []byte
}

// A route is what the documentation says of one operation.
type route struct {
	method, path, summary string
	takes                 any   // a value of the body's type; nil for none
	limit                 int64 // of the body
	gives                 any   // a value of the answer's type; nil for 204
}

// handle registers a route whose handler is fn. In is the huma input, with a
// RawBody when the route takes a body.
func handle[In any](p *Plane, r route, fn func(context.Context, *db.Org, *In) (any, error)) {
	op := huma.Operation{
		OperationID: operationID(r.method, r.path), Method: r.method, Path: r.path, Summary: r.summary,
		Tags: []string{"research"}, Security: []map[string][]string{{"token": {}}},
		Responses: p.responses(r.gives), SkipValidateBody: true,
		MaxBodyBytes: r.limit, BodyReadTimeout: slowBody,
	}
	if r.takes != nil {
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{}}
		op.Middlewares = huma.Middlewares{bounded(r.limit)}
	}
	if r.gives == nil {
		op.DefaultStatus = http.StatusNoContent
	}
	huma.Register(p.api, op, func(ctx context.Context, in *In) (*answer, error) {
		org, err := p.org(ctx)
		if err != nil {
			return nil, p.problem(ctx, err)
		}
		out, err := fn(ctx, org, in)
		if err != nil {
			return nil, p.problem(ctx, err)
		}
		if out == nil {
			return nil, nil
		}
		body, err := canon.Marshal(out)
		if err != nil {
			return nil, p.problem(ctx, fmt.Errorf("encoding the answer: %w", err))
		}
		return &answer{"application/json", body}, nil
	})
	if r.takes != nil {
		// Registering a raw body documents it as bytes; say what they are.
		op.RequestBody.Content["application/json"] = &huma.MediaType{Schema: p.schema(r.takes)}
	}
}

// bounded refuses a body that says it is over limit before any of it is read, so
// that the client is still listening when the answer comes.
func bounded(limit int64) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		if n, err := strconv.ParseInt(ctx.Header("Content-Length"), 10, 64); err == nil && n > limit {
			_, w := humago.Unwrap(ctx)
			api.Refuse(api.TooLarge, "the body has %d bytes; this route takes %d", n, limit).Write(w)
			return
		}
		next(ctx)
	}
}

// operationID names an operation for generated clients: get-datasets-id-items.
func operationID(method, path string) string {
	path = strings.NewReplacer("/v1/research", "", "/", "-", "{", "", "}", "").Replace(path)
	return strings.ToLower(method) + path
}

func (p *Plane) schema(v any) *huma.Schema {
	t := reflect.TypeOf(v)
	return p.api.OpenAPI().Components.Schemas.Schema(t, true, t.Name())
}

// responses documents a success and, under default, every refusal.
func (p *Plane) responses(gives any) map[string]*huma.Response {
	out := map[string]*huma.Response{
		"default": {
			Description: "A refusal; code says which",
			Content:     map[string]*huma.MediaType{"application/problem+json": {Schema: p.schema(api.Problem{})}},
		},
	}
	if gives != nil {
		out["200"] = &huma.Response{
			Description: http.StatusText(http.StatusOK),
			Content:     map[string]*huma.MediaType{"application/json": {Schema: p.schema(gives)}},
		}
	}
	return out
}

// problem makes an error what the client may see. Refusals pass; anything else is
// our fault, logged here and not described to the caller, and says whether to try
// again.
func (p *Plane) problem(ctx context.Context, err error) error {
	if refusal, ok := errors.AsType[*api.Problem](err); ok {
		return refusal
	}
	if ctx.Err() != nil {
		// Nobody reads this answer: the caller left, or the server is stopping.
		return api.Refuse(api.Unavailable, "the request was abandoned")
	}
	p.log.ErrorContext(ctx, "request failed", "err", err)
	if db.Full(err) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return api.Refuse(api.Unavailable, "the server's disk is full; nothing was stored")
	}
	return api.Refuse(api.Internal, "the server failed and logged why")
}

// read decodes a raw body, closed and strict.
func read(raw []byte, v any) error {
	if err := canon.Unmarshal(raw, v); err != nil {
		return api.Refuse(api.Invalid, "body: %v", err)
	}
	return nil
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
