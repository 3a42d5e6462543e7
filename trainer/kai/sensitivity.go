package kai

import (
	"math"
	"slices"
	"strings"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/trainer/decision"
)

// Linear is one linear layer y = x·Wᵀ + b of the encoder or the head.
type Linear struct {
	// Name is the weight's without ".weight". BERT's query, key and value are one
	// layer, named by what their names share and "qkv".
	Name string
	// Params are W [Out, In], or blocks of its rows from above: BERT's query, key
	// and value.
	Params  []*Param
	In, Out int
}

// Linears are the linear layers of the encoder and the head, by name.
func (m *Model) Linears() []Linear {
	list, _ := m.linears()
	return list
}

// linears also returns each layer's weight.
func (m *Model) linears() ([]Linear, []*tensor) {
	e, h := m.encoder, m.head
	layers := []*linear{&h.query, &h.key, &h.probe, &h.dense, &h.out}
	for _, b := range slices.Concat(e.blocks, h.blocks) {
		layers = append(layers, &b.qkv, &b.out, &b.up, &b.down)
	}
	list, weights := make([]Linear, len(layers)), make(map[string]*tensor)
	for i, l := range layers {
		list[i] = Linear{In: l.in, Out: l.out}
		for _, p := range m.params.list {
			if p.in == l.w {
				list[i].Params = append(list[i].Params, p)
			}
		}
		slices.SortFunc(list[i].Params, func(a, b *Param) int { return a.offset - b.offset })
		list[i].Name = layerName(list[i].Params)
		weights[list[i].Name] = l.w
	}
	slices.SortFunc(list, func(a, b Linear) int { return strings.Compare(a.Name, b.Name) })
	tensors := make([]*tensor, len(list))
	for i := range list {
		tensors[i] = weights[list[i].Name]
	}
	return list, tensors
}

// layerName names a layer by its weights.
func layerName(params []*Param) string {
	name := params[0].Name
	if len(params) == 1 {
		return strings.TrimSuffix(name, ".weight")
	}
	for _, p := range params[1:] {
		for !strings.HasPrefix(p.Name, name) {
			name = name[:len(name)-1]
		}
	}
	return name + "qkv"
}

// Sensitivity says what in's answer depends on. It runs in, which has a target,
// forward and then back from the gold option's logit less the mean of the logits
// that entered the head, and hands tap what each linear's gradient is the product
// of: G = Σ dyᵀ·x [out,in] over all calls with its layer, the context's tokens
// and the options' alike. layer is an index into [Model.Linears]; t rows of dy
// [t,out] and x [t,in] stand on the model's device and hold until tap returns.
// The context and the options are one pack, whatever the budget: where there are
// many, see [Input.Hardest].
//
// It is the logit and not the loss, whose gradient vanishes where the model is
// right and certain. The two linears of retrieval have no part in a logit and are
// not tapped; where a single option entered, the gradients are 0. No parameter
// and no Grad changes.
func (m *Model) Sensitivity(texts *Texts, in Input, tap func(layer int, dy, x kernels.Mem, t int)) {
	grads := make([]*kernels.Grad, len(m.params.tensors))
	for i, t := range m.params.tensors {
		grads[i], t.grad = t.grad, nil
	}
	defer func() {
		for i, t := range m.params.tensors {
			t.grad, t.tap = grads[i], nil
		}
	}()
	_, weights := m.linears()
	for i, w := range weights {
		w.tap = func(dy, x kernels.Mem, t int) { tap(i, dy, x, t) }
	}

	a, dev, d, h, n := &m.arena, m.dev, m.encoder.d, m.head, len(in.Options)
	a.release(mark{})
	p := newPack(append([][]int32{in.Context}, texts.rows(in.Options)...))
	m.encoder.forward(a, p, true)
	states := p.out.Slice(0, len(in.Context)*d)
	means, firsts := a.take((1+n)*d), a.take((1+n)*d)
	dev.SegmentMean(means, p.out, p.seg, d)
	dev.Gather(firsts, p.out, p.firsts(), d, false)
	context, options := means.Slice(0, d), means.Slice(d, (1+n)*d)

	query, keys, products := a.take(h.r), a.take(n*h.r), a.take(n)
	h.query.forward(dev, query, firsts.Slice(0, d), 1)
	h.key.forward(dev, keys, firsts.Slice(d, (1+n)*d), n)
	dev.Linear(products, query, keys, kernels.Mem{}, 1, h.r, n)
	ranking := make([]float64, n) // in their order only
	for i, v := range a.read(products) {
		ranking[i] = float64(v)
	}
	entered := enter(ranking, m.Config.TopK, in.Target)
	row := make(map[int]int32) // of the option vectors
	for i, text := range in.Options {
		row[text] = int32(i)
	}
	seq := newSequence([]Input{in}, p, [][]int{entered}, func(text int) int32 { return row[text] })
	h.forward(a, seq, states, context, options, true)

	dlogits := make([]float32, len(entered))
	for i, o := range entered {
		share := 1 / float64(len(entered))
		dlogits[i] = float32(-share)
		if o == gold(in.Target) {
			dlogits[i] = float32(1 - share)
		}
	}
	dx, dmeans := a.zeros(p.out.Len), a.zeros((1+n)*d)
	h.backward(a, seq, a.write(dlogits), dx.Slice(0, states.Len), dmeans.Slice(0, d), dmeans.Slice(d, (1+n)*d), context, options)
	dev.SegmentMeanBack(dx, dmeans, p.seg, d)
	m.encoder.backward(a, p, dx)
}

// Hardest keeps of in's options the gold one of its target and the n-1 rivals
// with the largest scores, ties to the smaller text: what [Model.Sensitivity] of a
// question with many options needs, at the cost of one with n. The scores are by
// in.Options, a Prediction's Logits or a Teacher's P; only their order counts. A
// score question keeps all its levels, for they are marked by their number. The
// target is not scaled to sum to 1 again.
func (in Input) Hardest(scores []float64, n int) Input {
	if len(in.Options) <= n || in.Type == decision.Score {
		return in
	}
	g := gold(in.Target)
	best := make([]int, len(in.Options))
	for i := range best {
		best[i] = i
	}
	rank := func(i int) float64 {
		if i == g {
			return math.Inf(1)
		}
		return scores[i]
	}
	slices.SortStableFunc(best, func(a, b int) int {
		switch {
		case rank(a) > rank(b):
			return -1
		case rank(a) < rank(b):
			return 1
		}
		return 0
	})
	kept := best[:max(n, 1)]
	slices.Sort(kept)
	out := in
	out.Options, out.Order, out.Target, out.Teacher = nil, nil, nil, nil
	for _, i := range kept {
		place := 0 // among those kept, in the caller's order
		for _, j := range kept {
			if in.Order[j] < in.Order[i] {
				place++
			}
		}
		out.Options = append(out.Options, in.Options[i])
		out.Order = append(out.Order, place)
		out.Target = append(out.Target, in.Target[i])
	}
	return out
}
