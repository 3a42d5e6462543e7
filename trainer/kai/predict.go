package kai

import (
	"math"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/trainer/decision"
)

// leftOut is the logit of an option that did not enter the head.
var leftOut = math.Inf(-1)

// rootOf is what scores of width r are divided by.
func rootOf(r int) float64 { return math.Sqrt(float64(r)) }

// maxCached bounds how many option texts a Predictor remembers; beyond it the
// memory is emptied, which costs time and changes no bit.
const maxCached = 1 << 15

// Predictor answers questions with the weights as they are. It caches option
// vectors by text: after the weights change, make a new one.
type Predictor struct {
	m     *Model
	cache map[string]vector
}

// vector is what the head knows of an option text.
type vector struct {
	mean []float32 // [d]
	key  []float32 // [r]
}

// NewPredictor returns a predictor that has computed nothing yet.
func (m *Model) NewPredictor() *Predictor {
	return &Predictor{m: m, cache: make(map[string]vector)}
}

// Prediction is what the model gives one input.
type Prediction struct {
	Logits []float64 // by Input.Options, before any temperature; -Inf for an option that did not enter the head
	Bucket string    // the temperature's bucket; empty for a readout, which has its own
	T      float64   // the temperature
	P      []float64 // probabilities in the caller's order of options
}

// Predict answers inputs made by an Encoder with these texts, in order. An
// input whose Readout is set is answered by that readout.
func (p *Predictor) Predict(texts *Texts, inputs []Input) []Prediction {
	out := make([]Prediction, len(inputs))
	var base, read []int
	for i := range inputs {
		if inputs[i].Readout == "" {
			base = append(base, i)
		} else {
			read = append(read, i)
		}
	}
	pick := func(list []int) []Input {
		picked := make([]Input, len(list))
		for i, j := range list {
			picked[i] = inputs[j]
		}
		return picked
	}
	picked := pick(base)
	p.remember(texts, picked)
	from := 0
	for _, run := range p.m.Budget.Cut(picked, p.m.Config.TopK) {
		logits, _ := p.logits(texts, run)
		for i, z := range logits {
			in := &run[i]
			bucket := Bucket(in.Type, len(in.Options))
			out[base[from+i]] = prediction(in, z, p.m.temperature(bucket), bucket)
		}
		from += len(run)
	}
	picked = pick(read)
	for i, f := range p.Features(picked) {
		in := &picked[i]
		r := p.m.readouts[in.Readout]
		out[read[i]] = prediction(in, r.Logits([][]float32{f})[0], r.Temperature, "")
	}
	return out
}

// prediction applies a temperature and the caller's order.
func prediction(in *Input, z []float64, t float64, bucket string) Prediction {
	p := Prediction{Logits: z, Bucket: bucket, T: t, P: make([]float64, len(z))}
	sorted, _ := softmax(z, t)
	for i, v := range sorted {
		p.P[in.Order[i]] = v
	}
	return p
}

// Cut divides inputs, of which k options each enter the head at most, into runs
// within the budget. They share inputs' memory.
func (b Budget) Cut(inputs []Input, k int) (runs [][]Input) {
	from, context, head := 0, 0, 0
	for i := range inputs {
		c := len(inputs[i].Context)
		h := c + min(k, len(inputs[i].Options))
		if i > from && (context+c > b.Context || head+h > b.Head || i-from >= b.Rows) {
			runs = append(runs, inputs[from:i:i])
			from, context, head = i, 0, 0
		}
		context, head = context+c, head+h
	}
	if from < len(inputs) {
		runs = append(runs, inputs[from:])
	}
	return runs
}

// remember computes the vectors of the inputs' texts that the cache lacks.
func (p *Predictor) remember(texts *Texts, inputs []Input) {
	var list []int
	for i := range inputs {
		list = append(list, inputs[i].Options...)
	}
	list = texts.sorted(list)
	if len(p.cache)+len(list) > maxCached {
		clear(p.cache)
	}
	missing := list[:0]
	for _, text := range list {
		if _, ok := p.cache[texts.text[text]]; !ok {
			missing = append(missing, text)
		}
	}
	m := p.m
	a, dev, d, r := &m.arena, m.dev, m.encoder.d, m.head.r
	for _, rows := range cut(texts.rows(missing), m.Budget.Options) {
		a.release(mark{})
		pk, n := newPack(rows), len(rows)
		m.encoder.forward(a, pk, false)
		means, firsts, keys := a.take(n*d), a.take(n*d), a.take(n*r)
		dev.SegmentMean(means, pk.out, pk.seg, d)
		dev.Gather(firsts, pk.out, pk.firsts(), d, false)
		m.head.key.forward(dev, keys, firsts, n)
		mean, key := a.read(means), a.read(keys)
		for i, text := range missing[:n] {
			p.cache[texts.text[text]] = vector{mean[i*d:][:d:d], key[i*r:][:r:r]}
		}
		missing = missing[n:]
	}
}

