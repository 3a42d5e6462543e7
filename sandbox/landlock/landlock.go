//go:build linux

// Package landlock is the sandbox's second layer over files: should a mount or a
// descriptor be where it should not, a workload still opens only what its rules
// name. It adds to the mounts and the seccomp filter and replaces neither, and it
// takes what the kernel has: with Linux 5.13 files, with 5.19 renames, 6.2
// truncation, 6.7 TCP, 6.10 ioctl on devices, 6.12 signals and abstract sockets.
//
// It does not hide a path (stat still works, mounts decide what is visible), and
// it does not take back what is open already.
package landlock

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rule grants reading of a file, or of a directory and all below it, and more.
type Rule struct {
	Path  string
	Write bool // also write, truncate, make (never devices), remove, rename
	Exec  bool // also execute
}

const (
	read  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	write = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX

	// What a rule on something that is not a directory may hold: the kernel
	// answers EINVAL to more.
	file = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
)

// Restrict limits the calling thread, and the threads and processes that it
// starts from then on, to rules. Threads that run already are not touched (the
// kernel offers that from ABI 8 alone), so the caller is locked to its thread and
// starts the workload from it. The thread needs no_new_privs; afterwards it can
// neither mount nor pivot, whatever its rights.
//
// A rule whose path does not exist grants nothing and is skipped. Ioctl on a
// device is granted with a rule for the device itself, and below a directory that
// may be written. TCP bind and connect are denied unless tcp is set. Abstract
// sockets and processes outside what is restricted here cannot be reached.
//
// abi is what the kernel offers; 0 means it has no Landlock (not built in, or off
// at boot), which is no error and restricts nothing. With ABI 1 a rename into
// another directory fails with EXDEV. On an error the thread is as it was.
func Restrict(rules []Rule, tcp bool) (abi int, err error) {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno == unix.ENOSYS || errno == unix.EOPNOTSUPP {
		return 0, nil
	}
	if errno != 0 {
		return 0, fmt.Errorf("landlock: cannot ask for the version: %w", errno)
	}
	abi = int(version)

	attr := handled(abi, tcp)
	// An older kernel takes the longer structure as long as what it does not know
	// is zero, which handled sees to.
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return abi, fmt.Errorf("landlock: cannot make a rule set of ABI %d: %w", abi, errno)
	}
	defer unix.Close(int(fd))
	for _, rule := range rules {
		if err := add(int(fd), rule, attr.Handled_access_fs); err != nil {
			return abi, fmt.Errorf("landlock: cannot add a rule for %s: %w", rule.Path, err)
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return abi, fmt.Errorf("landlock: cannot restrict this thread: %w: it needs no_new_privs", errno)
	}
	return abi, nil
}

// handled is all that a kernel of this ABI can deny of what we want denied.
// The numbers are of Documentation/userspace-api/landlock.rst.
func handled(abi int, tcp bool) unix.LandlockRulesetAttr {
	var attr unix.LandlockRulesetAttr
	attr.Handled_access_fs = unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1 // ABI 1: execute to make_sym
	if abi >= 2 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 4 && !tcp {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if abi >= 5 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if abi >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	if abi >= 9 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	}
	return attr
}

func add(ruleset int, rule Rule, handled uint64) error {
	fd, err := unix.Open(rule.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}

	access := uint64(read)
	if rule.Write {
		access |= write | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if rule.Exec {
		access |= unix.LANDLOCK_ACCESS_FS_EXECUTE
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
	case unix.S_IFCHR, unix.S_IFBLK:
		access = access&file | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	default:
		access &= file
	}
	attr := unix.LandlockPathBeneathAttr{Allowed_access: access & handled, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
