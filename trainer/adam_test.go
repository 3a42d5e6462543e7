package trainer

import (
	"math"
	"slices"
	"testing"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/trainer/kai"
)

// param is a parameter of the values w with the gradient g.
func param(dev kernels.Device, name, group string, decay bool, w, g []float32) *kai.Param {
	p := &kai.Param{Name: name, Shape: []int{len(w)}, Group: group, Decay: decay, W: dev.Alloc(len(w)), Grad: dev.Alloc(len(w))}
	dev.Write(p.W, w)
	dev.Write(p.Grad, g)
	return p
}

// TestOptimizerStep follows AdamW on two parameters through three steps, against
// the update written out in float64.
func TestOptimizerStep(t *testing.T) {
	dev := cpu.New(1)
	weights := [][]float32{{1, -2, 3}, {.5, .25}}
	grads := [][]float32{{.3, -.4, 0}, {1.2, -.01}}
	a := param(dev, "encoder.a", "encoder", true, weights[0], grads[0])
	b := param(dev, "head.b", "head", false, weights[1], grads[1])
	o := newOptimizer(dev, []*kai.Param{b, a}, nil, .01, 1)
	if o.masters[0].Name != "encoder.a" {
		t.Errorf("masters begin with %s, want the order of names", o.masters[0].Name)
	}
	norm := o.norm()
	if want := math.Sqrt(.09 + .16 + 1.44 + .0001); math.Abs(norm-want) > 1e-7 {
		t.Fatalf("norm = %v, want %v", norm, want)
	}
	type moments struct{ d, m, v float64 }
	ref := [2][]moments{make([]moments, 3), make([]moments, 2)}
	lr, decay := [2]float64{1e-2, 3e-2}, [2]float64{.01, 0}
	for step := 1; step <= 3; step++ {
		if !o.step(step, norm, rates{1e-2, 3e-2}) {
			t.Fatal("a norm over 1 was not clipped")
		}
		for i, p := range []*kai.Param{a, b} {
			for j := range ref[i] {
				r, g := &ref[i][j], float64(grads[i][j])/norm
				r.m = .9*r.m + .1*g
				r.v = .98*r.v + .02*g*g
				mh, vh := r.m/(1-math.Pow(.9, float64(step))), r.v/(1-math.Pow(.98, float64(step)))
				r.d -= lr[i] * (mh/(math.Sqrt(vh)+1e-6) + decay[i]*r.d)
				if got, want := float64(p.W.Host[j]), float64(weights[i][j])+r.d; math.Abs(got-want) > 2e-6 {
					t.Errorf("step %d: %s[%d] = %v, want %v", step, p.Name, j, got, want)
				}
			}
		}
	}
	for _, m := range o.masters {
		for j, w := range m.W.Host {
			if w != m.base.Host[j]+m.d.Host[j] {
				t.Errorf("%s[%d] = %v, want fl(base + d)", m.Name, j, w)
			}
		}
	}
}

// TestOptimizerLeavesBase: with no gradient nothing moves, whatever the decay: it
// pulls toward the base, which is where the parameter is.
func TestOptimizerLeavesBase(t *testing.T) {
	dev := cpu.New(1)
	w := []float32{1, -2, 3e-8}
	p := param(dev, "encoder.a", "encoder", true, w, make([]float32, 3))
	o := newOptimizer(dev, []*kai.Param{p}, nil, .5, 1)
	for step := 1; step <= 5; step++ {
		if o.step(step, o.norm(), rates{.1, .1}) {
			t.Error("a zero gradient was clipped")
		}
	}
	if !slices.Equal(p.W.Host, w) {
		t.Errorf("weights = %v, want %v", p.W.Host, w)
	}
}

// TestOptimizerFrozen: a parameter without a gradient is not a master.
func TestOptimizerFrozen(t *testing.T) {
	dev := cpu.New(1)
	p := param(dev, "encoder.a", "encoder", true, []float32{1}, []float32{1})
	frozen := &kai.Param{Name: "encoder.b", Shape: []int{1}, W: dev.Alloc(1)}
	if o := newOptimizer(dev, []*kai.Param{p, frozen}, nil, 0, 0); len(o.masters) != 1 {
		t.Errorf("%d masters, want 1", len(o.masters))
	}
}
