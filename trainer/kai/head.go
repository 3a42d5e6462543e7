package kai

import (
	"fmt"
	"math"
	"slices"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/trainer/decision"
)

// head ranks options by retrieval and gives those that enter one logit each.
type head struct {
	d, r       int
	query, key linear  // d to r, of first states
	probe      linear  // 4d to d
	types      *tensor // [3,d] added to the context's states
	option     *tensor // [1,d] added to the options
	blocks     []*block
	norm       *norm
	dense, out linear
}

// kinds are the rows of head.type.weight.
var kinds = map[decision.Type]int32{decision.Choice: 0, decision.Score: 1, decision.Noul: 2}

// newHead declares the head's parameters.
func newHead(d, r, layers int, ps *params) *head {
	ps.group = "head"
	dense := func(name string, out, in int) linear {
		return linear{w: ps.matrix(name+".weight", out, in), b: ps.vector(name+".bias", out), in: in, out: out}
	}
	layerNorm := func(name string) *norm {
		return &norm{gamma: ps.vector(name+".weight", d), beta: ps.vector(name+".bias", d), d: d, eps: 1e-5}
	}
	h := &head{d: d, r: r,
		query:  dense("head.retrieval.query", r, d),
		key:    dense("head.retrieval.key", r, d),
		probe:  dense("head.probe", d, 4*d),
		types:  ps.lookup("head.type.weight", 3, d),
		option: ps.matrix("head.option.weight", 1, d),
	}
	heads := headHeads(d)
	for l := range layers {
		name := fmt.Sprintf("head.layers.%d.", l)
		h.blocks = append(h.blocks, &block{
			attention: kernels.Attention{Heads: heads, Dim: d / heads, Window: -1},
			norm1:     layerNorm(name + "norm1"),
			qkv:       dense(name+"attn.qkv", 3*d, d),
			out:       dense(name+"attn.out", d, d),
			norm2:     layerNorm(name + "norm2"),
			up:        dense(name+"mlp.up", 4*d, d),
			down:      dense(name+"mlp.down", d, 4*d),
		})
	}
	h.norm = layerNorm("head.score.norm")
	h.dense = dense("head.score.dense", d, d)
	h.out = dense("head.score.out", 1, d)
	return h
}

// headHeads is max(1, d/64), lowered until it divides d.
func headHeads(d int) int {
	n := max(1, d/64)
	for d%n != 0 {
		n--
	}
	return n
}

// enter chooses the options that the head sees: the k best scores, ties to the
// smaller text, and with gold every option that the target gives any weight.
// Options and their scores come in text order, and so do the indices returned.
func enter(scores []float64, k int, gold []float64) []int {
	all := make([]int, len(scores))
	for i := range all {
		all[i] = i
	}
	if len(all) <= k {
		return all
	}
	is := func(i int) bool { return gold != nil && gold[i] > 0 }
	slices.SortStableFunc(all, func(a, b int) int {
		switch {
		case is(a) != is(b):
			if is(a) {
				return -1
			}
			return 1
		case scores[a] > scores[b]:
			return -1
		case scores[a] < scores[b]:
			return 1
		}
		return 0
	})
	for k < len(all) && is(all[k]) {
		k++ // more gold options than k
	}
	all = all[:k]
	slices.Sort(all)
	return all
}

// sequence is what the head reads: for each row its context's states and then
// one vector for each option that entered.
type sequence struct {
	seg       kernels.Segments
	contextAt []int32 // [t] each context token's place in the sequence
	optionAt  []int32 // [N] each option's
	types     []int32 // [t] each context token's row of head.type.weight
	levels    []int32 // [N] 0, or 1 + the level of a score's option
	rows      []int32 // [N] each option's row
	options   []int32 // [N] each option's row of the option vectors

	// What backward needs.
	features, h               kernels.Mem // [N,4d], [N,d] at option places after the blocks
	saved                     []*saved
	normed, stats, act, dense kernels.Mem // [N,d], [N,2], [N,d], [N,d]
}

// newSequence lays out rows whose contexts stand in p. entered[i] are the
// options of inputs[i] that entered, and at gives an option's row of vectors.
func newSequence(inputs []Input, p *pack, entered [][]int, at func(text int) int32) *sequence {
	s := &sequence{seg: kernels.Segments{0}}
	next := int32(0)
	for i := range inputs {
		in := &inputs[i]
		for range p.seg[i+1] - p.seg[i] {
			s.contextAt = append(s.contextAt, next)
			s.types = append(s.types, kinds[in.Type])
			next++
		}
		for _, o := range entered[i] {
			level := int32(0)
			if in.Type == decision.Score {
				level = 1 + int32(in.Order[o])
			}
			s.optionAt = append(s.optionAt, next)
			s.rows = append(s.rows, int32(i))
			s.options = append(s.options, at(in.Options[o]))
			s.levels = append(s.levels, level)
			next++
		}
		s.seg = append(s.seg, next)
	}
	return s
}

