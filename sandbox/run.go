//go:build linux

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// runDir is the run directory of a workload: its user's alone, made with the stage
// under a name that no activity can have, and given the activity's once there is one.
type runDir struct {
	in   *os.File // Config.Run
	name string
	dir  *os.File
}

// newRun makes a run directory for the workload of a group. Its first name has the
// process in it, for Probe works beside the launcher's host, in another control group
// and the same directory.
func (h *Host) newRun(g group) (*runDir, error) {
	r := &runDir{in: h.run, name: fmt.Sprintf(".%s-%d", filepath.Base(g.path), os.Getpid())}
	if err := unix.Mkdirat(int(r.in.Fd()), r.name, 0o700); err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: r.path(), Err: err}
	}
	dir, err := openDir(int(r.in.Fd()), r.name)
	if err != nil {
		return nil, errors.Join(err, rmdir(int(r.in.Fd()), r.name))
	}
	r.dir = dir
	// The mode again, for the umask is the caller's.
	if err := errors.Join(unix.Fchmod(int(dir.Fd()), 0o700), unix.Fchown(int(dir.Fd()), int(h.cfg.User), int(h.cfg.User))); err != nil {
		return nil, errors.Join(&os.PathError{Op: "give away", Path: r.path(), Err: err}, r.remove())
	}
	return r, nil
}

func (r *runDir) path() string { return filepath.Join(r.in.Name(), r.name) }

// rename gives the directory an activity's name, which must be free: what an earlier
// workload left is Sweep's to remove. Only root makes names there and only one rename
// is under way, so nothing can come between the look and the rename.
func (r *runDir) rename(id string) error {
	var st unix.Stat_t
	in := int(r.in.Fd())
	switch err := unix.Fstatat(in, id, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err == nil:
		return &os.PathError{Op: "make the run directory", Path: filepath.Join(r.in.Name(), id), Err: fs.ErrExist}
	case err != unix.ENOENT:
		return &os.PathError{Op: "stat", Path: filepath.Join(r.in.Name(), id), Err: err}
	}
	if err := unix.Renameat(in, r.name, in, id); err != nil {
		return &os.PathError{Op: "rename", Path: r.path(), Err: err}
	}
	r.name = id
	return nil
}

// remove removes the directory with all in it.
func (r *runDir) remove() error {
	r.dir.Close()
	return removeTree(context.Background(), int(r.in.Fd()), r.name)
}
