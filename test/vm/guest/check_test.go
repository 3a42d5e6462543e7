//go:build linux

package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/sandbox/attempt"
	"github.com/hanzoai/link/systemd"
)

// TestSandboxCheck runs hanzo sandbox check and repeats each of its attempts:
// once as the machine's owner would, where nothing but the sandbox stands in the
// way, and once from a unit with all that the launcher's unit sets, which the
// sandbox is built with and whose filters the workload inherits.
func TestSandboxCheck(t *testing.T) {
	if err := install(); err != nil {
		t.Fatal(err)
	}
	check := []string{filepath.Join(payload, "hanzo"), "sandbox", "check", "--json"}
	t.Run("as the owner runs it", func(t *testing.T) {
		out, err := exec.Command(check[0], check[1:]...).Output()
		report(t, "sandbox-check.json", out, err)
	})
	t.Run("as the launcher's unit is set", func(t *testing.T) {
		const unit = "hanzo-link-check.service"
		out := filepath.Join(results, "sandbox-check-unit.json")
		text := fmt.Sprintf("[Service]\nType=oneshot\nExecStart=%s\nStandardOutput=file:%s\nStandardError=journal\n%s", strings.Join(check, " "), out, settings(t, launcherUnit))
		if err := replaceFile(filepath.Join("/run/systemd/system", unit), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		run(t, "systemctl", "daemon-reload")
		t.Cleanup(func() { command("systemctl", "reset-failed", unit) })
		err := command("systemctl", "start", unit)
		text, _ = output("journalctl", "-b", "--no-pager", "-o", "cat", "-n", "20", "-u", unit)
		t.Log(text)
		report(t, "", []byte(read(t, out)), err)
	})
}

// settings are the lines of a unit's [Service] section that say how a process
// runs, and not which or when.
func settings(t testing.TB, unit string) string {
	t.Helper()
	text, err := systemd.Files.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "[Service]\n")
	section, _, _ = strings.Cut(section, "\n[")
	var kept strings.Builder
	for line := range strings.Lines(section) {
		switch key, _, _ := strings.Cut(line, "="); key {
		case "Type", "ExecStart", "Restart", "RestartSec", "WatchdogSec", "TimeoutStopSec":
		default:
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// report checks what hanzo sandbox check printed, and keeps it.
func report(t *testing.T, file string, out []byte, err error) {
	if file != "" {
		if err := os.WriteFile(filepath.Join(results, file), out, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err != nil {
		t.Errorf("hanzo sandbox check: %v", err)
	}
	var report struct {
		OK, Offers bool
		Reason     string
		Host       []struct {
			Name, Detail string
			OK, Need     bool
		}
		Kinds []struct {
			Kind, Error string
			Results     []attempt.Result
		}
		Held, GaveWay, NotRun int
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v in %.2000s", err, out)
	}
	for _, have := range report.Host {
		if have.Need && !have.OK {
			t.Errorf("the machine lacks %s: %s", have.Name, have.Detail)
		}
	}
	if !report.OK || !report.Offers || len(report.Kinds) == 0 {
		t.Errorf("ok %v, offers %v (%s), %d kinds", report.OK, report.Offers, report.Reason, len(report.Kinds))
	}
	for _, kind := range report.Kinds {
		t.Run(kind.Kind, func(t *testing.T) {
			if kind.Error != "" {
				t.Fatal(kind.Error)
			}
			for _, r := range kind.Results {
				// A slash would make a test of a test.
				t.Run(fmt.Sprintf("%d %s", r.Number, strings.ReplaceAll(r.Name, "/", "\u2215")), func(t *testing.T) {
					switch r.State {
					case attempt.Held:
					case attempt.NotRun:
						t.Skip(r.Got)
					default:
						t.Errorf("expected %s, got %s (%s)", r.Expected, r.Got, r.State)
					}
				})
			}
		})
	}
	t.Logf("%d held, %d gave way, %d not run", report.Held, report.GaveWay, report.NotRun)
}
