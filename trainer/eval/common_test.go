package eval

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/trainer/decision"
)

// TestMostCommon counts gold answers, of one question and of two.
func TestMostCommon(t *testing.T) {
	q := decision.Question{Type: decision.Choice, Options: []decision.Option{{Key: "b", Text: "b"}, {Key: "a", Text: "a"}, {Key: "c", Text: "c"}}}
	row := func(key string, target ...float64) decision.Row {
		return decision.Row{Asked: []decision.Asked{{Key: key, Question: q, Target: target}}}
	}
	isB, isA := row("q", 1, 0, 0), row("q", 0, 1, 0)
	for _, tt := range []struct {
		name string
		rows []decision.Row
		want Common
	}{
		{"none", nil, Common{}},
		{"unlabelled", []decision.Row{{Asked: []decision.Asked{{Key: "q", Question: q}}}}, Common{}},
		{"one answer", []decision.Row{isB, isB}, Common{Answer: "b", Right: 2, Of: 2, Questions: 1, Golds: 1, Options: 3}},
		{"most", []decision.Row{isB, isA, isB}, Common{Answer: "b", Right: 2, Of: 3, Questions: 1, Golds: 2, Options: 3}},
		{"a tie", []decision.Row{isB, isA}, Common{Answer: "a", Right: 1, Of: 2, Questions: 1, Golds: 2, Options: 3}},
		{"a target that is even", []decision.Row{row("q", .5, .5, 0)}, Common{Answer: "a", Right: 1, Of: 1, Questions: 1, Golds: 1, Options: 3}},
		{"two questions", []decision.Row{isB, isA, isB, row("r", 0, 0, 1)}, Common{Answer: "b", Right: 3, Of: 4, Questions: 2, Golds: 3, Options: 6}},
	} {
		if d := cmp.Diff(tt.want, MostCommon(tt.rows)); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}
