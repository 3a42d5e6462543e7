//go:build linux

package sandboxcmd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/sandbox"
	"github.com/hanzoai/link/sandbox/attempt"
)

// Inside runs the half of the check that is the workload, when args ask for it.
func Inside(args []string) (status int, inside bool) {
	if len(args) == 0 || args[0] != attempt.Argument {
		return 0, false
	}
	return attempt.Main(args[1:], os.Stdout), true
}

// Report is everything that a check found.
type Report struct {
	OK     bool    `json:"ok"`
	Error  string  `json:"error,omitempty"`  // why nothing could be tried
	Offers bool    `json:"offers"`           // whether this host can offer work at all
	Reason string  `json:"reason,omitempty"` // why not
	Host   []Have  `json:"host"`
	Kinds  []Tried `json:"kinds"`
	Held   int     `json:"held"`
	Gave   int     `json:"gaveWay"`
	NotRun int     `json:"notRun"`
	Failed int     `json:"failed"` // could not be tried
}

// Have is one thing that a host needs, or is better for.
type Have struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Need   bool   `json:"need"`
	Detail string `json:"detail"`
}

// Tried is what came of the attempts on one kind of sandbox.
type Tried struct {
	Kind    string           `json:"kind"`
	Error   string           `json:"error,omitempty"` // why it could not be built
	Results []attempt.Result `json:"results"`
}

// check is hanzo sandbox check.
func check(ctx context.Context, streams term.IO, asJSON bool) error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("this is user %d: the sandbox is built by root, so its check is too; run sudo hanzo sandbox check", uid)
	}
	ctx, release := unhurried(ctx)
	defer release()
	progress := term.NewProgress(streams.Err)
	defer progress.Done()
	r, err := examine(ctx, nil, progress.Show)
	progress.Done()
	if err != nil {
		return err
	}
	if asJSON {
		if err := term.PrintJSON(streams.Out, r); err != nil {
			return err
		}
	} else {
		var text bytes.Buffer
		r.print(&text)
		if _, err := text.WriteTo(streams.Out); err != nil {
			return err
		}
	}
	return r.verdict()
}

// unhurried is cancelled by whatever asks the check to end. Until release, which is
// when everything has been taken away, no such signal ends it at once: neither a
// second one, nor that nobody reads what it prints.
func unhurried(ctx context.Context) (_ context.Context, release func()) {
	signals := []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGQUIT}
	if !signal.Ignored(unix.SIGHUP) { // by nohup
		signals = append(signals, unix.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, signals...)
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, unix.SIGPIPE) // the write is answered EPIPE instead
	return ctx, func() {
		signal.Stop(pipe)
		stop()
	}
}

// verdict is the error of a report that is not good.
func (r *Report) verdict() error {
	switch {
	case r.Gave > 0:
		return fmt.Errorf("%s gave way: do not let this machine run the work of others", count(r.Gave, "attempt", "attempts"))
	case r.Error != "":
		return errors.New("nothing could be tried: " + r.Error)
	case !r.Offers:
		return errors.New("this machine lacks what a sandbox needs: " + r.Reason)
	case r.Failed > 0:
		return fmt.Errorf("%s could not be made, so whether the sandbox holds is not known: see what it says beside each", count(r.Failed, "attempt", "attempts"))
	case !r.OK:
		return errors.New("the sandbox could not be tried whole")
	}
	return nil
}

// examine does it all. alter, for tests, makes a hole in what is built.
func examine(ctx context.Context, alter func(*built), show func(string)) (_ *Report, err error) {
	g, unready := newGround()
	defer func() {
		show("taking away what was made")
		if undone := g.close(); undone != nil {
			err = errors.Join(err, fmt.Errorf("not everything could be taken away: %w", undone))
		}
	}()
	show("looking at what this host can build")
	r := &Report{Kinds: []Tried{}}
	checks := sandbox.Probe(ctx, g.config())
	for _, c := range checks {
		r.Host = append(r.Host, Have(c))
	}
	r.Offers, r.Reason = sandbox.Offers(checks)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if unready != nil {
		r.Error = unready.Error()
		return r, nil
	}
	if g.group == "" {
		return r, nil // nothing can be built; the probe has said why
	}
	host, err := sandbox.New(g.config())
	if err != nil {
		r.Error = err.Error()
		return r, nil
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	all, none := kinds()
	r.OK = r.Offers
	for _, k := range all {
		show(k.name + ": trying to get out")
		a := Tried{Kind: k.name, Results: []attempt.Result{}}
		results, err := g.tryAll(ctx, host, k, alter, show)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			a.Error, r.OK = err.Error(), false
		}
		a.Results = append(a.Results, results...)
		r.Kinds = append(r.Kinds, a)
		for _, result := range results {
			switch result.State {
			case attempt.Held:
				r.Held++
			case attempt.NotRun:
				r.NotRun++
			case attempt.Failed:
				r.Failed++
			default:
				r.Gave++
			}
		}
	}
	if none != "" {
		r.Host = append(r.Host, Have{Name: "sandbox with a GPU", Detail: none})
	}
	r.OK = r.OK && r.Gave == 0 && r.Failed == 0
	return r, nil
}

