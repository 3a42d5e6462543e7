//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/sandbox"
)

// peers are the OCI runtimes: the distribution's two and the one that go.mod
// pins, built once so that no start pays for the go command. Their control groups
// are made beneath group.
func peers(dir, group string, s sandbox.Spec) []contender {
	var found []contender
	for _, name := range []string{"runc", "crun"} {
		path, version, why := installed(name, name)
		found = append(found, oci(name, path, version, why, filepath.Join(dir, name), group, s))
	}
	const pinned = "go tool runc"
	path := filepath.Join(dir, "pinned-runc")
	if err := build(path, "github.com/opencontainers/runc", true); err != nil {
		return append(found, contender{name: pinned, why: err.Error()})
	}
	version, why := versionOf(path)
	return append(found, oci(pinned, path, version, why, filepath.Join(dir, "pinned"), group, s))
}

// oci starts the workload with an OCI runtime in the foreground, from the request
// until the container is deleted. dir is the contender's own.
func oci(name, path, version, why, dir, group string, s sandbox.Spec) contender {
	c := contender{name: name, build: version, why: why, note: "no seccomp filter"}
	bundle := filepath.Join(dir, "bundle")
	args := []string{"--root", filepath.Join(dir, "state")}
	if name == "crun" && !lockable() {
		args = append(args, "--cgroup-manager", "disabled")
		c.note += ", no control group: for one crun raises RLIMIT_MEMLOCK, which needs CAP_SYS_RESOURCE, and this host's root has none"
	}
	args = append(args, "run", "--bundle", bundle)
	if c.why == "" {
		if err := writeBundle(bundle, filepath.Join("/", filepath.Base(group), filepath.Base(dir)), s); err != nil {
			c.why = err.Error()
		}
	}
	n := 0
	c.start = func() (time.Duration, error) {
		n++
		return command(path, append(args, fmt.Sprintf("bench%d", n))...)
	}
	return c
}

// lockable reports whether this process may lift its limit of locked memory, as
// older programs do before they load a BPF program. Where it may, it does.
func lockable() bool {
	const infinity = ^uint64(0)
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: infinity, Max: infinity}) == nil
}

type object = map[string]any

// writeBundle writes a spec as an OCI bundle: config.json (runtime-spec 1.0,
// which every runtime here reads) and an empty root with the places to mount on.
func writeBundle(dir, group string, s sandbox.Spec) error {
	root := filepath.Join(dir, "rootfs")
	for _, name := range []string{"proc", "dev", "run"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
	}
	mounts := []object{
		special("/proc", "proc", "nosuid", "noexec", "nodev"),
		special("/dev", "tmpfs", "nosuid", "noexec", "mode=755", "size=64k"),
		special("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777"),
		special("/run", "tmpfs", "nosuid", "noexec", "nodev", "mode=755"),
	}
	binds := []sandbox.Mount{{Source: s.Program, Target: "/app/" + s.Args[0]}}
	for _, m := range append(binds, s.Mounts...) {
		mounts = append(mounts, bind(m.Source.Name(), m.Target, m.Write))
	}
	paths, links := runtimes()
	for _, path := range paths {
		mounts = append(mounts, bind(path, path, false))
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	for _, m := range mounts {
		if m["type"] != "bind" {
			continue
		}
		if err := place(m["source"].(string), filepath.Join(root, m["destination"].(string))); err != nil {
			return err
		}
	}
	config, err := json.MarshalIndent(object{
		"ociVersion": "1.0.2",
		"process": object{
			"user": object{"uid": worker, "gid": worker}, "cwd": "/run",
			"args": append([]string{"/app/" + s.Args[0]}, s.Args[1:]...), "env": s.Env,
			"capabilities": object{}, "noNewPrivileges": true,
			"rlimits": []object{{"type": "RLIMIT_CORE", "hard": 1, "soft": 1}},
		},
		"root":     object{"path": "rootfs", "readonly": true},
		"hostname": "workload",
		"mounts":   mounts,
		"linux": object{
			"namespaces":    []object{{"type": "mount"}, {"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}, {"type": "cgroup"}},
			"cgroupsPath":   group,
			"resources":     resources(s.Limits),
			"maskedPaths":   []string{"/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi", "/proc/acpi", "/proc/asound", "/proc/kallsyms", "/proc/kmsg"},
			"readonlyPaths": []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)
}

func special(target, kind string, options ...string) object {
	return object{"destination": target, "type": kind, "source": kind, "options": options}
}

func bind(source, target string, write bool) object {
	options := []string{"rbind", "nosuid", "nodev"}
	if !write {
		options = append(options, "ro")
	}
	return object{"destination": target, "type": "bind", "source": source, "options": options}
}

// resources are the limits, and a device program that allows what every runtime
// allows by itself.
func resources(l sandbox.Limits) object {
	r := object{"devices": []object{{"allow": false, "access": "rwm"}}}
	if l.Memory > 0 {
		r["memory"] = object{"limit": l.Memory, "swap": l.Memory}
	}
	if l.CPUs > 0 {
		r["cpu"] = object{"quota": int64(l.CPUs * 100_000), "period": 100_000}
	}
	if l.Pids > 0 {
		r["pids"] = object{"limit": l.Pids}
	}
	return r
}

// place makes an empty file or folder to mount source on.
func place(source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	return os.WriteFile(target, nil, 0o644)
}
