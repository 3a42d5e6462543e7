package gate

import (
	"math"
	"strings"
	"testing"

	"github.com/hanzoai/link/spool/canon"
)

const dataset = canon.SHA256("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")

// oneRule is a gate of one rule on accuracy.
func oneRule(test Test) Gate {
	return Gate{Name: "g", Version: 1, Baseline: ptr("base"), Rules: []Rule{{
		Dataset: "d", DatasetSHA256: dataset, Category: All, Metric: Accuracy, Higher: true, Test: test,
	}}}
}

// scored is a complete evaluation with one score.
func scored(score float64) Evaluation {
	return Evaluation{DatasetSHA256: dataset, Complete: true, Items: []Item{{Item: "a", Question: "q", Score: &score}}}
}

// TestTests checks each test at and around its threshold; 1e-9 is forgiven.
func TestTests(t *testing.T) {
	hold := Test{Kind: Hold, Tolerance: 0.5}
	improve := Test{Kind: Improve, Margin: 0.5}
	tests := []struct {
		name              string
		test              Test
		higher            bool
		subject, baseline float64
		want              bool
	}{
		{"hold: at the tolerance", hold, true, 1, 1.5, true},
		{"hold: a last bit past it", hold, true, 1, 1.5 + 1e-10, true},
		{"hold: past it", hold, true, 1, 1.5 + 1e-8, false},
		{"hold: better", hold, true, 2, 1, true},
		{"hold, lower is better: past it", hold, false, 1.5 + 1e-8, 1, false},
		{"hold, lower is better: better", hold, false, 1, 9, true},
		{"improve: at the margin", improve, true, 1.5, 1, false},
		{"improve: a last bit past it", improve, true, 1.5 + 1e-10, 1, false},
		{"improve: past it", improve, true, 1.5 + 1e-8, 1, true},
		{"improve, lower is better", improve, false, 1, 1.6, true},
		{"improve by nothing", Test{Kind: Improve}, true, 1, 1, false},
		{"floor: at it", Test{Kind: Floor, Value: 2}, true, 2, 0, true},
		{"floor: a last bit under", Test{Kind: Floor, Value: 2}, true, 2 - 1e-10, 0, true},
		{"floor: under", Test{Kind: Floor, Value: 2}, true, 2 - 1e-8, 0, false},
		{"strict floor: at it", Test{Kind: Floor, Value: 2, Strict: true}, true, 2, 0, false},
		{"strict floor: above", Test{Kind: Floor, Value: 2, Strict: true}, true, 2 + 1e-8, 0, true},
		{"ceiling: at it", Test{Kind: Ceiling, Value: 2}, true, 2, 0, true},
		{"ceiling: above", Test{Kind: Ceiling, Value: 2}, true, 2 + 1e-8, 0, false},
		{"strict ceiling: at it", Test{Kind: Ceiling, Value: 2, Strict: true}, true, 2, 0, false},
		{"strict ceiling: below", Test{Kind: Ceiling, Value: 2, Strict: true}, true, 2 - 1e-8, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := oneRule(tt.test)
			g.Rules[0].Metric, g.Rules[0].Higher = Score, tt.higher
			v := g.Evaluate([]Evaluation{scored(tt.subject)}, []Evaluation{scored(tt.baseline)})
			if v.Rules[0].Pass != tt.want || (v.Verdict == Pass) != tt.want {
				t.Errorf("Evaluate = %s %s, want pass %t", v.Verdict, show(v.Rules[0]), tt.want)
			}
		})
	}
}

