package data

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/spool/record"
)

// allTrain is a file of n train rows whose sentences are numbered from from, and
// one row to be judged by.
func allTrain(from, n int) string {
	var b strings.Builder
	b.WriteString("text,label,fold\n")
	for i := range n {
		fmt.Fprintf(&b, "%s,%s,train\n", sentence(from+i), []string{"x", "y"}[i%2])
	}
	fmt.Fprintf(&b, "the judge of %d,x,test\n", from)
	return b.String()
}

// items are the ids of the items of each set, by split.
func items(t *testing.T, b *Build, suite string) map[string][]string {
	t.Helper()
	ids := make(map[string][]string)
	for _, s := range b.Sets {
		if s.Suite != suite {
			continue
		}
		rows, err := s.Rows()
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			ids[s.Split] = append(ids[s.Split], row.ID)
		}
	}
	return ids
}

// TestKeep checks that kept rows are train rows that do not train: sealed and
// verified as such, and never a target.
func TestKeep(t *testing.T) {
	suites := suitesOf(t, map[string]string{"s": allTrain(0, 100)})
	r, b := staged(t, StageConfig{
		Suites: suites, Fractions: Fractions{Train: 90, Dev: 10},
		Takes: []Take{{Suite: "s", Times: 3, Rows: count(40), Keep: 20}},
	})
	kept := b.Keep()
	if len(kept) != 1 || !kept[0].Kept() {
		t.Fatalf("Keep lists %d sets", len(kept))
	}
	d := kept[0].Dataset
	if !strings.HasPrefix(d.ID, "s.keep.") || len(d.ID) != len("s.keep.")+12 || !record.ValidDataset(d.ID) {
		t.Errorf("the kept set is called %s", d.ID)
	}
	if d.Purpose != record.Train || kept[0].Role != record.RoleTrain || d.Items != 20 {
		t.Errorf("the kept set is %d items of purpose %s in role %s", d.Items, d.Purpose, kept[0].Role)
	}
	ids := items(t, b, "s")
	for _, id := range ids["keep"] {
		if slices.Contains(ids["train"], id) || slices.Contains(ids["dev"], id) {
			t.Errorf("%s is kept and is in another set", id)
		}
	}
	if n := len(b.Role(record.RoleTrain)); n != 2 {
		t.Errorf("role train has %d sets, want both", n)
	}
	if set, ok := b.Find("s", record.RoleTrain); !ok || set.Kept() || len(ids["train"]) != 40 {
		t.Errorf("Find gives %+v of %d rows", set, len(ids["train"]))
	}
	rows, err := b.Train()
	if err != nil || len(rows) != 120 {
		t.Errorf("Train gives %d rows, %v; want 40 three times", len(rows), err)
	}
	for _, row := range rows {
		if slices.Contains(ids["keep"], row.ID) {
			t.Fatalf("%s is kept and trains", row.ID)
		}
	}
	dev := len(ids["dev"])
	for _, s := range r.Sets {
		want := map[string][2]int{"train": {120, 40 - dev}, "keep": {0, 0}, "dev": {0, 0}, "test": {0, 0}}[s.Split]
		if s.Draws != want[0] || s.Cut != want[1] {
			t.Errorf("report of %s: %d draws, %d cut; want %v", s.ID, s.Draws, s.Cut, want)
		}
	}
}

// TestKeepStays checks that the kept rows do not follow the seed, and that training
// more takes from them only what trains.
func TestKeepStays(t *testing.T) {
	suites := suitesOf(t, map[string]string{"s": allTrain(0, 100)})
	sets := func(take Take, seed uint64) map[string][]string {
		take.Suite, take.Times, take.Keep = "s", 1, 10
		_, b := staged(t, StageConfig{Suites: suites, Seed: seed, Takes: []Take{take}})
		return items(t, b, "s")
	}
	none := sets(Take{Rows: count(0)}, 1)["keep"]
	if other := sets(Take{Rows: count(0)}, 2)["keep"]; !slices.Equal(none, other) {
		t.Errorf("seed 1 keeps %v, seed 2 %v", none, other)
	}
	some := sets(Take{Rows: count(20)}, 1)
	for _, id := range none {
		if slices.Contains(some["keep"], id) == slices.Contains(some["train"], id) {
			t.Errorf("%s is kept where nothing trains, and with 20 rows trained it is both or neither", id)
		}
	}
}

