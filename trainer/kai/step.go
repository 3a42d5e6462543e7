package kai

import (
	"slices"
	"strings"

	"github.com/hanzoai/link/kernels"
)

// Loss is the loss of one step, in nats per unit of question weight. Total is
// what the gradients are of.
type Loss struct {
	Total        float64 // CrossEntropy + Ranked + .1 Retrieval
	CrossEntropy float64 // against the rows' targets
	Ranked       float64 // the ranked probability score of score questions
	Retrieval    float64 // listwise cross-entropy over all options

	Weight    float64 // of all questions
	Questions int
	Context   int // tokens of contexts
	Options   int // tokens of distinct option texts
	Entered   int // options that entered the head
}

// Step leaves in every learning parameter's Grad the gradient of the mean loss,
// by question weight, over all inputs of all micro-batches. texts is the
// Encoder's. Every input has a target and the weights' sum is positive. The
// result does not depend on where the micro-batches are cut. A loss that is not
// finite is returned as it is; its gradients are worthless.
func (m *Model) Step(texts *Texts, micro [][]Input) Loss {
	s := m.begin(texts, micro)
	for _, inputs := range micro {
		if len(inputs) > 0 {
			s.add(inputs)
		}
	}
	return s.end()
}

// step is one step under way: the distinct option texts are encoded first, then
// each micro-batch of contexts goes forward and back, then the options go back.
type step struct {
	m     *Model
	loss  Loss
	texts []int         // the step's distinct texts, in text order
	at    map[int]int32 // a text's index in it
	packs []*pack       // of those texts, each within the budget

	// Vectors of the n texts and the sums of their gradients.
	means, firsts, keys kernels.Mem // [n,d], [n,d], [n,r]
	dmeans              kernels.Mem
	dkeys               *kernels.Grad // a sum over rows: by the block rule
}

func (m *Model) begin(texts *Texts, micro [][]Input) *step {
	s := &step{m: m, at: make(map[int]int32)}
	for _, inputs := range micro {
		for i := range inputs {
			in := &inputs[i]
			if len(in.Target) != len(in.Options) {
				panic("kai: Step with an input that has no target")
			}
			s.loss.Weight += in.Weight
			s.loss.Questions++
			s.loss.Context += len(in.Context)
			s.texts = append(s.texts, in.Options...)
		}
	}
	if !(s.loss.Weight > 0) {
		panic("kai: Step without a question of positive weight")
	}
	s.texts = texts.sorted(s.texts)
	for i, text := range s.texts {
		s.at[text] = int32(i)
	}

	a, dev, d, r, n := &m.arena, m.dev, m.encoder.d, m.head.r, len(s.texts)
	a.release(mark{})
	m.SHA256, m.version = "", m.version+1 // the caller is about to change the weights
	m.params.begin(dev)
	s.means, s.firsts, s.keys = a.take(n*d), a.take(n*d), a.take(n*r)
	s.dmeans, s.dkeys = a.zeros(n*d), &kernels.Grad{Sum: a.zeros(n * r), Open: a.zeros(n * r)}
	from := 0
	for _, rows := range cut(texts.rows(s.texts), m.Budget.Options) {
		s.loss.Options += tokens(rows)
		s.packs = append(s.packs, newPack(rows))
	}
	for _, p := range s.packs {
		// One pack is kept for the way back; of several, each is computed again
		// there, to the same bits.
		start := a.at
		m.encoder.forward(a, p, len(s.packs) == 1 && m.encoder.learns())
		to := from + p.seg.Rows()
		dev.SegmentMean(s.means.Slice(from*d, to*d), p.out, p.seg, d)
		dev.Gather(s.firsts.Slice(from*d, to*d), p.out, p.firsts(), d, false)
		if from = to; len(s.packs) > 1 {
			a.release(start)
		}
	}
	m.head.key.forward(dev, s.keys, s.firsts, n)
	return s
}

