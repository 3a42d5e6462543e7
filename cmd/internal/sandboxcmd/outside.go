//go:build linux

package sandboxcmd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/sandbox"
	"github.com/hanzoai/link/sandbox/attempt"
)

// A trial is one attempt that is judged from outside: the workload does something,
// and the host looks at what came of it.
type trial struct {
	number         int
	name, expected string
	needs          string // the controller without which it is not made, or what it lacks when try is nil
	try            func(ctx context.Context, r *run) (got string, err error)
}

// grace is how long a workload of these has after SIGTERM; late is how much more
// its end may take, on a machine that is busy. Real work has ten seconds.
const (
	grace = time.Second
	late  = 5 * time.Second
)

// trials are made one after the other, for some take all they can get. An error is
// what gave way, and one that is [untried] why nothing is known.
var trials = []trial{
	{12, "daemons: setsid, double fork, subreaper", "gone at stop", "", stop(4, "double-fork")},
	{13, "daemons, and the main program ends", "gone with it", "", daemonsAtExit},
	{14, "200 processes ignore SIGTERM", "dead after the grace", "", stop(200, "ignore-term", 200)},
	{15, "fork bomb", "EAGAIN at pids.max", "pids", forkBomb},
	{16, "thread bomb", "stopped at pids.max", "pids", threadBomb},
	{50, "a link, FIFO, folder or file as the socket", "refused", "", falseSockets},
	{54, "fill the disk from the run directory", "ended over its limit", "", fill(".")},
	{54, "fill the disk from the spool", "ended over its limit", "", fill("/spool")},
	{64, "take all memory, in a child", "the whole group is killed", "memory", memoryBomb("anonymous")},
	{60, "hang a GPU, and end", "its memory is free again", "a program for a GPU, which this check has not", nil},
	{61, "take more of a GPU's memory than was admitted", "stopped", "a program for a GPU, which this check has not", nil},
	{64, "take all memory, locked", "killed or refused", "memory", memoryBomb("locked")},
	{64, "take all memory, in huge pages", "killed or refused", "memory", memoryBomb("huge")},
	{64, "take all memory, in pipes", "killed or refused", "memory", memoryBomb("pipes")},
	{64, "take all memory, in sockets", "killed or refused", "memory", memoryBomb("sockets")},
	{65, "keep every processor busy", "at most its share", "cpu", spin},
	{77, "reach another workload of the same user", "none", "", peers},
	{79, "stop itself with SIGSTOP", "dead after the grace", "", stop(1, "stop-self")},
}

// untried is why an attempt could not be made, which says nothing about the sandbox.
type untried struct{ error }

func untriedf(format string, args ...any) error { return untried{fmt.Errorf(format, args...)} }

// run starts workloads of one kind for one trial.
type run struct {
	*ground
	host *sandbox.Host
	kind kind
	name string

	alter func(*built) // for tests: makes a hole
	count int
}

// start starts a workload that does the behaviour. The caller ends it.
func (r *run) start(ctx context.Context, adjust func(*sandbox.Spec), words ...any) (*sandbox.Workload, error) {
	r.count++
	b, err := r.build(r.kind, fmt.Sprintf("%s-%d", r.name, r.count))
	if err != nil {
		return nil, untried{err}
	}
	defer b.close()
	b.does(words...)
	b.Grace = grace
	if adjust != nil {
		adjust(&b.Spec)
	}
	if r.alter != nil {
		r.alter(b)
	}
	w, err := r.host.Start(ctx, b.Spec)
	if err != nil {
		return nil, untried{err}
	}
	return w, nil
}

// ready waits until the workload does what it is for.
func ready(ctx context.Context, w *sandbox.Workload) (*os.File, error) {
	socket, err := w.Socket(ctx)
	if err == nil {
		return socket, nil
	}
	w.Kill()
	e := w.Exit()
	return nil, untriedf("it was not set up: %w; it said %q", err, e.Stderr)
}

// running waits for the end of a workload that ends by itself.
func running(ctx context.Context, w *sandbox.Workload) (sandbox.Exit, error) {
	select {
	case <-w.Done():
		return w.Exit(), nil
	case <-ctx.Done():
		w.Kill()
		return w.Exit(), untried{context.Cause(ctx)}
	}
}

// held are descriptors of all processes of a workload: they tell of an end even
// when a number is used anew.
func held(w *sandbox.Workload) (fds []int, pids []int, err error) {
	b, err := os.ReadFile(filepath.Join(w.Group(), "cgroup.procs"))
	if err != nil {
		return nil, nil, err
	}
	for _, field := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return fds, pids, err
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err == unix.ESRCH {
			continue
		}
		if err != nil {
			return fds, pids, err
		}
		fds, pids = append(fds, fd), append(pids, pid)
	}
	return fds, pids, nil
}

// allDead closes the descriptors and says how many processes still live.
func allDead(fds []int) error {
	alive := 0
	for _, fd := range fds {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, 0); err != nil || n == 0 {
			alive++
		}
		unix.Close(fd)
	}
	if alive > 0 {
		return fmt.Errorf("%d processes are left", alive)
	}
	return nil
}

