package kai

import (
	"strconv"

	"github.com/hanzoai/link/trainer/decision"
)

// Bucket names the temperature of a question: its type and how many options it
// has, as in "choice:3-5", "noul:2" and "score:*".
func Bucket(t decision.Type, options int) string {
	switch t {
	case decision.Noul:
		return "noul:2"
	case decision.Score:
		return "score:*"
	}
	switch {
	case options <= 2:
		return "choice:2"
	case options <= 5:
		return "choice:3-5"
	case options <= 10:
		return "choice:6-10"
	case options <= 30:
		return "choice:11-30"
	}
	return "choice:31+"
}

// temperature is a bucket's, or 1.
func (m *Model) temperature(bucket string) float64 {
	if t, ok := m.Config.Temperature[bucket]; ok {
		return t
	}
	return 1
}

// Answer is the answer to one question in the shape of POST /v1/decisions.
type Answer struct {
	Choice           *string            `json:"choice,omitempty"` // a choice's most probable option
	Noul             *float64           `json:"noul,omitempty"`   // P(true)
	Score            *float64           `json:"score,omitempty"`  // the expected level
	Legend           map[string]string  `json:"legend,omitempty"` // a score's levels
	Probabilities    map[string]float64 `json:"probabilities,omitempty"`
	AnswerConfidence float64            `json:"answer_confidence"` // the top probability
	Confidence       float64            `json:"confidence"`        // (p - 1/n)/(1 - 1/n)

	Top     int    `json:"-"` // the caller's index of the most probable option, ties to the smaller text
	Cut     int    `json:"-"` // tokens of the state that did not fit
	Tokens  int    `json:"-"` // tokens of the context
	Readout string `json:"-"` // the readout that answered, or ""
}

// NewAnswer shapes probabilities, in the order of the question's options. A noul
// has its P(true) and no table.
func NewAnswer(q decision.Question, p []float64) Answer {
	n := float64(len(p))
	a := Answer{Top: Top(q.Sorted(), p)}
	a.AnswerConfidence = p[a.Top]
	a.Confidence = (a.AnswerConfidence - 1/n) / (1 - 1/n)
	if q.Type == decision.Noul {
		for i, o := range q.Options {
			if o.Key == "true" {
				a.Noul = &p[i]
			}
		}
		return a
	}
	a.Probabilities = make(map[string]float64, len(p))
	for i, o := range q.Options {
		a.Probabilities[o.Key] = p[i]
	}
	if q.Type == decision.Choice {
		a.Choice = &q.Options[a.Top].Key
		return a
	}
	expected := 0.0
	a.Legend = make(map[string]string, len(p))
	for i, o := range q.Options {
		expected += float64(float64(i) * p[i])
		a.Legend[o.Key] = o.Text[len("level ")+len(strconv.Itoa(i))+len(": "):]
	}
	a.Score = &expected
	return a
}

// Top is the index of the largest value, in the caller's order of options; of
// equal ones that whose option text is smallest. order is the options' order by
// text, [Input].Order.
func Top(order []int, values []float64) int {
	top := order[0]
	for _, i := range order[1:] {
		if values[i] > values[top] {
			top = i
		}
	}
	return top
}
