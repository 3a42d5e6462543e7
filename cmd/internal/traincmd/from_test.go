package traincmd

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/cmd/internal/term"
)

// TestFrom evaluates what a run taught: its checkpoint's folder, its capability's, and
// the capability by its address answer alike.
func TestFrom(t *testing.T) {
	s := newShell(t)
	fit := func(line string) (o outcome) {
		t.Helper()
		status, out := s.types(t.Context(), line+" --json")
		if status != term.OK && status != term.Rejected {
			t.Fatalf("%s: status %d: %s", line, status, out)
		}
		if err := json.NewDecoder(strings.NewReader(out[strings.Index(out, "{"):])).Decode(&o); err != nil {
			t.Fatalf("%s: %v of %s", line, err, out)
		}
		return o
	}
	asks := func(name, from string) string {
		t.Helper()
		if err := os.WriteFile(name, []byte(strings.Replace(stage, "{", `{"from": "`+from+`",`, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		return "fit " + name
	}
	taught := fit("fit desk.json --run r")
	for name, from := range map[string]string{"a": "runs/r/checkpoint", "b": "runs/r/capability", "c": taught.Capability} {
		o := fit(asks(name+".json", from))
		if (name == "c") != (o.Checkpoint == "") {
			t.Errorf("from %s: its folder is %q", from, o.Checkpoint)
		}
		if len(o.Suites) != 1 {
			t.Errorf("from %s: %d suites", from, len(o.Suites))
		} else if diff := cmp.Diff(taught.Suites[0].After, o.Suites[0].After); diff != "" {
			t.Errorf("from %s (-taught +from):\n%s", from, diff)
		}
	}

	// What cannot be evaluated leaves no run and stores nothing.
	before := files(t)
	for from, want := range map[string]struct {
		status term.Status
		says   string
	}{
		"nowhere":               {term.Usage, "from: nowhere is neither an artifact's address nor a folder"},
		"data":                  {term.Refused, "it has no adapter_config.json"},
		strings.Repeat("0", 64): {term.Refused, "from: this spool holds no artifact 000"},
	} {
		status, out := s.types(t.Context(), asks("a.json", from))
		if status != want.status || !strings.Contains(out, want.says) {
			t.Errorf("from %s: status %d: %s", from, status, out)
		}
	}
	if diff := cmp.Diff(before, files(t)); diff != "" {
		t.Errorf("what it left (-before +after):\n%s", diff)
	}
}