// stop has a workload do the behaviour, stops it, and looks whether all of at least
// so many processes are gone in time.
func stop(atLeast int, words ...any) func(context.Context, *run) (string, error) {
	return func(ctx context.Context, r *run) (string, error) {
		w, err := r.start(ctx, nil, words...)
		if err != nil {
			return "", err
		}
		defer w.Kill()
		return stopAll(ctx, w, atLeast)
	}
}

func stopAll(ctx context.Context, w *sandbox.Workload, atLeast int) (string, error) {
	socket, err := ready(ctx, w)
	if err != nil {
		return "", err
	}
	socket.Close()
	fds, _, err := held(w)
	if err != nil {
		allDead(fds)
		return "", untried{err}
	}
	began := time.Now()
	stop := w.Stop(ctx)
	took := time.Since(began)
	if err := allDead(fds); err != nil {
		return "", err
	}
	switch {
	case stop != nil:
		return "", stop
	case len(fds) < atLeast:
		return "", untriedf("only %d processes were there to stop", len(fds))
	case took > grace+late:
		return "", fmt.Errorf("it took %.1f s", took.Seconds())
	}
	if _, err := os.Lstat(w.Run()); err == nil {
		return "", errors.New("the run directory is left")
	}
	after := "at once"
	if took > grace/10 {
		after = fmt.Sprintf("after %.1f s", took.Seconds())
	}
	return fmt.Sprintf("%d processes dead %s", len(fds), after), nil
}

func daemonsAtExit(ctx context.Context, r *run) (string, error) {
	w, err := r.start(ctx, nil, "double-fork", "exit")
	if err != nil {
		return "", err
	}
	e, err := running(ctx, w)
	switch {
	case err != nil:
		return "", fmt.Errorf("its daemons kept it alive: %v", err)
	case e.Cause != sandbox.Exited || e.Code != 0:
		return "", untriedf("it ended with %d (%s) %s", e.Code, e.Cause, e.Stderr)
	}
	if _, err := os.Lstat(w.Group()); err == nil {
		return "", errors.New("its control group is left")
	}
	return "gone with it", nil
}

func forkBomb(ctx context.Context, r *run) (string, error) {
	w, err := r.start(ctx, nil, "forkbomb", 4*pids)
	if err != nil {
		return "", err
	}
	defer w.Kill()
	socket, err := ready(ctx, w)
	if err != nil {
		return "", err
	}
	socket.Close()
	w.Kill()
	said := strings.TrimSpace(string(w.Exit().Stdout))
	if !strings.HasSuffix(said, "EAGAIN") {
		return "", fmt.Errorf("it made %s", said)
	}
	return said, nil
}

func threadBomb(ctx context.Context, r *run) (string, error) {
	w, err := r.start(ctx, nil, "threads", 4*pids)
	if err != nil {
		return "", err
	}
	defer w.Kill()
	if socket, err := w.Socket(ctx); err == nil {
		socket.Close()
		return "", fmt.Errorf("it has %d threads", 4*pids)
	}
	if _, err := running(ctx, w); err != nil {
		return "", err
	}
	return "the program ended for want of threads", nil
}

// falseSockets puts other things where a workload's socket is expected. The caller
// of Socket is root, and what it gets it hands on.
func falseSockets(ctx context.Context, r *run) (string, error) {
	kinds := []string{"symlink", "hardlink", "fifo", "directory", "file"}
	for _, kind := range kinds {
		w, err := r.start(ctx, nil, "socket", kind)
		if err != nil {
			return "", err
		}
		socket, err := w.Socket(ctx)
		select {
		case <-w.Done():
			return "", untriedf("it made no %s: %s", kind, ending(w.Exit()))
		default:
		}
		w.Kill()
		if err == nil {
			socket.Close()
			return "", fmt.Errorf("a %s was taken for the socket", kind)
		}
		if ctx.Err() != nil {
			return "", untried{context.Cause(ctx)}
		}
	}
	return fmt.Sprintf("refused ×%d", len(kinds)), nil
}

// fill lets a workload write four times what it may. What it has is counted now and
// then, so it can be beyond the limit when it is ended for that.
func fill(folder string) func(context.Context, *run) (string, error) {
	return func(ctx context.Context, r *run) (string, error) {
		w, err := r.start(ctx, nil, "fill-disk", folder, int64(4*disk))
		if err != nil {
			return "", err
		}
		defer w.Kill()
		// It is ended for what it wrote, or waits at a quota.
		select {
		case <-w.Done():
		case <-time.After(2 * late):
		case <-ctx.Done():
		}
		w.Kill()
		e := w.Exit()
		said := strings.TrimSpace(string(e.Stdout))
		switch {
		case e.Cause == sandbox.Disk:
			return "ended: " + e.Reason, nil
		case strings.HasSuffix(said, "ENOSPC"), strings.HasSuffix(said, "EDQUOT"):
			return said, nil
		}
		if n := leading(said); n <= disk {
			return "", untriedf("it wrote %q, and could have had %d bytes: %s", said, int64(disk), ending(e))
		}
		return "", fmt.Errorf("it wrote %s bytes of %d", said, int64(disk))
	}
}

