//go:build linux

package attempt

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Ready is the Unix socket that a behaviour makes in its working directory once
// it is doing what it is for.
const Ready = "ready"

// A behaviour is a mode of [Main] other than the list: one thing that a hostile
// or broken workload does, to be judged from outside.
type behaviour struct {
	name, args string
	does       string
	run        func(args []string, w io.Writer) error
}

// behaviours is the table of them. Sizes are in bytes.
func behaviours() []behaviour {
	return []behaviour{
		{"wait", "", "is ready, and waits for its end", waits},
		{"exit", "STATUS", "ends at once", exits},
		{"crash", "", "dies of SIGSEGV", crash},
		{"print", "BYTES", "writes that much to each of stdout and stderr, and ends", prints},
		{"open", "PATH...", "prints what opening each answers", opens},
		{"double-fork", "[exit]", "leaves a daemon in a session of its own; waits, or ends", doubleFork},
		{"ignore-term", "N", "is N processes that ignore SIGTERM", ignoreTerm},
		{"forkbomb", "N", "forks until it may not, N times at most; prints how often", forkBomb},
		{"threads", "N", "starts threads until it may not, N at most", threads},
		{"zombies", "N", "leaves N ended processes to pid 1, and ends when they are reaped", leaveZombies},
		{"spin", "N", "keeps N processors busy", spin},
		{"stop-self", "", "stops itself with SIGSTOP", stopSelf},
		{"memory-bomb", "anonymous|locked|huge|cache|shm|pipes|sockets BYTES", "takes that much memory; prints what it got", memoryBomb},
		{"fill-disk", "BYTES [FOLDER]", "writes files until it may not, BYTES at most; prints how many", fillDisk},
		{"fill-shm", "BYTES", "writes to /dev/shm until it may not; prints how many", fillShared},
		{"outputs", "FOLDER N", "fills a new folder with traps for an uploader, and N empty files", outputs},
		{"socket", "NAME plain|rebind|symlink|hardlink|fifo|directory|file [TARGET]", "puts that where a socket is expected", sockets},
		{"peer", "NAME [SHARED]", "shares all it can, and on being told of another peer tries to reach it", peer},
	}
}

// behave runs a behaviour and answers the exit status.
func behave(mode string, args []string, w io.Writer) int {
	all := behaviours()
	i := slices.IndexFunc(all, func(b behaviour) bool { return b.name == mode })
	if i < 0 {
		fmt.Fprintf(os.Stderr, "no mode %q\n", mode)
		return 2
	}
	if err := all[i].run(args, w); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", mode, err)
		if status, ok := err.(exitStatus); ok {
			return int(status)
		}
		return 1
	}
	return 0
}

// An exitStatus is an error that says what to exit with.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("asked to exit with %d", int(s)) }

// number is args[i], which must be a whole number.
func number(args []string, i int) (int64, error) {
	if i >= len(args) {
		return 0, errors.New("a number is missing")
	}
	return strconv.ParseInt(args[i], 10, 64)
}

// ready says that the behaviour is in place, and keeps on saying so.
func ready() error {
	_, err := listenUnix(Ready)
	return err
}

// listenUnix makes a socket that takes connections from the moment it has its
// name. A name that begins with a zero byte is abstract.
func listenUnix(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	abstract, before := name[0] == 0, name
	if !abstract {
		before += ".new"
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: before}); err != nil {
		return -1, fmt.Errorf("bind %s: %w", name, err)
	}
	if err := unix.Listen(fd, 16); err != nil || abstract {
		return fd, err
	}
	return fd, os.Rename(before, name)
}

func waits([]string, io.Writer) error { return waitForEnd() }

// waitForEnd is ready and waits for SIGTERM.
func waitForEnd() error {
	if err := ready(); err != nil {
		return err
	}
	return waitForTerm()
}

func waitForTerm() error {
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM)
	<-end
	return nil
}

func exits(args []string, _ io.Writer) error {
	status, err := number(args, 0)
	if err != nil || status == 0 {
		return err
	}
	return exitStatus(status)
}

func crash([]string, io.Writer) error {
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGSEGV), defaultAddress, 0, 8, 0, 0)
	unix.Kill(os.Getpid(), unix.SIGSEGV)
	return waitForEnd()
}

func prints(args []string, w io.Writer) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	for _, w := range []io.Writer{w, os.Stderr} {
		line := []byte("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde\n")
		for left := n; left > 0; left -= int64(len(line)) {
			if _, err := w.Write(line[:min(int64(len(line)), left)]); err != nil {
				return err
			}
		}
	}
	return nil
}

func opens(args []string, w io.Writer) error {
	for _, path := range args {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		fmt.Fprintf(w, "%s: %s\n", path, answer(err))
	}
	return nil
}

