//go:build linux

package filter

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A filter cannot be taken off, so what is tried under one is tried in a child:
// this binary again, with the name of a child in its environment.
const childEnv = "FILTER_TEST_CHILD"

var children = map[string]func() error{
	"calls":   func() error { return callAll(false) },
	"calls+":  func() error { return callAll(true) },
	"threads": threads,
	"runtime": goRuntime,
	"inet":    inetSockets,
	"exec":    execUnder,
	"bare":    installBare,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if err := children[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is this binary as one of children. A test that waits for one gets its
// own time limit: a child that hangs is a fault.
func child(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	if len(Program(Profile{})) == 0 {
		t.Skipf("there is no filter for %s", runtime.GOARCH)
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	// Not the host's /dev/null: fchmod(0, 0) is among the calls that are made.
	cmd.Stdin = strings.NewReader("")
	return cmd
}

// succeeds waits for a child that says nothing and exits 0 when all is well.
func succeeds(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// install is what the stage does last.
func install(p Profile) error {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return Install(p)
}

// unmade are calls that this test cannot make, because with no arguments they
// would not tell.
var unmade = map[string]string{
	"vfork":        "the two processes share a stack, which a plain call corrupts",
	"rt_sigreturn": "takes registers from a signal frame that is not there: SIGSEGV",
	"uretprobe":    "SIGILL outside the kernel's own trampoline",
	"uprobe":       "SIGILL outside the kernel's own trampoline",
	"pause":        "waits for ever",
	"select":       "waits for ever",
	"pselect6":     "waits for ever",
	"ppoll":        "waits for ever",
	"seccomp":      "zero is strict mode, in which the exit is refused too",
	"msgget":       "leaves a queue that outlives the process",
}

// callAll prints the outcome of every call, one line each: a number and how its
// process ended.
func callAll(filtered bool) error {
	calls, err := golden(runtime.GOARCH, false)
	if err != nil {
		return err
	}
	if filtered {
		if err := install(Profile{}); err != nil {
			return err
		}
		for _, call := range calls {
			if unmade[call.name] == "" {
				fmt.Println(call.number, outcome(call.number))
			}
		}
		return nil
	}
	// Without the filter only what it allows is called, which is harmless.
	for _, call := range calls {
		if unmade[call.name] == "" && call.zeros() == "allow" {
			fmt.Println(call.number, outcome(call.number))
		}
	}
	return nil
}

var tenSeconds = unix.Itimerval{Value: unix.Timeval{Sec: 10}}

// outcome makes a call with no argument set in a process of its own, whose exit
// status is the errno, or 0 that the call succeeded. Between the
// fork and the exit only raw calls are made, for the child has one thread of the
// runtime's and none of the rest.
func outcome(number uint32) string {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return "cannot fork: " + errno.Error()
	}
	if pid == 0 {
		syscall.RawSyscall(unix.SYS_SETITIMER, 0, uintptr(unsafe.Pointer(&tenSeconds)), 0)
		_, _, errno = syscall.RawSyscall6(uintptr(number), 0, 0, 0, 0, 0, 0)
		for {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
		}
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(int(pid), &status, 0, nil); err != nil {
		return "cannot wait: " + err.Error()
	}
	switch {
	case status.Signaled() && status.Signal() == unix.SIGALRM:
		return "did not return in ten seconds"
	case status.Signaled():
		return unix.SignalName(status.Signal())
	case status.ExitStatus() == 0:
		return "success"
	}
	return unix.ErrnoName(unix.Errno(status.ExitStatus()))
}

func TestTheKernelAnswersAsTheGoldenTableSays(t *testing.T) {
	outcomes := func(name string) map[uint32]string {
		var stderr bytes.Buffer
		cmd := child(t, name)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s%s", err, out, &stderr)
		}
		all := make(map[uint32]string)
		for line := range strings.Lines(string(out)) {
			var number uint32
			var outcome string
			if _, err := fmt.Sscanf(line, "%d %s", &number, &outcome); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			all[number] = outcome
		}
		return all
	}
	without, with := outcomes("calls"), outcomes("calls+")
	made := 0
	for _, call := range (target{arch: runtime.GOARCH}).calls(t) {
		if reason := unmade[call.name]; reason != "" {
			t.Logf("%s (%d) was not called: %s", call.name, call.number, reason)
			continue
		}
		made++
		want := call.zeros()
		if want == "allow" {
			want = without[call.number]
		}
		if got := with[call.number]; got == "" || got != want {
			t.Errorf("%s (%d): %q, want %q (%s)", call.name, call.number, got, want, call.verdict)
		}
	}
	t.Logf("%d calls made", made)
}

func TestInstallReachesEveryThread(t *testing.T) { succeeds(t, child(t, "threads")) }

// threads proves TSYNC: threads older than the filter have it, and new ones too.
func threads() error {
	var ready, done sync.WaitGroup
	installed := make(chan struct{})
	errs := make(chan error, 20)
	refused := func() {
		// With no flag set unshare succeeds where it is allowed.
		if err := unix.Unshare(0); err != unix.EPERM {
			errs <- fmt.Errorf("thread %d: unshare: %v", unix.Gettid(), err)
		}
	}
	for range 10 {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			<-installed
			refused()
		})
	}
	ready.Wait()
	if err := install(Profile{}); err != nil {
		return err
	}
	close(installed)
	for range 10 {
		done.Go(func() {
			runtime.LockOSThread()
			refused()
		})
	}
	done.Wait()
	close(errs)
	return <-errs
}

func TestInstallWantsNoNewPrivs(t *testing.T) { succeeds(t, child(t, "bare")) }

func installBare() error {
	if set, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); set == 1 {
		return nil // the tests run under it themselves
	}
	if err := Install(Profile{}); err == nil || !strings.Contains(err.Error(), "no_new_privs") {
		return fmt.Errorf("installed without no_new_privs: %v", err)
	}
	return nil
}

