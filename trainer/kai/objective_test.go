package kai

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// every is an objective of everything there is, with margins that bind.
var every = Objective{
	Terms: []Term{
		{Kind: HardMargin, Weight: .7, Margin: 2},
		{Kind: PairwiseMargin, Weight: .5, Margin: 3},
		{Kind: Consistency, Weight: 2},
	},
	Distillation: 1.5,
}

// grouped is a step of everything: each golden question as a group of four views,
// one of them with another gold, and behind every group a question to keep, whose
// teacher is another model.
func (g *golden) grouped(t *testing.T) (texts *Texts, inputs []Input) {
	t.Helper()
	other := g.model(t, 1)
	for _, p := range other.Params() {
		for i := range p.W.Host {
			p.W.Host[i] *= 1 + .3*float32(i%3)
		}
	}
	texts, views := g.rows(5)
	teachers := other.NewPredictor().Teach(texts, views)
	questions := len(g.Questions)
	for q := range questions {
		for view := range 4 {
			in := views[view*questions+q]
			in.Group = 1 + q
			if view == 2 {
				in.Target = slices.Clone(in.Target)
				slices.Reverse(in.Target)
				in.Target[0] += .001 // of two equal golds the other one
			}
			inputs = append(inputs, in)
		}
		at := 4*questions + q
		in := views[at]
		in.Teacher, in.Target = &teachers[at], nil
		inputs = append(inputs, in)
	}
	return texts, inputs
}

