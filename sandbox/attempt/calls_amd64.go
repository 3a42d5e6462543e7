//go:build linux

package attempt

import "golang.org/x/sys/unix"

var (
	refusedHere = []uintptr{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_CREATE_MODULE, unix.SYS_QUERY_MODULE,
		unix.SYS_INOTIFY_INIT}
	unmakeableHere = []uintptr{unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_PAUSE, unix.SYS_SELECT}

	// fatalCalls end a process that has no business with them, by the kernel's
	// own hand: uretprobe and uprobe, which only a traced program's code makes.
	fatalCalls = []uintptr{335, 336}
)

// foreign makes calls the way other architectures of this processor do. The
// kernel takes them by tables that a filter's numbers do not mean, so the process
// must end.
func foreign(t *trial) {
	const x32Getpid = 0x40000000 + 39
	if err := inChild(x32Getpid); answer(err) != "SIGSYS" {
		t.gaveWay("a call of x32 answered %s", answer(err))
	} else {
		t.held("x32 SIGSYS")
	}
	child, errno := fork()
	if errno != 0 {
		t.failed("no child: %v", errno)
		return
	}
	if child == 0 {
		unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGSEGV), defaultAddress, 0, 8, 0, 0)
		int80()
		exit(0)
	}
	status, err := reap(child)
	switch {
	case err != nil:
		t.failed("wait: %v", err)
	case status.Signaled() && status.Signal() == unix.SIGSYS:
		t.held("int 0x80 SIGSYS")
	case status.Signaled() && status.Signal() == unix.SIGSEGV:
		t.held("int 0x80 not in this kernel")
	default:
		t.gaveWay("int 0x80 was answered")
	}
}

func int80() uintptr
