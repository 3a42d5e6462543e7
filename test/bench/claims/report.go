//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// report is what a run found. Times are milliseconds where they say so.
type report struct {
	Host host `json:"host"`
	Plan plan `json:"plan"`

	Enqueued int            `json:"enqueued"` // that the cloud holds
	Ends     map[string]int `json:"ends"`     // by A5's reason or code
	Starts   int            `json:"starts"`
	Took     float64        `json:"seconds"`

	Offer times `json:"enqueue_to_claim_answer_ms"`
	Ack   times `json:"enqueue_to_its_own_answer_ms"`

	Requests  int64         `json:"requests"` // that the nodes made
	PerSecond float64       `json:"requests_per_second"`
	CloudCPU  time.Duration `json:"cloud_cpu_ns"` // of its last life
	Memory    []memory      `json:"memory"`
	Rest      *rest         `json:"rest,omitempty"`

	Disturbed map[fault]int `json:"disturbed,omitempty"` // requests by what happened to them
	Lives     int           `json:"lives"`               // of agents, those of killed ones among them

	CloudKills int `json:"control_plane_restarts,omitempty"`
	NodeKills  int `json:"nodes_killed,omitempty"` // by hundreds, with their process

	Wrong []string `json:"wrong"`           // what does not hold
	Trace []string `json:"trace,omitempty"` // and what was seen of it
}

// times are quantiles, in milliseconds.
type times struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// memory is resident, in KiB: of the control plane, of the processes of nodes, and
// of one node with its launcher and its share of its process.
type memory struct {
	When  string `json:"when"`
	Cloud int    `json:"cloud_kib"`
	Nodes int    `json:"nodes_kib"`
	Node  int    `json:"node_kib"`
}

// rest is what it takes when there is nothing to do, in percent of a core.
type rest struct {
	Seconds float64 `json:"seconds"`
	Cloud   float64 `json:"control_plane_cpu_percent"`
	Node    float64 `json:"node_cpu_percent"`
	Every   float64 `json:"seconds_a_request_of_a_node"`
}

// host is what the figures depend on.
type host struct {
	Kernel     string `json:"kernel"`
	Processor  string `json:"processor"`
	Processors int    `json:"processors"`
	LoadBefore string `json:"load_before"` // of the last minute
	LoadAfter  string `json:"load_after"`
}

// judge takes the figures from the histories.
func (r *report) judge(l ledger, p *proxy) {
	r.Enqueued, r.Ends = len(l.activities), make(map[string]int)
	for _, a := range l.activities {
		r.Ends[endOf(a)]++
	}
	at, seen := make(map[string]int64), make(map[string]bool)
	var offers, acks []time.Duration
	for _, e := range l.history {
		switch e.What {
		case asked:
			at[e.Activity] = e.At
		case enqueued:
			acks = append(acks, time.Duration(e.At-at[e.Activity]))
		case offered:
			if asked, known := at[e.Activity]; known && !seen[e.Activity] { // only the first counts
				offers = append(offers, time.Duration(e.At-asked))
				seen[e.Activity] = true
			}
		case started:
			r.Starts++
		case began:
			r.Lives++
		case killed:
			if e.Node == "cloud" {
				r.CloudKills++
			} else {
				r.NodeKills++
			}
		}
	}
	r.Offer, r.Ack = quantiles(offers), quantiles(acks)
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		r.Disturbed = maps.Clone(p.counts)
	}
}

// quantiles are by nearest rank.
func quantiles(all []time.Duration) times {
	if len(all) == 0 {
		return times{}
	}
	slices.Sort(all)
	ms := func(q float64) float64 {
		i := int(q*float64(len(all))+0.999999) - 1
		return float64(all[max(0, min(i, len(all)-1))].Microseconds()) / 1000
	}
	return times{len(all), ms(.5), ms(.99), ms(1)}
}

func (r *report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func (r *report) table(w io.Writer) error {
	h := r.Host
	fmt.Fprintf(w, "Linux %s, %d processors (%s), load %s before and %s after; seed %d\n", h.Kernel, h.Processors, h.Processor, h.LoadBefore, h.LoadAfter, r.Plan.Seed)
	how := "undisturbed"
	if r.Plan.Faults {
		how = "disturbed: times and memory mean nothing"
	}
	fmt.Fprintf(w, "%d nodes in %d processes, %d activities at %g a second, %s\n\n", r.Plan.Nodes, r.Plan.Pens, r.Plan.Activities, r.Plan.Rate, how)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "milliseconds\tn\tp50\tp99\tmax")
	for _, one := range []struct {
		name string
		times
	}{{"enqueue to the answer of the node's claim", r.Offer}, {"enqueue to its own answer", r.Ack}} {
		fmt.Fprintf(t, "%s\t%d\t%.1f\t%.1f\t%.1f\n", one.name, one.N, one.P50, one.P99, one.Max)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(t, "\nKiB resident\tcontrol plane\tall nodes\tone node")
	for _, m := range r.Memory {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\n", m.When, m.Cloud, m.Nodes, m.Node)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Rest != nil {
		fmt.Fprintf(w, "\nat rest for %.0f s: one request of a node every %.1f s; processor, %% of a core: a node %.3f, the control plane %.1f\n", r.Rest.Seconds, r.Rest.Every, r.Rest.Node, r.Rest.Cloud)
	}
	if !r.Plan.Faults {
		fmt.Fprintf(w, "\n%d requests of nodes in %.0f s, %.0f a second; the control plane took %.1f s of processor time\n", r.Requests, r.Took, r.PerSecond, r.CloudCPU.Seconds())
	}
	var ends []string
	for _, end := range slices.Sorted(maps.Keys(r.Ends)) {
		ends = append(ends, fmt.Sprintf("%d %s", r.Ends[end], end))
	}
	fmt.Fprintf(w, "%d activities, %d starts; ended: %s\n", r.Enqueued, r.Starts, strings.Join(ends, ", "))
	if r.Plan.Faults {
		var counts []string
		for _, f := range append([]fault{none}, faults...) {
			name := string(f)
			if f == none {
				name = "unharmed"
			}
			counts = append(counts, fmt.Sprintf("%d %s", r.Disturbed[f], name))
		}
		fmt.Fprintf(w, "requests: %s; %d restarts of the control plane, %d lives of agents, %d of them killed\n", strings.Join(counts, ", "), r.CloudKills, r.Lives, r.NodeKills)
	}
	if len(r.Wrong) == 0 {
		fmt.Fprintln(w, "no start lost, none doubled, every activity ended once and the same on both sides")
		return nil
	}
	fmt.Fprintf(w, "\n%d things do not hold:\n", len(r.Wrong))
	for i, s := range r.Wrong {
		if i == 50 {
			fmt.Fprintln(w, "…")
			break
		}
		fmt.Fprintln(w, s)
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(r.Trace, "\n"))
	return err
}

func describe() host {
	h := host{Processor: line("/proc/cpuinfo", "model name"), Processors: runtime.NumCPU(), LoadBefore: load()}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		h.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	return h
}

// load is the last minute's load average.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	minute, _, _ := strings.Cut(string(text), " ")
	return minute
}

// line is the value of the first "name: value" in a file of /proc.
func line(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for one := range bytes.Lines(text) {
		if key, value, found := strings.Cut(string(one), ":"); found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
