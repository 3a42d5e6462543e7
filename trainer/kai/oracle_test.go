package kai

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	gtensor "gorgonia.org/tensor"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/trainer/decision"
)

// This file holds every kind of layer to an independent engine: gorgonia builds
// the layer's formula from matrix products and element-wise functions in
// float64 and differentiates it itself. Sums and broadcasts are products with
// constant matrices, so that the oracle rests on few operations.

// graph is one formula under construction.
type graph struct {
	t      *testing.T
	g      *gorgonia.ExprGraph
	leaves map[string]*gorgonia.Node
}

func newGraph(t *testing.T) *graph {
	return &graph{t: t, g: gorgonia.NewGraph(), leaves: make(map[string]*gorgonia.Node)}
}

type node = *gorgonia.Node

func (g *graph) matrix(name string, rows, cols int, v []float64) node {
	return gorgonia.NewMatrix(g.g, gtensor.Float64, gorgonia.WithShape(rows, cols), gorgonia.WithName(name),
		gorgonia.WithValue(gtensor.New(gtensor.WithShape(rows, cols), gtensor.WithBacking(v))))
}

// leaf is a matrix whose gradient is wanted.
func (g *graph) leaf(name string, rows, cols int, v []float32) node {
	wide := make([]float64, len(v))
	for i := range v {
		wide[i] = float64(v[i])
	}
	n := g.matrix(name, rows, cols, wide)
	g.leaves[name] = n
	return n
}

// constant is a matrix given by a function of row and column.
func (g *graph) constant(rows, cols int, f func(i, j int) float64) node {
	v := make([]float64, rows*cols)
	for i := range rows {
		for j := range cols {
			v[i*cols+j] = f(i, j)
		}
	}
	return g.matrix(fmt.Sprintf("constant %d", len(g.g.AllNodes())), rows, cols, v) // equal names are one node
}

func (g *graph) same(like node, v float64) node {
	s := like.Shape()
	return g.constant(s[0], s[1], func(i, j int) float64 { return v })
}

func (g *graph) must(n node, err error) node {
	if err != nil {
		g.t.Helper()
		g.t.Fatal(err)
	}
	return n
}

func (g *graph) dot(a, b node) node { g.t.Helper(); return g.must(gorgonia.Mul(a, b)) }
func (g *graph) mul(a, b node) node { g.t.Helper(); return g.must(gorgonia.HadamardProd(a, b)) }
func (g *graph) add(a, b node) node { g.t.Helper(); return g.must(gorgonia.Add(a, b)) }
func (g *graph) sub(a, b node) node { g.t.Helper(); return g.must(gorgonia.Sub(a, b)) }
func (g *graph) tr(a node) node     { g.t.Helper(); return g.must(gorgonia.Transpose(a, 1, 0)) }

// spread repeats a row vector [1,d] t times.
func (g *graph) spread(v node, t int) node {
	return g.dot(g.constant(t, 1, func(i, j int) float64 { return 1 }), v)
}

func (g *graph) linear(x node, name string, l *linear) node {
	y := g.dot(x, g.tr(g.leaf(name+".w", l.out, l.in, l.w.w.Host)))
	if l.b != nil {
		y = g.add(y, g.spread(g.leaf(name+".b", 1, l.out, l.b.w.Host), x.Shape()[0]))
	}
	return y
}

func (g *graph) norm(x node, name string, n *norm) node {
	d, t := n.d, x.Shape()[0]
	average := g.constant(d, d, func(i, j int) float64 { return 1 / float64(d) })
	c := g.sub(x, g.dot(x, average))
	deviation := g.must(gorgonia.Sqrt(g.add(g.dot(g.mul(c, c), average), g.same(x, float64(n.eps)))))
	y := g.mul(c, g.must(gorgonia.Inverse(deviation)))
	y = g.mul(y, g.spread(g.leaf(name+".gamma", 1, d, n.gamma.w.Host), t))
	if n.beta != nil {
		y = g.add(y, g.spread(g.leaf(name+".beta", 1, d, n.beta.w.Host), t))
	}
	return y
}

