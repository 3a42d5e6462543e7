//go:build linux

package attempt

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mountEfforts try to leave the namespaces and the file tree, or to change them.
var mountEfforts = []effort{
	{21, "enter or make namespaces", "EPERM", namespaces},
	{22, "clone3 with a new user namespace", "ENOSYS", clone3},
	{24, "mount, unmount, remount", "EPERM", mounting},
	{25, "fsopen, open_tree, move_mount, mount_setattr", "EPERM", newMountCalls},
	{26, "pivot_root, chroot", "EPERM", newRoot},
	{27, "write to /, /usr, /etc, /dev and what is mounted to read", "EROFS", readOnly},
	{29, "open a file by its handle", "EPERM", fileHandle},
	{30, "statmount, listmount", "ENOSYS", mountInfo},
	{31, "read the host's secrets, homes and sockets", "ENOENT", secrets},
	{32, "walk above the root with ..", "stays", above},
	{62, "find, mount and write control groups", "none to be found, EPERM", controlGroups},
	{63, "read /proc/self/cgroup", "/", ownGroup},
}

// Call numbers that are the same on every architecture and not in x/sys.
const (
	sysStatmount = 457
	sysListmount = 458
)

// newNamespaces are the kinds of namespace by clone flag.
var newNamespaces = []struct {
	name string
	flag uintptr
}{
	{"user", unix.CLONE_NEWUSER}, {"mount", unix.CLONE_NEWNS}, {"network", unix.CLONE_NEWNET},
	{"pid", unix.CLONE_NEWPID}, {"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS},
	{"cgroup", unix.CLONE_NEWCGROUP}, {"time", unix.CLONE_NEWTIME},
}

func namespaces(t *trial) {
	for _, ns := range newNamespaces {
		t.refused("unshare "+ns.name, inChild(unix.SYS_UNSHARE, ns.flag), unix.EPERM)
		if ns.flag == unix.CLONE_NEWTIME {
			continue // clone takes this bit for a signal
		}
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, ns.flag|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno == 0 && pid == 0 {
			exit(0)
		}
		if errno == 0 {
			reap(int(pid))
			t.gaveWay("clone with a new %s namespace succeeded", ns.name)
			continue
		}
		t.refused("clone "+ns.name, errno, unix.EPERM)
	}
	fd, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.held(answer(err))
		return
	}
	defer unix.Close(fd)
	t.refused("setns", inChild(unix.SYS_SETNS, uintptr(fd), 0), unix.EPERM)
}

// inChild makes a system call in a child, which takes what the call changed with
// it when it ends.
func inChild(number uintptr, a ...uintptr) error {
	var args [6]uintptr
	copy(args[:], a)
	pid, errno := fork()
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		_, _, e := unix.RawSyscall6(number, args[0], args[1], args[2], args[3], args[4], args[5])
		exit(uintptr(e))
	}
	status, err := reap(pid)
	switch {
	case err != nil:
		return err
	case status.Signaled():
		return errors.New(unix.SignalName(status.Signal()))
	}
	return asErrno(status.ExitStatus())
}

func clone3(t *trial) {
	args := [11]uint64{0: unix.CLONE_NEWUSER, 4: uint64(unix.SIGCHLD)} // struct clone_args: flags, …, exit_signal
	size := unsafe.Sizeof(args)
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE3, address(&args[0]), size, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		exit(0)
	}
	if errno == 0 {
		reap(int(pid))
		t.gaveWay("clone3 succeeded")
		return
	}
	t.refused("clone3", errno, unix.ENOSYS)
}

// target is a directory of one's own to mount on.
func (t *trial) target() (string, func()) {
	path := filepath.Join(t.Run, "mounted")
	os.Mkdir(path, 0o700)
	return path, func() { os.Remove(path) }
}

func mounting(t *trial) {
	dir, remove := t.target()
	defer remove()
	for _, m := range []struct {
		name, source, target, kind string
		flags                      uintptr
		data                       string
	}{
		{"a tmpfs", "none", dir, "tmpfs", 0, ""},
		{"another /proc", "none", dir, "proc", 0, ""},
		{"sysfs", "none", dir, "sysfs", 0, ""},
		{"an overlay", "none", dir, "overlay", 0, "lowerdir=/usr:/etc"},
		{"/ on itself", "/", dir, "", unix.MS_BIND | unix.MS_REC, ""},
		{"/ shared", "", "/", "", unix.MS_REC | unix.MS_SHARED, ""},
	} {
		err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data)
		t.refused("mount "+m.name, err, unix.EPERM)
		if err == nil && m.target == dir {
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	}
	for _, path := range []string{"/usr", "/", "/etc", "/proc/sys"} {
		err := unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT, "")
		t.refused("remount "+path+" to write", err, unix.EPERM)
		if err == nil {
			unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}
	}
	for _, path := range []string{"/proc/sys", "/proc/kcore", "/usr", "/dev"} {
		t.refused("unmount "+path, unix.Unmount(path, unix.MNT_DETACH), unix.EPERM)
	}
}