func TestGoWorksUnderTheFilter(t *testing.T) {
	cmd := child(t, "runtime")
	cmd.Dir = t.TempDir() // for its socket
	succeeds(t, cmd)
}

// goRuntime is pid 1's life: threads, timers, signals, children, sockets.
func goRuntime() error {
	if err := install(Profile{}); err != nil {
		return err
	}

	// Threads: each goroutine blocks one in read(2).
	var readers sync.WaitGroup
	var pipes []int
	for range 50 {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		pipes = append(pipes, p[1])
		readers.Go(func() { unix.Read(p[0], make([]byte, 1)) })
	}
	for _, w := range pipes {
		unix.Write(w, []byte{1})
	}
	readers.Wait()

	// Memory: grow, collect, give back.
	var held [][]byte
	for range 64 {
		held = append(held, make([]byte, 1<<20))
	}
	runtime.KeepAlive(held)
	runtime.GC()

	// Timers and signals.
	ticker := time.NewTicker(time.Millisecond)
	for range 3 {
		<-ticker.C
	}
	got := make(chan os.Signal, 1)
	signal.Notify(got, unix.SIGTERM)
	if err := unix.Kill(os.Getpid(), unix.SIGTERM); err != nil {
		return err
	}
	<-got

	// Children, with a pidfd and without.
	if out, err := exec.Command("/bin/sh", "-c", "ls / | sort | head -1; exit 3").CombinedOutput(); err == nil || err.Error() != "exit status 3" {
		return fmt.Errorf("os/exec: %v: %s", err, out)
	}
	pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
	if err != nil {
		return fmt.Errorf("ForkExec: %w", err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || status.ExitStatus() != 0 {
		return fmt.Errorf("wait4: %v, status %d", err, status)
	}
	pidfd := -1
	_, err = syscall.ForkExec("/bin/cat", []string{"cat", "/dev/zero"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{PidFD: &pidfd}})
	if err != nil || pidfd < 0 {
		return fmt.Errorf("ForkExec with a pidfd: %d, %w", pidfd, err)
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil {
		return fmt.Errorf("pidfd_send_signal: %w", err)
	}
	if err := unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED, nil); err != nil {
		return fmt.Errorf("waitid: %w", err)
	}

	// Namespaces, by each way that Go has.
	for _, flags := range []uintptr{unix.CLONE_NEWUSER, unix.CLONE_NEWNS, unix.CLONE_NEWNET, unix.CLONE_NEWPID} {
		_, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Cloneflags: flags}})
		if !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("clone with %#x: %v", flags, err)
		}
	}
	if _, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{UseCgroupFD: true}}); !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("clone3: %v", err)
	}

	// The network poller, and what there is no network for.
	listener, err := net.Listen("unix", "socket")
	if err != nil {
		return err
	}
	if err := echo(listener); err != nil {
		return err
	}
	if _, err := net.Listen("tcp", "127.0.0.1:0"); !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("tcp: %v", err)
	}
	if _, err := net.Interfaces(); err != nil { // netlink
		return err
	}
	if _, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0); err != unix.EAFNOSUPPORT {
		return fmt.Errorf("AF_VSOCK: %v", err)
	}
	return nil
}

