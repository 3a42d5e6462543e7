//go:build linux

package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestWhatAWorkloadIs(t *testing.T) {
	h := newHost(t)
	s := spec(t, "identity")
	s.Groups = []uint32{64002}
	want := fmt.Sprintf(`Uid %[1]d %[1]d %[1]d %[1]d
Gid %[1]d %[1]d %[1]d %[1]d
Groups 64002
CapInh 0000000000000000
CapPrm 0000000000000000
CapEff 0000000000000000
CapBnd 0000000000000000
CapAmb 0000000000000000
NoNewPrivs 1
Seccomp 2
Dir %[2]s
Host workload Pid1 1
`, user, filepath.Join(h.cfg.Run, s.ID))
	if got := output(t, h, s); got != want {
		t.Errorf("it is\n%swant\n%s", got, want)
	}
}

// A limit of 0 lets the kernel run a core_pattern that is a program, as root and on
// the host; 1 does not, and the workload cannot put 0 back.
func TestNoProgramOfTheHostsDumpsAWorkload(t *testing.T) {
	e := start(t, newHost(t), spec(t, "core")).Exit()
	if string(e.Stdout) != "1 1\n" || !strings.Contains(string(e.Stderr), syscall.EPERM.Error()) {
		t.Errorf("stdout %q, stderr %q", e.Stdout, e.Stderr)
	}
}

func TestUmaskOfTheHostDoesNotMatter(t *testing.T) {
	h := newHost(t)
	defer unix.Umask(unix.Umask(0o777))
	s := spec(t, "read", "/in/deep/file")
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "file"), []byte("given\n"), 0o600), os.Chmod(filepath.Join(dir, "file"), 0o644)); err != nil {
		t.Fatal(err)
	}
	s.Mounts = []Mount{{Source: open(t, filepath.Join(dir, "file")), Target: "/in/deep/file"}}
	if got := output(t, h, s); got != "given\n" {
		t.Errorf("it read %q", got)
	}
}

// A launcher may be in groups; a workload is in none that its Spec does not name.
func TestGroupsAreNotInherited(t *testing.T) {
	h := newHost(t)
	had, err := syscall.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setgroups([]int{64003}); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setgroups(had)
	if got := output(t, h, spec(t, "identity")); !strings.Contains(got, "\nGroups \n") {
		t.Errorf("it is\n%s", got)
	}
}

func TestEnvironmentIsExact(t *testing.T) {
	s := spec(t, "environment")
	s.Env = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}
	if got, want := output(t, newHost(t), s), "PATH=/usr/bin:/bin\nLANG=C.UTF-8\n"; got != want {
		t.Errorf("environment %q, want %q", got, want)
	}
}

func TestOnlyStandardDescriptorsAreOpen(t *testing.T) {
	if got, want := output(t, newHost(t), spec(t, "descriptors")), "0\n1\n2\n"; got != want {
		t.Errorf("open: %q, want %q", got, want)
	}
}

func TestWhatIsSeen(t *testing.T) {
	h := newHost(t)
	secrets := []string{
		"/boot", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/sys", "/var/log", "/var/lib/hanzo/link/store",
		"/etc/shadow", "/etc/hanzo", "/etc/ssh", "/proc/kcore", "/proc/sys",
	}
	if got := output(t, h, spec(t, append([]string{"missing"}, secrets...)...)); got != "" {
		t.Errorf("it sees\n%s", got)
	}
	if got := output(t, h, spec(t, "list", "/dev")); got != "fd\nfull\nnull\nrandom\nshm\nstderr\nstdin\nstdout\nurandom\nzero\n" {
		t.Errorf("/dev holds %q", got)
	}
	if got := output(t, h, spec(t, "list", "/usr/local")); got != "" {
		t.Errorf("/usr/local holds %q", got)
	}
}

// refused runs the workload, which must fail with this error.
func refused(t *testing.T, h *Host, s Spec, errno syscall.Errno) {
	t.Helper()
	e := start(t, h, s).Exit()
	if e.Code == 0 || !strings.Contains(string(e.Stderr), errno.Error()) {
		t.Errorf("%v: exit %d, stderr %q; want %v", s.Args, e.Code, e.Stderr, errno)
	}
}

