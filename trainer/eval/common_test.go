package eval

import (
	"math"
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

// TestChance: of questions with two options and with four, chance is between.
func TestChance(t *testing.T) {
	question := func(n int, target []float64) decision.Row {
		q := decision.Question{Type: decision.Choice, Options: make([]decision.Option, n)}
		return decision.Row{Asked: []decision.Asked{{Key: "q", Question: q, Target: target}}}
	}
	two, four := question(2, []float64{1, 0}), question(4, []float64{0, 0, 0, 1})
	unlabelled := question(3, nil)
	if got := Chance([]decision.Row{two, four, unlabelled}); got != .375 {
		t.Errorf("of a half and a quarter Chance = %v, want .375", got)
	}
	if got := Chance([]decision.Row{unlabelled}); !math.IsNaN(got) {
		t.Errorf("of no gold answers Chance = %v, want NaN", got)
	}
}