func newMountCalls(t *trial) {
	dir, remove := t.target()
	defer remove()
	here := ^uintptr(99) // AT_FDCWD
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	for _, call := range []struct {
		name string
		args []uintptr
	}{
		{"fsopen", []uintptr{unix.SYS_FSOPEN, pointer("tmpfs"), 0}},
		{"fsmount", []uintptr{unix.SYS_FSMOUNT, here, 0, 0}},
		{"fsconfig", []uintptr{unix.SYS_FSCONFIG, here, 0, 0, 0, 0}},
		{"fspick", []uintptr{unix.SYS_FSPICK, here, pointer("/usr"), 0}},
		{"open_tree", []uintptr{unix.SYS_OPEN_TREE, here, pointer("/"), unix.OPEN_TREE_CLONE | unix.O_CLOEXEC}},
		{"move_mount", []uintptr{unix.SYS_MOVE_MOUNT, here, pointer("/usr"), here, pointer(dir), 0}},
		{"mount_setattr", []uintptr{unix.SYS_MOUNT_SETATTR, here, pointer("/usr"), 0, address(&attr), unsafe.Sizeof(attr)}},
	} {
		t.refused(call.name, inChild(call.args[0], call.args[1:]...), unix.EPERM)
	}
}

func newRoot(t *trial) {
	t.refused("chroot", inChild(unix.SYS_CHROOT, pointer(t.Run)), unix.EPERM)
	t.refused("chroot to /", inChild(unix.SYS_CHROOT, pointer("/")), unix.EPERM)
	t.refused("pivot_root", inChild(unix.SYS_PIVOT_ROOT, pointer(t.Run), pointer(t.Run)), unix.EPERM)
}

// readOnly writes where it may not, and reads the kernel's own list of what is
// mounted to write: a file system that only permissions protect is a hole too.
func readOnly(t *trial) {
	places := append([]string{"/", "/usr", "/usr/bin", "/usr/lib", "/etc", "/dev"}, t.Read...)
	for _, place := range places {
		info, err := os.Stat(place)
		switch {
		case err != nil:
			continue // not there, not writable
		case info.IsDir():
			path := filepath.Join(place, ".attempt")
			err := unix.Mkdir(path, 0o700)
			if err == nil {
				unix.Rmdir(path)
			}
			t.refused("make a folder in "+place, err, unix.EROFS)
		default:
			fd, err := unix.Open(place, unix.O_WRONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				unix.Close(fd)
			}
			// Permissions are asked first, so the list of mounts must say the rest.
			t.refused("open to write "+place, err, unix.EROFS, unix.EACCES)
		}
	}
	mounts, err := mountTable()
	if err != nil {
		t.gaveWay("the mounts cannot be read: %v", err)
		return
	}
	for _, m := range mounts {
		if m.readOnly || m.kind == "proc" || slices.Contains(t.Write, m.target) ||
			slices.Contains([]string{t.Run, "/dev/shm", "/dev/mqueue", "/tmp"}, m.target) {
			continue
		}
		// A node of /dev is written through, its mount holds nothing.
		if info, err := os.Stat(m.target); err == nil && info.Mode()&fs.ModeDevice != 0 {
			continue
		}
		t.gaveWay("%s is mounted to write", m.target)
	}
	for _, m := range mounts {
		if m.kind == "proc" || m.target == "/dev" {
			continue
		}
		if !m.nosuid {
			t.gaveWay("%s honours set-user-ID", m.target)
		}
	}
}

// A mount is a line of /proc/self/mountinfo.
type mount struct {
	target, kind     string
	readOnly, nosuid bool
}

func mountTable() ([]mount, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var mounts []mount
	for line := range strings.Lines(string(b)) {
		// id parent major:minor root target options [optional...] - type source options
		fields := strings.Fields(line)
		dash := slices.Index(fields, "-")
		if len(fields) < 7 || dash < 0 || dash+1 >= len(fields) {
			return nil, fmt.Errorf("unreadable line %q", line)
		}
		options := strings.Split(fields[5], ",")
		mounts = append(mounts, mount{
			target:   fields[4],
			kind:     fields[dash+1],
			readOnly: slices.Contains(options, "ro"),
			nosuid:   slices.Contains(options, "nosuid"),
		})
	}
	return mounts, nil
}

