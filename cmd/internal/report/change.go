package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/gate"
)

// Change is a paired change in accuracy with its 95 % interval, as fractions.
type Change struct{ Delta, Lo, Hi float64 }

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
	return Change{*r.Delta, *r.Lo, *r.Hi}, true
}

// Outcome is what the sentence needs to know of a suite; NaN where unknown.
type Outcome struct {
	Suite, Role   string
	Before, After float64 // accuracy
}

// Sentence is a run in one sentence: what was learned, by how much, and whether
// the rest held.
func Sentence(name string, suites []Outcome, verdict *gate.Verdict) string {
	var learned, rest []string
	for _, s := range suites {
		if math.IsNaN(s.After) {
			continue
		}
		text := fmt.Sprintf("%s: %.1f %% right", s.Suite, 100*s.After)
		if !math.IsNaN(s.Before) {
			text = fmt.Sprintf("%s: %+.1f points, %.1f %% right", s.Suite, 100*(s.After-s.Before), 100*s.After)
		}
		if s.Role == "protected" {
			rest = append(rest, text)
		} else {
			learned = append(learned, text)
		}
	}
	var parts []string
	if len(learned) > 0 {
		parts = append(parts, "taught "+strings.Join(learned, ", "))
	} else {
		parts = append(parts, name+" ended")
	}
	switch {
	case len(rest) == 0:
	case verdict == nil:
		parts = append(parts, strings.Join(rest, ", "))
	case verdict.Verdict == "pass":
		parts = append(parts, "within budget: "+strings.Join(rest, ", "))
	default:
		parts = append(parts, "held against its budget: "+strings.Join(rest, ", "))
	}
	if verdict != nil && verdict.Verdict != "pass" {
		parts = append(parts, "the gate failed")
	}
	return strings.Join(parts, "; ")
}
