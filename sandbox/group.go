//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// group is the control group of one workload, a directory of cgroup v2. Its name is
// the Host's own and not the activity's, for a stage is parked in it before there is
// an activity, and cgroup v2 renames nothing.
type group struct{ path string }

const groupPrefix = "work-"

// newGroup makes the next group. A name that is taken is passed over: whoever had
// the directory before us may have made it. h.mu is held.
func (h *Host) newGroup() (group, error) {
	for {
		path := filepath.Join(h.cfg.Group, groupPrefix+strconv.Itoa(h.next))
		h.next++
		err := os.Mkdir(path, 0o755)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		return group{path}, err
	}
}

// base are the devices of every workload: null, zero, full, random, urandom
// (Documentation/admin-guide/devices.txt of the kernel).
var base = []Device{
	{"/dev/null", 1, 3}, {"/dev/zero", 1, 5}, {"/dev/full", 1, 7}, {"/dev/random", 1, 8}, {"/dev/urandom", 1, 9},
}

// limit writes the limits.
//
// NewManager and Kill of package cgroup2 are not used: the first writes to
// ancestors, which are not ours, and the second falls back to killing one by one.
func (g group) limit(l Limits) error {
	var r cgroup2.Resources
	if l.Memory > 0 {
		none, together := int64(0), true
		r.Memory = &cgroup2.Memory{Max: &l.Memory, OOMGroup: &together}
		// Absent where the kernel was built without swap.
		if _, err := os.Stat(filepath.Join(g.path, "memory.swap.max")); err == nil {
			r.Memory.Swap = &none
		}
	}
	if l.CPUs > 0 {
		const period = 100_000 // µs
		quota, p := int64(l.CPUs*period), uint64(period)
		r.CPU = &cgroup2.CPU{Max: cgroup2.NewCPUMax(&quota, &p)}
	}
	if l.Pids > 0 {
		r.Pids = &cgroup2.Pids{Max: int64(l.Pids)}
	}
	m, err := cgroup2.Load("/"+filepath.Base(g.path), cgroup2.WithMountpoint(filepath.Dir(g.path)))
	if err != nil {
		return err
	}
	if err := m.Update(&r); err != nil {
		for _, controller := range []string{"memory", "cpu", "pids"} {
			if _, missing := os.Stat(filepath.Join(g.path, controller+".max")); gone(missing) {
				return fmt.Errorf("limits: the controller %s is not on in %s/cgroup.subtree_control", controller, filepath.Dir(g.path))
			}
		}
		return fmt.Errorf("limits: %w", err)
	}
	return nil
}

// deviceProgram loads the program that lets a group open the base devices and these,
// and no others; making nodes (mknod) is allowed for none.
func deviceProgram(devices []Device) (*ebpf.Program, error) {
	var rules []specs.LinuxDeviceCgroup
	for _, d := range slices.Concat(base, devices) {
		major, minor := int64(d.Major), int64(d.Minor)
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"})
	}
	instructions, license, err := cgroup2.DeviceFilter(rules)
	if err != nil {
		return nil, err
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupDevice, Instructions: instructions, License: license})
	if err != nil {
		return nil, fmt.Errorf("load the device program: %w", err)
	}
	return program, nil
}

// attach gives the group a device program, which the group then keeps. It is attached
// and not linked: it stays until the group is removed, where a link would vanish with
// this process. Other programs, systemd's among them, may stand beside it, and all
// must allow.
//
// cgroup2's Update would load and attach it as well, for every workload anew, and
// leaves the descriptor to the garbage collector.
func (g group) attach(program *ebpf.Program) error {
	dir, err := os.Open(g.path)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(dir.Fd()), Program: program, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI,
	})
	if err != nil {
		return fmt.Errorf("attach the device program: %w", err)
	}
	return nil
}

// kill ends every process in the group and below it, frozen ones too.
func (g group) kill() error {
	err := os.WriteFile(filepath.Join(g.path, "cgroup.kill"), []byte("1"), 0)
	if gone(err) {
		return nil
	}
	return err
}

// remove waits until the group is empty and removes it, with the groups below it. It
// gives up, with an error, on processes that the kernel cannot end.
func (g group) remove() error {
	const patience = 30 * time.Second // a dying GPU driver can hold a process for seconds
	deadline := time.Now().Add(patience)
	for {
		err := g.rmdir()
		if err == nil || gone(err) {
			return nil
		}
		left := time.Until(deadline)
		if !errors.Is(err, unix.EBUSY) || left <= 0 {
			return fmt.Errorf("remove control group %s: %w", g.path, err)
		}
		if err := g.awaitEmpty(min(left, time.Second)); err != nil && !gone(err) {
			return err
		}
	}
}

// rmdir removes the directory and those below it, deepest first. A workload cannot
// make groups, but an earlier life's may hold some.
func (g group) rmdir() error {
	err := os.Remove(g.path)
	if err == nil || gone(err) {
		return err
	}
	entries, readErr := os.ReadDir(g.path)
	if readErr != nil {
		return readErr
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := (group{filepath.Join(g.path, e.Name())}).rmdir(); err != nil && !gone(err) {
				return err
			}
		}
	}
	return os.Remove(g.path)
}

// awaitEmpty returns when no process is in the group, or after d. The kernel reports
// a change of cgroup.events as an exceptional condition.
func (g group) awaitEmpty(d time.Duration) error {
	f, err := os.Open(filepath.Join(g.path, "cgroup.events"))
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 256)
	n, err := f.ReadAt(buf, 0)
	if n == 0 && err != nil {
		return err
	}
	if strings.Contains(string(buf[:n]), "populated 0") {
		// Empty, but not yet let go by the last one's exit.
		d = min(d, 2*time.Millisecond)
	}
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}}
	_, err = unix.Poll(fds, int(d.Milliseconds()))
	if err == unix.EINTR {
		return nil
	}
	return err
}

// pids lists the processes in the group.
func (g group) pids() ([]int, error) {
	b, err := os.ReadFile(filepath.Join(g.path, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, field := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("%s/cgroup.procs: %q is no process id", g.path, field)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// oomKilled reports whether the kernel has killed in the group because memory ran
// out, the group's own or, which it does not tell apart, the host's. It is oom_kill
// that counts: oom also counts allocations that only failed.
func (g group) oomKilled() bool {
	b, err := os.ReadFile(filepath.Join(g.path, "memory.events"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if n, found := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); found {
			return n != "0"
		}
	}
	return false
}
