//go:build linux

// Command claims holds one control plane and many linked machines to the promise of
// the claim: no start is lost, none happens twice, and every activity ends once, the
// same on both sides; and it measures how long an enqueue takes to reach its node.
//
//	go run ./test/bench/claims                 # 1,000 nodes, 20,000 activities, undisturbed: the figures
//	go run ./test/bench/claims --faults        # the same, disturbed: the promise
//
// As root, for the nodes' policy file must be root's.
//
// Everything is real but the launchers and the network. The control plane is a
// process over a folder on this machine's disk. The nodes are package agent's Run,
// some hundreds to a process, each with its own state directory; their launchers
// speak launcher/ipc over a socket pair, and their workloads are timers. The nodes'
// folders lie in memory (/dev/shm) where there is some: a thousand machines have a
// thousand disks.
//
// With --faults a proxy stands before the control plane. It cuts connections before
// a request, after it, and in the middle of the answer; delivers requests twice, at
// once or seconds later; waits; and answers for the cloud, with pages of HTML.
// Meanwhile agents and launchers are restarted, processes of nodes are killed, and
// the control plane is stopped or killed and started again over its folder, and
// some activities are cancelled. That begins when all nodes are linked and stops when
// all activities are enqueued; then everything has to come to its end.
//
// Every process writes a history of what it saw, and afterwards all of it is held
// against what the control plane holds; see ledger.check. A sentence for each thing
// that does not hold, exit status 1, and the folder is kept.
//
// Times are from before an enqueue's request goes out to after the node has read the
// answer of its claim, on one clock, as requester and node see them. They and the
// rest of the table mean something only on an otherwise idle machine and without
// --faults. The seed decides which faults happen and what is asked of whom, and not
// the order in which processes run, so a run can be repeated only roughly.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// The program's other lives, by its first argument.
const (
	asCloud = "as-cloud"
	asPen   = "as-pen"
)

func run(args []string, in io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(args) == 2 && args[0] == asCloud || len(args) == 1 && args[0] == asPen {
		var err error
		if args[0] == asCloud {
			err = cloud(ctx, args[1], stdout)
		} else {
			err = pen(ctx, in, stdout)
		}
		if err != nil {
			fmt.Fprintf(stderr, "claims %s: %v\n", args[0], err)
			return 1
		}
		return 0
	}
	var p plan
	flags := flag.NewFlagSet("claims", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&p.Nodes, "nodes", 1000, "`number` of nodes")
	flags.IntVar(&p.Pens, "processes", 4, "`number` of processes that they live in")
	flags.IntVar(&p.Activities, "activities", 20_000, "`number` of activities to enqueue")
	flags.Float64Var(&p.Rate, "rate", 50, "enqueues a `second`")
	flags.IntVar(&p.Requesters, "requesters", 400, "`number` of requesters: each may enqueue 60 at once, and then one a second")
	flags.IntVar(&p.Most, "concurrency", 4, "`number` of workloads that a node runs at once")
	flags.DurationVar(&p.Longest, "work", 2*time.Second, "the longest `time` that a workload runs; each takes a random part of it")
	flags.BoolVar(&p.Faults, "faults", false, "disturb everything")
	flags.Float64Var(&p.FaultRate, "fault-rate", 0.02, "`share` of the requests that meet a fault")
	flags.DurationVar(&p.Kill, "kill", 20*time.Second, "mean `time` between two kills or restarts of the control plane or of a process of nodes")
	flags.DurationVar(&p.Restart, "restart", 2*time.Second, "mean `time` between two restarts of an agent or a launcher, in each process")
	flags.DurationVar(&p.Rest, "rest", time.Minute, "`time` to measure everything at rest before the work")
	flags.Uint64Var(&p.Seed, "seed", rand.Uint64()>>32, "decides what can be decided")
	flags.StringVar(&p.Dir, "dir", "", "`folder` for the control plane and the histories; empty is a temporary one")
	asJSON := flags.Bool("json", false, "print one JSON object instead of a table")
	if flags.Parse(args) != nil || flags.NArg() != 0 || p.Nodes < p.Pens || p.Pens < 1 || p.Activities < 1 || p.Rate <= 0 || p.Requesters < 1 || p.Most < 1 {
		fmt.Fprintln(stderr, "usage: go run ./test/bench/claims [--faults] [--nodes N] [--activities N] [--rate PER_SECOND] [--seed N] [--json]")
		return 2
	}
	fmt.Fprintf(stderr, "seed %d\n", p.Seed)
	r, err := p.run(ctx, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "claims:", err)
		return 1
	}
	show := r.table
	if *asJSON {
		show = r.json
	}
	if err := show(stdout); err != nil {
		fmt.Fprintln(stderr, "claims:", err)
		return 1
	}
	if len(r.Wrong) > 0 {
		return 1
	}
	return 0
}
