package linkcmd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/sandbox"
	"github.com/hanzoai/link/systemd"
)

func TestDoctorOfUnits(t *testing.T) {
	root := t.TempDir()
	put := func(name, path string) {
		t.Helper()
		b, err := systemd.Files.ReadFile(name)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755), os.WriteFile(filepath.Join(root, path), b, 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range systemd.Units {
		put(name, filepath.Join(systemd.UnitDir, name))
	}
	put(systemd.Sysusers, systemd.SysusersDir+"/hanzo-link.conf")
	put(systemd.Tmpfiles, systemd.TmpfilesDir+"/hanzo-link.conf")
	if f := units(root)[0]; !f.OK {
		t.Errorf("%+v", f)
	}
	changed := filepath.Join(root, systemd.UnitDir, agentUnit)
	if err := os.WriteFile(changed, []byte("[Service]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if f := units(root)[0]; f.OK || !strings.Contains(f.Detail, systemd.UnitDir+"/"+agentUnit+"; sudo hanzo link") {
		t.Errorf("%+v", f)
	}
}

// What an owner sets on the agent's unit holds for the workloads.
func TestDoctorOfDropIns(t *testing.T) {
	for _, c := range []struct {
		set    [2]string
		ok     bool
		detail string
	}{
		{[2]string{"", ""}, true, "none"},
		{[2]string{"DropInPaths=", "DropInPaths=/etc/systemd/system/hanzo-link.service.d/proxy.conf"}, true, "proxy.conf"},
		{[2]string{"PrivateDevices=no", "PrivateDevices=yes"}, false, "PrivateDevices=yes"},
		{[2]string{"DevicePolicy=auto", "DevicePolicy=closed"}, false, "DevicePolicy=closed"},
		{[2]string{"DeviceAllow=", "DeviceAllow=/dev/null rw"}, false, "DeviceAllow=/dev/null rw"},
		{[2]string{"ProtectClock=no", "ProtectClock=yes"}, false, "ProtectClock=yes"},
		{[2]string{"Delegate=yes", "Delegate=no"}, false, "Delegate=no"},
		{[2]string{"MemoryMax=infinity", "MemoryMax=1073741824"}, false, "MemoryMax=1073741824"},
		{[2]string{"ProtectClock=no\n", ""}, true, "none"}, // a systemd that does not know it
	} {
		p := patient{looker: looker{show: func(context.Context, string, ...string) (map[string]map[string]string, error) {
			return parseShow(strings.Replace(shown, c.set[0], c.set[1], 1)), nil
		}}}
		found := effective(t.Context(), p)
		if len(found) != 1 || found[0].OK != c.ok || !strings.Contains(found[0].Detail, c.detail) {
			t.Errorf("%q: %+v", c.set[1], found)
		}
	}
}

func TestDoctorOfNodes(t *testing.T) {
	root := t.TempDir()
	if found := nvidia(root); len(found) != 0 {
		t.Errorf("%+v", found)
	}
	for _, name := range []string{"proc/driver/nvidia/version", "dev/nvidiactl"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(root, name), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if found := nvidia(root); len(found) != 1 || found[0].OK || !strings.Contains(found[0].Detail, "/dev/nvidia-uvm") || strings.Contains(found[0].Detail, "/dev/nvidiactl") {
		t.Errorf("%+v", found)
	}
	if err := os.WriteFile(filepath.Join(root, "dev/nvidia-uvm"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if found := nvidia(root); len(found) != 1 || !found[0].OK {
		t.Errorf("%+v", found)
	}
}

// Without an agent there is no control group to start a sandbox in, and that is no
// fault of the host.
func TestDoctorOfAHostWithoutAnAgent(t *testing.T) {
	found := sandboxFindings([]sandbox.Check{
		{Name: "kernel", OK: true, Need: true}, {Name: "cgroup v2", Need: true, Detail: "hybrid"}, {Name: "a sandbox starts", Need: true, Detail: "not tried"},
	})
	if !found[1].Need || found[1].OK || found[2].Need || !strings.Contains(found[2].Detail, "hanzo sandbox check") {
		t.Errorf("%+v", found)
	}
}

func TestDoctorOfThisHost(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	for _, f := range thisPatient().examine(t.Context()) {
		if f.Name == "" || f.Detail == "" {
			t.Errorf("%+v", f)
		}
	}
}

// TestDoctorOfAFullDisk: nothing starts on one, so it is no note.
func TestDoctorOfAFullDisk(t *testing.T) {
	f := enough(policy.Free{Disk: 1 << 30, DiskTotal: 100 << 30}, "/var")
	if f.OK || !f.Need || !strings.Contains(f.Detail, "1.0 GiB of 100.0 GiB") || !strings.Contains(f.Detail, "du -x") {
		t.Errorf("%+v", f)
	}
	if f := enough(policy.Free{Disk: 11 << 30, DiskTotal: 100 << 30}, "/var"); !f.OK {
		t.Errorf("%+v", f)
	}
	found := sandboxFindings([]sandbox.Check{{Name: "disk", Detail: "0.1 of 1.0 GB"}, {Name: "a sandbox starts", OK: true}})
	if strings.Contains(found[0].Detail, " GB") || !strings.Contains(found[0].Detail, "GiB") {
		t.Errorf("%+v", found[0])
	}
}

// TestDoctorOfAHostForPresenceOnly says its one cause once, and the same to everybody.
func TestDoctorOfAHostForPresenceOnly(t *testing.T) {
	for _, uid := range []int{0, 1000} {
		found := examineSandbox(t.Context(), "its control groups are hybrid", uid)
		if len(found) != 1 || found[0].OK || !strings.Contains(found[0].Detail, "for presence only: run hanzo link as yourself, without sudo") {
			t.Errorf("uid %d: %+v", uid, found)
		}
	}
}
