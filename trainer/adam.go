package trainer

import (
	"math"
	"slices"
	"strings"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/trainer/kai"
)

// AdamW's constants, those of Kai's published trainer (see [Schedule]).
const (
	beta1 = 0.9
	beta2 = 0.98
	adamE = 1e-6
)

// master is one trained parameter: the base's value, the change from it, which
// is what is optimised, and the change's moments. All have the parameter's
// shape. The parameter itself is fl(base + d) after every step.
type master struct {
	*kai.Param
	base, d, m, v kernels.Mem
}

// optimizer is AdamW over masters, in order of their names.
type optimizer struct {
	dev     kernels.Device
	masters []master
	decay   float64 // toward the base
	clip    float64 // of the global norm; 0: none
}

// newOptimizer takes the parameters that have a gradient as they stand for the
// base and starts from no change.
func newOptimizer(dev kernels.Device, params []*kai.Param, decay, clip float64) *optimizer {
	o := &optimizer{dev: dev, decay: decay, clip: clip}
	for _, p := range params {
		if p.Grad.None() {
			continue
		}
		n := p.W.Len
		t := master{p, dev.Alloc(n), dev.Alloc(n), dev.Alloc(n), dev.Alloc(n)}
		dev.Copy(t.base, p.W)
		o.masters = append(o.masters, t)
	}
	slices.SortFunc(o.masters, func(a, b master) int { return strings.Compare(a.Name, b.Name) })
	return o
}

// norm is the Euclidean norm of the whole gradient, summed in float64 in order
// of the parameters' names.
func (o *optimizer) norm() float64 {
	var sum float64
	for _, t := range o.masters {
		sum += o.dev.SumSquares(t.Grad)
	}
	return math.Sqrt(sum)
}

// rates are the learning rates of one step by parameter group.
type rates struct{ encoder, head float32 }

// recorded is the rate that stands for the step in its event: the encoder's, and
// the head's where the encoder is not trained.
func (r rates) recorded() float64 {
	if r.encoder == 0 {
		return float64(r.head)
	}
	return float64(r.encoder)
}

// step applies the gradient, whose norm the caller has found finite, as step t
// counted from 1. It reports whether the gradient was clipped.
func (o *optimizer) step(t int, norm float64, lr rates) (clipped bool) {
	a := kernels.AdamW{
		Beta1: beta1, Beta2: beta2, Eps: adamE, Scale: 1,
		C1: float32(1 - math.Pow(beta1, float64(t))),
		C2: float32(1 - math.Pow(beta2, float64(t))),
	}
	if o.clip > 0 && norm > o.clip {
		a.Scale, clipped = float32(o.clip/norm), true
	}
	for _, p := range o.masters {
		a.LR, a.Decay = lr.head, 0
		if p.Group == "encoder" {
			a.LR = lr.encoder
		}
		if p.Decay {
			a.Decay = float32(o.decay)
		}
		o.dev.AdamW(p.W, p.d, p.m, p.v, p.Grad, p.base, a)
	}
	return clipped
}

// restore puts W = fl(base + d) in every parameter, after d was read back.
func (o *optimizer) restore() {
	for _, p := range o.masters {
		o.dev.Add(p.W, p.base, p.d)
	}
}

// values are the optimizer's tensors by the names they have in a state.
func (o *optimizer) values() []tensor {
	var list []tensor
	for _, p := range o.masters {
		list = append(list,
			tensor{"d/" + p.Name, p.Shape, p.d},
			tensor{"m/" + p.Name, p.Shape, p.m},
			tensor{"v/" + p.Name, p.Shape, p.v})
	}
	return list
}
