package traincmd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/cmd/internal/term"
)

// A shell is a folder with rows and a checkpoint, in which commands are typed.
type shell struct{ t *testing.T }

const stage = `{"stage": "desk", "init": {"dir": "new"}, "takes": [{"suite": "desk"}],
 "fractions": {"train": 60, "dev": 0, "test": 40}, "evaluation": {"suites": ["desk"]}, "epochs": 1}`

func newShell(t *testing.T) *shell {
	t.Helper()
	t.Chdir(t.TempDir())
	t.Setenv("HANZO_SPOOL", "spool")
	t.Setenv("HANZO_API", "")
	var rows strings.Builder
	for i := range 10 {
		fmt.Fprintf(&rows, "message number %d about %s,%s\n", i, []string{"a bill", "a parcel"}[i%2], []string{"billing", "delivery"}[i%2])
	}
	for name, content := range map[string]string{"desk.csv": "text,queue\n" + rows.String(), "desk.json": stage, "typo.json": `{"stage": "x", "epoch": 3}`} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := &shell{t}
	s.ok("data import desk.csv --label queue")
	s.ok("init new --size nano --data data/desk")
	return s
}

// types runs a command line, whose words stand between blanks.
func (s *shell) types(ctx context.Context, line string) (term.Status, string) {
	var out bytes.Buffer
	status := Program().Main(ctx, strings.Fields(line), term.IO{In: strings.NewReader(" \n"), Out: &out, Err: &out})
	return status, out.String()
}

func (s *shell) ok(line string) {
	s.t.Helper()
	if status, out := s.types(s.t.Context(), line); status != term.OK {
		s.t.Fatalf("train %s: status %d\n%s", line, status, out)
	}
}

