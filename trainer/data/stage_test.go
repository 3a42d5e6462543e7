package data

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// topics are words for sentences that have nothing in common but their form.
var topics = strings.Fields("amber birch cedar delta ember flint grove haven inlet jetty knoll larch maple north ocean pearl quartz ridge stone thorn")

// sentence is the i-th of many different sentences of eight words.
func sentence(i int) string {
	words := make([]string, 8)
	for j := range words {
		words[j] = topics[mix(uint64(i)*31+uint64(j))%uint64(len(topics))]
	}
	return strings.Join(words, " ") + fmt.Sprintf(" %d", i)
}

// rowsFile is n rows of two labels, with a split column when splits are given.
func rowsFile(n int, split func(i int) string) string {
	var b strings.Builder
	b.WriteString("text,label,fold\n")
	for i := range n {
		fold := ""
		if split != nil {
			fold = split(i)
		}
		fmt.Fprintf(&b, "%s,%s,%s\n", sentence(i), []string{"x", "y"}[i%2], fold)
	}
	return b.String()
}

// suitesOf imports files by suite name into one folder. A file with a "fold"
// column that is not empty is split by it.
func suitesOf(t *testing.T, files map[string]string) string {
	t.Helper()
	out := t.TempDir()
	for name, content := range files {
		cfg := ImportConfig{File: file(t, name+".csv", content), Suite: name, Out: out}
		if !strings.Contains(content, ",\n") {
			cfg.Split = "fold"
		}
		if _, err := Import(cfg); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// staged stages and opens.
func staged(t *testing.T, cfg StageConfig) (StageReport, *Build) {
	t.Helper()
	if cfg.Builds == "" {
		cfg.Builds = t.TempDir()
	}
	if cfg.Stage == "" {
		cfg.Stage = "st"
	}
	r, err := Stage(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b, err := OpenBuild(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	return r, b
}

func count(n int) *int { return &n }

// TestStage checks what a build is: sets, ids, purposes, bytes.
func TestStage(t *testing.T) {
	suites := suitesOf(t, map[string]string{"s": rowsFile(400, nil)})
	r, b := staged(t, StageConfig{Suites: suites, Takes: []Take{{Suite: "s", Times: 1}}})

	purposes := map[string]record.Purpose{"train": record.Train, "dev": record.Dev, "test": record.EvalOnly}
	total := 0
	examples := make(map[string]string)
	for _, s := range b.Sets {
		d := s.Dataset
		if d.Purpose != purposes[s.Split] || !strings.HasPrefix(d.ID, "s."+s.Split+".") || len(d.ID) != len("s."+s.Split+".")+12 {
			t.Errorf("set %s (%s) is %s", d.ID, s.Split, d.Purpose)
		}
		total += int(d.Items)
		var items []record.DatasetItem
		for it, err := range s.Items() {
			if err != nil {
				t.Fatal(err)
			}
			if err := it.Validate(); err != nil {
				t.Errorf("item %s: %v", it.ItemID, err)
			}
			if other, ok := examples[it.CanonicalExampleID]; ok && other != s.Split {
				t.Errorf("example %s is in %s and in %s", it.CanonicalExampleID, other, s.Split)
			}
			examples[it.CanonicalExampleID] = s.Split
			items = append(items, it)
		}
		// The artifact is what package record says a sealed dataset's items are.
		want, sum, err := record.ItemsNDJSON(items)
		if err != nil {
			t.Fatal(err)
		}
		f, err := s.Reader()
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if _, err := got.ReadFrom(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if !bytes.Equal(got.Bytes(), want) || sum != *d.SHA256 {
			t.Errorf("set %s is not the canonical items artifact", d.ID)
		}
		d.Created, d.Sealed = "2026-01-01T00:00:00Z", &d.Created
		if err := d.Validate(); err != nil {
			t.Errorf("dataset %s: %v", d.ID, err)
		}
	}
	if total+len(r.Excluded) != 400 {
		t.Errorf("%d rows sealed and %d excluded of 400", total, len(r.Excluded))
	}
	// 400 rows at 70, 10, 20 %: within four standard deviations.
	for split, want := range map[string][2]int{"train": {243, 317}, "dev": {16, 64}, "test": {48, 112}} {
		i := slices.IndexFunc(b.Sets, func(s *Set) bool { return s.Split == split })
		if n := int(b.Sets[i].Dataset.Items); n < want[0] || n > want[1] {
			t.Errorf("%s has %d rows, want %d to %d", split, n, want[0], want[1])
		}
	}
	if !strings.HasSuffix(r.Dir, "st-"+b.Hash.Hex()[:16]) || !b.BarrierHash.Valid() {
		t.Errorf("build %s has hash %s, barrier %s", r.Dir, b.Hash, b.BarrierHash)
	}
	rows, err := b.Train()
	if err != nil {
		t.Fatal(err)
	}
	set, ok := b.Find("s", record.RoleTrain)
	if !ok || uint64(len(rows)) != set.Dataset.Items {
		t.Errorf("Train gives %d rows", len(rows))
	}
	if rows[0].ID == "" || rows[0].Group != rows[0].Example || rows[0].Asked[0].Target == nil {
		t.Errorf("a row is %+v", rows[0])
	}
}

// TestStageSame checks that a build depends on nothing but its content: not on
// the folder, the order of the takes, or how often it is made.
func TestStageSame(t *testing.T) {
	files := map[string]string{"a": rowsFile(60, nil), "b": rowsFile(90, nil)}
	takes := []Take{{Suite: "a", Times: 1}, {Suite: "b", Times: 2}}
	builds := t.TempDir()
	first, _ := staged(t, StageConfig{Suites: suitesOf(t, files), Builds: builds, Takes: takes})
	again, _ := staged(t, StageConfig{Suites: suitesOf(t, files), Builds: builds, Takes: []Take{takes[1], takes[0]}})
	if again.Dir != first.Dir || first.Existed || !again.Existed {
		t.Errorf("staged %s (existed %t), then %s (existed %t)", first.Dir, first.Existed, again.Dir, again.Existed)
	}
	if left, _ := os.ReadDir(builds); len(left) != 1 {
		t.Errorf("the folder of builds holds %v", left)
	}
	files["a"] += "one more row of eight words here now,x,\n"
	other, _ := staged(t, StageConfig{Suites: suitesOf(t, files), Builds: builds, Takes: takes})
	if other.Dir == first.Dir {
		t.Error("another file gives the same build")
	}
	if same := other.Sets[len(other.Sets)-1]; same.ID != first.Sets[len(first.Sets)-1].ID {
		t.Errorf("an unchanged suite's dataset is %s, was %s", same.ID, first.Sets[len(first.Sets)-1].ID)
	}
}

// TestStageSplits checks a file's own splits, and where dev rows come from when
// it has none.
func TestStageSplits(t *testing.T) {
	three := func(i int) string { return []string{"train", "train", "validation", "Test"}[i%4] }
	two := func(i int) string { return []string{"train", "train", "train", "test"}[i%4] }
	tests := []struct {
		name  string
		split func(int) string
		cfg   StageConfig
		want  map[string][2]int // items, at least and at most
	}{
		{"train, validation, test", three, StageConfig{}, map[string][2]int{"train": {200, 200}, "dev": {100, 100}, "test": {100, 100}}},
		{"dev is a tenth of train", two, StageConfig{}, map[string][2]int{"train": {250, 285}, "dev": {15, 50}, "test": {100, 100}}},
		{"no dev is asked for", two, StageConfig{Fractions: Fractions{Train: 80, Test: 20}}, map[string][2]int{"train": {300, 300}, "test": {100, 100}}},
		{"only to be judged by", three, StageConfig{Takes: []Take{{Suite: "s", Rows: count(0), Times: 1}}}, map[string][2]int{"test": {100, 100}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Suites = suitesOf(t, map[string]string{"s": rowsFile(400, tt.split)})
			if tt.cfg.Takes == nil {
				tt.cfg.Takes = []Take{{Suite: "s", Times: 1}}
			}
			_, b := staged(t, tt.cfg)
			got := make(map[string]int)
			for _, s := range b.Sets {
				got[s.Split] = int(s.Dataset.Items)
			}
			for split, want := range tt.want {
				if n := got[split]; n < want[0] || n > want[1] {
					t.Errorf("%s has %d rows, want %d to %d", split, n, want[0], want[1])
				}
			}
			if len(got) != len(tt.want) {
				t.Errorf("sets %v, want %v", got, tt.want)
			}
		})
	}
}

// TestBarrier checks each rule, one row a rule: train is this text, a judge's set
// holds the other.
func TestBarrier(t *testing.T) {
	const protected = "the quick brown fox jumps over the lazy dog tonight"
	tests := []struct {
		name, train, why string
	}{
		{"another text", "nothing here is at all like what is asked over there", ""},
		{"equal", protected, "equal"},
		{"equal in normal form", "The QUICK brown fox; jumps over -- the lazy dog, tonight!", "equal"},
		{"one word more", protected + " again", "near"},
		// 12 words have 8 grams; 6 of them are among the other's 6: 6/8.
		{"two words more", protected + " again please", "near"},
		// 10 words, the last 3 changed: 3 grams of 6 are common, 3/9.
		{"three words changed", "the quick brown fox jumps over the small cat slept", ""},
		// One word in the middle changed leaves 1 gram of 6.
		{"a middle word changed", "the quick brown fox leaps over the lazy dog tonight", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			leaves := func(s string) []string { return []string{record.Normal(s)} }
			b := newBarrier()
			b.add(newTrace("j", "j:1", "state:1", "sha256:1", leaves(protected)))
			ex, found := b.match(newTrace("s", "s:1", "state:2", "sha256:2", leaves(tt.train)), true)
			if found != (tt.why != "") || ex.Why != tt.why {
				t.Errorf("match = %+v, %t; want %q", ex, found, tt.why)
			}
			if found && ex.Against != "j/j:1" {
				t.Errorf("against %q", ex.Against)
			}
			_, official := b.match(newTrace("s", "s:1", "state:2", "sha256:2", leaves(tt.train)), false)
			if official != (tt.why == "equal") {
				t.Errorf("with equality alone, found = %t", official)
			}
		})
	}
	t.Run("by example", func(t *testing.T) {
		b := newBarrier()
		b.add(newTrace("j", "j:1", "mail:7", "sha256:1", []string{"one text"}))
		if ex, _ := b.match(newTrace("s", "s:1", "mail:7", "sha256:2", []string{"other words"}), true); ex.Why != "example" {
			t.Errorf("match = %+v, want by example", ex)
		}
	})
	t.Run("a short text matches only when equal", func(t *testing.T) {
		b := newBarrier()
		b.add(newTrace("j", "j:1", "a", "sha256:1", []string{"where is my card"}))
		if ex, found := b.match(newTrace("s", "s:1", "b", "sha256:2", []string{"where is my cards"}), true); found {
			t.Errorf("match = %+v", ex)
		}
		if ex, _ := b.match(newTrace("s", "s:1", "b", "sha256:2", []string{"where is my card"}), true); ex.Why != "equal" {
			t.Errorf("match = %+v, want equal", ex)
		}
	})
	t.Run("nothing is equal to nothing", func(t *testing.T) {
		b := newBarrier()
		b.add(newTrace("j", "j:1", "a", "sha256:1", []string{""}))
		if ex, found := b.match(newTrace("s", "s:1", "b", "sha256:2", nil), true); found {
			t.Errorf("match = %+v", ex)
		}
	})
}

// TestMinHash checks over pairs of known Jaccard that the bands propose near all
// of those at or above the limit: .98 at it, by 1-(1-.5^4)^64.
func TestMinHash(t *testing.T) {
	const pairs = 300
	found := 0
	for p := range pairs {
		// 20 grams each, of which m are common: m/(40-m) = .5 at 13.3; take 14, .538.
		var a, b []uint64
		for i := range 20 {
			a = append(a, mix(uint64(p*1000+i)))
			if i < 14 {
				b = append(b, a[i])
			} else {
				b = append(b, mix(uint64(p*1000+500+i)))
			}
		}
		slices.Sort(a)
		slices.Sort(b)
		bar := newBarrier()
		bar.add(trace{suite: "j", item: "j:1", example: "a", contamination: "x", words: 24, grams: a})
		t2 := trace{suite: "s", item: "s:1", example: "b", contamination: "y", words: 24, unit: [16]byte{1}, grams: b}
		if ex, ok := bar.match(t2, true); ok && ex.Why == "near" {
			found++
		}
	}
	if found < pairs*97/100 {
		t.Errorf("%d of %d near pairs were found", found, pairs)
	}
}

// TestStageBarrier checks the barrier across suites, and that dev is kept apart
// from train.
func TestStageBarrier(t *testing.T) {
	long := sentence(1000) + " and more words than five"
	train := "text,label,fold\n" +
		sentence(1) + ",x,train\n" +
		sentence(2) + ",y,train\n" +
		strings.ToUpper(sentence(3)) + ",x,train\n" + // equal to a judge's
		long + ",y,train\n" + // near a judge's
		sentence(4) + ",x,validation\n" +
		sentence(1) + "!,y,validation\n" + // equal to a train row
		sentence(5) + ",x,test\n"
	judge := "text,label,fold\n" + sentence(3) + ",x,test\n" + long + " again,y,test\n"
	suites := suitesOf(t, map[string]string{"s": train, "j": judge})
	takes := []Take{{Suite: "s", Times: 1}, {Suite: "j", Rows: count(0), Times: 1}}
	r, b := staged(t, StageConfig{Suites: suites, Takes: takes})
	type short struct{ Item, Why, Against string }
	var got []short
	for _, e := range r.Excluded {
		got = append(got, short{e.Item, e.Why, e.Against})
	}
	want := []short{{"s:4", "equal", "j/j:2"}, {"s:5", "near", "j/j:3"}, {"s:7", "equal", "train"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("excluded (-want +got):\n%s", diff)
	}
	if recorded, err := b.Excluded(); err != nil || cmp.Diff(r.Excluded, recorded) != "" {
		t.Errorf("the build records %v, %v", recorded, err)
	}
	rows, err := b.Train()
	if err != nil || len(rows) != 2 {
		t.Errorf("%d rows to train on, %v; want 2", len(rows), err)
	}

	official, _ := staged(t, StageConfig{Suites: suites, Takes: takes, Official: []string{"s"}})
	if len(official.Excluded) != 2 || !slices.ContainsFunc(official.Warnings, func(w string) bool { return strings.Contains(w, "official") }) {
		t.Errorf("official: excluded %v, warnings %q", official.Excluded, official.Warnings)
	}
}

// TestDraw checks caps, repeats and balance.
func TestDraw(t *testing.T) {
	list := func() []candidate {
		var l []candidate
		for i := range 100 {
			c := candidate{id: fmt.Sprint("s:", i), class: "common", lang: []string{"en", "de"}[i%2]}
			if i < 10 {
				c.class = "rare"
			}
			l = append(l, c)
		}
		return l
	}
	by := func(l []candidate, key func(candidate) string) map[string]int {
		sums := make(map[string]int)
		for _, c := range l {
			sums[key(c)] += c.draws
		}
		return sums
	}
	class := func(c candidate) string { return c.class }
	tests := []struct {
		name string
		take Take
		key  func(candidate) string
		want map[string]int
	}{
		{"all", Take{}, class, map[string]int{"common": 90, "rare": 10}},
		{"a cap above is none", Take{Rows: count(1000)}, class, map[string]int{"common": 90, "rare": 10}},
		{"balanced", Take{BalanceClass: true}, class, map[string]int{"common": 50, "rare": 50}},
		{"balanced and capped", Take{BalanceClass: true, Rows: count(15)}, class, map[string]int{"common": 8, "rare": 7}},
		{"by language", Take{BalanceLang: true, Rows: count(10)}, func(c candidate) string { return c.lang }, map[string]int{"en": 5, "de": 5}},
		{"by both", Take{BalanceLang: true, BalanceClass: true, Rows: count(8)}, func(c candidate) string { return c.class + c.lang },
			map[string]int{"commonen": 2, "commonde": 2, "rareen": 2, "rarede": 2}},
		{"none", Take{Rows: count(0)}, class, map[string]int{"common": 0, "rare": 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := list()
			draw(l, tt.take, 1)
			if diff := cmp.Diff(tt.want, by(l, tt.key)); diff != "" {
				t.Errorf("draws (-want +got):\n%s", diff)
			}
			// Repeats are even: within a class no two differ by more than one.
			least, most := map[string]int{}, map[string]int{}
			for _, c := range l {
				k := tt.key(c)
				if n, ok := least[k]; !ok || c.draws < n {
					least[k] = c.draws
				}
				most[k] = max(most[k], c.draws)
			}
			for k := range least {
				if most[k]-least[k] > 1 {
					t.Errorf("%s: rows are drawn %d to %d times", k, least[k], most[k])
				}
			}
			// The order in which rows come does not matter.
			reversed := list()
			slices.Reverse(reversed)
			draw(reversed, tt.take, 1)
			slices.Reverse(reversed)
			if !slices.Equal(l, reversed) {
				t.Error("another order of rows draws others")
			}
		})
	}
	chosen := func(seed uint64) (ids string) {
		l := list()
		draw(l, Take{Rows: count(10)}, seed)
		for _, c := range l {
			if c.draws > 0 {
				ids += c.id + " "
			}
		}
		return ids
	}
	if first, again := chosen(1), chosen(1); first != again || first == chosen(2) {
		t.Error("the seed does not decide the rows")
	}
}

// TestTrainRepeats checks that times and draws reach the rows that are trained.
func TestTrainRepeats(t *testing.T) {
	var b strings.Builder
	b.WriteString("text,label,fold\n")
	for i := range 12 {
		fmt.Fprintf(&b, "%s,%s,train\n", sentence(i), map[bool]string{true: "rare", false: "common"}[i < 3])
	}
	suites := suitesOf(t, map[string]string{"s": b.String()})
	r, build := staged(t, StageConfig{
		Suites: suites, Fractions: Fractions{Train: 100},
		Takes: []Take{{Suite: "s", Times: 2, BalanceClass: true}},
	})
	rows, err := build.Train()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]int)
	for _, row := range rows {
		q := row.Asked[0]
		got[q.Question.Options[slices.Index(q.Target, 1)].Key]++
	}
	if diff := cmp.Diff(map[string]int{"rare": 12, "common": 12}, got); diff != "" {
		t.Errorf("rows by answer (-want +got):\n%s", diff)
	}
	if s := r.Sets[0]; s.Draws != 24 || s.Items != 9 || s.Cut != 3 {
		t.Errorf("report %+v, want 24 draws of 9 items, 3 cut", s)
	}
}

func TestStageRefuses(t *testing.T) {
	suites := suitesOf(t, map[string]string{"tickets": rowsFile(40, nil)})
	one := []Take{{Suite: "tickets", Times: 1}}
	tests := []struct {
		name string
		cfg  StageConfig
		want string
	}{
		{"no takes", StageConfig{}, "it takes nothing; name a suite in takes"},
		{"an unknown suite", StageConfig{Takes: []Take{{Suite: "ticket", Times: 1}}}, `there is no suite "ticket"; did you mean "tickets"?`},
		{"a suite twice", StageConfig{Takes: []Take{one[0], one[0]}}, "suite tickets is taken twice; use times to repeat its rows"},
		{"no times", StageConfig{Takes: []Take{{Suite: "tickets"}}}, "suite tickets: times is 0; it must be 1 or more"},
		{"rows below 0", StageConfig{Takes: []Take{{Suite: "tickets", Times: 1, Rows: count(-1)}}}, "suite tickets: rows is -1"},
		{"fractions", StageConfig{Takes: one, Fractions: Fractions{Train: 70, Dev: 10}}, "must be percents that sum to 100"},
		{"a name", StageConfig{Takes: one, Stage: "a/b"}, `the stage's name "a/b" must match`},
		{"an official suite that is not taken", StageConfig{Takes: one, Official: []string{"x"}}, "official names suite x, which is not taken"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Suites, tt.cfg.Builds = suites, filepath.Join(t.TempDir(), "b")
			if tt.cfg.Stage == "" {
				tt.cfg.Stage = "st"
			}
			if _, err := Stage(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Stage = %v, want an error with %q", err, tt.want)
			}
		})
	}
	t.Run("a suite that was changed", func(t *testing.T) {
		path := filepath.Join(suites, "tickets", itemsFile)
		doc, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, bytes.Replace(doc, []byte("amber"), []byte("umber"), 1), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err = Stage(StageConfig{Suites: suites, Builds: t.TempDir(), Stage: "st", Takes: one})
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), itemsFile) {
			t.Errorf("Stage = %v, want ErrCorrupt naming the file", err)
		}
	})
}

