package upload

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

// A cloud is the real control plane behind a front that can misbehave.
type cloud struct {
	t      *testing.T
	server *httptest.Server
	plane  http.Handler
	store  *db.Store

	mu    sync.Mutex
	calls []string // method and path of each request
	front func(n int, r *http.Request) behaviour
}

// A behaviour is what the front does with one request.
type behaviour struct {
	apply bool             // the plane gets the request
	then  http.HandlerFunc // answers in its place; nil passes the plane's answer on
}

var through = behaviour{apply: true}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{t: t}
	var err error
	if c.store, err = db.Open(tempDir(t), time.Now); err != nil {
		t.Fatal(err)
	}
	c.plane = control.New(control.Config{Store: c.store})
	c.server = httptest.NewServer(c)
	t.Cleanup(func() {
		c.server.CloseClientConnections()
		c.server.Close()
		c.store.Close()
	})
	return c
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.calls = append(c.calls, r.Method+" "+r.URL.Path)
	b := through
	if c.front != nil {
		b = c.front(len(c.calls), r)
	}
	c.mu.Unlock()
	switch {
	case b.then == nil:
		c.plane.ServeHTTP(w, r)
	case b.apply:
		c.plane.ServeHTTP(httptest.NewRecorder(), r)
		fallthrough
	default:
		b.then(w, r)
	}
}

// reset forgets the requests so far and sets what becomes of the next.
func (c *cloud) reset(front func(n int, r *http.Request) behaviour) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls, c.front = nil, front
}

func (c *cloud) client() *api.Client {
	c.t.Helper()
	token, err := c.store.Mint(c.t.Context(), api.Identity{Owner: "acme", Name: "test", Project: "default"})
	if err != nil {
		c.t.Fatal(err)
	}
	return &api.Client{
		Base:  c.server.URL,
		Token: func() (string, error) { return token, nil },
		HTTP:  &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}},
	}
}

// uploader returns an Uploader that notes its waits and does not wait.
func (c *cloud) uploader(s *spool.Spool) (*Uploader, *[]time.Duration) {
	u := New(Config{Spool: s, Client: c.client()})
	waits := new([]time.Duration)
	u.sleep = func(ctx context.Context, d time.Duration) error {
		*waits = append(*waits, d)
		return ctx.Err()
	}
	return u, waits
}

// inSync fails the test when anything here is not there.
func (c *cloud) inSync(s *spool.Spool) {
	c.t.Helper()
	found, err := Check(c.t.Context(), s, c.client())
	if err != nil {
		c.t.Errorf("Check: %v", err)
	}
	for _, d := range found {
		c.t.Errorf("not in sync: %s", d)
	}
}

// refuse answers a problem.
func refuse(code api.Code) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { api.Refuse(code, "said the test").Write(w) }
}

// status answers a bare status, as a proxy does.
func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

// halfClose ends the answer in its middle.
func halfClose(w http.ResponseWriter, r *http.Request) {
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	io.WriteString(buf, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"run\":")
	buf.Flush()
	conn.(*net.TCPConn).CloseWrite()
	io.Copy(io.Discard, conn)
}

// drop closes the connection without an answer.
func drop(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }

