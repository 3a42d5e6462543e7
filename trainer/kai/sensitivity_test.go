package kai

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/trainer/decision"
)

// TestLinears: the layers' names, and that their parameters are all matrices that
// a linear multiplies by.
func TestLinears(t *testing.T) {
	for family, want := range map[string][]string{
		"bert":       {"attention.output.dense", "attention.self.qkv", "intermediate.dense", "output.dense"},
		"modernbert": {"attn.Wo", "attn.Wqkv", "mlp.Wi", "mlp.Wo"},
	} {
		g := readGolden(t, family)
		m := g.model(t, 1)
		list := m.Linears()
		if !slices.IsSortedFunc(list, func(a, b Linear) int { return strings.Compare(a.Name, b.Name) }) {
			t.Error("not by name")
		}
		var first, head []string
		seen := make(map[string]bool)
		for _, l := range list {
			rows := 0
			for _, p := range l.Params {
				if p.Shape[1] != l.In || &p.W.Host[0] != &p.in.w.Host[rows*l.In] {
					t.Errorf("%s: %s is not the rows from %d", l.Name, p.Name, rows)
				}
				rows += p.Shape[0]
				seen[p.Name] = true
			}
			if rows != l.Out {
				t.Errorf("%s: %d rows of %d", l.Name, rows, l.Out)
			}
			if name, ok := strings.CutPrefix(l.Name, "head."); ok {
				head = append(head, name)
			}
			for _, prefix := range []string{"encoder.encoder.layer.0.", "encoder.layers.0."} {
				if name, ok := strings.CutPrefix(l.Name, prefix); ok {
					first = append(first, name)
				}
			}
		}
		if !slices.Equal(first, want) {
			t.Errorf("%s: layer 0 has %v", family, first)
		}
		if want := []string{"layers.0.attn.out", "layers.0.attn.qkv", "layers.0.mlp.down", "layers.0.mlp.up",
			"layers.1.attn.out", "layers.1.attn.qkv", "layers.1.mlp.down", "layers.1.mlp.up",
			"probe", "retrieval.key", "retrieval.query", "score.dense", "score.out"}; !slices.Equal(head, want) {
			t.Errorf("%s: the head has %v", family, head)
		}
		for _, p := range m.Params() { // but for tables, every matrix
			if table := p.in.table || p.Name == "head.option.weight"; seen[p.Name] != (len(p.Shape) == 2 && !table) {
				t.Errorf("%s: in a linear: %v", p.Name, seen[p.Name])
			}
		}
		if i := slices.IndexFunc(list, func(l Linear) bool { return strings.HasSuffix(l.Name, "layer.0.attention.self.qkv") }); family == "bert" {
			for j, part := range []string{"query", "key", "value"} {
				if name := list[i].Params[j].Name; name != "encoder.encoder.layer.0.attention.self."+part+".weight" {
					t.Errorf("block %d is %s", j, name)
				}
			}
		}
	}
}

// sensitivity returns the G of every layer, summed in float64.
func sensitivity(m *Model, texts *Texts, in Input) [][]float64 {
	list := m.Linears()
	all := make([][]float64, len(list))
	m.Sensitivity(texts, in, func(layer int, dy, x kernels.Mem, t int) {
		l := list[layer]
		if all[layer] == nil {
			all[layer] = make([]float64, l.Out*l.In)
		}
		dys, xs := m.arena.read(dy), m.arena.read(x)
		if len(dys) != t*l.Out || len(xs) != t*l.In {
			panic("a tap of another shape than " + l.Name)
		}
		for i := range t {
			for o := range l.Out {
				for k := range l.In {
					all[layer][o*l.In+k] += float64(dys[i*l.Out+o]) * float64(xs[i*l.In+k])
				}
			}
		}
	})
	return all
}

