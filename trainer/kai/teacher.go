package kai

import "math"

// Teacher is what a model answered one input, for a later model to keep.
type Teacher struct {
	P       []float64 // by Input.Options: the head's probabilities at temperature 1, 0 for an option left out
	Ranking []float64 // by Input.Options: the probabilities that retrieval gives all of them
}

// Teach answers every input with the weights as they are. A readout has no part
// in it.
func (p *Predictor) Teach(texts *Texts, inputs []Input) []Teacher {
	p.remember(texts, inputs)
	out := make([]Teacher, 0, len(inputs))
	for _, run := range p.m.Budget.Cut(inputs, p.m.Config.TopK) {
		logits, ranking := p.logits(texts, run)
		for i := range logits {
			var t Teacher
			t.P, _ = softmax(logits[i], 1)
			t.Ranking, _ = softmax(ranking[i], 1)
			out = append(out, t)
		}
	}
	return out
}

// smallest is the probability that [Teacher.KL] takes for one of 0: the smallest
// normal float64, whose logarithm is -708.
const smallest = 0x1p-1022

// KL is KL(t‖of) of the head's probabilities, in nats: how far of has gone from
// t. It is 0 where they are equal, and finite: an option that of left out counts
// as if it had the probability 2^-1022. It is not of t and of's retrieval.
func (t Teacher) KL(of Teacher) float64 {
	sum := 0.0
	for i, p := range t.P {
		if q := of.P[i]; p > 0 && p != q {
			sum += float64(p * (log(p) - log(max(q, smallest))))
		}
	}
	return math.Max(0, sum) // rounding may leave it below
}

// distill is KL(teacher‖softmax(z)), and adds scale times its gradient to dz. A
// logit of -Inf is outside the softmax; the teacher gives it 0.
func distill(z, teacher []float64, scale float64, dz []float64) float64 {
	p, logSum := softmax(z, 1)
	loss := 0.0
	for i, t := range teacher {
		if t > 0 && t != p[i] {
			loss += float64(t * (log(t) - (z[i] - logSum)))
		}
		dz[i] += float64(scale * (p[i] - t))
	}
	return loss
}
