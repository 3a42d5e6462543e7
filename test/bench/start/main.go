//go:build linux

// Command start measures how long it takes from a request to the first
// instruction of the workload's main: in our sandbox, with a stage parked ahead
// and without, and through the launcher's socket; in the distribution's bwrap, runc
// and crun; in the runc that go.mod pins; and with nothing around it.
//
//	apt-get install bubblewrap runc crun
//	go run ./test/bench/start          # as root, about a minute
//
// The workload is one static Go program that prints CLOCK_MONOTONIC at main's
// first line; the time of the request is read from the same clock just before it.
// Every round starts every contender once, in an order that rotates. All are
// asked for the same, see [workload]. Where they differ the table says so, and a
// contender that cannot run here stands in it with the reason. None of the others
// filters system calls, which flatters them.
//
// Then it says what the launcher and its stages hold in memory while one workload
// is idle, and how long it takes to stop processes that ignore SIGTERM.
//
// On a host with hybrid control groups crun refuses to run and runc would use v1;
// there the whole benchmark runs in a mount namespace of its own with cgroup v2
// at /sys/fs/cgroup, and says so. Building the pinned runc needs a C compiler.
// Without root only the floor is measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	if hybrid() && os.Geteuid() == 0 && os.Getenv(inside) == "" {
		status, err := again(os.Args[1:])
		if err != nil {
			fmt.Fprintln(os.Stderr, "start: a mount namespace of its own:", err)
			status = 1
		}
		os.Exit(status)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("start", flag.ContinueOnError)
	flags.SetOutput(stderr)
	rounds := flags.Int("n", 50, "rounds, each of which starts every contender once")
	asJSON := flags.Bool("json", false, "print one JSON object instead of tables")
	if flags.Parse(args) != nil || flags.NArg() != 0 || *rounds < 1 {
		fmt.Fprintln(stderr, "usage: go run ./test/bench/start [-n ROUNDS] [-json]")
		return 2
	}
	report, err := measure(ctx, *rounds)
	if err != nil {
		fmt.Fprintln(stderr, "start:", err)
		return 1
	}
	show := report.table
	if *asJSON {
		show = report.json
	}
	if err := show(stdout); err != nil {
		fmt.Fprintln(stderr, "start:", err)
		return 1
	}
	return 0
}

// measure makes everything in a folder that it removes.
func measure(ctx context.Context, rounds int) (*report, error) {
	dir, err := os.MkdirTemp("", "start-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil { // the workload's user passes through it
		return nil, err
	}
	r := &report{Host: describe(), Rounds: rounds}
	if os.Getenv(inside) != "" {
		if err := unify(); err != nil {
			return nil, fmt.Errorf("mounting cgroup v2 at %s: %w", groups, err)
		}
		r.Host.Groups = "hybrid on the host; for all contenders cgroup v2 at " + groups + " in a mount namespace of their own"
	}
	program := filepath.Join(dir, "empty")
	if err := build(program, module+"/empty", false); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		err = r.floor(ctx, program)
	} else {
		err = r.measure(ctx, dir, program)
	}
	if err != nil {
		return nil, err
	}
	r.Host.LoadAfter = load()
	return r, nil
}

// floor is all that a person without root can measure.
func (r *report) floor(ctx context.Context, program string) error {
	contenders := []contender{plain(program)}
	for _, name := range []string{"hanzo, parked", "hanzo", "hanzo-launcher", "bwrap", "runc", "crun", "go tool runc"} {
		contenders = append(contenders, contender{name: name, why: "needs root"})
	}
	return r.race(ctx, contenders)
}

// measure is everything, one after another, for each would disturb the next.
func (r *report) measure(ctx context.Context, dir, program string) (err error) {
	group := filepath.Join(groups, fmt.Sprintf("hanzo-bench-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeGroup(group)) }()
	limits, said, err := prepareGroup(group)
	if err != nil {
		return err
	}
	r.Host.Groups += "; " + said
	w, err := newWorkload(dir, program, limits)
	if err != nil {
		return err
	}
	o, err := newOurs(dir, group, w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	spec, release, err := w.spec("peer")
	if err != nil {
		return err
	}
	defer release()
	m, err := newMachine(dir, group, o.config.Stage.Name(), program, w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	contenders := append([]contender{plain(program)}, o.contenders(ctx)...)
	contenders = append(contenders, m.contender())
	contenders = append(append(contenders, bwrap(spec)), peers(dir, group, spec)...)
	if err := r.race(ctx, contenders); err != nil {
		return err
	}
	if r.Memory, err = m.resident(); err != nil {
		return err
	}
	r.Stop, err = o.stop(ctx, dir)
	return err
}

const module = "github.com/hanzoai/link/test/bench/start"

// build compiles one command of this module or of its tools.
func build(binary, pack string, cgo bool) error {
	c := exec.Command("go", "build", "-trimpath", "-o", binary, pack)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if cgo {
		c.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w: %s", pack, err, last(string(out)))
	}
	return nil
}
