//go:build linux

package attempt

import (
	"bytes"
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
	{62, "find and mount control groups", "none to be found, EPERM", controlGroups},
	{63, "read /proc/self/cgroup", "/", ownGroup},
}

const (
	// Call numbers that are the same on every architecture and not in x/sys.
	sysStatmount = 457
	sysListmount = 458

	here = ^uintptr(99) // AT_FDCWD
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
		t.denied(unix.EPERM, "unshare "+ns.name, unix.SYS_UNSHARE, ns.flag)
		if ns.flag != unix.CLONE_NEWTIME { // which clone takes for a signal
			t.refused("clone "+ns.name, cloned(unix.SYS_CLONE, ns.flag|uintptr(unix.SIGCHLD), 0), unix.EPERM)
		}
	}
	t.denied(unix.EPERM, "setns", unix.SYS_SETNS, ^uintptr(0), 0)
}

func clone3(t *trial) {
	args := [11]uint64{0: unix.CLONE_NEWUSER, 4: uint64(unix.SIGCHLD)} // struct clone_args: flags, …, exit_signal
	t.refused("clone3", cloned(unix.SYS_CLONE3, address(&args[0]), unsafe.Sizeof(args)), unix.ENOSYS)
}

// target is a directory of one's own to mount on.
func (t *trial) target() (string, func()) {
	path := filepath.Join(t.Run, "mounted")
	os.Mkdir(path, 0o700)
	return path, func() { os.Remove(path) }
}

// powerless reports whether this process holds no capability. With one, in the
// host's own mounts, what follows would change them: so that is told instead.
func (t *trial) powerless() bool {
	status, err := procStatus("/proc/thread-self/status")
	if err != nil || strings.Trim(status["CapEff"], "0") != "" {
		t.gaveWay("not tried, for capabilities are held: %s (%v)", status["CapEff"], err)
		return false
	}
	return true
}

func mounting(t *trial) {
	if !t.powerless() {
		return
	}
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
		t.refused("mount "+m.name, unix.Mount(m.source, m.target, m.kind, m.flags, m.data), unix.EPERM)
	}
	for _, path := range []string{"/usr", "/", "/etc", "/proc/sys"} {
		t.refused("remount "+path+" to write", unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT, ""), unix.EPERM)
	}
	for _, path := range []string{"/proc/sys", "/proc/kcore", "/usr", "/dev"} {
		t.refused("unmount "+path, unix.Unmount(path, unix.MNT_DETACH), unix.EPERM)
	}
}

func newMountCalls(t *trial) {
	if !t.powerless() {
		return
	}
	dir, remove := t.target()
	defer remove()
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	t.denied(unix.EPERM, "fsopen", unix.SYS_FSOPEN, pointer("tmpfs"), 0)
	t.denied(unix.EPERM, "fsmount", unix.SYS_FSMOUNT, here, 0, 0)
	t.denied(unix.EPERM, "fsconfig", unix.SYS_FSCONFIG, here, 0, 0, 0, 0)
	t.denied(unix.EPERM, "fspick", unix.SYS_FSPICK, here, pointer("/usr"), 0)
	t.denied(unix.EPERM, "open_tree", unix.SYS_OPEN_TREE, here, pointer("/"), unix.OPEN_TREE_CLONE|unix.O_CLOEXEC)
	t.denied(unix.EPERM, "move_mount", unix.SYS_MOVE_MOUNT, here, pointer("/usr"), here, pointer(dir), 0)
	t.denied(unix.EPERM, "mount_setattr", unix.SYS_MOUNT_SETATTR, here, pointer("/usr"), 0, address(&attr), unsafe.Sizeof(attr))
}

func newRoot(t *trial) {
	t.denied(unix.EPERM, "chroot", unix.SYS_CHROOT, pointer(t.Run))
	t.denied(unix.EPERM, "chroot to /", unix.SYS_CHROOT, pointer("/"))
	t.denied(unix.EPERM, "pivot_root", unix.SYS_PIVOT_ROOT, pointer(t.Run), pointer(t.Run))
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
			// Permissions are asked first, so the list of mounts must say the rest.
			t.refused("open to write "+place, tryOpen(place, unix.O_WRONLY), unix.EROFS, unix.EACCES)
		}
	}
	mounts, err := mountTable()
	if err != nil {
		t.failed("the mounts cannot be read: %v", err)
		return
	}
	for _, m := range mounts {
		if m.kind == "proc" {
			continue
		}
		if !m.nosuid {
			t.gaveWay("%s honours set-user-ID", m.target)
		}
		info, err := os.Stat(m.target)
		device := err == nil && info.Mode()&fs.ModeDevice != 0 // written through, its mount holds nothing
		if !m.readOnly && !device && m.target != t.Run && m.target != "/dev/shm" && !slices.Contains(t.Write, m.target) {
			t.gaveWay("%s is mounted to write", m.target)
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
			target:   unescape(fields[4]),
			kind:     fields[dash+1],
			readOnly: slices.Contains(options, "ro"),
			nosuid:   slices.Contains(options, "nosuid"),
		})
	}
	return mounts, nil
}

// unescape decodes a path of mountinfo, where a space, a tab, a newline and a
// backslash are three octal digits.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

func fileHandle(t *trial) {
	var id int32
	handle := [136]byte{0: 128}
	t.denied(unix.EPERM, "name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, here, pointer("/usr"), address(&handle[0]), address(&id), 0)
	// The root directory of ext4, by its inode's number.
	root := [136]byte{0: 8, 4: 1, 8: 2}
	t.denied(unix.EPERM, "open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, here, address(&root[0]), unix.O_RDONLY)
}

func mountInfo(t *trial) {
	t.denied(unix.ENOSYS, "statmount", sysStatmount)
	t.denied(unix.ENOSYS, "listmount", sysListmount)
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
		if !slices.ContainsFunc(given, func(g string) bool { return strings.HasPrefix(g, path+"/") }) {
			t.gaveWay("%s is there", path)
			return fs.SkipDir
		}
		return nil // on the way; one that cannot be listed shows nothing either
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
		t.failed("stat: %v", err)
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
		t.failed("the mounts cannot be read: %v", err)
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
