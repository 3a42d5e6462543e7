package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/hanzoai/link/spool/gate"
)

// Outcome is what the sentence needs to know of a suite; NaN where unknown.
type Outcome struct {
	Suite, Role   string  // "target", "protected", [Unjudged] or ""
	Before, After float64 // accuracy
}

// Unjudged is the role of a suite that is protected and that no gate judges.
const Unjudged = "unjudged"

// Sentence is a run in one sentence: what was learned, by how much, and whether
// the rest held.
func Sentence(name string, suites []Outcome, verdict *gate.Verdict) string {
	var learned, rest, unjudged []string
	for _, s := range suites {
		if math.IsNaN(s.After) {
			continue
		}
		text := fmt.Sprintf("%s: %.1f %% right", s.Suite, 100*s.After)
		if !math.IsNaN(s.Before) {
			text = fmt.Sprintf("%s: %+.1f points, %.1f %% right", s.Suite, 100*(s.After-s.Before), 100*s.After)
		}
		switch s.Role {
		case "protected":
			rest = append(rest, text)
		case Unjudged:
			unjudged = append(unjudged, text)
		default:
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
	if len(unjudged) > 0 {
		parts = append(parts, "judged by no budget: "+strings.Join(unjudged, ", "))
	}
	if verdict != nil && verdict.Verdict != "pass" {
		parts = append(parts, "the gate failed")
	}
	return strings.Join(parts, "; ")
}