// gelu uses the series erf x = 2/√π Σ (-1)^n x^(2n+1)/(n!(2n+1)), 40 terms of
// which are exact in float64 for |x| ≤ 2.5.
func (g *graph) gelu(x node) node {
	z := g.mul(x, g.same(x, 1/math.Sqrt2))
	square := g.mul(z, z)
	coefficient := make([]float64, 40)
	factorial := 1.0
	for n := range coefficient {
		if n > 0 {
			factorial *= -float64(n)
		}
		coefficient[n] = 2 / math.Sqrt(math.Pi) / (factorial * float64(2*n+1))
	}
	p := g.same(x, coefficient[39])
	for n := 38; n >= 0; n-- {
		p = g.add(g.mul(p, square), g.same(x, coefficient[n]))
	}
	erf := g.mul(p, z)
	return g.mul(g.mul(x, g.same(x, .5)), g.add(g.same(x, 1), erf))
}

// pick is the columns [from, from+n) of x.
func (g *graph) pick(x node, from, n int) node {
	return g.dot(x, g.constant(x.Shape()[1], n, func(i, j int) float64 {
		if i == from+j {
			return 1
		}
		return 0
	}))
}

// rotate turns queries or keys [t,dim] by their position in their row.
func (g *graph) rotate(x node, seg kernels.Segments, theta float64) node {
	t, dim := x.Shape()[0], x.Shape()[1]
	half := dim / 2
	angle := func(i, j int) float64 {
		row := 0
		for int(seg[row+1]) <= i {
			row++
		}
		return float64(i-int(seg[row])) * math.Pow(theta, -2*float64(j%half)/float64(dim))
	}
	turned := g.constant(dim, dim, func(i, j int) float64 {
		switch {
		case j < half && i == j+half:
			return -1
		case j >= half && i == j-half:
			return 1
		}
		return 0
	})
	cos := g.constant(t, dim, func(i, j int) float64 { return math.Cos(angle(i, j)) })
	sin := g.constant(t, dim, func(i, j int) float64 { return math.Sin(angle(i, j)) })
	return g.add(g.mul(x, cos), g.mul(g.dot(x, turned), sin))
}

// attend is multi-head attention over packed rows.
func (g *graph) attend(qkv node, seg kernels.Segments, a kernels.Attention, theta float64) node {
	t, d := qkv.Shape()[0], a.Heads*a.Dim
	mask := g.constant(t, t, func(i, j int) float64 {
		for r := range seg.Rows() {
			in := func(k int) bool { return int(seg[r]) <= k && k < int(seg[r+1]) }
			if in(i) && in(j) && (a.Window < 0 || max(i-j, j-i) <= a.Window) {
				return 1
			}
		}
		return 0
	})
	ones := g.constant(t, t, func(i, j int) float64 { return 1 })
	var out node
	for h := range a.Heads {
		q, k, v := g.pick(qkv, h*a.Dim, a.Dim), g.pick(qkv, d+h*a.Dim, a.Dim), g.pick(qkv, 2*d+h*a.Dim, a.Dim)
		if theta != 0 {
			q, k = g.rotate(q, seg, theta), g.rotate(k, seg, theta)
		}
		s := g.dot(q, g.tr(k))
		e := g.mul(g.must(gorgonia.Exp(g.mul(s, g.same(s, 1/math.Sqrt(float64(a.Dim)))))), mask)
		p := g.mul(e, g.must(gorgonia.Inverse(g.dot(e, ones))))
		o := g.dot(g.dot(p, v), g.constant(a.Dim, d, func(i, j int) float64 {
			if j == h*a.Dim+i {
				return 1
			}
			return 0
		}))
		if out == nil {
			out = o
		} else {
			out = g.add(out, o)
		}
	}
	return out
}

func (g *graph) block(x node, b *block, seg kernels.Segments) node {
	feed := func(x node) node {
		u := g.linear(x, "up", &b.up)
		if b.gated {
			h := b.down.in
			return g.linear(g.mul(g.gelu(g.pick(u, 0, h)), g.pick(u, h, h)), "down", &b.down)
		}
		return g.linear(g.gelu(u), "down", &b.down)
	}
	attend := func(x node) node {
		return g.linear(g.attend(g.linear(x, "qkv", &b.qkv), seg, b.attention, b.theta), "out", &b.out)
	}
	if b.post {
		mid := g.norm(g.add(x, attend(x)), "norm1", b.norm1)
		return g.norm(g.add(mid, feed(mid)), "norm2", b.norm2)
	}
	n := x
	if b.norm1 != nil {
		n = g.norm(x, "norm1", b.norm1)
	}
	mid := g.add(x, attend(n))
	return g.add(mid, feed(g.norm(mid, "norm2", b.norm2)))
}

