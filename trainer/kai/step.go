package kai

import (
	"slices"
	"strings"

	"github.com/hanzoai/link/kernels"
)

// Loss is the loss of one step, in nats per unit of question weight. Total is
// what the gradients are of:
//
//	CrossEntropy + Ranked + .1 Retrieval + Σ Term.Weight·Terms
//	  + Objective.Distillation·(Distillation + .1 Ranking)
//
// The first three and HardMargin are means over the questions with a target,
// Distillation and Ranking over those with a Teacher, by the questions' weights.
type Loss struct {
	Total        float64
	CrossEntropy float64   // against the rows' targets
	Ranked       float64   // the ranked probability score of score questions
	Retrieval    float64   // listwise cross-entropy over all options
	Distillation float64   // KL(teacher‖model) of the head's probabilities, 0 at the teacher's weights
	Ranking      float64   // KL(teacher‖model) of retrieval's
	Terms        []float64 // the mean of each of the Objective's, without its weight; nil for none

	Weight    float64 // of the questions with a target
	Questions int     // all, those with a Teacher too
	Context   int     // tokens of contexts
	Options   int     // tokens of distinct option texts
	Entered   int     // options that entered the head
}

// Step leaves in every learning parameter's Grad the gradient of the loss of all
// inputs of all micro-batches; see [Loss] and [Objective]. texts is the
// Encoder's. Every input has a target or a Teacher, the weights of either kind
// sum to more than 0, and a Group stands in one micro-batch. The result does not
// depend on where the micro-batches are cut. A loss that is not finite is
// returned as it is; its gradients are worthless.
func (m *Model) Step(texts *Texts, micro [][]Input, o Objective) Loss {
	s := m.begin(texts, micro, o)
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
	m         *Model
	objective Objective
	pairs     []int   // of each term
	taught    float64 // the weight of the questions with a Teacher
	loss      Loss

	texts []int         // the step's distinct texts, in text order
	at    map[int]int32 // a text's index in it
	packs []*pack       // of those texts, each within the budget

	// Vectors of the n texts and the sums of their gradients.
	means, firsts, keys kernels.Mem // [n,d], [n,d], [n,r]
	dmeans              kernels.Mem
	dkeys               *kernels.Grad // a sum over rows: by the block rule
}

func (m *Model) begin(texts *Texts, micro [][]Input, o Objective) *step {
	s := &step{m: m, objective: o, pairs: o.count(micro), at: make(map[int]int32)}
	if len(o.Terms) > 0 {
		s.loss.Terms = make([]float64, len(o.Terms))
	}
	var list []int
	targets, teachers := 0, 0
	for _, inputs := range micro {
		for i := range inputs {
			in := &inputs[i]
			if in.Teacher != nil {
				if len(in.Teacher.P) != len(in.Options) || len(in.Teacher.Ranking) != len(in.Options) {
					panic("kai: Step with a teacher of other options")
				}
				s.taught += in.Weight
				teachers++
			} else {
				if len(in.Target) != len(in.Options) {
					panic("kai: Step with an input that has no target")
				}
				s.loss.Weight += in.Weight
				targets++
			}
			s.loss.Context += len(in.Context)
			list = append(list, in.Options...)
		}
	}
	s.loss.Questions = targets + teachers
	if s.loss.Questions == 0 || targets > 0 && !(s.loss.Weight > 0) || teachers > 0 && !(s.taught > 0) {
		panic("kai: Step without a question of positive weight")
	}
	s.texts = texts.sorted(list)
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
	a := &s.m.arena
	defer a.release(a.at)
	r := s.forward(inputs)
	s.back(r, s.lossOf(r), s.rankingLoss(r))
}

// reading is what the model made of one micro-batch.
type reading struct {
	inputs                 []Input
	p                      *pack       // the contexts
	means, firsts, queries kernels.Mem // [R,d], [R,d], [R,r] of them
	ranking                [][]float64 // by row and option: the scores of retrieval
	entered                [][]int     // by row: the options that entered the head
	seq                    *sequence
	logits                 []float32 // [N]
}

// forward reads a micro-batch and keeps what the way back needs.
func (s *step) forward(inputs []Input) *reading {
	m := s.m
	a, dev, d, r, h, rows, n := &m.arena, m.dev, m.encoder.d, m.head.r, m.head, len(inputs), len(s.texts)
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
	ranking, entered := make([][]float64, rows), make([][]int, rows)
	root := rootOf(r)
	for i := range inputs {
		in := &inputs[i]
		z := make([]float64, len(in.Options))
		for j, text := range in.Options {
			z[j] = float64(scores[i*n+int(s.at[text])]) / root
		}
		always := in.Target
		if in.Teacher != nil {
			always = in.Teacher.P // what had entered for the teacher
		}
		ranking[i], entered[i] = z, enter(z, m.Config.TopK, always)
	}
	seq := newSequence(inputs, p, entered, func(text int) int32 { return s.at[text] })
	s.loss.Entered += len(seq.optionAt)
	logits := h.forward(a, seq, p.out, means, s.means, true)
	return &reading{inputs, p, means, firsts, queries, ranking, entered, seq, a.read(logits)}
}

