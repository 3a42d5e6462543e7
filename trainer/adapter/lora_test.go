package adapter

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/project"
)

// The layer of most tests, wider than one block of a gradient's sum.
const (
	testOut  = kernels.Block + 88
	testIn   = 48
	testRank = 6
)

var testConfig = Config{Rank: testRank, Alpha: 9} // a scale of 1.5

// noise is n values from a standard normal distribution.
func noise(n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 5))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// layer is a parameter [out,in] with a gradient.
func layer(dev kernels.Device, out, in int) *kai.Param {
	p := &kai.Param{Name: "encoder.layer.0.dense.weight", Shape: []int{out, in}, W: dev.Alloc(out * in), Grad: dev.Alloc(out * in)}
	dev.Write(p.W, noise(out*in, 1))
	dev.Write(p.Grad, noise(out*in, 2))
	return p
}

// basis spans rank random directions of in.
func basis(in, rank int) *project.Basis {
	b := &project.Basis{Name: "encoder.layer.0.dense", In: in, Rank: rank}
	for _, x := range noise(rank*in, 6) {
		b.V = append(b.V, float64(x))
	}
	for i := range rank { // Gram-Schmidt, twice
		row := b.V[i*in:][:in]
		for range 2 {
			for j := range i {
				less(row, b.V[j*in:][:in], dot(row, b.V[j*in:][:in]))
			}
			less(row, row, 1-1/math.Sqrt(dot(row, row)))
		}
	}
	return b
}

func dot(x, y []float64) (sum float64) {
	for i := range x {
		sum += x[i] * y[i]
	}
	return sum
}

// less takes s times y from x.
func less(x, y []float64, s float64) {
	for i := range x {
		x[i] -= s * y[i]
	}
}

// warm is an adapter whose B is not 0 any more.
func warm(dev kernels.Device, proj *project.Projector) *LoRA {
	l := New(dev, layer(dev, testOut, testIn), testConfig, proj, 7)
	dev.Write(l.B, noise(l.B.Len, 3))
	return l
}

// wide is a matrix [rows,cols] in float64.
type wide struct {
	rows, cols int
	v          []float64
}

func widen(rows, cols int, v []float32) wide {
	m := wide{rows, cols, make([]float64, len(v))}
	for i, x := range v {
		m.v[i] = float64(x)
	}
	return m
}

func (m wide) transposed() wide {
	t := wide{m.cols, m.rows, make([]float64, len(m.v))}
	for i := range m.rows {
		for j := range m.cols {
			t.v[j*m.rows+i] = m.v[i*m.cols+j]
		}
	}
	return t
}

func (m wide) times(n wide) wide {
	p := wide{m.rows, n.cols, make([]float64, m.rows*n.cols)}
	for i := range m.rows {
		for k := range m.cols {
			for j := range n.cols {
				p.v[i*n.cols+j] += m.v[i*m.cols+k] * n.v[k*n.cols+j]
			}
		}
	}
	return p
}

// less is m(I-strength VVᵀ).
func (m wide) less(b *project.Basis, strength float64) wide {
	v := wide{b.Rank, b.In, b.V}
	inside := m.times(v.transposed()).times(v)
	for i := range inside.v {
		inside.v[i] = m.v[i] - strength*inside.v[i]
	}
	return wide{m.rows, m.cols, inside.v}
}

// near fails unless got is scale·want, the norm of their difference within 1e-6
// of want's.
func near(t *testing.T, what string, got []float32, scale float64, want wide) {
	t.Helper()
	var off, norm float64
	for i, w := range want.v {
		off += math.Pow(float64(got[i])-scale*w, 2)
		norm += math.Pow(scale*w, 2)
	}
	if !(math.Sqrt(off) < 1e-6*math.Sqrt(norm)) {
		t.Errorf("%s is off by %.2g of its norm", what, math.Sqrt(off/norm))
	}
}

func deltaOf(l *LoRA) []float32 {
	d := l.dev.Alloc(l.out * l.in)
	l.Delta(d)
	return values(l.dev, d)
}

func TestNewChangesNothing(t *testing.T) {
	dev := cpu.New(1)
	l := New(dev, layer(dev, testOut, testIn), testConfig, nil, 7)
	if d := deltaOf(l); slices.ContainsFunc(d, func(x float32) bool { return x != 0 }) {
		t.Error("a new adapter changes its parameter")
	}
	if l.Scale != 1.5 {
		t.Errorf("scale is %v, want alpha/rank = 1.5", l.Scale)
	}
}