// TestIntervals checks what an interval changes, on answers of which the subject has
// right more and the baseline less.
func TestIntervals(t *testing.T) {
	answers := func(right, of int) []Evaluation {
		e := Evaluation{DatasetSHA256: dataset, Complete: true}
		for i := range of {
			e.Items = append(e.Items, Item{Item: string(rune('A' + i)), Question: "q", Correct: ptr(i < right)})
		}
		return []Evaluation{e}
	}
	boot := &Interval{Kind: ByBootstrap, Draws: 1000, Level: 0.95, Seed: 13, Unit: UnitItem}
	mcnemar := &Interval{Kind: ByMcNemar, Alpha: 0.05}
	tests := []struct {
		name              string
		test              Test
		subject, baseline int // right, of 20
		want              bool
	}{
		{"hold: worse, within noise", Test{Kind: Hold, Interval: boot}, 10, 11, true},
		{"hold: worse beyond noise", Test{Kind: Hold, Interval: boot}, 2, 18, false},
		{"improve: better, within noise", Test{Kind: Improve, Interval: boot}, 11, 10, false},
		{"improve: better beyond noise", Test{Kind: Improve, Interval: boot}, 18, 2, true},
		{"hold: worse, not significant", Test{Kind: Hold, Interval: mcnemar}, 10, 13, true},
		{"hold: worse, significant", Test{Kind: Hold, Interval: mcnemar}, 2, 18, false},
		{"hold: worse and significant, within tolerance", Test{Kind: Hold, Tolerance: 0.9, Interval: mcnemar}, 2, 18, true},
		{"improve: better, not significant", Test{Kind: Improve, Interval: mcnemar}, 13, 10, false},
		{"improve: better, significant", Test{Kind: Improve, Interval: mcnemar}, 18, 2, true},
		{"improve: significant, under the margin", Test{Kind: Improve, Margin: 0.9, Interval: mcnemar}, 18, 2, false},
		{"improve: worse, significant", Test{Kind: Improve, Interval: mcnemar}, 2, 18, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := oneRule(tt.test).Evaluate(answers(tt.subject, 20), answers(tt.baseline, 20)).Rules[0]
			if r.Pass != tt.want || r.N != 20 || (r.P != nil) != (tt.test.Interval == mcnemar) || (r.Lo != nil) != (tt.test.Interval == boot) {
				t.Errorf("Evaluate = %s, want pass %t", show(r), tt.want)
			}
		})
	}
	// ECE resamples too, though it is not a mean.
	g := oneRule(Test{Kind: Hold, Interval: boot})
	g.Rules[0].Metric, g.Rules[0].Higher = ECE, false
	calibrated := func(conf float64) []Evaluation {
		e := answers(10, 20)
		for i := range e[0].Items {
			e[0].Items[i].Confidence = &conf
		}
		return e
	}
	r := g.Evaluate(calibrated(0.9), calibrated(0.5)).Rules[0]
	if !near(*r.Delta, -0.4) || *r.Lo > *r.Delta+1e-12 || *r.Hi <= *r.Delta {
		t.Errorf("ECE: %s", show(r))
	}
}

func TestReasons(t *testing.T) {
	right := func(ids string, complete bool) []Evaluation {
		e := Evaluation{DatasetSHA256: dataset, Complete: complete}
		for id := range strings.SplitSeq(ids, "") {
			e.Items = append(e.Items, Item{Item: id, Question: "q", Correct: ptr(true)})
		}
		return []Evaluation{e}
	}
	elsewhere := right("ab", true)
	elsewhere[0].DatasetSHA256 = canon.Sum([]byte("other"))
	hold, floor := Test{Kind: Hold}, Test{Kind: Floor}
	tests := []struct {
		name              string
		test              Test
		subject, baseline []Evaluation
		want              Reason
	}{
		{"no subject", hold, nil, right("ab", true), Missing},
		{"no baseline", hold, right("ab", true), nil, Missing},
		{"subject on another dataset", floor, elsewhere, nil, Missing},
		{"subject has no items", floor, []Evaluation{{DatasetSHA256: dataset, Complete: true}}, nil, Missing},
		{"baseline has no items", hold, right("ab", true), []Evaluation{{DatasetSHA256: dataset, Complete: true}}, Missing},
		{"items lack the metric's field", floor, []Evaluation{scored(1)}, nil, Missing},
		{"subject incomplete", hold, right("ab", false), right("ab", true), Incomplete},
		{"baseline incomplete", hold, right("ab", true), right("ab", false), Incomplete},
		{"the last evaluation is the one that counts", floor, append(right("ab", true), right("ab", false)...), nil, Incomplete},
		{"missing before incomplete", hold, right("ab", false), nil, Missing},
		{"a row only the subject has", hold, right("abc", true), right("ab", true), Unpaired},
		{"a row only the baseline has", hold, right("ab", true), right("abc", true), Unpaired},
		{"as many rows, but others", hold, right("ab", true), right("ac", true), Unpaired},
		{"a row twice", hold, right("aa", true), right("aa", true), Unpaired},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := oneRule(tt.test).Evaluate(tt.subject, tt.baseline)
			r := v.Rules[0]
			if v.Verdict != Fail || r.Pass || r.Reason == nil || *r.Reason != tt.want || r.Value != nil || r.N != 0 {
				t.Errorf("Evaluate = %s %s, want reason %s", v.Verdict, show(r), tt.want)
			}
		})
	}
	if v := oneRule(floor).Evaluate(right("ab", true), nil); v.Verdict != Pass || v.Rules[0].N != 2 {
		t.Errorf("a floor without a baseline: %s", show(v.Rules[0]))
	}
}

