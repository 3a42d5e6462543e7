//go:build linux

package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/hanzoai/link/sandbox"
)

// worker is the user and the group of the workload; no host has it.
const worker = 64731

// workload is what every contender is asked to start: a static program in
// namespaces of its own, without capabilities, network or devices, over a
// read-only root of what a dynamic program would need. Its shape is that of the
// kind train.fit: a stage and a base to read, a spool to write.
type workload struct {
	program string // the host's path
	folder  string // of stage, base and spool
	limits  sandbox.Limits
}

// newWorkload makes the workload's folders in dir.
func newWorkload(dir, program string, limits sandbox.Limits) (workload, error) {
	w := workload{program: program, folder: dir, limits: limits}
	for _, name := range []string{"stage", "base", "spool"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(path, 0o755), os.Chown(path, worker, worker)); err != nil {
			return w, err
		}
	}
	return w, nil
}

// controllers are those that its limits need.
func (w workload) controllers() []string {
	if w.limits == (sandbox.Limits{}) {
		return nil
	}
	return controllers
}

// spec opens the workload's files. The caller calls release when the workload has
// ended.
func (w workload) spec(id string, args ...string) (s sandbox.Spec, release func(), err error) {
	var open []*os.File
	release = func() {
		for _, f := range open {
			f.Close()
		}
	}
	file := func(path string) *os.File {
		f, failed := os.Open(path)
		if failed != nil {
			err = errors.Join(err, failed)
			return nil
		}
		open = append(open, f)
		return f
	}
	s = sandbox.Spec{
		ID: id, Program: file(w.program), Args: append([]string{"program"}, args...),
		Env: []string{"PATH=/usr/bin"}, Limits: w.limits,
		Mounts: []sandbox.Mount{
			{Source: file(filepath.Join(w.folder, "stage")), Target: "/in/stage"},
			{Source: file(filepath.Join(w.folder, "base")), Target: "/in/base"},
			{Source: file(filepath.Join(w.folder, "spool")), Target: "/spool", Write: true},
		},
	}
	if err != nil {
		release()
	}
	return s, release, err
}

// runtimes are the host's paths that a sandbox shows, read-only and at their own
// places, where they exist; links are the root's symbolic links.
func runtimes() (paths []string, links map[string]string) {
	for _, path := range []string{
		"/usr", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives",
		"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf",
	} {
		if _, err := os.Stat(path); err == nil {
			paths = append(paths, path)
		}
	}
	links = make(map[string]string)
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + name); err == nil {
			links[name] = to
		}
	}
	return paths, links
}
