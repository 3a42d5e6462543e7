//go:build linux

package attempt

import (
	"golang.org/x/sys/unix"
)

// fork is fork(2). The child is this thread alone, with a copy of all memory:
// it may make raw system calls and nothing else of Go's, for no other thread is
// there to hand it memory, stacks or locks.
//
//go:nosplit
func fork() (pid int, err unix.Errno) {
	r, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	return int(r), e
}

// idle is what a forked child does until a signal ends it.
//
//go:nosplit
func idle() {
	for {
		unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// exit ends a forked child.
//
//go:nosplit
func exit(status uintptr) {
	for {
		unix.RawSyscall6(unix.SYS_EXIT_GROUP, status, 0, 0, 0, 0, 0)
	}
}

// bystander starts a child that does nothing, and ends with this thread. The
// caller calls end.
func bystander() (pid int, end func(), err error) {
	pid, errno := fork()
	if errno != 0 {
		return 0, nil, errno
	}
	if pid == 0 {
		unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0, 0)
		idle()
	}
	return pid, func() {
		unix.Kill(pid, unix.SIGKILL)
		reap(pid)
	}, nil
}

// reap waits for a child's end.
func reap(pid int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, 0, nil)
		if err != unix.EINTR {
			return status, err
		}
	}
}
