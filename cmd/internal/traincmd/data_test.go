package traincmd

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hanzoai/link/cmd/internal/term"
)

// TestDataCheck is what a person is told of rows that are worth a second look.
func TestDataCheck(t *testing.T) {
	t.Chdir(t.TempDir())
	var conflicts strings.Builder
	for i := range 320 {
		fmt.Fprintf(&conflicts, "the same words,%s\n", []string{"a", "b", "c", "d"}[i%4])
	}
	for name, content := range map[string]string{
		"same.csv": "text,label\n" + conflicts.String(), "empty.csv": "text,label\n,a\n,b\n", "rows.txt": "text,label\none,a\ntwo,b\none,a\n",
		"тикеты.csv": "text,label\none,a\ntwo,b\n",
	} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		line     string
		status   term.Status
		says     []string
		saysNone string
	}{
		{"data check same.csv", term.OK, []string{
			"duplicates: 316 rows repeat an earlier one; the first is line 6, as line 2\n",
			"320 rows, lines 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 310 more: \"the same words\"\n", "1 state stands under",
		}, "12,"},
		{"data check empty.csv", term.Refused, []string{"2 rows, 0 kept", "no row can be kept"}, "half up to"},
		{"data check rows.txt", term.Refused, []string{`".txt"`, "--format"}, ""},
		{"data check rows.txt --format csv", term.OK, []string{"3 rows, 3 kept", "1 row repeats an earlier one"}, ""},
		{"data check rows.txt --format xls", term.Refused, []string{`"xls"`, "csv, tsv, jsonl"}, ""},
		{"data check тикеты.csv", term.Usage, []string{"тикеты.csv", "--suite"}, ""},
		{"data import тикеты.csv --suite tickets", term.OK, []string{"2 kept"}, ""},
		{"data import rows.txt --format csv --suite tickets", term.Refused, []string{"--replace", "train fit", "--suite"}, ""},
		{"data import rows.txt --format csv --suite tickets --replace", term.OK, []string{"3 kept"}, ""},
	} {
		status, out := (&shell{t}).types(t.Context(), tt.line)
		if status != tt.status {
			t.Errorf("train %s: status %d, want %d", tt.line, status, tt.status)
		}
		for _, word := range tt.says {
			if !strings.Contains(out, word) {
				t.Errorf("train %s: %q does not say %q", tt.line, out, word)
			}
		}
		if tt.saysNone != "" && strings.Contains(out, tt.saysNone) {
			t.Errorf("train %s: %q says %q", tt.line, out, tt.saysNone)
		}
	}
}

// TestStageJSON names the members of what train stage prints.
func TestStageJSON(t *testing.T) {
	s := newShell(t)
	status, out := s.types(t.Context(), "stage desk.json --json")
	var report struct {
		Dir  string
		Sets []map[string]any
	}
	if err := json.Unmarshal([]byte(out), &report); status != term.OK || err != nil || len(report.Sets) == 0 {
		t.Fatalf("status %d, %v: %s", status, err, out)
	}
	for _, name := range []string{`"dir":`, `"existed":`, `"excluded":`, `"warnings":`, `"id":`, `"items":`, `"sha256":`} {
		if !strings.Contains(out, name) {
			t.Errorf("%s lacks %s", out, name)
		}
	}
	if strings.Contains(out, `"Dir"`) || strings.Contains(out, `"ID"`) {
		t.Errorf("%s has names of Go", out)
	}
}

// TestFitTooFew refuses rows that cannot be graded before a run is begun.
func TestFitTooFew(t *testing.T) {
	s := newShell(t)
	if err := os.WriteFile("few.csv", []byte("text,queue\nthe same,billing\nthe same,delivery\nthe same,billing\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	status, out := s.types(t.Context(), "fit few.csv --label queue --base new --run few")
	if status != term.Refused || !strings.Contains(out, "of its 3 rows") || !strings.Contains(out, "--split") {
		t.Errorf("status %d: %s", status, out)
	}
	if _, err := os.Stat("runs"); err == nil {
		t.Error("a run was begun")
	}
}