// Limits of the list and of one trial. They take seconds; on a machine that is
// emulated, a hundred.
const (
	listLimit  = 5 * time.Minute
	trialLimit = 2 * time.Minute
)

var errLong = errors.New("it took too long")

// tryAll makes every attempt on one kind: first the list, then what is judged from
// outside.
func (g *ground) tryAll(ctx context.Context, host *sandbox.Host, k kind, alter func(*built), show func(string)) ([]attempt.Result, error) {
	results, err := g.tryList(ctx, host, k, alter)
	if err != nil {
		return results, err
	}
	for i, t := range trials {
		if ctx.Err() != nil {
			return results, context.Cause(ctx)
		}
		show(fmt.Sprintf("%s: %s", k.name, t.name))
		r := &run{ground: g, host: host, kind: k, name: fmt.Sprintf("trial-%d-%d", t.number, i), alter: alter}
		results = append(results, t.result(ctx, r))
	}
	slices.SortStableFunc(results, func(a, b attempt.Result) int { return cmp.Compare(a.Number, b.Number) })
	return results, nil
}

// result makes the trial.
func (t trial) result(ctx context.Context, r *run) attempt.Result {
	result := attempt.Result{Number: t.number, Name: t.name, Expected: t.expected}
	switch {
	case t.try == nil:
		result.State, result.Got = attempt.NotRun, "needs "+t.needs
		return result
	case t.needs != "" && !r.limited(t.needs):
		result.State, result.Got = attempt.NotRun, "needs the "+t.needs+" controller of cgroup v2"
		return result
	}
	ctx, cancel := context.WithTimeoutCause(ctx, trialLimit, errLong)
	defer cancel()
	got, err := t.try(ctx, r)
	result.State, result.Got = attempt.Held, got
	if err != nil {
		result.State, result.Got = attempt.GaveWay, err.Error()
	}
	if _, unknown := errors.AsType[untried](err); unknown {
		result.State = attempt.Failed
	}
	return result
}

// tryList runs the list inside one workload. A line that did not come is an attempt
// that took the workload down, or would have been made after it.
func (g *ground) tryList(ctx context.Context, host *sandbox.Host, k kind, alter func(*built)) ([]attempt.Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, listLimit, errLong)
	defer cancel()
	b, err := g.build(k, "list")
	if err != nil {
		return nil, err
	}
	defer b.close()
	if alter != nil {
		alter(b)
	}
	b.Args = append(b.Args, b.profile.Arguments()...)
	w, err := host.Start(ctx, b.Spec)
	if err != nil {
		return nil, err
	}
	defer w.Kill()
	e, err := running(ctx, w)
	if err != nil && !errors.Is(err, errLong) {
		return nil, err
	}
	results := attempt.Results(e.Stdout)
	listed := attempt.Listed()
	for i, missing := range listed[min(len(results), len(listed)):] {
		missing.State, missing.Got = attempt.Failed, "not reached"
		if i == 0 {
			missing.Got = "the workload ended here: " + ending(e)
			if len(results) > 0 && err == nil { // it had begun
				missing.State = attempt.GaveWay
			}
		}
		results = append(results, missing)
	}
	if _, err := os.Lstat(w.Run()); err == nil {
		results = append(results, attempt.Result{Number: 52, Name: "take the traps away", Expected: "gone", Got: "the run directory is left", State: attempt.GaveWay})
	}
	if n := g.reached.Load(); n > 0 {
		results = append(results, attempt.Result{Number: 68, Name: "as the host saw it", Expected: "nobody connects",
			Got: count(int(n), "connection", "connections"), State: attempt.GaveWay})
	}
	return results, nil
}

// ending is how a workload ended, in a table cell.
func ending(e sandbox.Exit) string {
	switch {
	case e.Cause != sandbox.Exited:
		return fmt.Sprintf("%s %s", e.Cause, e.Reason)
	case e.Signal != 0:
		return e.Signal.String()
	}
	return fmt.Sprintf("status %d, saying %.200q", e.Code, e.Stderr)
}

// count is a number with its noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
