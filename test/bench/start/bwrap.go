//go:build linux

package main

import (
	"time"

	"github.com/hanzoai/link/sandbox"
)

// bwrap starts the workload with the distribution's bubblewrap, as root and
// without a user namespace, which is what our launcher does too.
func bwrap(s sandbox.Spec) contender {
	path, version, why := installed("bwrap", "bubblewrap")
	c := contender{name: "bwrap", build: version, why: why,
		note: "no seccomp filter, no control group; stays root, without capabilities"}
	args := bubble(s)
	c.start = func() (time.Duration, error) { return command(path, args...) }
	return c
}

// bubble is a spec as bubblewrap's arguments.
func bubble(s sandbox.Spec) []string {
	args := []string{
		"--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup",
		"--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "workload",
		"--clearenv", "--setenv", "PATH", "/usr/bin",
	}
	paths, links := runtimes()
	for _, path := range paths {
		args = append(args, "--ro-bind", path, path)
	}
	for name, to := range links {
		args = append(args, "--symlink", to, "/"+name)
	}
	program := "/app/" + s.Args[0]
	args = append(args, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--tmpfs", "/run",
		"--ro-bind", s.Program.Name(), program)
	for _, m := range s.Mounts {
		bind := "--ro-bind"
		if m.Write {
			bind = "--bind"
		}
		args = append(args, bind, m.Source.Name(), m.Target)
	}
	args = append(args, "--remount-ro", "/", "--chdir", "/run", program)
	return append(args, s.Args[1:]...)
}
