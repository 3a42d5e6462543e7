package kai

import "github.com/hanzoai/link/trainer/decision"

// Predictor answers questions with the weights as they are. It caches option
// vectors by text: after the weights change, make a new one.
type Predictor struct {
	m *Model
}

// NewPredictor returns a predictor that has computed nothing yet.
func (m *Model) NewPredictor() *Predictor { panic("kai: unwritten") }

// Prediction is what the model gives one input.
type Prediction struct {
	Logits []float64 // by Input.Options, before any temperature; -Inf for an option that did not enter the head
	Bucket string    // the temperature's bucket
	T      float64   // the temperature
	P      []float64 // probabilities in the caller's order of options
}

// Predict answers inputs made by an Encoder with these texts, in order. An
// input whose Readout is set is answered by that readout.
func (p *Predictor) Predict(texts *Texts, inputs []Input) []Prediction { panic("kai: unwritten") }

// Features returns, for each input, the mean and the first of the context's
// final states, 2d values: what a readout reads.
func (p *Predictor) Features(inputs []Input) [][]float32 { panic("kai: unwritten") }

// Answer answers one row, question by question.
func (p *Predictor) Answer(row decision.Row) ([]Answer, error) { panic("kai: unwritten") }
