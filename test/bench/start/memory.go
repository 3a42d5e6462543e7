//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// memory is what stands beside one idle workload, in KiB as the kernel counts
// them: Rss counts every resident page whole, Pss the shared ones by their share.
type memory struct {
	Of  string `json:"of"`
	Rss int    `json:"rss_kib"`
	Pss int    `json:"pss_kib"`
}

// first is pid 1 among the processes of a control group, as the host numbers it.
func first(group string) (int, error) {
	pids, err := members(group)
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		ids := strings.Fields(line(fmt.Sprintf("/proc/%d/status", pid), "NSpid"))
		if len(ids) > 1 && ids[len(ids)-1] == "1" {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no pid 1 among the processes %v of %s", pids, group)
}

// members are the processes of a control group.
func members(group string) ([]int, error) {
	list, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, field := range strings.Fields(string(list)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// total is the sum of all.
func total(all []memory) memory {
	sum := memory{Of: "together"}
	for _, m := range all {
		sum.Rss += m.Rss
		sum.Pss += m.Pss
	}
	return sum
}

// rollup reads what one process holds.
func rollup(of string, pid int) (memory, error) {
	m := memory{Of: of}
	file := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	for name, to := range map[string]*int{"Rss": &m.Rss, "Pss": &m.Pss} {
		if _, err := fmt.Sscanf(line(file, name), "%d kB", to); err != nil {
			return m, fmt.Errorf("%s: %s: %w", file, name, err)
		}
	}
	return m, nil
}

// line is the value of the first "name: value" in a file of /proc, empty without one.
func line(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for one := range bytes.Lines(text) {
		if key, value, found := strings.Cut(string(one), ":"); found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