func TestWhatCannotBeWritten(t *testing.T) {
	h := newHost(t)
	for _, path := range []string{"/x", "/etc/x", "/usr/x", "/app/x", "/dev/x"} {
		refused(t, h, spec(t, "write", path), syscall.EROFS)
	}
	// Processes alone are in this /proc; with Landlock the answer may be EACCES.
	refused(t, h, spec(t, "write", "/proc/sys/kernel/core_pattern"), syscall.ENOENT)
	s := spec(t, "write", "/proc/sys/kernel/core_pattern")
	s.WholeProc = true
	if e := start(t, h, s).Exit(); e.Code == 0 {
		t.Error("the host's core_pattern was written")
	}
}

func TestMounts(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("given\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	mounted := func(write, exec bool, args ...string) Spec {
		s := spec(t, args...)
		s.Mounts = []Mount{{Source: open(t, dir), Target: "/in/deep/stage", Write: write, Exec: exec}}
		return s
	}
	if got := output(t, h, mounted(false, false, "read", "/in/deep/stage/file")); got != "given\n" {
		t.Errorf("it read %q", got)
	}
	refused(t, h, mounted(false, false, "write", "/in/deep/stage/new"), syscall.EROFS)
	output(t, h, mounted(true, false, "write", "/in/deep/stage/new"))
	if b, err := os.ReadFile(filepath.Join(dir, "new")); err != nil || string(b) != "written\n" {
		t.Errorf("it wrote %q, %v", b, err)
	}
	refused(t, h, mounted(true, false, "execute", "/in/deep/stage"), syscall.EACCES)

	t.Run("over the system", func(t *testing.T) {
		s := spec(t, "echo")
		s.Mounts = []Mount{{Source: open(t, dir), Target: "/usr/new"}}
		if _, err := h.Start(t.Context(), s); err == nil || !strings.Contains(err.Error(), "/usr/new") {
			t.Errorf("a mount where nothing can be made: %v", err)
		}
	})
	t.Run("writable file", func(t *testing.T) {
		s := spec(t, "echo")
		s.Mounts = []Mount{{Source: open(t, filepath.Join(dir, "file")), Target: "/in/file", Write: true}}
		if _, err := h.Start(t.Context(), s); err == nil {
			t.Error("a writable file whose use of disk nobody counts was mounted")
		}
	})
}

