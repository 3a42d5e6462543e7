package eval

import (
	"cmp"
	"math"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/gate"
)

// Change is a paired change in accuracy with its 95 % interval, as fractions.
type Change struct {
	Delta  float64
	Lo, Hi float64 // NaN where Groups is 1: one group has nothing to vary with
	Groups int     // what the bootstrap draws: rows of one example are one group
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
	c := Change{*r.Delta, *r.Lo, *r.Hi, len(groups)}
	if c.Groups < 2 {
		c.Lo, c.Hi = math.NaN(), math.NaN()
	}
	return c, true
}
