package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/gate"
)

// Change is a paired change in accuracy with its 95 % interval, as fractions.
type Change struct{ Delta, Lo, Hi float64 }

// The interval a person is shown: the paired bootstrap of HIP-1334 §9.2 over
// groups, so that rows of one example count once.
const (
	draws = 1000
	level = 0.95
	seed  = 13
)

// ChangeIn pairs items on (item, question); what stands on one side only is left
// out. Without a pair all is NaN.
func ChangeIn(before, after []gate.Item) Change {
	was := make(map[[2]string]float64, len(before))
	for _, item := range before {
		if item.Correct != nil {
			was[[2]string{item.Item, item.Question}] = right(item)
		}
	}
	type sum struct{ d, n float64 }
	groups := make(map[string]*sum)
	for _, item := range after {
		b, ok := was[[2]string{item.Item, item.Question}]
		if !ok || item.Correct == nil {
			continue
		}
		unit := item.Group
		if groups[unit] == nil {
			groups[unit] = &sum{}
		}
		groups[unit].d += right(item) - b
		groups[unit].n++
	}
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	if len(names) == 0 {
		return Change{math.NaN(), math.NaN(), math.NaN()}
	}
	slices.Sort(names)
	mean := func(drawn []int) float64 {
		var d, n float64
		for _, i := range drawn {
			d += groups[names[i]].d
			n += groups[names[i]].n
		}
		return d / n
	}
	all := make([]int, len(names))
	for i := range all {
		all[i] = i
	}
	c := Change{Delta: mean(all)}
	c.Lo, c.Hi = gate.Bootstrap(len(names), draws, level, seed, mean)
	return c
}

func right(item gate.Item) float64 {
	if *item.Correct {
		return 1
	}
	return 0
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
		change := fmt.Sprintf("%s: %.1f %% right", s.Suite, 100*s.After)
		if !math.IsNaN(s.Before) {
			change = fmt.Sprintf("%s: %+.1f points, %.1f %% right", s.Suite, 100*(s.After-s.Before), 100*s.After)
		}
		if s.Role == "protected" {
			rest = append(rest, change)
		} else {
			learned = append(learned, change)
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
