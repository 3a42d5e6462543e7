//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
)

const org = "acme"

// A plan is what a run of the benchmark does.
type plan struct {
	Nodes      int           `json:"nodes"`
	Pens       int           `json:"processes"`
	Activities int           `json:"activities"`
	Rate       float64       `json:"rate"`
	Requesters int           `json:"requesters"`
	Most       int           `json:"concurrency"`
	Longest    time.Duration `json:"work_ns"`
	Faults     bool          `json:"faults"`
	FaultRate  float64       `json:"fault_rate"`
	Kill       time.Duration `json:"kill_ns"`
	Restart    time.Duration `json:"restart_ns"`
	Rest       time.Duration `json:"rest_ns"`
	Seed       uint64        `json:"seed"`
	Dir        string        `json:"-"`
}

// settling is how long everything may take to end once nothing disturbs it any
// more: a claim that was lost is found dead after 45 s, and an agent that was
// refused waits for up to 75.
const settling = 5 * time.Minute

// A world is a run under way.
type world struct {
	plan
	dir     string // of the control plane and the histories
	nodes   string // of the nodes
	said    io.Writer
	random  *rand.Rand
	history *history
	file    *os.File // the listener of the control plane, which outlives it
	direct  string   // its address
	front   string   // the address that others know: the proxy's, or the same
	proxy   *proxy   // nil when undisturbed
	tokens  []string
	admin   *api.Client // past the proxy

	mu      sync.Mutex // guards what is started and killed
	cloud   *process
	pens    []*process
	strikes int
}

// run runs the plan.
func (p plan) run(ctx context.Context, said io.Writer) (_ *report, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the nodes' policy file must be root's: run it as root")
	}
	said = &shared{w: said}
	w := &world{plan: p, dir: p.Dir, said: said, random: rand.New(rand.NewPCG(p.Seed, 1))}
	if w.dir == "" {
		if w.dir, err = os.MkdirTemp("", "claims-"); err != nil {
			return nil, err
		}
	}
	shm := ""
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		shm = "/dev/shm"
	}
	if w.nodes, err = os.MkdirTemp(shm, "claims-"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &report{Host: describe(), Plan: p}
	defer func() {
		cancel()
		w.end()
		os.RemoveAll(w.nodes)
		if err == nil && len(r.Wrong) == 0 && p.Dir == "" {
			os.RemoveAll(w.dir)
		} else {
			fmt.Fprintln(said, "kept:", w.dir)
		}
	}()
	if err := w.begin(ctx); err != nil {
		return nil, err
	}
	if err := w.work(ctx, r); err != nil {
		return nil, err
	}
	r.Host.LoadAfter = load()
	return r, nil
}

// shared is a writer of several processes.
type shared struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// begin starts everything and waits until all nodes are online.
func (w *world) begin(ctx context.Context) error {
	var err error
	if w.history, err = newHistory(filepath.Join(w.dir, "driver.jsonl")); err != nil {
		return err
	}
	data := filepath.Join(w.dir, "cloud")
	tokens, err := db.OpenTokens(data)
	if err != nil {
		return err
	}
	for i := range w.Requesters {
		token, err := tokens.Mint(ctx, api.Identity{Owner: org, Name: fmt.Sprintf("requester-%03d", i), Project: "default", Admin: i == 0})
		if err != nil {
			return err
		}
		w.tokens = append(w.tokens, token)
	}
	if err := tokens.Close(); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w.direct = "http://" + l.Addr().String()
	w.front = w.direct
	if w.file, err = l.(*net.TCPListener).File(); err != nil {
		return err
	}
	l.Close()
	w.admin = client(w.direct, w.tokens[0])
	if w.Faults {
		front, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		w.front = "http://" + front.Addr().String()
		w.proxy = newProxy(ctx, w.direct, w.FaultRate, w.Seed, w.history)
		// A link is a person's call, and made again by a person: the promise is that of
		// the calls that follow.
		w.proxy.calm.Store(true)
		server := &http.Server{Handler: w.proxy, ErrorLog: log.New(io.Discard, "", 0)} // it is about what the proxy does
		go server.Serve(front)
		context.AfterFunc(ctx, func() { server.Close() })
	}
	if err := w.startCloud(ctx); err != nil {
		return err
	}
	if err := writePolicy(filepath.Join(w.nodes, "policy.json"), w.Most); err != nil {
		return err
	}
	w.pens = make([]*process, w.Pens)
	for i := range w.pens {
		if err := w.startPen(ctx, i); err != nil {
			return err
		}
	}
	fmt.Fprintf(w.said, "%d nodes are linked\n", w.Nodes)
	return w.until(ctx, settling, "every node is online and offers its kind", func() (bool, error) {
		workers, err := w.admin.Workers(ctx)
		if err != nil {
			return false, err
		}
		ready := 0
		for _, one := range workers {
			if one.Status == api.Online && slices.Contains(one.Offers, policy.TrainFit) {
				ready++
			}
		}
		return ready == w.Nodes, nil
	})
}

