package kai

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/safetensors"
	"github.com/hanzoai/link/trainer/tokenizer"
)

// InitConfig says what a new model starts from: Encoder or Size, not both.
type InitConfig struct {
	Encoder string   // a Hugging Face folder: config.json, *.safetensors, tokenizer.json
	Size    string   // "nano" (4 layers, 128 wide) or "small" (6, 384): from nothing
	Texts   []string // what a model from nothing learns its vocabulary on
	Seed    uint64

	// Zero means the default in parentheses.
	HeadLayers   int // (2)
	RetrievalDim int // (256)
	MaxLen       int // (1024, or the encoder's positions where fewer)
	OptionLen    int // (48)
	TopK         int // (160)
}

// deviation is the standard deviation of new weights, before truncation.
const deviation = 0.02

// vocabulary is how many tokens a model from nothing learns.
const vocabulary = 4096

// Init makes a new model: the encoder as the folder has it, or new, and a new
// head. Equal configs and files give equal bytes. It also returns the names of
// tensors in the encoder's folder that the model does not use.
func Init(c InitConfig, dev kernels.Device) (m *Model, unused []string, err error) {
	switch {
	case (c.Encoder == "") == (c.Size == ""):
		return nil, nil, errors.New("init: give an encoder folder or a size, one of the two")
	case c.Encoder != "":
		if m, unused, err = initFrom(c, dev); err != nil {
			return nil, nil, fmt.Errorf("encoder %s: %w", c.Encoder, err)
		}
	default:
		if m, err = initNew(c, dev); err != nil {
			return nil, nil, fmt.Errorf("init %s: %w", c.Size, err)
		}
	}
	return m, unused, nil
}

// provenance is what kai.json says of the start.
type provenance struct {
	Size    string `json:"size,omitempty"`    // a model from nothing
	Encoder string `json:"encoder,omitempty"` // the address of the encoder's weights
	Seed    uint64 `json:"seed"`              // of what was drawn
}

// fromNothing is the size of a model that was initialised from nothing.
func (m *Model) fromNothing() (size string, ok bool) {
	var p provenance
	if raw, has := m.Config.Provenance["init"]; !has || json.Unmarshal(raw, &p) != nil {
		return "", false
	}
	return p.Size, p.Size != ""
}

// config fills in the defaults.
func (c *InitConfig) config(encoder []byte, positions int, from provenance) (Config, error) {
	or := func(v, otherwise int) int {
		if v == 0 {
			return otherwise
		}
		return v
	}
	raw, err := json.Marshal(from)
	if err != nil {
		return Config{}, err
	}
	k := Config{Encoder: encoder,
		HeadLayers: or(c.HeadLayers, 2), RetrievalDim: or(c.RetrievalDim, 256),
		MaxLen: or(c.MaxLen, min(1024, positions)), OptionLen: or(c.OptionLen, min(48, positions)),
		TopK: or(c.TopK, 160), Temperature: map[string]float64{},
		Provenance: map[string]json.RawMessage{"init": raw},
	}
	return k, k.check()
}

func initFrom(c InitConfig, dev kernels.Device) (*Model, []string, error) {
	src, err := os.ReadFile(filepath.Join(c.Encoder, "config.json"))
	if err != nil {
		return nil, nil, err
	}
	if src, err = canon.Canonicalize(src); err != nil {
		return nil, nil, fmt.Errorf("config.json: %w", err)
	}
	hf, err := parseHF(src)
	if err != nil {
		return nil, nil, err
	}
	sum, err := sumWeights(c.Encoder)
	if err != nil {
		return nil, nil, err
	}
	config, err := c.config(src, hf.Positions, provenance{Encoder: sum, Seed: c.Seed})
	if err != nil {
		return nil, nil, err
	}
	tok, err := tokenizer.Load(c.Encoder)
	if err != nil {
		return nil, nil, err
	}
	m, err := build(config, tok, dev)
	if err != nil {
		return nil, nil, err
	}
	f, err := safetensors.OpenModel(c.Encoder)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	names, unused, err := hf.rename(f.Names())
	if err != nil {
		return nil, nil, err
	}
	var encoder, head []*Param
	for _, p := range m.params.list {
		if p.Group == "encoder" {
			encoder = append(encoder, p)
		} else {
			head = append(head, p)
		}
	}
	if err := m.params.load(dev, f, encoder, names); err != nil {
		return nil, nil, err
	}
	draw(dev, head, c.Seed)
	return m, unused, nil
}