// solve runs the formula y and the backward of Σ y*dy, and returns y and the
// gradient of each leaf.
func (g *graph) solve(y node, dy []float32) ([]float64, map[string][]float64) {
	g.t.Helper()
	wide := make([]float64, len(dy))
	for i := range dy {
		wide[i] = float64(dy[i])
	}
	loss := g.must(gorgonia.Sum(g.mul(y, g.matrix("dy", y.Shape()[0], y.Shape()[1], wide))))
	var leaves gorgonia.Nodes
	for _, n := range g.leaves {
		leaves = append(leaves, n)
	}
	if _, err := gorgonia.Grad(loss, leaves...); err != nil {
		g.t.Fatal(err)
	}
	var out gorgonia.Value
	gorgonia.Read(y, &out)
	vm := gorgonia.NewTapeMachine(g.g, gorgonia.BindDualValues(leaves...))
	defer vm.Close()
	if err := vm.RunAll(); err != nil {
		g.t.Fatal(err)
	}
	grads := make(map[string][]float64)
	for name, n := range g.leaves {
		v, err := n.Grad()
		if err != nil {
			g.t.Fatal(err)
		}
		grads[name] = v.Data().([]float64)
	}
	return out.Data().([]float64), grads
}

// agree compares vectors by the norm of their difference.
func agree(t *testing.T, what string, got []float32, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	off, norm := 0.0, 1e-8
	for i := range got {
		off += math.Pow(float64(got[i])-want[i], 2)
		norm += math.Pow(want[i], 2)
	}
	if e := math.Sqrt(off / norm); !(e < 2e-6) {
		t.Errorf("%s is off by %.2g of its norm %.2g", what, e, math.Sqrt(norm))
	}
}

// random fills memory with deviates that keep GELU's argument in the series'
// range.
func random(rng *rand.Rand, v []float32, scale, center float64) {
	for i := range v {
		v[i] = float32(center + scale*rng.NormFloat64())
	}
}

// TestOracleBlocks checks every kind of transformer layer.
func TestOracleBlocks(t *testing.T) {
	const d, h = 8, 12
	seg := kernels.Segments{0, 5, 6, 13}
	for _, c := range []struct {
		name string
		make func(ps *params) *block
	}{
		{"modernbert local", func(ps *params) *block { return modern(ps, 1) }},
		{"modernbert first, global", func(ps *params) *block { return modern(ps, 0) }},
		{"bert", func(ps *params) *block {
			return newBERT(hfConfig{ModelType: "bert", Width: d, Inner: h, Layers: 1, Heads: 2, Vocab: 1, Positions: 1, Types: 1, LayerEps: 1e-12}, ps).blocks[0]
		}},
		{"head", func(ps *params) *block { return newHead(d, 1, 1, ps).blocks[0] }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev, rng := cpu.New(1), rand.New(rand.NewPCG(3, 4))
			var b *block
			ps := learning(dev, rng, func(ps *params) { b = c.make(ps) })
			a := &arena{dev: dev}
			n := seg.Tokens()
			s := b.room(a, n)
			random(rng, s.x.Host, 1, 0)
			y, dx := a.take(n*d), a.take(n*d)
			random(rng, dx.Host, 1, 0)

			g := newGraph(t)
			want, grads := g.solve(g.block(g.leaf("x", n, d, s.x.Host), b, seg), dx.Host)
			b.forward(dev, y, s, seg)
			agree(t, "y", y.Host, want)
			b.backward(a, dx, s, seg)
			ps.end(dev)
			agree(t, "dx", dx.Host, grads["x"])
			for name, x := range map[string]*tensor{
				"qkv.w": b.qkv.w, "qkv.b": b.qkv.b, "out.w": b.out.w, "out.b": b.out.b,
				"up.w": b.up.w, "up.b": b.up.b, "down.w": b.down.w, "down.b": b.down.b,
				"norm2.gamma": b.norm2.gamma, "norm2.beta": b.norm2.beta,
			} {
				if x != nil {
					agree(t, name, x.grad.Sum.Host, grads[name])
				}
			}
			if b.norm1 != nil {
				agree(t, "norm1.gamma", b.norm1.gamma.grad.Sum.Host, grads["norm1.gamma"])
			}
		})
	}
}

