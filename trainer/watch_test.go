package trainer

import (
	"fmt"
	"math"
	"slices"
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
		{"learning", 100, falling, func(int) bool { return false }, 5, nil},
		{"the loss of knowing nothing", 100, func(int, int) float64 { return even * .995 }, func(int) bool { return false }, 0, []string{Collapsed}},
		{"fell and came back", 100, func(i, n int) float64 { return even - falling(i, n) }, func(int) bool { return false }, 0, nil},
		{"clipped at every step", 100, falling, func(int) bool { return true }, 0, []string{Clipped}},
		{"clipped at all but one", 100, falling, func(i int) bool { return i != 50 }, 0, nil},
		{"too few steps to say", 19, func(int, int) float64 { return even }, func(int) bool { return true }, 0, nil},
		{"cut", 100, falling, func(int) bool { return false }, 6, []string{Truncated}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var w watch
			for i := range tt.steps {
				w.step(tt.loss(i, tt.steps), tt.clipped(i))
			}
			set := trainSet{rows: make([]decision.Row, 100), lnK: even, cut: tt.cut}
			if got := codes(w.warnings(set)); !slices.Equal(got, tt.want) {
				t.Errorf("warnings = %v, want %v", got, tt.want)
			}
		})
	}
}

// TestSuiteWarnings: what an evaluation shows.
func TestSuiteWarnings(t *testing.T) {
	suite := func(rows, right, answers, cut int, protected bool) SuiteResult {
		r := eval.Result{Rows: rows, Answers: answers, Cut: cut}
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
		{"cut", suite(100, 50, 3, 6, false), 0, []string{Truncated}},
		{"trained on", suite(100, 50, 3, 0, false), 1, []string{Seen}},
		{"too small for its budget", suite(249, 100, 3, 0, true), 0, []string{TooSmall}},
		{"small and not protected", suite(249, 100, 3, 0, false), 0, nil},
	} {
		if got := codes(suiteWarnings(tt.r, tt.seen, budget)); !slices.Equal(got, tt.want) {
			t.Errorf("%s: warnings = %v, want %v", tt.name, got, tt.want)
		}
	}
}