// TestSensitivity compares every layer's G, by block, with how the gold logit
// less the mean of the logits grows: along G itself, and along a direction that
// knows nothing of it.
func TestSensitivity(t *testing.T) {
	for _, family := range families {
		g := readGolden(t, family)
		texts, inputs := g.rows(1)
		m := g.model(t, 1)
		m.Config.TopK = 4 // every option enters, whatever the target
		for _, in := range inputs {
			above := func() float64 {
				z := m.NewPredictor().Predict(texts, []Input{in})[0].Logits
				mean := 0.0
				for _, v := range z {
					mean += v / float64(len(z))
				}
				return z[gold(in.Target)] - mean
			}
			all := sensitivity(m, texts, in)
			for i, l := range m.Linears() {
				if all[i] == nil {
					if !strings.HasPrefix(l.Name, "head.retrieval.") {
						t.Errorf("%s is not tapped", l.Name)
					}
					continue
				}
				at := 0
				for _, p := range l.Params {
					grad := make([]float32, p.size())
					for j := range grad {
						grad[j] = float32(all[i][at+j])
					}
					at += len(grad)
					direct(t, family+" "+p.Name, p, grad, above)
					across(t, family+" "+p.Name, p, grad, above)
				}
			}
		}
	}
}

// across compares a gradient with the growth of f along a fixed direction of
// signs that turns with every third value.
func across(t *testing.T, name string, p *Param, g []float32, f func() float64) {
	t.Helper()
	w := slices.Clone(values(p.W))
	want, norm := 0.0, 0.0
	sign := func(i int) float64 { return float64(1 - 2*(i/3%2)) }
	for i, v := range g {
		want += sign(i) * float64(v)
		norm += float64(v) * float64(v)
	}
	norm = math.Sqrt(norm)
	h := 1e-2 / math.Sqrt(float64(len(g)))
	at := func(h float64) float64 {
		for i := range w {
			p.W.Host[i] = float32(float64(w[i]) + h*sign(i))
		}
		defer copy(p.W.Host, w)
		return f()
	}
	got := (at(h) - at(-h)) / (2 * h)
	if !(math.Abs(got-want) < 2e-2*norm*math.Sqrt(float64(len(g)))/4+1e-4) {
		t.Errorf("%s: across its gradient of norm %.3g it grows by %.5g, want %.5g", name, norm, got, want)
	}
}

// TestSensitivityIsStepsGradient: G is what a step sums from the same gradient of
// the logits, where an option was left out too.
func TestSensitivityIsStepsGradient(t *testing.T) {
	for _, family := range families {
		g := readGolden(t, family)
		texts, inputs := g.rows(2)
		m := g.model(t, 1)
		var each []Input // with every option as the gold one, what retrieval leaves out too
		for _, in := range inputs {
			for o := range in.Options {
				in.Target = make([]float64, len(in.Options))
				in.Target[o] = 1
				each = append(each, in)
			}
		}
		for _, in := range each {
			all := sensitivity(m, texts, in)
			s := m.begin(texts, [][]Input{{in}}, Objective{})
			r := s.forward([]Input{in})
			n := len(r.logits)
			if n != min(3, len(in.Options)) {
				t.Fatalf("%d options entered", n)
			}
			dlogits := make([]float32, n)
			for j, o := range r.entered[0] {
				dlogits[j] = float32(-1 / float64(n))
				if o == gold(in.Target) {
					dlogits[j] = float32(1 - 1/float64(n))
				}
			}
			s.back(r, dlogits, make([]float32, len(s.texts)))
			s.end()
			for k, l := range m.Linears() {
				if all[k] != nil {
					agree(t, family+" "+l.Name, l.Params[0].in.grad.Sum.Host, all[k])
				}
			}
		}
	}
}

