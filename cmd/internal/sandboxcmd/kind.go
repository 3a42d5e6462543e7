//go:build linux

package sandboxcmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/launcher"
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
	disk   = 32 << 20
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

// build is the Spec of package launcher, of a stage, a base and a spool of ours, and
// with the program that tries to get out in place of train. The caller closes it.
func (g *ground) build(k kind, id string) (*built, error) {
	b := new(built)
	if err := g.fill(b, k, id); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (g *ground) fill(b *built, k kind, id string) error {
	spool := "spool-" + id
	err := errors.Join(g.fillTree("in/stage"), g.fillTree("in/base"), g.root.Mkdir(spool, 0o700))
	if err != nil {
		return err
	}
	if err := errors.Join(g.root.Chown(spool, int(g.user), int(g.user)), g.root.Chmod(spool, 0o770)); err != nil {
		return err
	}
	fit := launcher.TrainFit{
		Activity: id, Dir: filepath.Join(g.dir, "run", id), CPUs: cpus,
		Grant: k.grant, Limits: sandbox.Limits{Disk: disk, Shm: shm},
	}
	for _, in := range []struct {
		path string
		to   **os.File
	}{{"in/stage", &fit.Stage}, {"in/base", &fit.Base}, {spool, &fit.Spool}} {
		if *in.to, err = b.open(filepath.Join(g.dir, in.path)); err != nil {
			return err
		}
	}
	for _, path := range k.grant.Mounts {
		f, err := b.open(path)
		if err != nil {
			return err
		}
		fit.Libraries = append(fit.Libraries, f)
	}
	if fit.Program, err = os.Open("/proc/self/exe"); err != nil {
		return err
	}
	b.files = append(b.files, fit.Program)
	if g.limited("memory") {
		fit.Limits.Memory = memory
	}
	if g.limited("cpu") {
		fit.Limits.CPUs = cpus
	}
	if g.limited("pids") {
		fit.Limits.Pids = pids
	}
	b.Spec = fit.Spec()
	b.Args = []string{"hanzo"}
	// What package policy says of the kind, and not what the Spec says of itself.
	b.profile = attempt.Profile{
		WholeProc: len(k.grant.Devices) > 0, Run: fit.Dir, Shm: shm,
		Env:  []string{"PATH=/usr/bin:/bin", "HOME=" + fit.Dir, "TMPDIR=" + fit.Dir, "LANG=C.UTF-8"},
		Read: append([]string{"/in/stage", "/in/base"}, k.grant.Mounts...), Write: []string{"/spool"},
		Port: g.port(), Abstract: g.abstractName(), Hidden: []string{g.secret},
	}
	for _, f := range k.grant.Files {
		b.profile.Read = append(b.profile.Read, f.Target)
	}
	for _, d := range k.grant.Devices {
		b.profile.Devices = append(b.profile.Devices, d.Path)
	}
	return nil
}

// fillTree makes a folder that stands for a tree of the store, unless it is there:
// files that anyone may read and write who can come to them, so that in the sandbox
// only the mount keeps them from being written.
func (g *ground) fillTree(dir string) error {
	if err := g.root.Mkdir(dir, 0o700); errors.Is(err, os.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, name := range []string{"stage.json", "model.safetensors"} {
		if err := g.write(filepath.Join(dir, name), 0o666); err != nil {
			return err
		}
	}
	return g.root.Chmod(dir, 0o777)
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
