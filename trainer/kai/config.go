package kai

import "encoding/json"

// Format is the newest kai.json format that this package reads, and the one it
// writes. A published file without a format is format 1.
const Format = 1

// Config is kai.json. Fields that this package does not know are kept from load
// to save.
type Config struct {
	Format       int
	Encoder      json.RawMessage // the Hugging Face config, verbatim
	HeadLayers   int
	RetrievalDim int
	MaxLen       int
	OptionLen    int
	TopK         int
	Temperature  map[string]float64         // by bucket; a bucket without one has 1
	Provenance   map[string]json.RawMessage // init, stage, data, spec, environment, steps, calibration…

	other map[string]json.RawMessage
}
