package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/sandbox"
	"golang.org/x/sys/unix"
)

// order is a Spec with what its building opened and made.
type order struct {
	spec  sandbox.Spec
	files []*os.File
	made  func() // takes away what was made, if the Spec is not started
}

// close closes what was opened; a started workload keeps its own.
func (o *order) close() {
	for _, f := range o.files {
		f.Close()
	}
}

// undo leaves nothing of a start that failed.
func (o *order) undo() {
	if o.made != nil {
		o.made()
	}
}

// keep notes a file that was opened for the order.
func (o *order) keep(f *os.File, err error) (*os.File, error) {
	if err == nil {
		o.files = append(o.files, f)
	}
	return f, err
}

// trainFit opens all that an activity of kind train.fit is given, and builds its
// command; policy.TrainFitInput says what that is. What is checked here is opened
// here, and what is opened is what the workload gets.
func (l *launcher) trainFit(activity string, in policy.TrainFitInput, diskTotal int64) (_ *order, err error) {
	o := new(order)
	defer func() {
		if err != nil {
			o.close()
			o.undo()
		}
	}()
	program, err := o.keep(l.binaries.open(runs[policy.TrainFit]))
	if errors.Is(err, errIntegrity) {
		return nil, refusal{ipc.Integrity, err}
	}
	if err != nil {
		return nil, refusal{ipc.StartFailed, err}
	}
	stage, err := o.keep(openTree(l.Store, in.Stage))
	if err != nil {
		return nil, refusal{ipc.Pull, fmt.Errorf("the stage is not in the store: %w", err)}
	}
	base, err := o.keep(openTree(l.Store, in.Base))
	if err != nil {
		return nil, refusal{ipc.Pull, fmt.Errorf("the base is not in the store: %w", err)}
	}
	dir := filepath.Join(l.Run, activity)
	o.spec = sandbox.Spec{
		ID:      activity,
		Program: program,
		Args: []string{"train", "fit", "/in/stage/stage.json",
			"--run", activity, "--spool", "/spool",
			"--data", dir + "/data", "--builds", dir + "/builds", "--runs", dir + "/runs",
			"--threads", strconv.Itoa(in.CPUs), "--json"},
		Env: []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "TMPDIR=" + dir, "LANG=C.UTF-8"},
		Mounts: []sandbox.Mount{
			{Source: stage, Target: "/in/stage"},
			{Source: base, Target: "/in/base"},
		},
		Limits: l.limits(in, diskTotal),
		Umask:  0o007, // the spool's files are the agent's group's to read
	}
	if len(in.GPUs) > 0 {
		if err := o.accelerators(in.GPUs); err != nil {
			return nil, err
		}
	}
	// The last, since it is what keeps the activity from being started again.
	spool, err := o.keep(makeSpool(l.Spool, activity, l.Work, l.Agent))
	if err != nil {
		return nil, refusal{ipc.StartFailed, err}
	}
	o.made = func() { dropSpool(l.Spool, activity) }
	o.spec.Mounts = append(o.spec.Mounts, sandbox.Mount{Source: spool, Target: "/spool", Write: true})
	return o, nil
}

// limits are what the workload was admitted with, as far as this host's
// controllers set them.
func (l *launcher) limits(in policy.TrainFitInput, diskTotal int64) sandbox.Limits {
	limits := sandbox.Limits{Disk: in.Disk, Free: diskTotal / 10}
	if slices.Contains(l.Controllers, "memory") {
		limits.Memory = in.Memory
	}
	if slices.Contains(l.Controllers, "cpu") {
		limits.CPUs = float64(in.CPUs)
	}
	if slices.Contains(l.Controllers, "pids") {
		limits.Pids = policy.TrainFitPids
	}
	return limits
}

// accelerators adds the admitted GPUs, and what their libraries read.
func (o *order) accelerators(indices []int) error {
	all, err := sandbox.Accelerators("/")
	if err != nil {
		return refusal{ipc.StartFailed, err}
	}
	grant, err := sandbox.Choose(all, indices)
	if err != nil {
		return refusal{ipc.Denied, err}
	}
	o.spec.Devices, o.spec.Groups, o.spec.Files, o.spec.WholeProc = grant.Devices, grant.Groups, grant.Files, true
	for _, path := range grant.Mounts {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return refusal{ipc.StartFailed, &os.PathError{Op: "open", Path: path, Err: err}}
		}
		f, _ := o.keep(os.NewFile(uintptr(fd), path), nil)
		o.spec.Mounts = append(o.spec.Mounts, sandbox.Mount{Source: f, Target: path})
	}
	return nil
}
