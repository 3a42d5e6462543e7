//go:build linux

package guest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/systemd"
)

// TestUnits lets systemd judge the files of the systemd package.
func TestUnits(t *testing.T) {
	if err := install(); err != nil {
		t.Fatal(err)
	}
	t.Run("systemd has nothing against them", func(t *testing.T) {
		for _, name := range systemd.Units {
			out := run(t, "systemd-analyze", "verify", "--man=no", filepath.Join(systemd.UnitDir, name))
			for line := range strings.SplitSeq(out, "\n") {
				// A key that this systemd is too old for, and leaves aside.
				if line != "" && !strings.Contains(line, "DelegateSubgroup") {
					t.Errorf("%s: %s", name, line)
				}
			}
		}
	})
	t.Run("their security is on record", func(t *testing.T) {
		for _, name := range []string{launcherUnit, agentUnit} {
			out := run(t, "systemd-analyze", "security", "--no-pager", name)
			file := filepath.Join(results, "security", name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s\n%s", name, out)
		}
	})
	t.Run("the folders are whose they must be", func(t *testing.T) {
		run(t, "systemd-tmpfiles", "--create", "hanzo-link.conf") // again, as every boot does
		for dir, want := range map[string]string{
			"": "1771 root hanzo-link", "run": "700 root root", "spool": "750 root hanzo-link", "store": "750 hanzo-link hanzo-link",
		} {
			if got := run(t, "stat", "-c", "%a %U %G", filepath.Join(state, dir)); got != want {
				t.Errorf("%s is %s, want %s", filepath.Join(state, dir), got, want)
			}
		}
	})
	t.Run("the socket is the agent's group's", func(t *testing.T) {
		if got := run(t, "stat", "-c", "%a %U %G %F", "/run/hanzo-link/launcher.sock"); got != "660 root hanzo-link socket" {
			t.Errorf("the launcher's socket is %s", got)
		}
	})
}