// end ends every process that is left.
func (w *world) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range append(w.pens, w.cloud) {
		p.kill()
	}
	if w.file != nil {
		w.file.Close()
	}
	if w.history != nil {
		w.history.close()
	}
}

// share is the nodes of a pen.
func (w *world) share(pen int) (first, count int) {
	first = pen * w.Nodes / w.Pens
	return first, (pen+1)*w.Nodes/w.Pens - first
}

func (w *world) startCloud(ctx context.Context) error {
	p, err := start(ctx, w.said, []*os.File{w.file}, asCloud, filepath.Join(w.dir, "cloud"))
	if err != nil {
		return err
	}
	w.cloud = p
	return p.expect("serving")
}

func (w *world) startPen(ctx context.Context, i int) error {
	first, count := w.share(i)
	cfg := penConfig{
		API: w.front, Token: w.tokens[0], Dir: w.nodes, Policy: filepath.Join(w.nodes, "policy.json"),
		History: filepath.Join(w.dir, fmt.Sprintf("pen-%d.jsonl", i)), Log: filepath.Join(w.dir, fmt.Sprintf("pen-%d.log", i)),
		First: first, Count: count, Most: w.Most, Longest: w.Longest,
	}
	if w.Faults {
		cfg.Restart = w.Restart
	}
	p, err := start(ctx, w.said, nil, asPen)
	if err != nil {
		return err
	}
	w.pens[i] = p
	if err := json.NewEncoder(p.in).Encode(cfg); err != nil {
		return err
	}
	return p.expect("linked")
}

