//go:build linux

package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/sandbox"
	"golang.org/x/sys/unix"
)

// order is a Spec with what its building opened and made.
type order struct {
	spec  sandbox.Spec
	files []*os.File
	made  string // the directory that was made for it
}

// close closes what was opened; a started workload keeps its own.
func (o *order) close() {
	for _, f := range o.files {
		f.Close()
	}
}

// undo leaves nothing of a start that failed.
func (o *order) undo() {
	if o.made != "" {
		unix.Rmdir(o.made)
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
func (l *launcher) trainFit(id string, in policy.TrainFitInput, diskTotal int64) (_ *order, err error) {
	o := new(order)
	defer func() {
		if err != nil {
			o.close()
			o.undo()
		}
	}()
	program, err := o.keep(l.binaries.open(runs[policy.TrainFit]))
	if errors.Is(err, errIntegrity) {
		return nil, refusal{activity.Integrity, err}
	}
	if err != nil {
		return nil, refusal{activity.StartFailed, err}
	}
	stage, err := o.keep(openTree(l.Store, in.Stage))
	if err != nil {
		return nil, refusal{activity.Pull, fmt.Errorf("the stage is not in the store: %w", err)}
	}
	base, err := o.keep(openTree(l.Store, in.Base))
	if err != nil {
		return nil, refusal{activity.Pull, fmt.Errorf("the base is not in the store: %w", err)}
	}
	var grant sandbox.Grant
	if len(in.GPUs) > 0 {
		if grant, err = choose(in.GPUs); err != nil {
			return nil, err
		}
	}
	var libraries []*os.File
	for _, path := range grant.Mounts {
		f, err := o.keep(os.OpenFile(path, unix.O_PATH, 0))
		if err != nil {
			return nil, refusal{activity.StartFailed, err}
		}
		libraries = append(libraries, f)
	}
	// The last, since it is what keeps the activity from being started again.
	spool, err := o.keep(makeSpool(l.Spool, id, l.Work, l.Agent))
	if err != nil {
		return nil, refusal{activity.StartFailed, err}
	}
	o.made = spool.Name()
	o.spec = TrainFit{
		Activity: id, Dir: filepath.Join(l.Run, id), CPUs: in.CPUs,
		Program: program, Stage: stage, Base: base, Spool: spool,
		Grant: grant, Libraries: libraries, Limits: l.limits(in, diskTotal),
	}.Spec()
	return o, nil
}

// TrainFit is a workload of kind train.fit with all that it is given, open.
type TrainFit struct {
	Activity  string
	Dir       string // its run directory
	CPUs      int    // threads that compute
	Program   *os.File
	Stage     *os.File // a tree
	Base      *os.File // a tree
	Spool     *os.File // a directory of the workload's user
	Grant     sandbox.Grant
	Libraries []*os.File // what Grant.Mounts names, in its order
	Limits    sandbox.Limits
}

// Spec is the sandbox that the launcher starts; package policy says in words what is
// in it. hanzo sandbox check tries to get out of this one and no other.
func (t TrainFit) Spec() sandbox.Spec {
	spec := sandbox.Spec{
		ID:      t.Activity,
		Program: t.Program,
		Args: []string{"train", "fit", "/in/stage/stage.json",
			"--run", t.Activity, "--spool", "/spool",
			"--data", t.Dir + "/data", "--builds", t.Dir + "/builds", "--runs", t.Dir + "/runs",
			"--threads", strconv.Itoa(t.CPUs), "--json"},
		Env: []string{"PATH=/usr/bin:/bin", "HOME=" + t.Dir, "TMPDIR=" + t.Dir, "LANG=C.UTF-8"},
		Mounts: []sandbox.Mount{
			{Source: t.Stage, Target: "/in/stage"},
			{Source: t.Base, Target: "/in/base"},
			{Source: t.Spool, Target: "/spool", Write: true},
		},
		Limits: t.Limits,
		Umask:  0o007, // the spool's files are the agent's group's to read

		Devices: t.Grant.Devices, Groups: t.Grant.Groups, Files: t.Grant.Files,
		WholeProc: len(t.Grant.Devices) > 0,
	}
	for i, f := range t.Libraries {
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Source: f, Target: t.Grant.Mounts[i]})
	}
	return spec
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

// choose is what a workload needs to use these GPUs and no others.
func choose(indices []int) (sandbox.Grant, error) {
	all, err := sandbox.Accelerators("/")
	if err != nil {
		return sandbox.Grant{}, refusal{activity.StartFailed, err}
	}
	grant, err := sandbox.Choose(all, indices)
	if err != nil {
		return sandbox.Grant{}, refusal{activity.Denied, err}
	}
	return grant, nil
}