func TestMeasuredMetric(t *testing.T) {
	measured := func(v float64, n *uint64) []Evaluation {
		return []Evaluation{{DatasetSHA256: dataset, Complete: true, Measures: []Measure{
			{Category: All, Metric: "f1", Value: 0.1},
			{Category: "billing", Metric: "f1", Value: v, N: n},
		}}}
	}
	g := oneRule(Test{Kind: Hold})
	g.Rules[0].Metric, g.Rules[0].Category = "f1", "billing"
	r := g.Evaluate(measured(0.75, ptr(uint64(12))), measured(0.5, nil)).Rules[0]
	if !r.Pass || *r.Value != 0.75 || *r.Baseline != 0.5 || *r.Delta != 0.25 || r.N != 12 {
		t.Errorf("Evaluate = %s", show(r))
	}
	if r := g.Evaluate(measured(0.75, nil), measured(0.5, nil)).Rules[0]; r.N != 0 {
		t.Errorf("rows of a measure that does not say: %d", r.N)
	}
	g.Rules[0].Category = "refunds"
	if r := g.Evaluate(measured(1, nil), measured(1, nil)).Rules[0]; r.Reason == nil || *r.Reason != Missing {
		t.Errorf("a category that was not measured: %s", show(r))
	}
	// A NaN compares false with everything, and must not pass an "unless".
	g.Rules[0].Category = "billing"
	for _, test := range []Test{{Kind: Hold}, {Kind: Improve}, {Kind: Floor}, {Kind: Ceiling}} {
		g.Rules[0].Test = test
		if r := g.Evaluate(measured(math.NaN(), nil), measured(0.5, nil)).Rules[0]; r.Pass || r.Reason == nil {
			t.Errorf("%s of NaN: %+v", test.Kind, r)
		}
	}
}

// TestOverflow: numbers that are finite, and what is computed of them is not.
func TestOverflow(t *testing.T) {
	const most = math.MaxFloat64
	boot := &Interval{Kind: ByBootstrap, Draws: 100, Level: 0.95, Seed: 13, Unit: UnitItem}
	of := func(scores ...float64) []Evaluation {
		e := scored(scores[0])
		for i, s := range scores[1:] {
			e.Items = append(e.Items, Item{Item: string(rune('b' + i)), Question: "q", Score: &s})
		}
		return []Evaluation{e}
	}
	for _, tt := range []struct {
		name              string
		test              Test
		subject, baseline []Evaluation
	}{
		{"the metric", Test{Kind: Floor}, of(most, most), nil},
		{"the improvement", Test{Kind: Improve}, of(most), of(-most)},
		{"a resample", Test{Kind: Hold, Interval: boot}, of(most, -most), of(0, 0)},
	} {
		g := oneRule(tt.test)
		g.Rules[0].Metric = Score
		v := g.Evaluate(tt.subject, tt.baseline)
		if r := v.Rules[0]; r.Pass || r.Reason == nil || *r.Reason != Missing {
			t.Errorf("%s: %s, want reason missing", tt.name, show(r))
		}
	}
}

// TestVerdictExample reproduces the deltas of HIP-1334 §11's example from its values.
func TestVerdictExample(t *testing.T) {
	for _, tt := range []struct {
		higher                   bool
		value, baseline, improve float64
	}{
		{true, 0.8064516129032258, 0.7967741935483871, 0.009677419354838679},
		{false, 0.1821982464086091, 0.1790709034007661, -0.0031273430078430087},
		{true, 0.6486486486486487, 0.6640926640926641, -0.015444015444015413},
	} {
		g := oneRule(Test{Kind: Hold, Tolerance: 0.02})
		g.Rules[0].Metric, g.Rules[0].Higher = Score, tt.higher
		r := g.Evaluate([]Evaluation{scored(tt.value)}, []Evaluation{scored(tt.baseline)}).Rules[0]
		if *r.Delta != tt.improve {
			t.Errorf("delta %v, want %v", *r.Delta, tt.improve)
		}
	}
}
