package trainer

import (
	"math"
	"slices"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/trainer/kai"
)

// Protection is what a run's protection was and what came of it.
type Protection struct {
	Subspace string             `json:"subspace_sha256"` // "" where nothing was projected
	Strength float64            `json:"strength"`
	Energy   map[string]float64 `json:"energy"` // by suite: the share of its gradients' energy that the subspace holds, the mean over layers
	Layers   []LayerProtection  `json:"layers"`
	Rows     map[string]int     `json:"rows"` // by suite: rows of the preservation set

	Share float64 `json:"share"` // of the gradient's square, what was removed: the mean over steps
	Norm  float64 `json:"norm"`  // ‖D‖/‖W0‖ over the matrices that were trained
	// Leak is ‖DV‖/‖D‖ over all projected layers, of the changes as stored; Served
	// is that of W − W0 as loaded from the files, which has W's own rounding in it,
	// and Bound what that rounding can make of it.
	Leak   float64 `json:"leak"`
	Served float64 `json:"served"`
	Bound  float64 `json:"bound"`

	Drift float64 `json:"drift"` // the mean KL(base‖model) on preservation rows at the end, in nats; 0 where none are kept
	Cuts  int     `json:"cuts"`  // how often the bound on it halved the learning rate
}

// LayerProtection is one layer's subspace and what it did.
type LayerProtection struct {
	Layer string  `json:"layer"`
	In    int     `json:"in"`
	Rank  int     `json:"rank"`
	Kept  float64 `json:"kept"`  // of the energy of all suites
	Share float64 `json:"share"` // removed, the mean over steps
	Leak  float64 `json:"leak"`
}

// protection measures what the protection came to.
func (l *full) protection() *Protection {
	k := l.kept
	p := &Protection{Energy: map[string]float64{}, Layers: []LayerProtection{}, Rows: map[string]int{}}
	if k != nil {
		p.Rows = k.rows()
	}
	if k != nil && len(k.sample) > 0 {
		p.Drift, p.Cuts = l.drifted(), l.state.Cuts
	}
	layers := map[string]*LayerProtection{}
	if k != nil && k.subspace != nil {
		p.Subspace, p.Strength = k.subspace.SHA256(), l.Stage.Protect.Projection.Strength
		for _, b := range k.subspace.Bases {
			p.Layers = append(p.Layers, LayerProtection{Layer: b.Name, In: b.In, Rank: b.Rank, Kept: b.Kept})
			for i, s := range k.subspace.Suites {
				p.Energy[s] += b.KeptBy[i] / float64(len(k.subspace.Bases))
			}
		}
		for i := range p.Layers {
			layers[p.Layers[i].Layer] = &p.Layers[i]
		}
	}
	var norm, whole, leak, stored, served, apart, bound float64
	for _, c := range l.changes() {
		w, w0 := hostValues(l.Device, c.param.W), hostValues(l.Device, c.base)
		moved := make([]float32, len(w))
		for i := range w {
			moved[i] = w[i] - w0[i]
			// fl(W0+D) is off by at most half a unit in the last place of W.
			half := 0x1p-24 * float64(w[i])
			bound += float64(half * half)
		}
		d := squares(c.d)
		norm, whole = norm+d, whole+squares(w0)
		if k == nil {
			continue
		}
		b := k.basis(c.param.Name)
		if b == nil {
			continue
		}
		own := b.Leak(c.d, c.param.Shape[0])
		there := b.Leak(moved, c.param.Shape[0])
		m := squares(moved)
		leak, stored = leak+float64(own*own*d), stored+d
		served, apart = served+float64(there*there*m), apart+m
		layers[b.Name].Leak = max(layers[b.Name].Leak, own)
	}
	ratio := func(a, b float64) float64 {
		if b == 0 {
			return 0
		}
		return math.Sqrt(a / b)
	}
	p.Norm, p.Leak, p.Served, p.Bound = ratio(norm, whole), ratio(leak, stored), ratio(served, apart), ratio(bound, apart)
	if r := l.state.Removed; r != nil && r.Steps > 0 {
		for name, sum := range r.Layers {
			if at := layers[name]; at != nil {
				at.Share = sum / float64(r.Steps)
			}
		}
		p.Share = r.mean()
	}
	return p
}

// change is one matrix's change from the base.
type change struct {
	param *kai.Param
	base  kernels.Mem
	d     []float32
}

// changes are those of the matrices that are trained.
func (l *full) changes() []change {
	var list []change
	for _, m := range l.opt.masters {
		if !m.W.None() && len(m.Shape) == 2 {
			list = append(list, change{m.Param, m.base, hostValues(l.Device, m.d)})
		}
	}
	for i, a := range l.opt.adapters {
		d := l.Device.Alloc(a.Param.W.Len)
		a.Delta(d)
		list = append(list, change{a.Param, l.opt.bases[i], hostValues(l.Device, d)})
	}
	return list
}

// squares is Σ v². A float32's square is exact in float64.
func squares(v []float32) float64 {
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	return sum
}

// removal adds up what projection took out of the gradients, step by step. It is
// part of the state, so that a resumed run says the same.
type removal struct {
	Steps  int                `json:"steps"`
	Layers map[string]float64 `json:"layers"` // of the shares, by layer
	Whole  float64            `json:"whole"`  // of the share over all projected layers
}

// step takes the last step's shares, and returns them by layer.
func (r *removal) step(o *optimizer, k *keeper) map[string]float64 {
	shares, out, all := map[string]float64{}, 0.0, 0.0
	for _, l := range k.linears {
		removed, square := 0.0, 0.0
		for i := range o.masters {
			if m := &o.masters[i]; m.off != nil && slices.Contains(l.Params, m.Param) {
				removed, square = removed+float64(m.share*m.square), square+m.square
			}
		}
		if square > 0 {
			shares[l.Name] = removed / square
			r.Layers[l.Name] += removed / square
		}
		out, all = out+removed, all+square
	}
	r.Steps++
	if all > 0 {
		r.Whole += out / all
	}
	return shares
}

// mean is the share over all projected layers, the mean over steps.
func (r *removal) mean() float64 {
	if r == nil || r.Steps == 0 {
		return 0
	}
	return r.Whole / float64(r.Steps)
}
