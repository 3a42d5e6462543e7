package kai

import "github.com/hanzoai/link/kernels"

// Load reads a checkpoint: kai.json, model.safetensors, tokenizer/ and
// readouts/*.
func Load(dir string, dev kernels.Device) (*Model, error) { panic("kai: unwritten") }

// Save writes a checkpoint as a new folder dir, with its readouts. The folder
// appears complete or not at all; it is an error if it exists. Equal models are
// equal bytes.
func (m *Model) Save(dir string) error { panic("kai: unwritten") }
