//go:build linux

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/sandbox/stage"
)

// process is a stage: pid 1 of a sandbox, parked or with a workload. Its group, its run
// directory, its streams and its control socket are made with it.
type process struct {
	cmd     *exec.Cmd
	group   group
	control *os.File // our end; the stage ends when it closes
	pidfd   *os.File
	out     [2]*os.File // reading ends of its stdout and stderr
	run     *runDir
}

// launch makes a group, a run directory and a stage born in the group, and waits until
// it is parked. h.mu is held.
func (h *Host) launch(ctx context.Context) (*process, error) {
	g, err := h.newGroup()
	if err != nil {
		return nil, err
	}
	run, err := h.newRun(g)
	if err != nil {
		return nil, errors.Join(err, g.remove())
	}
	p, err := h.spawn(g)
	if err != nil {
		return nil, errors.Join(err, g.remove(), run.remove())
	}
	p.run = run
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the stage was not ready within %v: is %s the hanzo-stage of this version?", startTimeout, h.stage.Name()))
	defer cancel()
	if _, err := p.await(ctx, func(r stage.Report) bool { return r.Parked }); err != nil {
		return nil, errors.Join(err, p.discard())
	}
	return p, nil
}

func (h *Host) spawn(g group) (_ *process, err error) {
	p := &process{group: g}
	var theirs []*os.File
	defer func() {
		closeAll(theirs)
		if err != nil {
			p.close()
		}
	}()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	p.control = os.NewFile(uintptr(pair[0]), "control")
	theirs = append(theirs, os.NewFile(uintptr(pair[1]), "control"))
	// The stage reads its end without Go's poller.
	if err := unix.SetNonblock(pair[1], false); err != nil {
		return nil, err
	}
	for i := range p.out {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		p.out[i] = r
		theirs = append(theirs, w)
	}
	dir, err := os.Open(g.path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	pidfd := -1
	p.cmd = &exec.Cmd{
		Path: "/proc/self/fd/" + strconv.Itoa(int(h.stage.Fd())),
		Args: []string{"hanzo-stage", strconv.Itoa(int(h.cfg.User))},
		// It has nothing to run at once and little to collect; fewer threads mean
		// fewer to stop when it changes its user on all of them.
		Env:        []string{"GOMAXPROCS=1", "GOGC=off"},
		Dir:        "/",
		Stdout:     theirs[1],
		Stderr:     theirs[2],
		ExtraFiles: theirs[:1],
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC |
				unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
			UseCgroupFD: true,
			CgroupFD:    int(dir.Fd()),
			PidFD:       &pidfd,
			Setsid:      true,
		},
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the stage: %w", err)
	}
	p.pidfd = os.NewFile(uintptr(pidfd), "pidfd")
	return p, nil
}

// send gives the stage its order.
func (p *process) send(o stage.Order, mounts []*os.File) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if len(b) > stage.MaxOrder {
		return fmt.Errorf("an order of %d bytes: arguments, environment and files are at most %d together", len(b), stage.MaxOrder)
	}
	fds := make([]int, len(mounts))
	for i, m := range mounts {
		fds[i] = int(m.Fd())
	}
	raw, err := p.control.SyscallConn()
	if err != nil {
		return err
	}
	rights := unix.UnixRights(fds...)
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendmsg(int(fd), b, rights, nil, unix.MSG_NOSIGNAL)
		return sendErr != unix.EAGAIN
	})
	if err = errors.Join(err, sendErr); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	return nil
}

// await reads reports until one is wanted. A stage that failed says why; one that
// is gone without a word was killed.
func (p *process) await(ctx context.Context, wanted func(stage.Report) bool) (stage.Report, error) {
	stop := context.AfterFunc(ctx, func() { p.control.SetReadDeadline(past) })
	defer stop()
	buf := make([]byte, 4096)
	for {
		n, err := p.control.Read(buf)
		switch {
		case ctx.Err() != nil:
			return stage.Report{}, context.Cause(ctx)
		case err != nil || n == 0:
			return stage.Report{}, errStageGone
		}
		var r stage.Report
		if err := json.Unmarshal(buf[:n], &r); err != nil {
			return stage.Report{}, fmt.Errorf("the stage's report: %w", err)
		}
		if r.Failed != "" {
			return r, fmt.Errorf("stage: %s", r.Failed)
		}
		if wanted(r) {
			if !stop() && ctx.Err() != nil {
				return r, context.Cause(ctx) // too late: no later report could be read
			}
			return r, nil
		}
	}
}

var errStageGone = errors.New("the stage was killed")

// alive reports whether the stage has not ended.
func (p *process) alive() bool {
	fds := []unix.PollFd{{Fd: int32(p.pidfd.Fd()), Events: unix.POLLIN}}
	n, _ := unix.Poll(fds, 0)
	return n == 0
}

// discard ends a stage that has no workload yet.
func (p *process) discard() error {
	err := p.group.kill()
	p.cmd.Wait()
	p.close()
	return errors.Join(err, p.group.remove(), p.run.remove())
}

func (p *process) close() {
	for _, f := range []*os.File{p.control, p.pidfd, p.out[0], p.out[1]} {
		if f != nil {
			f.Close()
		}
	}
}