// TestKeepJudge checks that a suite that only judges gives its dev rows beside
// what it keeps, and without Keep neither.
func TestKeepJudge(t *testing.T) {
	suites := suitesOf(t, map[string]string{"s": rowsFile(400, nil)})
	take := Take{Suite: "s", Times: 1, Rows: count(0)}
	_, b := staged(t, StageConfig{Suites: suites, Takes: []Take{take}})
	if ids := items(t, b, "s"); len(ids) != 1 {
		t.Errorf("without Keep the sets are %v", ids)
	}
	take.Keep = 30
	r, b := staged(t, StageConfig{Suites: suites, Takes: []Take{take}})
	ids := items(t, b, "s")
	if len(ids["keep"]) != 30 || len(ids["dev"]) == 0 || len(ids["test"]) == 0 || len(ids) != 3 {
		t.Errorf("%d kept, %d dev, %d test rows in %d sets", len(ids["keep"]), len(ids["dev"]), len(ids["test"]), len(ids))
	}
	if rows, err := b.Train(); err != nil || len(rows) != 0 {
		t.Errorf("Train gives %d rows, %v", len(rows), err)
	}
	if _, ok := b.Find("s", record.RoleTrain); ok {
		t.Error("Find gives the kept set as one to train on")
	}
	if len(r.Warnings) != 0 {
		t.Errorf("warnings %q", r.Warnings)
	}

	take.Keep = 1000
	r, _ = staged(t, StageConfig{Suites: suites, Takes: []Take{take}})
	if !slices.ContainsFunc(r.Warnings, func(w string) bool {
		return strings.HasPrefix(w, "suite s keeps ") && strings.HasSuffix(w, " rows for preservation of the 1000 asked for: no more are left")
	}) {
		t.Errorf("warnings %q, want one of fewer rows", r.Warnings)
	}
}

// TestKeepApart checks that a state that trains is not kept: left out within a
// suite, refused across two.
func TestKeepApart(t *testing.T) {
	// Each sentence stands twice, in other words for a reader and the same for us.
	var twice strings.Builder
	twice.WriteString("text,label,fold\n")
	for i := range 40 {
		fmt.Fprintf(&twice, "%s,x,train\n%s!,y,train\n", sentence(i), strings.ToUpper(sentence(i)))
	}
	twice.WriteString("the judge,x,test\n")
	suites := suitesOf(t, map[string]string{"s": twice.String(), "other": allTrain(39, 10)})
	_, b := staged(t, StageConfig{
		Suites: suites, Fractions: Fractions{Train: 100}, Takes: []Take{{Suite: "s", Times: 1, Rows: count(20), Keep: 80}},
	})
	states := make(map[string]bool)
	rows, err := b.Train()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		states[record.Normal(row.State)] = true
	}
	kept, err := b.Keep()[0].Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range kept {
		if states[record.Normal(row.State)] {
			t.Errorf("%s is kept, and its state trains", row.ID)
		}
	}
	if len(kept) != 80-2*len(states) {
		t.Errorf("%d rows kept, want all 80 but both of each of %d states that train", len(kept), len(states))
	}

	// The sentence is lines 80 and 81 of s and line 2 of other.
	r, b := staged(t, StageConfig{
		Suites: suites, Fractions: Fractions{Train: 100},
		Takes: []Take{{Suite: "s", Times: 1, Rows: count(0), Keep: 80}, {Suite: "other", Times: 1}},
	})
	for _, id := range items(t, b, "s")["keep"] {
		if id == "s:80" || id == "s:81" {
			t.Errorf("%s is kept, and its text trains in suite other", id)
		}
	}
	if !slices.ContainsFunc(r.Warnings, func(w string) bool {
		return strings.Contains(w, "suite s: 2 train rows are not kept")
	}) {
		t.Errorf("warnings are %q", r.Warnings)
	}
}

