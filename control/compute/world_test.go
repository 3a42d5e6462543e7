package compute_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/compute"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
)

// patience is how long a test waits for what must happen, on a machine that is busy.
const patience = 30 * time.Second

// A world is a real control plane on a loopback port, over a folder of its own, with
// a clock that stands still until a test moves it.
type world struct {
	t    *testing.T
	dir  string
	addr string
	rate compute.Rate

	store *db.Store
	stop  func() // ends the server, and waits for its end

	mu  sync.Mutex // guards now
	now time.Time
}

func newWorld(t *testing.T) *world {
	t.Parallel() // most of what a test does is wait
	w := &world{
		t: t, dir: t.TempDir(), addr: "127.0.0.1:0", now: time.Date(2026, 10, 22, 17, 4, 5, 0, time.UTC),
		rate: compute.Rate{Burst: 10_000, PerSecond: 1},
	}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *world) start() {
	w.t.Helper()
	var err error
	if w.store, err = db.Open(w.dir, w.clock); err != nil {
		w.t.Fatal(err)
	}
	l, err := net.Listen("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	server := control.New(control.Config{Store: w.store, Now: w.clock, Enqueues: w.rate})
	go func() { served <- server.Serve(ctx, l) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			w.t.Errorf("Serve: %v", err)
		}
		if err := w.store.Close(); err != nil {
			w.t.Errorf("Close: %v", err)
		}
	})
}

// restart ends the server and starts another over the same folder, at the same
// address.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

func (w *world) client(token string) *api.Client {
	return &api.Client{Base: "http://" + w.addr, Token: func() (string, error) { return token, nil }}
}

// A person is a client of one.
type person struct {
	t *testing.T
	*api.Client
}

func (w *world) person(org, name string, admin bool) *person {
	w.t.Helper()
	token, err := w.store.Mint(w.t.Context(), api.Identity{Owner: org, Name: name, Project: "default", Admin: admin})
	if err != nil {
		w.t.Fatal(err)
	}
	return &person{w.t, w.client(token)}
}

// A node is a linked machine.
type node struct {
	t   *testing.T
	w   *world
	id  string
	key string
	*api.Client
}

const allKinds = `"train.fit","engine.serve","studio.render","fn.run"`

// generous is a policy that lets n workloads of kinds in.
func generous(kinds string, n int) canon.Raw {
	return canon.Raw(fmt.Sprintf(`{"kinds":[%s],"orgs":["acme"],"caps":{"vram":0,"memory":1073741824,"cpus":4,"disk":1073741824},"concurrency":%d,"maxSec":3600}`, kinds, n))
}

func facts(offers []string, policy canon.Raw) api.WorkerFacts {
	return api.WorkerFacts{
		Hostname: "evo", OS: "linux", Arch: "x86_64", CPUs: 8, CPUModel: "a cpu", Memory: 1 << 34, Disk: 1 << 40,
		GPUs: []api.GPU{}, Version: "1.2.3", Lanes: []string{}, Offers: offers, Policy: policy,
	}
}

func keyOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}

// link links a machine that lets n workloads in, for by.
func (w *world) link(by *person, id string, n int) *node {
	w.t.Helper()
	stored, err := by.PutWorker(w.t.Context(), id, api.WorkerPut{Key: keyOf(id), WorkerFacts: facts([]string{policy.TrainFit}, generous(`"train.fit"`, n))})
	if err != nil {
		w.t.Fatal(err)
	}
	if stored.Credential == "" {
		w.t.Fatal("a first registration answered no credential")
	}
	return &node{w.t, w, id, keyOf(id), w.client(stored.Credential)}
}

// refresh says what the node is now.
func (n *node) refresh(f api.WorkerFacts) {
	n.t.Helper()
	stored, err := n.PutWorker(n.t.Context(), n.id, api.WorkerPut{Key: n.key, WorkerFacts: f})
	if err != nil {
		n.t.Fatal(err)
	}
	if stored.Credential != "" {
		n.t.Error("a refresh answered a credential")
	}
}

// running names activities in a claim.
func running(state activity.State, ids ...string) []api.Running {
	out := []api.Running{}
	for _, id := range ids {
		out = append(out, api.Running{Activity: id, State: state})
	}
	return out
}

// claim waits for something to do, and fails the test when there is nothing.
func (n *node) claim(r ...api.Running) api.Claimed {
	n.t.Helper()
	got, err := n.Claim(n.t.Context(), n.id, api.Claim{Key: n.key, Wait: 30, Running: r})
	if err != nil {
		n.t.Fatal(err)
	}
	if len(got.Start)+len(got.Stop) == 0 {
		n.t.Fatal("a claim waited 30 s for nothing")
	}
	return got
}

// idle claims and expects nothing for a second.
func (n *node) idle(r ...api.Running) {
	n.t.Helper()
	got, err := n.Claim(n.t.Context(), n.id, api.Claim{Key: n.key, Wait: 1, Running: r})
	if err != nil {
		n.t.Fatal(err)
	}
	if len(got.Start)+len(got.Stop) != 0 {
		n.t.Errorf("there was something to do: %+v", got)
	}
}

