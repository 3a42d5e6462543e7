package linkcmd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hanzoai/link/cmd/internal/offer"
	"github.com/hanzoai/link/launcher"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/sandbox"
	"github.com/hanzoai/link/systemd"
)

// readPolicy is what the owner admits.
func readPolicy() *admits {
	p, _, err := policy.Load(policy.Path)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("there is no %s: sudo hanzo link writes one, which admits nothing", policy.Path)
	}
	if err != nil {
		return &admits{Error: err.Error(), Kinds: []string{}}
	}
	return &admits{Kinds: append([]string{}, p.Kinds...), Room: offer.Room(p)}
}

// examineHost looks at what a host needs to run work.
func examineHost(ctx context.Context, p patient, r standing) []finding {
	why := offer.Unfit()
	all := examineSandbox(ctx, why, os.Geteuid())
	if why != "" && !r.Linked {
		return all // what work needs besides is of no interest
	}
	all = append(all, nvidia("/")...)
	all = append(all, policyFinding(r))
	if !r.Linked {
		return all
	}
	all = append(all, installed(launcher.Lib)...)
	all = append(all, units("/")...)
	return append(all, effective(ctx, p)...)
}

// examineSandbox looks whether a sandbox can be built. Where the host is unfit, for why,
// that is all there is to say: the probe would say it again of every part.
func examineSandbox(ctx context.Context, why string, uid int) []finding {
	switch {
	case why != "":
		return []finding{missing("cgroup v2", "%s, so this host is for presence only: run hanzo link as yourself, without sudo; or boot with systemd.unified_cgroup_hierarchy=1", why)}
	case uid == 0:
		return sandboxFindings(offer.Probe(ctx))
	}
	return []finding{note("sandbox", "whether one can be built is root's to try: sudo hanzo doctor"), room()}
}

// onlyPresence reports whether this machine can be linked for presence alone.
func onlyPresence() bool { return offer.Unfit() != "" }

// sandboxFindings is what the sandbox's own probe says. Its last check is a start, which
// needs the control group of a running agent; where there is none, that is told by the
// agent's own line.
func sandboxFindings(checks []sandbox.Check) []finding {
	var all []finding
	for i, c := range checks {
		f := finding(c)
		if c.Name == "disk" {
			f = room() // in the same words for root and for others
		}
		if _, err := os.Stat(launcher.Group); i == len(checks)-1 && !f.OK && errors.Is(err, fs.ErrNotExist) {
			f = note(c.Name, "not tried, for the agent, in whose control group work runs, does not run; sudo hanzo sandbox check tries one of its own")
		}
		all = append(all, f)
	}
	return all
}

// room is what is free where work keeps its files.
func room() finding {
	free, at, err := offer.Free()
	if err != nil {
		return note("disk", "%v", err)
	}
	return enough(free, at)
}

// enough judges what is free: below a tenth nothing starts.
func enough(free policy.Free, at string) finding {
	const name = "disk"
	has := fmt.Sprintf("%s of %s are free at %s, and a tenth must stay so", gib(free.Disk), gib(free.DiskTotal), at)
	if free.Disk <= free.DiskTotal/10 {
		return missing(name, "%s: nothing starts until there is more; delete or move what is large there (sudo du -xh -d 2 %s)", has, at)
	}
	return well(name, "%s", has)
}

func gib(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }

// nvidia looks for the nodes without which CUDA does not start. They are absent after a
// boot until something asks for them.
func nvidia(root string) []finding {
	if _, err := os.Stat(filepath.Join(root, "proc/driver/nvidia/version")); err != nil {
		return nil
	}
	var absent []string
	for _, node := range []string{"dev/nvidiactl", "dev/nvidia-uvm"} {
		if _, err := os.Stat(filepath.Join(root, node)); err != nil {
			absent = append(absent, "/"+node)
		}
	}
	if len(absent) > 0 {
		return []finding{note("NVIDIA nodes", "there is no %s, so no GPU can be used: sudo nvidia-modprobe -c0 -u makes them, as hanzo-link-modules.service does", strings.Join(absent, ", "))}
	}
	return []finding{well("NVIDIA nodes", "nvidiactl and nvidia-uvm are there")}
}

