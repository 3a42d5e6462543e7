//go:build linux

package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/sandbox/stage"
)

// Workload is one running Spec. Its methods may be called by several goroutines.
type Workload struct {
	*process
	host *Host
	spec Spec
	log  *slog.Logger

	counted []*os.File // directories whose contents are its disk use, besides the run directory

	done chan struct{} // closed when nothing of the workload is left
	exit Exit          // written before done is closed
	err  error         // what could not be taken away; written before done is closed

	mu     sync.Mutex
	cause  Cause // of the end, once something here caused it
	reason string
}

var past = time.Unix(1, 0) // a deadline that interrupts a read

// Done is closed when no process of the workload, no control group and no run
// directory of it is left.
func (w *Workload) Done() <-chan struct{} { return w.done }

// Exit says how it ended, once Done is closed.
func (w *Workload) Exit() Exit {
	<-w.done
	return w.exit
}

// Group is the directory of the workload's control group.
func (w *Workload) Group() string { return w.group.path }

// Run is the path of the run directory, the same inside and outside.
func (w *Workload) Run() string { return filepath.Join(w.host.cfg.Run, w.spec.ID) }

// PidFD refers to the sandbox's pid 1, which ends last. It is the Workload's and
// valid until Done is closed.
func (w *Workload) PidFD() *os.File { return w.pidfd }

// begin starts the goroutines of a running workload; one awaits the others, and its end.
func (w *Workload) begin() {
	w.done = make(chan struct{})
	keep := cmp.Or(w.spec.Limits.Output, 1<<20)
	var streams [2]capture
	var reading sync.WaitGroup
	for i := range streams {
		streams[i].keep = keep
		reading.Go(func() { streams[i].drain(w.out[i]) })
	}
	watched, stopWatching := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { w.watchDisk(watched) })
	go func() {
		defer close(w.done)
		w.exit = w.wait()
		stopWatching()
		watching.Wait()
		// Every process is dead and so the streams end, unless one was passed on,
		// through the workload's socket, to a process that lives.
		for _, f := range w.out {
			f.SetReadDeadline(time.Now().Add(time.Second))
		}
		reading.Wait()
		w.exit.Stdout, w.exit.Stderr = streams[0].kept, streams[1].kept
		w.exit.Truncated = streams[0].cut || streams[1].cut
		w.err = errors.Join(w.group.remove(), w.run.remove())
		closeAll(w.counted)
		w.close()
		if w.err != nil {
			w.log.Error("not all of a workload could be removed", "err", w.err)
		}
	}()
}

// wait returns when pid 1 is reaped. The kernel lets it be reaped only when every
// process of its pid namespace is gone, and no process can leave that namespace.
func (w *Workload) wait() Exit {
	report, err := w.await(context.Background(), func(r stage.Report) bool { return r.Ended })
	w.cmd.Wait()
	exit := Exit{Cause: Exited, Code: report.Code, Signal: unix.Signal(report.Signal)}
	if err != nil { // killed with everything else
		exit.Code, exit.Signal = -1, unix.SIGKILL
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.group.oomKilled():
		exit.Cause = OOM
	case w.cause != "":
		exit.Cause, exit.Reason = w.cause, w.reason
	}
	return exit
}

// end marks what ends the workload; the first to do so is the cause.
func (w *Workload) end(cause Cause, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause == "" {
		w.cause, w.reason = cause, reason
	}
}

// Stop sends SIGTERM to every process once, waits for [Spec.Grace], kills the group,
// and returns when nothing is left. It may be called again, and returns at once when
// the workload has ended. Only when ctx ends first, or when something could not be
// removed, is there an error; the kill follows even so.
func (w *Workload) Stop(ctx context.Context) error {
	w.end(Stopped, "")
	grace := w.spec.Grace
	if grace == 0 {
		grace = 10 * time.Second
	}
	kill := time.AfterFunc(grace, func() { w.kill() })
	defer kill.Stop()
	told := make(map[int]bool)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		w.terminate(told)
		select {
		case <-w.done:
			return w.err
		case <-again.C: // a process may have forked before it was told
		case <-ctx.Done():
			w.kill()
			return context.Cause(ctx)
		}
	}
}

// Kill ends every process at once and returns when nothing is left.
func (w *Workload) Kill() error {
	w.end(Stopped, "")
	w.kill()
	<-w.done
	return w.err
}

func (w *Workload) kill() {
	if err := w.group.kill(); err != nil {
		w.log.Error("cannot kill a control group", "group", w.group.path, "err", err)
	}
}

// terminate sends SIGTERM to each process of the group that was not told yet, except
// pid 1, which would only drop it.
func (w *Workload) terminate(told map[int]bool) {
	pids, err := w.group.pids()
	if err != nil {
		return // the group is gone, or will be killed
	}
	for _, pid := range pids {
		if told[pid] || pid == w.cmd.Process.Pid {
			continue
		}
		told[pid] = true
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		// Listed again after the descriptor is open, so it is this process that
		// is in the group and not another that was given its number since.
		if again, err := w.group.pids(); err == nil && slices.Contains(again, pid) {
			unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
		}
		unix.Close(fd)
	}
}

// Socket waits for the workload's socket and opens it without following links. It
// refuses what is not a socket of the workload's user with one name. The file is an
// O_PATH descriptor, to connect to through /proc/self/fd; should the workload bind
// the name anew, it refers to the old socket and connecting fails.
func (w *Workload) Socket(ctx context.Context) (*os.File, error) {
	if w.spec.Socket == "" {
		return nil, errors.New("sandbox: this workload has no socket")
	}
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		f, err := w.openSocket()
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, os.ErrClosed) {
			return f, err
		}
		select {
		case <-again.C:
		case <-w.done:
			return nil, errors.New("sandbox: the workload ended before it made its socket")
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (w *Workload) openSocket() (f *os.File, err error) {
	raw, err := w.run.dir.SyscallConn()
	if err != nil {
		return nil, err
	}
	// Meanwhile it is not closed, and its number not another file's.
	if raw.Control(func(dir uintptr) { f, err = socketIn(int(dir), w.spec.Socket) }) != nil {
		return nil, os.ErrClosed
	}
	return f, err
}

func socketIn(dir int, name string) (*os.File, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	var st, run unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &st), unix.Fstat(dir, &run)); err != nil {
		f.Close()
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || st.Uid != run.Uid || st.Nlink != 1 {
		f.Close()
		return nil, fmt.Errorf("sandbox: %s in the run directory is not a socket of the workload's own", name)
	}
	return f, nil
}

// capture keeps the first bytes of a stream and reads the rest away.
type capture struct {
	keep int64
	kept []byte
	cut  bool
}

func (c *capture) drain(r io.Reader) {
	c.kept, _ = io.ReadAll(io.LimitReader(r, c.keep))
	n, _ := io.Copy(io.Discard, r)
	c.cut = n > 0
}
