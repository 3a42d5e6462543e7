// Package route is what the planes of a control plane have in common: who calls,
// how an operation is described and served, how a body is read and how a failure
// is answered. A plane registers operations with [Handle]; the rules of what they
// do are the plane's and its store's.
//
// The package neither authenticates nor chooses an org: the server puts a [Caller]
// into a request's context with [With], and a handler takes it with [From].
//
// A body never passes through a generic decoder: it goes raw to package canon, by
// [Read], which refuses what others repair. An answer is canonical JSON.
package route

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

// slowBody is how long a JSON body may take to arrive.
const slowBody = 60 * time.Second

// A Plane is where operations of one tag are registered. Its fields do not change
// once the first is.
type Plane struct {
	API  huma.API
	Log  *slog.Logger
	Tag  string // of its operations in the document
	Root string // the address that all of them begin with
}

// An Op is what the documentation says of one operation.
type Op struct {
	Method, Path, Summary string
	Takes                 any   // a value of the body's type; nil for none
	Limit                 int64 // of the body, in bytes; past it the answer is 413
	Gives                 any   // a value of the answer's type; nil for 204
	Status                int   // of an answer; zero means 200
	MayBeEmpty            bool  // there may be nothing to answer, which is 204
}

// answer is a huma output of bytes that are canonical JSON already.
type answer struct {
	Status      int
	ContentType string `header:"Content-Type"`
	Body        []byte
}

// Handle registers an operation whose handler is fn. In is the huma input, with a
// RawBody when the operation takes a body. What fn answers is encoded; nil is 204.
// Its errors are answered as [Plane.Refuse] does.
func Handle[In any](p *Plane, op Op, fn func(context.Context, *In) (any, error)) {
	if op.Status == 0 {
		op.Status = http.StatusOK
	}
	o := huma.Operation{
		OperationID: p.OperationID(op.Method, op.Path), Method: op.Method, Path: op.Path, Summary: op.Summary,
		Tags: []string{p.Tag}, Security: []map[string][]string{{"token": {}}},
		Responses: p.Responses(op.Gives, op.Status), SkipValidateBody: true,
		MaxBodyBytes: op.Limit, BodyReadTimeout: slowBody, DefaultStatus: op.Status,
	}
	if op.Takes != nil {
		o.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{}}
		o.Middlewares = huma.Middlewares{bounded(op.Limit)}
	}
	if op.Gives == nil || op.MayBeEmpty {
		o.DefaultStatus = http.StatusNoContent // of a nil output
	}
	huma.Register(p.API, o, func(ctx context.Context, in *In) (*answer, error) {
		out, err := fn(ctx, in)
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
		return &answer{op.Status, "application/json", body}, nil
	})
	if op.Takes != nil {
		// Registering a raw body documents it as bytes; say what they are.
		o.RequestBody.Content["application/json"] = &huma.MediaType{Schema: p.Schema(op.Takes)}
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

// OperationID names an operation for generated clients: get-datasets-id-items.
func (p *Plane) OperationID(method, path string) string {
	path = strings.NewReplacer(p.Root, "", "/", "-", "{", "", "}", "").Replace(path)
	return strings.ToLower(method) + path
}

// Schema is the document's schema of v's type.
func (p *Plane) Schema(v any) *huma.Schema {
	t := reflect.TypeOf(v)
	return p.API.OpenAPI().Components.Schemas.Schema(t, true, t.Name())
}

// Responses documents a success of the given status and, under default, every
// refusal.
func (p *Plane) Responses(gives any, status int) map[string]*huma.Response {
	out := map[string]*huma.Response{
		"default": {
			Description: "A refusal; code says which",
			Content:     map[string]*huma.MediaType{"application/problem+json": {Schema: p.Schema(api.Problem{})}},
		},
	}
	if gives != nil {
		out[strconv.Itoa(status)] = &huma.Response{
			Description: http.StatusText(status),
			Content:     map[string]*huma.MediaType{"application/json": {Schema: p.Schema(gives)}},
		}
	}
	return out
}

// problem makes an error what the client may see. Refusals pass; anything else is
// our fault, logged here and not described to the caller, and says whether to try
// again.
func (p *Plane) problem(ctx context.Context, err error) *api.Problem {
	if refusal, ok := errors.AsType[*api.Problem](err); ok {
		return refusal
	}
	if ctx.Err() != nil {
		// Nobody reads this answer: the caller left, or the server is stopping.
		return api.Refuse(api.Unavailable, "the request was abandoned")
	}
	p.Log.ErrorContext(ctx, "request failed", "err", err)
	if db.Full(err) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return api.Refuse(api.Unavailable, "the server's disk is full; nothing was stored")
	}
	return api.Refuse(api.Internal, "the server failed and logged why")
}

// Refuse answers an error on a route that streams, which huma's do not.
func (p *Plane) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	p.problem(r.Context(), err).Write(w)
}

// Read decodes a raw body, closed and strict.
func Read(raw []byte, v any) error {
	if err := canon.Unmarshal(raw, v); err != nil {
		return api.Refuse(api.Invalid, "body: %v", err)
	}
	return nil
}

// Slowest is the bytes a second that a transfer must reach on average, after
// SlowStart, or it is cut: a client that trickles holds a connection and a file.
const (
	Slowest   = 16 << 10
	SlowStart = 60 * time.Second
)

// Transfer is how long size bytes may take.
func Transfer(size int64) time.Duration {
	return SlowStart + time.Duration(size/Slowest)*time.Second
}
