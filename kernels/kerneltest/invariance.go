package kerneltest

import (
	"slices"
	"testing"

	"github.com/hanzoai/link/kernels"
)

// host is a fresh memory of d that holds v.
func host(d device, v []float32) kernels.Mem {
	m := d.Alloc(len(v))
	d.Write(m, v)
	return m
}

func read(d device, m kernels.Mem) []float32 {
	v := make([]float32, m.Len)
	d.Read(v, m)
	return v
}

// Invariance checks that d's bits do not depend on how a step is cut into
// micro-batches, nor on what a row is packed with.
func Invariance(t *testing.T, d kernels.Device) {
	t.Run("cuts", func(t *testing.T) { cuts(t, d) })
	t.Run("packing", func(t *testing.T) { packing(t, d) })
}

// cuts sums the gradients of one step in several ways.
func cuts(t *testing.T, d device) {
	const n, w, o = 2*kernels.Block + 277, 20, 13
	v := draw("cuts")
	x, dy, gamma := v.normal(n*w, 1), v.normal(n*w, 1), host(d, v.normal(w, 1))
	dz := host(d, v.normal(n*o, 1))
	mx, mdy := host(d, x), host(d, dy)
	stats := host(d, v.positive(2*n))
	sums := func(at []int) (sums [4][]float32) {
		var g [4]*kernels.Grad
		for i, n := range []int{o * w, w, w, w} {
			g[i] = &kernels.Grad{Sum: d.Alloc(n), Open: d.Alloc(n)}
		}
		from := 0
		for _, to := range at {
			k := to - from
			rows := func(m kernels.Mem, width int) kernels.Mem { return m.Slice(from*width, to*width) }
			d.LinearWeight(g[0], rows(dz, o), rows(mx, w), k, w, o)
			d.ColumnSum(g[1], rows(mdy, w), k, w)
			d.LayerNormBack(d.Alloc(k*w), g[2], g[3], rows(mdy, w), rows(mx, w), rows(stats, 2), gamma, k, w, false)
			from = to
		}
		for i := range g {
			d.Close(g[i])
			sums[i] = read(d, g[i].Sum)
		}
		return sums
	}
	whole := sums([]int{n})
	for _, at := range [][]int{{1, kernels.Block, 2*kernels.Block + 1, n}, {300, 600, 900, 1200, n}, {kernels.Block + 1, n - 1, n - 1, n}} {
		for i, got := range sums(at) {
			if k := differ(got, whole[i]); k >= 0 {
				t.Errorf("%s at %v: element %d is %v, in one piece %v",
					[]string{"LinearWeight", "ColumnSum", "LayerNormBack dgamma", "LayerNormBack dbeta"}[i], at, k, got[k], whole[i][k])
			}
		}
	}
}

// packing compares rows packed together with each row alone.
func packing(t *testing.T, d device) {
	const heads, dim, o = 2, 8, 37
	const width = heads * dim
	lengths := []int{3, 40, 1, 19}
	seg := segments(lengths...)
	n := seg.Tokens()
	v := draw("packing")
	x, w, b := host(d, v.normal(n*3*width, 1)), host(d, v.normal(o*3*width, 1)), host(d, v.normal(o, 1))
	do, dz := host(d, v.normal(n*width, 1)), host(d, v.normal(n*o, 1))
	run := func(from, to int, seg kernels.Segments, a kernels.Attention) (r [4][]float32) {
		k := to - from
		x, do, dz := x.Slice(from*3*width, to*3*width), do.Slice(from*width, to*width), dz.Slice(from*o, to*o)
		y, dx, out, stats, dqkv := d.Alloc(k*o), d.Alloc(k*3*width), d.Alloc(k*width), d.Alloc(2*heads*k), d.Alloc(k*3*width)
		d.Linear(y, x, w, b, k, 3*width, o)
		d.LinearInput(dx, dz, w, k, 3*width, o, false)
		d.Attend(out, stats, x, seg, a)
		d.AttendBack(dqkv, do, out, stats, x, seg, a)
		for i, m := range []kernels.Mem{y, dx, out, dqkv} {
			r[i] = read(d, m)
		}
		return r
	}
	for _, window := range []int{-1, 4} {
		a := kernels.Attention{Heads: heads, Dim: dim, Window: window}
		packed := run(0, n, seg, a)
		var alone [4][]float32
		for r, k := range lengths {
			for i, got := range run(int(seg[r]), int(seg[r+1]), segments(k), a) {
				alone[i] = slices.Concat(alone[i], got)
			}
		}
		for i, name := range []string{"Linear", "LinearInput", "Attend", "AttendBack"} {
			if k := differ(alone[i], packed[i]); k >= 0 {
				t.Errorf("%s, window %d: element %d is %v alone, %v packed", name, window, k, alone[i][k], packed[i][k])
			}
		}
	}
}