// add is one micro-batch, forward and back.
func (s *step) add(inputs []Input) {
	m := s.m
	a, dev, d, r, h, rows, n := &m.arena, m.dev, m.encoder.d, m.head.r, m.head, len(inputs), len(s.texts)
	defer a.release(a.at)
	p := newPack(contexts(inputs))
	m.encoder.forward(a, p, m.encoder.learns())
	means, firsts, queries := a.take(rows*d), a.take(rows*d), a.take(rows*r)
	dev.SegmentMean(means, p.out, p.seg, d)
	dev.Gather(firsts, p.out, p.firsts(), d, false)
	h.query.forward(dev, queries, firsts, rows)

	// Retrieval: every row against every text of the step; a row's own options
	// are picked out on the host, where the losses are.
	products := a.take(rows * n)
	dev.Linear(products, queries, s.keys, kernels.Mem{}, rows, r, n)
	scores := a.read(products)
	dscores := make([]float32, len(scores))
	entered := make([][]int, rows)
	root := rootOf(r)
	for i := range inputs {
		in := &inputs[i]
		z := make([]float64, len(in.Options))
		for j, text := range in.Options {
			z[j] = float64(scores[i*n+int(s.at[text])]) / root
		}
		entered[i] = enter(z, m.Config.TopK, in.Target)
		dz := make([]float64, len(z))
		loss := crossEntropy(z, in.Target, retrievalWeight*in.Weight/s.loss.Weight, dz)
		s.loss.Retrieval += float64(loss * in.Weight)
		for j, text := range in.Options {
			dscores[i*n+int(s.at[text])] = float32(dz[j] / root)
		}
	}

	seq := newSequence(inputs, p, entered, func(text int) int32 { return s.at[text] })
	s.loss.Entered += len(seq.optionAt)
	logits := h.forward(a, seq, p.out, means, s.means, true)
	dlogits := a.write(s.lossOf(inputs, entered, a.read(logits)))

	dstates, dmeans, dfirsts, dqueries := a.take(p.out.Len), a.zeros(rows*d), a.take(rows*d), a.take(rows*r)
	h.backward(a, seq, dlogits, dstates, dmeans, s.dmeans, means, s.means)
	dev.SegmentMeanBack(dstates, dmeans, p.seg, d)
	dproducts := a.write(dscores)
	dev.LinearInput(dqueries, dproducts, s.keys, rows, r, n, false)
	dev.LinearWeight(s.dkeys, dproducts, queries, rows, r, n)
	h.query.weights(dev, dqueries, firsts, rows)
	h.query.input(dev, dfirsts, dqueries, rows, false)
	dev.Scatter(dstates, dfirsts, p.firsts(), d, true)
	m.encoder.backward(a, p, dstates)
}

// lossOf adds the head's losses and returns their gradient by logit.
func (s *step) lossOf(inputs []Input, entered [][]int, logits []float32) []float32 {
	dlogits := make([]float32, len(logits))
	at := 0
	for i := range inputs {
		in := &inputs[i]
		z := spread(len(in.Options), entered[i], logits[at:])
		dz := make([]float64, len(z))
		entropy, rps := headLoss(in, z, in.Weight/s.loss.Weight, dz)
		s.loss.CrossEntropy += float64(entropy * in.Weight)
		s.loss.Ranked += float64(rps * in.Weight)
		for j, o := range entered[i] {
			dlogits[at+j] = float32(dz[o])
		}
		at += len(entered[i])
	}
	return dlogits
}

// end sends the gradients of the option vectors back through the texts and
// closes every gradient.
func (s *step) end() Loss {
	m := s.m
	a, dev, d, n := &m.arena, m.dev, m.encoder.d, len(s.texts)
	dev.Close(s.dkeys)
	dfirsts := a.take(n * d)
	m.head.key.weights(dev, s.dkeys.Sum, s.firsts, n)
	m.head.key.input(dev, dfirsts, s.dkeys.Sum, n, false)
	from := 0
	for _, p := range s.packs {
		if !m.encoder.learns() {
			break
		}
		start := a.at
		if len(s.packs) > 1 {
			m.encoder.forward(a, p, true)
		}
		to := from + p.seg.Rows()
		dstates := a.zeros(p.out.Len)
		dev.SegmentMeanBack(dstates, s.dmeans.Slice(from*d, to*d), p.seg, d)
		dev.Scatter(dstates, dfirsts.Slice(from*d, to*d), p.firsts(), d, true)
		m.encoder.backward(a, p, dstates)
		a.release(start)
		from = to
	}
	m.params.end(dev)

	l := s.loss
	l.CrossEntropy /= l.Weight
	l.Ranked /= l.Weight
	l.Retrieval /= l.Weight
	l.Total = l.CrossEntropy + l.Ranked + float64(retrievalWeight*l.Retrieval)
	return l
}

// spread puts the logits of the options that entered in the places of all n,
// -Inf elsewhere.
func spread(n int, entered []int, logits []float32) []float64 {
	z := make([]float64, n)
	for i := range z {
		z[i] = leftOut
	}
	for j, o := range entered {
		z[o] = float64(logits[j])
	}
	return z
}

// cut divides rows into runs of at most budget tokens, a longer row alone.
func cut(rows [][]int32, budget int) [][][]int32 {
	var runs [][][]int32
	from, used := 0, 0
	for i, row := range rows {
		if i > from && used+len(row) > budget {
			runs = append(runs, rows[from:i])
			from, used = i, 0
		}
		used += len(row)
	}
	if from < len(rows) {
		runs = append(runs, rows[from:])
	}
	return runs
}

func tokens(rows [][]int32) int {
	n := 0
	for _, r := range rows {
		n += len(r)
	}
	return n
}

func contexts(inputs []Input) [][]int32 {
	rows := make([][]int32, len(inputs))
	for i := range inputs {
		rows[i] = inputs[i].Context
	}
	return rows
}

// sorted returns the distinct texts among list, by text.
func (t *Texts) sorted(list []int) []int {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b int) int { return strings.Compare(t.text[a], t.text[b]) })
	return slices.Compact(list)
}

// rows are the tokens of texts.
func (t *Texts) rows(list []int) [][]int32 {
	rows := make([][]int32, len(list))
	for i, text := range list {
		rows[i] = t.ids[text]
	}
	return rows
}
