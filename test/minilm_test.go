package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMiniLM teaches a readout over a real encoder from a real file: 400 rows of
// snips, graded on its authors' 700 test rows. It needs .ci/minilm to have run,
// and the published data beside the repository; with LINK_REQUIRE_SHARED set it
// fails without them.
func TestMiniLM(t *testing.T) {
	encoder, rows := outside(t, "../testdata/minilm"), outside(t, "../../shared/data/snips/snips.jsonl")
	packages(t) // opens every source file, so that a cached result is a current one
	dir := t.TempDir()
	train := filepath.Join(dir, "train")
	if out, err := exec.Command("go", "build", "-o", train, "../cmd/train").CombinedOutput(); err != nil {
		t.Fatalf("building train: %v\n%s", err, out)
	}
	run := func(args ...string) []byte {
		t.Helper()
		command := exec.Command(train, args...)
		command.Dir = dir
		command.Env = append(os.Environ(), "HANZO_SPOOL="+filepath.Join(dir, "spool"), "HANZO_API=")
		out, err := command.Output()
		if err != nil {
			t.Fatalf("train %v: %v\n%s%s", args, err, out, err.(*exec.ExitError).Stderr)
		}
		return out
	}
	stage, err := json.Marshal(map[string]any{
		"stage": "snips", "init": map[string]any{"dir": "base"}, "adaptation": map[string]any{"mode": "readout"},
		"evaluation": map[string]any{"suites": []string{"snips"}},
		"takes": []any{map[string]any{
			"suite": "snips", "file": rows, "state": []string{"text"}, "label": "label", "split": "split", "rows": 400,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "snips.json"), stage, 0o644); err != nil {
		t.Fatal(err)
	}
	run("init", "base", "--encoder", encoder)
	var result struct {
		Suites []struct {
			After []struct {
				Metric string
				Value  float64
			}
		}
	}
	if err := json.Unmarshal(run("fit", "snips.json", "--run", "snips", "--json"), &result); err != nil {
		t.Fatal(err)
	}
	accuracy := 0.0
	for _, suite := range result.Suites {
		for _, m := range suite.After {
			if m.Metric == "accuracy" {
				accuracy = m.Value
			}
		}
	}
	if accuracy < .9 {
		t.Errorf("accuracy %v on snips after 400 rows, want at least .9", accuracy)
	}
}

// outside is the absolute path of something that a clone does not hold.
func outside(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if os.Getenv("LINK_REQUIRE_SHARED") != "" {
		t.Fatalf("%s is absent", path)
	}
	t.Skipf("%s is absent: this test did not run", path)
	return ""
}
