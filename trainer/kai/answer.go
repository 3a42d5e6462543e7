package kai

import "github.com/hanzoai/link/trainer/decision"

// Bucket names the temperature of a question: its type and how many options it
// has, as in "choice:3-5", "noul:2" and "score:*".
func Bucket(t decision.Type, options int) string { panic("kai: unwritten") }

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

// NewAnswer shapes probabilities, in the order of the question's options.
func NewAnswer(q decision.Question, p []float64) Answer { panic("kai: unwritten") }
