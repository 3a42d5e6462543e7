package kai

import (
	"fmt"
	"math"
	"slices"
)

// Objective is what a step adds to the losses of the rows' targets. Its zero
// value adds nothing.
type Objective struct {
	Terms        []Term
	Distillation float64 // the weight of the questions that have a Teacher
}

// Term is one addition to the loss, of three kinds (HIP-1333 §3). z are logits,
// a question's gold option is the one that its target gives most (the smaller
// text on a tie), and an option that did not enter the head takes no part.
//
// [HardMargin] is a hinge between the gold option and its hardest rival,
//
//	max(0, Margin − (z[gold] − max_{j≠gold} z[j]))
//
// a mean over the questions by their weights.
//
// The other two compare pairs i, j of questions that have the same Group, other
// than 0, the same key and the same options; they are means over the pairs of a
// step. [PairwiseMargin] takes the pairs whose golds a and b differ (an attack
// and its benign twin), and asks that the difference of a's and b's logits moves
// between them:
//
//	max(0, Margin − ((z_i[a] − z_i[b]) − (z_j[a] − z_j[b])))
//
// [Consistency] takes the pairs with one gold, two views of the same thing. With
// p and q their probabilities over the options that entered in both, it is
//
//	KL(p‖q) + KL(q‖p)
//
// A question with a Teacher is in no term.
type Term struct {
	Kind   string
	Weight float64 // of the term's mean, beside a cross-entropy of weight 1
	Margin float64 // in logits; of no meaning in Consistency
}

// The kinds of a Term.
const (
	PairwiseMargin = "pairwise_margin"
	HardMargin     = "hard_margin"
	Consistency    = "consistency"
)

// gold is the option that a target gives most, the first on a tie.
func gold(target []float64) int {
	g := 0
	for i, y := range target {
		if y > target[g] {
			g = i
		}
	}
	return g
}

// pairs calls f with the places i < j of every two inputs that a term of this
// kind compares, by ascending j and then i. Groups are whole within a
// micro-batch, so this order is that of the step, wherever it is cut.
func pairs(kind string, inputs []Input, f func(i, j int)) {
	if kind == HardMargin {
		return
	}
	before := make(map[int][]int) // a group's places so far
	for j := range inputs {
		b := &inputs[j]
		if b.Group == 0 || b.Teacher != nil {
			continue
		}
		for _, i := range before[b.Group] {
			a := &inputs[i]
			if a.Key == b.Key && slices.Equal(a.Options, b.Options) &&
				(gold(a.Target) == gold(b.Target)) == (kind == Consistency) {
				f(i, j)
			}
		}
		before[b.Group] = append(before[b.Group], j)
	}
}

// count returns how many pairs each term has in a step. It panics where a group
// is divided and where a kind is none of the three.
func (o Objective) count(micro [][]Input) []int {
	counts, home := make([]int, len(o.Terms)), make(map[int]int)
	for k, inputs := range micro {
		for i := range inputs {
			group := inputs[i].Group
			if at, ok := home[group]; ok && at != k && group != 0 {
				panic(fmt.Sprintf("kai: group %d stands in two micro-batches", group))
			}
			home[group] = k
		}
		for t, term := range o.Terms {
			pairs(term.Kind, inputs, func(i, j int) { counts[t]++ })
		}
	}
	for _, term := range o.Terms {
		if !slices.Contains([]string{PairwiseMargin, HardMargin, Consistency}, term.Kind) {
			panic(fmt.Sprintf("kai: no such term as %q", term.Kind))
		}
	}
	return counts
}

// hardMargin is the hinge of one question, and adds scale times its gradient to
// dz.
func hardMargin(z []float64, gold int, margin, scale float64, dz []float64) float64 {
	rival := -1
	for j, v := range z {
		if j != gold && !math.IsInf(v, -1) && (rival < 0 || v > z[rival]) {
			rival = j
		}
	}
	if rival < 0 {
		return 0
	}
	loss := margin - (z[gold] - z[rival])
	if !(loss > 0) {
		return 0
	}
	dz[gold] -= scale
	dz[rival] += scale
	return loss
}

// pairwiseMargin is the hinge of two questions with the golds a and b, and adds
// scale times its gradient to dz and dw.
func pairwiseMargin(z, w []float64, a, b int, margin, scale float64, dz, dw []float64) float64 {
	if math.IsInf(z[b], -1) || math.IsInf(w[a], -1) {
		return 0 // as far apart as can be
	}
	loss := margin - ((z[a] - z[b]) - (w[a] - w[b]))
	if !(loss > 0) {
		return 0
	}
	dz[a] -= scale
	dz[b] += scale
	dw[a] += scale
	dw[b] -= scale
	return loss
}

// consistency is KL(p‖q) + KL(q‖p) of p = softmax(z) and q = softmax(w) over the
// options that are in both, and adds scale times its gradient to dz and dw.
func consistency(z, w []float64, scale float64, dz, dw []float64) float64 {
	z, w = slices.Clone(z), slices.Clone(w)
	for j := range z {
		if math.IsInf(z[j], -1) || math.IsInf(w[j], -1) {
			z[j], w[j] = leftOut, leftOut
		}
	}
	p, logP := softmax(z, 1)
	q, logQ := softmax(w, 1)
	ratio := make([]float64, len(z)) // log p/q
	there, back := 0.0, 0.0
	for j := range z {
		if math.IsInf(z[j], -1) {
			continue
		}
		ratio[j] = (z[j] - w[j]) - (logP - logQ)
		there += float64(p[j] * ratio[j])
		back -= float64(q[j] * ratio[j])
	}
	// dKL(p‖q)/dz = p∘(log p/q − KL(p‖q)) and dKL(q‖p)/dz = p − q; and so for w.
	for j := range z {
		dz[j] += float64(scale * (float64(p[j]*(ratio[j]-there)) + (p[j] - q[j])))
		dw[j] += float64(scale * (float64(q[j]*(-ratio[j]-back)) + (q[j] - p[j])))
	}
	return there + back
}
