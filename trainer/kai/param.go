package kai

import "github.com/hanzoai/link/kernels"

// Param is one named parameter as a view into the model's memory.
type Param struct {
	Name  string // as in model.safetensors: "encoder." and Hugging Face's name, or "head." and ours
	Shape []int
	Group string // "encoder" or "head": which learning rate
	Decay bool   // a matrix or a table, which weight decay pulls toward the base; not a bias or a norm
	W     kernels.Mem
	// Grad is the gradient that [Model.Step] left, in W's layout. It is absent
	// for a parameter that does not learn.
	Grad kernels.Mem
}

// Params returns every parameter of the encoder and the head, sorted by name.
func (m *Model) Params() []*Param { panic("kai: unwritten") }

// Train allocates gradients for every parameter that frozen does not refuse, and
// must come before the first [Model.Step]. Calling it again chooses again.
func (m *Model) Train(frozen func(name string) bool) { panic("kai: unwritten") }

// Frozen is the usual choice for [Model.Train]: the token embeddings stay as
// they are, unless the model was initialised from nothing.
func (m *Model) Frozen(name string) bool { panic("kai: unwritten") }
