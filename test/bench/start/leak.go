//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const cycles = 100

// counts is what a start may leave behind.
type counts struct {
	Mounts    int `json:"mounts"`    // of this process's namespace
	Groups    int `json:"groups"`    // control groups beneath the sandbox's own
	Files     int `json:"files"`     // descriptors that this process holds
	Processes int `json:"processes"` // children of this one, and any of the workload's user
	Left      int `json:"left"`      // files and folders in the run directory
}

// leaks is what there was before and after so many starts and stops.
type leaks struct {
	Cycles int    `json:"cycles"`
	Before counts `json:"before"`
	After  counts `json:"after"`
}

// leak starts and stops a workload time and again. One cycle goes before the
// first count, for what a process opens once.
func (o *ours) leak(ctx context.Context) (leaks, error) {
	l := leaks{Cycles: cycles}
	for i := range cycles + 1 {
		w, release, err := o.start(ctx, o.work.idle())
		if err != nil {
			return l, err
		}
		err = w.Stop(ctx)
		release()
		if err != nil {
			return l, fmt.Errorf("stop %d: %w", i, err)
		}
		if i == 0 {
			if l.Before, err = o.count(); err != nil {
				return l, err
			}
		}
	}
	var err error
	l.After, err = o.count()
	return l, err
}

func (o *ours) count() (counts, error) {
	var c counts
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return c, err
	}
	c.Mounts = bytes.Count(mounts, []byte("\n"))
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return c, err
	}
	c.Files = len(files)
	if c.Processes, err = o.processes(); err != nil {
		return c, err
	}
	if c.Groups, err = entries(o.config.Group, true); err != nil {
		return c, err
	}
	c.Left, err = entries(o.config.Run, false)
	return c, err
}

// entries counts what is beneath dir, or only the folders.
func entries(dir string, folders bool) (int, error) {
	n := -1 // dir itself
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && (entry.IsDir() || !folders) {
			n++
		}
		return err
	})
	return n, err
}

// processes counts this process's children, ended ones not waited for among them,
// and every other process of the workload's user.
func (o *ours) processes() (int, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	n := 0
	for _, dir := range all {
		file := filepath.Join(dir, "status")
		user, _, _ := strings.Cut(line(file, "Uid"), "\t")
		if line(file, "PPid") == strconv.Itoa(os.Getpid()) || user == strconv.Itoa(worker) {
			n++
		}
	}
	return n, nil
}
