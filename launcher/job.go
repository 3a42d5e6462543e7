//go:build linux

package launcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/sandbox"
	"golang.org/x/sys/unix"
)

// runs names, for each kind that this launcher runs, the binary that runs it.
var runs = map[string]string{policy.TrainFit: "train"}

// second is a second of maxSec. Tests make it shorter.
var second = time.Second

// job is one activity, from its admission to the end of its workload.
type job struct {
	// Immutable.
	activity string
	ask      policy.Ask
	deadline time.Time     // on the monotonic clock
	life     time.Duration // from its start on
	open     func() (*order, error)

	stop chan activity.Reason // has room for the one reason to stop it

	// The loop's.
	policy  [32]byte // the sum of the policy that admits it
	started bool
	ending  bool     // it was asked to end
	pidfd   *os.File // a descriptor of our own, or nil when it was over at once
}

// event is what a job tells the loop: that it was not started (err), was started,
// or has ended. The first and the last are its last.
type event struct {
	job     *job
	err     error
	started bool
	group   string // the name of its control group
	pidfd   *os.File
	ended   *ipc.Ended
	exit    sandbox.Exit
	left    int64 // bytes in its spool; -1: nobody waited for them to be counted
}

// refusal is an error with the code that the agent reports it by.
type refusal struct {
	code activity.Code
	err  error
}

func (r refusal) Error() string { return r.err.Error() }
func (r refusal) Unwrap() error { return r.err }

func codeOf(err error) activity.Code {
	if r, ok := errors.AsType[refusal](err); ok {
		return r.code
	}
	if d, ok := errors.AsType[policy.Denied](err); ok {
		return activity.Code(d.Code())
	}
	return activity.StartFailed
}

// judge decides whether an activity may start, by itself: the agent and the cloud
// have each judged the same envelope, and neither is believed.
func (l *launcher) judge(asked *activity.Envelope) (*job, error) {
	if _, ok := runs[asked.Kind]; !ok {
		return nil, refusal{activity.Unsupported, fmt.Errorf("this launcher does not run %q", asked.Kind)}
	}
	deadline, err := utc("deadline", asked.Deadline)
	if err != nil {
		return nil, refusal{activity.Schema, err}
	}
	if _, err := utc("issued", asked.Issued); err != nil {
		return nil, refusal{activity.Schema, err}
	}
	input, err := policy.ParseTrainFit(asked.Input)
	if err != nil {
		return nil, refusal{activity.Schema, fmt.Errorf("input: %w", err)}
	}
	// The one reading of the wall clock: what is left is counted monotonically.
	left := time.Until(deadline)
	if left <= 0 {
		return nil, refusal{activity.TooLate, fmt.Errorf("its deadline %s has passed", asked.Deadline)}
	}
	if wait := l.starts.take(); wait > 0 {
		return nil, refusal{activity.Capacity, fmt.Errorf("more starts than %d and then one every %v; the next may come in %v", l.Starts.Burst, l.Starts.Every, wait.Round(time.Millisecond))}
	}
	if l.session.host == nil {
		return nil, refusal{activity.StartFailed, l.session.unable}
	}
	if err := l.group.verify(); err != nil {
		return nil, refusal{activity.StartFailed, err}
	}
	p, sum, err := policy.Load(l.Policy)
	if err != nil {
		return nil, refusal{activity.Denied, err}
	}
	ask, held := input.Ask(asked.Activity, asked.Org), l.held()
	if err := p.Admit(ask, held); err != nil {
		return nil, err
	}
	if len(l.jobs) >= ceiling {
		return nil, refusal{activity.Capacity, fmt.Errorf("%d workloads are running, and more there are never", len(l.jobs))}
	}
	// Of the file system that the workload fills. Where the store's is another, that
	// one is the agent's to keep.
	free, err := policy.HostFree(l.Run)
	if err != nil {
		return nil, refusal{activity.StartFailed, err}
	}
	if err := l.room(p, ask, held, free); err != nil {
		return nil, err
	}
	return &job{
		activity: asked.Activity,
		ask:      ask,
		deadline: time.Now().Add(left),
		life:     time.Duration(input.MaxSec) * second, // within the policy's: Admit
		open:     func() (*order, error) { return l.trainFit(asked.Activity, input, free.DiskTotal) },
		stop:     make(chan activity.Reason, 1),
		policy:   sum,
	}, nil
}

// utc reads a time of the envelope.
func utc(field, s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil || !strings.HasSuffix(s, "Z") {
		return time.Time{}, fmt.Errorf("start.%s: %.40q is no time in UTC, as 2026-10-22T17:24:05Z is", field, s)
	}
	return t, nil
}

