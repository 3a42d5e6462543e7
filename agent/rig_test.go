//go:build linux

package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/compute"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"golang.org/x/sys/unix"
)

// patience is how long anything may take that must happen.
const patience = time.Minute

// hurried is the tests' pace: what takes seconds takes milliseconds.
var hurried = pace{
	first: 5 * time.Millisecond, most: 40 * time.Millisecond, longest: 100 * time.Millisecond, rest: 10 * time.Millisecond,
	hello: 10 * time.Second, again: 10 * time.Millisecond, progress: time.Millisecond,
	write: 10 * time.Second, facts: 10 * time.Second, end: 20 * time.Second, unlink: 20 * time.Second,
}

// A cloud is a real control plane, and a way to come between it and who calls it.
type cloud struct {
	testing.TB
	person *api.Client
	url    string
	plane  http.Handler

	mu    sync.Mutex
	front func(w http.ResponseWriter, r *http.Request, next http.Handler) // nil passes on
	calls []string                                                        // method and path of each, after the front has passed it on
}

func newCloud(t testing.TB) *cloud {
	t.Helper()
	dir := t.TempDir()
	data, err := db.Open(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := db.OpenTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	token, err := tokens.Mint(t.Context(), api.Identity{Owner: "acme", Name: "alice", Project: "default", Admin: true})
	if err != nil {
		t.Fatal(err)
	}
	plane := control.New(control.Config{Store: data, Enqueues: compute.Rate{Burst: 1e6, PerSecond: 1e6}})
	c := &cloud{TB: t, plane: plane}
	server := httptest.NewServer(c)
	t.Cleanup(func() {
		plane.Drain()
		server.CloseClientConnections()
		server.Close()
		tokens.Close()
		data.Close()
	})
	c.url = server.URL
	c.person = &api.Client{Base: server.URL, Token: func() (string, error) { return token, nil }}
	return c
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	front := c.front
	c.mu.Unlock()
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.calls = append(c.calls, r.Method+" "+r.URL.Path)
		c.mu.Unlock()
		c.plane.ServeHTTP(w, r)
	})
	if front == nil {
		next(w, r)
		return
	}
	front(w, r, next)
}

// between has front come between the agent and the control plane; nil goes away.
func (c *cloud) between(front func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.front = front
}

