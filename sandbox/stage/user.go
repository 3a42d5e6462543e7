//go:build linux

package stage

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/sandbox/landlock"
)

const (
	openFiles = 1 << 16  // descriptors of a process; the memory limit is what binds
	locked    = 64 << 20 // bytes a process may lock in memory, the kernel's own recent default times eight
)

// limits sets the resource limits that control groups have no file for. The number
// of processes is not among them: RLIMIT_NPROC counts a user's, and all workloads
// are one user.
func limits(o Order) error {
	fileSize := o.FileSize
	if fileSize == 0 {
		fileSize = unix.RLIM_INFINITY
	}
	for _, l := range []struct {
		name     string
		resource int
		value    uint64
	}{
		// 1 and not 0: with 0 the kernel still runs a core_pattern that pipes to
		// a program, and that program, on the host, would be given the memory.
		{"core", unix.RLIMIT_CORE, 1},
		{"nofile", unix.RLIMIT_NOFILE, openFiles},
		{"memlock", unix.RLIMIT_MEMLOCK, locked},
		{"fsize", unix.RLIMIT_FSIZE, fileSize},
		// A processor's worth of time is no limit for who runs before all others.
		{"rtprio", unix.RLIMIT_RTPRIO, 0},
	} {
		// What the launcher may not exceed itself, its workload need not.
		var now syscall.Rlimit
		if err := syscall.Getrlimit(l.resource, &now); err != nil {
			return fmt.Errorf("rlimit %s: %w", l.name, err)
		}
		l.value = min(l.value, now.Max)
		// syscall's, for its ForkExec puts the first RLIMIT_NOFILE back otherwise.
		if err := syscall.Setrlimit(l.resource, &syscall.Rlimit{Cur: l.value, Max: l.value}); err != nil {
			return fmt.Errorf("rlimit %s: %w", l.name, err)
		}
	}
	return nil
}

// shed gives up what building the workload's world does not need: root's groups on
// every thread, and the bounding and ambient sets of this one, from which the workload
// is forked, so that no exec can give it a capability any more. What the threads hold
// stays until they are the workload's user.
func shed(group int) error {
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := syscall.Setresgid(group, group, group); err != nil {
		return fmt.Errorf("setresgid: %w", err)
	}
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err == unix.EINVAL && c > unix.CAP_AUDIT_READ {
			break // past the last capability this kernel has
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	return nil
}

// become is the workload's user without a way back, on every thread of this process,
// for pid 1 stays.
func become(user int, groups []int) error {
	if len(groups) > 0 {
		if err := syscall.Setgroups(groups); err != nil {
			return fmt.Errorf("setgroups: %w", err)
		}
	}
	if err := syscall.Setresuid(user, user, user); err != nil {
		return fmt.Errorf("setresuid: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("not dumpable: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return nil
}

// restrict is the second wall: were a mount flag or the pivot wrong, Landlock still
// allows the workload only this.
func restrict(o Order) error {
	rules := []landlock.Rule{
		{Path: "/usr", Exec: true}, {Path: "/app", Exec: true},
		{Path: "/etc"},
		{Path: "/proc", Write: true}, {Path: "/dev", Write: true},
		{Path: o.Run, Write: true, Exec: o.ExecRun},
	}
	for _, name := range libraries {
		if info, err := os.Lstat("/" + name); err == nil && info.IsDir() {
			rules = append(rules, landlock.Rule{Path: "/" + name, Exec: true})
		}
	}
	for _, m := range o.Mounts {
		rules = append(rules, landlock.Rule{Path: m.Target, Write: m.Write, Exec: m.Exec})
	}
	for _, f := range o.Files {
		rules = append(rules, landlock.Rule{Path: f.Target})
	}
	_, err := landlock.Restrict(rules, o.Inet)
	return err
}
