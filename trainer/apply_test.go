package trainer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/safetensors"
)

// TestApplyRefuses: a capability that is damaged, of another kind or of another base
// changes nothing of the model.
func TestApplyRefuses(t *testing.T) {
	w := newWorld(t, func(stage map[string]any) {
		adapted(stage)
		stage["protect"] = map[string]any{}
	})
	_, c := w.start(t)
	if _, err := Fit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	m, err := kai.Load(w.base, w.dev)
	if err != nil {
		t.Fatal(err)
	}
	weights := func() (all []float32) {
		for _, p := range m.Params() {
			all = append(all, hostValues(w.dev, p.W)...)
		}
		return append([]float32(nil), all...)
	}
	before := weights()
	name := m.Linears()[0].Params[0].Name
	for _, tt := range []struct {
		name, old, new string
		tensors        []safetensors.Tensor // instead of its own
		says           string
	}{
		{"another base", m.SHA256, strings.Repeat("0", 64), nil, ErrOtherBase.Error()},
		{"a later format", `"format":1`, `"format":2`, nil, "format 2"},
		{"a readout's", `"form":"lora"`, `"form":"head"`, nil, `form "head" is not applied to weights`},
		{"no rank", `"rank":4`, `"rank":0`, nil, "its scale is"},
		{"a temperature of 0", `"temperature":{`, `"temperature":{"x":0,`, nil, "temperature of x is 0"},
		{"an unknown field", `"name":`, `"nam":"x","name":`, nil, "nam"},
		{"another model's layer", "", "", []safetensors.Tensor{{Name: "no.weight.lora_A", Shape: []int{4, 16}, Data: make([]float32, 64)}}, "no parameter no.weight"},
		{"half a product", "", "", []safetensors.Tensor{{Name: name + ".lora_A", Shape: []int{4, 16}, Data: make([]float32, 64)}}, "lora_B is missing"},
	} {
		dir := filepath.Join(tempDir(t), "capability")
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(c.Dir, "capability"))); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(dir, "capability.json"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(raw), tt.old) {
			t.Fatalf("%s: %q is not in %s", tt.name, tt.old, raw)
		}
		write(t, filepath.Join(dir, "capability.json"), strings.Replace(string(raw), tt.old, tt.new, 1))
		if tt.tensors != nil {
			if err := safetensors.Write(filepath.Join(dir, loraFile), tt.tensors, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := Apply(m, dir); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.says)
		}
	}
	for i, v := range weights() {
		if v != before[i] {
			t.Fatal("a refused capability changed the model")
		}
	}
	if err := Apply(m, tempDir(t)); err == nil || errors.Is(err, ErrOtherBase) {
		t.Errorf("an empty folder: %v", err)
	}
}
