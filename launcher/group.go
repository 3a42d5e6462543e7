//go:build linux

package launcher

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// workName is the control group that workloads are made in, a child of the
// agent's.
const workName = "work"

// group is the agent's control group, which systemd delegates to hanzo-link at
// each start of its unit, as the launcher leaves it:
//
//	hanzo-link.service/       root's; controllers enabled, no process of its own
//	    agent/                the agent's; it moved there
//	    work/                 root's; the same controllers enabled
//	        work-1/           root's; a workload
//
// What the service manager gave the agent has to be taken back, or the agent
// could write "-memory" to cgroup.subtree_control and every workload would lose
// its limit. Changing the owner is not enough: a descriptor that the agent opened
// before stays good for writing. work is what holds against that one, since the
// kernel disables no controller in a group that a child has enabled for its own
// children (EBUSY), and only root can remove work or change it.
//
// The owner survives a daemon-reload, and is hanzo-link's again after a restart of
// the agent; so all this is done on every connection, and looked at again before
// each start.
type group struct {
	path        string
	controllers []string
}

// take takes the group back. Its error says what is not as it must be, in words
// for the machine's owner; nothing may be started then.
func (g group) take() error {
	dir, err := openGroup(unix.AT_FDCWD, g.path)
	if err != nil {
		return err
	}
	defer dir.Close()
	fd := int(dir.Fd())
	// The directory first, so that no file is added behind the walk.
	if err := own(fd, ""); err != nil {
		return err
	}
	if err := ownFiles(dir); err != nil {
		return err
	}
	// With a process in the group itself the kernel enables no controller below it.
	if err := g.empty(fd); err != nil {
		return err
	}
	if err := g.enable(fd, g.path); err != nil {
		return err
	}
	if err := unix.Mkdirat(fd, workName, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return &os.PathError{Op: "mkdir", Path: g.work(), Err: err}
	}
	work, err := openGroup(fd, workName)
	if err != nil {
		return err
	}
	defer work.Close()
	// One that the agent made before its group was taken from it is the agent's.
	if err := owned(int(work.Fd()), "", g.work()); err != nil {
		return err
	}
	if err := g.enable(int(work.Fd()), g.work()); err != nil {
		return err
	}
	return g.verify()
}

// delegated are the directory itself and the files that a service manager gives to a
// unit's user with it (/sys/kernel/cgroup/delegate). take takes every file; before a
// start it is these that are looked at again.
var delegated = []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "memory.oom.group", "memory.reclaim"}

// verify reports what of take does not hold any more. Of work, which was never
// anybody's but root's, that is the controllers: where a child has them enabled the
// kernel lets nobody disable them above.
func (g group) verify() error {
	dir, err := openGroup(unix.AT_FDCWD, g.path)
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, name := range delegated {
		if err := owned(int(dir.Fd()), name, filepath.Join(g.path, name)); err != nil {
			return err
		}
	}
	enabled, err := readAt(int(dir.Fd()), workName+"/cgroup.subtree_control")
	if err != nil {
		return err
	}
	if missing := g.without(enabled); len(missing) > 0 {
		return fmt.Errorf("%s: the controllers %s are not enabled in cgroup.subtree_control: restart hanzo-link.service", g.work(), strings.Join(missing, ", "))
	}
	return nil
}

// kill ends everything in work, if there is one.
func (g group) kill() error {
	err := os.WriteFile(filepath.Join(g.work(), "cgroup.kill"), []byte("1"), 0)
	// The agent's unit may be ending just now, and its groups with it (ENODEV).
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("killing what an earlier launcher left: %w", err)
	}
	return nil
}

// work is the directory of the group that workloads are made in.
func (g group) work() string { return filepath.Join(g.path, workName) }

// enable enables the controllers for a group's children.
func (g group) enable(dir int, path string) error {
	available, err := readAt(dir, "cgroup.controllers")
	if err != nil {
		return err
	}
	if missing := g.without(available); len(missing) > 0 {
		return fmt.Errorf("%s: the kernel offers no controller %s here: boot with control groups v2 alone (systemd.unified_cgroup_hierarchy=1), and let the unit say Delegate=yes", path, strings.Join(missing, ", "))
	}
	if len(g.controllers) == 0 {
		return nil
	}
	f, err := openAt(dir, "cgroup.subtree_control", unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString("+" + strings.Join(g.controllers, " +")); err != nil {
		return fmt.Errorf("%s: enabling %s for its children: %w", path, strings.Join(g.controllers, ", "), err)
	}
	return nil
}

// without returns the controllers that a list from the kernel lacks.
func (g group) without(list []byte) (missing []string) {
	have := strings.Fields(string(list))
	for _, c := range g.controllers {
		if !slices.Contains(have, c) {
			missing = append(missing, c)
		}
	}
	return missing
}

// empty refuses processes in the group itself.
func (g group) empty(dir int) error {
	procs, err := readAt(dir, "cgroup.procs")
	if err != nil {
		return err
	}
	if n := bytes.Count(procs, []byte("\n")); n > 0 {
		return fmt.Errorf("%s: %d processes stand in the agent's group itself: the agent must move to its child agent before it connects (DelegateSubgroup=agent does so from systemd 254 on)", g.path, n)
	}
	return nil
}

// openGroup opens a control group's directory, and nothing else.
func openGroup(at int, path string) (*os.File, error) {
	fd, err := unix.Openat2(at, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		unix.Close(fd)
		return nil, fmt.Errorf("%s is not a directory of control groups v2", path)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// ownFiles gives every file of a control group to root, children aside.
func ownFiles(dir *os.File) error {
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		if err := own(int(dir.Fd()), e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// own gives the directory, or a file in it, to root, and takes writing from all
// others. A file can vanish, with its controller.
func own(dir int, name string) error {
	if err := unix.Fchownat(dir, name, 0, 0, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil && !(name != "" && errors.Is(err, unix.ENOENT)) {
		return fmt.Errorf("taking the control group back, chown %q: %w", name, err)
	}
	return nil
}

// owned reports whether the directory, or a file in it, is root's and writable by
// nobody else.
func owned(dir int, name, path string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if name != "" && errors.Is(err, unix.ENOENT) {
			return nil
		}
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not root's alone (user %d, mode %04o): restart hanzo-link.service", path, st.Uid, st.Mode&0o7777)
	}
	return nil
}

// openAt opens a file of a control group.
func openAt(dir int, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// readAt reads a file of a control group.
func readAt(dir int, name string) ([]byte, error) {
	f, err := openAt(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