// forward returns the logits [N] of the options that entered, from the contexts'
// states [t,d] and means [R,d] and the option vectors [n,d].
func (h *head) forward(a *arena, s *sequence, states, contexts, options kernels.Mem, keep bool) kernels.Mem {
	dev, d, n, t := a.dev, h.d, len(s.optionAt), s.seg.Tokens()
	logits := a.take(n)
	s.features = a.take(4 * n * d)
	dev.Probe(s.features, contexts, options, s.rows, s.options, d)
	vectors := a.take(n * d)
	h.probe.forward(dev, vectors, s.features, n)
	dev.Gather(vectors, h.option.mem(), make([]int32, n), d, true)
	dev.Gather(vectors, a.write(sinusoids(int(slices.Max(s.levels)), d)), s.levels, d, true)
	typed := a.take(states.Len)
	dev.Copy(typed, states)
	dev.Gather(typed, h.types.mem(), s.types, d, true)

	s.saved = make([]*saved, len(h.blocks))
	for l, b := range h.blocks {
		if keep || l < 2 {
			s.saved[l] = b.room(a, t)
		} else {
			s.saved[l] = s.saved[l-2]
		}
	}
	last := a.take(t * d)
	input := func(l int) kernels.Mem {
		if l < len(h.blocks) {
			return s.saved[l].x
		}
		return last
	}
	dev.Scatter(input(0), typed, s.contextAt, d, false)
	dev.Scatter(input(0), vectors, s.optionAt, d, false)
	for l, b := range h.blocks {
		b.forward(dev, input(l+1), s.saved[l], s.seg)
	}
	s.h, s.normed, s.stats = a.take(n*d), a.take(n*d), a.take(2*n)
	s.dense, s.act = a.take(n*d), a.take(n*d)
	dev.Gather(s.h, last, s.optionAt, d, false)
	h.norm.forward(dev, s.normed, s.stats, s.h, n)
	h.dense.forward(dev, s.dense, s.normed, n)
	dev.GELU(s.act, s.dense)
	h.out.forward(dev, logits, s.act, n)
	return logits
}

// backward sums the gradients of the head's parameters from dlogits [N], writes
// the gradient of the contexts' states to dstates [t,d], and adds those of their
// means and of the option vectors to dcontexts and doptions.
func (h *head) backward(a *arena, s *sequence, dlogits, dstates, dcontexts, doptions, contexts, options kernels.Mem) {
	dev, d, n, t := a.dev, h.d, len(s.optionAt), s.seg.Tokens()
	defer a.release(a.at)
	dh := a.take(n * d)
	h.out.weights(dev, dlogits, s.act, n)
	h.out.input(dev, dh, dlogits, n, false)
	dev.GELUBack(dh, dh, s.dense)
	h.dense.weights(dev, dh, s.normed, n)
	dnormed := a.take(n * d)
	h.dense.input(dev, dnormed, dh, n, false)
	h.norm.backward(dev, dh, dnormed, s.h, s.stats, n, false)

	dx := a.zeros(t * d)
	dev.Scatter(dx, dh, s.optionAt, d, false)
	for l := len(h.blocks) - 1; l >= 0; l-- {
		h.blocks[l].backward(a, dx, s.saved[l], s.seg)
	}
	dev.Gather(dstates, dx, s.contextAt, d, false)
	if h.types.learns() {
		dev.Scatter(h.types.grad.Sum, dstates, s.types, d, true)
	}
	dvectors := dnormed
	dev.Gather(dvectors, dx, s.optionAt, d, false)
	if h.option.learns() {
		dev.ColumnSum(h.option.grad, dvectors, n, d)
	}
	h.probe.weights(dev, dvectors, s.features, n)
	dfeatures := a.take(4 * n * d)
	h.probe.input(dev, dfeatures, dvectors, n, false)
	dev.ProbeBack(dcontexts, doptions, dfeatures, contexts, options, s.rows, s.options, d)
}

// sinusoids is the table [levels+1, d] that is added to options: zeros, and for
// level k the vector sin(k·w_i), cos(k·w_i), w_i = 10000^(-2i/d) (Vaswani et
// al., 2017).
func sinusoids(levels, d int) []float32 {
	table := make([]float32, (levels+1)*d)
	for k := range levels {
		row := table[(k+1)*d:][:d]
		for i := range row {
			angle := float64(k) * math.Pow(10000, -float64(i&^1)/float64(d))
			if i%2 == 0 {
				row[i] = float32(math.Sin(angle))
			} else {
				row[i] = float32(math.Cos(angle))
			}
		}
	}
	return table
}