// TestSensitivityLeavesNoTrace: gradients, what learns, and the next step are as
// if it had not been; and it needs nothing that learns.
func TestSensitivityLeavesNoTrace(t *testing.T) {
	g := readGolden(t, "bert")
	texts, inputs := g.rows(2)
	m := g.model(t, 1)
	m.SHA256 = "an address"
	want := sensitivity(m, texts, inputs[0])
	if m.SHA256 == "" {
		t.Error("the weights are those of no file")
	}
	loss := m.Step(texts, [][]Input{inputs}, Objective{})
	grads := gradients(m)
	sensitivity(m, texts, inputs[1])
	for name, grad := range gradients(m) {
		sameBits(t, name, grad, grads[name])
	}
	if again := m.Step(texts, [][]Input{inputs}, Objective{}); again.Total != loss.Total {
		t.Errorf("loss %v, want %v", again.Total, loss.Total)
	}
	for name, grad := range gradients(m) {
		sameBits(t, name, grad, grads[name])
	}
	taught := inputs[0] // a teacher would have all four of its options enter
	taught.Teacher = &Teacher{P: []float64{.25, .25, .25, .25}, Ranking: []float64{.25, .25, .25, .25}}
	for i, got := range sensitivity(m, texts, taught) {
		if !slices.Equal(got, want[i]) {
			t.Errorf("layer %d is another with a teacher", i)
		}
	}
	m.Train(func(string) bool { return true })
	for i, got := range sensitivity(m, texts, inputs[0]) {
		if !slices.Equal(got, want[i]) {
			t.Errorf("layer %d is another when nothing learns", i)
		}
	}
}

func TestHardest(t *testing.T) {
	in := Input{Type: decision.Choice, ID: "r", Options: []int{10, 11, 12, 13, 14}, Order: []int{4, 0, 3, 1, 2},
		Target: []float64{0, 0, 1, 0, 0}, Teacher: &Teacher{}}
	logits := []float64{2, leftOut, -3, 2, 5}
	for _, c := range []struct {
		n                    int
		options, order, gold []int
	}{
		{3, []int{10, 12, 14}, []int{2, 1, 0}, []int{0, 1, 0}}, // 2 twice: the smaller text
		{4, []int{10, 12, 13, 14}, []int{3, 2, 0, 1}, []int{0, 1, 0, 0}},
		{1, []int{12}, []int{0}, []int{1}},
		{5, in.Options, in.Order, []int{0, 0, 1, 0, 0}},
		{9, in.Options, in.Order, []int{0, 0, 1, 0, 0}},
	} {
		got := in.Hardest(logits, c.n)
		if !slices.Equal(got.Options, c.options) || !slices.Equal(got.Order, c.order) || got.ID != "r" {
			t.Errorf("%d: options %v in the order %v, want %v, %v", c.n, got.Options, got.Order, c.options, c.order)
		}
		for i, y := range c.gold {
			if got.Target[i] != float64(y) {
				t.Errorf("%d: target %v, want %v", c.n, got.Target, c.gold)
			}
		}
	}
	if !slices.Equal(in.Options, []int{10, 11, 12, 13, 14}) || in.Teacher == nil {
		t.Errorf("the input changed: %v", in)
	}
	in.Type = decision.Score
	if got := in.Hardest(logits, 2); len(got.Options) != 5 {
		t.Errorf("a score keeps %d of its 5 levels", len(got.Options))
	}
}

// TestHardestIsAnInput: what is left is a question like any other.
func TestHardestIsAnInput(t *testing.T) {
	g := readGolden(t, "modernbert")
	texts, inputs := g.rows(1)
	m := g.model(t, 1)
	in := inputs[0]
	cut := in.Hardest(m.NewPredictor().Predict(texts, []Input{in})[0].Logits, 2)
	p := m.NewPredictor().Predict(texts, []Input{cut})[0]
	if len(p.P) != 2 || math.Abs(p.P[0]+p.P[1]-1) > 1e-12 {
		t.Errorf("probabilities %v", p.P)
	}
	if all := sensitivity(m, texts, cut); all[0] == nil {
		t.Error("nothing was tapped")
	}
}
