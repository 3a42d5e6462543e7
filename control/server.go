// Package control is the embedded control plane: one process, one folder, the
// routes of its planes behind one authentication.
//
// A [Server] is an http.Handler; [Server.Serve] runs it on a listener. Bearer
// tokens come from the store or, a person's, from an issuer outside, and the token
// alone says which org a request may see. A person's opens every route but a
// node's own, and a node's credential nothing but those. /openapi.json describes
// every route, /healthz says whether the store answers, and
// /.well-known/openid-configuration where the issuer is; all need no token.
//
// # Crashes
//
// A 2xx is sent after the commit it speaks of. Killing the process at any moment
// loses no acknowledged write and needs no repair at the next start: see package
// db. On a cancelled context Serve stops accepting, answers the long polls it holds,
// lets the other requests under way end for [Config.Grace], and then cuts them; a
// write that is cut is committed whole or not at all, and its client, having got no
// answer, sends it again.
//
// # Limits
//
// Headers must arrive within 10 s and JSON bodies within 60 s; artifact bytes must
// average 16 KiB/s after their first minute; what is left of a refused request's
// body within 5 s. A connection that falls behind is
// cut, so that slow clients cannot hold the server.
//
// It speaks plain HTTP: serve it on a loopback address, or behind something that
// terminates TLS.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/compute"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/control/research"
	"github.com/hanzoai/link/control/route"
	"github.com/hanzoai/link/spool/canon"
)

// A Config says what a Server is made of.
type Config struct {
	Store *db.Store        // required; the server does not close it
	Log   *slog.Logger     // nil discards
	Now   func() time.Time // the clock that grants and issued tokens expire by; nil means time.Now
	// Issuer is the address of an OpenID Connect issuer whose tokens speak for
	// persons beside the store's own, and Audience what they name this server; see
	// CheckIssuer. Empty: there is none.
	Issuer, Audience string

	Version string        // of this build, for the document; empty means "devel"
	Grace   time.Duration // for requests under way when stopping; zero means 10 s

	// Enqueues is how often one requester may ask machines for work; zero means
	// DefaultEnqueues.
	Enqueues compute.Rate
}

// DefaultEnqueues is more than a person types and less than a loop asks.
var DefaultEnqueues = compute.Rate{Burst: 60, PerSecond: 1}

// A Server is a control plane's routes.
type Server struct {
	store   *db.Store
	log     *slog.Logger
	grace   time.Duration
	issuer  *issuer // nil: none
	plane   route.Plane
	compute *compute.Plane
	mux     *http.ServeMux
	handler http.Handler
}

// New assembles a server.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Version == "" {
		cfg.Version = "devel"
	}
	if cfg.Grace == 0 {
		cfg.Grace = 10 * time.Second
	}
	if cfg.Enqueues == (compute.Rate{}) {
		cfg.Enqueues = DefaultEnqueues
	}
	s := &Server{store: cfg.Store, log: cfg.Log, grace: cfg.Grace, mux: http.NewServeMux()}
	if cfg.Issuer != "" {
		s.issuer = newIssuer(cfg.Issuer, cfg.Audience, cfg.Now)
	}
	a := document(s.mux, cfg.Version)
	s.plane = route.Plane{API: a, Log: cfg.Log}
	research.Register(a, s.mux, cfg.Store, cfg.Now, cfg.Log)
	s.compute = compute.Register(a, s.mux, compute.Config{Store: cfg.Store, Now: cfg.Now, Log: cfg.Log, Enqueues: cfg.Enqueues})
	s.userinfo(a)
	s.records(a)
	s.mux.HandleFunc("GET /.well-known/openid-configuration", s.issuerAddress)
	s.mux.HandleFunc("GET /healthz", s.health)
	s.mux.HandleFunc("/", s.unmatched)
	s.handler = s.logged(s.authenticated(s.mux))
	return s
}

// document makes the API that serves /openapi.json.
func document(mux *http.ServeMux, version string) huma.API {
	cfg := huma.DefaultConfig("Hanzo control plane", version)
	// Without the hooks no answer gains a $schema member or a Link header.
	cfg.CreateHooks = nil
	cfg.SchemasPath, cfg.DocsPath = "", ""
	cfg.RejectUnknownQueryParameters = true
	cfg.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"token": {Type: "http", Scheme: "bearer"},
	}
	a := humago.New(mux, cfg)
	// JSON of no fixed shape, which reflection takes for bytes.
	a.OpenAPI().Components.Schemas.RegisterTypeAlias(reflect.TypeFor[canon.Raw](), reflect.TypeFor[any]())
	return a
}

