package kai

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/safetensors"
)

// golden is what testdata/golden.py wrote for one family of encoders: a tiny
// model, a step of four questions, and what PyTorch makes of them in float64.
type golden struct {
	Encoder      json.RawMessage `json:"encoder"`
	RetrievalDim int             `json:"retrieval_dim"`
	TopK         int             `json:"top_k"`
	HeadLayers   int             `json:"head_layers"`
	Texts        []struct {
		Text string  `json:"text"`
		IDs  []int32 `json:"ids"`
	} `json:"texts"`
	Questions []struct {
		Type    decision.Type `json:"type"`
		Context []int32       `json:"context"`
		Options []int         `json:"options"`
		Order   []int         `json:"order"`
		Target  []float64     `json:"target"`
		Weight  float64       `json:"weight"`
	} `json:"questions"`
	States       [][][]float64 `json:"states"`
	CrossEntropy float64       `json:"cross_entropy"`
	Ranked       float64       `json:"ranked"`
	Retrieval    float64       `json:"retrieval"`
	Logits       [][]float64   `json:"logits"`
	Entered      [][]int       `json:"entered"`

	dir string
}

var families = []string{"bert", "modernbert"}

func readGolden(t testing.TB, family string) *golden {
	t.Helper()
	g := &golden{dir: filepath.Join("testdata", family)}
	src, err := os.ReadFile(filepath.Join(g.dir, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(src, g); err != nil {
		t.Fatal(err)
	}
	return g
}

// model returns the golden model with its weights, everything learning.
func (g *golden) model(t testing.TB, threads int) *Model {
	t.Helper()
	hf, err := parseHF(g.Encoder)
	if err != nil {
		t.Fatal(err)
	}
	dev := cpu.New(threads)
	m := assemble(Config{Encoder: g.Encoder, HeadLayers: g.HeadLayers, RetrievalDim: g.RetrievalDim,
		MaxLen: 32, OptionLen: 8, TopK: g.TopK}, hf, dev)
	f, err := safetensors.Open(filepath.Join(g.dir, "weights.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := m.params.load(dev, f, m.params.list, same(f)); err != nil {
		t.Fatal(err)
	}
	m.Train(func(string) bool { return false })
	return m
}

func (g *golden) inputs() (*Texts, []Input) {
	texts := &Texts{index: make(map[string]int)}
	for i, x := range g.Texts {
		texts.text, texts.ids = append(texts.text, x.Text), append(texts.ids, x.IDs)
		texts.index[x.Text] = i
	}
	var inputs []Input
	for _, q := range g.Questions {
		inputs = append(inputs, Input{Type: q.Type, Context: q.Context, Options: q.Options, Order: q.Order, Target: q.Target, Weight: q.Weight})
	}
	return texts, inputs
}

// near fails unless got is want within a part in tol of scale.
func near(t *testing.T, what string, got, want, scale, tol float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tol*scale) {
		t.Errorf("%s = %v, want %v (off by %.2g of %.3g)", what, got, want, math.Abs(got-want)/scale, scale)
	}
}

// TestGoldenStates compares the encoders with the transformers library.
func TestGoldenStates(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			g := readGolden(t, family)
			m := g.model(t, 1)
			_, inputs := g.inputs()
			p := newPack(contexts(inputs))
			m.encoder.forward(&m.arena, p, false)
			out, worst := m.arena.read(p.out), 0.0
			for i, states := range g.States {
				for j, state := range states {
					for k, want := range state {
						got := float64(out[(int(p.seg[i])+j)*m.encoder.d+k])
						worst = max(worst, math.Abs(got-want))
					}
				}
			}
			t.Logf("largest difference %.2g", worst)
			if !(worst < 1e-5) {
				t.Errorf("states are off by %v", worst)
			}
		})
	}
}

// TestGoldenStep compares a whole step: losses, logits and every gradient.
func TestGoldenStep(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			g := readGolden(t, family)
			m := g.model(t, 1)
			texts, inputs := g.inputs()
			loss := m.Step(texts, [][]Input{inputs[:3], inputs[3:]}, Objective{})
			near(t, "cross-entropy", loss.CrossEntropy, g.CrossEntropy, 1, 1e-6)
			near(t, "ranked", loss.Ranked, g.Ranked, 1, 1e-6)
			near(t, "retrieval", loss.Retrieval, g.Retrieval, 1, 1e-6)

			f, err := safetensors.Open(filepath.Join(g.dir, "grads.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			worst := 0.0
			for _, p := range m.Params() {
				want, err := f.ReadFloat32(p.Name)
				if err != nil {
					t.Fatal(err)
				}
				got, off, norm := m.arena.read(p.Grad), 0.0, 0.0
				for i := range want {
					off += math.Pow(float64(got[i])-float64(want[i]), 2)
					norm += math.Pow(float64(want[i]), 2)
				}
				// Some gradients are 0 but for rounding: a key's bias cannot change a softmax.
				off, norm = math.Sqrt(off), max(math.Sqrt(norm), 5e-3)
				if worst = max(worst, off/norm); !(off/norm < 2e-5) {
					t.Errorf("gradient of %s is off by %.2g of its norm %.2g", p.Name, off/norm, norm)
				}
			}
			t.Logf("largest relative difference of a gradient %.2g", worst)

			for i := range inputs {
				if want := g.Questions[i].Target; len(want) > m.Config.TopK {
					continue // which options enter differs without gold
				}
				z := m.NewPredictor().Predict(texts, inputs[i:i+1])[0].Logits
				for j, o := range g.Entered[i] {
					near(t, "logit", z[o], g.Logits[i][j], 1, 1e-5)
				}
			}
		})
	}
}

// TestStepGradients compares every parameter's gradient with the growth of the
// loss along it. The golden files hold the same gradients to more digits, but
// only this asks our own forward.
func TestStepGradients(t *testing.T) {
	for _, family := range families {
		g := readGolden(t, family)
		m := g.model(t, 1)
		texts, inputs := g.inputs()
		step := func() float64 { return m.Step(texts, [][]Input{inputs}, Objective{}).Total }
		step()
		grads := gradients(m)
		for _, p := range m.Params() {
			direct(t, family+" "+p.Name, p, grads[p.Name], step)
		}
	}
}