func TestFirstValuesAreUniform(t *testing.T) {
	const n = 10000
	bound := 1 / math.Sqrt(64)
	a := uniform(n, bound, 7, "a.lora_A")
	var sum, square float64
	for _, x := range a {
		sum += float64(x)
		square += float64(x) * float64(x)
		if !(math.Abs(float64(x)) <= bound) {
			t.Fatalf("value %v is outside ±%v", x, bound)
		}
	}
	deviation := bound / math.Sqrt(3)
	if mean := sum / n; math.Abs(mean) > 4*deviation/math.Sqrt(n) {
		t.Errorf("mean is %v", mean)
	}
	if got := math.Sqrt(square / n); math.Abs(got-deviation) > 0.03*deviation {
		t.Errorf("deviation is %v, want %v", got, deviation)
	}
	if !slices.Equal(a[:99], uniform(99, bound, 7, "a.lora_A")) {
		t.Error("a value depends on more than seed, name and index")
	}
	for _, other := range [][]float32{uniform(n, bound, 8, "a.lora_A"), uniform(n, bound, 7, "b.lora_A")} {
		if slices.Equal(a, other) {
			t.Error("another seed or name has the same values")
		}
	}
	if a[0] != 0.0032337308 || a[1] != 0.09762408 { // as first written: a seed's adapter stays what it is
		t.Errorf("the first values are %v and %v", a[0], a[1])
	}
}

func TestDeltaAndBackward(t *testing.T) {
	for _, strength := range []float64{0, 0.5, 1} {
		t.Run(fmt.Sprintf("strength %v", strength), func(t *testing.T) {
			dev, b := cpu.New(1), basis(testIn, 5)
			var proj *project.Projector
			if strength > 0 {
				proj = b.On(dev, strength)
			}
			l := warm(dev, proj)
			a, right := widen(testRank, testIn, values(dev, l.A)), widen(testOut, testRank, values(dev, l.B))
			g := widen(testOut, testIn, values(dev, l.Param.Grad))

			near(t, "D", deltaOf(l), 1.5, right.times(a.less(b, strength)))
			for range 2 { // a second time must not add to the first
				l.Backward()
			}
			near(t, "GradB", values(dev, l.GradB), 1.5, g.times(a.less(b, strength).transposed()))
			near(t, "GradA", values(dev, l.GradA), 1.5, right.transposed().times(g).less(b, strength))
			if !slices.Equal(values(dev, l.Param.Grad), noise(testOut*testIn, 2)) {
				t.Error("Backward changed the parameter's gradient")
			}
		})
	}
}

// train takes 1,000 steps of AdamW with decay .1 on noise, and ends them.
func train(dev kernels.Device, proj *project.Projector, fold *project.Basis) *LoRA {
	l := New(dev, layer(dev, 24, testIn), testConfig, proj, 7)
	moments := func(m kernels.Mem) [2]kernels.Mem { return [2]kernels.Mem{dev.Alloc(m.Len), dev.Alloc(m.Len)} }
	ma, mb := moments(l.A), moments(l.B)
	for step := range 1000 {
		dev.Write(l.Param.Grad, noise(24*testIn, uint64(step%10)))
		l.Backward()
		c := kernels.AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.98, Eps: 1e-6, Decay: 0.1, Scale: 1,
			C1: float32(1 - math.Pow(0.9, float64(step+1))), C2: float32(1 - math.Pow(0.98, float64(step+1)))}
		dev.AdamW(kernels.Mem{}, l.A, ma[0], ma[1], l.GradA, kernels.Mem{}, c)
		dev.AdamW(kernels.Mem{}, l.B, mb[0], mb[1], l.GradB, kernels.Mem{}, c)
	}
	if fold != nil {
		l.Fold(fold)
	}
	return l
}

// TestNothingLeaks is trainer.md §B.4 (a) of an adapter: with λ = 1 its change
// has nothing in the subspace, whatever the optimizer did.
func TestNothingLeaks(t *testing.T) {
	dev, b := cpu.New(1), basis(testIn, 8)
	for _, tt := range []struct {
		name string
		l    *LoRA
		most float64
	}{
		{"projected", train(dev, b.On(dev, 1), nil), 5e-6},
		{"folded", train(dev, b.On(dev, 1), b), 5e-7},
	} {
		d := deltaOf(tt.l)
		leak := b.Leak(d, 24)
		t.Logf("%s: leak %.2g, norm of the change %.3g", tt.name, leak, math.Sqrt(dev.SumSquares(kernels.Mem{Host: d, Len: len(d)})))
		if !(leak < tt.most) {
			t.Errorf("%s: %.2g of the change is in the subspace, want at most %.2g", tt.name, leak, tt.most)
		}
	}
	if leak := b.Leak(deltaOf(train(dev, nil, nil)), 24); !(leak > 0.1) {
		t.Errorf("without a projector only %.2g of the change is in the subspace: the test shows nothing", leak)
	}
	if leak := b.Leak(deltaOf(train(dev, b.On(dev, 0.5), nil)), 24); !(leak > 0.01) {
		t.Errorf("at half strength only %.2g of the change is in the subspace: λ < 1 does not bound", leak)
	}
}

// TestFoldedDeltaHasTheBitsOfTraining holds what a file says to what was trained.
func TestFoldedDeltaHasTheBitsOfTraining(t *testing.T) {
	dev, b := cpu.New(1), basis(testIn, 5)
	for _, tt := range []struct {
		name string
		l    *LoRA
	}{
		{"free", warm(dev, nil)},
		{"half", warm(dev, b.On(dev, 0.5))},
		{"whole", warm(dev, b.On(dev, 1))},
	} {
		want := deltaOf(tt.l)
		if got := values(dev, tt.l.Factors().Delta(cpu.New(2))); !slices.Equal(got, want) {
			t.Errorf("%s: Factors().Delta has other bits than Delta", tt.name)
		}
	}
	l := warm(dev, b.On(dev, 1))
	l.Fold(b)
	if got := values(dev, l.Factors().Delta(dev)); !slices.Equal(got, deltaOf(l)) {
		t.Error("folded: Factors().Delta has other bits than Delta")
	}
	if !slices.Equal(l.Factors().A, values(dev, l.A)) {
		t.Error("a folded A is projected again")
	}
}

