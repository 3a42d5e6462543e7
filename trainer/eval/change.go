package eval

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/trainer/kai"
)

// Change is a paired change in accuracy with its 95 % interval, as fractions, and
// McNemar's exact test of it.
type Change struct {
	Delta  float64
	Lo, Hi float64 // NaN where Groups is 1: one group has nothing to vary with
	Groups int     // what the bootstrap draws: rows of one example are one group

	// Lost and Gained are how many questions only the first answers have right, and
	// only the second. P is the exact two-sided p-value of such a split, in (0, 1],
	// were both equally likely. Unlike the interval it takes every question as
	// independent of the others: where examples have several, it is too small.
	Lost, Gained int
	P            float64
}

// MarshalJSON writes c with an interval of null where it has none.
func (c Change) MarshalJSON() ([]byte, error) {
	line := struct {
		Delta  float64  `json:"delta"`
		Lo     *float64 `json:"lo"`
		Hi     *float64 `json:"hi"`
		Groups int      `json:"groups"`
		Lost   int      `json:"lost"`
		Gained int      `json:"gained"`
		P      float64  `json:"p"`
	}{Delta: c.Delta, Groups: c.Groups, Lost: c.Lost, Gained: c.Gained, P: c.P}
	if !math.IsNaN(c.Lo) {
		line.Lo, line.Hi = &c.Lo, &c.Hi
	}
	return json.Marshal(line)
}

// change is the rule whose numbers a person is shown: HIP-1334 §9.2's paired
// bootstrap over groups, so that rows of one example count once.
var change = gate.Gate{
	Name: "change", Version: 1, Baseline: new("before"),
	Rules: []gate.Rule{{
		Dataset: "rows", DatasetSHA256: canon.Sum(nil), Category: gate.All, Metric: gate.Accuracy, Higher: true,
		Test: gate.Test{Kind: gate.Improve, Interval: &gate.Interval{Kind: gate.ByBootstrap, Draws: 1000, Level: 0.95, Seed: 13, Unit: gate.UnitGroup}},
	}},
}

// ChangeIn compares two answers to the same rows. It is false when they are not
// of the same rows, or not of rows that are right or wrong.
func ChangeIn(before, after []gate.Item) (Change, bool) {
	evaluation := func(items []gate.Item) []gate.Evaluation {
		return []gate.Evaluation{{Dataset: "rows", DatasetSHA256: canon.Sum(nil), Complete: true, Items: items}}
	}
	r := change.Evaluate(evaluation(after), evaluation(before)).Rules[0]
	if r.Reason != nil {
		return Change{}, false
	}
	groups := map[string]bool{}
	for _, it := range after {
		groups[cmp.Or(it.Group, it.Item)] = true
	}
	c := Change{Delta: *r.Delta, Lo: *r.Lo, Hi: *r.Hi, Groups: len(groups)}
	right := map[[2]string]bool{}
	for _, it := range before {
		right[[2]string{it.Item, it.Question}] = *it.Correct
	}
	for _, it := range after {
		switch was := right[[2]string{it.Item, it.Question}]; {
		case was && !*it.Correct:
			c.Lost++
		case !was && *it.Correct:
			c.Gained++
		}
	}
	c.P = gate.McNemar(uint64(c.Gained), uint64(c.Lost))
	if c.Groups < 2 {
		c.Lo, c.Hi = math.NaN(), math.NaN()
	}
	return c, true
}

// KL is how far a model's answers have gone from another's to the same questions:
// the mean over questions of KL(before‖after) of their probabilities, in nats. It
// is 0 where they are equal, and finite: a probability of after counts as at least
// 1e-12, as in the metric nll. It is false when the predictions are not of the same
// questions, or of none.
//
// The sum is in the order of items and then questions, however they are listed.
func KL(before, after []gate.Prediction) (nats float64, ok bool) {
	key := func(a, b gate.Prediction) int {
		return cmp.Or(cmp.Compare(a.Item, b.Item), cmp.Compare(a.Question, b.Question))
	}
	before, after = slices.SortedStableFunc(slices.Values(before), key), slices.SortedStableFunc(slices.Values(after), key)
	if len(before) != len(after) || len(before) == 0 {
		return 0, false
	}
	sum := 0.0
	for i, b := range before {
		a := after[i]
		if key(a, b) != 0 || len(a.Probabilities) != len(b.Probabilities) {
			return 0, false
		}
		q := slices.Clone(a.Probabilities)
		for j, p := range b.Probabilities {
			if p != q[j] { // so that what is equal and small counts for nothing
				q[j] = max(q[j], 1e-12)
			}
		}
		sum += kai.Teacher{P: b.Probabilities}.KL(kai.Teacher{P: q})
	}
	return sum / float64(len(before)), true
}