// TestMistakes is what people get wrong: each is refused in words that say where
// and what to do, and leaves nothing behind.
func TestMistakes(t *testing.T) {
	s := newShell(t)
	tests := []struct {
		line   string
		status term.Status
		says   []string
	}{
		{"fit", term.Usage, []string{"expected one argument"}},
		{"fit none.json", term.Failed, []string{"none.json"}},
		{"fit typo.json", term.Usage, []string{"typo.json", "epochs"}},
		{"fit desk.json --run ../x", term.Usage, []string{"../x"}},
		{"fit desk.json --epochs 3", term.Usage, []string{"--epochs", "desk.json"}},
		{"fit desk.json --encoder somewhere", term.Usage, []string{"--encoder", "desk.json"}},
		{"fit --resume ../x", term.Usage, []string{"../x"}},
		{"fit --resume nowhere", term.Usage, []string{"nowhere", "runs"}},
		{"fit --resume desk --label queue", term.Usage, []string{"its own stage"}},
		{"fit desk.csv --label queue", term.Usage, []string{"--encoder", "--base"}},
		{"fit desk.csv --label quene --base new", term.Refused, []string{"quene", "queue"}},
		{"fit desk.csv --label quene --encoder somewhere", term.Refused, []string{"quene", "queue"}},
		{"fit desk.csv --label queue --base nowhere", term.Usage, []string{"nowhere", "train init"}},

		{"data", term.Usage, []string{"data import", "data check"}},
		{"data import none.csv --label x", term.Failed, []string{"none.csv"}},
		{"data import desk.csv --label quene", term.Refused, []string{"quene", "queue"}},
		{"data import desk.csv --label queue --suite A/B", term.Usage, []string{"A/B"}},

		{"init x", term.Usage, []string{"--encoder", "--size"}},
		{"init x --size nano", term.Usage, []string{"--data"}},
		{"stage", term.Usage, []string{"a stage file"}},

		{"ask", term.Usage, []string{"checkpoint"}},
		{"ask nowhere hello", term.Usage, []string{"nowhere", "train init"}},
		{"ask new hello", term.Usage, []string{"--type", "--options", "--instructions"}},
		{"ask new --type noul --instructions why", term.Usage, []string{"the state is empty"}},
		{"ask new hello --type rank --instructions why", term.Usage, []string{"--type", "rank"}},
		{"ask new hello --type foo", term.Usage, []string{"--type", "foo"}},
		{"ask new hello --type score", term.Usage, []string{"--type", "--options"}},
		{"ask new hello --options=", term.Usage, []string{"--type", "--options"}},
		{"ask new hello --options a,b", term.Usage, []string{"--instructions"}},
		{"ask new hello --question {} --type noul", term.Usage, []string{"--question", "--type"}},
		{"ask new --request - --type noul", term.Usage, []string{"--request", "--type"}},
		{"ask new hello --taught", term.Usage, []string{"--taught", "hello"}},
		{"ask new --instructions why --type noul \xff", term.Usage, []string{"UTF-8"}},
		{"ask new hello --type noul --instructions \xff", term.Usage, []string{"instructions are not UTF-8"}},
		{"ask new hello --instructions which --options \xff,b", term.Usage, []string{"option 1", "not UTF-8"}},
		{"ask new hello --threads -1", term.Usage, []string{"threads", "0 or more"}},
		{"fit desk.csv --label queue --base new --epochs -1", term.Usage, []string{"epochs", "0 or more"}},
		{"data import desk.csv --label queue --max-len -1", term.Usage, []string{"max-len", "0 or more"}},
		{"ask new hello --question {", term.Usage, []string{"--question"}},
		{"ask new hello --listen 127.0.0.1:0", term.Usage, []string{"--listen", "hello"}},
		{"ask new --listen 0.0.0.0:80", term.Usage, []string{"--listen 0.0.0.0:80", "loopback"}},
		{"ask new --request -", term.Usage, []string{"standard input"}},

		{"calibrate new", term.Usage, []string{"a checkpoint, a build and a new folder"}},
		{"calibrate new nowhere x", term.Refused, []string{"nowhere", "build"}},

		{"sync now", term.Usage, []string{"no arguments"}},
		{"sync", term.Unsynced, []string{"HANZO_API"}},
		{"cancel", term.Usage, []string{"the run to cancel"}},
		{"cancel nowhere", term.Failed, []string{"nowhere"}},
		{"cancel ../x", term.Failed, []string{"../x"}},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			before := files(t)
			status, out := s.types(t.Context(), tt.line)
			if status != tt.status {
				t.Errorf("status %d, want %d", status, tt.status)
			}
			for _, word := range tt.says {
				if !strings.Contains(out, word) {
					t.Errorf("%q does not say %s", out, word)
				}
			}
			if n := strings.Count(out, "\n"); n != 1 {
				t.Errorf("the mistake is explained in %d lines:\n%s", n, out)
			}
			if diff := cmp.Diff(before, files(t)); diff != "" {
				t.Errorf("what it left (-before +after):\n%s", diff)
			}
		})
	}
}

// files are the files here and beside here, less the spool's and what sealing
// rows leaves: the same rows make the same build again.
func files(t *testing.T) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir("..", func(path string, entry os.DirEntry, err error) error {
		if name := entry.Name(); err == nil && entry.IsDir() && (name == "spool" || name == "builds") {
			return filepath.SkipDir
		}
		list = append(list, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestInterruptedBaseline interrupts a run while its base is evaluated: it can be
// gone on with.
func TestInterruptedBaseline(t *testing.T) {
	s := newShell(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	status, out := s.types(ctx, "fit desk.json --run r")
	if status != term.Interrupted || !strings.Contains(out, "train fit --resume r goes on") {
		t.Fatalf("status %d: %s", status, out)
	}
	if status, out := s.types(t.Context(), "fit --resume r"); status != term.OK && status != term.Rejected {
		t.Errorf("resumed: status %d: %s", status, out)
	}
	if status, out := s.types(t.Context(), "fit desk.json --run r"); status != term.Usage || !strings.Contains(out, "--resume r") {
		t.Errorf("the same run anew: status %d: %s", status, out)
	}
}