// on answers calls whose path ends in suffix by f, and passes the others on.
func (c *cloud) on(suffix string, f func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	c.between(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, suffix) {
			f(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// count is how many calls of a path's end came through.
func (c *cloud) count(suffix string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		if strings.HasSuffix(call, suffix) {
			n++
		}
	}
	return n
}

// tree stores a tree of one file and answers its hash.
func (c *cloud) tree(name, text string) string {
	c.Helper()
	sum := sha256.Sum256([]byte(text))
	hex := hex.EncodeToString(sum[:])
	hash := policy.TreeHash([]policy.TreeFile{{Path: name, SHA256: hex, Size: int64(len(text))}})
	stored, err := c.person.PutTree(c.Context(), hash, api.Tree{Files: []api.TreeFile{{Path: name, SHA256: hex, Size: int64(len(text))}}})
	if err == nil && len(stored.Missing) > 0 {
		err = c.person.PutBlob(c.Context(), hex, int64(len(text)), strings.NewReader(text))
	}
	if err != nil {
		c.Fatal(err)
	}
	return hash
}

// input is an input of train.fit that the tests' policy admits.
func (c *cloud) input() map[string]any {
	c.Helper()
	return map[string]any{
		"stage": c.tree("stage.json", "{}"), "base": c.tree("base", "base"),
		"memory": 64 << 20, "cpus": 1, "disk": 1 << 20, "vram": 0, "gpus": []int{}, "maxSec": 3600,
	}
}

// enqueue asks the machine for work.
func (c *cloud) enqueue(node string) string {
	c.Helper()
	src, err := json.Marshal(c.input())
	if err != nil {
		c.Fatal(err)
	}
	a, err := c.person.Enqueue(c.Context(), api.Enqueue{Node: node, Kind: policy.TrainFit, Input: src})
	if err != nil {
		c.Fatal(err)
	}
	return a.Activity
}

// becomes waits for an activity's state.
func (c *cloud) becomes(act string, state activity.State) api.Activity {
	c.Helper()
	var a api.Activity
	until(c, fmt.Sprintf("%s is %s", act, state), func() bool {
		var err error
		if a, err = c.person.Activity(c.Context(), act); err != nil {
			c.Fatal(err)
		}
		if a.State.Ended() && !state.Ended() {
			c.Fatalf("%s is %s (%s %+v), and was to become %s", act, a.State, a.Reason, a.Error, state)
		}
		return a.State == state
	})
	return a
}

// ended waits for an activity's end and checks it: a reason or a code.
func (c *cloud) ended(act string, how string) api.Activity {
	c.Helper()
	var a api.Activity
	until(c, act+" has ended", func() bool {
		var err error
		if a, err = c.person.Activity(c.Context(), act); err != nil {
			c.Fatal(err)
		}
		return a.State.Ended()
	})
	got := string(a.Reason)
	if a.Error != nil {
		got = string(a.Error.Code)
	}
	if got != how {
		c.Errorf("%s ended as %s (%+v), want %s", act, got, a.Error, how)
	}
	return a
}

// until waits for what happens in its own time.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// A machine is a linked host: its folders, its launcher, and its agent as long as it
// runs.
type machine struct {
	testing.TB
	*cloud
	Config
	parts
	launcher *launcher
	shelf    *shelf
	log      *syncBuffer

	cancel context.CancelFunc
	ended  chan error
}

// Log is the test's.
func (m *machine) Log(args ...any) { m.TB.Log(args...) }
func (m *machine) Helper()         { m.TB.Helper() }
func (m *machine) Fatalf(format string, args ...any) {
	m.TB.Helper()
	m.TB.Fatalf(format+"\n%s", append(args, m.log)...)
}

// newMachine links a host whose owner admits train.fit.
func newMachine(t testing.TB, c *cloud) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a policy file is root's, and so are the tests that write one")
	}
	m := &machine{TB: t, cloud: c, launcher: newLauncher(t), log: &syncBuffer{}, shelf: &shelf{has: map[string]bool{}, pins: map[string]int{}}}
	dir := t.TempDir()
	m.Config = Config{
		Dir: dir, Spool: filepath.Join(dir, "spool"), Store: dir, Policy: filepath.Join(dir, "policy.json"), Status: filepath.Join(dir, "status.json"),
		Dial: m.launcher.dial, Wait: time.Second,
		Facts: func(context.Context) (api.WorkerFacts, error) { return hostFacts(), nil },
		Log:   slog.New(slog.NewTextHandler(m.log, nil)),
	}
	m.parts = parts{disk: durable.On(durable.OS), pace: hurried, keeper: m.shelf}
	m.policy(nil)
	link, credential, err := Register(t.Context(), c.person, dir, hostFacts(), -1, -1)
	if err == nil {
		err = link.Write(dir, credential, -1, -1)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func hostFacts() api.WorkerFacts {
	return api.WorkerFacts{Hostname: "evo", OS: "linux", Arch: "x86_64", CPUs: 4, Memory: 1 << 34, Disk: 1 << 40, Version: "test", GPUs: []api.GPU{}, Lanes: []string{}, Offers: []string{}}
}

// policy writes the owner's policy, with changes, as an editor does.
func (m *machine) policy(change map[string]any) {
	m.Helper()
	p := map[string]any{
		"kinds": []string{policy.TrainFit}, "orgs": []string{"acme"}, "concurrency": 4, "maxSec": 86400,
		"caps": map[string]any{"vram": 0, "memory": 1 << 30, "cpus": 16, "disk": 64 << 20},
	}
	for k, v := range change {
		p[k] = v
	}
	src, err := json.Marshal(p)
	if err == nil {
		err = errors.Join(os.WriteFile(m.Policy+".new", src, 0o644), os.Rename(m.Policy+".new", m.Policy))
	}
	if err != nil {
		m.Fatalf("%v", err)
	}
	m.launcher.policyChanged(p["kinds"].([]string))
}

// start runs the agent.
func (m *machine) start() *machine {
	m.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel, m.ended = cancel, make(chan error, 1)
	cfg, p, ended := m.Config, m.parts, m.ended
	go func() {
		err := errKilled // when the goroutine is ended in the middle
		defer func() { ended <- err }()
		err = run(ctx, cfg, p)
	}()
	m.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			ended <- err
		case <-time.After(patience):
			m.Errorf("the agent does not end\n%s", m.log)
		}
		if m.Failed() {
			m.Logf("the agent's log:\n%s", m.log)
		}
	})
	return m
}

var errKilled = errors.New("killed")

// stop ends the agent as systemd does, and returns what Run did.
func (m *machine) stop() error {
	m.Helper()
	m.cancel()
	return m.end()
}

// end waits for the agent's end.
func (m *machine) end() error {
	m.Helper()
	select {
	case err := <-m.ended:
		m.ended <- err
		return err
	case <-time.After(patience):
		m.Fatalf("the agent does not end")
		return nil
	}
}

