//go:build linux

package attempt

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// lateEfforts are the ones that a broken filter could turn against this program.
var lateEfforts = []effort{
	{39, "every system call from 0 to 600, with zeros", "as the filter's rules say", everyCall},
}

const (
	lastCall = 600
	// lastKnown is the newest call when this was written (Linux 6.18). A kernel
	// that has more must not let a workload find them.
	lastKnown = 472
)

// refusedCalls answer EPERM, by what the design says must. Those of one
// architecture alone stand beside it.
var refusedCalls = append(refusedHere, []uintptr{
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_KCMP,
	unix.SYS_PIDFD_GETFD, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG,
	unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
	unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_ACCT, unix.SYS_REBOOT,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_SYSLOG, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME,
	unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX, unix.SYS_FANOTIFY_INIT, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_VHANGUP,
	unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
	unix.SYS_INOTIFY_INIT1, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_INOTIFY_RM_WATCH,
}...)

// absentCalls answer ENOSYS, so that callers fall back; so does every number
// beyond lastKnown.
var absentCalls = []uintptr{
	unix.SYS_CLONE3, unix.SYS_OPENAT2, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_MEMFD_SECRET, sysStatmount, sysListmount,
}

// unmakeable do not return when made with zeros, or return into a second process
// on the same stack.
var unmakeable = append(unmakeableHere, []uintptr{
	unix.SYS_RT_SIGRETURN, unix.SYS_CLONE, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_PSELECT6, unix.SYS_PPOLL,
}...)

func everyCall(t *trial) {
	answers, err := answersOf(lastCall)
	if err != nil {
		t.failed("%v", err)
		return
	}
	name := func(n uintptr) string { return fmt.Sprintf("call %d", n) }
	allowed := 0
	for n := range uintptr(lastCall + 1) {
		got, made := answers[n]
		switch {
		case slices.Contains(unmakeable, n):
			if made {
				t.gaveWay("%s was made", name(n))
			}
		case !made:
			t.gaveWay("%s was not answered", name(n))
		case slices.Contains(refusedCalls, n):
			t.expect(name(n), got, "EPERM")
		case slices.Contains(absentCalls, n), n > lastKnown:
			t.expect(name(n), got, "ENOSYS")
		case strings.HasPrefix(got, "SIG") && !slices.Contains(fatalCalls, n):
			t.gaveWay("%s ended the process with %s", name(n), got)
		default:
			allowed++
		}
	}
	foreign(t)
	t.held(fmt.Sprintf("%d others answered", allowed))
}

// expect compares what a call answered.
func (t *trial) expect(name, got, want string) {
	if got != want {
		t.gaveWay("%s answered %s, not %s", name, got, want)
		return
	}
	t.held(want)
}

// answersOf makes the calls 0 to last with zero arguments, in children, and says
// what each answered: "ok", an errno's name, or the signal that ended the child.
// A call that does not come back within patience is "waits".
func answersOf(last uintptr) (map[uintptr]string, error) {
	answers := make(map[uintptr]string)
	skip := new([lastCall + 1]bool)
	for _, n := range unmakeable {
		if n <= lastCall {
			skip[n] = true
		}
	}
	for next := uintptr(0); next <= last; {
		if skip[next] {
			next++
			continue
		}
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			return nil, err
		}
		pid, errno := fork()
		if errno != 0 {
			return nil, errno
		}
		if pid == 0 {
			makeCalls(next, last, uintptr(pipe[1]), skip)
		}
		unix.Close(pipe[1])
		waits := false
		for record := make([]byte, 16); ; {
			ready := []unix.PollFd{{Fd: int32(pipe[0]), Events: unix.POLLIN}}
			if n, err := unix.Poll(ready, int(patience.Milliseconds())); err == unix.EINTR {
				continue
			} else if n == 0 {
				waits = true
				break
			}
			if n, err := unix.Read(pipe[0], record); err == unix.EINTR {
				continue
			} else if err != nil || n < len(record) {
				break
			}
			made := uintptr(binary.NativeEndian.Uint64(record))
			answers[made] = "ok"
			if e := binary.NativeEndian.Uint64(record[8:]); e != 0 {
				answers[made] = errnoName(unix.Errno(e))
			}
			next = made + 1
		}
		unix.Close(pipe[0])
		unix.Kill(pid, unix.SIGKILL)
		status, err := reap(pid)
		for next <= last && skip[next] {
			next++
		}
		switch {
		case next > last:
		case waits:
			answers[next] = "waits"
			next++
		case err == nil && status.Exited() && status.ExitStatus() == renew:
			// the child said that it had to be another's turn
		case err == nil && status.Signaled():
			answers[next] = unix.SignalName(status.Signal())
			next++
		default:
			answers[next] = "SIGnone: ended the process"
			next++
		}
	}
	return answers, nil
}

// renew is the exit status of a child that made a call after which it cannot be
// trusted to go on: the next one is another child's.
const renew = 99

// makeCalls runs in a forked child. It writes a number and an errno for each call.
//
//go:nosplit
func makeCalls(first, last, pipe uintptr, skip *[lastCall + 1]bool) {
	unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0, 0)
	// A signal that ends a program ends this one, and not in Go's handlers.
	for signal := uintptr(1); signal < 32; signal++ {
		unix.RawSyscall6(unix.SYS_RT_SIGACTION, signal, defaultAddress, 0, 8, 0, 0)
	}
	record := &callRecord
	for n := first; n <= last; n++ {
		if skip[n] {
			continue
		}
		_, _, e := unix.RawSyscall6(n, 0, 0, 0, 0, 0, 0)
		record[0], record[1] = uint64(n), uint64(e)
		unix.RawSyscall6(unix.SYS_WRITE, pipe, recordAddress, 16, 0, 0, 0)
		if n == unix.SYS_SECCOMP || n == unix.SYS_PTRACE {
			exit(renew) // in strict mode, or traced, if it may
		}
	}
	exit(renew)
}

var (
	callRecord    [2]uint64
	recordAddress = address(&callRecord)
)
