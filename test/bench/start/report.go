//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// report is what the benchmark found. Times are milliseconds.
type report struct {
	Host   host  `json:"host"`
	Rounds int   `json:"rounds"`
	Starts []row `json:"starts"`

	// What only our own sandbox is asked, as root.
	Memory []memory `json:"memory,omitempty"`
	Stop   stopped  `json:"stop,omitzero"`
}

// host is what the figures depend on.
type host struct {
	Kernel     string `json:"kernel"`
	Processor  string `json:"processor"`
	Processors int    `json:"processors"`
	Groups     string `json:"control_groups"`
	LoadBefore string `json:"load_before"` // of the last minute
	LoadAfter  string `json:"load_after"`
}

// row is one contender's figures; Why replaces them where it could not run.
type row struct {
	Name  string  `json:"name"`
	Build string  `json:"build,omitempty"`
	Min   float64 `json:"min_ms,omitempty"`
	P50   float64 `json:"p50_ms,omitempty"`
	P95   float64 `json:"p95_ms,omitempty"`
	Ratio float64 `json:"ratio,omitempty"` // of the medians, to the empty program
	Note  string  `json:"note,omitempty"`
	Why   string  `json:"why_not,omitempty"`
}

func describe() host {
	h := host{Processor: line("/proc/cpuinfo", "model name"), Processors: runtime.NumCPU(), Groups: "cgroup v2 at " + groups, LoadBefore: load()}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		h.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	return h
}

// load is the last minute's load average.
func load() string {
	line, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	minute, _, _ := strings.Cut(string(line), " ")
	return minute
}

// race runs the race and takes its results over; the first contender is the floor.
func (r *report) race(ctx context.Context, contenders []contender) error {
	results, err := race(ctx, contenders, r.Rounds)
	if err != nil {
		return err
	}
	var floor time.Duration
	for i, one := range results {
		c := one.contender
		line := row{Name: c.name, Build: c.build, Note: c.note, Why: c.why}
		if c.why == "" {
			median := quantile(one.starts, .5)
			if i == 0 {
				floor = median
			}
			line.Min = ms(quantile(one.starts, 0))
			line.P50, line.P95 = ms(median), ms(quantile(one.starts, .95))
			line.Ratio = float64(median) / float64(floor)
		}
		r.Starts = append(r.Starts, line)
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (r *report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func (r *report) table(w io.Writer) error {
	h := r.Host
	fmt.Fprintf(w, "Linux %s, %d processors (%s), load %s before and %s after; %s\n\n", h.Kernel, h.Processors, h.Processor, h.LoadBefore, h.LoadAfter, h.Groups)
	fmt.Fprintf(w, "From the request to the workload's main, %d alternating rounds, milliseconds\n", r.Rounds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "contender\tmin\tp50\tp95\tx empty\tversion\tnote")
	for _, s := range r.Starts {
		if s.Why != "" {
			fmt.Fprintf(t, "%s\t-\t-\t-\t-\t%s\tnot here: %s\n", s.Name, s.Build, s.Why)
			continue
		}
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.2f\t%.1f\t%s\t%s\n", s.Name, s.Min, s.P50, s.P95, s.Ratio, s.Build, s.Note)
	}
	if err := t.Flush(); err != nil || len(r.Memory) == 0 {
		return err
	}
	fmt.Fprintf(w, "\nResident beside one idle workload, KiB\n")
	for _, m := range r.Memory {
		fmt.Fprintf(t, "%s\tRss %d\tPss %d\n", m.Of, m.Rss, m.Pss)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nStop of %d processes that ignore SIGTERM: %.0f ms, of them %.0f grace\n", r.Stop.Processes, r.Stop.Took, r.Stop.Grace)
	return err
}
