//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/agent"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/policy"
)

// A penConfig is what a process of nodes is told on its standard input.
type penConfig struct {
	API     string // where the nodes find their cloud
	Token   string // of the person who links them
	Dir     string // one folder a node below it; it outlives the process
	Policy  string // the one policy file of all nodes
	History string
	Log     string // where the agents' logs go
	First   int    // number of the first node
	Count   int
	Most    int           // workloads of a node at once
	Longest time.Duration // that a workload runs
	Restart time.Duration // between two restarts of an agent or its launcher; 0 is never
}

// nodeName is the id of a node by its number.
func nodeName(n int) string { return fmt.Sprintf("node-%04d", n) }

// pen runs nodes until its standard input ends: real agents, each with a launcher of
// its own that is simulated. It says "linked" when all are registered, and when told
// "count" on its input, how many requests they have made.
func pen(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	first, err := lines.ReadBytes('\n')
	if err != nil {
		return err
	}
	var cfg penConfig
	if err := json.Unmarshal(first, &cfg); err != nil {
		return err
	}
	h, err := newHistory(cfg.History)
	if err != nil {
		return err
	}
	defer h.close()
	log, err := os.OpenFile(cfg.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var nodes []*node
	for i := range cfg.Count {
		n := &node{
			name: nodeName(cfg.First + i), cfg: cfg, history: h,
			log:      slog.New(slog.NewTextHandler(log, nil)).With("node", nodeName(cfg.First+i)),
			launcher: &launcher{node: nodeName(cfg.First + i), most: cfg.Most, longest: cfg.Longest, history: h},
		}
		if err := n.link(ctx); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
		nodes = append(nodes, n)
	}
	var all sync.WaitGroup
	failed := make(chan error, 1)
	for _, n := range nodes {
		all.Go(func() {
			if err := n.live(ctx); err != nil {
				select {
				case failed <- err:
				default:
				}
				cancel()
			}
		})
	}
	if cfg.Restart > 0 {
		all.Go(func() {
			for pause(ctx, rand.N(2*cfg.Restart)) {
				nodes[rand.IntN(len(nodes))].disturb()
			}
		})
	}
	fmt.Fprintln(out, "linked")
	go func() {
		defer cancel()
		for {
			if _, err := lines.ReadString('\n'); err != nil {
				return
			}
			sum := int64(0)
			for _, n := range nodes {
				sum += n.requests.Load()
			}
			fmt.Fprintln(out, sum)
		}
	}()
	<-ctx.Done()
	all.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// A node is one linked machine.
type node struct {
	name     string
	cfg      penConfig
	history  *history
	log      *slog.Logger
	launcher *launcher
	requests atomic.Int64

	mu      sync.Mutex // guards both
	restart context.CancelFunc
	tear    context.CancelFunc
}

func (n *node) dir(parts ...string) string {
	return filepath.Join(append([]string{n.cfg.Dir, n.name}, parts...)...)
}

// link registers the machine, unless an earlier process did.
func (n *node) link(ctx context.Context) error {
	for _, dir := range []string{"link", "spool", "store/trees"} {
		if err := os.MkdirAll(n.dir(dir), 0o755); err != nil {
			return err
		}
	}
	if _, err := agent.ReadLink(n.dir("link")); err == nil {
		return nil
	}
	client := &api.Client{Base: n.cfg.API, Token: func() (string, error) { return n.cfg.Token, nil }}
	facts, err := n.facts(ctx)
	if err != nil {
		return err
	}
	for {
		link, credential, err := agent.Register(ctx, client, n.dir("link"), facts, -1, -1)
		if err == nil {
			return link.Write(n.dir("link"), credential, -1, -1)
		}
		// A proxy between may have harmed it, also in ways that no client tries again.
		n.log.Warn("linking", "err", err)
		if !pause(ctx, time.Second) {
			return err
		}
	}
}

func (n *node) facts(context.Context) (api.WorkerFacts, error) {
	return api.WorkerFacts{
		Hostname: n.name, OS: "linux", Arch: "x86_64", CPUs: 8, CPUModel: "simulated", Memory: 16 << 30, Disk: 1 << 40,
		GPUs: []api.GPU{}, Lanes: []string{}, Offers: []string{}, Version: "bench",
	}, nil
}

// live runs the machine's agent, and again whenever it was restarted.
func (n *node) live(ctx context.Context) error {
	for ctx.Err() == nil {
		life, restart := context.WithCancel(ctx)
		n.mu.Lock()
		n.restart = restart
		n.mu.Unlock()
		n.history.tell(entry{What: began, Node: n.name})
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.Proxy = nil
		transport.MaxIdleConnsPerHost = 4
		transport.ReadBufferSize, transport.WriteBufferSize = 4<<10, 4<<10
		err := agent.Run(life, agent.Config{
			Dir: n.dir("link"), Spool: n.dir("spool"), Store: n.dir("store"), Policy: n.cfg.Policy, Status: n.dir("status.json"),
			Dial: func() (agent.Launcher, error) {
				torn, tear := context.WithCancel(life)
				n.mu.Lock()
				n.tear = tear
				n.mu.Unlock()
				return n.launcher.dial(torn)
			},
			Facts: n.facts,
			HTTP:  &http.Client{Transport: witness{n, transport}},
			Log:   n.log,
		})
		restart()
		transport.CloseIdleConnections()
		n.history.tell(entry{What: ended, Node: n.name})
		if err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	return nil
}

// disturb ends the agent's life, in order, or the launcher's.
func (n *node) disturb() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.restart == nil {
		return
	}
	n.history.tell(entry{What: dropped, Node: n.name})
	if rand.IntN(2) == 0 && n.tear != nil {
		n.tear()
	} else {
		n.restart()
	}
}

// A witness tells the history what the agent's calls were answered.
type witness struct {
	*node
	http.RoundTripper
}

func (w witness) RoundTrip(r *http.Request) (*http.Response, error) {
	w.requests.Add(1)
	_, act, report := reportOf(r)
	claim := strings.HasSuffix(r.URL.Path, "/claim")
	var state activity.State
	if report && r.GetBody != nil {
		if body, err := r.GetBody(); err == nil {
			b, _ := io.ReadAll(body)
			state = stateOf(b)
		}
	}
	resp, err := w.RoundTripper.RoundTrip(r)
	status := 0
	if err == nil {
		status = resp.StatusCode
	}
	switch {
	case report:
		w.history.tell(entry{What: reported, Node: w.name, Activity: act, State: state, Status: status})
	case claim && status == http.StatusOK:
		b, rerr := io.ReadAll(resp.Body)
		resp.Body.Close()
		resp.Body = io.NopCloser(&cutBody{bytes.NewReader(b), rerr})
		if rerr != nil {
			break // half an answer is none
		}
		var claimed api.Claimed
		if json.Unmarshal(b, &claimed) == nil {
			for _, e := range claimed.Start {
				w.history.tell(entry{What: offered, Node: w.name, Activity: e.Activity})
			}
		}
	default:
		w.history.tell(entry{What: called, Node: w.name, Status: status})
	}
	return resp, err
}

// CloseIdleConnections reaches the transport.
func (w witness) CloseIdleConnections() {
	w.RoundTripper.(*http.Transport).CloseIdleConnections()
}

// A cutBody reads what was read, and then ends as that did.
type cutBody struct {
	*bytes.Reader
	err error
}

func (c *cutBody) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err == io.EOF && c.err != nil {
		err = c.err
	}
	return n, err
}

// writePolicy writes the policy of all nodes, as root.
func writePolicy(path string, most int) error {
	text := fmt.Sprintf(`{"kinds":[%q],"orgs":[%q],"caps":{"memory":%d,"cpus":%d,"disk":%d},"concurrency":%d}`,
		policy.TrainFit, org, int64(most)<<27, most, int64(most)<<27, most)
	return os.WriteFile(path, []byte(text), 0o644)
}