// TestZeroObjective: with an objective of nothing a step is what it was before
// there were objectives. The sums are of the losses' and gradients' bits then.
func TestZeroObjective(t *testing.T) {
	for family, want := range map[string]string{
		"bert":       "3080b67932ae9e464fa41dbd1b6a991e005ee8ba89d5b911dbb2c5a6390a9987",
		"modernbert": "19a3b07369ed09dde2702ff3c9652ee1eab3fd09e156dc3d2d2ff225eebc10e1",
	} {
		g := readGolden(t, family)
		texts, inputs := g.rows(16)
		for i := range inputs {
			inputs[i].Group = 1 + i/20 // no term compares
		}
		m := g.model(t, 2)
		l := m.Step(texts, [][]Input{inputs[:20], inputs[20:]}, Objective{})
		h := sha256.New()
		write := func(v any) {
			if err := binary.Write(h, binary.LittleEndian, v); err != nil {
				t.Fatal(err)
			}
		}
		write([]float64{l.Total, l.CrossEntropy, l.Ranked, l.Retrieval})
		for _, p := range m.Params() {
			write(m.arena.read(p.Grad))
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != want {
			t.Errorf("%s: %s, want %s: %+v", family, got, want, l)
		}
		if l.Terms != nil || l.Distillation != 0 || l.Ranking != 0 {
			t.Errorf("%s: nothing was asked for: %+v", family, l)
		}
	}
}

// TestTermGradients compares each term's gradient with central differences.
func TestTermGradients(t *testing.T) {
	z, w := []float64{.3, -1, leftOut, 2, .9}, []float64{-.2, .4, 1, leftOut, 1.7}
	teacher := []float64{.5, .1, 0, .3, .1}
	for _, c := range []struct {
		name string
		term func(z, w []float64, scale float64, dz, dw []float64) float64
		want float64
	}{
		{"hard margin", func(z, w []float64, scale float64, dz, dw []float64) float64 {
			return hardMargin(z, 4, 1.5, scale, dz)
		}, 1.5 - (.9 - 2)},
		{"hard margin, far enough", func(z, w []float64, scale float64, dz, dw []float64) float64 {
			return hardMargin(z, 3, 1, scale, dz)
		}, 0},
		{"hard margin, no rival entered", func(z, w []float64, scale float64, dz, dw []float64) float64 {
			return hardMargin([]float64{leftOut, 1, leftOut}, 1, 5, scale, dz)
		}, 0},
		{"pairwise margin", func(z, w []float64, scale float64, dz, dw []float64) float64 {
			return pairwiseMargin(z, w, 0, 4, 2, scale, dz, dw)
		}, 2 - ((.3 - .9) - (-.2 - 1.7))},
		{"pairwise margin, far enough", func(z, w []float64, scale float64, dz, dw []float64) float64 {
			return pairwiseMargin(z, w, 0, 4, 1, scale, dz, dw)
		}, 0},
		{"pairwise margin, the other's gold left out", func(z, w []float64, scale float64, dz, dw []float64) float64 {
			return pairwiseMargin(z, w, 0, 2, 9, scale, dz, dw)
		}, 0},
		{"consistency", consistency, 0.34549788737770715},
		{"distillation", func(z, w []float64, scale float64, dz, dw []float64) float64 {
			return distill(z, teacher, scale, dz)
		}, 0.5398216733849853},
	} {
		t.Run(c.name, func(t *testing.T) {
			const scale = .25
			dz, dw := make([]float64, len(z)), make([]float64, len(w))
			near(t, "the term", c.term(z, w, scale, dz, dw), c.want, 1, 1e-12)
			for which, at := range [][]float64{z, w} {
				for i := range at {
					if math.IsInf(at[i], -1) {
						continue
					}
					value := func(h float64) float64 {
						both := [][]float64{slices.Clone(z), slices.Clone(w)}
						both[which][i] += h
						return scale * c.term(both[0], both[1], 1, make([]float64, len(z)), make([]float64, len(w)))
					}
					const h = 1e-5
					near(t, fmt.Sprintf("gradient %d of %d", i, which), [][]float64{dz, dw}[which][i], (value(h)-value(-h))/(2*h), 1, 1e-9)
				}
			}
			for i := range z { // what left one of them out moves neither
				if math.IsInf(z[i], -1) && dz[i] != 0 || math.IsInf(w[i], -1) && dw[i] != 0 {
					t.Errorf("option %d was left out and has gradients %v, %v", i, dz[i], dw[i])
				}
			}
		})
	}
}

// TestConsistencyIsTheDivergence compares with the definition, over probabilities.
func TestConsistencyIsTheDivergence(t *testing.T) {
	p, q := []float64{.5, .2, .3}, []float64{.1, .6, .3}
	want, z, w := 0.0, make([]float64, 3), make([]float64, 3)
	for i := range p {
		want += p[i]*math.Log(p[i]/q[i]) + q[i]*math.Log(q[i]/p[i])
		z[i], w[i] = math.Log(p[i])+4, math.Log(q[i])-7
	}
	near(t, "consistency", consistency(z, w, 1, make([]float64, 3), make([]float64, 3)), want, 1, 1e-12)
}

// TestPairs: which questions are compared.
func TestPairs(t *testing.T) {
	a := Input{Group: 1, Key: "k", Options: []int{3, 4, 5}, Target: []float64{0, 1, 0}}
	with := func(change func(in *Input)) Input {
		in := a
		change(&in)
		return in
	}
	inputs := []Input{
		a,
		with(func(in *Input) {}), // 1: a view
		with(func(in *Input) { in.Target = []float64{.2, .1, .7} }), // 2: a twin
		with(func(in *Input) { in.Group = 0 }),
		with(func(in *Input) { in.Group = 2 }),
		with(func(in *Input) { in.Key = "other" }),
		with(func(in *Input) { in.Options = []int{3, 4, 6} }),
		with(func(in *Input) { in.Teacher, in.Target = &Teacher{}, nil }),
		with(func(in *Input) { in.Group = 0 }),
		with(func(in *Input) {}), // 9: a view, apart
	}
	for kind, want := range map[string][][2]int{
		Consistency:    {{0, 1}, {0, 9}, {1, 9}},
		PairwiseMargin: {{0, 2}, {1, 2}, {2, 9}},
		HardMargin:     nil,
	} {
		var got [][2]int
		pairs(kind, inputs, func(i, j int) { got = append(got, [2]int{i, j}) })
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got)\n%s", kind, d)
		}
	}
}