// learning declares what make makes, with memory, values and gradients.
func learning(dev kernels.Device, rng *rand.Rand, make func(ps *params)) *params {
	var ps params
	make(&ps)
	ps.alloc(dev)
	ps.train(dev, func(string) bool { return false })
	for _, p := range ps.list {
		switch {
		case p.Decay || strings.HasSuffix(p.Name, "bias"):
			random(rng, p.W.Host, .3, 0)
		default:
			random(rng, p.W.Host, .2, 1)
		}
	}
	return &ps
}

// choose is the matrix that picks rows of a table by product.
func (g *graph) choose(ids []int32, n int) node {
	return g.constant(len(ids), n, func(i, j int) float64 {
		if int(ids[i]) == j {
			return 1
		}
		return 0
	})
}

// means is the matrix that averages the rows of each segment.
func (g *graph) means(seg kernels.Segments) node {
	return g.constant(seg.Rows(), seg.Tokens(), func(i, j int) float64 {
		if int(seg[i]) <= j && j < int(seg[i+1]) {
			return 1 / float64(seg[i+1]-seg[i])
		}
		return 0
	})
}

// TestOracleEncoders checks whole encoders of one layer: what stands before and
// after the layers, ids that come several times included.
func TestOracleEncoders(t *testing.T) {
	const d, vocab = 8, 6
	rows := [][]int32{{1, 3, 3, 5, 1}, {2}, {1, 4, 0, 4, 2, 3}}
	for _, c := range []hfConfig{
		{ModelType: "bert", Width: d, Inner: 12, Layers: 1, Heads: 2, Vocab: vocab, Positions: 9, Types: 2, LayerEps: 1e-12},
		{ModelType: "modernbert", Width: d, Inner: 12, Layers: 1, Heads: 2, Vocab: vocab, NormEps: 1e-5, Every: 3, Local: 4,
			GlobalTheta: 100, NormBias: true, AttentionBias: true, MLPBias: true},
	} {
		t.Run(c.ModelType, func(t *testing.T) {
			dev, rng := cpu.New(1), rand.New(rand.NewPCG(5, 6))
			var e *encoder
			ps := learning(dev, rng, func(ps *params) { e = newEncoder(c, ps) })
			a, p := &arena{dev: dev}, newPack(rows)
			dx := a.take(len(p.ids) * d)
			random(rng, dx.Host, 1, 0)

			g := newGraph(t)
			x := g.dot(g.choose(p.ids, vocab), g.leaf("tokens", vocab, d, e.tokens.w.Host))
			if e.positions != nil {
				x = g.add(x, g.dot(g.choose(p.places, c.Positions), g.leaf("positions", c.Positions, d, e.positions.w.Host)))
				x = g.add(x, g.dot(g.choose(make([]int32, len(p.ids)), c.Types), g.leaf("types", c.Types, d, e.types.w.Host)))
			}
			y := g.block(g.norm(x, "norm", e.norm), e.blocks[0], p.seg)
			if e.final != nil {
				y = g.norm(y, "final", e.final)
			}
			want, grads := g.solve(y, dx.Host)
			e.forward(a, p, true)
			agree(t, "states", p.out.Host, want)
			e.backward(a, p, dx)
			ps.end(dev)
			for name, x := range map[string]*tensor{"tokens": e.tokens, "positions": e.positions, "types": e.types,
				"norm.gamma": e.norm.gamma, "norm.beta": e.norm.beta, "qkv.w": e.blocks[0].qkv.w, "up.b": e.blocks[0].up.b} {
				if x != nil {
					agree(t, name, x.grad.Sum.Host, grads[name])
				}
			}
			if e.final != nil {
				agree(t, "final.gamma", e.final.gamma.grad.Sum.Host, grads["final.gamma"])
			}
		})
	}
}

