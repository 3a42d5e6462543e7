//go:build linux

package guest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestLauncherWithControllers runs the launcher's own tests that a host without
// controllers on cgroup v2 skips: that a descriptor to the group's control file, opened
// before the launcher took the group back, disables nothing.
func TestLauncherWithControllers(t *testing.T) {
	// systemd has cpu off at the top until a unit asks for it.
	if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+cpu +memory +pids"), 0); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("./launcher.test", "-test.v", "-test.run=^TestAttempt89")
	cmd.Dir = filepath.Join(payload, "launcher")
	b, err := cmd.CombinedOutput()
	out := string(b)
	if err != nil || strings.Contains(out, "--- SKIP") || !strings.Contains(out, "--- PASS: TestAttempt89ControlGroup/by_a_descriptor_from_before") {
		t.Errorf("%v\n%s", err, out)
	}
}
