package trainer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/eval"
)

func codes(list []Warning) []string {
	var c []string
	for _, w := range list {
		c = append(c, w.Code)
	}
	return c
}

// TestWatch: what the steps of a run show.
func TestWatch(t *testing.T) {
	even := math.Log(4)
	falling := func(i, n int) float64 { return even * (1 - float64(i)/float64(n)) }
	for _, tt := range []struct {
		name    string
		steps   int
		loss    func(i, n int) float64
		clipped func(i int) bool
		cut     int // of 100 rows
		want    []string
	}{
		{"learning", 100, falling, func(int) bool { return false }, 0, nil},
		{"the loss of knowing nothing", 100, func(int, int) float64 { return even * .995 }, func(int) bool { return false }, 0, []string{Collapsed}},
		{"fell and came back", 100, func(i, n int) float64 { return even - falling(i, n) }, func(int) bool { return false }, 0, nil},
		{"clipped at every step", 100, falling, func(int) bool { return true }, 0, []string{Clipped}},
		{"clipped at all but one", 100, falling, func(i int) bool { return i != 50 }, 0, nil},
		{"too few steps to say", 19, func(int, int) float64 { return even }, func(int) bool { return true }, 0, nil},
		{"a row cut", 100, falling, func(int) bool { return false }, 1, []string{CutRows}},
		{"many cut", 100, falling, func(int) bool { return false }, 6, []string{CutRows, Truncated}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var w watch
			for i := range tt.steps {
				w.step(tt.loss(i, tt.steps), tt.clipped(i))
			}
			set := trainSet{rows: make([]decision.Row, 100), lnK: even, cut: eval.Cut{Rows: tt.cut}}
			if got := codes(w.warnings(set)); !slices.Equal(got, tt.want) {
				t.Errorf("warnings = %v, want %v", got, tt.want)
			}
		})
	}
}

