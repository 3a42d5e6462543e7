package benchcmd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/cmd/internal/traincmd"
)

// types runs a command line, whose words stand between blanks.
func types(ctx context.Context, p term.Program, line string) (term.Status, string) {
	var out bytes.Buffer
	status := p.Main(ctx, strings.Fields(line), term.IO{In: strings.NewReader(""), Out: &out, Err: &out})
	return status, out.String()
}

// newShell moves to a folder with a checkpoint, new, and returns the name of a
// build to answer.
func newShell(t *testing.T) (build string) {
	t.Helper()
	t.Chdir(t.TempDir())
	t.Setenv("HANZO_SPOOL", "spool")
	var rows strings.Builder
	for i := range 10 {
		fmt.Fprintf(&rows, "message number %d about %s,%s\n", i, []string{"a bill", "a parcel"}[i%2], []string{"billing", "delivery"}[i%2])
	}
	for name, content := range map[string]string{
		"desk.csv": "text,queue\n" + rows.String(),
		"desk.json": `{"stage": "desk", "init": {"dir": "new"}, "takes": [{"suite": "desk"}],
			"fractions": {"train": 60, "dev": 0, "test": 40}, "evaluation": {"suites": ["desk"]}}`,
	} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range []string{"data import desk.csv --label queue", "init new --size nano --data data/desk", "stage desk.json"} {
		if status, out := types(t.Context(), traincmd.Program(), line); status != term.OK {
			t.Fatalf("train %s: status %d\n%s", line, status, out)
		}
	}
	builds, err := filepath.Glob("builds/*")
	if err != nil || len(builds) != 1 {
		t.Fatalf("builds %v, %v", builds, err)
	}
	return builds[0]
}

// TestMistakes is what people get wrong: each is refused in one line that says
// where and what to do.
func TestMistakes(t *testing.T) {
	build := newShell(t)
	for _, tt := range []struct {
		line   string
		status term.Status
		says   []string
	}{
		{"eval new", term.Usage, []string{"a checkpoint and a build"}},
		{"eval nowhere " + build, term.Usage, []string{"nowhere", "train init"}},
		{"eval new nowhere", term.Refused, []string{"nowhere", "build"}},
		{"eval new " + build + " --suites nothing --run ev1", term.Refused, []string{"nothing", build}},
		{"gate ev1", term.Failed, []string{"ev1"}}, // the mistake before made none
		{"eval new " + build + " --flips -1", term.Usage, []string{"--flips", "-1"}},
		{"eval new " + build + " --baseline nowhere", term.Failed, []string{"baseline", "nowhere"}},
		{"eval new " + build + " --run ../x", term.Failed, []string{"../x"}},
		{"gate", term.Usage, []string{"a run or a gate file"}},
		{"gate nowhere", term.Failed, []string{"nowhere"}},
		{"gate nowhere.json", term.Failed, []string{"nowhere.json"}},
		{"gate desk.json", term.Usage, []string{"desk.json", "/stage"}},
		{"report", term.Usage, []string{"expected a run"}},
		{"report nowhere", term.Failed, []string{"nowhere"}},
	} {
		status, out := types(t.Context(), Program(), tt.line)
		if status != tt.status {
			t.Errorf("bench %s: status %d, want %d", tt.line, status, tt.status)
		}
		for _, word := range tt.says {
			if !strings.Contains(out, word) {
				t.Errorf("bench %s: %q does not say %s", tt.line, out, word)
			}
		}
		if n := strings.Count(out, "\n"); n != 1 {
			t.Errorf("bench %s is explained in %d lines:\n%s", tt.line, n, out)
		}
	}
}