func init() {
	// The framework's own refusals (a query out of range, a body over the limit)
	// become our problems. It has no other place to say so than this variable.
	huma.NewError = func(status int, message string, errs ...error) huma.StatusError {
		for _, err := range errs {
			if err != nil {
				message += "; " + err.Error()
			}
		}
		return api.Refuse(codeOf(status), "%s", message)
	}
}

// codeOf maps the statuses that the framework refuses with.
func codeOf(status int) api.Code {
	switch status {
	case http.StatusRequestEntityTooLarge:
		return api.TooLarge
	case http.StatusRequestTimeout:
		return api.Timeout
	case http.StatusNotFound:
		return api.NotFound
	}
	if status < 500 {
		return api.Invalid
	}
	return api.Internal
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Drain answers every held long poll at once, and holds none from then on. Serve
// does it when it stops; whoever serves s otherwise calls it before.
func (s *Server) Drain() { s.compute.Drain() }

// Serve answers requests on l until ctx is cancelled and the requests under way
// have ended or were cut. It closes l, and returns nil when ctx stopped it.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	hs := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	failed := make(chan error, 1)
	go func() { failed <- hs.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.grace)
	defer cancel()
	s.Drain()
	err := hs.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		cut()
		err = hs.Close()
	}
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// logged writes one line a request. The query is left out: that of an upload
// address is a secret.
func (s *Server) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		sw := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		// Answers of JSON are bounded; what streams sets its own, longer deadline.
		http.NewResponseController(w).SetWriteDeadline(start.Add(5 * time.Minute))
		next.ServeHTTP(sw, r)
		s.log.InfoContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path, "status", sw.status, "took", time.Since(start))
	})
}

// leftover is how long the rest of a refused request's body is waited for. The
// answer is not sent before it, and a refusal may come before anybody is known.
const leftover = 5 * time.Second

// A statusWriter remembers the status that was sent.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	if status >= 400 {
		http.NewResponseController(w).SetReadDeadline(time.Now().Add(leftover))
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// userinfo answers whom a token speaks for, as Hanzo IAM's route of that name
// does, and which control plane this is: a client needs to know its org and project
// before it names a spool, and that what it was acknowledged was acknowledged here.
func (s *Server) userinfo(a huma.API) {
	type output struct{ Body api.Identity }
	huma.Register(a, huma.Operation{
		OperationID: "get-userinfo", Method: http.MethodGet, Path: "/v1/iam/oauth/userinfo",
		Summary: "Whom the token speaks for", Tags: []string{"iam"}, Security: []map[string][]string{{"token": {}}},
	}, func(ctx context.Context, _ *struct{}) (*output, error) {
		id := route.From(ctx).Identity
		id.Server = s.store.ID()
		return &output{id}, nil
	})
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	if err := s.store.Ping(r.Context()); err != nil {
		s.log.ErrorContext(r.Context(), "the store does not answer", "err", err)
		api.Refuse(api.Unavailable, "the store does not answer").Write(w)
		return
	}
	s.answer(w, map[string]string{"status": "ok"})
}

// answer sends a value that encodes, whatever it holds.
func (s *Server) answer(w http.ResponseWriter, v map[string]string) {
	body, err := canon.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("control: encoding %v: %v", v, err))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(body)
}

var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete}

// unmatched answers what no route takes: 405 when another method would be taken.
func (s *Server) unmatched(w http.ResponseWriter, r *http.Request) {
	allowed := slices.DeleteFunc(slices.Clone(methods), func(method string) bool {
		other := r.Clone(r.Context())
		other.Method = method
		_, pattern := s.mux.Handler(other)
		return pattern == "/"
	})
	if len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		api.Refuse(api.MethodNotAllowed, "%s takes %s, not %s", r.URL.Path, strings.Join(allowed, ", "), r.Method).Write(w)
		return
	}
	api.Refuse(api.NotFound, "there is no route %s", r.URL.Path).Write(w)
}