// TestSuiteWarnings: what an evaluation shows.
func TestSuiteWarnings(t *testing.T) {
	suite := func(rows, right, answers, cut int, protected bool) SuiteResult {
		r := eval.Result{Rows: rows, Answers: answers, Cut: eval.Cut{Rows: cut}}
		for i := range rows {
			correct := i < right
			r.Items = append(r.Items, gate.Item{Item: fmt.Sprint(i), Correct: &correct})
			r.Predictions = append(r.Predictions, gate.Prediction{Item: fmt.Sprint(i), Answer: "billing"})
		}
		return SuiteResult{Suite: "s", Result: r, Protected: protected}
	}
	budget := &Tolerance{Accuracy: .02}
	for _, tt := range []struct {
		name string
		r    SuiteResult
		seen int
		want []string
	}{
		{"fine", suite(300, 200, 3, 0, true), 0, nil},
		{"one answer for everything", suite(40, 20, 1, 0, false), 0, []string{OneAnswer}},
		{"one answer, and it is right", suite(40, 40, 1, 0, false), 0, nil},
		{"cut", suite(100, 50, 3, 6, false), 0, []string{CutRows, Truncated}},
		{"one row cut", suite(100, 50, 3, 1, false), 0, []string{CutRows}},
		{"trained on", suite(100, 50, 3, 0, false), 1, []string{Seen}},
		{"too small for its budget", suite(249, 100, 3, 0, true), 0, []string{TooSmall}},
		{"small and not protected", suite(249, 100, 3, 0, false), 0, nil},
	} {
		if got := codes(suiteWarnings(tt.r, tt.seen, budget)); !slices.Equal(got, tt.want) {
			t.Errorf("%s: warnings = %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestAtChance: a protected suite that the base answers no better than without
// looking is named, with what is as good; and one whose answers depend on the order
// of options is.
func TestAtChance(t *testing.T) {
	suite := func(before float64, chance float64, common int) SuiteResult {
		r := SuiteResult{
			Suite: "s", Protected: true, Chance: chance, Common: eval.Common{Answer: "a", Right: common, Of: 100, Questions: 1, Golds: 4, Options: 4},
			Before: []gate.Measure{{Category: "other", Metric: gate.Accuracy, Value: 1}, {Category: gate.All, Metric: gate.Accuracy, Value: before}},
		}
		for i := range 100 {
			correct := i < 90
			r.Items = append(r.Items, gate.Item{Item: fmt.Sprint(i), Correct: &correct})
		}
		r.Rows, r.Answers = 100, 4
		return r
	}
	unprotected, alone := suite(.2, .25, 40), suite(.2, .25, 40)
	unprotected.Protected, alone.Before = false, nil
	unlabelled, flipped := suite(.2, math.NaN(), 0), suite(.6, .25, 40)
	unlabelled.Common = eval.Common{}
	flipped.Flips = eval.Flipped{Asked: 16, Changed: 1}
	for _, tt := range []struct {
		name string
		r    SuiteResult
		want []string
		says string
	}{
		{"better than both", suite(.41, .25, 40), nil, ""},
		{"below chance", suite(.2, .25, 40), []string{AtChance}, "no more often than chance, 20.0 % against 25.0 %"},
		{"at chance", suite(.25, .25, 30), []string{AtChance}, "chance, 25.0 % against 25.0 %"},
		{"above chance, and no better than one answer", suite(.4, .25, 40), []string{AtChance}, "always giving the most common answer, 40.0 % against 40.0 %"},
		{"a last bit above one answer", suite(.4+1e-16, .25, 40), []string{AtChance}, "40.0 % against 40.0 %"},
		{"not protected", unprotected, nil, ""},
		{"no baseline", alone, nil, ""},
		{"no gold answers", unlabelled, nil, ""},
		{"the order of options decides", flipped, []string{OrderFlips}, "1 of 16 questions"},
	} {
		got := suiteWarnings(tt.r, 0, nil)
		if !slices.Equal(codes(got), tt.want) || len(got) > 0 && !strings.Contains(got[0].Text, tt.says) {
			t.Errorf("%s: warnings = %+v, want %v saying %q", tt.name, got, tt.want, tt.says)
		}
	}
}

// TestTrust: when a suite's numbers say less than they seem to.
func TestTrust(t *testing.T) {
	suite := func(right int, c eval.Common, change *eval.Change) SuiteResult {
		r := SuiteResult{Suite: "s", Target: true, Common: c, Change: change}
		for i := range 100 {
			correct := i < right
			r.Items = append(r.Items, gate.Item{Item: fmt.Sprint(i), Correct: &correct})
		}
		r.Rows = 100
		return r
	}
	protected := func(r SuiteResult) SuiteResult {
		r.Target, r.Protected = false, true
		return r
	}
	common := eval.Common{Answer: "billing", Right: 60, Of: 100, Questions: 1, Golds: 3, Options: 3}
	one := eval.Common{Answer: "billing", Right: 100, Of: 100, Questions: 1, Golds: 1, Options: 3}
	better, noise := &eval.Change{Delta: .3, Lo: .1, Hi: .4, Groups: 50}, &eval.Change{Delta: .03, Lo: -.01, Hi: .07, Groups: 50}
	few, nan := &eval.Change{Delta: .3, Lo: .1, Hi: .4, Groups: 9}, math.NaN()
	for _, tt := range []struct {
		name string
		r    SuiteResult
		want []string
		says string
	}{
		{"fine", suite(61, common, better), nil, ""},
		{"without a baseline", suite(61, common, nil), nil, ""},
		{"no better than one answer", suite(60, common, better), []string{BelowMostCommon},
			`s: always answering "billing" is right 60.0 % of the time: the model is not better than that`},
		{"within noise", suite(61, common, noise), []string{WithinNoise},
			"s: the change of +3.0 points may be chance: its 95 % interval is -1.0 to +7.0"},
		{"within noise, and only to hold", protected(suite(61, common, noise)), nil, ""},
		{"no change at all", suite(61, common, &eval.Change{Groups: 50}), []string{WithinNoise}, "+0.0 to +0.0"},
		{"one group", suite(61, common, &eval.Change{Delta: .3, Lo: nan, Hi: nan, Groups: 1}), []string{OneGroup}, "100 rows are one group"},
		{"few groups", suite(61, common, few), []string{FewGroups}, "100 rows are 9 groups"},
		{"one gold answer", suite(90, one, better), []string{OneGold, BelowMostCommon}, "s: the judging rows hold 1 of 3 answers"},
		{"nothing is labelled", suite(0, eval.Common{}, nil), nil, ""},
	} {
		got := trustWarnings(tt.r)
		if !slices.Equal(codes(got), tt.want) || len(got) > 0 && !strings.Contains(got[0].Text, tt.says) {
			t.Errorf("%s: warnings = %+v, want %v saying %q", tt.name, got, tt.want, tt.says)
		}
	}
}
