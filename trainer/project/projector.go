package project

import (
	"fmt"
	"math"

	"github.com/hanzoai/link/kernels"
)

// Projector takes a basis out of matrices on a device. One goroutine uses it, the
// device's.
type Projector struct {
	dev      kernels.Device
	rank, in int
	strength float64
	v        kernels.Mem // [rank, in], float32
	along    kernels.Mem // [rows, rank], scratch
}

// On is b on a device, its V rounded to float32, with strength λ in [0, 1]: the
// part of what lies in the span that [Projector.Remove] takes out.
func (b *Basis) On(dev kernels.Device, strength float64) *Projector {
	if !(strength >= 0 && strength <= 1) {
		panic(fmt.Sprintf("project: strength is %v, not in [0, 1]", strength))
	}
	p := &Projector{dev: dev, rank: b.Rank, in: b.In, strength: strength, v: dev.Alloc(len(b.V))}
	dev.Write(p.v, narrow(b.V))
	return p
}

// Remove takes x [rows, in] to x − λ(x·Vᵀ)·V in place and returns ‖x·Vᵀ‖² as it
// was before. The share of x that was removed is λ²‖x·Vᵀ‖²/‖x‖². With λ = 0 x
// keeps its bits.
func (p *Projector) Remove(x kernels.Mem, rows int) float64 {
	if x.Len != rows*p.in {
		panic(fmt.Sprintf("project: %d values are not %d rows of %d", x.Len, rows, p.in))
	}
	n := rows * p.rank
	if p.along.Len < n {
		p.along = p.dev.Alloc(n)
	}
	along := p.along.Slice(0, n)
	p.dev.Linear(along, x, p.v, kernels.Mem{}, rows, p.in, p.rank)
	squares := p.dev.SumSquares(along)
	if p.strength > 0 {
		p.dev.Scale(along, float32(-p.strength))
		p.dev.LinearInput(x, along, p.v, rows, p.in, p.rank, true)
	}
	return squares
}

// Reproject takes d [rows, in] to d − (d·Vᵀ)·V in place, in float64 and rounded
// once: the whole span, whatever the strength was on the way.
func (b *Basis) Reproject(d []float32, rows int) {
	b.check(d, rows)
	row, along := make([]float64, b.In), make([]float64, b.Rank)
	for i := range rows {
		r := d[i*b.In:][:b.In]
		widen(row, r)
		b.along(along, row)
		for j, a := range along {
			for k, v := range b.V[j*b.In:][:b.In] {
				row[k] -= float64(a * v)
			}
		}
		for k, v := range row {
			r[k] = float32(v)
		}
	}
}

// Leak is ‖d·Vᵀ‖/‖d‖ of d [rows, in], in float64: the share of a change, in [0, 1],
// that lies in the span. It is 0 for a change of zeros.
func (b *Basis) Leak(d []float32, rows int) float64 {
	b.check(d, rows)
	row, along := make([]float64, b.In), make([]float64, b.Rank)
	var in, all float64
	for i := range rows {
		widen(row, d[i*b.In:][:b.In])
		b.along(along, row)
		in += dot(along, along)
		all += dot(row, row)
	}
	if all == 0 {
		return 0
	}
	return math.Sqrt(in / all)
}

func (b *Basis) check(d []float32, rows int) {
	if len(d) != rows*b.In {
		panic(fmt.Sprintf("project: %d values are not %d rows of %d", len(d), rows, b.In))
	}
}

// along is y [Rank] = V·x.
func (b *Basis) along(y, x []float64) {
	for j := range y {
		y[j] = dot(b.V[j*b.In:][:b.In], x)
	}
}

func widen(y []float64, x []float32) {
	for i, v := range x {
		y[i] = float64(v)
	}
}
