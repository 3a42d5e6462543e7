package kai

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/trainer/decision"
)

// rows returns the golden questions several times over, with contexts of other
// lengths, so that a step has more than one block of tokens.
func (g *golden) rows(copies int) (*Texts, []Input) {
	texts, questions := g.inputs()
	var inputs []Input
	for i := range copies {
		for _, in := range questions {
			in.Context = slices.Clone(in.Context[:max(3, len(in.Context)-i%5)])
			for j := 1; j < len(in.Context)-1; j++ {
				in.Context[j] = 3 + (in.Context[j]+int32(7*i+j))%37
			}
			inputs = append(inputs, in)
		}
	}
	return texts, inputs
}

// sameBits compares two vectors by their bits.
func sameBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Errorf("%s: value %d is %v, want %v", what, i, got[i], want[i])
			return
		}
	}
}

func gradients(m *Model) map[string][]float32 {
	all := make(map[string][]float32)
	for _, p := range m.Params() {
		all[p.Name] = m.arena.read(p.Grad)
	}
	return all
}

// TestStepBits: how a step is cut, how its options are packed and how many
// threads there are changes no bit of the losses and gradients.
func TestStepBits(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			g := readGolden(t, family)
			texts, inputs := g.rows(16)
			m := g.model(t, 1)
			want := m.Step(texts, [][]Input{inputs}, Objective{})
			grads := gradients(m)
			if want.Context <= 2*512/3 {
				t.Fatalf("%d tokens do not fill a block", want.Context)
			}
			for _, c := range []struct {
				name    string
				threads int
				budget  int
				cuts    []int
			}{
				{"the same again", 1, 4096, nil},
				{"one by one", 1, 4096, seq(1, len(inputs))},
				{"uneven, threads", 3, 4096, []int{1, 30, 31, 50}},
				{"options in packs", 2, 10, []int{7}},
				{"options alone", 1, 1, []int{20, 40}},
			} {
				m := g.model(t, c.threads)
				m.Budget.Options = c.budget
				var micro [][]Input
				from := 0
				for _, cut := range append(c.cuts, len(inputs)) {
					micro = append(micro, inputs[from:cut])
					from = cut
				}
				if d := cmp.Diff(want, m.Step(texts, micro, Objective{})); d != "" {
					t.Errorf("%s: loss (-want +got)\n%s", c.name, d)
				}
				for name, got := range gradients(m) {
					sameBits(t, c.name+": "+name, got, grads[name])
				}
			}
		})
	}
}

func seq(from, to int) []int {
	var list []int
	for i := from; i < to; i++ {
		list = append(list, i)
	}
	return list
}

// TestPredictBits: a row's logits do not depend on what it is packed with, on
// the cache or on the threads.
func TestPredictBits(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			g := readGolden(t, family)
			texts, inputs := g.rows(6)
			m := g.model(t, 1)
			together := m.NewPredictor().Predict(texts, inputs)
			for _, c := range []struct {
				threads int
				budget  Budget
			}{
				{1, Budget{1, 1, 1, 1}}, {2, Budget{70, 6, 80, 4}}, {3, Budget{4096, 9, 40, 128}},
			} {
				m := g.model(t, c.threads)
				m.Budget = c.budget
				p := m.NewPredictor()
				for round := range 2 { // the second from the cache
					for i, got := range p.Predict(texts, inputs) {
						if !slices.Equal(got.Logits, together[i].Logits) || !slices.Equal(got.P, together[i].P) {
							t.Fatalf("budget %v, round %d, input %d: %v, want %v", c.budget, round, i, got, together[i])
						}
					}
				}
			}
		})
	}
}

// TestLevelsMatter: a score's levels are marked, a choice's options are not.
func TestLevelsMatter(t *testing.T) {
	g := readGolden(t, "modernbert")
	texts, inputs := g.inputs()
	m := g.model(t, 1)
	swap := func(in Input) Input {
		in.Order = slices.Clone(in.Order)
		in.Order[0], in.Order[1] = in.Order[1], in.Order[0]
		return in
	}
	p := m.NewPredictor()
	for _, in := range inputs {
		a, b := p.Predict(texts, []Input{in})[0], p.Predict(texts, []Input{swap(in)})[0]
		if same := slices.Equal(a.Logits, b.Logits); same != (in.Type != decision.Score) {
			t.Errorf("%s: logits the same in another order: %v", in.Type, same)
		}
	}
}

// TestFrozen: what is frozen has no gradient, and what is not has the same one.
func TestFrozen(t *testing.T) {
	for _, family := range families {
		g := readGolden(t, family)
		texts, inputs := g.rows(2)
		m := g.model(t, 1)
		m.Step(texts, [][]Input{inputs}, Objective{})
		all := gradients(m)
		for _, keep := range []func(p *Param) bool{
			func(p *Param) bool { return p.Group == "head" },
			func(p *Param) bool { return p.Name != embeddings[family] },
			func(p *Param) bool {
				return p.Name == "encoder.layers.2.mlp.Wi.weight" || p.Name == "encoder.encoder.layer.1.attention.self.key.weight"
			},
		} {
			m.Train(func(name string) bool {
				i := slices.IndexFunc(m.Params(), func(p *Param) bool { return p.Name == name })
				return !keep(m.Params()[i])
			})
			m.Step(texts, [][]Input{inputs}, Objective{})
			for _, p := range m.Params() {
				if p.Grad.None() == keep(p) {
					t.Errorf("%s: has a gradient: %v", p.Name, !p.Grad.None())
				}
				if keep(p) {
					sameBits(t, p.Name, m.arena.read(p.Grad), all[p.Name])
				}
			}
		}
	}
}
