package gate

import (
	"fmt"
	"math"
)

// The metrics computed from items (HIP-1334 §8.3, which announces four and lists
// five).
const (
	Accuracy = "accuracy" // mean of correct
	NLL      = "nll"      // mean of −ln max(p_gold, 1e-12)
	Brier    = "brier"    // mean of brier
	ECE      = "ece"      // expected calibration error over 15 bins of confidence
	Score    = "score"    // mean of score
)

// computed reports whether a metric is computed from items. Any other is read from
// an evaluation's measures.
func computed(metric string) bool {
	switch metric {
	case Accuracy, NLL, Brier, ECE, Score:
		return true
	}
	return false
}

// Metric computes one of the five from items. It is an error when there are none,
// when one lacks what the metric needs, and when their sum is not finite.
func Metric(name string, items []Item) (float64, error) {
	s, err := sampleOf(name, items)
	if err != nil {
		return 0, err
	}
	var all tally
	for i := range items {
		all.add(s, i)
	}
	v := all.metric(name)
	if !finite(v) {
		return 0, fmt.Errorf("%s of %d items overflows", name, len(items))
	}
	return v, nil
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// Measures returns those of the five that items allow, over all rows.
func Measures(items []Item) []Measure {
	measures := []Measure{}
	n := uint64(len(items))
	for _, name := range []string{Accuracy, NLL, Brier, ECE, Score} {
		if v, err := Metric(name, items); err == nil {
			measures = append(measures, Measure{Category: All, Metric: name, Value: v, N: &n, Of: &n})
		}
	}
	return measures
}

// ECE's bins. width is a variable, so that i·width is the float64 product that the
// specification means and not an exact constant.
const bins = 15

var width = 1 / float64(bins)

// A sample is what a metric reads of each row.
type sample struct {
	value []float64 // averaged; for ECE, correct as 0 or 1
	conf  []float64 // ECE only
	bin   []int     // ECE only
}

func sampleOf(name string, items []Item) (sample, error) {
	if len(items) == 0 {
		return sample{}, fmt.Errorf("%s of no items", name)
	}
	s := sample{value: make([]float64, len(items))}
	if name == ECE {
		s.conf, s.bin = make([]float64, len(items)), make([]int, len(items))
	}
	for i, it := range items {
		var v *float64
		var field string
		switch name {
		case Accuracy, ECE:
			v, field = number(it.Correct), "correct"
		case NLL:
			v, field = it.PGold, "p_gold"
		case Brier:
			v, field = it.Brier, "brier"
		case Score:
			v, field = it.Score, "score"
		default:
			return sample{}, fmt.Errorf("%s is not computed from items", name)
		}
		if v != nil && name == ECE {
			s.value[i] = *v
			v, field = it.Confidence, "confidence"
		}
		if v == nil || !finite(*v) {
			return sample{}, fmt.Errorf("%s: item %s, question %s has no %s", name, it.Item, it.Question, field)
		}
		switch name {
		case NLL:
			s.value[i] = -math.Log(max(*v, 1e-12))
		case ECE:
			s.conf[i] = *v
			s.bin[i] = binOf(*v)
		default:
			s.value[i] = *v
		}
	}
	return s, nil
}

func number(b *bool) *float64 {
	if b == nil {
		return nil
	}
	var v float64
	if *b {
		v = 1
	}
	return &v
}

// binOf returns the bin of a confidence: bin 0 is [e₀, e₁] and bin i is (eᵢ, eᵢ₊₁],
// with eᵢ = i·width and e₁₅ = 1.
func binOf(conf float64) int {
	for i := range bins - 1 {
		if conf <= float64(i+1)*width {
			return i
		}
	}
	return bins - 1
}

// A tally sums rows of a sample. What does not use bins sums into one.
type tally struct{ n, value, conf [bins]float64 }

func (t *tally) add(s sample, row int) {
	if s.bin == nil {
		t.n[0]++
		t.value[0] += s.value[row]
		return
	}
	b := s.bin[row]
	t.n[b]++
	t.value[b] += s.value[row]
	t.conf[b] += s.conf[row]
}

func (t *tally) metric(name string) float64 {
	if name != ECE {
		return t.value[0] / t.n[0]
	}
	var n, sum float64
	for _, c := range t.n {
		n += c
	}
	for b, c := range t.n {
		if c > 0 {
			sum += c / n * math.Abs(t.conf[b]/c-t.value[b]/c)
		}
	}
	return sum
}
