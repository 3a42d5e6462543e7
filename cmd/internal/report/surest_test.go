package report

import (
	"testing"

	"github.com/hanzoai/link/spool/gate"
)

// TestSurest: of four answers the two surest are one right and one wrong.
func TestSurest(t *testing.T) {
	item := func(confidence float64, correct bool) gate.Item {
		return gate.Item{Confidence: &confidence, Correct: &correct}
	}
	for _, tt := range []struct {
		name  string
		items []gate.Item
		want  string
	}{
		{"two of four", []gate.Item{item(.6, true), item(.9, true), item(.8, false), item(.5, true)}, "0.500"},
		{"none", nil, "–"},
		{"without confidence", []gate.Item{{Item: "a"}}, "–"},
	} {
		if got := surest(tt.items); got != tt.want {
			t.Errorf("%s: surest = %s, want %s", tt.name, got, tt.want)
		}
	}
}
