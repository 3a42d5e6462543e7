package traincmd

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/trainer"
)

// TestDryRun checks what a person and a program read, and that nothing is left:
// no run, no record, no base.
func TestDryRun(t *testing.T) {
	s := newShell(t)
	rows := "text,queue\n"
	for i := range 40 {
		rows += fmt.Sprintf("letter number %d about %s,%s\n", i, []string{"a bill", "a parcel"}[i%2], []string{"billing", "delivery"}[i%2])
	}
	if err := os.WriteFile("more.csv", []byte(rows), 0o644); err != nil {
		t.Fatal(err)
	}
	s.ok("data import more.csv --label queue")
	before := files(t)
	status, out := s.types(t.Context(), "fit desk.json --dry-run")
	if status != term.OK {
		t.Fatalf("status %d: %s", status, out)
	}
	for _, says := range []string{"desk   target  train  train", "steps", "1 epoch of", "trained", "memory", "weights", "moments", "about", "nothing was trained or recorded"} {
		if !strings.Contains(out, says) {
			t.Errorf("%q does not say %q", out, says)
		}
	}
	_, out = s.types(t.Context(), "fit desk.json --dry-run --json")
	var e trainer.Estimate
	if err := json.Unmarshal([]byte(out[strings.Index(out, "{"):]), &e); err != nil || e.Steps == 0 || e.Memory.Total == 0 {
		t.Errorf("--json gives %+v, %v of %s", e, err, out)
	}
	if status, out := s.types(t.Context(), "fit more.csv --label queue --base new --dry-run"); status != term.OK || !strings.Contains(out, "readout") {
		t.Errorf("of a file of rows: status %d: %s", status, out)
	}
	for _, line := range []string{"fit desk.json --dry-run --run r", "fit --dry-run --resume r", "fit --dry-run"} {
		if status, out := s.types(t.Context(), line); status != term.Usage {
			t.Errorf("%s: status %d: %s", line, status, out)
		}
	}
	if diff := cmp.Diff(before, files(t)); diff != "" {
		t.Errorf("what it left (-before +after):\n%s", diff)
	}
	if _, err := os.Stat("spool"); err == nil {
		t.Error("it made a spool")
	}
}