// TestBackwardIsTheGradientOfTheLoss compares the gradients of one target of each
// kind with the growth of a real model's loss along them.
func TestBackwardIsTheGradientOfTheLoss(t *testing.T) {
	m := open(t, "bert")
	dev := m.Device()
	q, err := decision.New(decision.Choice, "which?", []decision.Criterion{{Label: "a"}, {Label: "b"}, {Label: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	e := m.Encoder()
	inputs, err := e.Encode(decision.Row{ID: "r", State: "d e f 1 2 3", Asked: []decision.Asked{{Key: "q", Question: q}}})
	if err != nil {
		t.Fatal(err)
	}
	inputs[0].Target = []float64{0, 1, 0}
	for _, p := range m.Params() {
		if p.Group == "head" && p.Decay {
			dev.Scale(p.W, 10) // a new head's matrices are too small to move a loss beyond its rounding
		}
	}
	m.Train(func(string) bool { return false })
	loss := func() float64 { return m.Step(e.Texts, [][]kai.Input{inputs}, kai.Objective{}).Total }
	// The middle block of a fused matrix, a matrix of its own, and one of the head.
	targets, err := Targets(m.Linears(), []string{"0.attention.self.key", "0.output.dense", "probe"})
	if err != nil || len(targets) != 3 {
		t.Fatalf("%d targets, %v", len(targets), err)
	}
	for _, p := range targets {
		l := New(dev, p, Config{Rank: 3, Alpha: 2}, basis(p.Shape[1], 4).On(dev, 0.5), 7)
		dev.Write(l.B, uniform(l.B.Len, 0.5, 7, "B"))
		base, d := values(dev, p.W), dev.Alloc(p.W.Len)
		write := func() {
			l.Delta(d)
			dev.Write(p.W, base)
			dev.Add(p.W, p.W, d)
		}
		write()
		loss()
		l.Backward()
		for _, f := range []struct {
			name    string
			x, grad kernels.Mem
		}{{"A", l.A, l.GradA}, {"B", l.B, l.GradB}} {
			x, g := values(dev, f.x), values(dev, f.grad)
			norm := math.Sqrt(dev.SumSquares(f.grad))
			at := func(step float64) float64 { // along the gradient
				y := slices.Clone(x)
				for i := range y {
					y[i] += float32(step * float64(g[i]) / norm)
				}
				dev.Write(f.x, y)
				write()
				return loss()
			}
			const h = 0.005
			slope := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
			at(0)
			t.Logf("%s %s: slope %.4g, gradient's norm %.4g", p.Name, f.name, slope, norm)
			if !(math.Abs(slope-norm) < 5e-3*norm) {
				t.Errorf("%s: the loss grows by %v along Grad%s, whose norm is %v", p.Name, slope, f.name, norm)
			}
		}
		dev.Write(p.W, base)
	}
}

func TestThreadsDoNotChangeBits(t *testing.T) {
	all := func(threads int) []float32 {
		dev, b := cpu.New(threads), basis(testIn, 5)
		l := warm(dev, b.On(dev, 1))
		l.Backward()
		return slices.Concat(deltaOf(l), values(dev, l.GradA), values(dev, l.GradB))
	}
	want := all(1)
	for _, threads := range []int{2, 8} {
		if !slices.Equal(all(threads), want) {
			t.Errorf("%d threads give other bits than 1", threads)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		c    Config
		want string // how the error begins; "": none
	}{
		{Config{Rank: 8, Alpha: 16}, ""},
		{Config{Rank: 16, Alpha: 0.5}, ""},
		{Config{Rank: 0, Alpha: 16}, "rank: 0"},
		{Config{Rank: -3, Alpha: 16}, "rank: -3"},
		{Config{Rank: 17, Alpha: 16}, "rank: 17 is more than mlp.Wi has, which is [32,16]: want at most 16"},
		{Config{Rank: 8}, "alpha: 0"},
		{Config{Rank: 8, Alpha: -1}, "alpha: -1"},
		{Config{Rank: 8, Alpha: math.NaN()}, "alpha: NaN"},
		{Config{Rank: 8, Alpha: math.Inf(1)}, "alpha: +Inf"},
		{Config{Rank: 8, Alpha: 1e300}, "alpha: 1e+300"},
		{Config{Rank: 8, Alpha: 1e-300}, "alpha: 1e-300"},
	} {
		err := tt.c.Check(16, 32, "mlp.Wi")
		if got := fmt.Sprint(err); (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(got, tt.want) {
			t.Errorf("%+v: %v, want %q", tt.c, err, tt.want)
		}
	}
}
