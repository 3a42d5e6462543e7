package kai

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// hfConfig is what a Hugging Face config.json says that this package needs of
// it, for both families.
type hfConfig struct {
	ModelType string `json:"model_type"`
	Vocab     int    `json:"vocab_size"`
	Width     int    `json:"hidden_size"`
	Inner     int    `json:"intermediate_size"`
	Layers    int    `json:"num_hidden_layers"`
	Heads     int    `json:"num_attention_heads"`
	Positions int    `json:"max_position_embeddings"`
	Position  string `json:"position_embedding_type"`
	CLS       *int32 `json:"cls_token_id"`
	SEP       *int32 `json:"sep_token_id"`

	// BERT
	Act      string  `json:"hidden_act"`
	Types    int     `json:"type_vocab_size"`
	LayerEps float64 `json:"layer_norm_eps"`
	Decoder  bool    `json:"is_decoder"`
	Cross    bool    `json:"add_cross_attention"`

	// ModernBERT
	Activation    string   `json:"hidden_activation"`
	NormEps       float64  `json:"norm_eps"`
	NormBias      bool     `json:"norm_bias"`
	AttentionBias bool     `json:"attention_bias"`
	MLPBias       bool     `json:"mlp_bias"`
	Every         int      `json:"global_attn_every_n_layers"`
	Local         int      `json:"local_attention"`
	GlobalTheta   float64  `json:"global_rope_theta"`
	LocalTheta    *float64 `json:"local_rope_theta"` // null: the global one
	LayerTypes    []string `json:"layer_types"`
	Rope          map[string]struct {
		Theta float64 `json:"rope_theta"`
		Type  string  `json:"rope_type"`
	} `json:"rope_parameters"`
}

// The defaults are those of the classes BertConfig and ModernBertConfig in the
// transformers library: a config.json leaves out what does not differ from them.
var hfDefaults = map[string]hfConfig{
	"bert": {Act: "gelu", Types: 2, LayerEps: 1e-12, Position: "absolute", Positions: 512,
		Width: 768, Inner: 3072, Layers: 12, Heads: 12, Vocab: 30522},
	"modernbert": {Activation: "gelu", NormEps: 1e-5, Position: "sans_pos", Positions: 8192,
		Every: 3, Local: 128, GlobalTheta: 160000, LocalTheta: new(10000.0),
		Width: 768, Inner: 1152, Layers: 22, Heads: 12, Vocab: 50368},
}

// parseHF reads an encoder's config and refuses, by name, what this package does
// not compute.
func parseHF(src []byte) (hfConfig, error) {
	var kind struct {
		ModelType string `json:"model_type"`
	}
	if err := json.Unmarshal(src, &kind); err != nil {
		return hfConfig{}, fmt.Errorf("encoder config: %w", err)
	}
	c, ok := hfDefaults[kind.ModelType]
	if !ok {
		return hfConfig{}, fmt.Errorf("encoder config: model_type %q is not one this program computes; want bert or modernbert", kind.ModelType)
	}
	if err := json.Unmarshal(src, &c); err != nil {
		return hfConfig{}, fmt.Errorf("encoder config: %w", err)
	}
	if err := c.check(); err != nil {
		return hfConfig{}, fmt.Errorf("encoder config: %w", err)
	}
	return c, nil
}

// Bounds of a sane encoder: they keep a foreign or damaged config from asking
// for absurd memory before its weights are looked at.
const (
	maxWidth  = 1 << 14
	maxLayers = 1 << 9
	maxVocab  = 1 << 21
)

func (c hfConfig) check() error {
	for _, f := range []struct {
		name   string
		v, max int
	}{
		{"hidden_size", c.Width, maxWidth}, {"intermediate_size", c.Inner, 8 * maxWidth},
		{"num_hidden_layers", c.Layers, maxLayers}, {"num_attention_heads", c.Heads, maxWidth},
		{"vocab_size", c.Vocab, maxVocab}, {"max_position_embeddings", c.Positions, 1 << 20},
	} {
		if f.v < 1 || f.v > f.max {
			return fmt.Errorf("%s is %d; want 1 to %d", f.name, f.v, f.max)
		}
	}
	if c.Width%c.Heads != 0 {
		return fmt.Errorf("hidden_size %d is not a multiple of num_attention_heads %d", c.Width, c.Heads)
	}
	if c.ModelType == "bert" {
		return c.checkBERT()
	}
	return c.checkModern()
}