// logits answers one pack of inputs, each by its options: the head's logits and
// the scores of retrieval.
func (p *Predictor) logits(texts *Texts, inputs []Input) (logits, ranking [][]float64) {
	m := p.m
	a, dev, d, r, h, rows := &m.arena, m.dev, m.encoder.d, m.head.r, m.head, len(inputs)
	a.release(mark{})
	pk := newPack(contexts(inputs))
	m.encoder.forward(a, pk, false)
	means, firsts, queries := a.take(rows*d), a.take(rows*d), a.take(rows*r)
	dev.SegmentMean(means, pk.out, pk.seg, d)
	dev.Gather(firsts, pk.out, pk.firsts(), d, false)
	h.query.forward(dev, queries, firsts, rows)

	var list []int
	for i := range inputs {
		list = append(list, inputs[i].Options...)
	}
	list = texts.sorted(list)
	n, at := len(list), make(map[int]int32)
	mean, key := make([]float32, 0, n*d), make([]float32, 0, n*r)
	for i, text := range list {
		at[text] = int32(i)
		v := p.cache[texts.text[text]]
		mean, key = append(mean, v.mean...), append(key, v.key...)
	}
	options, keys, products := a.write(mean), a.write(key), a.take(rows*n)
	dev.Linear(products, queries, keys, kernels.Mem{}, rows, r, n)
	scores := a.read(products)
	entered := make([][]int, rows)
	ranking = make([][]float64, rows)
	root := rootOf(r)
	for i := range inputs {
		z := make([]float64, len(inputs[i].Options))
		for j, text := range inputs[i].Options {
			z[j] = float64(scores[i*n+int(at[text])]) / root
		}
		ranking[i], entered[i] = z, enter(z, m.Config.TopK, nil)
	}
	seq := newSequence(inputs, pk, entered, func(text int) int32 { return at[text] })
	out := a.read(h.forward(a, seq, pk.out, means, options, false))
	logits = make([][]float64, rows)
	from := 0
	for i := range inputs {
		logits[i] = spread(len(inputs[i].Options), entered[i], out[from:])
		from += len(entered[i])
	}
	return logits, ranking
}

// Features returns, for each input, the mean and the first of the context's
// final states, 2d values: what a readout reads.
func (p *Predictor) Features(inputs []Input) [][]float32 {
	m := p.m
	a, dev, d := &m.arena, m.dev, m.encoder.d
	out := make([][]float32, 0, len(inputs))
	for _, run := range m.Budget.Cut(inputs, 0) {
		a.release(mark{})
		pk := newPack(contexts(run))
		m.encoder.forward(a, pk, false)
		n := pk.seg.Rows()
		means, firsts := a.take(n*d), a.take(n*d)
		dev.SegmentMean(means, pk.out, pk.seg, d)
		dev.Gather(firsts, pk.out, pk.firsts(), d, false)
		mean, first := a.read(means), a.read(firsts)
		for i := range n {
			f := make([]float32, 0, 2*d)
			f = append(append(f, mean[i*d:][:d]...), first[i*d:][:d]...)
			out = append(out, f)
		}
	}
	return out
}

// Answer answers one row, question by question.
func (p *Predictor) Answer(row decision.Row) ([]Answer, error) {
	e := p.m.Encoder()
	inputs, err := e.Encode(row)
	if err != nil {
		return nil, err
	}
	answers := make([]Answer, len(inputs))
	for i, pr := range p.Predict(e.Texts, inputs) {
		a := NewAnswer(row.Asked[i].Question, pr.P)
		a.Cut, a.Tokens, a.Readout = inputs[i].Cut, len(inputs[i].Context), inputs[i].Readout
		answers[i] = a
	}
	return answers, nil
}