func policyFinding(r standing) finding {
	switch p := r.Policy; {
	case p == nil:
		return note("policy", "it was not read")
	case p.Error != "" && !r.Linked:
		return note("policy", "%s", p.Error)
	case p.Error != "":
		return missing("policy", "it is not used, so nothing is offered: %s", p.Error)
	case len(p.Kinds) == 0:
		return well("policy", "%s is root's alone and valid, and admits nothing", policy.Path)
	default:
		return well("policy", "%s is root's alone and valid, and admits %s", policy.Path, strings.Join(p.Kinds, ", "))
	}
}

// installed compares the binaries with their manifest.
func installed(lib string) []finding {
	all := offer.Binaries(lib)
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	var wrong []finding
	for _, name := range names {
		if err := all[name]; err != nil {
			wrong = append(wrong, missing("binaries", "%v", err))
		}
	}
	if len(wrong) > 0 {
		return slices.CompactFunc(wrong, func(a, b finding) bool { return a == b })
	}
	return []finding{well("binaries", "%s are those of the manifest in %s", strings.Join(names, ", "), lib)}
}

// units compares the files of systemd with those of this program.
func units(root string) []finding {
	var wrong []string
	compare := func(name, path string) {
		want, err := systemd.Files.ReadFile(name)
		if err != nil {
			panic("linkcmd: a file that is not embedded: " + err.Error())
		}
		if got, err := os.ReadFile(filepath.Join(root, path)); err != nil || !bytes.Equal(got, want) {
			wrong = append(wrong, path)
		}
	}
	for _, name := range systemd.Units {
		compare(name, filepath.Join(systemd.UnitDir, name))
	}
	compare(systemd.Sysusers, filepath.Join(systemd.SysusersDir, "hanzo-link.conf"))
	compare(systemd.Tmpfiles, filepath.Join(systemd.TmpfilesDir, "hanzo-link.conf"))
	if len(wrong) > 0 {
		return []finding{note("units", "not as this version of hanzo installs them: %s; sudo hanzo link replaces them", strings.Join(wrong, ", "))}
	}
	return []finding{well("units", "as this version of hanzo installs them")}
}

// harmful are properties of the agent's unit that hold for the workloads too, which
// live in its control group, or that take from the launcher what it needs; and what
// each must be. A drop-in of the owner's, or of the distribution's, can set them.
var harmful = map[string][]string{
	"PrivateDevices": {"no"},
	"DevicePolicy":   {"auto"},
	"DeviceAllow":    {""},
	"ProtectClock":   {"no"},
	"Delegate":       {"yes"},
	"MemoryMax":      {"infinity"},
	"TasksMax":       {"infinity"},
}

// effective asks systemd what the agent's unit comes to with all its drop-ins.
func effective(ctx context.Context, p patient) []finding {
	const name = "drop-ins"
	var names []string
	for property := range harmful {
		names = append(names, property)
	}
	slices.Sort(names)
	shown, err := p.show(ctx, "Id,LoadState,DropInPaths,"+strings.Join(names, ","), agentUnit)
	if err != nil {
		return []finding{missing("systemd", "it cannot be asked: %v", err)}
	}
	unit := shown[agentUnit]
	if unit["LoadState"] != "loaded" {
		return nil // its own line says so
	}
	var wrong []string
	for _, property := range names {
		// A systemd that does not know a property does not show it.
		if value, known := unit[property]; known && !slices.Contains(harmful[property], value) {
			wrong = append(wrong, property+"="+value)
		}
	}
	if len(wrong) > 0 {
		return []finding{missing(name, "%s is set on %s, which holds for the workloads too: remove it from %s, then sudo systemctl daemon-reload and restart", strings.Join(wrong, ", "), agentUnit, cmp.Or(unit["DropInPaths"], "its unit"))}
	}
	if unit["DropInPaths"] != "" {
		return []finding{well(name, "%s, and none of them binds the workloads", unit["DropInPaths"])}
	}
	return []finding{well(name, "none")}
}
