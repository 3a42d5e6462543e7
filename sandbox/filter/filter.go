//go:build linux

// Package filter is the list of system calls that a workload may make: one
// seccomp program per architecture and profile, assembled by the generator in
// gen from one table by name, and committed. The table (gen/policy.go) says why
// for each group; testdata holds what it came to, one line a call.
//
// The list is of what is allowed. What the table refuses gets EPERM, or ENOSYS
// where a libc then falls back to what is allowed, as it would on an older kernel;
// calls newer than the table get ENOSYS too. A call of a foreign architecture
// (int 0x80, x32) ends the process.
//
// The filter sees numbers and registers, never memory: it is not a guard of
// paths, addresses or structures behind pointers (mounts, Landlock and the
// device program are), and calls whose meaning lies in memory are refused whole.
// Arguments are compared by their low 32 bits alone, for that is what the kernel
// reads of an int; a compare of 64 lets a caller slip by with high bits set. Only
// whether a pointer is null is asked of both halves.
//
// Nothing is computed when the program starts: the arrays lie in the binary.
package filter

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

//go:generate go run ./gen

// Profile is what differs between kinds of workload.
type Profile struct {
	// Inet allows AF_INET and AF_INET6 sockets for TCP and UDP. The sandbox has
	// no interface but loopback; libraries that talk to themselves over it (NCCL)
	// need them.
	Inet bool
}

// Program returns the filter of a profile for the architecture this was built
// for; it is empty where there is none. The array is the package's own: it is
// not to be written to.
func Program(p Profile) []unix.SockFilter {
	switch runtime.GOARCH {
	case "amd64":
		if p.Inet {
			return amd64Inet[:]
		}
		return amd64Closed[:]
	case "arm64":
		if p.Inet {
			return arm64Inet[:]
		}
		return arm64Closed[:]
	}
	return nil
}

// Install puts the filter on every thread of this process, for good: it cannot
// be taken off, and what the process starts inherits it. The calling thread must
// have no_new_privs set (the caller locks its goroutine to the thread first); the
// kernel then sets it on the other threads too.
//
// All threads are meant, although an exec would keep only the calling one,
// because the stage lives on as pid 1 of the sandbox: a thread of it without the
// filter would be the one to take over. The Go runtime works under the filter:
// it starts threads with clone(2), and what it asks beyond that is allowed.
//
// Either every thread has the filter on return, or err is not nil and none has
// got it.
func Install(p Profile) error {
	program := Program(p)
	if len(program) == 0 {
		return fmt.Errorf("seccomp: there is no filter for %s: run workloads on amd64 or arm64", runtime.GOARCH)
	}
	// As root the kernel would take the filter without it, and a set-user-ID
	// program run under a filter can be made to misbehave with root's rights.
	set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil || set != 1 {
		return fmt.Errorf("seccomp: this thread has not set no_new_privs: set it before the filter (prctl: %d, %v)", set, err)
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// SPEC_ALLOW: before Linux 5.16 a filter also switched off speculation for its
	// process, which protects the process from code inside itself and costs a
	// training run dearly; 5.16 made this flag the default. (The kernel's commit
	// is 2f46993d83ff, "x86: change default to spec_store_bypass_disable=prctl
	// spectre_v2_user=prctl".)
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return fmt.Errorf("seccomp: cannot install the filter: %w: the kernel needs CONFIG_SECCOMP_FILTER", errno)
	}
	if thread != 0 {
		return fmt.Errorf("seccomp: thread %d has a filter of its own, so no thread got this one: install before any other", thread)
	}
	return nil
}