func doubleFork(args []string, w io.Writer) error {
	signal.Ignore(unix.SIGTERM, unix.SIGHUP) // which the daemon inherits
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	child, errno := fork()
	if errno != 0 {
		return errno
	}
	if child == 0 {
		unix.RawSyscall6(unix.SYS_SETSID, 0, 0, 0, 0, 0, 0)
		if pid, _ := fork(); pid == 0 {
			unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0, 0)
			fork() // one more, which the daemon is to reap
			unix.RawSyscall6(unix.SYS_WRITE, uintptr(pipe[1]), defaultAddress, 1, 0, 0, 0)
			idle()
		}
		exit(0)
	}
	if _, err := reap(child); err != nil {
		return err
	}
	unix.Close(pipe[1])
	for range 2 { // both daemons say that they are there
		if n, err := unix.Read(pipe[0], make([]byte, 1)); err != nil || n == 0 {
			return fmt.Errorf("the daemons were not made: %v", err)
		}
	}
	fmt.Fprintln(w, "daemons are left")
	if len(args) > 0 && args[0] == "exit" {
		return nil
	}
	signal.Reset(unix.SIGTERM)
	return waitForEnd()
}

func ignoreTerm(args []string, w io.Writer) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	signal.Ignore(unix.SIGTERM) // which the children inherit
	for i := int64(1); i < n; i++ {
		child, errno := fork()
		if errno != 0 {
			return fmt.Errorf("after %d: %w", i, errno)
		}
		if child == 0 {
			idle()
		}
	}
	fmt.Fprintln(w, n)
	if err := ready(); err != nil {
		return err
	}
	idle()
	return nil
}

func forkBomb(args []string, w io.Writer) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	made := int64(0)
	for ; made < n; made++ {
		child, errno := fork()
		if errno != 0 {
			fmt.Fprintf(w, "%d, then %s\n", made, errnoName(errno))
			return waitForEnd()
		}
		if child == 0 {
			unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0, 0)
			idle()
		}
	}
	fmt.Fprintf(w, "%d, all\n", made)
	return waitForEnd()
}

// threads ends with the runtime's own words when it may have no more: Go cannot
// go on without a thread it asked for.
func threads(args []string, w io.Writer) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	debug.SetMaxThreads(int(n) + 64)
	started := make(chan struct{})
	for range n {
		go func() {
			runtime.LockOSThread()
			started <- struct{}{}
			for {
				unix.Pause() // and not idle, which keeps one of the runtime's processors
			}
		}()
		<-started
	}
	fmt.Fprintf(w, "%d, all\n", n)
	return waitForEnd()
}

func leaveZombies(args []string, w io.Writer) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	const batch = 100 // of which each is let be reaped before the next
	for made := int64(0); made < n; made += batch {
		if err := orphan(int(min(batch, n-made))); err != nil {
			return fmt.Errorf("after %d: %w", made, err)
		}
		if left := awaitReaped(time.Minute); left > 0 {
			return fmt.Errorf("%d zombies are left after %d", left, made)
		}
	}
	fmt.Fprintf(w, "%d, reaped\n", n)
	return nil
}

func spin(args []string, _ io.Writer) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(int(n) + 1)
	for range n {
		go func() {
			for sum := [32]byte{}; ; {
				sum = sha256.Sum256(sum[:])
			}
		}()
	}
	return waitForEnd()
}

func stopSelf([]string, io.Writer) error {
	if err := ready(); err != nil {
		return err
	}
	return unix.Kill(os.Getpid(), unix.SIGSTOP)
}

// memoryBomb takes memory of a kind, in a child, whose death takes the parent
// along when the group is killed as one.
func memoryBomb(args []string, w io.Writer) error {
	if len(args) < 1 {
		return errors.New("a kind of memory is missing")
	}
	n, err := number(args, 1)
	if err != nil {
		return err
	}
	switch args[0] {
	case "anonymous":
		return bombInChild(n, unix.MAP_POPULATE, w)
	case "locked":
		unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: uint64(n), Max: uint64(n)})
		unix.Mlockall(unix.MCL_FUTURE)
		return bombInChild(n, unix.MAP_POPULATE|unix.MAP_LOCKED, w)
	case "huge":
		return bombInChild(n, unix.MAP_POPULATE|unix.MAP_HUGETLB, w)
	case "cache":
		return said(w)(fill("cache", n))
	case "shm":
		return said(w)(fill("/dev/shm/bomb", n))
	case "pipes":
		return said(w)(fillQueues(n, func() (fds [2]int, err error) {
			if err = unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err == nil {
				unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, 1<<20)
			}
			return fds, err
		}))
	case "sockets":
		return said(w)(fillQueues(n, func() (fds [2]int, err error) {
			fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				unix.SetsockoptInt(fds[1], unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<24)
			}
			return fds, err
		}))
	}
	return fmt.Errorf("no kind of memory %q", args[0])
}