// online waits until the cloud knows that the machine offers something.
func (m *machine) online() *machine {
	m.Helper()
	until(m, "the node offers train.fit", func() bool {
		w := m.worker()
		return w.Status == api.Online && slices.Contains(w.Offers, policy.TrainFit)
	})
	return m
}

func (m *machine) worker() api.Worker {
	m.Helper()
	workers, err := m.person.Workers(m.Context())
	if err != nil || len(workers) != 1 {
		m.Fatalf("workers: %+v %v", workers, err)
	}
	return workers[0]
}

// now reads the status.
func (m *machine) now() Status {
	m.Helper()
	s, err := ReadStatus(m.Status)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.Fatalf("%v", err)
	}
	return s
}

// says waits until the status names a problem.
func (m *machine) says(words string) {
	m.Helper()
	until(m, "the status says "+words, func() bool { return strings.Contains(m.now().Problem, words) })
}

// journaled is what lies in the journal.
func (m *machine) journaled() (ids []string) {
	files, _ := filepath.Glob(filepath.Join(m.Dir, "activities", "*"))
	for _, f := range files {
		ids = append(ids, filepath.Base(f))
	}
	return ids
}

// clean waits until nothing is owed to anybody.
func (m *machine) clean() {
	m.Helper()
	until(m, "the journal is empty", func() bool { return len(m.journaled()) == 0 })
}

// audited is the audit log's events, each with its reason or code.
func (m *machine) audited() (events []string) {
	m.Helper()
	src, err := os.ReadFile(filepath.Join(m.Dir, "audit.jsonl"))
	if err != nil {
		m.Fatalf("%v", err)
	}
	for text := range strings.Lines(string(src)) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			m.Fatalf("the audit log: %v in %q", err, text)
		}
		if _, err := time.Parse(time.RFC3339, l.Time); err != nil {
			m.Fatalf("the audit log: %v", err)
		}
		events = append(events, strings.TrimSpace(l.Event+" "+string(l.Reason)+string(l.Code)))
	}
	return events
}

// A shelf is a store whose pulls the test can hold.
type shelf struct {
	mu   sync.Mutex
	has  map[string]bool
	pins map[string]int
	gate chan error // a pull waits for it, when there is one
	held int        // pulls that wait
}

func (s *shelf) Has(hash string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.has[hash]
}

func (s *shelf) Pin(hash string)   { s.mu.Lock(); s.pins[hash]++; s.mu.Unlock() }
func (s *shelf) Unpin(hash string) { s.mu.Lock(); s.pins[hash]--; s.mu.Unlock() }

// pinned is how many pins there are.
func (s *shelf) pinned() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pins {
		n += p
	}
	return n
}

func (s *shelf) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

