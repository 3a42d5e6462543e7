package project

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hanzoai/link/kernels/cpu"
)

// testBasis is a basis of 12 directions of 60.
func testBasis(t *testing.T) *Basis {
	t.Helper()
	b := build(t, Config{Energy: 1, Cap: .2}, 60, 20, randomRows(1, 30, 60, 20))
	if b.Rank != 12 {
		t.Fatalf("rank %d", b.Rank)
	}
	return b
}

func TestRemoveIsTheFormula(t *testing.T) {
	b := testBasis(t)
	const rows = 17
	x := normal(rand.New(rand.NewPCG(2, 3)), rows*b.In, 1)
	for _, strength := range []float64{.25, .5, 1} {
		got := slices.Clone(x)
		squared := b.On(cpu.New(1), strength).Remove(mem(got), rows)
		var want float64
		for i := range rows {
			row := make([]float64, b.In)
			widen(row, x[i*b.In:][:b.In])
			left := slices.Clone(row)
			for j := range b.Rank {
				v := b.V[j*b.In:][:b.In]
				a := dot(row, v)
				want += a * a
				axpy(left, -strength*a, v)
			}
			for j, v := range left {
				close(t, "a value", float64(got[i*b.In+j]), v, 5e-6)
			}
		}
		close(t, "what lay in the span", squared/want, 1, 1e-6)
		// The share removed is the caller's λ²‖x·Vᵀ‖²/‖x‖²: that is what is gone.
		var gone float64
		for i, v := range x {
			d := float64(v) - float64(got[i])
			gone += d * d
		}
		close(t, "what is gone", gone/(strength*strength*squared), 1, 1e-5)
	}
}

func TestRemoveOfAllLeavesRounding(t *testing.T) {
	b := testBasis(t)
	const rows = 40
	x := normal(rand.New(rand.NewPCG(2, 4)), rows*b.In, 1)
	p := b.On(cpu.New(1), 1)
	p.Remove(mem(x), rows)
	if leak := b.Leak(x, rows); leak > 5e-7 {
		t.Errorf("%.1e of it is left in the span", leak)
	}
	// Fewer rows after many, and many after few: the scratch fits both.
	p.Remove(mem(x[:b.In]), 1)
	p.Remove(mem(x), rows)
	if leak := b.Leak(x, rows); leak > 5e-7 {
		t.Errorf("%.1e of it is left in the span when taken out again", leak)
	}
}

func TestRemoveOfNothingKeepsTheBits(t *testing.T) {
	b := testBasis(t)
	x := normal(rand.New(rand.NewPCG(2, 5)), b.In, 1)
	x[3] = float32(math.Copysign(0, -1))
	got := slices.Clone(x)
	squared := b.On(cpu.New(1), 0).Remove(mem(got), 1)
	for i := range x {
		if math.Float32bits(got[i]) != math.Float32bits(x[i]) {
			t.Fatalf("value %d became %v, was %v", i, got[i], x[i])
		}
	}
	if leak := b.Leak(x, 1); math.Abs(math.Sqrt(squared/squares(x))/leak-1) > 1e-6 {
		t.Errorf("reported %v in the span, it has %v", squared, leak*leak*squares(x))
	}
}

func TestReprojectLeavesOneRounding(t *testing.T) {
	b := testBasis(t)
	const rows = 25
	d := normal(rand.New(rand.NewPCG(6, 6)), rows*b.In, 1e-3)
	exact := make([]float64, len(d))
	widen(exact, d)
	for i := range rows {
		r := exact[i*b.In:][:b.In]
		for j := range b.Rank {
			v := b.V[j*b.In:][:b.In]
			axpy(r, -dot(r, v), v)
		}
	}
	b.Reproject(d, rows)
	for i, v := range exact {
		if math.Abs(float64(d[i])-v) > math.Abs(v)*0x1p-24+1e-17 {
			t.Fatalf("value %d is %v, want %v rounded", i, d[i], v)
		}
	}
	if leak := b.Leak(d, rows); leak > 1e-7 {
		t.Errorf("%.1e is left", leak)
	}
}

func TestLeakOfTheEnds(t *testing.T) {
	b := testBasis(t)
	if leak := b.Leak(make([]float32, 2*b.In), 2); leak != 0 {
		t.Errorf("a change of zeros leaks %v", leak)
	}
	if leak := b.Leak(nil, 0); leak != 0 {
		t.Errorf("no change leaks %v", leak)
	}
	close(t, "the leak of a direction itself", b.Leak(narrow(b.V[:b.In]), 1), 1, 1e-6)
	half := make([]float64, b.In)
	free := normal(rand.New(rand.NewPCG(1, 9)), b.In, 1)
	b.Reproject(free, 1)
	size := math.Sqrt(squares(free))
	for i := range half {
		half[i] = 3*b.V[i] + 4*float64(free[i])/size
	}
	close(t, "the leak of 3 parts of it to 4 of another", b.Leak(narrow(half), 1), .6, 1e-6)
}