// TestOpenBuildFaults damages a build in each way, and checks that it is refused
// by what is wrong and where. Purposes come first: HIP-1334 §17 item 5.
func TestOpenBuildFaults(t *testing.T) {
	suites := suitesOf(t, map[string]string{"s": rowsFile(60, nil)})
	one := []Take{{Suite: "s", Times: 1}}
	edit := func(t *testing.T, dir, glob string, change func([]byte) []byte) {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(dir, glob))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", glob, found, err)
		}
		doc, err := os.ReadFile(found[0])
		if err != nil {
			t.Fatal(err)
		}
		if doc = change(doc); doc == nil {
			err = os.Remove(found[0])
		} else {
			err = os.WriteFile(found[0], doc, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// third applies a change to the third line.
	third := func(change func(string) string) func([]byte) []byte {
		return func(doc []byte) []byte {
			lines := strings.SplitAfter(string(doc), "\n")
			lines[2] = change(lines[2])
			return []byte(strings.Join(lines, ""))
		}
	}
	evalOnly := third(func(l string) string {
		l = strings.Replace(l, `"purpose":"train"`, `"purpose":"eval_only"`, 1)
		return strings.Replace(l, `"derivation_allowed":true`, `"derivation_allowed":false`, 1)
	})
	replace := func(from, to string) func([]byte) []byte {
		return func(doc []byte) []byte { return bytes.Replace(doc, []byte(from), []byte(to), 1) }
	}
	tests := []struct {
		name   string
		damage func(t *testing.T, dir string)
		is     error
		want   string
	}{
		{"one eval_only row in the train shard", func(t *testing.T, dir string) {
			edit(t, dir, "s.train.*", evalOnly)
		}, ErrPurpose, "line 3: item \"s:"},
		{"and other damage before it", func(t *testing.T, dir string) {
			edit(t, dir, "s.train.*", func(doc []byte) []byte { return append([]byte("{\n{\n"), evalOnly(doc)...) })
			edit(t, dir, "s.test.*", func([]byte) []byte { return nil })
			edit(t, dir, manifestFile, replace(`"seed":0`, `"seed":1`))
		}, ErrPurpose, "line 5: item \"s:"},
		{"a train dataset of another purpose", func(t *testing.T, dir string) {
			edit(t, dir, manifestFile, replace(`"purpose":"train"`, `"purpose":"dev"`))
		}, ErrPurpose, "is dev, which does not admit role train"},
		{"a test set attached to train", func(t *testing.T, dir string) {
			edit(t, dir, manifestFile, replace(`"role":"evaluate"`, `"role":"train"`))
		}, ErrPurpose, "is eval_only, which does not admit role train"},
		{"a train row in the test set", func(t *testing.T, dir string) {
			edit(t, dir, "s.test.*", replace(`"purpose":"eval_only"`, `"purpose":"train"`))
		}, ErrPurpose, "line 1: item \"s:"},
		{"a changed text", func(t *testing.T, dir string) {
			edit(t, dir, "s.train.*", replace("amber", "umber"))
		}, ErrCorrupt, "the manifest names"},
		{"a row less", func(t *testing.T, dir string) {
			edit(t, dir, "s.train.*", third(func(string) string { return "" }))
		}, ErrCorrupt, "items of hash"},
		{"a torn line", func(t *testing.T, dir string) {
			edit(t, dir, "s.dev.*", func(doc []byte) []byte { return doc[:len(doc)-40] })
		}, ErrCorrupt, "the manifest names"},
		{"a missing shard", func(t *testing.T, dir string) {
			edit(t, dir, "s.test.*", func([]byte) []byte { return nil })
		}, ErrCorrupt, "is missing: stage it again"},
		{"a changed manifest", func(t *testing.T, dir string) {
			edit(t, dir, manifestFile, replace(`"seed":0`, `"seed":1`))
		}, ErrCorrupt, "its content is that of st-"},
		{"a manifest that is not one", func(t *testing.T, dir string) {
			edit(t, dir, manifestFile, func([]byte) []byte { return []byte("{}") })
		}, ErrCorrupt, manifestFile},
		{"a dataset outside the folder", func(t *testing.T, dir string) {
			edit(t, dir, manifestFile, replace(`"id":"s.`, `"id":"../s.`))
		}, ErrCorrupt, "does not name a dataset"},
		{"no manifest", func(t *testing.T, dir string) {
			edit(t, dir, manifestFile, func([]byte) []byte { return nil })
		}, nil, "is not a build: it has no manifest.json"},
		{"a changed barrier", func(t *testing.T, dir string) {
			edit(t, dir, barrierFile, replace(`"jaccard":0.5`, `"jaccard":0.9`))
		}, ErrCorrupt, "it is not the manifest's"},
		{"no barrier", func(t *testing.T, dir string) {
			edit(t, dir, barrierFile, func([]byte) []byte { return nil })
		}, ErrCorrupt, "barrier.json: corrupt: it is missing: stage it again"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Stage(StageConfig{Suites: suites, Builds: t.TempDir(), Stage: "st", Takes: one})
			if err != nil {
				t.Fatal(err)
			}
			tt.damage(t, r.Dir)
			_, err = OpenBuild(r.Dir)
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("OpenBuild = %v, want %v with %q", err, tt.is, tt.want)
			}
			if tt.is == ErrPurpose && errors.Is(err, ErrCorrupt) {
				t.Errorf("OpenBuild = %v, want the purpose first", err)
			}
		})
	}

	t.Run("damage after opening", func(t *testing.T) {
		_, b := staged(t, StageConfig{Suites: suites, Takes: one})
		edit(t, b.Dir, "s.train.*", evalOnly)
		if _, err := b.Train(); !errors.Is(err, ErrPurpose) {
			t.Errorf("Train = %v, want ErrPurpose", err)
		}
	})
	t.Run("a train set that descends from a judge's", func(t *testing.T) {
		b := &Build{Sets: []*Set{
			{Dataset: record.Dataset{ID: "a.train.1", Purpose: record.Train, Parents: []string{"b.train.1"}}, Role: record.RoleTrain},
			{Dataset: record.Dataset{ID: "b.train.1", Purpose: record.Train, Parents: []string{"c.test.1", "a.train.1"}}, Role: record.RoleTrain},
			{Dataset: record.Dataset{ID: "c.test.1", Purpose: record.EvalOnly}, Role: record.RoleEvaluate},
		}}
		if err := b.checkLineage(b.Sets[0]); !errors.Is(err, ErrPurpose) || !strings.Contains(err.Error(), "c.test.1") {
			t.Errorf("checkLineage = %v, want ErrPurpose naming c.test.1", err)
		}
	})
}