func (s *shelf) Pull(ctx context.Context, act, hash string, limit, held int64, progress func(done, total int64)) error {
	s.mu.Lock()
	gate := s.gate
	s.held++
	s.mu.Unlock()
	var err error
	if gate != nil {
		progress(1, 2)
		select {
		case err = <-gate:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held--
	if err == nil {
		s.has[hash] = true
	}
	return err
}

// A launcher plays the launcher's part over the socket that the launcher has: it
// starts what it is asked for, once, and kills it with the connection.
type launcher struct {
	testing.TB
	mu      sync.Mutex
	gone    bool // nobody can connect
	dials   int
	hold    bool // starts are not answered
	quick   bool // workloads end by themselves at once
	refuse  *ipc.Refused
	version int
	kinds   []string
	starts  map[string]int // ever, of each activity
	running map[string]activity.Reason
	asked   []string // every start and stop, in order
	forgot  []string // activities whose spools were emptied
	conn    *ipc.Conn

	unforgotten int // how many such requests are refused before
}

func newLauncher(t testing.TB) *launcher {
	return &launcher{TB: t, version: ipc.Version, kinds: []string{policy.TrainFit}, starts: map[string]int{}, running: map[string]activity.Reason{}}
}

func (l *launcher) dial() (Launcher, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dials++
	if l.gone {
		return nil, errors.New("nobody listens")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	conns := make([]*ipc.Conn, 2)
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return nil, err
		}
		conns[i] = ipc.NewConn(c.(*net.UnixConn))
	}
	l.conn = conns[0]
	l.conn.WriteReply(ipc.Reply{Ready: l.ready()})
	go l.serve(conns[0])
	return conns[1], nil
}

func (l *launcher) ready() *ipc.Ready {
	return &ipc.Ready{Version: l.version, Kinds: slices.Clone(l.kinds), Reasons: []string{}}
}

func (l *launcher) serve(c *ipc.Conn) {
	for {
		r, err := c.ReadRequest()
		l.mu.Lock()
		if err != nil {
			if l.conn == c {
				clear(l.running)
			}
			l.mu.Unlock()
			c.Close()
			return
		}
		switch {
		case r.Start != nil:
			l.asked = append(l.asked, "start")
			if l.refuse != nil {
				no := *l.refuse
				no.Activity = r.Start.Activity
				c.WriteReply(ipc.Reply{Refused: &no})
				break
			}
			if _, runs := l.running[r.Start.Activity]; !runs {
				l.starts[r.Start.Activity]++
				l.running[r.Start.Activity] = ""
			}
			if !l.hold {
				l.started(c, r.Start.Activity)
			}
		case r.Forget != nil:
			if _, runs := l.running[r.Forget.Activity]; runs {
				c.WriteReply(ipc.Reply{Refused: &ipc.Refused{Activity: r.Forget.Activity, Code: activity.Denied, Message: "it runs"}})
				break
			}
			if l.unforgotten > 0 {
				l.unforgotten--
				c.WriteReply(ipc.Reply{Refused: &ipc.Refused{Activity: r.Forget.Activity, Code: activity.Capacity, Message: "another one"}})
				break
			}
			l.forgot = append(l.forgot, r.Forget.Activity)
			c.WriteReply(ipc.Reply{Forgotten: &ipc.Forgotten{Activity: r.Forget.Activity}})
		case r.Stop != nil:
			l.asked = append(l.asked, "stop "+string(r.Stop.Reason))
			if _, runs := l.running[r.Stop.Activity]; runs {
				l.over(c, &ipc.Ended{Activity: r.Stop.Activity, State: activity.Stopped, Reason: r.Stop.Reason})
			} else {
				c.WriteReply(ipc.Reply{Refused: &ipc.Refused{Activity: r.Stop.Activity, Code: activity.Lost, Message: "no such activity runs here"}})
			}
		}
		l.mu.Unlock()
	}
}

func (l *launcher) started(c *ipc.Conn, act string) {
	f, err := os.Open("/dev/null")
	if err != nil {
		l.Error(err)
		return
	}
	defer f.Close()
	c.WriteReply(ipc.Reply{Started: &ipc.Started{Activity: act, PidFD: true}}, f)
	if l.quick {
		l.over(c, &ipc.Ended{Activity: act, State: activity.Stopped, Reason: activity.Done})
	}
}

// over ends a workload, with what it wrote.
func (l *launcher) over(c *ipc.Conn, e *ipc.Ended) {
	delete(l.running, e.Activity)
	text := "bye\n"
	e.Stdout = len(text)
	f := memory(l, text)
	defer f.Close()
	c.WriteReply(ipc.Reply{Ended: e}, f)
}

// finish ends a workload that runs.
func (l *launcher) finish(e *ipc.Ended) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over(l.conn, e)
}

// policyChanged says that there is another policy, as the launcher does.
func (l *launcher) policyChanged(kinds []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kinds = kinds
	if l.conn != nil {
		l.conn.WriteReply(ipc.Reply{Ready: l.ready()})
	}
}

// die ends the connection, and all that runs.
func (l *launcher) die() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.running)
	l.conn.Close()
}

func (l *launcher) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

func (l *launcher) tried() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dials
}

func (l *launcher) startsOf(act string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.starts[act]
}

func (l *launcher) runs(act string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, runs := l.running[act]
	return runs
}

// memory is a memory file, as the launcher's are.
func memory(t testing.TB, text string) *os.File {
	fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
	if err != nil {
		t.Error(err)
		return nil
	}
	f := os.NewFile(uintptr(fd), "output")
	io.WriteString(f, text)
	return f
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// envelope is one that the machine would take, for clouds that are not to be trusted.
func (c *cloud) envelope(change map[string]any) canon.Raw {
	c.Helper()
	now := time.Now().UTC()
	e := map[string]any{
		"activity": activity.NewID(now), "kind": policy.TrainFit, "org": "acme", "project": "default", "requester": "acme/alice",
		"issued": now.Format(time.RFC3339), "deadline": now.Add(time.Hour).Format(time.RFC3339), "input": c.input(),
	}
	for k, v := range change {
		if v == nil {
			delete(e, k)
			continue
		}
		e[k] = v
	}
	src, err := json.Marshal(e)
	if err != nil {
		c.Fatal(err)
	}
	return src
}