func (c hfConfig) checkBERT() error {
	switch {
	case c.Act != "gelu":
		return unsupported("hidden_act", c.Act, "gelu")
	case c.Position != "absolute":
		return unsupported("position_embedding_type", c.Position, "absolute")
	case c.Decoder || c.Cross:
		return unsupported("is_decoder or add_cross_attention", true, false)
	case c.Types < 1 || c.Types > maxVocab:
		return fmt.Errorf("type_vocab_size is %d; want at least 1", c.Types)
	}
	return checkEps("layer_norm_eps", c.LayerEps)
}

func (c hfConfig) checkModern() error {
	if c.Activation != "gelu" {
		return unsupported("hidden_activation", c.Activation, "gelu")
	}
	// The class ignores this field; both values are found in published configs.
	if c.Position != "sans_pos" && c.Position != "absolute" {
		return unsupported("position_embedding_type", c.Position, "sans_pos or absolute")
	}
	if c.LayerTypes != nil && len(c.LayerTypes) != c.Layers {
		return fmt.Errorf("layer_types names %d layers of %d", len(c.LayerTypes), c.Layers)
	}
	for i, kind := range c.LayerTypes {
		if kind != "full_attention" && kind != "sliding_attention" {
			return unsupported(fmt.Sprintf("layer_types[%d]", i), kind, "full_attention or sliding_attention")
		}
	}
	if c.LayerTypes == nil && c.Every < 1 {
		return fmt.Errorf("global_attn_every_n_layers is %d; want at least 1", c.Every)
	}
	if c.Local < 2 || c.Local > 1<<20 {
		return fmt.Errorf("local_attention is %d; want at least 2", c.Local)
	}
	if c.Width/c.Heads%2 != 0 {
		return fmt.Errorf("hidden_size/num_attention_heads is %d; rotary positions want an even width a head", c.Width/c.Heads)
	}
	for _, kind := range []string{"full_attention", "sliding_attention"} {
		r, ok := c.Rope[kind]
		if ok && r.Type != "" && r.Type != "default" {
			return unsupported("rope_parameters."+kind+".rope_type", r.Type, "default")
		}
		if t := c.theta(kind == "full_attention"); !(t >= 1) || math.IsInf(t, 0) {
			return fmt.Errorf("the rotary theta of %s is %v; want at least 1", kind, t)
		}
	}
	return checkEps("norm_eps", c.NormEps)
}

func unsupported(name string, got, want any) error {
	return fmt.Errorf("%s %v is not one this program computes; want %v", name, got, want)
}

func checkEps(name string, eps float64) error {
	if !(eps > 0 && eps < 1) {
		return fmt.Errorf("%s is %v; want between 0 and 1", name, eps)
	}
	return nil
}

// global reports whether layer l attends to the whole row.
func (c hfConfig) global(l int) bool {
	if c.LayerTypes != nil {
		return c.LayerTypes[l] == "full_attention"
	}
	return l%c.Every == 0
}

// theta is the rotary base of global or of local layers. Newer configs hold
// rope_parameters, older ones two fields.
func (c hfConfig) theta(global bool) float64 {
	kind := "sliding_attention"
	if global {
		kind = "full_attention"
	}
	if r, ok := c.Rope[kind]; ok {
		return r.Theta
	}
	if global || c.LocalTheta == nil {
		return c.GlobalTheta
	}
	return *c.LocalTheta
}

// ignored names tensors of published files that the encoder does not use: what
// sits on top of it for other tasks, and buffers.
func (c hfConfig) ignored(name string) bool {
	prefixes := []string{"head.", "decoder.", "classifier."}
	if c.ModelType == "bert" {
		prefixes = []string{"pooler.", "cls.", "classifier.", "embeddings.position_ids"}
	}
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
