//go:build linux

package attempt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// descriptorEfforts look at what the program was started with, before anything
// else is opened.
var descriptorEfforts = []effort{
	{46, "find descriptors left open", "0 1 2", openDescriptors},
	{47, "leave through a descriptor", "none leads out", descriptorsLead},
	{48, "find the working directory outside", "the run directory", workingDirectory},
	{72, "read the environment", "exactly what was given", environment},
}

// fileEfforts abuse the files and devices that the workload has.
var fileEfforts = []effort{
	{52, "leave traps among the results; link files of others", "made, and no hard link", traps},
	{55, "fill /dev/shm", "ENOSPC at its size", fillShm},
	{57, "make device nodes", "EPERM", makeNodes},
	{58, "open devices that were not admitted", "ENOENT", otherDevices},
	{101, "reserve disk space past every limit, in a file without a name", "ENOTSUP", reserve},
	{102, "watch what the owner runs: inotify, F_NOTIFY on /usr", "EPERM", watching},
	{103, "leave a program that lends its user or group: mode 06755", "EPERM", lending},
	{105, "make subvolumes of btrfs, which cannot be moved out", "EPERM", subvolumes},
	{108, "lock what is the host's and mounted to read", "noted", locking},
}

// descriptors are this process's open files.
func descriptors() (fds []int) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if _, closed := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && closed == nil {
			fds = append(fds, fd) // all but the one that they were listed with
		}
	}
	return fds
}

// tryOpen opens a file and closes it.
func tryOpen(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func openDescriptors(t *trial) {
	for _, fd := range t.opened {
		link, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		// Go's runtime opens these two for itself. They lead nowhere.
		if fd > 2 && link != "anon_inode:[eventpoll]" && link != "anon_inode:[eventfd]" {
			t.gaveWay("%d is %s", fd, link)
		}
	}
	t.held("0 1 2")
}

func descriptorsLead(t *trial) {
	for _, fd := range t.opened {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			continue
		}
		switch kind := st.Mode & unix.S_IFMT; kind {
		case unix.S_IFDIR:
			t.gaveWay("%d is a directory", fd)
		case unix.S_IFREG, unix.S_IFSOCK, unix.S_IFBLK:
			t.gaveWay("%d is of kind %#o", fd, kind)
		case unix.S_IFCHR:
			if !isNull(fd) {
				t.gaveWay("%d is a device other than /dev/null", fd)
			}
		}
		for _, path := range []string{"../..", "..", "etc/shadow"} {
			out, err := unix.Openat(fd, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				unix.Close(out)
				t.gaveWay("%s from %d was opened", path, fd)
			}
		}
	}
	t.held("none leads out")
}

func workingDirectory(t *trial) {
	var buffer [unix.PathMax]byte
	n, err := unix.Getcwd(buffer[:])
	if err != nil {
		t.failed("getcwd: %v", err)
		return
	}
	cwd := strings.TrimRight(string(buffer[:n]), "\x00")
	if cwd != t.Run { // "(unreachable)…" when it lies outside of the root
		t.gaveWay("it is %s", cwd)
		return
	}
	t.held("the run directory")
}

func environment(t *trial) {
	got := os.Environ()
	for _, v := range got {
		if !slices.Contains(t.Env, v) {
			name, _, _ := strings.Cut(v, "=") // its value may be a secret
			t.gaveWay("%s was not given", name)
		}
	}
	if len(got) != len(t.Env) {
		t.gaveWay("%d variables and not %d", len(got), len(t.Env))
	}
	t.held("exactly what was given")
}

// traps leaves what an uploader could trip over. The sandbox takes the run
// directory away afterwards, and must not follow any of it.
func traps(t *trial) {
	dir := filepath.Join(t.Run, "traps")
	if err := makeTraps(dir, t.Read); err != nil {
		t.failed("%v", err)
		return
	}
	t.held("made")
	for _, path := range slices.Concat(t.Read, []string{"/etc/passwd", "/usr/bin/env"}) {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			t.refused("a hard link to "+path, os.Link(path, filepath.Join(dir, "hard")), unix.EXDEV, unix.EPERM, unix.EACCES, unix.EROFS)
		}
	}
}

