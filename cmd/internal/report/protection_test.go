package report

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer"
)

// shares are n steps in which every layer lost the same share.
func shares(n int, share float64, layers ...string) []Share {
	var list []Share
	for i := range n {
		s := Share{Step: uint64(i + 1), Layer: map[string]float64{}}
		for _, l := range layers {
			s.Layer[l] = share
		}
		list = append(list, s)
	}
	return list
}

// protected is a run's protection over two layers and two suites, one of which
// keeps no rows.
func protected() *trainer.Protection {
	return &trainer.Protection{
		Subspace: "5ub5pace", Strength: 1, Energy: map[string]float64{"mail": .97, "desk": .951}, Rows: map[string]int{"desk": 512},
		Layers: []trainer.LayerProtection{
			{Layer: "head.probe", In: 384, Rank: 12, Kept: .994, Share: .25},
			{Layer: "encoder.layer.0.dense", In: 1536, Rank: 96, Kept: .992, Share: .75},
		},
		Share: .5, Norm: .021, Leak: 3e-8, Served: 2e-6, Bound: 4e-6, Drift: .0125, Cuts: 2,
	}
}

// TestReadProtection reads what stands beside a run that was stopped and resumed:
// the last line about a step, the protection or an evaluation counts.
func TestReadProtection(t *testing.T) {
	w := newWorld(t)
	desk := w.dataset("desk.test.0123456789ab", record.EvalOnly)
	w.run("before", nil, w.evaluation("evl_0000000000000001", desk, false)...)
	const evaluation = "evl_0000000000000002"
	log := w.run("after", nil, w.evaluation(evaluation, desk, true)...)
	for _, v := range []any{
		Share{1, map[string]float64{"head.probe": .1}},
		Share{2, map[string]float64{"head.probe": .2}},
		map[string]any{"protection": nil},
		map[string]any{"protection": &trainer.Protection{}},
		map[string]any{"flips": Flips{evaluation, 64, 9}},
		Share{2, map[string]float64{"head.probe": .3}},
		Share{3, map[string]float64{"head.probe": .4}},
		map[string]any{"step": "three"},
		map[string]any{"flips": Flips{evaluation, 64, 1}},
		map[string]any{"flips": Flips{evaluation, 0, 0}}, // nobody asked again
		map[string]any{"protection": protected()},
	} {
		w.must(log.Metric(v))
	}
	f, err := os.OpenFile(filepath.Join(w.Dir(), "runs", "after.metrics"), os.O_APPEND|os.O_WRONLY, 0)
	w.must(err)
	_, err = f.WriteString(`{"step":4,"share":{"head.pr`) // what a crash tore
	w.must(err)
	w.must(f.Close())

	r := w.read("after", "before")
	want := []Share{{1, map[string]float64{"head.probe": .1}}, {2, map[string]float64{"head.probe": .3}}, {3, map[string]float64{"head.probe": .4}}}
	if diff := cmp.Diff(want, r.Shares); diff != "" {
		t.Errorf("shares (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(protected(), r.Protection); diff != "" {
		t.Errorf("protection (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&Flips{evaluation, 64, 1}, r.Suites[0].Flips); diff != "" {
		t.Errorf("flips (-want +got):\n%s", diff)
	}
	if want := (Fact{"size of the change, ‖D‖/‖W₀‖", "2.1 %"}); !slices.Contains(r.Facts, want) {
		t.Errorf("the facts are %v, want %v", r.Facts, want)
	}
	// From (.8, .2) to (.2, .8): .8 ln 4 − .2 ln 4.
	if kl, want := r.Suites[0].KL, .6*math.Log(4); kl == nil || math.Abs(*kl-want) > 1e-12 {
		t.Errorf("KL = %v, want %v", kl, want)
	}
	page := render(t, r)
	for _, text := range []string{"3.0e-08", "2.0e-06", "4.0e-06", "50.0 %", "0.0125 nats", "halved the learning rate 2 times", "97.0 %", ">512<", "12 of 384", "96 of 1536", "1 of 64", "p = 1.0000", "0.832"} {
		if !strings.Contains(page, text) {
			t.Errorf("the page does not say %q", text)
		}
	}

	// The base's own page says nothing of what nobody measured.
	r = w.read("before", "")
	if r.Protection != nil || r.Shares != nil || r.Suites[0].KL != nil || r.Suites[0].Flips != nil {
		t.Errorf("the base's report is %+v", r)
	}
	if page := render(t, r); strings.Contains(page, "<h2>Protection</h2>") || strings.Contains(page, "McNemar") || strings.Contains(page, "KL(") {
		t.Error("the base's page speaks of protection")
	}
}

// TestUnprotected: a run that protected nothing has no section about it.
func TestUnprotected(t *testing.T) {
	page := render(t, Report{Protection: &trainer.Protection{Norm: .6, Energy: map[string]float64{}, Rows: map[string]int{}}})
	if strings.Contains(page, "<h2>Protection</h2>") {
		t.Error("a run that protected nothing has a section on its protection")
	}
}

// TestGuarantee promises only what was measured.
func TestGuarantee(t *testing.T) {
	with := func(change func(p *trainer.Protection)) *trainer.Protection {
		p := protected()
		change(p)
		return p
	}
	tests := []struct {
		name string
		p    *trainer.Protection
		want string
	}{
		{"exact", protected(), "Nothing of the change lies in the protected directions, beyond rounding"},
		{"a leak", with(func(p *trainer.Protection) { p.Leak = .12 }), "Of the change, 12.0 % lies in the protected directions, which is more than rounding"},
		{"half strength", with(func(p *trainer.Protection) { p.Strength, p.Leak = .5, .3 }), "A strength of 0.5 weakens each step in the protected directions and bounds nothing, and 30.0 %"},
		{"distillation alone", with(func(p *trainer.Protection) { p.Subspace = "" }), "part of the loss, which promises nothing"},
		{"no change", with(func(p *trainer.Protection) { p.Norm = 0 }), "Nothing changed"},
		{"interrupted", nil, "was not recorded"},
	}
	for _, tt := range tests {
		got := guarantee(tt.p)
		if !strings.Contains(got, tt.want) || !strings.HasSuffix(got, "the gate decides about accuracy.") {
			t.Errorf("%s: %q, want %q and who decides", tt.name, got, tt.want)
		}
	}
}

// TestMcNemar counts each way and tests the split: of 5 changes all repairs, 2/2⁵.
func TestMcNemar(t *testing.T) {
	for _, tt := range []struct {
		s                   Suite
		onlyBefore, onlyNow uint64
		p                   string
	}{
		{Suite{Before: items(10, 2), After: items(10, 7)}, 0, 5, "= 0.0625"},
		{Suite{Before: items(10, 7), After: items(10, 2)}, 5, 0, "= 0.0625"},
		{Suite{Before: items(40, 0), After: items(40, 40)}, 0, 40, "< 0.0001"},
		{Suite{Before: items(10, 7), After: items(10, 7)}, 0, 0, "= 1.0000"},
		{Suite{After: items(10, 7)}, 0, 0, ""},
	} {
		before, now, _ := discordant(tt.s)
		if before != tt.onlyBefore || now != tt.onlyNow || mcnemar(tt.s) != tt.p {
			t.Errorf("%d and %d, p %q; want %d and %d, p %q", before, now, mcnemar(tt.s), tt.onlyBefore, tt.onlyNow, tt.p)
		}
	}
}

// TestLayerMap draws every layer that is known from either side, in the order of
// the model, and shades what was said.
func TestLayerMap(t *testing.T) {
	var r Report
	r.Shares = shares(3, .5, "encoder.layer.10.dense", "encoder.layer.2.dense", "head.probe")
	r.Shares[0].Layer["head.late"] = 2 // out of range: read as all of it
	r.Protection = &trainer.Protection{Layers: []trainer.LayerProtection{{Layer: "encoder.layer.2.dense", In: 8, Rank: 3}}}
	var got []string
	for _, g := range mapGroups(r) {
		for _, l := range g {
			got = append(got, fmt.Sprintf("%s %s %.1f %d", l.label, l.block, l.mean, len(l.share)))
		}
	}
	want := []string{"2.dense 2 0.5 3", "10.dense 10 0.5 3", "late  1.0 3", "probe  0.5 3"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
	drawing := string(layerMap(r))
	for _, text := range []string{">encoder<", ">head<", ">3 of 8<", "M194.0"} {
		if !strings.Contains(drawing, text) {
			t.Errorf("the map does not have %q", text)
		}
	}
}

// TestMapColumns: steps over the map's width share a column, none is left out.
func TestMapColumns(t *testing.T) {
	steps := shares(1000, .25, "a")
	steps[999].Layer["a"] = 1
	columns, mean := columnsOf(steps, "a")
	if last := columns[mapColumns-1]; len(columns) != mapColumns || math.Abs(mean-.25075) > 1e-12 || last <= .25 {
		t.Errorf("%d columns, mean %v, the last %v", len(columns), mean, last)
	}
	if columns, mean := columnsOf(steps, "b"); !math.IsNaN(columns[0]) || !math.IsNaN(mean) {
		t.Errorf("a layer without shares has %v, mean %v", columns[0], mean)
	}
}

func TestByNumber(t *testing.T) {
	want := []string{"encoder", "encoder.layer.2.dense", "encoder.layer.2.mlp.up", "encoder.layer.10.dense", "head.1", "head.x"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, byNumber)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestCommonParts(t *testing.T) {
	for want, names := range map[string][]string{
		"encoder.layer.": {"encoder.layer.0.dense", "encoder.layer.0.norm", "encoder.layer.10.dense"},
		"head.":          {"head.probe", "head.score.out"},
		"a.b.":           {"a.b.c"},
		"":               {"probe"},
	} {
		if got := commonParts(names); got != want {
			t.Errorf("commonParts(%v) = %q, want %q", names, got, want)
		}
	}
}
