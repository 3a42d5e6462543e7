//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tracer records what the threads of this process and all their later children
// do, in an instance of the kernel's own (Documentation/trace/ftrace.rst), whose
// clock is the workload's.
type tracer struct{ mounted, instance string }

// event is one line of a trace, to the microsecond.
type event struct {
	at   time.Duration // CLOCK_MONOTONIC
	name string
	call int // for sys_enter and sys_exit
}

// newTracer traces every entry of a system call, every fork and exec, and the
// returns of one call.
func newTracer(dir string, returns int) (*tracer, error) {
	t := &tracer{mounted: filepath.Join(dir, "tracing")}
	if err := os.Mkdir(t.mounted, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount("tracefs", t.mounted, "tracefs", 0, ""); err != nil {
		return nil, errors.Join(fmt.Errorf("this kernel does not let itself be traced: %w", err), os.Remove(t.mounted))
	}
	t.instance = filepath.Join(t.mounted, "instances", fmt.Sprintf("hanzo-bench-%d", os.Getpid()))
	err := os.Mkdir(t.instance, 0o700)
	for _, set := range [][2]string{
		{"tracing_on", "0"},
		{"trace_clock", "mono"},
		{"options/event-fork", "1"},
		{"events/raw_syscalls/sys_exit/filter", fmt.Sprintf("id == %d", returns)},
		{"events/raw_syscalls/sys_enter/enable", "1"},
		{"events/raw_syscalls/sys_exit/enable", "1"},
		{"events/sched/sched_process_fork/enable", "1"},
		{"events/sched/sched_process_exec/enable", "1"},
	} {
		if err == nil {
			err = t.set(set[0], set[1])
		}
	}
	if err == nil {
		err = t.follow("/proc/self/task")
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// follow has the trace take the threads in a task folder, with their children. A
// thread can be started between the listing and the setting, by one that was not
// followed yet; so it is done until nothing new is listed.
func (t *tracer) follow(tasks string) error {
	var before []string
	for {
		threads, err := os.ReadDir(tasks)
		if err != nil {
			return err
		}
		var ids []string
		for _, thread := range threads {
			ids = append(ids, thread.Name())
		}
		if slices.Equal(ids, before) {
			return nil
		}
		if err := t.set("set_event_pid", strings.Join(ids, " ")); err != nil {
			return err
		}
		before = ids
	}
}

func (t *tracer) close() error {
	err := os.Remove(t.instance)
	return errors.Join(err, unix.Unmount(t.mounted, 0), os.Remove(t.mounted))
}

func (t *tracer) set(name, value string) error {
	return os.WriteFile(filepath.Join(t.instance, name), []byte(value), 0)
}

// on forgets what was recorded and records.
func (t *tracer) on() error { return errors.Join(t.set("trace", ""), t.set("tracing_on", "1")) }

// A line is "COMM-PID [CPU] FLAGS SECONDS: EVENT: …", and of a call "NR 1 …".
var lineOf = regexp.MustCompile(`^.+-\d+ +\[\d+\] +\S+ +(\d+)\.(\d{6}): (\w+): (?:NR (\d+))?`)

// off stops recording and returns what happened since on, oldest first. Reading a
// trace that records would record the reading, without end.
func (t *tracer) off() ([]event, error) {
	if err := t.set("tracing_on", "0"); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(t.instance, "trace"))
	if err != nil {
		return nil, err
	}
	var events []event
	for one := range bytes.Lines(text) {
		if e, ok := parse(one); ok {
			events = append(events, e)
		}
	}
	return events, nil
}

// parse reads one line; a comment is no event.
func parse(text []byte) (event, bool) {
	m := lineOf.FindSubmatch(text)
	if m == nil {
		return event{}, false
	}
	micros, err := strconv.ParseInt(string(m[1])+string(m[2]), 10, 64)
	call, _ := strconv.Atoi(string(m[4]))
	return event{time.Duration(micros) * time.Microsecond, string(m[3]), call}, err == nil
}