func memoryBomb(sort string) func(context.Context, *run) (string, error) {
	return func(ctx context.Context, r *run) (string, error) {
		w, err := r.start(ctx, nil, "memory-bomb", sort, int64(4*memory))
		if err != nil {
			return "", err
		}
		defer w.Kill()
		if socket, err := w.Socket(ctx); err == nil {
			socket.Close()
			w.Kill()
		}
		e, err := running(ctx, w)
		if err != nil {
			return "", err
		}
		said := strings.TrimSpace(string(e.Stdout))
		n := leading(said)
		switch {
		case e.Cause == sandbox.OOM:
			return "killed: out of memory", nil
		case sort != "anonymous" && said != "" && n < memory:
			return "refused: " + said, nil // by the kernel's own limits of a user
		case n < memory && !strings.Contains(said, "only the child"):
			return "", untriedf("it took %q, and could have had %d bytes: %s", said, int64(memory), ending(e))
		}
		return "", fmt.Errorf("it took %s and ended with %s %s", said, e.Cause, e.Stderr)
	}
}

// leading is the number that what a behaviour said begins with; 0: none.
func leading(said string) int64 {
	number, _, _ := strings.Cut(said, ",")
	n, _ := strconv.ParseInt(number, 10, 64)
	return n
}

// spin looks at what the group was charged while four threads ask for all they can
// get.
func spin(ctx context.Context, r *run) (string, error) {
	w, err := r.start(ctx, func(s *sandbox.Spec) { s.Limits.CPUs = 0.5 }, "spin", 4)
	if err != nil {
		return "", err
	}
	defer w.Kill()
	socket, err := ready(ctx, w)
	if err != nil {
		return "", err
	}
	socket.Close()
	before, began, err := used(w)
	if err != nil {
		return "", untried{err}
	}
	select {
	case <-time.After(2 * time.Second): // twenty periods of the limit
	case <-ctx.Done():
	}
	after, ended, err := used(w)
	if err != nil {
		return "", untried{err}
	}
	share := float64(after-before) / float64(ended.Sub(began))
	if share > 0.6 {
		return "", fmt.Errorf("it had %.2f processors of 0.5", share)
	}
	return fmt.Sprintf("%.2f processors of 0.5", share), nil
}

// used is the processor time of a workload so far.
func used(w *sandbox.Workload) (time.Duration, time.Time, error) {
	b, err := os.ReadFile(filepath.Join(w.Group(), "cpu.stat"))
	if err != nil {
		return 0, time.Time{}, err
	}
	now := time.Now()
	for line := range strings.Lines(string(b)) {
		if v, found := strings.CutPrefix(strings.TrimSpace(line), "usage_usec "); found {
			n, err := strconv.ParseInt(v, 10, 64)
			return time.Duration(n) * time.Microsecond, now, err
		}
	}
	return 0, now, errors.New("cpu.stat does not say usage_usec")
}

// peers has two workloads look for each other, each told all that the host knows of
// the other.
func peers(ctx context.Context, r *run) (string, error) {
	names := []string{"one", "two"}
	workloads := make([]*sandbox.Workload, len(names))
	conns := make([]net.Conn, len(names))
	told := make([]attempt.Other, len(names))
	for i, name := range names {
		w, err := r.start(ctx, nil, "peer", name, "/in/base/model.safetensors")
		if err != nil {
			return "", err
		}
		defer w.Kill()
		workloads[i] = w
		socket, err := ready(ctx, w)
		if err != nil {
			return "", err
		}
		defer socket.Close()
		if conns[i], err = new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", socket.Fd())); err != nil {
			return "", untried{err}
		}
		defer conns[i].Close()
		defer context.AfterFunc(ctx, func() { conns[i].SetDeadline(time.Now()) })()
		fds, pids, err := held(w)
		for _, fd := range fds {
			unix.Close(fd)
		}
		if err != nil {
			return "", untried{err}
		}
		told[i] = attempt.Other{Name: name, Run: w.Run(), Pids: pids}
	}
	var asking sync.WaitGroup
	answers := make([]string, len(names))
	errs := make([]error, len(names))
	for i := range names {
		asking.Go(func() { answers[i], errs[i] = ask(conns[i], told[1-i]) })
	}
	asking.Wait() // before either connection is closed, which would end its workload
	for _, err := range errs {
		if _, unknown := errors.AsType[untried](err); err != nil && !unknown {
			return "", err
		}
	}
	return answers[0], errors.Join(errs...)
}

// ask tells a peer of the other, and answers what it found.
func ask(conn net.Conn, other attempt.Other) (string, error) {
	if err := json.NewEncoder(conn).Encode(other); err != nil {
		return "", untried{err}
	}
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return "", untriedf("a peer did not answer: %w", err)
	}
	results := attempt.Results(line)
	if len(results) != 1 {
		return "", untriedf("a peer answered %q", line)
	}
	switch results[0].State {
	case attempt.GaveWay:
		return "", errors.New(results[0].Got)
	case attempt.Failed:
		return "", untriedf("%s", results[0].Got)
	}
	return results[0].Got, nil
}
