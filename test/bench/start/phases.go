//go:build linux

package main

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

const traced = 25 // starts whose phases are taken

// phases is where the time of our own start goes.
type phases struct {
	Of     string  `json:"of"`
	Starts int     `json:"starts"`
	Phases []phase `json:"phases,omitempty"`
	Why    string  `json:"why_not,omitempty"`
}

type phase struct {
	Name string  `json:"name"`
	P50  float64 `json:"p50_ms"`
}

// mark is the event that ends a phase and begins the next: the first of its kind
// after the mark before it. A start without a parked stage passes all of them;
// with one, those up to parked happen before the request.
type mark struct {
	ends string // the phase
	is   func(event) bool
}

func marks(parked bool) []mark {
	launcher := []mark{
		{"control group, run directory, files", entered(unix.SYS_CLONE3)},
		{"clone into group and namespaces", func(e event) bool { return e.name == "sched_process_fork" }},
		{"exec of the stage", func(e event) bool { return e.name == "sched_process_exec" }},
		{"Go starts", entered(unix.SYS_MOUNT)},
		{"root, devices, loopback, pivot", entered(unix.SYS_SENDTO)},
	}
	stage := []mark{
		{"order and its mounts", left(unix.SYS_RECVMSG)},
		{"order read, accounts", entered(unix.SYS_MOUNT)},
		{"mounts", entered(unix.SYS_UMASK)},
		{"user, on every thread", entered(unix.SYS_LANDLOCK_CREATE_RULESET)},
		{"Landlock", entered(unix.SYS_SECCOMP)},
		{"filter", entered(unix.SYS_CLOSE_RANGE)},
		{"fork", func(e event) bool { return e.name == "sched_process_fork" }},
		{"exec of the workload", func(e event) bool { return e.name == "sched_process_exec" }},
	}
	if parked {
		return stage
	}
	return append(launcher, stage...)
}

// phases traces some starts. Tracing makes each system call dearer, so the whole
// is longer than the race says.
func (o *ours) phases(ctx context.Context, dir string, parked bool) (phases, error) {
	p := phases{Of: "hanzo", Starts: traced}
	if parked {
		p.Of = "hanzo, parked"
	}
	t, err := newTracer(dir, unix.SYS_RECVMSG)
	if err != nil {
		p.Why = err.Error()
		return p, nil
	}
	defer t.close()
	marks := marks(parked)
	took := make([][]time.Duration, len(marks)+2)
	for range traced {
		if parked {
			if err := o.host.Park(ctx); err != nil {
				return p, err
			}
		}
		if err := t.on(); err != nil {
			return p, err
		}
		asked, main, err := o.once(ctx)
		if err != nil {
			return p, err
		}
		events, err := t.off()
		if err != nil {
			return p, err
		}
		last := asked
		for i, m := range marks {
			at, rest, found := next(events, last, m.is)
			if !found {
				p.Why = "the trace has no end of: " + m.ends
				return p, nil
			}
			took[i] = append(took[i], at-last)
			last, events = at, rest
		}
		took[len(marks)] = append(took[len(marks)], main-last)
		took[len(marks)+1] = append(took[len(marks)+1], main-asked)
	}
	for i, m := range append(marks, mark{ends: "to main"}, mark{ends: "request to main, traced"}) {
		p.Phases = append(p.Phases, phase{m.ends, ms(quantile(took[i], .5))})
	}
	return p, nil
}

// next is the first event of a kind that is not before from, and those after it.
func next(events []event, from time.Duration, is func(event) bool) (time.Duration, []event, bool) {
	for i, e := range events {
		if e.at >= from && is(e) {
			return e.at, events[i+1:], true
		}
	}
	return 0, nil, false
}

func entered(call int) func(event) bool {
	return func(e event) bool { return e.name == "sys_enter" && e.call == call }
}

func left(call int) func(event) bool {
	return func(e event) bool { return e.name == "sys_exit" && e.call == call }
}
