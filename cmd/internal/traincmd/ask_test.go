package traincmd

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
)

// TestShowScore: a level and its label are told apart.
func TestShowScore(t *testing.T) {
	score := 2.0
	var out bytes.Buffer
	showAnswer(&out, decision.Asked{Question: decision.Question{Type: decision.Score}}, kai.Answer{
		Score: &score, Probabilities: map[string]float64{"2": .446}, Legend: map[string]string{"2": "-2"},
	}, false)
	if !strings.Contains(out.String(), "0.446  2: -2\n") {
		t.Errorf("the level is shown as %q", out.String())
	}
}
