//go:build linux

package landlock

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A thread cannot be let out again, so what is tried is tried in a child: this
// binary again, with its task in the environment.
const childEnv = "LANDLOCK_TEST_CHILD"

// A task is what a child restricts itself to.
type task struct {
	Rules []Rule
	TCP   bool
	Name  string // which of attempts
	Dir   string
	Addr  string // of a listener outside
	Pid   int    // of a process outside
}

func TestMain(m *testing.M) {
	src := os.Getenv(childEnv)
	if src == "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread()
	var task task
	err := json.Unmarshal([]byte(src), &task)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	abi := 0
	if err == nil {
		abi, err = Restrict(task.Rules, task.TCP)
	}
	if err == nil {
		err = attempts[task.Name](task, abi)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "ABI %d: %v\n", abi, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// kernel is the ABI of the kernel at hand.
func kernel() int {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(version)
}

// attempt runs a task in a child, in a folder that has
//
//	read/file read/true   may be read; true is a program
//	write/file write/sub/ may be written
//	secret/file           no rule
func attempt(t *testing.T, needs int, task task) {
	t.Helper()
	if have := kernel(); have < needs {
		t.Skipf("this kernel has Landlock ABI %d, and this needs %d", have, needs)
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"read", "write", "write/sub", "secret"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, sub, "file"), []byte("text"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "read", "true"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	task.Dir = dir
	task.Rules = append(task.Rules,
		Rule{Path: filepath.Join(dir, "read")},
		Rule{Path: filepath.Join(dir, "write"), Write: true},
		Rule{Path: filepath.Join(dir, "absent"), Write: true},
		Rule{Path: "/usr", Exec: true}, Rule{Path: "/lib", Exec: true}, Rule{Path: "/lib64", Exec: true}, Rule{Path: "/bin", Exec: true},
		Rule{Path: "/dev/null", Write: true},
	)
	src, err := json.Marshal(task)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+string(src))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// attempts run on the restricted thread.
var attempts = map[string]func(task, int) error{
	"read":    reading,
	"write":   writing,
	"rename":  renaming,
	"exec":    execing,
	"network": network,
	"scope":   scope,
	"device":  devices,
	"child":   inheriting,
}

// want compares what is thought to happen to each name with what did.
func want(what string, err, wanted error) error {
	if !errors.Is(err, wanted) || (wanted == nil) != (err == nil) {
		return fmt.Errorf("%s: %v, want %v", what, err, wanted)
	}
	return nil
}

func open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func TestOnlyWhatRulesNameIsRead(t *testing.T) { attempt(t, 1, task{Name: "read"}) }

func reading(task task, _ int) error {
	return errors.Join(
		want("read/file", open(task.Dir+"/read/file", unix.O_RDONLY), nil),
		want("list read", open(task.Dir+"/read", unix.O_RDONLY|unix.O_DIRECTORY), nil),
		want("write/file", open(task.Dir+"/write/file", unix.O_RDONLY), nil),
		want("secret/file", open(task.Dir+"/secret/file", unix.O_RDONLY), unix.EACCES),
		want("secret/file by ..", open(task.Dir+"/read/../secret/file", unix.O_RDONLY), unix.EACCES),
		want("list secret", open(task.Dir+"/secret", unix.O_RDONLY|unix.O_DIRECTORY), unix.EACCES),
		want("/etc/passwd", open("/etc/passwd", unix.O_RDONLY), unix.EACCES),
		want("/proc/self/status", open("/proc/self/status", unix.O_RDONLY), unix.EACCES),
	)
}

func TestOnlyWhatMayBeWrittenIsWritten(t *testing.T) { attempt(t, 1, task{Name: "write"}) }

func writing(task task, abi int) error {
	err := errors.Join(
		want("write read/file", open(task.Dir+"/read/file", unix.O_WRONLY), unix.EACCES),
		want("make read/new", open(task.Dir+"/read/new", unix.O_WRONLY|unix.O_CREAT), unix.EACCES),
		want("remove read/file", unix.Unlink(task.Dir+"/read/file"), unix.EACCES),
		want("mkdir read/new", unix.Mkdir(task.Dir+"/read/new", 0o700), unix.EACCES),
		want("write write/file", open(task.Dir+"/write/file", unix.O_WRONLY), nil),
		want("make write/new", open(task.Dir+"/write/new", unix.O_WRONLY|unix.O_CREAT), nil),
		want("mkdir write/dir", unix.Mkdir(task.Dir+"/write/dir", 0o700), nil),
		want("symlink write/link", unix.Symlink("/etc/passwd", task.Dir+"/write/link"), nil),
		want("read by write/link", open(task.Dir+"/write/link", unix.O_RDONLY), unix.EACCES),
		want("fifo write/fifo", unix.Mkfifo(task.Dir+"/write/fifo", 0o600), nil),
		want("device write/null", unix.Mknod(task.Dir+"/write/null", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))), eaccesOr(unix.EPERM)),
		want("remove write/new", unix.Unlink(task.Dir+"/write/new"), nil),
		want("remove write/dir", unix.Rmdir(task.Dir+"/write/dir"), nil),
		want("truncate write/file", unix.Truncate(task.Dir+"/write/file", 0), nil),
		want("absent", unix.Mkdir(task.Dir+"/absent", 0o700), unix.EACCES),
		// No right of Landlock's is needed to mount, and none suffices.
		want("mount", unix.Mount("none", task.Dir+"/write/sub", "tmpfs", 0, ""), unix.EPERM),
	)
	if abi >= 3 { // older kernels truncate what may not be written
		err = errors.Join(err,
			want("truncate read/file", unix.Truncate(task.Dir+"/read/file", 0), unix.EACCES),
			want("truncate secret/file", unix.Truncate(task.Dir+"/secret/file", 0), unix.EACCES))
	}
	return err
}

// eaccesOr is what mknod of a device says: to root that Landlock refuses, to
// others that they have no right to make one at all.
func eaccesOr(other unix.Errno) error {
	if os.Geteuid() == 0 {
		return unix.EACCES
	}
	return other
}

func TestRenameStaysInsideWhatMayBeWritten(t *testing.T) { attempt(t, 1, task{Name: "rename"}) }

func renaming(task task, abi int) error {
	var across error
	if abi < 2 {
		across = unix.EXDEV
	}
	file := task.Dir + "/write/file"
	return errors.Join(
		want("into the same directory", unix.Rename(file, task.Dir+"/write/renamed"), nil),
		want("back", unix.Rename(task.Dir+"/write/renamed", file), nil),
		want("into read", unix.Rename(file, task.Dir+"/read/stolen"), unix.EACCES),
		want("link into read", unix.Link(file, task.Dir+"/read/stolen"), unix.EACCES),
		want("out of secret", unix.Rename(task.Dir+"/secret/file", task.Dir+"/write/stolen"), unix.EACCES),
		want("link out of read", linkDenied(unix.Link(task.Dir+"/read/file", task.Dir+"/write/stolen")), nil),
		want("into another directory", unix.Rename(file, task.Dir+"/write/sub/moved"), across),
	)
}

// linkDenied: a file that may be read alone must not gain the rights of the
// directory it is linked into. The kernel says so as EXDEV or as EACCES.
func linkDenied(err error) error {
	if err == unix.EXDEV || err == unix.EACCES {
		return nil
	}
	return fmt.Errorf("linked: %v", err)
}

func TestOnlyWhatMayBeExecutedIsExecuted(t *testing.T) { attempt(t, 1, task{Name: "exec"}) }

func execing(task task, _ int) error {
	run := func(path string) error {
		pid, err := syscall.ForkExec(path, []string{"true"}, &syscall.ProcAttr{})
		if err != nil {
			return err
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || status != 0 {
			return fmt.Errorf("status %#x, %v", status, err)
		}
		return nil
	}
	return errors.Join(
		want("/bin/true", run("/bin/true"), nil),
		want("read/true", run(task.Dir+"/read/true"), unix.EACCES),
	)
}

func TestTCPIsDenied(t *testing.T) {
	listener := listen(t)
	attempt(t, 4, task{Name: "network", Addr: listener.Addr().String()})
}

func TestTCPIsLeftAloneOnDemand(t *testing.T) {
	listener := listen(t)
	attempt(t, 1, task{Name: "network", TCP: true, Addr: listener.Addr().String()})
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Skipf("there is no loopback here: %v", err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

// network uses plain calls: Go's own would move to another thread.
func network(task task, _ int) error {
	var wanted error
	if !task.TCP {
		wanted = unix.EACCES
	}
	addr, err := net.ResolveTCPAddr("tcp4", task.Addr)
	if err != nil {
		return err
	}
	inet := func(use func(int) error) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return use(fd)
	}
	return errors.Join(
		want("connect", inet(func(fd int) error {
			return unix.Connect(fd, &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte{127, 0, 0, 1}})
		}), wanted),
		want("bind", inet(func(fd int) error {
			return unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
		}), wanted),
	)
}

func TestProcessesAndAbstractSocketsOutsideAreOutOfReach(t *testing.T) {
	name := fmt.Sprintf("@landlock-test-%d", os.Getpid())
	listener, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	attempt(t, 6, task{Name: "scope", Addr: name, Pid: os.Getpid()})
}

func scope(task task, _ int) error {
	unixConnect := func(name string) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Connect(fd, &unix.SockaddrUnix{Name: name})
	}
	// One of our own, as CUDA makes one.
	own, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	name := task.Addr + "-own"
	if err := errors.Join(unix.Bind(own, &unix.SockaddrUnix{Name: name}), unix.Listen(own, 1)); err != nil {
		return err
	}
	return errors.Join(
		want("a socket outside", unixConnect(task.Addr), unix.EPERM),
		want("our own socket", unixConnect(name), nil),
		want("a process outside", unix.Kill(task.Pid, 0), unix.EPERM),
		want("ourselves", unix.Kill(os.Getpid(), 0), nil),
	)
}

func TestDevicesThatRulesNameKeepTheirIoctl(t *testing.T) {
	attempt(t, 5, task{Name: "device", Rules: []Rule{{Path: "/dev/random"}}})
}

func devices(_ task, _ int) error {
	const rndGetEntCnt = 0x80045200 // RNDGETENTCNT of linux/random.h
	fd, err := unix.Open("/dev/random", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.IoctlGetInt(fd, rndGetEntCnt)
	return errors.Join(
		want("ioctl on /dev/random, which has a rule", err, nil),
		want("write /dev/random", open("/dev/random", unix.O_WRONLY), unix.EACCES),
		want("write /dev/null", open("/dev/null", unix.O_WRONLY), nil),
		want("/dev/urandom", open("/dev/urandom", unix.O_RDONLY), unix.EACCES),
	)
}

func TestWhatTheThreadStartsIsRestrictedToo(t *testing.T) { attempt(t, 1, task{Name: "child"}) }

func inheriting(task task, _ int) error {
	run := func(script string) int {
		pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{})
		if err != nil {
			return -1
		}
		var status syscall.WaitStatus
		syscall.Wait4(pid, &status, 0, nil)
		return status.ExitStatus()
	}
	if code := run("exec < " + task.Dir + "/read/file"); code != 0 {
		return fmt.Errorf("a child that reads what it may: %d", code)
	}
	if code := run("exec < " + task.Dir + "/secret/file"); code == 0 {
		return errors.New("a child read what it may not")
	}
	return nil
}

func TestHandledGrowsWithTheKernel(t *testing.T) {
	tests := []struct {
		abi             int
		fs, net, scoped uint64
	}{
		{1, 0x1fff, 0, 0},
		{2, 0x3fff, 0, 0},
		{3, 0x7fff, 0, 0},
		{4, 0x7fff, 3, 0},
		{5, 0xffff, 3, 0},
		{6, 0xffff, 3, 3},
		{7, 0xffff, 3, 3},
		{8, 0xffff, 3, 3},
		{9, 0x1ffff, 3, 3},
		{100, 0x1ffff, 3, 3},
	}
	for _, test := range tests {
		got := handled(test.abi, false)
		want := unix.LandlockRulesetAttr{Handled_access_fs: test.fs, Handled_access_net: test.net, Scoped: test.scoped}
		if got != want {
			t.Errorf("ABI %d: %+v, want %+v", test.abi, got, want)
		}
		want.Handled_access_net = 0
		if got := handled(test.abi, true); got != want {
			t.Errorf("ABI %d with TCP: %+v, want %+v", test.abi, got, want)
		}
	}
}