func TestRunDirectory(t *testing.T) {
	h := newHost(t)
	refused(t, h, spec(t, "execute", "."), syscall.EACCES)
	s := spec(t, "execute", ".")
	s.ExecRun = true
	if got := output(t, h, s); got != "executed\n" {
		t.Errorf("got %q", got)
	}
	if err := os.Mkdir(filepath.Join(h.cfg.Run, s.ID), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Start(t.Context(), s); !errors.Is(err, os.ErrExist) {
		t.Errorf("over a run directory that another left: %v", err)
	}
	if err := h.Sweep(); err != nil {
		t.Fatal(err)
	}
}

// The directory of run directories may stand in a directory of somebody else's, who
// can put a link in its place.
func TestRunDirectoriesAreWhereTheyWere(t *testing.T) {
	h := newHost(t)
	moved, victim := h.cfg.Run+"-moved", t.TempDir()
	s := spec(t, "echo", "hello")
	kept := filepath.Join(victim, s.ID)
	if err := errors.Join(os.Rename(h.cfg.Run, moved), os.Symlink(victim, h.cfg.Run), os.Mkdir(kept, 0o755)); err != nil {
		t.Fatal(err)
	}
	if got := output(t, h, s); got != "hello\n" {
		t.Errorf("it printed %q", got)
	}
	if err := h.Sweep(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error("what a link led to was removed")
	}
	if _, err := New(h.cfg); err == nil {
		t.Error("a link was taken for the directory of run directories")
	}
	if err := errors.Join(os.Remove(h.cfg.Run), os.Rename(moved, h.cfg.Run), os.Chown(h.cfg.Run, user, user)); err != nil {
		t.Fatal(err)
	}
	if _, err := New(h.cfg); err == nil {
		t.Error("a user's directory was taken for the directory of run directories")
	}
}

func TestFiles(t *testing.T) {
	s := spec(t, "read", "/proc/version")
	s.WholeProc = true
	s.Files = []File{{Target: "/proc/version", Data: []byte("ours\n")}}
	if got := output(t, newHost(t), s); got != "ours\n" {
		t.Errorf("it read %q", got)
	}
}

func TestDevices(t *testing.T) {
	h := newHost(t)
	output(t, h, spec(t, "open", "/dev/zero"))
	refused(t, h, spec(t, "open", "/dev/tty"), syscall.ENOENT)

	// A node that is there but not admitted: the device program alone holds.
	s := spec(t, "open", "/in/tty")
	s.Mounts = []Mount{{Source: openPath(t, "/dev/ptmx"), Target: "/in/tty"}}
	if e := start(t, h, s).Exit(); e.Code == 0 {
		t.Error("a device that was not admitted was opened")
	}

	var st unix.Stat_t
	if err := unix.Stat("/dev/tty", &st); err != nil {
		t.Skipf("no second device to admit: %v", err)
	}
	s = spec(t, "open", "/dev/tty")
	s.Devices = []Device{{"/dev/tty", unix.Major(st.Rdev), unix.Minor(st.Rdev)}}
	// Admitted, so the kernel goes on to say that there is no terminal.
	refused(t, h, s, syscall.ENXIO)
	s.Devices[0].Minor++
	if _, err := h.Start(t.Context(), s); err == nil || !strings.Contains(err.Error(), "admitted") {
		t.Errorf("a node of another number: %v", err)
	}
}

func openPath(t *testing.T, path string) *os.File {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip(err)
	}
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestExitStatus(t *testing.T) {
	h := newHost(t)
	if e := start(t, h, spec(t, "exit", "42")).Exit(); e.Code != 42 || e.Signal != 0 || e.Cause != Exited {
		t.Errorf("%+v", e)
	}
	if e := start(t, h, spec(t, "signal", "9")).Exit(); e.Code != -1 || e.Signal != syscall.SIGKILL || e.Cause != Exited {
		t.Errorf("%+v", e)
	}
}

func TestPid1SurvivesItsChildren(t *testing.T) {
	if got := output(t, newHost(t), spec(t, "kill1")); got != "alive\n" {
		t.Errorf("got %q", got)
	}
}

func TestOutputIsCapped(t *testing.T) {
	e := start(t, newHost(t), spec(t, "shout", "3000000")).Exit()
	if len(e.Stdout) != 1<<20 || !e.Truncated || e.Code != 0 {
		t.Errorf("kept %d bytes, truncated %v, exit %d", len(e.Stdout), e.Truncated, e.Code)
	}
}

// until polls what only the workload can change.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func processes(w *Workload) int {
	pids, _ := w.group.pids()
	return len(pids)
}

func TestStopTellsEachProcessOnce(t *testing.T) {
	w := start(t, newHost(t), spec(t, "handle"))
	ready(t, w)
	if err := w.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := w.Exit(); e.Code != 7 || string(e.Stdout) != "terms 1\n" || e.Cause != Stopped {
		t.Errorf("%+v %q", e, e.Stdout)
	}
}

// ready waits for the file that the workload makes when it is.
func ready(t *testing.T, w *Workload) {
	t.Helper()
	until(t, "the workload's readiness", func() bool {
		_, err := os.Stat(filepath.Join(w.Run(), "ready"))
		return err == nil
	})
}

func TestStopKillsWhatIgnoresIt(t *testing.T) {
	s := spec(t, "ignore", "20")
	s.Grace = 100 * time.Millisecond
	w := start(t, newHost(t), s)
	until(t, "22 processes", func() bool { return processes(w) == 22 })
	if err := w.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := w.Exit(); e.Cause != Stopped || e.Signal != syscall.SIGKILL {
		t.Errorf("%+v", e)
	}
}

func TestNothingOutlivesTheMainProcess(t *testing.T) {
	w := start(t, newHost(t), spec(t, "daemons"))
	e := w.Exit()
	if e.Cause != Exited || e.Code != 0 {
		t.Errorf("%+v", e)
	}
	if _, err := os.Stat(w.Group()); !os.IsNotExist(err) {
		t.Errorf("the group is still there: %v", err)
	}
}