// hang accepts the request and says nothing until the client has gone. Reading
// to the end is what makes the server notice that.
func hang(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// tempDir is t.TempDir in memory, where there is such a place.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "upload-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newSpool(t *testing.T) *spool.Spool {
	t.Helper()
	s, err := spool.Open(tempDir(t), "", "")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// weights are those of every whole run, larger than what is sent inline.
var weights = bytes.Repeat([]byte("weights."), inline/8+100)

// A recorder writes runs and fails its test when it cannot.
type recorder struct {
	t *testing.T
	s *spool.Spool
}

func (r recorder) put(kind record.Kind, purpose record.Purpose, b []byte, parents ...canon.SHA256) canon.SHA256 {
	r.t.Helper()
	a, err := r.s.Put(record.Artifact{
		Kind: kind, MediaType: kind.MediaType(), SchemaVersion: 1, Purpose: purpose,
		Producer: record.Producer{Tool: "test"}, Parents: append([]canon.SHA256{}, parents...),
	}, bytes.NewReader(b))
	if err != nil {
		r.t.Fatal(err)
	}
	return a.SHA256
}

// dataset seals n rows and holds them.
func (r recorder) dataset(id string, purpose record.Purpose, n int) record.Dataset {
	r.t.Helper()
	var items []record.DatasetItem
	for i := range n {
		row := fmt.Appendf(nil, `{"text":"%s %d"}`, id, i)
		name := fmt.Sprintf("i%d", i)
		it, err := record.NewItem(id, purpose, name, id+":"+name, row, row, []byte(`{"q":[0,1]}`))
		if err != nil {
			r.t.Fatal(err)
		}
		items = append(items, it)
	}
	b, sha, err := record.ItemsNDJSON(items)
	if err != nil {
		r.t.Fatal(err)
	}
	r.put(record.KindDataset, purpose, b)
	when := "2026-09-29T07:42:00Z"
	d := record.Dataset{
		ID: id, Purpose: purpose, Title: id, License: "unstated", Origin: "test", Parents: []string{},
		State: record.Sealed, Items: uint64(n), SHA256: &sha, Created: when, Sealed: &when,
	}
	if err := r.s.PutDataset(d); err != nil {
		r.t.Fatal(err)
	}
	return d
}

func (r recorder) append(l *spool.Log, bodies ...event.Body) {
	r.t.Helper()
	for _, b := range bodies {
		if _, err := l.Append(b); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r recorder) create(run string) *spool.Log {
	r.t.Helper()
	l, err := r.s.Create(run)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { l.Close() })
	return l
}

func (r recorder) created(gate *canon.Hash) event.RunCreated {
	return event.RunCreated{
		Kind:                      event.KindTrain,
		EnvironmentArtifactSHA256: r.put(record.KindEnvironment, record.Train, environmentJSON(r.t)),
		ConfigSHA256:              r.put(record.KindConfig, record.Train, []byte(`{"stage":"tiny"}`)),
		Parents:                   []canon.SHA256{}, GateSpecHash: gate, Tags: []string{}, By: "test",
	}
}

// probed records that a configuration is exact in its environment.
func (r recorder) probed(c event.RunCreated) {
	r.t.Helper()
	h := canon.HashOf(nil)
	report := record.DeterminismReport{
		EnvironmentArtifactSHA256: c.EnvironmentArtifactSHA256, ConfigSHA256: c.ConfigSHA256,
		Probe: record.Probe{WeightsHash: h, OptimizerHash: h, RNGHash: h, BatchIDsHash: h},
		Exact: true, PredictionAgreement: 1,
	}
	for _, step := range record.ProbeSteps {
		report.Probe.Steps = append(report.Probe.Steps, record.ProbedStep{Step: step, A: h, B: h})
	}
	if _, err := r.s.PutDeterminism(report); err != nil {
		r.t.Fatal(err)
	}
}

func environmentJSON(t *testing.T) []byte {
	t.Helper()
	b, err := canon.Marshal(record.Environment{
		Dirty: true, LockfileHash: canon.HashOf(nil), KernelPlanHash: canon.HashOf(nil),
		Accelerator: record.Accelerator{API: record.CPU},
		Precision:   record.Precision{Compute: "f32", Master: "f32", Accumulate: "f32"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func step(n uint64) event.StepRecorded {
	return event.StepRecorded{Step: n, Tokens: 10 * n, Loss: 1 / float64(n), GradNorm: 0.5, LR: 1e-5, BatchIDsHash: canon.HashOf(fmt.Append(nil, n))}
}

// short records a run of a few steps that is still going.
func (r recorder) short(run string, steps uint64) *spool.Log {
	r.t.Helper()
	d := r.dataset("rows", record.Train, 3)
	l := r.create(run)
	r.append(l, r.created(nil),
		event.DatasetAttached{Dataset: d.ID, DatasetSHA256: *d.SHA256, Purpose: d.Purpose, Role: record.RoleTrain},
		event.TrainStarted{PlanSHA256: r.put(record.KindPlan, record.Train, []byte(`{"plan":1}`)), Batches: steps, Tokens: 10 * steps})
	for n := uint64(1); n <= steps; n++ {
		r.append(l, step(n))
	}
	return l
}

// whole records a run with everything in it: a gate, a determinism report, two datasets, steps, a
// checkpoint, an evaluation, a verdict, an end.
func (r recorder) whole(run string, steps uint64) {
	r.t.Helper()
	eval := r.dataset("judge", record.EvalOnly, 2)
	hash, err := r.s.PutGate(gate.Gate{Name: "tiny", Version: 1, Rules: []gate.Rule{{
		Dataset: eval.ID, DatasetSHA256: *eval.SHA256, Category: gate.All, Metric: "accuracy", Higher: true,
		Test: gate.Test{Kind: gate.Floor, Value: 0.25},
	}}})
	if err != nil {
		r.t.Fatal(err)
	}
	rows := r.dataset("rows", record.Train, 3)
	config := r.created(&hash)
	r.probed(config)
	l := r.create(run)
	r.append(l, config,
		event.DatasetAttached{Dataset: rows.ID, DatasetSHA256: *rows.SHA256, Purpose: rows.Purpose, Role: record.RoleTrain},
		event.DatasetAttached{Dataset: eval.ID, DatasetSHA256: *eval.SHA256, Purpose: eval.Purpose, Role: record.RoleEvaluate},
		event.TrainStarted{PlanSHA256: r.put(record.KindPlan, record.Train, []byte(`{"plan":1}`)), Batches: steps, Tokens: 10 * steps})
	for n := uint64(1); n <= steps; n++ {
		r.append(l, step(n))
	}
	checkpoint := r.put(record.KindCapability, record.Train, weights, config.ConfigSHA256)
	items := "{\"brier\":0.08,\"confidence\":0.8,\"correct\":true,\"group\":\"i0\",\"item\":\"i0\",\"p_gold\":0.8,\"question\":\"q\"}\n" +
		"{\"brier\":0.98,\"confidence\":0.7,\"correct\":false,\"group\":\"i1\",\"item\":\"i1\",\"p_gold\":0.3,\"question\":\"q\"}\n"
	parsed, err := gate.ParseItems(strings.NewReader(items))
	if err != nil {
		r.t.Fatal(err)
	}
	itemsSHA := r.put(record.KindItems, eval.Purpose, []byte(items), checkpoint, *eval.SHA256)
	two := uint64(2)
	r.append(l,
		event.CheckpointCreated{Step: steps, Tokens: 10 * steps, ArtifactSHA256: checkpoint},
		event.EvalStarted{
			Evaluation: "evl_0000000000000001", Subject: event.Subject{Kind: event.SubjectArtifact, SHA256: checkpoint},
			Dataset: eval.ID, DatasetSHA256: *eval.SHA256,
			Evaluator: event.Evaluator{Kind: event.Harness, Name: "test", Version: "1", DefinitionHash: canon.HashOf(nil)},
		},
		event.EvalCompleted{
			Evaluation: "evl_0000000000000001", Questions: &two, Answered: &two,
			Measures: gate.Measures(parsed), ItemsSHA256: &itemsSHA,
		})
	g, err := r.s.LoadGate(hash)
	if err != nil {
		r.t.Fatal(err)
	}
	verdict := g.Evaluate([]gate.Evaluation{{
		Dataset: eval.ID, DatasetSHA256: *eval.SHA256, Complete: true, Items: parsed, Measures: gate.Measures(parsed),
	}}, nil)
	r.append(l, event.GateEvaluated(verdict),
		event.RunCompleted{Status: event.Completed, Steps: steps, Tokens: 10 * steps, Batches: steps})
	l.Close()
}