// makeTraps fills dir with everything that a name can stand for, and with many
// files.
func makeTraps(dir string, targets []string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	errs := []error{
		os.Symlink("/etc/passwd", in("passwd")),
		os.Symlink("../../../../../../../../etc", in("up")),
		os.Symlink("itself", in("itself")),
		os.Symlink("/proc/self/root", in("root")),
		unix.Mkfifo(in("fifo"), 0o600),
		os.Mkdir(in("model.safetensors"), 0o700),
		os.WriteFile(in("unreadable"), nil, 0),
		os.Mkdir(in("closed"), 0),
		unix.Mknod(in("socket"), unix.S_IFSOCK|0o600, 0),
		deepTrap(dir),
	}
	for i, target := range targets {
		errs = append(errs, os.Symlink(target, in(fmt.Sprintf("link-%d", i))))
	}
	names := []string{"two\nlines", "\xff\xfe", "-rf", " ", "sparse"}
	for i := range 1000 {
		names = append(names, fmt.Sprintf("file-%d", i))
	}
	for _, name := range names {
		errs = append(errs, os.WriteFile(in(name), nil, 0o600))
	}
	// There may be a limit on the size of a file, or a file system too small for it.
	if err := os.Truncate(in("sparse"), 1<<40); err != nil && !errors.Is(err, unix.EFBIG) && !errors.Is(err, unix.EINVAL) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// deepTrap makes a path that is longer than a path may be: it has to be walked
// down, step by step, to be removed.
func deepTrap(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	name := strings.Repeat("d", 200)
	for range 2*unix.PathMax/len(name) + 1 {
		err := unix.Mkdirat(fd, name, 0o700)
		next := -1
		if err == nil {
			next, err = unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		unix.Close(fd)
		if err != nil {
			return err
		}
		fd = next
	}
	return unix.Close(fd)
}

func fillShm(t *trial) {
	const most = 256 << 20 // without a known size or a limit on memory, this is the host's
	if t.Shm <= 0 || t.Shm > most {
		t.failed("not tried, for its size is not known to be small")
		return
	}
	// In parts, for there may be a limit on the size of one file.
	var written int64
	var err error
	for part := 0; written <= t.Shm && err == nil; part++ {
		path := fmt.Sprintf("/dev/shm/attempt-%d", part)
		var n int64
		n, err = fill(path, t.Shm/4+1)
		written += n
		defer os.Remove(path)
	}
	if err == nil {
		t.gaveWay("%d bytes were written to %d", written, t.Shm)
		return
	}
	t.refused("writing", err, unix.ENOSPC)
}

// fill writes up to n bytes to a new file and answers how many it could.
func fill(path string, n int64) (int64, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	var written int64
	for written < n {
		m, err := f.Write(block[:min(int64(len(block)), n-written)])
		written += int64(m)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

func makeNodes(t *trial) {
	for _, node := range []struct {
		name         string
		mode         uint32
		major, minor uint32
	}{
		{"memory", unix.S_IFCHR, 1, 1}, {"a disk", unix.S_IFBLK, 8, 0}, {"the first virtual disk", unix.S_IFBLK, 254, 0},
		{"a GPU", unix.S_IFCHR, 195, 0}, {"null", unix.S_IFCHR, 1, 3},
	} {
		for _, dir := range []string{t.Run, "/dev/shm"} {
			path := filepath.Join(dir, "node")
			err := unix.Mknod(path, node.mode|0o666, int(unix.Mkdev(node.major, node.minor)))
			if err == nil {
				os.Remove(path)
			}
			t.refused("a node of "+node.name, err, unix.EPERM)
		}
	}
}

func otherDevices(t *trial) {
	paths := []string{
		"/dev/kmsg", "/dev/mem", "/dev/port", "/dev/fuse", "/dev/net/tun", "/dev/kvm", "/dev/uinput", "/dev/input", "/dev/loop-control",
		"/dev/loop0", "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/mapper/control", "/dev/dri/card0", "/dev/dri/renderD128", "/dev/kfd",
		"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm", "/dev/nvidia-modeset", "/dev/snd", "/dev/video0", "/dev/vhost-net",
		"/dev/vhost-vsock", "/dev/vsock", "/dev/ppp", "/dev/hwrng", "/dev/rtc0", "/dev/watchdog", "/dev/userfaultfd", "/dev/autofs", "/dev/cuse",
		"/dev/tty", "/dev/tty0", "/dev/console", "/dev/ptmx", "/dev/initctl", "/dev/log",
	}
	for _, path := range paths {
		if slices.Contains(t.Devices, path) {
			continue
		}
		t.refused(path, tryOpen(path, unix.O_RDONLY), unix.ENOENT, unix.EPERM)
	}
	usual := []string{"null", "zero", "full", "random", "urandom", "shm", "fd", "stdin", "stdout", "stderr"}
	filepath.WalkDir("/dev", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == "/dev" {
			return nil
		}
		name := strings.TrimPrefix(path, "/dev/")
		admitted := slices.ContainsFunc(t.Devices, func(d string) bool { return d == path || strings.HasPrefix(d, path+"/") })
		if !admitted && !slices.Contains(usual, name) {
			t.gaveWay("%s is there", path)
		}
		if name == "shm" {
			return fs.SkipDir
		}
		return nil
	})
}

// reserve takes space that no write takes: it counts neither as a file's size, where
// the limit of files would stop it, nor under any name, where use is counted.
func reserve(t *trial) {
	const much = 1 << 30
	path := filepath.Join(t.Run, "reserved")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		t.failed("%v", err)
		return
	}
	defer f.Close() // which gives it back
	if err := os.Remove(path); err != nil {
		t.failed("%v", err)
	}
	fd := int(f.Fd())
	t.refused("fallocate that keeps the size", unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, much), unix.EOPNOTSUPP)
	t.refused("fallocate", unix.Fallocate(fd, 0, 0, much), unix.EOPNOTSUPP)
}

// watching asks to be told of what happens to files that the host has too.
func watching(t *trial) {
	watch := func(fd int, err error) error {
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.InotifyAddWatch(fd, "/usr/bin", unix.IN_OPEN|unix.IN_ACCESS)
		return err
	}
	t.refused("inotify", watch(unix.InotifyInit1(unix.IN_CLOEXEC)), unix.EPERM)
	dir, err := unix.Open("/usr/bin", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.failed("/usr/bin: %v", err)
		return
	}
	defer unix.Close(dir)
	const access, multishot = 1, 1 << 31 // DN_ACCESS, DN_MULTISHOT of linux/fcntl.h
	t.denied(unix.EPERM, "fcntl F_NOTIFY", unix.SYS_FCNTL, uintptr(dir), unix.F_NOTIFY, access|multishot)
}

// lending makes files that whoever executes them becomes the workload's user by,
// should they ever lie where set-user-ID counts.
func lending(t *trial) {
	const mode = 0o6755
	path := filepath.Join(t.Run, "lends")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		t.failed("%v", err)
		return
	}
	defer os.Remove(path)
	defer f.Close()
	name := pointer(path)
	t.denied(unix.EPERM, "fchmod", unix.SYS_FCHMOD, f.Fd(), mode)
	t.denied(unix.EPERM, "fchmodat", unix.SYS_FCHMODAT, here, name, mode)
	fchmodat2 := inChild(unix.SYS_FCHMODAT2, here, name, mode, 0)
	if fchmodat2 != unix.ENOSYS { // before Linux 6.6
		t.refused("fchmodat2", fchmodat2, unix.EPERM)
	}
	t.denied(unix.EPERM, "chmod with one of the bits", unix.SYS_FCHMODAT, here, name, 0o4755)
	made := path + "-new"
	defer os.Remove(made)
	t.denied(unix.EPERM, "open that makes it", unix.SYS_OPENAT, here, pointer(made), unix.O_CREAT|unix.O_WRONLY, mode)
	t.denied(unix.EPERM, "open that makes it without a name", unix.SYS_OPENAT, here, pointer(t.Run), unix.O_TMPFILE|unix.O_WRONLY, mode)
	t.denied(unix.EPERM, "mknod", unix.SYS_MKNODAT, here, pointer(made), unix.S_IFREG|mode, 0)
}

// subvolumes would keep the run directory from being removed.
func subvolumes(t *trial) {
	dir, err := unix.Open(t.Run, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.failed("%v", err)
		return
	}
	defer unix.Close(dir)
	var arguments [4096]byte // struct btrfs_ioctl_vol_args: a descriptor and a name
	copy(arguments[8:], "subvolume")
	at := address(&arguments)
	for _, request := range []uintptr{0x50009401, 0x5000940e, 0x50009417, 0x50009418} { // SNAP_CREATE, SUBVOL_CREATE and their V2
		t.denied(unix.EPERM, fmt.Sprintf("ioctl %#x", request), unix.SYS_IOCTL, uintptr(dir), request, at)
	}
}

// locking takes locks that programs of the host may ask for too. They tell one bit
// to those who agreed on it; nothing of the host's waits for one on what is its
// programs'.
func locking(t *trial) {
	for _, path := range append([]string{"/usr", "/usr/bin"}, t.Read...) {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.held(answer(err))
		} else {
			t.held("noted: can be taken")
		}
		unix.Close(fd)
	}
}