// TestTexts checks that a vocabulary is not learned on rows that judge.
func TestTexts(t *testing.T) {
	suites := suitesOf(t, map[string]string{"s": "text,label,fold\nfirst,x,train\nsecond,y,train\nsecret,x,test\n"})
	got, err := Texts(filepath.Join(suites, "s"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"first", "choice question: which label", "x", "y", "second"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("texts (-want +got):\n%s", diff)
	}
}

// TestBarrierHash pins contamination_barrier_hash: the _hash of the sorted hashes
// of the protected items and the parameters.
func TestBarrierHash(t *testing.T) {
	b := newBarrier()
	b.add(newTrace("j", "j:2", "b", "sha256:2222222222222222222222222222222222222222222222222222222222222222", []string{"two"}))
	b.add(newTrace("j", "j:1", "a", "sha256:1111111111111111111111111111111111111111111111111111111111111111", []string{"one"}))
	doc, err := canon.Marshal(b.record(nil))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"bands":64,"format":1,"jaccard":0.5,"minhash":256,"n":5,"official":[],"protected":[` +
		`"sha256:1111111111111111111111111111111111111111111111111111111111111111",` +
		`"sha256:2222222222222222222222222222222222222222222222222222222222222222"],` +
		`"rows":4,"seed":1,"unicode":"17.0.0","unit":"state"}`
	if string(doc) != want {
		t.Errorf("barrier record\n%s, want\n%s", doc, want)
	}
}

// TestPinned holds the bytes of a small suite and the name of a build of it. A
// change of either makes every dataset and every build another one.
func TestPinned(t *testing.T) {
	out := t.TempDir()
	r, err := Import(ImportConfig{File: file(t, "tickets.csv", tickets), Suite: "tickets", Out: out})
	if err != nil {
		t.Fatal(err)
	}
	if want := canon.SHA256("14d7eadf1b6b1d1166205325b188b4b5e81248b191e7384edf29fc7ac4126fd6"); r.SHA256 != want {
		t.Errorf("items.ndjson has SHA-256 %s, want %s", r.SHA256, want)
	}
	s, _ := staged(t, StageConfig{Suites: out, Takes: []Take{{Suite: "tickets", Times: 1}}})
	if want := "st-edd6217c939dc829"; filepath.Base(s.Dir) != want {
		t.Errorf("build %s, want %s", filepath.Base(s.Dir), want)
	}
}
