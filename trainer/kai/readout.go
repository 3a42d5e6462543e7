package kai

import "github.com/hanzoai/link/trainer/decision"

// Readout is a small head for one question over the frozen model's features:
// LayerNorm, Linear 256, GELU, Linear to one logit (noul) or one output an
// option. A question equal to its own (type, instructions and options in order)
// is answered by it, every other one by the base as if it were not there.
type Readout struct {
	Name        string
	Question    decision.Question
	Temperature float64
	Base        string // the SHA-256 of the base's model.safetensors
}

// NewReadout returns an untrained readout over m. The same seed gives the same
// bytes.
func (m *Model) NewReadout(name string, q decision.Question, seed uint64) *Readout {
	panic("kai: unwritten")
}

// Params returns the readout's parameters, sorted by name, with gradients.
func (r *Readout) Params() []*Param { panic("kai: unwritten") }

// Example is one row for a readout: its features, its target in the caller's
// order of options and its weight.
type Example struct {
	Features []float32
	Target   []float64
	Weight   float64
}

// Step leaves the gradient of the mean loss in the parameters and returns that
// loss in nats.
func (r *Readout) Step(batch []Example) float64 { panic("kai: unwritten") }

// Logits returns each row's logits by option in the caller's order; a noul's are
// its logit and 0.
func (r *Readout) Logits(features [][]float32) [][]float64 { panic("kai: unwritten") }

// Attach makes m answer the readout's question with it, replacing one of the
// same name. It fails when the readout was trained over another base.
func (m *Model) Attach(r *Readout) error { panic("kai: unwritten") }

// Readouts returns the attached readouts, sorted by name.
func (m *Model) Readouts() []*Readout { panic("kai: unwritten") }
