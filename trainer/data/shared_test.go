package data

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/decision"
)

// shared is a file of the data that stands beside the repository. A test that
// needs it says so when it is absent, and fails where it has to run.
func shared(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join("..", "..", "..", "shared", "data", name)
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("LINK_REQUIRE_SHARED") == "1" {
			t.Fatalf("%s is needed and absent", path)
		}
		t.Skipf("%s is absent", path)
	}
	return path
}

// TestBanking77 takes a real file from import to plan.
func TestBanking77(t *testing.T) {
	cfg := ImportConfig{
		File: shared(t, "banking77/banking77.jsonl"), Suite: "banking77", Out: t.TempDir(),
		Split: "split", Key: "intent", License: "CC-BY-4.0",
	}
	r, err := Import(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Rows != 13083 || r.Kept != 13083 || len(r.Labels) != 77 || r.Purposes[record.Train] != 10003 || r.Purposes[record.EvalOnly] != 3080 {
		t.Errorf("%d rows, %d kept, %d labels, %v", r.Rows, r.Kept, len(r.Labels), r.Purposes)
	}
	sr, b := staged(t, StageConfig{Suites: cfg.Out, Takes: []Take{{Suite: "banking77", Times: 1}}})
	rows, err := b.Train()
	if err != nil {
		t.Fatal(err)
	}
	kept := len(sr.Excluded)
	for _, s := range b.Sets {
		kept += int(s.Dataset.Items)
	}
	if kept != 13083 {
		t.Errorf("%d rows are sealed or excluded, of 13083", kept)
	}
	// The barrier with the state as its unit leaves nearly all of train.
	if len(rows) < 8500 || len(rows) > 9100 || len(sr.Excluded) < 50 || len(sr.Excluded) > 600 {
		t.Errorf("%d rows to train on, %d excluded", len(rows), len(sr.Excluded))
	}

	ids := make([]string, len(rows))
	sizes := make([]Size, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
		sizes[i] = Size{Context: len(row.State), Options: 500, Head: len(row.State) + 77, Set: 1}
	}
	p, err := NewPlan(sizes, PlanConfig{Seed: 1, Epochs: 2, BatchRows: 256})
	if err != nil {
		t.Fatal(err)
	}
	if want := 2 * ((len(rows) + 255) / 256); p.Steps() != want {
		t.Errorf("%d steps, want %d", p.Steps(), want)
	}
	if raw, err := p.JSON(ids); err != nil || len(raw) > 4096 {
		t.Errorf("the plan is %d bytes, %v", len(raw), err)
	}
}

// TestVader reads raters' counts as distributions over a scale.
func TestVader(t *testing.T) {
	r, err := Check(ImportConfig{
		File: shared(t, "vader-ratings/tweets.jsonl"), Suite: "vader",
		Target: "counts_-4_to_4", Counts: true, Type: decision.Score, ID: "id", Key: "sentiment",
		Criteria: canon.Raw(`["-4","-3","-2","-1","0","1","2","3","4"]`),
	})
	if err != nil || r.Kept != 4200 || len(r.Refused) != 0 {
		t.Errorf("%d of %d kept, %v, %v", r.Kept, r.Rows, r.Refused, err)
	}
}

// TestLabelsOfSeveral checks that rows with several labels are listed, not lost.
func TestLabelsOfSeveral(t *testing.T) {
	r, err := Check(ImportConfig{File: shared(t, "cooking-stackexchange/questions.jsonl"), Suite: "cooking", Label: "labels"})
	if err == nil || !strings.Contains(err.Error(), "no row has a label in labels") {
		t.Errorf("Check = %d kept, %v", r.Kept, err)
	}
}

func BenchmarkImport(b *testing.B) {
	path := filepath.Join("..", "..", "..", "shared", "data", "banking77", "banking77.jsonl")
	if _, err := os.Stat(path); err != nil {
		b.Skipf("%s is absent", path)
	}
	for b.Loop() {
		r, err := Import(ImportConfig{File: path, Suite: "s", Out: b.TempDir(), Split: "split"})
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(r.Bytes)
	}
}

func BenchmarkStage(b *testing.B) {
	path := filepath.Join("..", "..", "..", "shared", "data", "banking77", "banking77.jsonl")
	if _, err := os.Stat(path); err != nil {
		b.Skipf("%s is absent", path)
	}
	out := b.TempDir()
	if _, err := Import(ImportConfig{File: path, Suite: "s", Out: out, Split: "split"}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Stage(StageConfig{Suites: out, Builds: b.TempDir(), Stage: "st", Takes: []Take{{Suite: "s", Times: 1}}}); err != nil {
			b.Fatal(err)
		}
	}
}
