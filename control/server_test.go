package control_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/record"
)

// A cloud is a real server on a loopback port over a folder of its own.
type cloud struct {
	t     *testing.T
	base  string
	dir   string // the store's
	store *db.Store

	mu  sync.Mutex // guards now, which the server's goroutines read
	now time.Time  // of grants and received instants
}

func (c *cloud) clock() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// wait lets time pass.
func (c *cloud) wait(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func start(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{t: t, dir: t.TempDir(), now: time.Date(2026, 9, 29, 7, 42, 0, 0, time.UTC)}
	var err error
	if c.store, err = db.Open(c.dir, c.clock); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.base = "http://" + l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- control.New(control.Config{Store: c.store, Now: c.clock}).Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if err := c.store.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

// client makes a client with a fresh token of org.
func (c *cloud) client(org string) *client {
	c.t.Helper()
	token, err := c.store.Mint(c.t.Context(), api.Identity{Owner: org, Name: "test", Project: "default"})
	if err != nil {
		c.t.Fatal(err)
	}
	return &client{c.t, &api.Client{Base: c.base, Token: func() (string, error) { return token, nil }}}
}

// A client is an api.Client that fails its test on an unexpected error.
type client struct {
	t *testing.T
	*api.Client
}

func (c *client) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// refused checks that err is a problem of the given code and the table's status,
// or of another status when one is given.
func refused(t *testing.T, what string, err error, code api.Code, status ...int) *api.Problem {
	t.Helper()
	want := code.Status()
	if len(status) > 0 {
		want = status[0]
	}
	p, ok := errors.AsType[*api.Problem](err)
	if !ok || p.Code != code || p.Status != want {
		t.Errorf("%s = %v, want %d %s", what, err, want, code)
		return &api.Problem{}
	}
	if p.Detail == "" || p.Title == "" || p.Type != "about:blank" {
		t.Errorf("%s: the problem is not filled in: %+v", what, p)
	}
	return p
}

var producer = record.Producer{Tool: "test", Version: "0000000"}

// put stores an artifact of JSON or JSON Lines bytes and returns its address.
func (c *client) put(kind record.Kind, purpose record.Purpose, content string, parents ...canon.SHA256) canon.SHA256 {
	c.t.Helper()
	got, err := c.RegisterArtifact(c.t.Context(), artifact(kind, purpose, parents...), []byte(content))
	c.must(err)
	if !got.Stored || got.Artifact.State != record.Stored {
		c.t.Fatalf("registered with its bytes, artifact %s is not stored", got.Artifact.SHA256)
	}
	return got.Artifact.SHA256
}

func artifact(kind record.Kind, purpose record.Purpose, parents ...canon.SHA256) record.Artifact {
	return record.Artifact{
		Kind: kind, MediaType: kind.MediaType(), SchemaVersion: 1, Purpose: purpose, Producer: producer, Parents: parents,
	}
}

func dataset(id string, purpose record.Purpose) record.Dataset {
	return record.Dataset{ID: id, Purpose: purpose, Title: id, License: "unstated", Origin: "https://example.org/" + id}
}

// item makes the item id of a dataset; its text is unique to text.
func (c *client) item(dataset string, purpose record.Purpose, id, text string) record.DatasetItem {
	c.t.Helper()
	input, err := canon.Marshal(map[string]string{"state": text})
	c.must(err)
	it, err := record.NewItem(dataset, purpose, id, "src:"+dataset+":"+id, input, input, canon.Raw(`{"q":[1,0]}`))
	c.must(err)
	return it
}

// sealed makes a sealed dataset of n items and returns its address.
func (c *client) sealed(id string, purpose record.Purpose, n int) canon.SHA256 {
	c.t.Helper()
	_, err := c.CreateDataset(c.t.Context(), dataset(id, purpose))
	c.must(err)
	var items []record.DatasetItem
	for i := range n {
		items = append(items, c.item(id, purpose, fmt.Sprintf("i%d", i), fmt.Sprintf("%s row %d", id, i)))
	}
	_, err = c.AppendItems(c.t.Context(), id, items)
	c.must(err)
	d, err := c.SealDataset(c.t.Context(), id)
	c.must(err)
	return *d.SHA256
}

// A log builds a run's events.
type log struct {
	c   *client
	run string
	seq uint64
}

func (l *log) next(body event.Body) canon.Raw {
	l.seq++
	return l.at(l.seq, body)
}

// at makes the event of a seq out of order.
func (l *log) at(seq uint64, body event.Body) canon.Raw {
	l.c.t.Helper()
	e, err := event.New(l.run, seq, time.Date(2026, 9, 29, 7, 42, 0, int(seq)*1e6, time.UTC), body)
	l.c.must(err)
	return canon.Raw(e.JSON())
}

// created is a RUN_CREATED whose artifacts the server holds.
func (c *client) created() event.RunCreated {
	c.t.Helper()
	return event.RunCreated{
		Kind:                      "train",
		EnvironmentArtifactSHA256: c.put(record.KindEnvironment, record.Train, `{"git_sha":""}`),
		ConfigSHA256:              c.put(record.KindConfig, record.Train, `{"stage":"test"}`),
		Seed:                      1, By: "test", Tags: []string{"nightly"},
	}
}

// appends sends events that must all be accepted.
func (c *client) appends(run string, events ...canon.Raw) {
	c.t.Helper()
	got, err := c.AppendEvents(c.t.Context(), run, events)
	c.must(err)
	if got.Accepted != uint64(len(events)) {
		c.t.Fatalf("of %d events %d were accepted and %d duplicate", len(events), got.Accepted, got.Duplicate)
	}
}

func step(n uint64, loss float64) event.StepRecorded {
	return event.StepRecorded{Step: n, Tokens: n * 100, Loss: loss, GradNorm: 0.5, LR: 0.001, BatchIDsHash: canon.HashOf([]byte(fmt.Sprint(n)))}
}

// raw makes a request that the client would not, and returns its answer.
func (c *client) raw(method, path string, body io.Reader, header ...string) (int, http.Header, []byte) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.Base+path, body)
	c.must(err)
	token, err := c.Token()
	c.must(err)
	req.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	c.must(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	c.must(err)
	return resp.StatusCode, resp.Header, b
}

func TestAuthentication(t *testing.T) {
	s := start(t)
	c := s.client("acme")
	if id, err := c.Whoami(t.Context()); err != nil || id.Owner != "acme" || id.Project != "default" {
		t.Errorf("Whoami = %+v, %v", id, err)
	}
	for _, token := range []string{"", "nonsense", strings.Repeat("A", 43)} {
		stranger := &api.Client{Base: s.base, Token: func() (string, error) { return token, nil }}
		_, err := stranger.Whoami(t.Context())
		p := refused(t, "Whoami with token "+token, err, api.Unauthorized)
		if retry, _ := api.Retryable(p); retry {
			t.Error("401 is called retryable")
		}
		if token != "" && strings.Contains(fmt.Sprint(err), token) {
			t.Errorf("the error holds the token: %v", err)
		}
	}
	resp, err := http.Get(s.base + "/v1/research/runs")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 401 || resp.Header.Get("WWW-Authenticate") != "Bearer" || resp.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("without a token: %d %v", resp.StatusCode, resp.Header)
	}
}

