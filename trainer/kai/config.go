package kai

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/hanzoai/link/spool/canon"
)

// Format is the newest kai.json format that this package reads, and the one it
// writes. A published file has none and reads as format 1.
const Format = 1

// Config is kai.json. Fields that this package does not know are kept from load
// to save.
type Config struct {
	Encoder      json.RawMessage // the Hugging Face config, as it was
	HeadLayers   int
	RetrievalDim int
	MaxLen       int                        // tokens of a context
	OptionLen    int                        // tokens of an option text
	TopK         int                        // options that enter the head
	Temperature  map[string]float64         // by bucket; a bucket without one has 1
	Provenance   map[string]json.RawMessage // init, stage, data, spec, environment, steps, calibration…

	other map[string]json.RawMessage
}

// published are fields whose meaning is not public. A file may hold the
// published value and no other, for then it would mean another model.
var published = map[string]string{"shared": "false", "diffuse": "0", "ordinal": "false"}

// parseConfig reads kai.json.
func parseConfig(src []byte) (Config, error) {
	src, err := canon.Canonicalize(src) // refuses duplicate members and what is not JSON
	if err != nil {
		return Config{}, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(src, &fields); err != nil || fields == nil {
		return Config{}, fmt.Errorf("not a JSON object")
	}
	var c Config
	format := Format
	for _, f := range []struct {
		name     string
		to       any
		required bool
	}{
		{"format", &format, false},
		{"encoder", &c.Encoder, true},
		{"head_layers", &c.HeadLayers, true},
		{"retrieval_dim", &c.RetrievalDim, true},
		{"max_len", &c.MaxLen, true},
		{"option_len", &c.OptionLen, true},
		{"top_k", &c.TopK, true},
		{"temperature", &c.Temperature, false},
		{"provenance", &c.Provenance, false},
	} {
		raw, ok := fields[f.name]
		if !ok && f.required {
			return Config{}, fmt.Errorf("%s is missing", f.name)
		}
		if ok {
			if err := json.Unmarshal(raw, f.to); err != nil {
				return Config{}, fmt.Errorf("%s: %w", f.name, err)
			}
			delete(fields, f.name)
		}
	}
	if format < 1 || format > Format {
		return Config{}, fmt.Errorf("format %d is not one this program reads (1 to %d): use a newer one", format, Format)
	}
	for _, name := range slices.Sorted(maps.Keys(published)) {
		if raw, ok := fields[name]; ok && string(raw) != published[name] {
			return Config{}, fmt.Errorf("%s is %s, whose meaning is not published; want %s", name, raw, published[name])
		}
	}
	c.other = fields
	return c, c.check()
}

// check refuses values that no model could have.
func (c *Config) check() error {
	for _, f := range []struct {
		name        string
		v, min, max int
	}{
		{"head_layers", c.HeadLayers, 1, maxLayers},
		{"retrieval_dim", c.RetrievalDim, 1, maxWidth},
		{"max_len", c.MaxLen, 8, 1 << 20},
		{"option_len", c.OptionLen, 4, 1 << 20},
		{"top_k", c.TopK, 2, 1 << 20},
	} {
		if f.v < f.min || f.v > f.max {
			return fmt.Errorf("%s is %d; want %d to %d", f.name, f.v, f.min, f.max)
		}
	}
	for _, bucket := range slices.Sorted(maps.Keys(c.Temperature)) {
		if t := c.Temperature[bucket]; !(t > 0) || math.IsInf(t, 0) {
			return fmt.Errorf("temperature of %s is %v; want a positive number", bucket, t)
		}
	}
	return nil
}

// json writes kai.json: canonical JSON and a line's end.
func (c *Config) json() ([]byte, error) {
	fields := maps.Clone(c.other)
	if fields == nil {
		fields = make(map[string]json.RawMessage)
	}
	for name, v := range map[string]any{
		"format":        Format,
		"encoder":       c.Encoder,
		"head_layers":   c.HeadLayers,
		"retrieval_dim": c.RetrievalDim,
		"max_len":       c.MaxLen,
		"option_len":    c.OptionLen,
		"top_k":         c.TopK,
		"temperature":   c.Temperature,
		"provenance":    c.Provenance,
	} {
		raw, err := canon.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		fields[name] = raw
	}
	b, err := canon.Marshal(fields)
	return append(b, '\n'), err
}