// echo sends a word through a listener and back.
func echo(listener net.Listener) error {
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			io.Copy(conn, conn)
			conn.Close()
		}
	}()
	conn, err := net.Dial(listener.Addr().Network(), listener.Addr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	word := []byte("word")
	if _, err := conn.Write(word); err != nil {
		return err
	}
	back := make([]byte, len(word))
	if _, err := io.ReadFull(conn, back); err != nil || !bytes.Equal(word, back) {
		return fmt.Errorf("%s: %q came back: %v", listener.Addr().Network(), back, err)
	}
	return nil
}

func TestInetWorksWithItsProfile(t *testing.T) { succeeds(t, child(t, "inet")) }

func inetSockets() error {
	if err := install(Profile{Inet: true}); err != nil {
		return err
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := echo(listener); err != nil {
		return err
	}
	packet, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	packet.Close()
	if _, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP); err != unix.EPROTONOSUPPORT {
		return fmt.Errorf("a raw socket: %v", err)
	}
	return nil
}

// execUnder becomes the program of its arguments, filtered.
func execUnder() error {
	if err := install(Profile{}); err != nil {
		return err
	}
	return unix.Exec(os.Args[1], os.Args[1:], os.Environ())
}

const pythonScript = `
import ctypes, errno, mmap, multiprocessing.shared_memory, os, socket, subprocess, tempfile, threading

def serve(s, n):
    c, _ = s.accept()
    c.sendall(c.recv(4) * n)
    c.close()

path = os.path.join(tempfile.mkdtemp(dir="."), "socket")
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
s.bind(path)
s.listen()
threads = [threading.Thread(target=serve, args=(s, i)) for i in range(1, 9)]
for t in threads: t.start()
sizes = []
for t in threads:
    c = socket.socket(socket.AF_UNIX)
    c.connect(path)
    c.sendall(b"word")
    sizes.append(len(b"".join(iter(lambda: c.recv(64), b""))))
for t in threads: t.join()
assert sorted(sizes) == [4 * i for i in range(1, 9)], sizes
assert subprocess.run(["ls", "/"], capture_output=True).returncode == 0
try:
    socket.socket(socket.AF_INET)
    raise SystemExit("AF_INET was made")
except OSError as e:
    assert e.errno == errno.EAFNOSUPPORT, e
try:
    import numpy
except ImportError:
    print("without numpy")
else:
    a = numpy.ones((500, 500))
    assert (a @ a).sum() == 500 ** 3
`

func TestPythonWorksUnderTheFilter(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3 here")
	}
	cmd := child(t, "exec", python, "-c", pythonScript)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// TestForeignCallsEndTheProcess makes the two kinds of foreign call that an amd64
// process can make. Both are getpid: allowed, were the number all that counted.
func TestForeignCallsEndTheProcess(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("only amd64 has two ways to call besides its own")
	}
	const exit = "\x31\xff\xb8\xe7\x00\x00\x00\x0f\x05" // xor edi, edi; mov eax, exit_group; syscall
	tests := []struct{ name, code string }{
		{"int 0x80", "\xb8\x14\x00\x00\x00\xcd\x80"},                // mov eax, 20; int 0x80
		{"x32", "\xb8\x27\x00\x00\x40\x0f\x05"},                     // mov eax, 0x40000000+39; syscall
		{"its own, for comparison", "\xb8\x27\x00\x00\x00\x0f\x05"}, // mov eax, 39; syscall
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "program")
			if err := os.WriteFile(path, elf(test.code+exit), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := exec.Command(path).Run(); err != nil {
				t.Skipf("this kernel does not take the call even without a filter (no ia32 emulation?): %v", err)
			}
			err := child(t, "exec", path).Run()
			if test.code == tests[2].code {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var exited *exec.ExitError
			if !errors.As(err, &exited) || exited.Sys().(syscall.WaitStatus).Signal() != unix.SIGSYS {
				t.Fatalf("under the filter: %v, want SIGSYS", err)
			}
		})
	}
}

// elf is the smallest static program of code: a header, one segment, the code.
func elf(code string) []byte {
	const base, header = 0x400000, 64 + 56
	le := binary.LittleEndian
	b := []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	b = le.AppendUint16(b, 2)  // an executable
	b = le.AppendUint16(b, 62) // of x86-64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+header) // that starts behind the headers
	b = le.AppendUint64(b, 64)          // where the program headers are
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, size := range []uint16{64, 56, 1, 64, 0, 0} {
		b = le.AppendUint16(b, size)
	}
	size := uint64(header + len(code))
	b = le.AppendUint32(b, 1) // load
	b = le.AppendUint32(b, 5) // to read and execute
	for _, v := range []uint64{0, base, base, size, size, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...)
}