// held is a claim under way.
type held struct {
	got api.Claimed
	err error
}

// hold begins a claim that waits, and returns when the server holds it.
func (n *node) hold(by *person, r ...api.Running) <-chan held {
	n.t.Helper()
	before := n.now()
	out := make(chan held, 1)
	n.w.pass(time.Second)
	go func() {
		got, err := n.Claim(context.WithoutCancel(n.t.Context()), n.id, api.Claim{Key: n.key, Wait: 30, Running: r})
		out <- held{got, err}
	}()
	n.w.until("the claim is held", func() bool { return by.worker(n.id).LastClaim > before })
	return out
}

// now is the world's, as the wire says it.
func (n *node) now() string { return n.w.clock().UTC().Format(time.RFC3339) }

// online makes one claim land.
func (n *node) online(by *person) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	defer cancel()
	n.w.pass(time.Second)
	at := n.now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Claim(ctx, n.id, api.Claim{Key: n.key, Wait: 30, Running: []api.Running{}})
	}()
	n.w.until("the node is online", func() bool { return by.worker(n.id).LastClaim >= at })
	cancel()
	<-done
}

// report reports a state, for which an end brings what belongs to it.
func (n *node) report(act string, state activity.State) error {
	r := api.StateReport{Key: n.key, State: state}
	switch state {
	case activity.Stopped:
		r.Reason = activity.Done
	case activity.Failed:
		r.Error = &activity.Failure{Code: activity.Crash, Message: "it ended by signal 9"}
	}
	return n.Report(n.t.Context(), n.id, act, r)
}

// say reports states that must be accepted.
func (n *node) say(act string, states ...activity.State) {
	n.t.Helper()
	for _, s := range states {
		if err := n.report(act, s); err != nil {
			n.t.Fatalf("reporting %s: %v", s, err)
		}
	}
}

func (p *person) worker(id string) api.Worker {
	p.t.Helper()
	all, err := p.Workers(context.WithoutCancel(p.t.Context()))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, w := range all {
		if w.ID == id {
			return w
		}
	}
	return api.Worker{}
}

func (p *person) activity(id string) api.Activity {
	p.t.Helper()
	a, err := p.Activity(p.t.Context(), id)
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

// expect checks how an activity is.
func (p *person) expect(id string, state activity.State, why string) {
	p.t.Helper()
	a := p.activity(id)
	got := string(a.Reason) + string(a.Stopping)
	if a.Error != nil {
		got += string(a.Error.Code)
	}
	if a.State != state || got != why {
		p.t.Errorf("activity is %s %q, want %s %q", a.State, got, state, why)
	}
}

// feed answers all events so far, each as its name and what it says.
func (p *person) feed() []string {
	p.t.Helper()
	events, err := p.WorkloadEvents(p.t.Context(), 0, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	out := []string{}
	for _, e := range events {
		out = append(out, strings.TrimPrefix(e.Name, "compute.workload.")+" "+e.Reason)
	}
	return out
}

// tree sends a tree of one file with that content, and answers its hash.
func (p *person) tree(content string) string {
	p.t.Helper()
	sum := sha256.Sum256([]byte(content))
	sha := hex.EncodeToString(sum[:])
	hash := policy.TreeHash([]policy.TreeFile{{Path: "file", SHA256: sha, Size: int64(len(content))}})
	stored, err := p.PutTree(p.t.Context(), hash, api.Tree{Files: []api.TreeFile{{Path: "file", SHA256: sha, Size: int64(len(content))}}})
	if err == nil && len(stored.Missing) > 0 {
		err = p.PutBlob(p.t.Context(), sha, int64(len(content)), strings.NewReader(content))
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return hash
}

// input is one of train.fit whose trees are sent; change spoils it.
func (p *person) input(change ...string) canon.Raw {
	p.t.Helper()
	text := fmt.Sprintf(`{"stage":%q,"base":%q,"memory":67108864,"cpus":1,"disk":1048576,"vram":0,"gpus":[],"maxSec":60}`,
		p.tree("a stage"), p.tree("a base"))
	return canon.Raw(strings.NewReplacer(change...).Replace(text))
}

// enqueue asks for a train.fit that must be taken.
func (p *person) enqueue(node string) string {
	p.t.Helper()
	a, err := p.Enqueue(p.t.Context(), api.Enqueue{Node: node, Kind: policy.TrainFit, Input: p.input()})
	if err != nil {
		p.t.Fatal(err)
	}
	return a.Activity
}

// until waits for a condition.
func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("still not: %s", what)
		}
	}
}

// within waits for what a channel brings.
func within[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("still not: %s", what)
		panic("unreachable")
	}
}

// refused checks that err is a problem of the given code.
func refused(t *testing.T, what string, err error, code api.Code) *api.Problem {
	t.Helper()
	p, ok := errors.AsType[*api.Problem](err)
	if !ok || p.Code != code || p.Status != code.Status() || p.Detail == "" {
		t.Errorf("%s = %v, want %d %s", what, err, code.Status(), code)
		return &api.Problem{}
	}
	return p
}
