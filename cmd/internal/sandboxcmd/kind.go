//go:build linux

package sandboxcmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/sandbox"
	"github.com/hanzoai/link/sandbox/attempt"
)

// A kind is a sandbox as the launcher builds it for one kind of work.
type kind struct {
	name  string
	grant sandbox.Grant
}

// kinds are the sandboxes to try: each kind's, and again with a GPU in it where the
// host has one. none says why there is no such.
func kinds() (all []kind, none string) {
	all = []kind{{name: policy.TrainFit}}
	gpus, err := sandbox.Accelerators("/")
	if err != nil {
		return all, "not tried: " + err.Error()
	}
	if len(gpus) == 0 {
		return all, "not tried, for this host has none"
	}
	grant, err := sandbox.Choose(gpus, []int{gpus[0].Index})
	if err != nil {
		return all, "not tried: " + err.Error()
	}
	return append(all, kind{name: policy.TrainFit + " with GPU " + gpus[0].Name, grant: grant}), ""
}

// Limits of the workloads of a check: small, so that going beyond them costs the
// host little, and large enough for the program that tries.
const (
	memory = 128 << 20
	disk   = 64 << 20
	pids   = 256
	cpus   = 1
	shm    = memory / 4
)

// built is a Spec, the profile that its workload is to find, and what was opened
// for it.
type built struct {
	sandbox.Spec
	profile attempt.Profile
	files   []*os.File
}

func (b *built) close() {
	for _, f := range b.files {
		f.Close()
	}
}

func (b *built) open(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	b.files = append(b.files, f)
	return f, nil
}

// build is the Spec that package launcher's trainFit makes, with the program that
// tries to get out in place of train, and a stage, a base and a spool of ours. The
// caller closes it.
func (g *ground) build(k kind, id string) (b *built, err error) {
	b = new(built)
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	b.files = append(b.files, program)
	dir := filepath.Join(g.dir, "run", id)
	b.Spec = sandbox.Spec{
		ID:      id,
		Program: program,
		Args:    []string{"hanzo"},
		Env:     []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "TMPDIR=" + dir, "LANG=C.UTF-8"},
		Limits:  sandbox.Limits{Disk: disk, Shm: shm},
		Umask:   0o007,
		Devices: k.grant.Devices, Groups: k.grant.Groups, Files: k.grant.Files,
		WholeProc: len(k.grant.Devices) > 0,
	}
	if g.limited("memory") {
		b.Limits.Memory = memory
	}
	if g.limited("cpu") {
		b.Limits.CPUs = cpus
	}
	if g.limited("pids") {
		b.Limits.Pids = pids
	}
	b.profile = attempt.Profile{
		WholeProc: b.WholeProc, Run: dir, Env: b.Env, Shm: shm,
		Port: g.port(), Abstract: g.abstractName(), Hidden: []string{g.secret},
	}
	for _, d := range k.grant.Devices {
		b.profile.Devices = append(b.profile.Devices, d.Path)
	}
	for _, f := range k.grant.Files {
		b.profile.Read = append(b.profile.Read, f.Target)
	}
	for _, in := range []string{"stage", "base"} {
		tree := filepath.Join(g.dir, "in", in)
		if err := fillTree(tree); err != nil {
			return nil, err
		}
		if err := b.mount(tree, "/in/"+in, false); err != nil {
			return nil, err
		}
	}
	for _, path := range k.grant.Mounts {
		if err := b.mount(path, path, false); err != nil {
			return nil, err
		}
	}
	spool := filepath.Join(g.dir, "spool-"+id)
	if err := errors.Join(os.Mkdir(spool, 0o770), os.Chown(spool, int(g.user), int(g.user))); err != nil {
		return nil, err
	}
	return b, b.mount(spool, "/spool", true)
}

func (b *built) mount(source, target string, write bool) error {
	f, err := b.open(source)
	if err != nil {
		return err
	}
	b.Mounts = append(b.Mounts, sandbox.Mount{Source: f, Target: target, Write: write})
	if write {
		b.profile.Write = append(b.profile.Write, target)
	} else {
		b.profile.Read = append(b.profile.Read, target)
	}
	return nil
}

// fillTree makes a folder that stands for a tree of the store: files that anyone
// may read, so that only the mount keeps them from being written.
func fillTree(dir string) error {
	if err := os.Mkdir(dir, 0o777); errors.Is(err, os.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return err
	}
	for _, name := range []string{"stage.json", "model.safetensors"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte("{}\n"), 0o666), os.Chmod(path, 0o666)); err != nil {
			return err
		}
	}
	return nil
}

// does makes the workload do one behaviour of package attempt.
func (b *built) does(words ...any) *built {
	b.Args = []string{"hanzo", attempt.Argument}
	for _, w := range words {
		b.Args = append(b.Args, fmt.Sprint(w))
	}
	b.Socket = attempt.Ready
	return b
}
