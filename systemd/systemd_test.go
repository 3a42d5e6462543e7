package systemd

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
)

// settings reads a unit as its keys and their values, in order.
func settings(t *testing.T, name string) map[string][]string {
	t.Helper()
	text, err := Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string][]string)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			found[key] = append(found[key], value)
		}
	}
	return found
}

func TestFiles(t *testing.T) {
	entries, err := fs.ReadDir(Files, ".")
	if err != nil {
		t.Fatal(err)
	}
	named := append(slices.Clone(Units), Sysusers, Tmpfiles)
	for _, e := range entries {
		if !slices.Contains(named, e.Name()) {
			t.Errorf("%s is embedded and not named", e.Name())
		}
	}
	if len(entries) != len(named) {
		t.Errorf("%d files are embedded, %d are named", len(entries), len(named))
	}
}

// TestAgentBindsNoWorkload checks that the agent's unit sets nothing that holds
// for its whole control group, for the workloads live there.
func TestAgentBindsNoWorkload(t *testing.T) {
	unit := settings(t, "hanzo-link.service")
	for _, key := range []string{
		"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", // each is a device program
		"IPAddressDeny", "IPAddressAllow", "RestrictNetworkInterfaces", "SocketBindDeny", "RestrictFileSystems",
		"MemoryHigh", "CPUQuota", "AllowedCPUs", "IOReadBandwidthMax", "IOWriteBandwidthMax", "PrivateNetwork",
	} {
		if v, set := unit[key]; set {
			t.Errorf("hanzo-link.service sets %s=%s, which holds for the workloads too", key, v)
		}
	}
	for key, want := range map[string]string{
		"Delegate": "yes", "DelegateSubgroup": "agent", "TasksMax": "infinity", "MemoryMax": "infinity",
		"OOMPolicy": "continue", "User": "hanzo-link", "BindsTo": "hanzo-link-launcher.service", "CapabilityBoundingSet": "",
	} {
		if got := unit[key]; len(got) != 1 || got[0] != want {
			t.Errorf("hanzo-link.service: %s=%q, want %q", key, got, want)
		}
	}
}

// TestLauncherBreaksNoWorkload checks that the launcher's unit sets nothing that
// its children inherit and cannot live with.
func TestLauncherBreaksNoWorkload(t *testing.T) {
	unit := settings(t, "hanzo-link-launcher.service")
	for _, key := range []string{
		"RestrictNamespaces", "ProtectHostname", "RestrictSUIDSGID", "MemoryDenyWriteExecute", "PrivateDevices",
		"ProtectControlGroups", "PrivateUsers",
	} {
		if v, set := unit[key]; set {
			t.Errorf("hanzo-link-launcher.service sets %s=%s, which the unit says it must not", key, v)
		}
	}
	if filter := unit["SystemCallFilter"]; len(filter) != 1 || !strings.HasPrefix(filter[0], "~") {
		t.Errorf("SystemCallFilter=%q: a workload inherits it, so it lists what is refused", filter)
	}
	if got := unit["SystemCallErrorNumber"]; !slices.Equal(got, []string{"EPERM"}) {
		t.Errorf("SystemCallErrorNumber=%q, want EPERM: a workload is told no, not killed", got)
	}
}

// TestAgentWaitsForItsCredential checks how the agent comes and goes: it starts on a
// linked machine only, says when it is ready and that it goes on, and what it says of
// itself goes with it.
func TestAgentWaitsForItsCredential(t *testing.T) {
	unit := settings(t, "hanzo-link.service")
	for key, want := range map[string]string{
		"ConditionPathExists": "/var/lib/hanzo/link/credential", "Restart": "on-failure",
		"Type": "notify", "NotifyAccess": "main", "WatchdogSec": "2min",
		"RuntimeDirectory": "hanzo-link/agent", "RuntimeDirectoryMode": "0755",
	} {
		if got := unit[key]; len(got) != 1 || got[0] != want {
			t.Errorf("hanzo-link.service: %s=%q, want %q", key, got, want)
		}
	}
	if v, set := unit["RuntimeDirectoryPreserve"]; set {
		t.Errorf("RuntimeDirectoryPreserve=%s: a stopped agent would still say that it is connected", v)
	}
}
