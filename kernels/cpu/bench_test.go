//go:build linux

package cpu_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/kernels/cpu"
)

// cpuSeconds is the processor time this process has used. Rates are reported per
// processor second, so that a machine shared with other work still says how good
// the code is; ns/op is the wall.
func cpuSeconds() float64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return float64(t.Sec) + float64(t.Nsec)/1e9
}

// rate runs f and reports work, of which one f does much, per processor second:
// of its best run, which is the code's own, and of them all.
func rate(b *testing.B, much float64, unit string, f func()) {
	f() // grows the buffers
	var all, best float64
	for b.Loop() {
		start := cpuSeconds()
		f()
		s := cpuSeconds() - start
		all += s
		if best == 0 || s < best {
			best = s
		}
	}
	b.ReportMetric(much/best, unit)
	b.ReportMetric(much*float64(b.N)/all, "mean-"+unit)
}

// eachDevice runs f on every instruction set with one thread, and on all threads
// of the best.
func eachDevice(b *testing.B, f func(b *testing.B, d kernels.Device)) {
	run := func(isa cpu.ISA, threads int) {
		d, err := cpu.NewISA(isa, threads)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("%s/%d", isa, threads), func(b *testing.B) { f(b, d) })
	}
	for _, isa := range cpu.ISAs() {
		if isa != cpu.Scalar {
			run(isa, 1)
		}
	}
	run(cpu.ISAs()[0], 0)
}

func fill(d kernels.Device, n int) kernels.Mem {
	m, v := d.Alloc(n), make([]float32, n)
	for i := range v {
		v[i] = float32(i%37)/37 - .5
	}
	d.Write(m, v)
	return m
}

// BenchmarkProduct is the three products of a linear layer on encoder shapes.
func BenchmarkProduct(b *testing.B) {
	for _, s := range [][3]int{{256, 256, 256}, {1024, 384, 384}, {1024, 384, 1536}, {1024, 1536, 384}, {1024, 768, 3072}} {
		t, in, out := s[0], s[1], s[2]
		b.Run(fmt.Sprintf("%dx%dx%d", t, in, out), func(b *testing.B) {
			eachDevice(b, func(b *testing.B, d kernels.Device) {
				x, w, bias, y := fill(d, t*in), fill(d, out*in), fill(d, out), fill(d, t*out)
				g := &kernels.Grad{Sum: d.Alloc(out * in), Open: d.Alloc(out * in)}
				gflop := 2 * float64(t) * float64(in) * float64(out) / 1e9
				b.Run("Linear", func(b *testing.B) {
					rate(b, gflop, "GFLOP/s", func() { d.Linear(y, x, w, bias, t, in, out) })
				})
				b.Run("LinearInput", func(b *testing.B) {
					rate(b, gflop, "GFLOP/s", func() { d.LinearInput(x, y, w, t, in, out, false) })
				})
				b.Run("LinearWeight", func(b *testing.B) {
					rate(b, gflop, "GFLOP/s", func() { d.LinearWeight(g, y, x, t, in, out) })
				})
			})
		})
	}
}

// BenchmarkRows is what stands between the products, in values a second.
func BenchmarkRows(b *testing.B) {
	const t, w = 1024, 384
	eachDevice(b, func(b *testing.B, d kernels.Device) {
		x, y, dy, stats, gamma := fill(d, t*w), fill(d, t*w), fill(d, t*w), fill(d, 2*t), fill(d, w)
		g, h := &kernels.Grad{Sum: d.Alloc(w), Open: d.Alloc(w)}, &kernels.Grad{Sum: d.Alloc(w), Open: d.Alloc(w)}
		m, v := fill(d, t*w), d.Alloc(t*w)
		a := kernels.AdamW{LR: 1e-3, Beta1: .9, Beta2: .98, Eps: 1e-6, C1: .1, C2: .02, Scale: 1}
		for _, op := range []struct {
			name string
			f    func()
		}{
			{"Add", func() { d.Add(y, x, dy) }},
			{"LayerNorm", func() { d.LayerNorm(y, stats, x, gamma, gamma, t, w, 1e-5) }},
			{"LayerNormBack", func() { d.LayerNormBack(y, g, h, dy, x, stats, gamma, t, w, false) }},
			{"GELU", func() { d.GELU(y, x) }},
			{"GELUBack", func() { d.GELUBack(y, dy, x) }},
			{"GeGLU", func() { d.GeGLU(y.Slice(0, t*w/2), x, t, w/2) }},
			{"GeGLUBack", func() { d.GeGLUBack(y, dy.Slice(0, t*w/2), x, t, w/2) }},
			{"AdamW", func() { d.AdamW(kernels.Mem{}, x, m, v, dy, kernels.Mem{}, a) }},
			{"SumSquares", func() { d.SumSquares(x) }},
		} {
			b.Run(op.name, func(b *testing.B) { rate(b, t*w/1e6, "Mvalues/s", op.f) })
		}
	})
}

