//go:build linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	groups = "/sys/fs/cgroup"
	inside = "HANZO_BENCH_PRIVATE" // set for the copy that runs in its own mount namespace
)

// hybrid reports whether the host keeps cgroup v2 beside v1: there crun refuses
// to start anything, and runc would use v1.
func hybrid() bool {
	var fs unix.Statfs_t
	return unix.Statfs(groups, &fs) == nil && fs.Type != unix.CGROUP2_SUPER_MAGIC
}

// again runs this program once more in a mount namespace of its own, where
// [unify] can show every contender cgroup v2 at its usual place without the host
// seeing a change (unsharing by syscall also makes every mount private). It returns the copy's exit status.
func again(args []string) (int, error) {
	runtime.LockOSThread() // the death signal is sent when this thread ends
	defer runtime.UnlockOSThread()
	c := &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{os.Args[0]}, args...),
		Env:   append(os.Environ(), inside+"=1"),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL},
	}
	if err := c.Start(); err != nil {
		return 0, err
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, os.Interrupt, syscall.SIGTERM)
	go func() {
		for s := range asked {
			c.Process.Signal(s) // the copy stops what it started, and ends
		}
	}()
	err := c.Wait()
	signal.Stop(asked)
	close(asked)
	if _, ended := errors.AsType[*exec.ExitError](err); ended {
		return c.ProcessState.ExitCode(), nil
	}
	return 0, err
}

// unify mounts cgroup v2 over whatever stands at its usual place. The mount
// namespace must be this process's own.
func unify() error {
	return unix.Mount("cgroup2", groups, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}