// TestEval evaluates, is interrupted and goes on, is repeated, and is drawn.
func TestEval(t *testing.T) {
	build := newShell(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if status, out := types(ctx, Program(), "eval new "+build); status != term.Interrupted || !strings.Contains(out, "goes on") {
		t.Fatalf("interrupted: status %d: %s", status, out)
	}
	var outs []string
	for range 2 {
		status, out := types(t.Context(), Program(), "eval new "+build+" --json")
		if status != term.OK {
			t.Fatalf("status %d: %s", status, out)
		}
		outs = append(outs, out[strings.Index(out, "{"):])
	}
	if outs[0] != outs[1] {
		t.Errorf("evaluated again it is\n%s, was\n%s", outs[1], outs[0])
	}
	run := regexp.MustCompile(`"run":"(eval_[^"]+)"`).FindStringSubmatch(outs[0])[1]

	// A run that named no gate is judged by none chosen afterwards.
	if status, out := types(t.Context(), Program(), "gate "+run); status != term.Usage || !strings.Contains(out, "named no gate") {
		t.Errorf("gate of a run without one: status %d: %s", status, out)
	}
	if status, out := types(t.Context(), Program(), "report "+run+" page.html"); status != term.OK {
		t.Errorf("report: status %d: %s", status, out)
	}
	if status, out := types(t.Context(), Program(), "report "+run+" page.html --json"); status != term.OK || out != `{"report":"page.html","run":"`+run+"\"}\n" {
		t.Errorf("report --json: status %d: %s", status, out)
	}
	if page, err := os.ReadFile("page.html"); err != nil || !bytes.Contains(page, []byte("<h2>desk</h2>")) {
		t.Errorf("the page: %v, %.200s", err, page)
	}
	if page, err := os.ReadFile("page.html"); err != nil || !bytes.Contains(page, []byte("0 of 3")) {
		t.Errorf("the page does not say that no order of options changed an answer: %v", err)
	}
	if status, out := types(t.Context(), Program(), "report "+run+" page.html --baseline nowhere"); status != term.Failed || !strings.Contains(out, "nowhere") {
		t.Errorf("report beside a run that is not here: status %d: %s", status, out)
	}
}

// TestBaseline compares a model with itself: nothing changed, nothing is unlikely,
// and no answer moved.
func TestBaseline(t *testing.T) {
	build := newShell(t)
	if status, out := types(t.Context(), Program(), "eval new "+build+" --run before --flips 0"); status != term.OK || !strings.Contains(out, "–\n") || strings.Contains(out, "kl") {
		t.Fatalf("alone: status %d: %s", status, out)
	}
	status, out := types(t.Context(), Program(), "eval new "+build+" --run after --baseline before --flips 3")
	if status != term.OK {
		t.Fatalf("status %d: %s", status, out)
	}
	table := out[strings.Index(out, "suite "):]
	row := strings.Split(table, "\n")[1]
	if !regexp.MustCompile(`0 of 3 +\+0\.0  \+0\.0 to \+0\.0 +1\.0000  0\.0000$`).MatchString(row) {
		t.Errorf("compared with itself it is\n%s", table)
	}
	status, out = types(t.Context(), Program(), "eval new "+build+" --run after --baseline before --flips 3 --json")
	for _, want := range []string{`"baseline":"before"`, `"change":{"delta":0,"gained":0,"groups":`, `"lost":0,"p":1}`, `"kl":0,`, `"flips":{"asked":3,"changed":0}`} {
		if status != term.OK || !strings.Contains(out, want) {
			t.Errorf("status %d: the JSON has no %s: %s", status, want, out)
		}
	}
}

// TestStoreGate stores a gate twice under one hash.
func TestStoreGate(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HANZO_SPOOL", "spool")
	const g = `{"name":"g","version":1,"previous":null,"baseline":null,"rules":[{"dataset":"d","dataset_sha256":"` +
		`e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","category":"all","metric":"accuracy","higher":true,` +
		`"test":{"kind":"floor","value":0.5,"strict":false}}]}`
	if err := os.WriteFile("g.json", []byte(g), 0o644); err != nil {
		t.Fatal(err)
	}
	status, hash := types(t.Context(), Program(), "gate g.json")
	if status != term.OK || !strings.HasPrefix(hash, "sha256:") {
		t.Fatalf("status %d: %s", status, hash)
	}
	if status, again := types(t.Context(), Program(), "gate g.json"); status != term.OK || again != hash {
		t.Errorf("stored again: status %d: %s, want %s", status, again, hash)
	}
}