// TestDocument checks that the document is OpenAPI 3.1 and describes every route
// of the api package's comment, and that nothing of the framework leaks into
// answers.
func TestDocument(t *testing.T) {
	s := start(t)
	resp, err := http.Get(s.base + "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			Responses map[string]any
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1.") {
		t.Errorf("openapi is %q, want 3.1", doc.OpenAPI)
	}
	var got []string
	for path, methods := range doc.Paths {
		for method, op := range methods {
			got = append(got, strings.ToUpper(method)+" "+path)
			if op.Responses["default"] == nil {
				t.Errorf("%s %s documents no refusal", method, path)
			}
		}
	}
	slices.Sort(got)
	want := []string{
		"DELETE /v1/compute/fleet/activities/{activity}",
		"DELETE /v1/compute/fleet/workers/{id}",
		"DELETE /v1/research/datasets/{id}",
		"GET /v1/compute/fleet/activities",
		"GET /v1/compute/fleet/activities/{activity}",
		"GET /v1/compute/fleet/events",
		"GET /v1/compute/fleet/workers",
		"GET /v1/compute/fleet/workers/{id}/activities/{activity}/record/v1/iam/oauth/userinfo",
		"GET /v1/compute/fleet/workers/{id}/activities/{activity}/trees/{hash}",
		"GET /v1/compute/fleet/workers/{id}/activities/{activity}/trees/{hash}/{sha256}",
		"GET /v1/iam/oauth/userinfo",
		"GET /v1/research/artifacts",
		"GET /v1/research/artifacts/{sha256}",
		"GET /v1/research/datasets",
		"GET /v1/research/datasets/{id}",
		"GET /v1/research/datasets/{id}/items",
		"GET /v1/research/determinism",
		"GET /v1/research/evaluations",
		"GET /v1/research/evaluations/{id}",
		"GET /v1/research/gates",
		"GET /v1/research/gates/{hash}",
		"GET /v1/research/runs",
		"GET /v1/research/runs/{id}",
		"GET /v1/research/runs/{id}/events",
		"POST /v1/compute/fleet/activities",
		"POST /v1/compute/fleet/workers/{id}/activities/{activity}/record/v1/research/artifacts",
		"POST /v1/compute/fleet/workers/{id}/activities/{activity}/record/v1/research/datasets",
		"POST /v1/compute/fleet/workers/{id}/activities/{activity}/record/v1/research/datasets/{object}/items",
		"POST /v1/compute/fleet/workers/{id}/activities/{activity}/record/v1/research/datasets/{object}/seal",
		"POST /v1/compute/fleet/workers/{id}/activities/{activity}/record/v1/research/gates",
		"POST /v1/compute/fleet/workers/{id}/activities/{activity}/record/v1/research/runs/{object}/events",
		"POST /v1/compute/fleet/workers/{id}/activities/{activity}/state",
		"POST /v1/compute/fleet/workers/{id}/claim",
		"POST /v1/research/artifacts",
		"POST /v1/research/datasets",
		"POST /v1/research/datasets/{id}/items",
		"POST /v1/research/datasets/{id}/seal",
		"POST /v1/research/determinism",
		"POST /v1/research/gates",
		"POST /v1/research/runs/{id}/events",
		"PUT /v1/compute/fleet/blobs/{sha256}",
		"PUT /v1/compute/fleet/trees/{hash}",
		"PUT /v1/compute/fleet/workers/{id}",
		"PUT /v1/research/uploads/{sha256}",
	}
	if !slices.Equal(got, want) {
		t.Errorf("documented routes:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	c := s.client("acme")
	for _, path := range []string{"/v1/research/runs", "/v1/iam/oauth/userinfo"} {
		status, header, body := c.raw("GET", path, nil)
		if status != 200 || header.Get("Link") != "" || bytes.Contains(body, []byte("$schema")) {
			t.Errorf("GET %s = %d, Link %q, %s", path, status, header.Get("Link"), body)
		}
	}
}

func TestUnmatched(t *testing.T) {
	c := start(t).client("acme")
	for _, tt := range []struct {
		method, path string
		status       int
		code         api.Code
		allow        string
	}{
		{"GET", "/v1/research/nothing", 404, api.NotFound, ""},
		{"GET", "/", 404, api.NotFound, ""},
		{"PUT", "/v1/research/runs", 405, api.MethodNotAllowed, "GET"},
		{"PATCH", "/v1/research/datasets/x", 405, api.MethodNotAllowed, "GET, DELETE"},
	} {
		status, header, body := c.raw(tt.method, tt.path, nil)
		var p api.Problem
		if err := json.Unmarshal(body, &p); err != nil || status != tt.status || p.Code != tt.code || header.Get("Allow") != tt.allow {
			t.Errorf("%s %s = %d, Allow %q, %s", tt.method, tt.path, status, header.Get("Allow"), body)
		}
	}
	if status, _, body := c.raw("GET", "/healthz", nil); status != 200 || string(body) != `{"status":"ok"}` {
		t.Errorf("GET /healthz = %d %s", status, body)
	}
}

// TestRefusedBody sends a request whose body never comes to what refuses it
// unread. The answer would wait for the body, so the server must stop waiting.
func TestRefusedBody(t *testing.T) {
	s := start(t)
	for _, path := range []string{"/v1/research/runs", "/nowhere"} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		control.New(control.Config{Store: s.store}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader("unread")))
		if w.Code < 400 || w.read.IsZero() || time.Until(w.read) > 10*time.Second {
			t.Errorf("POST %s: status %d, and the body may come until %v", path, w.Code, w.read)
		}
	}
}

// deadlines is a response whose connection has deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	read time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error { d.read = t; return nil }
func (d *deadlines) SetWriteDeadline(time.Time) error  { return nil }
