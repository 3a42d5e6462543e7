package control

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/route"
)

// A node writes the record of what it runs below its activity's address,
//
//	…/workers/{id}/activities/{activity}/record/v1/…
//
// with the routes that an uploader of package spool/upload calls and no others, as
// the org and the activity's project, and of one run, the activity's: its events,
// and no artifact that says another run made it. Datasets and gates are the org's,
// whoever sends them. A determinism report speaks for every run of an environment, so
// a node may send none, and the spool that it sends shows none. A node may do all this
// for as long as its install is linked under that id, and no other install may, also
// after the activity has ended: a machine that was offline has a record to catch up
// with.

// A recordRoute is one route of the record, as a pattern's method and path.
type recordRoute struct{ method, path string }

var recordRoutes = []recordRoute{
	{"GET", "/v1/iam/oauth/userinfo"},
	{"POST", "/v1/research/artifacts"}, // the bytes go to an address that is signed
	{"POST", "/v1/research/datasets"},
	{"POST", "/v1/research/datasets/{id}/items"},
	{"POST", "/v1/research/datasets/{id}/seal"},
	{"POST", "/v1/research/gates"},
	{"POST", "/v1/research/runs/{id}/events"},
}

// inner is the pattern of the route itself, outer that of the same below an activity.
func (t recordRoute) inner() string { return t.method + " " + t.path }
func (t recordRoute) outer() string { return t.method + " " + t.address() }

// address is the path of outer. The route's own id is another than the node's.
func (t recordRoute) address() string {
	return nodeAddress + "/activities/{activity}/record" + strings.Replace(t.path, "{id}", "{object}", 1)
}

// records mounts the routes of the record, which a has, below the activities of
// nodes.
func (s *Server) records(a huma.API) {
	for _, t := range recordRoutes {
		s.mux.HandleFunc(t.outer(), func(w http.ResponseWriter, r *http.Request) { s.record(t, w, r) })
		t.document(a.OpenAPI())
	}
}

// document describes a route as the one that it serves as.
func (t recordRoute) document(doc *huma.OpenAPI) {
	inner := doc.Paths[t.path].Post
	if t.method == http.MethodGet {
		inner = doc.Paths[t.path].Get
	}
	op := *inner
	op.OperationID, op.Path, op.Tags = "record-"+op.OperationID, t.address(), []string{"compute"}
	op.Summary += "; for the run of an activity, by its node"
	params := op.Parameters
	op.Parameters = nil
	for _, name := range []string{"id", "activity"} {
		op.Parameters = append(op.Parameters, &huma.Param{Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}})
	}
	for _, p := range params {
		own := *p
		if own.Name == "id" {
			own.Name = "object"
		}
		op.Parameters = append(op.Parameters, &own)
	}
	doc.AddOperation(&op)
}

// record serves one request of a node as the route t, which has no idea of nodes.
func (s *Server) record(t recordRoute, w http.ResponseWriter, r *http.Request) {
	n := route.From(r.Context()).Node
	a, err := s.store.NodeActivity(r.Context(), n.Org, n.ID, n.Key, r.PathValue("activity"))
	if err != nil {
		s.plane.Refuse(w, r, err)
		return
	}
	inner, err := below(r)
	if err != nil {
		s.plane.Refuse(w, r, err)
		return
	}
	if _, pattern := s.mux.Handler(inner); pattern != t.inner() {
		// Two readings of one path: the mux has had the other.
		s.plane.Refuse(w, r, api.Refuse(api.NotFound, "there is no route %s", r.URL.Path))
		return
	}
	caller := route.Caller{Identity: api.Identity{Owner: n.Org, Name: n.ID, Project: a.Project}, Run: a.Activity}
	s.mux.ServeHTTP(w, inner.WithContext(route.With(r.Context(), caller)))
}

// below is r without what comes before the record's own address, of which every
// byte stays as it was sent.
func below(r *http.Request) (*http.Request, error) {
	_, rest, _ := strings.Cut(r.URL.EscapedPath(), "/activities/")
	_, rest, ok := strings.Cut(rest, "/record/")
	u, err := url.ParseRequestURI("/" + rest)
	if !ok || err != nil {
		return nil, api.Refuse(api.NotFound, "there is no route %s", r.URL.Path)
	}
	u.RawQuery = r.URL.RawQuery
	inner := *r
	inner.URL = u
	return &inner, nil
}