// rankingLoss adds retrieval's losses and returns their gradient [R,n] by row and
// text of the step.
func (s *step) rankingLoss(r *reading) []float32 {
	n := len(s.texts)
	dscores := make([]float32, len(r.inputs)*n)
	root := rootOf(s.m.head.r)
	for i := range r.inputs {
		in, z := &r.inputs[i], r.ranking[i]
		dz := make([]float64, len(z))
		if in.Teacher != nil {
			scale := float64(retrievalWeight*s.objective.Distillation) * in.Weight / s.taught
			s.loss.Ranking += float64(distill(z, in.Teacher.Ranking, scale, dz) * in.Weight)
		} else {
			loss := crossEntropy(z, in.Target, retrievalWeight*in.Weight/s.loss.Weight, dz)
			s.loss.Retrieval += float64(loss * in.Weight)
		}
		for j, text := range in.Options {
			dscores[i*n+int(s.at[text])] = float32(dz[j] / root)
		}
	}
	return dscores
}

// lossOf adds the head's losses and returns their gradient [N] by logit.
func (s *step) lossOf(r *reading) []float32 {
	rows := len(r.inputs)
	z, dz := make([][]float64, rows), make([][]float64, rows)
	at := 0
	for i := range r.inputs {
		in := &r.inputs[i]
		z[i] = spread(len(in.Options), r.entered[i], r.logits[at:])
		dz[i] = make([]float64, len(z[i]))
		at += len(r.entered[i])
		if in.Teacher != nil {
			scale := float64(s.objective.Distillation) * in.Weight / s.taught
			s.loss.Distillation += float64(distill(z[i], in.Teacher.P, scale, dz[i]) * in.Weight)
			continue
		}
		entropy, rps := headLoss(in, z[i], in.Weight/s.loss.Weight, dz[i])
		s.loss.CrossEntropy += float64(entropy * in.Weight)
		s.loss.Ranked += float64(rps * in.Weight)
	}
	for t, term := range s.objective.Terms {
		s.termLoss(t, term, r.inputs, z, dz)
	}
	dlogits := make([]float32, 0, len(r.logits))
	for i := range r.inputs {
		for _, o := range r.entered[i] {
			dlogits = append(dlogits, float32(dz[i][o]))
		}
	}
	return dlogits
}

// termLoss adds the sum of term t over a micro-batch to its loss, and its
// gradient to dz.
func (s *step) termLoss(t int, term Term, inputs []Input, z, dz [][]float64) {
	if term.Kind == HardMargin {
		for i := range inputs {
			if in := &inputs[i]; in.Teacher == nil {
				scale := term.Weight * in.Weight / s.loss.Weight
				s.loss.Terms[t] += float64(hardMargin(z[i], gold(in.Target), term.Margin, scale, dz[i]) * in.Weight)
			}
		}
		return
	}
	scale := term.Weight / float64(s.pairs[t])
	pairs(term.Kind, inputs, func(i, j int) {
		if term.Kind == Consistency {
			s.loss.Terms[t] += consistency(z[i], z[j], scale, dz[i], dz[j])
			return
		}
		a, b := gold(inputs[i].Target), gold(inputs[j].Target)
		s.loss.Terms[t] += pairwiseMargin(z[i], z[j], a, b, term.Margin, scale, dz[i], dz[j])
	})
}

// back sums the gradients of everything but the texts' way through the encoder,
// from those of the logits [N] and of retrieval's scores [R,n].
func (s *step) back(r *reading, logits, scores []float32) {
	m := s.m
	a, dev, d, h, rows, n := &m.arena, m.dev, m.encoder.d, m.head, len(r.inputs), len(s.texts)
	dlogits := a.write(logits)
	dstates, dmeans, dfirsts, dqueries := a.take(r.p.out.Len), a.zeros(rows*d), a.take(rows*d), a.take(rows*h.r)
	h.backward(a, r.seq, dlogits, dstates, dmeans, s.dmeans, r.means, s.means)
	dev.SegmentMeanBack(dstates, dmeans, r.p.seg, d)
	dproducts := a.write(scores)
	dev.LinearInput(dqueries, dproducts, s.keys, rows, h.r, n, false)
	dev.LinearWeight(s.dkeys, dproducts, r.queries, rows, h.r, n)
	h.query.weights(dev, dqueries, r.firsts, rows)
	h.query.input(dev, dfirsts, dqueries, rows, false)
	dev.Scatter(dstates, dfirsts, r.p.firsts(), d, true)
	m.encoder.backward(a, r.p, dstates)
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

	l, o := s.loss, s.objective
	if l.Weight > 0 {
		l.CrossEntropy /= l.Weight
		l.Ranked /= l.Weight
		l.Retrieval /= l.Weight
	}
	if s.taught > 0 {
		l.Distillation /= s.taught
		l.Ranking /= s.taught
	}
	l.Total = l.CrossEntropy + l.Ranked + float64(retrievalWeight*l.Retrieval)
	for t, term := range o.Terms {
		of := float64(s.pairs[t])
		if term.Kind == HardMargin {
			of = l.Weight
		}
		if of > 0 { // or else the sum is 0
			l.Terms[t] /= of
		}
		l.Total += float64(term.Weight * l.Terms[t])
	}
	l.Total += float64(o.Distillation * (l.Distillation + float64(retrievalWeight*l.Ranking)))
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
