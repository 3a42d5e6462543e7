//go:build linux

package stage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The world a workload sees. Everything is a mount made from a descriptor or from
// these constants, never from a path that the workload or the agent could have
// prepared.

const (
	readOnly = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	noExec   = unix.MOUNT_ATTR_NOEXEC
)

var (
	// nodes are the devices every workload has; the device program allows these
	// and no others (package sandbox).
	nodes = []string{"null", "zero", "full", "random", "urandom"}

	// libraries are what a root has beside /usr: links into it where /usr is
	// merged, else directories of their own.
	libraries = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

	// configuration is what the dynamic loader reads, and the links that
	// distributions route libraries and commands such as awk through.
	configuration = []string{"etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d", "etc/alternatives"}

	// procReadOnly and procMasked are the parts of a whole /proc that say or
	// change things of the host.
	procReadOnly = []string{"sys", "irq", "bus", "fs"}
	procMasked   = []string{
		"sysrq-trigger", "kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug",
		"scsi", "acpi", "asound", "kallsyms", "kmsg", "kpagecount", "kpageflags", "kpagecgroup", "interrupts",
	}
)

// Shown is the part of the host's file system, read-only to every workload, that path
// is in; empty for what none sees.
func Shown(path string) string {
	for _, name := range slices.Concat([]string{"usr"}, libraries, configuration) {
		if strings.HasPrefix(path+"/", "/"+name+"/") {
			return name
		}
	}
	return ""
}

// prepare builds what every workload has, makes it the root, and leaves the host's
// file systems. Only what an order brings is missing afterwards.
func prepare(user int) error {
	// What is made here the workload shall pass and read, whatever the host's umask.
	unix.Umask(0o022)
	// The first to go when the host is short of memory: rather this than it. Where
	// this process holds CAP_SYS_RESOURCE the workload cannot take it back.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private: %w", err)
	}
	// The new root needs a directory to stand on; /proc is one that every host
	// has and that nothing below is read from.
	const root = "/proc"
	if err := unix.Mount("tmpfs", root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m,nr_inodes=4k"); err != nil {
		return fmt.Errorf("mount the root: %w", err)
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	for _, dir := range []string{"usr", "etc", "dev", "proc", "app"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := bind("/usr", "usr", readOnly); err != nil {
		return err
	}
	// What an administrator put there is not the system's runtime.
	if _, err := os.Stat("usr/local"); err == nil {
		if err := unix.Mount("tmpfs", "usr/local", "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=0,nr_inodes=1"); err != nil {
			return fmt.Errorf("hide /usr/local: %w", err)
		}
	}
	for _, name := range slices.Concat(libraries, configuration) {
		if err := mirror(name); err != nil {
			return err
		}
	}
	if err := devices(); err != nil {
		return err
	}
	if err := isolate(); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	// The old root now lies over the new one at the same place: take it away.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return accounts(user)
}

// mirror gives the new root, which is the working directory, what the host has at
// /name: a link as a link, a file or directory as a read-only bind, nothing as
// nothing.
func mirror(name string) error {
	info, err := os.Lstat("/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink("/" + name)
		if err != nil {
			return err
		}
		return os.Symlink(target, name)
	}
	if err := point(name, info.IsDir()); err != nil {
		return err
	}
	return bind("/"+name, name, readOnly)
}

func devices() error {
	if err := unix.Mount("tmpfs", "dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=64k"); err != nil {
		return fmt.Errorf("mount /dev: %w", err)
	}
	for _, name := range nodes {
		if err := point("dev/"+name, false); err != nil {
			return err
		}
		if err := bind("/dev/"+name, "dev/"+name, unix.MOUNT_ATTR_NOSUID|noExec); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, "dev/"+name); err != nil {
			return err
		}
	}
	return os.Mkdir("dev/shm", 0o755)
}