// said prints how much was taken and what stopped it, and waits: nothing of it is
// let go before the end.
func said(w io.Writer) func(int64, error) error {
	return func(n int64, err error) error {
		fmt.Fprintf(w, "%d, then %s\n", n, answer(err))
		return waitForEnd()
	}
}

func bombInChild(n int64, flags uintptr, w io.Writer) error {
	const chunk = 4 << 20
	child, errno := fork()
	if errno != 0 {
		return errno
	}
	if child == 0 {
		for taken := int64(0); taken < n; taken += chunk {
			_, _, e := unix.RawSyscall6(unix.SYS_MMAP, 0, chunk, unix.PROT_READ|unix.PROT_WRITE,
				unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags, ^uintptr(0), 0)
			if e != 0 {
				exit(uintptr(e))
			}
		}
		exit(0)
	}
	status, err := reap(child)
	if err != nil {
		return err
	}
	if status.Signaled() {
		return fmt.Errorf("only the child was killed, by %s", unix.SignalName(status.Signal()))
	}
	if err := asErrno(status.ExitStatus()); err != nil {
		fmt.Fprintf(w, "less than %d, then %s\n", n, answer(err))
		return nil
	}
	fmt.Fprintf(w, "%d, all\n", n)
	return nil
}

// fillQueues fills what two descriptors have between them, until n bytes lie
// there or no more can be had.
func fillQueues(n int64, pair func() ([2]int, error)) (int64, error) {
	block := make([]byte, 1<<16)
	var taken int64
	for taken < n {
		fds, err := pair()
		if err != nil {
			return taken, err
		}
		before := taken
		for taken < n {
			m, err := unix.Write(fds[1], block)
			if err != nil {
				break // full
			}
			taken += int64(m)
		}
		if taken == before {
			return taken, unix.EAGAIN
		}
	}
	return taken, nil
}

// fillDisk writes many files, so that no limit on the size of one stops it.
func fillDisk(args []string, w io.Writer) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	folder := "."
	if len(args) > 1 {
		folder = args[1]
	}
	const each = 8 << 20
	var written int64
	for i := 0; written < n && err == nil; i++ {
		var m int64
		m, err = fill(filepath.Join(folder, fmt.Sprintf("filler-%d", i)), min(each, n-written))
		written += m
	}
	return said(w)(written, err)
}

func fillShared(args []string, w io.Writer) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	return said(w)(fill("/dev/shm/filler", n))
}

func outputs(args []string, w io.Writer) error {
	if len(args) < 1 {
		return errors.New("a folder is missing")
	}
	n, err := number(args, 1)
	if err != nil {
		return err
	}
	if err := makeTraps(args[0], int(n), nil); err != nil {
		return err
	}
	fmt.Fprintln(w, "made")
	return nil
}

// sockets puts something at the name where a socket is expected, and waits.
func sockets(args []string, _ io.Writer) error {
	if len(args) < 2 {
		return errors.New("a name and a kind are missing")
	}
	name, kind, target := args[0], args[1], "/etc/passwd"
	if len(args) > 2 {
		target = args[2]
	}
	var err error
	switch kind {
	case "plain", "rebind":
		var fd int
		if fd, err = listenUnix(name); err != nil {
			return err
		}
		if kind == "plain" {
			return serve(fd)
		}
		// Whoever connects first is answered, and finds another socket afterwards.
		c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if err != nil {
			return err
		}
		unix.Unlink(name)
		unix.Close(fd)
		if fd, err = listenUnix(name); err != nil {
			return err
		}
		unix.Write(c, []byte("rebound\n"))
		unix.Close(c)
		return serve(fd)
	case "symlink":
		err = os.Symlink(target, name)
	case "hardlink":
		if _, err = listenUnix("other"); err == nil {
			err = os.Link("other", name)
		}
	case "fifo":
		err = unix.Mkfifo(name, 0o666)
	case "directory":
		err = os.Mkdir(name, 0o777)
	case "file":
		err = os.WriteFile(name, nil, 0o666)
	default:
		err = fmt.Errorf("no kind of thing %q", kind)
	}
	if err != nil {
		return err
	}
	return waitForTerm()
}

// serve answers "ok" to everyone who connects.
func serve(fd int) error {
	for {
		c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if err != nil {
			return err
		}
		unix.Write(c, []byte("ok\n"))
		unix.Close(c)
	}
}