func BenchmarkAttention(b *testing.B) {
	for _, c := range []struct {
		a    kernels.Attention
		rows int
	}{
		{kernels.Attention{Heads: 12, Dim: 32, Window: -1}, 128},
		{kernels.Attention{Heads: 12, Dim: 64, Window: -1}, 512},
		{kernels.Attention{Heads: 12, Dim: 64, Window: 64}, 512},
	} {
		b.Run(fmt.Sprintf("%dx%d,window=%d,rows=%d", c.a.Heads, c.a.Dim, c.a.Window, c.rows), func(b *testing.B) {
			eachDevice(b, func(b *testing.B, d kernels.Device) {
				const t = 1024
				seg := kernels.Segments{}
				for i := 0; i <= t; i += c.rows {
					seg = append(seg, int32(i))
				}
				w := c.a.Heads * c.a.Dim
				qkv, o, stats, do, dqkv := fill(d, t*3*w), d.Alloc(t*w), d.Alloc(2*c.a.Heads*t), fill(d, t*w), d.Alloc(t*3*w)
				b.Run("Attend", func(b *testing.B) {
					rate(b, t, "tokens/s", func() { d.Attend(o, stats, qkv, seg, c.a) })
				})
				d.Attend(o, stats, qkv, seg, c.a)
				b.Run("AttendBack", func(b *testing.B) {
					rate(b, t, "tokens/s", func() { d.AttendBack(dqkv, do, o, stats, qkv, seg, c.a) })
				})
			})
		})
	}
}

// BenchmarkLayer is one encoder layer of MiniLM's shape, forward and back with
// the gradients of its weights: 12 heads of 32, width 384, feed-forward 1536,
// rows of 128 tokens.
func BenchmarkLayer(b *testing.B) {
	const t, w, ff = 1024, 384, 1536
	a := kernels.Attention{Heads: 12, Dim: 32, Window: -1}
	seg := kernels.Segments{}
	for i := 0; i <= t; i += 128 {
		seg = append(seg, int32(i))
	}
	eachDevice(b, func(b *testing.B, d kernels.Device) {
		linear := func(in, out int) (w, bias kernels.Mem, dw, db *kernels.Grad) {
			g := func(n int) *kernels.Grad { return &kernels.Grad{Sum: d.Alloc(n), Open: d.Alloc(n)} }
			return fill(d, in*out), fill(d, out), g(in * out), g(out)
		}
		wq, bq, gq, hq := linear(w, 3*w)
		wo, bo, go_, ho := linear(w, w)
		w1, b1, g1, h1 := linear(w, ff)
		w2, b2, g2, h2 := linear(ff, w)
		gamma, beta, gg, gb := linear(1, w)
		x, y, z, stats, dx := fill(d, t*w), d.Alloc(t*w), d.Alloc(t*w), d.Alloc(2*t), fill(d, t*w)
		qkv, dqkv, as := d.Alloc(t*3*w), d.Alloc(t*3*w), d.Alloc(2*12*t)
		f, fy, df := d.Alloc(t*ff), d.Alloc(t*ff), d.Alloc(t*ff)
		rate(b, t, "tokens/s", func() {
			d.Linear(qkv, x, wq, bq, t, w, 3*w)
			d.Attend(y, as, qkv, seg, a)
			d.Linear(z, y, wo, bo, t, w, w)
			d.Add(z, z, x)
			d.LayerNorm(y, stats, z, gamma, beta, t, w, 1e-12)
			d.Linear(f, y, w1, b1, t, w, ff)
			d.GELU(fy, f)
			d.Linear(z, fy, w2, b2, t, ff, w)
			d.Add(z, z, y)
			d.LayerNorm(y, stats, z, gamma, beta, t, w, 1e-12)

			d.LayerNormBack(y, gg, gb, dx, z, stats, gamma, t, w, false)
			d.ColumnSum(h2, y, t, w)
			d.LinearWeight(g2, y, fy, t, ff, w)
			d.LinearInput(df, y, w2, t, ff, w, false)
			d.GELUBack(df, df, f)
			d.ColumnSum(h1, df, t, ff)
			d.LinearWeight(g1, df, x, t, w, ff)
			d.LinearInput(y, df, w1, t, w, ff, true)
			d.LayerNormBack(y, gg, gb, y, z, stats, gamma, t, w, false)
			d.ColumnSum(ho, y, t, w)
			d.LinearWeight(go_, y, x, t, w, w)
			d.LinearInput(z, y, wo, t, w, w, false)
			d.AttendBack(dqkv, z, y, as, qkv, seg, a)
			d.ColumnSum(hq, dqkv, t, 3*w)
			d.LinearWeight(gq, dqkv, x, t, w, 3*w)
			d.LinearInput(y, dqkv, wq, t, w, 3*w, true)
		})
	})
}