// rename maps our parameter names to a published file's tensors, and lists those
// that belong to another task's head or are buffers. Files differ in a prefix and
// in the legacy names of BERT's norms.
func (c hfConfig) rename(tensors []string) (names map[string]string, unused []string, err error) {
	prefix := "model."
	if c.ModelType == "bert" {
		prefix = "bert."
	}
	names = make(map[string]string)
	for _, from := range tensors {
		name := strings.TrimPrefix(from, prefix)
		if c.ModelType == "bert" {
			if base, ok := strings.CutSuffix(name, "LayerNorm.gamma"); ok {
				name = base + "LayerNorm.weight"
			} else if base, ok := strings.CutSuffix(name, "LayerNorm.beta"); ok {
				name = base + "LayerNorm.bias"
			}
		}
		if c.ignored(name) {
			unused = append(unused, from)
			continue
		}
		name = "encoder." + name
		if other, dup := names[name]; dup {
			return nil, nil, fmt.Errorf("tensors %q and %q are both %s", other, from, name)
		}
		names[name] = from
	}
	return names, unused, nil
}

// sizes are the encoders that can be made from nothing. 3/2 of the width as the
// inner width, and both thetas, are Kai's.
var sizes = map[string]struct{ layers, width, heads int }{
	"nano":  {4, 128, 2},
	"small": {6, 384, 6},
}

func initNew(c InitConfig, dev kernels.Device) (*Model, error) {
	size, ok := sizes[c.Size]
	if !ok {
		return nil, fmt.Errorf("no such size; want %s", strings.Join(slices.Sorted(maps.Keys(sizes)), " or "))
	}
	if len(c.Texts) == 0 {
		return nil, errors.New("a model from nothing learns its vocabulary from texts, and there are none")
	}
	src, err := tokenizer.TrainByteLevel(slices.Values(c.Texts), vocabulary)
	if err != nil {
		return nil, err
	}
	tok, err := tokenizer.Parse(src)
	if err != nil {
		return nil, err
	}
	encoder, err := canon.Marshal(map[string]any{
		"architectures": []string{"ModernBertModel"}, "model_type": "modernbert",
		"vocab_size": tok.VocabSize(), "hidden_size": size.width, "intermediate_size": size.width * 3 / 2,
		"num_hidden_layers": size.layers, "num_attention_heads": size.heads,
		"max_position_embeddings": 8192, "norm_eps": 1e-5, "norm_bias": false,
		"attention_bias": false, "mlp_bias": false, "hidden_activation": "gelu",
		"global_attn_every_n_layers": 3, "local_attention": 128,
		"global_rope_theta": 160000.0, "local_rope_theta": 160000.0,
		"attention_dropout": 0.0, "embedding_dropout": 0.0, "mlp_dropout": 0.0,
	})
	if err != nil {
		return nil, err
	}
	config, err := c.config(encoder, 8192, provenance{Size: c.Size, Seed: c.Seed})
	if err != nil {
		return nil, err
	}
	m, err := build(config, tok, dev)
	if err != nil {
		return nil, err
	}
	m.params.alloc(dev)
	draw(dev, m.params.list, c.Seed)
	return m, nil
}

// draw gives every parameter its first value: matrices and tables are drawn, the
// scales of norms are 1, biases and shifts 0.
func draw(dev kernels.Device, list []*Param, seed uint64) {
	for _, p := range list {
		v := make([]float32, p.size())
		switch {
		case p.Decay:
			truncatedNormal(v, seed, p.Name)
		case strings.HasSuffix(p.Name, ".weight"):
			for i := range v {
				v[i] = 1
			}
		}
		dev.Write(p.W, v)
	}
}

// truncatedNormal fills v with normal deviates of standard deviation .02 cut at
// two deviations, each a pure function of seed, name and index: SplitMix64
// (Steele, Lea and Flood, 2014) in counter mode, and rejection from the uniform
// distribution under the density, which needs no function but exp.
func truncatedNormal(v []float32, seed uint64, name string) {
	key := mix(seed)
	for _, c := range []byte(name) {
		key = mix(key ^ uint64(c))
	}
	for i := range v {
		for try := uint64(0); ; try++ {
			bits := mix(key + (try<<40|uint64(i))*0x9e3779b97f4a7c15)
			x := float32(bits>>40)*0x1p-22 - 2 // 24 bits over [-2, 2)
			u := float32(bits&(1<<24-1)) * 0x1p-24
			if u < kernels.Exp(-x*x/2) {
				v[i] = x * deviation
				break
			}
		}
	}
}

// mix is SplitMix64's output function, with its increment.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