func TestFrozenIsKilled(t *testing.T) {
	s := spec(t, "sleep")
	s.Grace = time.Millisecond
	w := start(t, newHost(t), s)
	if err := os.WriteFile(filepath.Join(w.Group(), "cgroup.freeze"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if err := w.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestRemovingFollowsNoLinkAndNeedsNoPath(t *testing.T) {
	h := newHost(t)
	output(t, h, spec(t, "mess"))
	output(t, h, spec(t, "nest", "1000"))
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Fatal(err)
	}
}

func TestDiskLimit(t *testing.T) {
	h := newHost(t)
	s := spec(t, "fill", "file", "8")
	s.Limits.Disk = 4 << 20
	// One file cannot pass the limit at all; at it, with its inode, it may be caught too.
	if e := start(t, h, s).Exit(); e.Cause != Disk && !strings.Contains(string(e.Stderr), syscall.EFBIG.Error()) {
		t.Errorf("%+v, stderr %q", e, e.Stderr)
	}

	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	s = spec(t, "fill", "/out/file", "8")
	s.Limits.Disk = 9 << 20
	s.Mounts = []Mount{{Source: open(t, dir), Target: "/out", Write: true}}
	if err := os.WriteFile(filepath.Join(dir, "old"), make([]byte, 2<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	if e := start(t, h, s).Exit(); e.Cause != Disk || !strings.Contains(e.Reason, "limit 9437184") {
		t.Errorf("%+v", e)
	}

	s = spec(t, "sleep")
	s.Limits.Free = 1 << 60
	if e := start(t, h, s).Exit(); e.Cause != Disk || !strings.Contains(e.Reason, "must stay free") {
		t.Errorf("%+v", e)
	}
}

func TestSocket(t *testing.T) {
	h := newHost(t)
	s := spec(t, "listen", "sock")
	s.Socket, s.Umask = "sock", 0
	w := start(t, h, s)
	f, err := w.Socket(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// The run directory is closed; the descriptor is the way in.
	c, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || line != "hello\n" {
		t.Errorf("it said %q, %v", line, err)
	}
	for _, what := range []string{"symlink", "fifo", "directory", "file", "linked"} {
		t.Run(what, func(t *testing.T) {
			s := spec(t, "stand", what)
			s.Socket = "sock"
			if f, err := start(t, h, s).Socket(t.Context()); err == nil {
				t.Errorf("a %s was opened as a socket: %v", what, f.Name())
			}
		})
	}
}

// A workload can pass its output to the other end of its socket. That end then holds
// a stream open for as long as it likes, and holds nothing else up.
func TestOutputThatIsPassedOnHoldsNothingUp(t *testing.T) {
	s := spec(t, "pass", "sock")
	s.Socket, s.Umask = "sock", 0
	w := start(t, newHost(t), s)
	f, err := w.Socket(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() // with the descriptor in it, which nobody has read
	until(t, "the end of the workload", func() bool {
		select {
		case <-w.Done():
			return true
		default:
			return false
		}
	})
	if e := w.Exit(); string(e.Stdout) != "passed\n" || e.Code != 0 {
		t.Errorf("%+v", e)
	}
	if _, err := w.Socket(t.Context()); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("the socket of a workload that has ended: %v", err)
	}
}

func TestStartThatFailsLeavesNothing(t *testing.T) {
	h := newHost(t)
	s := spec(t, "echo")
	s.Program = open(t, "/etc/passwd")
	if _, err := h.Start(t.Context(), s); err == nil || !strings.Contains(err.Error(), "/app/workload") {
		t.Errorf("a program that is none: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("no longer wanted")
	cancel(reason)
	if _, err := h.Start(ctx, spec(t, "echo")); !errors.Is(err, reason) {
		t.Errorf("a start that was given up: %v", err)
	}
	for name, break_ := range map[string]func(*Spec){
		"id":      func(s *Spec) { s.ID = "../x" },
		"program": func(s *Spec) { s.Program = nil },
		"args":    func(s *Spec) { s.Args = []string{"a/b"} },
		"socket":  func(s *Spec) { s.Socket = "../x" },
		"mount":   func(s *Spec) { s.Mounts = []Mount{{Source: s.Program, Target: "/in/../etc"}} },
		"file":    func(s *Spec) { s.Files = []File{{Target: "etc"}} },
		"device":  func(s *Spec) { s.Devices = []Device{{Path: "/etc/passwd"}} },
		"limit":   func(s *Spec) { s.Limits.Memory = -1 },
		"nesting": func(s *Spec) {
			s.Mounts = []Mount{{Source: s.Program, Target: "/in/a"}, {Source: s.Program, Target: "/in/a/link/etc"}}
		},
	} {
		s := spec(t, "echo")
		break_(&s)
		if s.check() == nil {
			t.Errorf("a wrong %s was accepted", name)
		}
	}
}

func TestParkedStageIsUsedOnceAndReplacedWhenDead(t *testing.T) {
	h := newHost(t)
	for range 2 {
		if err := h.Park(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	parked := h.parked
	if w := start(t, h, spec(t, "sleep")); w.process != parked {
		t.Error("Start made a stage though one was parked")
	}
	if err := h.Park(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.parked.group.kill(); err != nil {
		t.Fatal(err)
	}
	until(t, "the parked stage's death", func() bool { return !h.parked.alive() })
	s := spec(t, "echo", "anew")
	s.ID += "2"
	if got := output(t, h, s); got != "anew\n" {
		t.Errorf("got %q", got)
	}
}

// A launcher that systemd starts has descriptor 3 free, and so the binary on it, where
// the child is given its control socket.
func TestStageBinaryIsKeptOutOfTheChildsWay(t *testing.T) {
	if fd := newHost(t).stage.Fd(); fd < 64 {
		t.Errorf("it is on descriptor %d", fd)
	}
}

func TestNewRefuses(t *testing.T) {
	h := newHost(t)
	seen, err := os.MkdirTemp("/usr", "sandbox-test-")
	if err != nil {
		t.Skipf("nothing can be made below /usr: %v", err)
	}
	defer os.Remove(seen)
	script := filepath.Join(t.TempDir(), "stage")
	if err := os.WriteFile(script, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"which every workload sees":       func(c *Config) { c.Run = seen },
		"stage is not an executable file": func(c *Config) { c.Stage = open(t, script) },
		"is not an executable file (d":    func(c *Config) { c.Stage = open(t, "/etc") },
		"cannot run as root":              func(c *Config) { c.User = 0 },
		"not an absolute path":            func(c *Config) { c.Group = "x" },
		"that only root can write to":     func(c *Config) { c.Run = "/tmp" },
	} {
		cfg := h.cfg
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

func TestLimitWithoutItsController(t *testing.T) {
	h := newHost(t)
	if _, err := os.Stat(filepath.Join(h.cfg.Group, "memory.max")); err == nil {
		t.Skip("this host has the memory controller here")
	}
	s := spec(t, "echo")
	s.Limits.Memory = 1 << 30
	if _, err := h.Start(t.Context(), s); err == nil || !strings.Contains(err.Error(), "the controller memory is not on in "+h.cfg.Group) {
		t.Errorf("%v", err)
	}
}

// What a workload must not do to what is outside it, or is kept.
func TestWhatIsRefused(t *testing.T) {
	h := newHost(t)
	for _, what := range []string{"watch /usr", "notify of /usr", "set-user-id", "made set-user-id", "preallocate", "openat2"} {
		e := start(t, h, spec(t, "refused", what)).Exit()
		if e.Code != 0 {
			t.Errorf("%s: %s", what, e.Stderr)
		}
	}
}

// TestSweep is the crash of a launcher: another Host finds what the first one left.
func TestSweep(t *testing.T) {
	h := newHost(t)
	w := start(t, h, spec(t, "sleep"))
	if err := h.Park(t.Context()); err != nil {
		t.Fatal(err)
	}
	next, err := New(h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Sweep(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{h.cfg.Group, h.cfg.Run} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() {
				t.Errorf("%s/%s is left", dir, e.Name())
			}
		}
	}
	<-w.Done()
}

func TestAWorkloadEndsWithItsHost(t *testing.T) {
	w := start(t, newHost(t), spec(t, "ignore", "3"))
	w.control.Close() // as when the launcher is killed
	if e := w.Exit(); e.Code == 0 {
		t.Errorf("%+v", e)
	}
}

func TestCaptureReadsOn(t *testing.T) {
	c := capture{keep: 3}
	r, w := io.Pipe()
	go func() { io.WriteString(w, "abcdef"); w.Close() }()
	c.drain(r)
	if string(c.kept) != "abc" || !c.cut {
		t.Errorf("kept %q, cut %v", c.kept, c.cut)
	}
	c = capture{keep: 3}
	c.drain(strings.NewReader("abc"))
	if string(c.kept) != "abc" || c.cut {
		t.Errorf("kept %q, cut %v", c.kept, c.cut)
	}
}