// work enqueues, disturbs, waits for the end of all and judges it.
func (w *world) work(ctx context.Context, r *report) error {
	hash, err := w.tree(ctx)
	if err != nil {
		return err
	}
	before, err := w.requests()
	if err != nil {
		return err
	}
	if before, err = w.rest(ctx, r, before); err != nil {
		return err
	}
	r.Memory = append(r.Memory, w.resident("at rest")...)
	disturbed, calm := context.WithCancel(ctx)
	defer calm()
	var others sync.WaitGroup
	broken := make(chan error, 1)
	if w.Faults {
		w.proxy.calm.Store(false)
		others.Go(func() {
			if err := w.disturb(disturbed); err != nil {
				select {
				case broken <- err:
				default:
				}
			}
		})
	}
	began := time.Now()
	err = w.enqueue(ctx, hash, broken)
	calm()
	others.Wait()
	if w.proxy != nil {
		w.proxy.calm.Store(true)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(w.said, "all are enqueued after %v\n", time.Since(began).Round(time.Second))
	if err := w.until(ctx, settling, "every activity has ended", func() (bool, error) {
		live, err := w.live(ctx)
		return live == 0, err
	}); err != nil {
		// Go on: the check says of each what is wrong.
		fmt.Fprintln(w.said, err)
	}
	if w.proxy != nil {
		w.proxy.strays.Wait()
	}
	took := time.Since(began)
	after, err := w.requests()
	if err != nil {
		return err
	}
	r.Memory = append(r.Memory, w.resident("after the work")...)
	r.Requests = after - before
	r.PerSecond = float64(r.Requests) / took.Seconds()
	r.Took = took.Seconds()

	l := ledger{most: w.Most, disturbed: w.Faults}
	if l.activities, err = w.all(ctx); err != nil {
		return err
	}
	if l.events, err = w.feed(ctx); err != nil {
		return err
	}
	for _, p := range w.pens {
		if err := p.stop(); err != nil {
			return err
		}
	}
	r.CloudCPU, err = w.cloud.stopped()
	if err != nil {
		return err
	}
	if l.history, err = readHistories(w.dir); err != nil {
		return err
	}
	r.Wrong = l.check()
	r.Trace = l.trace(r.Wrong)
	r.judge(l, w.proxy)
	return nil
}

// rest lets everything be for a while and says what that takes. The requests so far
// go in and come out.
func (w *world) rest(ctx context.Context, r *report, before int64) (int64, error) {
	if w.Rest == 0 {
		return before, nil
	}
	cloud, nodes := w.cloud.busy(), time.Duration(0)
	for _, p := range w.pens {
		nodes -= p.busy()
	}
	began := time.Now()
	if !pause(ctx, w.Rest) {
		return before, ctx.Err()
	}
	took := time.Since(began).Seconds()
	after, err := w.requests()
	if err != nil {
		return before, err
	}
	for _, p := range w.pens {
		nodes += p.busy()
	}
	r.Rest = &rest{
		Seconds: took, Cloud: (w.cloud.busy() - cloud).Seconds() / took * 100, Node: nodes.Seconds() / took * 100 / float64(w.Nodes),
		Every: took * float64(w.Nodes) / float64(max(1, after-before)),
	}
	return after, nil
}

// tree sends the smallest input that there is, and answers its name.
func (w *world) tree(ctx context.Context) (string, error) {
	content := []byte("{}")
	sum := sha256.Sum256(content)
	sha := hex.EncodeToString(sum[:])
	hash := policy.TreeHash([]policy.TreeFile{{Path: "stage.json", SHA256: sha, Size: int64(len(content))}})
	if _, err := w.admin.PutTree(ctx, hash, api.Tree{Files: []api.TreeFile{{Path: "stage.json", SHA256: sha, Size: int64(len(content))}}}); err != nil {
		return "", err
	}
	return hash, w.admin.PutBlob(ctx, sha, int64(len(content)), bytes.NewReader(content))
}

// enqueue asks for everything, at the plan's rate, of nodes and by requesters that
// the seed chooses. What is refused or not answered is asked again elsewhere.
func (w *world) enqueue(ctx context.Context, hash string, broken <-chan error) error {
	input, err := canon.Marshal(policy.TrainFitInput{Stage: hash, Base: hash, Memory: 64 << 20, CPUs: 1, Disk: 1 << 20, GPUs: []int{}, MaxSec: 600})
	if err != nil {
		return err
	}
	clients := make([]*api.Client, len(w.tokens))
	for i, token := range w.tokens {
		clients[i] = client(w.front, token)
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	results := make(chan error, 1000)
	tick := time.NewTicker(time.Duration(float64(time.Second) / w.Rate))
	defer tick.Stop()
	done, under := 0, 0
	for turn := 0; done < w.Activities; {
		var due <-chan time.Time
		if done+under < w.Activities && under < cap(results) {
			due = tick.C
		}
		select {
		case <-due:
			c, node := clients[turn%len(clients)], nodeName(w.random.IntN(w.Nodes))
			cancel := w.Faults && w.random.IntN(20) == 0
			later := time.Duration(w.random.Int64N(int64(2*w.Longest) + 1))
			turn++
			under++
			wait.Go(func() {
				err := w.one(ctx, c, node, input)
				results <- err
				if id, ok := errors.AsType[enqueuedAs](err); ok && cancel && pause(ctx, later) {
					w.history.tell(entry{What: cancelled, Activity: string(id)})
					c.Cancel(ctx, string(id)) // it may be lost; then nothing is cancelled
				}
			})
		case err := <-results:
			under--
			if _, ok := errors.AsType[enqueuedAs](err); ok {
				done++
			} else if p, ok := errors.AsType[*api.Problem](err); ok && p.Status/100 == 4 && !w.expected(p) {
				return fmt.Errorf("enqueueing: %w", err)
			} else if !w.Faults && !ok {
				return fmt.Errorf("enqueueing: %w", err)
			}
		case err := <-broken:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// enqueuedAs is not an error but the id of what was enqueued, told as one.
type enqueuedAs string

func (e enqueuedAs) Error() string { return string(e) }

// one enqueues one activity.
func (w *world) one(ctx context.Context, c *api.Client, node string, input []byte) error {
	at := time.Now().UnixNano()
	a, err := c.Enqueue(ctx, api.Enqueue{Node: node, Kind: policy.TrainFit, Input: input})
	if err != nil {
		status := 0
		if p, ok := errors.AsType[*api.Problem](err); ok {
			status = p.Status
		}
		w.history.tell(entry{At: at, What: refused, Node: node, Status: status})
		return err
	}
	w.history.tell(entry{At: at, What: asked, Node: node, Activity: a.Activity})
	w.history.tell(entry{What: enqueued, Node: node, Activity: a.Activity})
	return enqueuedAs(a.Activity)
}

// expected reports whether a requester may be refused so: the node has all it may
// hold, it asks too often, and, disturbed, the node is away or a proxy said it.
func (w *world) expected(p *api.Problem) bool {
	switch p.Code {
	case api.RateLimited:
		return true
	case api.Denied:
		// A node whose launcher is away offers nothing, and one whose registration
		// came late is held for what it was before.
		return p.Rule == "concurrency" || w.Faults
	case api.NodeOffline, api.Code(""):
		return w.Faults
	}
	return false
}

// disturb kills and restarts processes until ctx ends. On return all of them run.
func (w *world) disturb(ctx context.Context) error {
	for pause(ctx, time.Duration(w.random.ExpFloat64()*float64(w.Kill))) {
		w.mu.Lock()
		err := w.strike(ctx)
		w.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// strike ends one of the processes and, after a while, starts it again: in turn the
// cloud in order, one of the nodes', and the cloud without a word.
func (w *world) strike(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	w.strikes++
	down := time.Duration(w.random.Int64N(int64(w.Kill)))
	switch w.strikes % 3 {
	case 1:
		if _, err := w.cloud.stopped(); err != nil {
			return err
		}
	case 0:
		w.cloud.kill()
	case 2:
		return w.strikeNodes(ctx, down)
	}
	w.history.tell(entry{What: killed, Node: "cloud"})
	pause(ctx, down)
	return w.startCloud(ctx)
}

func (w *world) strikeNodes(ctx context.Context, down time.Duration) error {
	i := w.random.IntN(len(w.pens))
	first, count := w.share(i)
	w.pens[i].kill()
	at := time.Now().UnixNano()
	for n := range count {
		w.history.tell(entry{At: at, What: killed, Node: nodeName(first + n)})
	}
	pause(ctx, down)
	return w.startPen(ctx, i)
}

// until polls.
func (w *world) until(ctx context.Context, within time.Duration, what string, holds func() (bool, error)) error {
	var last error
	for deadline := time.Now().Add(within); time.Now().Before(deadline); {
		ok, err := holds()
		if ok && err == nil {
			return nil
		}
		last = err
		if !pause(ctx, 500*time.Millisecond) {
			return ctx.Err()
		}
	}
	if last != nil {
		return fmt.Errorf("not within %v: %s: %w", within, what, last)
	}
	return fmt.Errorf("not within %v: %s", within, what)
}

// live counts the activities that have not ended.
func (w *world) live(ctx context.Context) (int, error) {
	workers, err := w.admin.Workers(ctx)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, one := range workers {
		n += len(one.Workloads)
	}
	return n, nil
}

// all lists every activity.
func (w *world) all(ctx context.Context) ([]api.Activity, error) {
	var all []api.Activity
	q := api.ActivityQuery{Limit: 500}
	for {
		page, err := w.admin.Activities(ctx, q)
		if err != nil || len(page) == 0 {
			return all, err
		}
		all = append(all, page...)
		q.After = page[len(page)-1].Activity
	}
}

// feed reads every event.
func (w *world) feed(ctx context.Context) ([]api.WorkloadEvent, error) {
	var all []api.WorkloadEvent
	after := uint64(0)
	for {
		page, err := w.admin.WorkloadEvents(ctx, after, 0)
		if err != nil || len(page) == 0 {
			return all, err
		}
		all = append(all, page...)
		after = page[len(page)-1].Seq
	}
}

// requests is how many the nodes have made.
func (w *world) requests() (int64, error) {
	sum := int64(0)
	for _, p := range w.pens {
		line, err := p.ask("count")
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// resident is the memory of the processes.
func (w *world) resident(when string) []memory {
	m := memory{When: when, Cloud: w.cloud.rss()}
	for _, p := range w.pens {
		m.Nodes += p.rss()
	}
	m.Node = m.Nodes / w.Nodes
	return []memory{m}
}

// client is one of a requester's, with connections of its own.
func client(base, token string) *api.Client {
	return &api.Client{Base: base, Token: func() (string, error) { return token, nil }, HTTP: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: 10 * time.Second},
	}}
}

// A process is this program in another of its lives.
type process struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	over    bool
}

func start(ctx context.Context, said io.Writer, files []*os.File, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{command: exec.Command(self, args...)}
	p.command.Env = append(os.Environ(), life+"=1")
	p.command.Stderr, p.command.ExtraFiles = said, files
	// Not the terminal's to interrupt, and gone if we are.
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if p.in, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.command.Start()
}

// life tells a test's binary that it is started for one of the program's lives.
const life = "CLAIMS_LIFE"

// expect reads a line.
func (p *process) expect(want string) error {
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.kill()
		return fmt.Errorf("%s ended before it said %q", strings.Join(p.command.Args[1:], " "), want)
	}
	if strings.TrimSpace(line) != want {
		return fmt.Errorf("%s said %q where %q was due", strings.Join(p.command.Args[1:], " "), line, want)
	}
	return nil
}

// ask asks and reads a line.
func (p *process) ask(what string) (string, error) {
	if _, err := fmt.Fprintln(p.in, what); err != nil {
		return "", err
	}
	line, err := p.out.ReadString('\n')
	return strings.TrimSpace(line), err
}

// stop ends a pen in order.
func (p *process) stop() error {
	p.in.Close()
	err := p.command.Wait()
	p.over = true
	return err
}

// stopped ends the cloud in order, and answers the processor time it took.
func (p *process) stopped() (time.Duration, error) {
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	err := p.command.Wait()
	p.over = true
	return p.command.ProcessState.UserTime() + p.command.ProcessState.SystemTime(), err
}

// kill ends it without a word. A nil process, and one that is over, has ended.
func (p *process) kill() {
	if p == nil || p.over || p.command.Process == nil {
		return
	}
	p.over = true
	p.command.Process.Kill()
	p.command.Wait()
}

// busy is the processor time it has taken.
func (p *process) busy() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.command.Process.Pid))
	if err != nil {
		return 0
	}
	// The second field is a name in parentheses, of any characters.
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const utime, stime = 14 - 3, 15 - 3
	if len(f) <= stime {
		return 0
	}
	u, _ := strconv.Atoi(f[utime])
	s, _ := strconv.Atoi(f[stime])
	return time.Duration(u+s) * time.Second / 100 // USER_HZ
}

// rss is its resident memory in KiB.
func (p *process) rss() int {
	n := 0
	fmt.Sscanf(line(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid), "VmRSS"), "%d kB", &n)
	return n
}