// TestKeepExample checks that rows of one group do not train in one suite and are
// kept of another.
func TestKeepExample(t *testing.T) {
	out := t.TempDir()
	for _, f := range []struct{ suite, text string }{{"a", "alpha"}, {"b", "beta"}} {
		content := "text,label,doc\n"
		for i := range 4 {
			content += fmt.Sprintf("%s %s,%s,page-%d\n", f.text, topics[i], []string{"x", "y"}[i%2], i)
		}
		if _, err := Import(ImportConfig{
			File: file(t, f.suite+".csv", content), Suite: f.suite, Out: out, Group: "doc", Source: "book", Purpose: record.Train,
		}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Stage(StageConfig{
		Suites: out, Builds: t.TempDir(), Stage: "st", Fractions: Fractions{Train: 100},
		Takes: []Take{{Suite: "a", Times: 1}, {Suite: "b", Times: 1, Rows: count(0), Keep: 4}},
	})
	if err == nil || !strings.Contains(err.Error(), "4 train already, as row b:") || !strings.Contains(err.Error(), "of suite a: a suite that is taught cannot be protected") {
		t.Errorf("Stage = %v, want an error that names both rows", err)
	}
}

func TestKeepRefuses(t *testing.T) {
	suites := suitesOf(t, map[string]string{
		"s": allTrain(0, 10), "judge": "text,label,fold\none,x,test\ntwo,y,test\n",
		"same": "text,label,fold\nthe text,x,train\nThe text!,y,train\nthe TEXT,x,train\nthe judge,x,test\n",
	})
	tests := []struct {
		name string
		take Take
		want string
	}{
		{"below 0", Take{Suite: "s", Keep: -1}, "suite s: keep is -1; it must be 0, or 2 or more"},
		{"one", Take{Suite: "s", Keep: 1}, "suite s: keep is 1; it must be 0, or 2 or more"},
		{"all train", Take{Suite: "s", Keep: 5}, "no row is left to keep: all 10 of its train rows train: set rows to leave some"},
		{"one is left", Take{Suite: "s", Rows: count(9), Keep: 5}, "keep is 5, and 1 of its train rows can be kept, where 2 are the least: 9 train and 0 repeat"},
		{"the rest repeats", Take{Suite: "same", Rows: count(1), Keep: 5}, "0 of its train rows can be kept, where 2 are the least: 1 train and 2 repeat the state of one that does"},
		{"no train rows", Take{Suite: "judge", Rows: count(0), Keep: 5}, "suite judge: keep is 5, and it has no train row to keep"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.take.Times = 1
			builds := filepath.Join(t.TempDir(), "b")
			_, err := Stage(StageConfig{Suites: suites, Builds: builds, Stage: "st", Fractions: Fractions{Train: 100}, Takes: []Take{tt.take}})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Stage = %v, want an error with %q", err, tt.want)
			}
			if _, err := os.Stat(builds); err == nil {
				t.Error("a refused staging left a folder")
			}
		})
	}
}

// TestKeepPurpose checks that a kept set is held to its rows' purpose as one that
// trains is.
func TestKeepPurpose(t *testing.T) {
	suites := suitesOf(t, map[string]string{"s": allTrain(0, 20)})
	r, b := staged(t, StageConfig{Suites: suites, Takes: []Take{{Suite: "s", Times: 1, Rows: count(5), Keep: 5}}})
	path := filepath.Join(r.Dir, b.Keep()[0].Dataset.ID+".ndjson")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(doc), `"purpose":"train"`, `"purpose":"eval_only"`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBuild(r.Dir); !errors.Is(err, ErrPurpose) || !strings.Contains(err.Error(), "line 1: item \"s:") {
		t.Errorf("OpenBuild = %v, want ErrPurpose naming the row", err)
	}
}

// TestKeepNothing checks that a take without Keep is recorded as before there was
// one, so that old builds keep their names.
func TestKeepNothing(t *testing.T) {
	suites := suitesOf(t, map[string]string{"s": allTrain(0, 20)})
	r, _ := staged(t, StageConfig{Suites: suites, Takes: []Take{{Suite: "s", Times: 1}}})
	doc, err := os.ReadFile(filepath.Join(r.Dir, manifestFile))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(doc), `"keep"`) {
		t.Errorf("the manifest names keep: %s", doc)
	}
}
