package eval

import (
	"cmp"
	"slices"

	"github.com/hanzoai/link/spool/gate"
)

// Risk describes how well confidence sorts right answers from wrong ones.
type Risk struct {
	// Curve[k-1] is the share of wrong answers among the k most confident.
	Curve []float64
	// AURC is the mean of Curve, the area under the risk-coverage curve: 0 when
	// nothing is wrong.
	AURC float64
}

// At is the risk when the share coverage of the questions, in (0, 1], is
// answered: those of the highest confidence, at least one.
func (r Risk) At(coverage float64) float64 {
	if len(r.Curve) == 0 {
		return 0
	}
	k := int(coverage * float64(len(r.Curve)))
	return r.Curve[min(max(k, 1), len(r.Curve))-1]
}

// RiskOf orders items by confidence. Items of equal confidence have no order
// among them: each place in such a run counts the run's mean, so that the curve
// does not depend on the items' order. Items without correct or confidence are
// left out.
func RiskOf(items []gate.Item) Risk {
	items = slices.DeleteFunc(slices.Clone(items), func(it gate.Item) bool {
		return it.Correct == nil || it.Confidence == nil
	})
	slices.SortFunc(items, func(a, b gate.Item) int { return cmp.Compare(*b.Confidence, *a.Confidence) })
	var r Risk
	wrong, area := 0.0, 0.0
	for at := 0; at < len(items); {
		end, run := at, 0.0
		for ; end < len(items) && *items[end].Confidence == *items[at].Confidence; end++ {
			if !*items[end].Correct {
				run++
			}
		}
		mean := run / float64(end-at)
		for ; at < end; at++ {
			wrong += mean
			r.Curve = append(r.Curve, wrong/float64(at+1))
			area += r.Curve[at]
		}
	}
	if len(items) > 0 {
		r.AURC = area / float64(len(items))
	}
	return r
}