// TestOracleHead checks the head: what it makes of contexts and options, and the
// gradients of both.
func TestOracleHead(t *testing.T) {
	const d = 8
	dev, rng := cpu.New(1), rand.New(rand.NewPCG(7, 8))
	var h *head
	ps := learning(dev, rng, func(ps *params) { h = newHead(d, 4, 1, ps) })
	p := newPack([][]int32{make([]int32, 5), make([]int32, 3)})
	inputs := []Input{
		{Type: decision.Score, Options: []int{0, 1, 2}, Order: []int{2, 0, 1}},
		{Type: decision.Choice, Options: []int{1, 2, 3}, Order: []int{0, 1, 2}},
	}
	s := newSequence(inputs, p, [][]int{{0, 1, 2}, {0, 2}}, func(text int) int32 { return int32(text) })
	a, tokens, n := &arena{dev: dev}, len(p.ids), len(s.optionAt)
	states, options, means := a.take(tokens*d), a.take(4*d), a.take(2*d)
	random(rng, states.Host, 1, 0)
	random(rng, options.Host, 1, 0)
	dev.SegmentMean(means, states, p.seg, d)
	dlogits := a.take(n)
	random(rng, dlogits.Host, 1, 0)

	g := newGraph(t)
	gs, os := g.leaf("states", tokens, d, states.Host), g.leaf("options", 4, d, options.Host)
	c, o := g.dot(g.choose(s.rows, 2), g.dot(g.means(p.seg), gs)), g.dot(g.choose(s.options, 4), os)
	features := func(x node, at int) node { // x in columns [at*d, at*d+d)
		return g.dot(x, g.constant(d, 4*d, func(i, j int) float64 {
			if j == at*d+i {
				return 1
			}
			return 0
		}))
	}
	probe := g.add(g.add(features(c, 0), features(o, 1)),
		g.add(features(g.mul(c, o), 2), features(g.must(gorgonia.Abs(g.sub(c, o))), 3)))
	sin := sinusoids(3, d)
	vectors := g.add(g.linear(probe, "probe", &h.probe), g.spread(g.leaf("option", 1, d, h.option.w.Host), n))
	vectors = g.add(vectors, g.constant(n, d, func(i, j int) float64 { return float64(sin[int(s.levels[i])*d+j]) }))
	typed := g.add(gs, g.dot(g.choose(s.types, 3), g.leaf("type", 3, d, h.types.w.Host)))
	x := g.add(g.dot(g.tr(g.choose(s.contextAt, s.seg.Tokens())), typed), g.dot(g.tr(g.choose(s.optionAt, s.seg.Tokens())), vectors))
	x = g.dot(g.choose(s.optionAt, s.seg.Tokens()), g.block(x, h.blocks[0], s.seg))
	y := g.linear(g.gelu(g.linear(g.norm(x, "score.norm", h.norm), "score.dense", &h.dense)), "score.out", &h.out)
	want, grads := g.solve(y, dlogits.Host)

	logits := h.forward(a, s, states, means, options, true)
	agree(t, "logits", logits.Host, want)
	dstates, dmeans, doptions := a.take(tokens*d), a.zeros(2*d), a.zeros(4*d)
	h.backward(a, s, dlogits, dstates, dmeans, doptions, means, options)
	dev.SegmentMeanBack(dstates, dmeans, p.seg, d)
	ps.end(dev)
	agree(t, "states", dstates.Host, grads["states"])
	agree(t, "options", doptions.Host, grads["options"])
	for name, x := range map[string]*tensor{"probe.w": h.probe.w, "probe.b": h.probe.b, "type": h.types, "option": h.option,
		"score.norm.gamma": h.norm.gamma, "score.norm.beta": h.norm.beta, "score.dense.w": h.dense.w, "score.dense.b": h.dense.b,
		"score.out.w": h.out.w, "score.out.b": h.out.b, "qkv.w": h.blocks[0].qkv.w, "down.b": h.blocks[0].down.b} {
		agree(t, name, x.grad.Sum.Host, grads[name])
	}
}

// modern is one of ModernBERT's layers: 0 is global and has no norm, 1 is local.
func modern(ps *params, layer int) *block {
	return newModern(hfConfig{ModelType: "modernbert", Width: 8, Inner: 12, Layers: 2, Heads: 2, Vocab: 1, NormEps: 1e-5,
		Every: 3, Local: 4, GlobalTheta: 100, LocalTheta: new(10.0)}, ps).blocks[layer]
}
