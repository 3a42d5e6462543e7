//go:build linux

// Command rest measures a linked machine's agent that has nothing to do: its resident
// memory, its share of a processor, and how often it calls the cloud.
//
//	go run ./test/bench/rest                  # as root, five minutes
//	go run ./test/bench/rest --minutes 30
//
// The agent is cmd/hanzo-link, built as it is installed and run as a user without
// rights. It finds its files where hanzo link puts them, in a mount namespace of its
// own, so the host's are not touched; a launcher that starts nothing answers at its
// socket, and the control plane is this process. The policy admits train.fit, so the
// agent watches what it watches on a machine that works.
//
// The measurement begins when the agent's second claim has come, by when it is
// registered and what it did for that is over. Memory is the whole process's, as the
// kernel counts it: Rss takes pages that it shares whole. The processor's share is
// of one core. A kernel whose scheduler has a clock of ticks alone, as that of many a
// virtual machine, counts a wake-up that is shorter than a tick as nothing, and so
// says 0; test/bench/claims measures a thousand agents at once, where that evens out.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == asMachine {
		if err := machine(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, "rest: the machine:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("rest", flag.ContinueOnError)
	flags.SetOutput(stderr)
	minutes := flags.Float64("minutes", 5, "how long to measure")
	asJSON := flags.Bool("json", false, "print one JSON object instead of a table")
	if flags.Parse(args) != nil || flags.NArg() != 0 || *minutes <= 0 {
		fmt.Fprintln(stderr, "usage: go run ./test/bench/rest [--minutes N] [--json]")
		return 2
	}
	r, err := measure(ctx, time.Duration(*minutes*float64(time.Minute)), stderr)
	if err == nil {
		show := r.table
		if *asJSON {
			show = r.json
		}
		err = show(stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "rest:", err)
		return 1
	}
	return 0
}

// report is what was found.
type report struct {
	Seconds  float64 `json:"seconds"`
	RssMax   int     `json:"rss_max_kib"` // of samples every few seconds
	Rss      int     `json:"rss_kib"`     // at the end
	Pss      int     `json:"pss_kib"`
	CPU      float64 `json:"cpu_percent"` // of one core
	Switches int     `json:"voluntary_switches"`
	Requests int     `json:"requests"`
	Every    float64 `json:"seconds_a_request"`
	Binary   int64   `json:"binary_bytes"`
}

func (r *report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func (r *report) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "agent at rest for %.0f s\tfound\twanted\n", r.Seconds)
	fmt.Fprintf(t, "resident, MiB\t%.1f, at most %.1f (Pss %.1f)\tunder 30\n", float64(r.Rss)/1024, float64(r.RssMax)/1024, float64(r.Pss)/1024)
	fmt.Fprintf(t, "processor, %% of a core\t%.3f (%.1f wake-ups a second)\tunder 0.1\n", r.CPU, float64(r.Switches)/r.Seconds)
	every := "none came"
	if r.Requests > 0 {
		every = fmt.Sprintf("%d, one every %.1f s", r.Requests, r.Every)
	}
	fmt.Fprintf(t, "requests\t%s\tat most one every 25 s\n", every)
	fmt.Fprintf(t, "binary, MiB\t%.1f\t\n", float64(r.Binary)/(1<<20))
	return errors.Join(t.Flush())
}
