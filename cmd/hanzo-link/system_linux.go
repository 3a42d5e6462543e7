package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hanzoai/link/agent"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
)

// system is the configuration of a machine with a launcher.
func system(cfg *agent.Config) error {
	if err := moveToLeaf(); err != nil {
		return err
	}
	cfg.Dir, cfg.Spool, cfg.Store = state, state+"/spool", state+"/store"
	cfg.Policy, cfg.Status = policy.Path, status
	cfg.Dial = func() (agent.Launcher, error) {
		conn, err := ipc.Dial(socket)
		if err != nil {
			return nil, err // not conn: a nil *ipc.Conn in an interface is not nil
		}
		return conn, nil
	}
	return nil
}

// moveToLeaf moves this process into agent/ of its unit's control group, where systemd
// 254 and later start it: the workloads' groups are beside it, and a group that has
// processes cannot have controllers for its children.
func moveToLeaf() error {
	const leaf = "agent"
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	path, unified := strings.CutPrefix(strings.TrimSpace(string(text)), "0::")
	if !unified || filepath.Base(path) == leaf {
		return nil // the launcher says what is amiss with version 1
	}
	group := filepath.Join("/sys/fs/cgroup", path, leaf)
	if err := os.Mkdir(group, 0o755); err != nil && !os.IsExist(err) {
		return fmt.Errorf("the unit's control group is not this user's (%w): hanzo-link.service has Delegate=yes; sudo hanzo link installs it anew", err)
	}
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("moving into the unit's control group %s: %w", leaf, err)
	}
	return nil
}