// TestObjectiveLoss: the losses of a step are the means that [Loss] and [Term]
// say, found here from predictions alone.
func TestObjectiveLoss(t *testing.T) {
	g := readGolden(t, "modernbert")
	texts, inputs := g.grouped(t)
	m := g.model(t, 1)
	m.Config.TopK = 9 // all enter, so that a prediction has all logits
	got := m.Step(texts, [][]Input{inputs}, every)

	var z [][]float64
	for _, p := range m.NewPredictor().Predict(texts, inputs) {
		z = append(z, p.Logits)
	}
	softmax := func(z []float64) []float64 {
		p, sum := make([]float64, len(z)), 0.0
		for i := range z {
			p[i] = math.Exp(z[i])
			sum += p[i]
		}
		for i := range p {
			p[i] /= sum
		}
		return p
	}
	kl := func(p, q []float64) float64 {
		sum := 0.0
		for i := range p {
			if p[i] > 0 {
				sum += p[i] * math.Log(p[i]/q[i])
			}
		}
		return sum
	}
	var hard, pairwise, views, kept, weight, taught float64
	var twins, same int
	for j, in := range inputs {
		if in.Teacher != nil {
			kept += in.Weight * kl(in.Teacher.P, softmax(z[j]))
			taught += in.Weight
			continue
		}
		b := gold(in.Target)
		rival := math.Inf(-1)
		for o, v := range z[j] {
			if o != b {
				rival = max(rival, v)
			}
		}
		hard += in.Weight * max(0, 2-(z[j][b]-rival))
		weight += in.Weight
		for i := j - 1; i >= 0; i-- {
			if inputs[i].Group != in.Group || inputs[i].Teacher != nil {
				continue
			}
			if a := gold(inputs[i].Target); a != b {
				twins++
				pairwise += max(0, 3-((z[i][a]-z[i][b])-(z[j][a]-z[j][b])))
			} else {
				same++
				p, q := softmax(z[i]), softmax(z[j])
				views += kl(p, q) + kl(q, p)
			}
		}
	}
	if twins == 0 || same == 0 {
		t.Fatal("nothing to compare")
	}
	near(t, "hard_margin", got.Terms[0], hard/weight, 1, 1e-5)
	near(t, "pairwise_margin", got.Terms[1], pairwise/float64(twins), 1, 1e-5)
	near(t, "consistency", got.Terms[2], views/float64(same), 1, 1e-5)
	near(t, "distillation", got.Distillation, kept/taught, 1, 1e-5)
	near(t, "weight", got.Weight, weight, 1, 0)
	near(t, "total", got.Total, got.CrossEntropy+got.Ranked+.1*got.Retrieval+
		.7*got.Terms[0]+.5*got.Terms[1]+2*got.Terms[2]+1.5*(got.Distillation+.1*got.Ranking), 1, 1e-12)
	if got.Questions != len(inputs) || got.Ranking <= 0 {
		t.Errorf("loss %+v", got)
	}
}

// TestObjectiveGradients compares every parameter's gradient with the growth of
// the loss along it, for each part of an objective alone and for all together.
func TestObjectiveGradients(t *testing.T) {
	objectives := map[string]Objective{"everything": every, "distillation": {Distillation: 40}}
	for _, term := range every.Terms {
		term.Weight *= 20
		objectives[term.Kind] = Objective{Terms: []Term{term}}
	}
	for _, family := range families {
		g := readGolden(t, family)
		texts, inputs := g.grouped(t)
		m := g.model(t, 1)
		for name, o := range objectives {
			step := func() float64 { return m.Step(texts, [][]Input{inputs}, o).Total }
			step()
			grads := gradients(m)
			for _, p := range m.Params() {
				direct(t, family+" "+name+" "+p.Name, p, grads[p.Name], step)
			}
		}
	}
}

// TestObjectiveBits: how a step with groups and teachers is cut changes no bit.
func TestObjectiveBits(t *testing.T) {
	for _, family := range families {
		g := readGolden(t, family)
		texts, inputs := g.grouped(t)
		m := g.model(t, 1)
		want := m.Step(texts, [][]Input{inputs}, every)
		grads := gradients(m)
		for _, c := range []struct {
			name    string
			threads int
			budget  int
			cuts    []int
		}{
			{"at every group", 2, 4096, []int{4, 5, 9, 10, 14, 15, 19}},
			{"with empty batches, options in packs", 3, 10, []int{0, 5, 5, 15}},
		} {
			m := g.model(t, c.threads)
			m.Budget.Options = c.budget
			var micro [][]Input
			from := 0
			for _, cut := range append(c.cuts, len(inputs)) {
				micro = append(micro, inputs[from:cut])
				from = cut
			}
			if d := cmp.Diff(want, m.Step(texts, micro, every)); d != "" {
				t.Errorf("%s, %s: loss (-want +got)\n%s", family, c.name, d)
			}
			for name, got := range gradients(m) {
				sameBits(t, family+", "+c.name+": "+name, got, grads[name])
			}
		}
	}
}

// TestObjectiveFaults: a caller's fault is a panic that names it.
func TestObjectiveFaults(t *testing.T) {
	g := readGolden(t, "bert")
	texts, inputs := g.grouped(t)
	m := g.model(t, 1)
	unweighted := slices.Clone(inputs[:5])
	unweighted[4].Weight = 0
	foreign := slices.Clone(inputs[:5])
	foreign[4].Teacher = &Teacher{P: []float64{1}, Ranking: []float64{1}}
	for want, f := range map[string]func(){
		"group 1 stands in two": func() { m.Step(texts, [][]Input{inputs[:3], inputs[3:]}, every) },
		`no such term as "bag"`: func() { m.Step(texts, [][]Input{inputs}, Objective{Terms: []Term{{Kind: "bag"}}}) },
		"positive weight":       func() { m.Step(texts, [][]Input{unweighted}, every) },
		"of other options":      func() { m.Step(texts, [][]Input{foreign}, every) },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("panic %q, want %q", got, want)
				}
			}()
			f()
		}()
	}
}
