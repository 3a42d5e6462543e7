//go:build linux

package guest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hanzoai/link/sandbox/attempt"
)

// TestSandboxCheck runs hanzo sandbox check, as the machine's owner would, and
// repeats each of its attempts.
func TestSandboxCheck(t *testing.T) {
	if err := install(); err != nil {
		t.Fatal(err)
	}
	check := exec.Command(filepath.Join(payload, "hanzo"), "sandbox", "check", "--json")
	check.Stderr = os.Stderr
	out, err := check.Output()
	if err := os.WriteFile(filepath.Join(results, "sandbox-check.json"), out, 0o644); err != nil {
		t.Fatal(err)
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
				t.Run(r.Name, func(t *testing.T) {
					switch {
					case r.Skipped != "":
						t.Skip(r.Skipped)
					case !r.OK:
						t.Errorf("attempt %d: expected %s, got %s", r.Number, r.Expected, r.Got)
					}
				})
			}
		})
	}
	t.Logf("%d held, %d gave way, %d not run", report.Held, report.GaveWay, report.NotRun)
}
