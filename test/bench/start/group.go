//go:build linux

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hanzoai/link/sandbox"
)

// controllers are those that limits need.
var controllers = []string{"cpu", "memory", "pids"}

// prepareGroup lets the children of the group in which everything is started have
// the controllers that limits need. Without those controllers no contender has
// limits, and the second result says so.
func prepareGroup(group string) (limits sandbox.Limits, said string, err error) {
	offered, err := os.ReadFile(filepath.Join(groups, "cgroup.controllers"))
	if err != nil {
		return limits, "", err
	}
	for _, controller := range controllers {
		if !slices.Contains(strings.Fields(string(offered)), controller) {
			return limits, "without the controller " + controller + " no contender has limits", nil
		}
	}
	for _, dir := range []string{groups, group} {
		if err := enable(dir, controllers); err != nil {
			return limits, "", err
		}
	}
	limits = sandbox.Limits{Memory: 1 << 28, CPUs: 1, Pids: 1024}
	return limits, "every contender but bwrap has limits of memory, processors and processes", nil
}

// enable lets the children of a group have controllers.
func enable(dir string, controllers []string) error {
	if len(controllers) == 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+strings.Join(controllers, " +")), 0)
}

// removeGroup removes a group and those beneath it. They must hold no process.
func removeGroup(group string) error {
	var beneath []string
	err := filepath.WalkDir(group, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			beneath = append(beneath, path)
		}
		return err
	})
	for _, path := range slices.Backward(beneath) {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