// end asks for the job's end, and reports whether that was the first time: the
// first reason is the one that counts.
func (j *job) end(reason activity.Reason) bool {
	if j.ending {
		return false
	}
	j.ending = true
	j.stop <- reason
	return true
}

// live is the job's life, from its sandbox to the end of its last process.
func (l *launcher) live(j *job, s *session) {
	w, err := j.start(s)
	if err != nil {
		l.events <- event{job: j, err: err}
		return
	}
	timer := time.NewTimer(j.life)
	defer timer.Stop()
	l.events <- event{job: j, started: true, group: filepath.Base(w.Group()), pidfd: duplicate(w.PidFD())}
	// What the next start needs, while this one works. A start that finds none makes
	// its own, and says what is wrong.
	s.tasks.Go(func() {
		s.host.Park(s.ctx)
		makeSpare(l.Spool)
	})
	var reason activity.Reason
	select {
	case <-w.Done():
	case <-s.ctx.Done():
		w.Kill()
	case reason = <-j.stop:
		w.Stop(s.ctx)
	case <-timer.C:
		reason = activity.Max
		w.Stop(s.ctx)
	}
	if s.ctx.Err() != nil {
		w.Kill()
	}
	<-w.Done()
	exit := w.Exit()
	left := l.measure(s.ctx, j.activity)
	if s.ctx.Err() != nil {
		left = -1
	}
	l.events <- event{job: j, ended: outcome(j.activity, reason, exit), exit: exit, left: left}
}

// duplicate is a descriptor of our own for a file that is not ours to keep open, or
// nil if it is closed already.
func duplicate(f *os.File) *os.File {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	copied := -1
	raw.Control(func(fd uintptr) {
		if n, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			copied = n
		}
	})
	if copied < 0 {
		return nil
	}
	return os.NewFile(uintptr(copied), f.Name())
}

// start builds the sandbox, before the job's deadline.
func (j *job) start(s *session) (*sandbox.Workload, error) {
	ctx, cancel := context.WithTimeout(s.ctx, min(time.Until(j.deadline), startLimit))
	defer cancel()
	order, err := j.open()
	if err != nil {
		return nil, err
	}
	defer order.close()
	w, err := s.host.Start(ctx, order.spec)
	if err != nil {
		order.undo()
		if s.ctx.Err() == nil && !time.Now().Before(j.deadline) {
			return nil, refusal{activity.TooLate, fmt.Errorf("it was not ready by its deadline: %w", err)}
		}
		return nil, refusal{activity.StartFailed, err}
	}
	return w, nil
}

// outcome says how an activity ended. Reason is why it was asked to, if it was.
func outcome(id string, reason activity.Reason, exit sandbox.Exit) *ipc.Ended {
	ended := &ipc.Ended{
		Activity:  id,
		State:     activity.Failed,
		Exit:      exit.Code,
		Signal:    int(exit.Signal),
		Truncated: exit.Truncated,
	}
	switch {
	case exit.Cause == sandbox.OOM:
		ended.Code, ended.Message = activity.Capacity, "out of memory: it needed more than it was admitted with"
	case exit.Cause == sandbox.Disk:
		ended.Code, ended.Message = activity.Capacity, "out of disk: "+exit.Reason
	case reason != "" && exit.Cause == sandbox.Stopped: // else it was over before
		ended.State, ended.Reason = activity.Stopped, reason
	case exit.Cause == sandbox.Exited && exit.Signal == 0 && policy.TrainFitDone(exit.Code):
		ended.State, ended.Reason = activity.Stopped, activity.Done
	case exit.Signal != 0:
		ended.Code, ended.Message = activity.Crash, fmt.Sprintf("ended by signal %d, %v", int(exit.Signal), exit.Signal)
	default:
		ended.Code, ended.Message = activity.Crash, fmt.Sprintf("exited with status %d", exit.Code)
	}
	if ended.Code == activity.Crash {
		if last := lastOutput(exit); last != "" {
			ended.Message += "; its last output: " + last
		}
	}
	ended.Message = clip(ended.Message)
	return ended
}

// lastOutput is the last of what is kept of a workload's error output, or else of
// its output.
func lastOutput(exit sandbox.Exit) string {
	const most = 1 << 10
	for _, stream := range [][]byte{exit.Stderr, exit.Stdout} {
		stream = bytes.TrimSpace(stream)
		if len(stream) > 0 {
			return string(stream[max(0, len(stream)-most):])
		}
	}
	return ""
}

// clip makes a message fit a packet, with others beside it, whatever is quoted in
// it: JSON may write a byte as six.
func clip(s string) string {
	const most = 2 << 10
	return strings.ToValidUTF8(s[:min(len(s), most)], "\ufffd")
}
