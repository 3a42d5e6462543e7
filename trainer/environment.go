package trainer

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// Environment describes this build and device as HIP-1334 §6.1 wants it. Build
// and engine are one repository, so its commit stands for the engine and the
// kernels too. A build without version control information (go run of a copied
// folder) has no commit and is dirty: nobody can say what it was built from.
func Environment(dev kernels.Device) (record.Environment, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return environment(info, dev)
}

func environment(info *debug.BuildInfo, dev kernels.Device) (record.Environment, error) {
	plan, err := canon.Of(dev.Plan())
	if err != nil {
		return record.Environment{}, fmt.Errorf("trainer: hashing the kernel plan: %w", err)
	}
	commit, dirty, flags := "", true, []string{}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) == 40:
			commit = s.Value
		case s.Key == "vcs.modified":
			dirty = s.Value != "false"
		case s.Value != "" && !strings.HasPrefix(s.Key, "vcs"):
			flags = append(flags, s.Key+"="+s.Value)
		}
	}
	slices.Sort(flags)
	return record.Environment{
		GitSHA: commit, Dirty: dirty || commit == "",
		LockfileHash: canon.HashOf(modules(info)),
		ML:           commit, Kernels: commit,
		Accelerator:      record.Accelerator{API: record.CPU, Version: info.GoVersion},
		KernelPlanHash:   plan,
		Precision:        record.Precision{Compute: "f32", Master: "f32", Accumulate: "f32"},
		GPUs:             []record.GPU{},
		CompilerFlags:    flags,
		DeterminismFlags: []string{"exact"},
	}, nil
}

// modules are the linked modules as go.sum has them, a line each: the part of
// the lockfile that a build carries with it.
func modules(info *debug.BuildInfo) []byte {
	var b strings.Builder
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		fmt.Fprintf(&b, "%s %s %s\n", m.Path, m.Version, m.Sum)
	}
	return []byte(b.String())
}

// Version is the commit of this build, "unknown" when it carries none: what
// stands as an artifact's producer version.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}
