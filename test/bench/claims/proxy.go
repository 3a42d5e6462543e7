//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanzoai/link/activity"
)

// A fault is what may happen to one request on its way.
type fault string

const (
	none      fault = ""
	unsent    fault = "unsent"    // the connection is cut before the request reached the cloud
	unheard   fault = "unheard"   // … after it did, and before the answer
	half      fault = "half"      // … in the middle of the answer
	impatient fault = "impatient" // … while the cloud is at it, and the cloud is not told
	twice     fault = "twice"     // it reaches the cloud twice; the second answer is the one
	late      fault = "late"      // it reaches the cloud once more, seconds after its answer
	slow      fault = "slow"      // it waits
	page      fault = "page"      // it is answered by a page of HTML, and did not reach the cloud
	lie       fault = "lie"       // … and did
	gone      fault = "gone"      // it is answered 410 without a problem document
)

var faults = []fault{unsent, unheard, half, impatient, twice, late, slow, page, lie, gone}

// A proxy stands between the nodes and their cloud, and between the requesters and
// it.
type proxy struct {
	cloud   string  // the address behind it, http://host:port
	rate    float64 // of requests that meet a fault, while it is not calm
	slowest time.Duration
	only    fault // that there is, in a test
	history *history

	calm    atomic.Bool // no more faults
	client  *http.Client
	ctx     context.Context // of what is delivered without anybody waiting
	strays  sync.WaitGroup
	mu      sync.Mutex // guards random and counts
	random  *rand.Rand
	counts  map[fault]int
	handled atomic.Int64
}

func newProxy(ctx context.Context, cloud string, rate float64, seed uint64, h *history) *proxy {
	return &proxy{
		cloud: cloud, rate: rate, slowest: 3 * time.Second, history: h, ctx: ctx,
		random: rand.New(rand.NewPCG(seed, 0)), counts: make(map[fault]int),
		client: &http.Client{
			Transport:     &http.Transport{MaxIdleConns: 0, MaxIdleConnsPerHost: 4096, DisableCompression: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// pick decides what happens to the next request, and how long what waits waits.
func (p *proxy) pick() (fault, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, wait := none, time.Duration(p.random.Int64N(int64(p.slowest)))
	if p.random.Float64() < p.rate && !p.calm.Load() {
		f = faults[p.random.IntN(len(faults))]
		if p.only != none {
			f = p.only
		}
	}
	p.counts[f]++
	return f, wait
}

// maxProxied is the most of a request's body, or of an answer's.
const maxProxied = 64 << 20

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.handled.Add(1)
	body, err := io.ReadAll(io.LimitReader(r.Body, maxProxied))
	if err != nil {
		cut(w)
		return
	}
	f, wait := p.pick()
	switch f {
	case unsent:
		cut(w)
		return
	case page, gone:
		status := http.StatusBadGateway
		if f == gone {
			status = http.StatusGone
		}
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		io.WriteString(w, "<html>the proxy is not well</html>")
		return
	case slow:
		if !pause(r.Context(), wait) {
			return
		}
	case twice:
		p.deliver(p.ctx, r, body)
	}
	var a *answer
	if f == impatient {
		// The cloud goes on as if the caller were there.
		came := make(chan *answer, 1)
		p.strays.Go(func() { came <- p.deliver(p.ctx, r, body) })
		select {
		case a = <-came:
		case <-time.After(wait):
		}
	} else {
		a = p.deliver(r.Context(), r, body)
	}
	if f == late {
		p.strays.Go(func() {
			if pause(p.ctx, wait) {
				p.deliver(p.ctx, r, body)
			}
		})
	}
	switch {
	case a == nil || f == unheard:
		cut(w)
		return
	case f == lie:
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, "<html>the proxy has it, and says so badly</html>")
		return
	}
	for name, values := range a.header {
		w.Header()[name] = values
	}
	if f == half {
		w.Header().Set("Content-Length", "100000")
		w.WriteHeader(a.status)
		w.Write(a.body[:len(a.body)/2])
		http.NewResponseController(w).Flush()
		cut(w)
		return
	}
	w.WriteHeader(a.status)
	w.Write(a.body)
}

// answer is one of the cloud's.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// deliver sends a request on and answers the answer; nil where there was none. What
// the cloud said to a report is told to the history, whoever else hears it.
func (p *proxy) deliver(ctx context.Context, r *http.Request, body []byte) *answer {
	out, err := http.NewRequestWithContext(ctx, r.Method, p.cloud+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return nil
	}
	out.Header = r.Header.Clone()
	out.Header.Del("Expect")
	sent := time.Now().UnixNano()
	resp, err := p.client.Do(out)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	if node, act, ok := reportOf(r); ok {
		p.history.tell(entry{What: delivered, Sent: sent, Node: node, Activity: act, State: stateOf(body), Status: resp.StatusCode})
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxProxied))
	if err != nil {
		return nil
	}
	return &answer{resp.StatusCode, resp.Header, b}
}

// reportOf reads from a request's address whose report of what it is.
func reportOf(r *http.Request) (node, act string, ok bool) {
	// /v1/compute/fleet/workers/{id}/activities/{activity}/state
	s := strings.Split(r.URL.Path, "/")
	if len(s) != 9 || s[4] != "workers" || s[6] != "activities" || s[8] != "state" {
		return "", "", false
	}
	return s[5], s[7], true
}

// stateOf is the state in a report's body.
func stateOf(body []byte) activity.State {
	var report struct {
		State activity.State `json:"state"`
	}
	json.Unmarshal(body, &report)
	return report.State
}

// cut ends a connection without a word: half of the time so that the other side is
// told at once, by a reset.
func cut(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // it was answered, or cut before
	}
	if tcp, ok := conn.(*net.TCPConn); ok && rand.IntN(2) == 0 {
		tcp.SetLinger(0)
	}
	conn.Close()
}

// pause waits, and answers false when ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
