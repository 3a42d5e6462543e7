package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/hanzoai/link/spool/gate"
)

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
