//go:build linux

package attempt

import (
	"errors"

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

// cloned makes a call that may return in a second process.
func cloned(number uintptr, a, b uintptr) error {
	pid, _, errno := unix.RawSyscall6(number, a, b, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		exit(0)
	}
	_, err := reap(int(pid))
	return err
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

// asErrno is a child's exit status that is an errno.
func asErrno(status int) error {
	if status == 0 {
		return nil
	}
	return unix.Errno(status)
}
