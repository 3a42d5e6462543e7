//go:build linux

package attempt

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// Ready is the Unix socket that a behaviour makes in its working directory once
// it is doing what it is for.
const Ready = "ready"

// behaviours are the modes of [Main] other than the list: each is one thing that a
// hostile or broken workload does, to be judged from outside. What follows the
// mode are words and a number, of processes, threads or bytes.
var behaviours = map[string]func(words []string, n int64, w io.Writer) error{
	"double-fork": doubleFork, // leaves daemons in a session of their own; waits, or with the word exit ends
	"fill-disk":   fillDisk,   // writes up to n bytes to a folder
	"forkbomb":    forkBomb,   // forks until it may not, n times at most
	"ignore-term": ignoreTerm, // is n processes that ignore SIGTERM
	"memory-bomb": memoryBomb, // takes n bytes of a sort of memory
	"peer":        peer,       // NAME SHARED: shares all it can, and looks for another peer
	"socket":      notASocket, // puts a symlink, hardlink, fifo, directory or file where its socket is expected
	"spin":        spin,       // keeps n processors busy
	"stop-self":   stopSelf,   // stops itself with SIGSTOP
	"threads":     threads,    // starts threads until it may not, n at most
}

// behave runs a behaviour and answers the exit status.
func behave(mode string, args []string, w io.Writer) int {
	does := behaviours[mode]
	if does == nil {
		fmt.Fprintf(os.Stderr, "no mode %q\n", mode)
		return 2
	}
	var words []string
	var n int64
	for _, arg := range args {
		if number, err := strconv.ParseInt(arg, 10, 64); err == nil {
			n = number
		} else {
			words = append(words, arg)
		}
	}
	if err := does(words, n, w); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", mode, err)
		return 1
	}
	return 0
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

// waitForEnd is ready and waits for SIGTERM.
func waitForEnd() error {
	if _, err := listenUnix(Ready); err != nil {
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

func doubleFork(words []string, _ int64, w io.Writer) error {
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
	if len(words) > 0 {
		return nil
	}
	signal.Reset(unix.SIGTERM)
	return waitForEnd()
}

func ignoreTerm(_ []string, n int64, w io.Writer) error {
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
	if _, err := listenUnix(Ready); err != nil {
		return err
	}
	idle()
	return nil
}

func forkBomb(_ []string, n int64, w io.Writer) error {
	var made int64
	var errno unix.Errno
	for made < n {
		var child int
		if child, errno = fork(); errno != 0 {
			break
		}
		if child == 0 {
			unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0, 0)
			idle()
		}
		made++
	}
	return said(w, made, asErrno(int(errno)))
}

// threads ends with the runtime's own words when it may have no more: Go cannot
// go on without a thread it asked for.
func threads(_ []string, n int64, w io.Writer) error {
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
	return said(w, n, nil)
}

func spin(_ []string, n int64, _ io.Writer) error {
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

func stopSelf([]string, int64, io.Writer) error {
	if _, err := listenUnix(Ready); err != nil {
		return err
	}
	return unix.Kill(os.Getpid(), unix.SIGSTOP)
}

// said prints how much was had and what stopped it, and waits: nothing of it is
// let go before the end.
func said(w io.Writer, n int64, err error) error {
	fmt.Fprintf(w, "%d, then %s\n", n, answer(err))
	return waitForEnd()
}

func memoryBomb(words []string, n int64, w io.Writer) error {
	var taken int64
	var err error
	switch words[0] {
	case "anonymous":
		taken, err = mapInChild(n, 0)
	case "locked":
		unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: uint64(n), Max: uint64(n)})
		taken, err = mapInChild(n, unix.MAP_LOCKED)
	case "huge":
		taken, err = mapInChild(n, unix.MAP_HUGETLB)
	case "pipes":
		taken, err = fillQueues(n, func() (fds [2]int, err error) {
			if err = unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err == nil {
				unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, 1<<20)
			}
			return fds, err
		})
	case "sockets":
		taken, err = fillQueues(n, func() (fds [2]int, err error) {
			fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				unix.SetsockoptInt(fds[1], unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<24)
			}
			return fds, err
		})
	default:
		err = fmt.Errorf("no sort of memory %q", words[0])
	}
	if _, refused := err.(unix.Errno); err != nil && !refused {
		return err
	}
	return said(w, taken, err)
}

// mapInChild maps and touches n bytes in a child, whose death takes the parent
// along when the group is killed as one.
func mapInChild(n int64, flags uintptr) (int64, error) {
	const chunk = 4 << 20
	var pipe [2]int // on which the child says how many it has
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	child, errno := fork()
	if errno != 0 {
		return 0, errno
	}
	if child == 0 {
		for taken := int64(0); taken < n; taken += chunk {
			_, _, e := unix.RawSyscall6(unix.SYS_MMAP, 0, chunk, unix.PROT_READ|unix.PROT_WRITE,
				unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE|flags, ^uintptr(0), 0)
			if e != 0 {
				exit(uintptr(e))
			}
			unix.RawSyscall6(unix.SYS_WRITE, uintptr(pipe[1]), defaultAddress, 1, 0, 0, 0)
		}
		exit(0)
	}
	unix.Close(pipe[1])
	defer unix.Close(pipe[0])
	var taken int64
	for one := make([]byte, 1<<12); ; {
		m, err := unix.Read(pipe[0], one)
		if err == unix.EINTR {
			continue
		}
		if err != nil || m == 0 {
			break
		}
		taken += int64(m) * chunk
	}
	status, err := reap(child)
	if err == nil && status.Signaled() {
		err = fmt.Errorf("only the child was killed, by %s", unix.SignalName(status.Signal()))
	} else if err == nil {
		err = asErrno(status.ExitStatus())
	}
	return taken, err
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
func fillDisk(words []string, n int64, w io.Writer) error {
	const each = 8 << 20
	var written int64
	var err error
	for i := 0; written < n && err == nil; i++ {
		var m int64
		m, err = fill(filepath.Join(words[0], fmt.Sprintf("filler-%d", i)), min(each, n-written))
		written += m
	}
	return said(w, written, err)
}

// notASocket puts a thing of that sort where the socket is expected, and waits.
func notASocket(words []string, _ int64, _ io.Writer) error {
	var err error
	switch words[0] {
	case "symlink":
		err = os.Symlink("/run/hanzo-link/launcher.sock", Ready)
	case "hardlink":
		if _, err = listenUnix("other"); err == nil {
			err = os.Link("other", Ready)
		}
	case "fifo":
		err = unix.Mkfifo(Ready, 0o666)
	case "directory":
		err = os.Mkdir(Ready, 0o777)
	case "file":
		err = os.WriteFile(Ready, nil, 0o666)
	default:
		err = fmt.Errorf("no sort of thing %q", words[0])
	}
	if err != nil {
		return err
	}
	return waitForTerm()
}
