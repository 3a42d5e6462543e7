//go:build linux

package guest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/systemd"
)

// lib is where an installed host has the programs, state what they keep.
const (
	lib   = "/usr/local/lib/hanzo/link"
	state = "/var/lib/hanzo/link"
)

// install puts a file of the systemd package where it belongs.
func install(t testing.TB, name, to string) {
	t.Helper()
	text, err := systemd.Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, to, string(text), 0o644)
}

func writeFile(t testing.TB, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

// TestUnits installs the files of the systemd package and lets systemd judge them.
func TestUnits(t *testing.T) {
	for _, name := range systemd.Units {
		install(t, name, filepath.Join(systemd.UnitDir, name))
	}
	install(t, systemd.Sysusers, filepath.Join(systemd.SysusersDir, "hanzo-link.conf"))
	install(t, systemd.Tmpfiles, filepath.Join(systemd.TmpfilesDir, "hanzo-link.conf"))
	for _, name := range []string{"hanzo-launcher", "hanzo-link"} {
		if _, err := os.Stat(filepath.Join(lib, name)); err != nil {
			writeFile(t, filepath.Join(lib, name), "#!/bin/sh\nexec sleep infinity\n", 0o755)
		}
	}
	run(t, "systemd-sysusers")
	run(t, "systemd-tmpfiles", "--create", "hanzo-link.conf")
	run(t, "systemctl", "daemon-reload")

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
		for _, name := range []string{"hanzo-link-launcher.service", "hanzo-link.service"} {
			out := run(t, "systemd-analyze", "security", "--no-pager", name)
			writeFile(t, filepath.Join(results, "security", name), out, 0o644)
			t.Logf("%s\n%s", name, out)
		}
	})
	t.Run("the agent's folder is passable and the agent's", func(t *testing.T) {
		if got := run(t, "stat", "-c", "%a %U %G", state); got != "711 hanzo-link hanzo-link" {
			t.Errorf("%s is %s", state, got)
		}
	})
}
