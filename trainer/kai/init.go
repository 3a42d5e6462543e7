package kai

import "github.com/hanzoai/link/kernels"

// InitConfig says what a new model starts from: Encoder or Size, not both.
type InitConfig struct {
	Encoder string   // a Hugging Face folder: config.json, *.safetensors, tokenizer.json
	Size    string   // "nano" or "small": from nothing
	Texts   []string // what a model from nothing learns its vocabulary on
	Seed    uint64

	// Zero means the default in parentheses.
	HeadLayers   int // (2)
	RetrievalDim int // (256)
	MaxLen       int // (1024, or the encoder's positions where fewer)
	OptionLen    int // (48)
	TopK         int // (160)
}

// Init makes a new model. The same config gives the same bytes. It also returns
// the names of tensors in the encoder's folder that the model does not use.
func Init(c InitConfig, dev kernels.Device) (*Model, []string, error) { panic("kai: unwritten") }