func fileHandle(t *trial) {
	var id int32
	handle := [136]byte{0: 128}
	h := address(&handle[0])
	here := ^uintptr(99) // AT_FDCWD
	t.refused("name_to_handle_at", sys(unix.SYS_NAME_TO_HANDLE_AT, here, pointer(t.Run), h, address(&id), 0), unix.EPERM)
	fd, err := unix.Open("/usr", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.gaveWay("/usr: %v", err)
		return
	}
	defer unix.Close(fd)
	// The root directory of ext4 and xfs hosts, by its inode number 2 or 128.
	root := [136]byte{0: 8, 4: 1, 8: 2}
	t.refused("open_by_handle_at", sys(unix.SYS_OPEN_BY_HANDLE_AT, uintptr(fd), address(&root[0]), unix.O_RDONLY), unix.EPERM)
}

func mountInfo(t *trial) {
	t.refused("statmount", sys(sysStatmount, 0, 0, 0, 0), unix.ENOSYS)
	t.refused("listmount", sys(sysListmount, 0, 0, 0, 0), unix.ENOSYS)
}

// hostPaths are what no workload has business with.
var hostPaths = []string{
	"/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/hanzo", "/etc/machine-id", "/etc/sudoers", "/etc/ssl/private",
	"/root", "/home", "/boot", "/srv", "/mnt", "/media",
	"/run/user", "/run/dbus", "/run/systemd", "/run/hanzo-link", "/run/docker.sock", "/var/run/docker.sock", "/run/containerd",
	"/var/log", "/var/spool", "/var/lib/docker", "/var/lib/hanzo/link/spool", "/var/lib/hanzo/link/store",
	"/sys/firmware", "/sys/kernel", "/sys/fs", "/sys/power", "/dev/pts/0", "/dev/tty", "/dev/console",
}

func secrets(t *trial) {
	given := slices.Concat([]string{t.Run}, t.Read, t.Write)
	for _, path := range slices.Concat(hostPaths, t.Hidden) {
		_, err := os.Lstat(path)
		if err == nil && slices.ContainsFunc(given, func(g string) bool { return strings.HasPrefix(g, path+"/") || g == path }) {
			t.onlyGiven(path, given)
			continue
		}
		t.refused(path, err, unix.ENOENT, unix.ENOTDIR)
	}
	if _, err := os.Lstat("/var/lib/hanzo"); err == nil {
		t.onlyGiven("/var/lib/hanzo", given)
	}
}

// onlyGiven checks that a directory holds nothing but the way to what was given.
func (t *trial) onlyGiven(dir string, given []string) {
	filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if slices.Contains(given, path) {
			if entry != nil && entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if err != nil || !slices.ContainsFunc(given, func(g string) bool { return strings.HasPrefix(g, path+"/") }) {
			t.gaveWay("%s is there", path)
			return fs.SkipDir
		}
		return nil
	})
}

func above(t *trial) {
	var root, higher unix.Stat_t
	up := strings.Repeat("../", 64)
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		if err = unix.Stat("/", &root); err == nil {
			err = unix.Fstatat(fd, up, &higher, 0)
		}
	}
	if err != nil {
		t.gaveWay("stat: %v", err)
		return
	}
	if root.Dev != higher.Dev || root.Ino != higher.Ino {
		t.gaveWay("above / is another directory")
	}
	for _, start := range []string{t.Run, "/proc/self/cwd", "/proc/self/root", "/dev/fd"} {
		path := start + "/" + up + "etc/shadow"
		if f, err := os.Open(path); err == nil {
			f.Close()
			t.gaveWay("%s leads to the host's", path)
		}
	}
	link := filepath.Join(t.Run, "up")
	if os.Symlink(up+"root", link) == nil {
		defer os.Remove(link)
		if _, err := os.Stat(link); err == nil {
			t.gaveWay("a symbolic link leads to /root")
		}
	}
	t.held("stays")
}

func controlGroups(t *trial) {
	mounts, err := mountTable()
	if err != nil {
		t.gaveWay("the mounts cannot be read: %v", err)
		return
	}
	for _, m := range mounts {
		if strings.HasPrefix(m.kind, "cgroup") {
			t.gaveWay("%s is mounted on %s", m.kind, m.target)
		}
	}
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/unified"} {
		if _, err := os.Lstat(path); err == nil {
			t.gaveWay("%s is there", path)
		}
	}
	if len(t.gave) == 0 {
		t.held("none to be found")
	}
	dir, remove := t.target()
	defer remove()
	for _, kind := range []string{"cgroup2", "cgroup"} {
		err := unix.Mount("none", dir, kind, 0, "")
		t.refused("mount "+kind, err, unix.EPERM)
		if err == nil {
			moved := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
			if moved == nil {
				t.gaveWay("moved itself to another control group")
			}
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	}
}

func ownGroup(t *trial) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.held(answer(err))
		return
	}
	for line := range bytes.Lines(b) {
		// hierarchy:controllers:path
		if path := strings.TrimSpace(string(line[bytes.LastIndexByte(line, ':')+1:])); path != "/" {
			t.gaveWay("shows the path %s", path)
		}
	}
	t.held("/")
}