// isolate sets up the namespaces that need it: a loopback that is up, a name that
// says nothing, a keyring of our own.
func isolate() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	if err := unix.Sethostname([]byte("workload")); err != nil {
		return fmt.Errorf("hostname: %w", err)
	}
	// A kernel without keyrings has none to share.
	if _, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); err != nil && err != unix.ENOSYS {
		return fmt.Errorf("session keyring: %w", err)
	}
	return nil
}

// furnish adds what the order brings and closes the root to writing.
func furnish(o Order, fds []int) error {
	mounts := append([]Mount{
		{Target: o.Program},
		{Target: o.Run, Dir: true},
	}, o.Mounts...)
	if err := proc(o.WholeProc); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, fmt.Sprintf("mode=1777,size=%d", o.Shm)); err != nil {
		return fmt.Errorf("mount /dev/shm: %w", err)
	}
	for i, m := range mounts {
		if err := point(m.Target, m.Dir); err != nil {
			return err
		}
		if err := unix.MoveMount(fds[i], "", unix.AT_FDCWD, m.Target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
		unix.Close(fds[i])
	}
	for _, f := range o.Files {
		if err := overlay(f); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/dev", "/"} {
		if err := unix.MountSetattr(unix.AT_FDCWD, dir, 0, &unix.MountAttr{Attr_set: readOnly}); err != nil {
			return fmt.Errorf("make %s read-only: %w", dir, err)
		}
	}
	return nil
}

// accounts writes the files that name users and hosts; the host's own are never
// seen.
func accounts(user int) error {
	for name, text := range map[string]string{
		"/etc/passwd":        fmt.Sprintf("root:x:0:0:root:/:/usr/sbin/nologin\nhanzo-work:x:%d:%d:workload:/:/usr/sbin/nologin\n", user, user),
		"/etc/group":         fmt.Sprintf("root:x:0:\nhanzo-work:x:%d:\n", user),
		"/etc/hosts":         "127.0.0.1 localhost workload\n::1 localhost workload\n",
		"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// proc mounts /proc: of processes alone, or whole with what is the host's masked.
// It is never read-only itself: libraries write names of threads beneath
// /proc/self/task.
func proc(whole bool) error {
	options := "subset=pid"
	if whole {
		options = ""
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if !whole {
		return nil
	}
	for _, name := range procReadOnly {
		path := "/proc/" + name
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if err := bind(path, path, readOnly|noExec); err != nil {
			return err
		}
	}
	for _, name := range procMasked {
		path := "/proc/" + name
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		if info.IsDir() {
			err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=0,nr_inodes=1")
		} else {
			err = bind("/dev/null", path, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|noExec)
		}
		if err != nil {
			return fmt.Errorf("mask %s: %w", path, err)
		}
	}
	return nil
}

// overlay puts a file of given contents over whatever stands at its target.
func overlay(f File) error {
	const aside = "/.file"
	if err := os.WriteFile(aside, f.Data, 0o444); err != nil {
		return err
	}
	if _, err := os.Stat(f.Target); err != nil {
		if err := point(f.Target, false); err != nil {
			return err
		}
	}
	if err := bind(aside, f.Target, readOnly|noExec); err != nil {
		return err
	}
	return os.Remove(aside) // the mount keeps it
}

// bind mounts what is at source, with everything mounted below it, at target.
func bind(source, target string, attr uint64) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("open_tree %s: %w", source, err)
	}
	defer unix.Close(tree)
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attr}); err != nil {
		return fmt.Errorf("mount_setattr %s: %w", source, err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// point makes sure that something can be mounted at path: it makes the directories
// above it, which the workload may pass but not change, and the thing itself.
func point(path string, dir bool) error {
	if info, err := os.Lstat(path); err == nil {
		if info.IsDir() != dir || info.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("mount %s: something else stands there", path)
		}
		return nil
	}
	above := path
	if !dir {
		above = filepath.Dir(path)
	}
	if err := os.MkdirAll(above, 0o755); err != nil {
		return err
	}
	if dir {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o444)
	if err != nil {
		return err
	}
	return f.Close()
}
