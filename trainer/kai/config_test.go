package kai

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/hanzoai/link/trainer/decision"
)

// FuzzConfig: whatever kai.json holds, it is read and written back alike or
// refused, and its encoder is read or refused.
func FuzzConfig(f *testing.F) {
	if src, err := os.ReadFile("../../test/vectors/kai-config.json"); err == nil {
		f.Add(src)
	}
	f.Add([]byte(`{"encoder":{"model_type":"bert","hidden_size":8,"num_attention_heads":2},"head_layers":1,"retrieval_dim":2,` +
		`"max_len":8,"option_len":4,"top_k":2,"temperature":{"noul:2":1.5},"x":[1e3,null]}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		c, err := parseConfig(src)
		if err != nil {
			return
		}
		_, _ = parseHF(c.Encoder)
		written, err := c.json()
		if err != nil {
			t.Fatalf("%s: read, but not written: %v", src, err)
		}
		again, err := parseConfig(written)
		if err != nil {
			t.Fatalf("%s: written as %s, which does not read: %v", src, written, err)
		}
		if string(again.Encoder) != string(c.Encoder) || !reflect.DeepEqual(again.other, c.other) {
			t.Errorf("%s: changed to %s", src, written)
		}
	})
}

// TestEncoderConfigs: what this program does not compute is refused by name.
func TestEncoderConfigs(t *testing.T) {
	const bert = `"model_type":"bert","hidden_size":8,"num_attention_heads":2`
	const modern = `"model_type":"modernbert","hidden_size":8,"num_attention_heads":2,"num_hidden_layers":2`
	for _, c := range []struct{ src, want string }{
		{bert, ""},
		{modern, ""},
		{modern + `,"local_rope_theta":null,"global_rope_theta":1000`, ""},
		{`"hidden_size":8`, `model_type ""`},
		{`"model_type":"deberta-v2"`, `model_type "deberta-v2"`},
		{bert + `,"hidden_act":"relu"`, "hidden_act relu"},
		{bert + `,"position_embedding_type":"relative_key"`, "position_embedding_type relative_key"},
		{bert + `,"is_decoder":true`, "is_decoder"},
		{bert + `,"num_attention_heads":3`, "not a multiple"},
		{bert + `,"layer_norm_eps":0`, "layer_norm_eps"},
		{bert + `,"vocab_size":-1`, "vocab_size is -1"},
		{bert + `,"vocab_size":1.5`, "vocab_size"},
		{modern + `,"hidden_activation":"silu"`, "hidden_activation silu"},
		{modern + `,"num_attention_heads":8`, "even width"},
		{modern + `,"layer_types":["full_attention"]`, "layer_types names 1"},
		{modern + `,"layer_types":["full_attention","linear_attention"]`, "layer_types[1] linear_attention"},
		{modern + `,"global_attn_every_n_layers":0`, "global_attn_every_n_layers"},
		{modern + `,"local_attention":-1`, "local_attention"},
		{modern + `,"rope_parameters":{"full_attention":{"rope_theta":1e4,"rope_type":"yarn"}}`, "rope_type yarn"},
		{modern + `,"rope_parameters":{"full_attention":{"rope_theta":0}}`, "theta of full_attention"},
		{modern + `,"global_rope_theta":0`, "theta of full_attention"},
	} {
		_, err := parseHF([]byte("{" + c.src + "}"))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want an error with %q", c.src, err, c.want)
		}
	}
	old, err := parseHF([]byte("{" + modern + `,"local_rope_theta":10,"global_rope_theta":1000}`))
	if err != nil || old.theta(true) != 1000 || old.theta(false) != 10 {
		t.Errorf("the two thetas: %v, %v, %v", err, old.theta(true), old.theta(false))
	}
}

// TestTaught: what a model was taught is kept with it.
func TestTaught(t *testing.T) {
	m := nano(t, 1)
	if taught, err := m.Taught(); err != nil || len(taught) != 0 || m.Calibration() != "" {
		t.Errorf("a new model was taught %v, %v, calibration %q", taught, err, m.Calibration())
	}
	a := decision.Asked{Key: "a", Question: question(t, decision.Choice, "card", "shop")}
	b := decision.Asked{Key: "b", Question: question(t, decision.Noul)}
	for _, list := range [][]decision.Asked{{b}, {a}} {
		if err := m.Teach(list); err != nil {
			t.Fatal(err)
		}
	}
	m.Config.Provenance["calibration"] = json.RawMessage(`{"id":"cal_0123456789abcdef","split":"dev"}`)
	taught, err := m.Taught()
	if err != nil || len(taught) != 2 || taught[0].Question.Hash() != a.Question.Hash() || taught[1].Question.Hash() != b.Question.Hash() {
		t.Errorf("taught %+v, %v", taught, err)
	}
	r, err := m.NewReadout("cards", a.Question, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Attach(r); err != nil {
		t.Fatal(err)
	}
	if all, err := m.Questions(); err != nil || len(all) != 2 || all[0].Key != "cards" || all[1].Key != "b" {
		t.Errorf("with a readout of one, the questions are %+v, %v", all, err)
	}
	if m.Calibration() != "cal_0123456789abcdef" {
		t.Errorf("calibration %q", m.Calibration())
	}
}
