package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/trainer"
)

// TestChoose: of each split the rows whose text has the smallest hash, whatever the
// file's order, and of a short split all.
func TestChoose(t *testing.T) {
	all := []row{
		{"c", "x", "train"}, {"a", "x", "train"}, {"b", "x", "train"}, // 2e7d…, ca97…, 3e23…
		{"a", "x", "test"}, {"a", "x", "other"},
	}
	want := []row{{"c", "x", "train"}, {"b", "x", "train"}, {"a", "x", "test"}}
	if got := (suite{train: 2, validation: 9, test: 9}).choose(all, 0); !reflect.DeepEqual(got, want) {
		t.Errorf("chose %v, want %v", got, want)
	}
	if got := (suite{train: 2, test: 9}).choose(all, 1); len(got) != 2 {
		t.Errorf("at most one of a split is %v", got)
	}
}

// TestStages: every stage is one that train fit takes, and protect names the four
// suites where there is one.
func TestStages(t *testing.T) {
	src, err := baseStage()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trainer.ParseStage(src); err != nil {
		t.Error(err)
	}
	b := bench{steps: 2, tokens: 64, lrEncoder: 1e-5, lrHead: 1e-4}
	for _, v := range variants {
		src, err := b.stage(run{suites[4], v, 1})
		if err != nil {
			t.Fatal(err)
		}
		s, err := trainer.ParseStage(src)
		if err != nil {
			t.Errorf("%s: %v", v.name, err)
			continue
		}
		if len(s.Protect.Suites) != 4 {
			t.Errorf("%s protects %v", v.name, s.Protect.Suites)
		}
	}
}

// TestDivergence: KL([¾ ¼] ‖ [½ ½]) = ln 2 − H(¼) and is 0 between equal answers;
// answers to other rows have none.
func TestDivergence(t *testing.T) {
	answer := func(item string, p ...float64) []gate.Prediction {
		return []gate.Prediction{{Item: item, Question: "label", Probabilities: p}}
	}
	want := math.Log(2) + .75*math.Log(.75) + .25*math.Log(.25)
	if got, err := divergence(answer("1", .75, .25), answer("1", .5, .5)); err != nil || math.Abs(got-want) > 1e-15 {
		t.Errorf("divergence is %v, %v; want %v", got, err, want)
	}
	if got, err := divergence(answer("1", 1, 0), answer("1", 1, 0)); err != nil || got != 0 {
		t.Errorf("divergence of equal answers is %v, %v", got, err)
	}
	if got, err := divergence(answer("1", 1, 0), answer("1", 0, 1)); err != nil || math.IsInf(got, 0) {
		t.Errorf("divergence from an answer of probability 0 is %v, %v", got, err)
	}
	if _, err := divergence(answer("1", 1, 0), answer("2", 1, 0)); err == nil {
		t.Error("answers to two rows were compared")
	}
}

// TestPooled: three runs with the same answers say what one does, and no more
// surely: the interval is about rows.
func TestPooled(t *testing.T) {
	b := bench{dir: t.TempDir()}
	var runs []outcome
	for seed := range uint64(3) {
		o := outcome{Target: "snips", Variant: "unprotected", Seed: seed + 1}
		r, err := b.run(o.Target, o.Variant, o.Seed)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(r.dir(&b), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, wrong := range map[string]int{"before": 10, "after": 4} { // every tenth row, every fourth
			var items []gate.Item
			for i := range 60 {
				items = append(items, gate.Item{Item: fmt.Sprint(i), Question: "label", Correct: new(i%wrong > 0)})
			}
			lines, _, err := gate.ItemsNDJSON(items)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(r.dir(&b), "debian."+name+".ndjson"), lines, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		runs = append(runs, o)
	}
	one, err := b.pooled(runs[:1], "debian")
	if err != nil {
		t.Fatal(err)
	}
	all, err := b.pooled(runs, "debian")
	if err != nil {
		t.Fatal(err)
	}
	if want := -9. / 60; math.Abs(one.Delta-want) > 1e-15 || one.Lo >= one.Delta || one.Hi <= one.Delta {
		t.Errorf("one run changed by %+v, want %v within an interval", one, want)
	}
	if math.Abs(one.Delta-all.Delta)+math.Abs(one.Lo-all.Lo)+math.Abs(one.Hi-all.Hi) > 1e-12 || all.Groups != 60 {
		t.Errorf("three equal runs changed by %+v, one by %+v", all, one)
	}
}

// TestReadOutcome: what is there is not done again, and refused once its stage, its
// rows or its base are others.
func TestReadOutcome(t *testing.T) {
	b := bench{dir: t.TempDir(), steps: 60, lrEncoder: 1e-5, lrHead: 1e-4, tokens: 1024}
	r, err := b.run("snips", "unprotected", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, done, err := b.readOutcome(r, "sum"); done || err != nil {
		t.Fatalf("nothing is done: %v, %v", done, err)
	}
	src, err := b.stage(r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(outcome{Stage: src, Base: "sum"}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(r.dir(&b), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.dir(&b), "outcome.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, done, err := b.readOutcome(r, "sum"); !done || err != nil {
		t.Errorf("the run is there: %v, %v", done, err)
	}
	for name, other := range map[string]bench{
		"stage": {dir: b.dir, steps: 61, lrEncoder: 1e-5, lrHead: 1e-4, tokens: 1024},
		"rows":  {dir: b.dir, steps: 60, lrEncoder: 1e-5, lrHead: 1e-4, tokens: 1024, rows: 9},
	} {
		if _, _, err := other.readOutcome(r, "sum"); err == nil {
			t.Errorf("the outcome of another %s was taken", name)
		}
	}
	if _, _, err := b.readOutcome(r, "another"); err == nil {
		t.Error("the outcome of another base was taken")
	}
}
