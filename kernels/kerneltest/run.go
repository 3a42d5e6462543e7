package kerneltest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"

	"github.com/hanzoai/link/kernels"
)

type device = kernels.Device
type mems = []kernels.Mem

// Exact is the [Digest] of the exact plan. It changes when a case or an
// operation's definition does, and for no other reason.
const Exact = "000359a9a67546174b89092e48b62474120fb215da80d008b0148e5431726dd1"

// lengths are rows that meet the edges of vectors of 4, 8 and 16 and of a task.
var lengths = []int{1, 7, 8, 15, 16, 17, 31, 33, 64, 100, 384, 1000}

// Run compares every operation of devs with ref's, bit for bit.
func Run(t *testing.T, ref kernels.Device, devs ...kernels.Device) {
	for _, d := range devs {
		if !slices.Equal(d.Plan(), ref.Plan()) {
			t.Errorf("plans differ: %v on %s, %v on %s", d.Plan(), d.Name(), ref.Plan(), ref.Name())
		}
	}
	comparison{t, ref, devs, nil}.all()
}

// Digest is the SHA-256 of everything that d computes in the cases of [Run]. It
// is [Exact] for a device of package kernels' arithmetic, on every architecture.
func Digest(t *testing.T, d kernels.Device) string {
	sum := sha256.New()
	comparison{t, d, nil, sum}.all()
	return hex.EncodeToString(sum.Sum(nil))
}

// all runs every case.
func (c comparison) all() {
	products(c)
	elementwise(c)
	norms(c)
	moves(c)
	attentions(c)
	segmented(c)
	optimizer(c)
}

// grad is a Grad over two operands, holding fill tokens.
func grad(sum, open kernels.Mem, fill int) *kernels.Grad {
	return &kernels.Grad{Sum: sum, Open: open, Fill: fill}
}

// settle clears an open block of no tokens, whose values mean nothing.
func settle(d device, g *kernels.Grad) {
	if g.Fill == 0 {
		d.Zero(g.Open)
	}
}

func products(c comparison) {
	for _, s := range [][3]int{ // t, in, out
		{1, 1, 1}, {1, 16, 3}, {2, 3, 5}, {4, 4, 4}, {6, 16, 16}, {7, 17, 15}, {12, 32, 32}, {13, 31, 33},
		{12, 8, 64}, {25, 64, 65}, {97, 40, 16}, {1, 1025, 9}, {5, 513, 33}, {3, 512, 40}, {14, 1030, 70}, {211, 61, 83}, {40, 200, 130},
	} {
		n, i, o := s[0], s[1], s[2]
		for _, edgy := range []bool{false, true} {
			v := draw("product", s, edgy)
			x, w, b, dy := v.normal(n*i, 1), v.normal(o*i, 1), v.normal(o, 1), v.normal(n*o, 1)
			if edgy {
				x, w, b, dy = v.edgy(n*i), v.edgy(o*i), v.edgy(o), v.edgy(n*o)
			}
			name := fmt.Sprintf("%dx%dx%d,edgy=%v", n, i, o, edgy)
			y := out("y", v.garbage(n*o))
			c.compare("Linear/"+name, []operand{y, in("x", x), in("w", w), in("bias", b)}, func(d device, m mems) {
				d.Linear(m[0], m[1], m[2], m[3], n, i, o)
			})
			c.compare("Linear/nobias/"+name, []operand{y, in("x", x), in("w", w)}, func(d device, m mems) {
				d.Linear(m[0], m[1], m[2], kernels.Mem{}, n, i, o)
			})
			c.compare("LinearInput/"+name, []operand{out("dx", v.garbage(n*i)), in("dy", dy), in("w", w)}, func(d device, m mems) {
				d.LinearInput(m[0], m[1], m[2], n, i, o, false)
			})
			c.compare("LinearInput/add/"+name, []operand{out("dx", x), in("dy", dy), in("w", w)}, func(d device, m mems) {
				d.LinearInput(m[0], m[1], m[2], n, i, o, true)
			})
			for _, fill := range []int{0, kernels.Block - 1, kernels.Block - n%kernels.Block} {
				fill %= kernels.Block
				ops := []operand{out("sum", v.normal(o*i, 1)), out("open", v.normal(o*i, 1)), in("dy", dy), in("x", x)}
				c.compare(fmt.Sprintf("LinearWeight/%s,fill=%d", name, fill), ops, func(d device, m mems) {
					g := grad(m[0], m[1], fill)
					d.LinearWeight(g, m[2], m[3], n, i, o)
					settle(d, g)
				})
			}
		}
	}
	// Whole blocks between two parts of one.
	n, i, o := 2*kernels.Block+300, 9, 7
	v := draw("blocks")
	ops := []operand{out("sum", v.normal(o*i, 1)), out("open", v.normal(o*i, 1)), in("dy", v.normal(n*o, 1)), in("x", v.normal(n*i, 1))}
	for _, fill := range []int{0, 100, 212} {
		c.compare(fmt.Sprintf("LinearWeight/blocks,fill=%d", fill), ops, func(d device, m mems) {
			g := grad(m[0], m[1], fill)
			d.LinearWeight(g, m[2], m[3], n, i, o)
			if want := (fill + n) % kernels.Block; g.Fill != want {
				c.Errorf("%s: Fill = %d after LinearWeight, want %d", d.Name(), g.Fill, want)
			}
			settle(d, g)
		})
		c.compare(fmt.Sprintf("Close/fill=%d", fill), ops[:2], func(d device, m mems) {
			g := grad(m[0], m[1], fill)
			d.Close(g)
			if g.Fill != 0 {
				c.Errorf("%s: Fill = %d after Close", d.Name(), g.Fill)
			}
			settle(d, g)
		})
	}
}

func elementwise(c comparison) {
	for _, n := range append([]int{600_001}, lengths...) {
		for _, edgy := range []bool{false, true} {
			if n > 10_000 && edgy {
				continue
			}
			v := draw("elementwise", n, edgy)
			a, b := v.normal(n, 2), v.normal(n, 2)
			if edgy {
				a, b = v.edgy(n), v.edgy(n)
			}
			name := fmt.Sprintf("%d,edgy=%v", n, edgy)
			y, x1, x2 := out("y", v.garbage(n)), in("a", a), in("b", b)
			c.compare("Add/"+name, []operand{y, x1, x2}, func(d device, m mems) { d.Add(m[0], m[1], m[2]) })
			c.compare("Add/inplace/"+name, []operand{out("a", a), x2}, func(d device, m mems) { d.Add(m[0], m[0], m[1]) })
			c.compare("Mul/"+name, []operand{y, x1, x2}, func(d device, m mems) { d.Mul(m[0], m[1], m[2]) })
			c.compare("Mul/inplace/"+name, []operand{out("b", b), x1}, func(d device, m mems) { d.Mul(m[0], m[1], m[0]) })
			c.compare("Scale/"+name, []operand{out("y", a)}, func(d device, m mems) { d.Scale(m[0], -1.7) })
			if n > 10_000 {
				n = 40_001 // enough to be shared by threads
				y, x1, x2, a = out("y", v.garbage(n)), in("a", a[:n]), in("b", b[:n]), a[:n]
			}
			c.compare("GELU/"+name, []operand{y, x1}, func(d device, m mems) { d.GELU(m[0], m[1]) })
			c.compare("GELU/wide/"+name, []operand{y, in("x", v.normal(n, 30))}, func(d device, m mems) { d.GELU(m[0], m[1]) })
			c.compare("GELUBack/"+name, []operand{y, x1, x2}, func(d device, m mems) { d.GELUBack(m[0], m[1], m[2]) })
			c.compare("GELUBack/inplace/"+name, []operand{out("dx", a), x2}, func(d device, m mems) { d.GELUBack(m[0], m[0], m[1]) })
			c.compare("GELUBack/wide/"+name, []operand{y, x1, in("x", v.normal(n, 10))}, func(d device, m mems) { d.GELUBack(m[0], m[1], m[2]) })
			c.compare("SumSquares/"+name, []operand{out("y", make([]float32, 3)), x1}, func(d device, m mems) {
				// The three parts of the float64, since only float32 are compared.
				s := d.SumSquares(m[1])
				p := []float32{float32(s), 0, 0}
				p[1] = float32(s - float64(p[0]))
				p[2] = float32(s - float64(p[0]) - float64(p[1]))
				d.Write(m[0], p)
			})
		}
	}
	for _, h := range lengths {
		n := 1 + 60_000/h/17
		v := draw("geglu", h)
		x, dy := v.normal(n*2*h, 2), v.normal(n*h, 1)
		name := fmt.Sprint(n, "x", h)
		c.compare("GeGLU/"+name, []operand{out("y", v.garbage(n*h)), in("x", x)}, func(d device, m mems) { d.GeGLU(m[0], m[1], n, h) })
		c.compare("GeGLUBack/"+name, []operand{out("dx", v.garbage(n*2*h)), in("dy", dy), in("x", x)}, func(d device, m mems) {
			d.GeGLUBack(m[0], m[1], m[2], n, h)
		})
	}
}

func norms(c comparison) {
	for _, w := range lengths {
		for _, n := range []int{1, 3, kernels.Block + 3} {
			if n > 3 && w > 33 {
				n = 70 // with 1000 wide, enough to be shared by threads
			}
			v := draw("norm", w, n)
			x, gamma, beta, dy := v.normal(n*w, 2), v.normal(w, 1), v.normal(w, 1), v.normal(n*w, 1)
			stats := v.normal(2*n, 1)
			name := fmt.Sprint(n, "x", w)
			y, st, xi, gi, si := out("y", v.garbage(n*w)), out("stats", v.garbage(2*n)), in("x", x), in("gamma", gamma), in("stats", stats)
			c.compare("LayerNorm/"+name, []operand{y, st, xi, gi, in("beta", beta)}, func(d device, m mems) {
				d.LayerNorm(m[0], m[1], m[2], m[3], m[4], n, w, 1e-5)
			})
			c.compare("LayerNorm/nobeta,inplace/"+name, []operand{out("x", x), st, gi}, func(d device, m mems) {
				d.LayerNorm(m[0], m[1], m[0], m[2], kernels.Mem{}, n, w, 1e-12)
			})
			c.compare("LayerNormBack/"+name, []operand{y, in("dy", dy), xi, si, gi}, func(d device, m mems) {
				d.LayerNormBack(m[0], nil, nil, m[1], m[2], m[3], m[4], n, w, false)
			})
			for _, fill := range []int{0, 5, kernels.Block - 1} {
				ops := []operand{out("dx", dy), xi, si, gi,
					out("gsum", v.normal(w, 1)), out("gopen", v.normal(w, 1)), out("bsum", v.normal(w, 1)), out("bopen", v.normal(w, 1))}
				c.compare(fmt.Sprintf("LayerNormBack/inplace/%s,fill=%d", name, fill), ops, func(d device, m mems) {
					g, b := grad(m[4], m[5], fill), grad(m[6], m[7], fill)
					d.LayerNormBack(m[0], g, b, m[0], m[1], m[2], m[3], n, w, false)
					settle(d, g)
					settle(d, b)
				})
			}
			c.compare("LayerNormBack/add/"+name, []operand{out("dx", v.normal(n*w, 1)), in("dy", dy), xi, si, gi, out("bsum", v.normal(w, 1)), out("bopen", v.normal(w, 1))}, func(d device, m mems) {
				b := grad(m[5], m[6], 3)
				d.LayerNormBack(m[0], nil, b, m[1], m[2], m[3], m[4], n, w, true)
				settle(d, b)
			})
			c.compare("ColumnSum/"+name, []operand{out("sum", v.normal(w, 1)), out("open", v.normal(w, 1)), in("dy", dy)}, func(d device, m mems) {
				g := grad(m[0], m[1], 7)
				d.ColumnSum(g, m[2], n, w)
				settle(d, g)
			})
		}
	}
}

func moves(c comparison) {
	for _, w := range lengths {
		const table, n = 40, 23
		v := draw("moves", w)
		ids := v.ids(n, table)
		distinct := make([]int32, n)
		for i, p := range v.r.Perm(table)[:n] {
			distinct[i] = int32(p)
		}
		src, y := v.normal(table*w, 1), v.normal(n*w, 1)
		for _, add := range []bool{false, true} {
			name := fmt.Sprintf("%d,add=%v", w, add)
			c.compare("Gather/"+name, []operand{out("y", y), in("src", src)}, func(d device, m mems) { d.Gather(m[0], m[1], ids, w, add) })
			to := distinct
			if add {
				to = ids
			}
			c.compare("Scatter/"+name, []operand{out("dst", src), in("src", y)}, func(d device, m mems) { d.Scatter(m[0], m[1], to, w, add) })
		}
		c.compare(fmt.Sprint("Copy/", w), []operand{out("dst", v.garbage(w)), in("src", src[:w])}, func(d device, m mems) { d.Copy(m[0], m[1]) })
		c.compare(fmt.Sprint("Zero/", w), []operand{out("m", v.garbage(w))}, func(d device, m mems) { d.Zero(m[0]) })
	}
	// Enough rows to be shared by threads.
	const w, n = 64, 9000
	v := draw("many moves")
	ids := v.ids(n, 50)
	c.compare("Scatter/many", []operand{out("dst", v.normal(50*w, 1)), in("src", v.normal(n*w, 1))}, func(d device, m mems) {
		d.Scatter(m[0], m[1], ids, w, true)
	})
	c.compare("Gather/many", []operand{out("y", v.garbage(n*w)), in("src", v.normal(50*w, 1))}, func(d device, m mems) {
		d.Gather(m[0], m[1], ids, w, false)
	})
}

func attentions(c comparison) {
	for _, at := range []struct {
		a    kernels.Attention
		rows []int
	}{
		{kernels.Attention{Heads: 1, Dim: 2, Window: -1}, []int{1}},
		{kernels.Attention{Heads: 2, Dim: 32, Window: -1}, []int{1, 17, 5, 33}},
		{kernels.Attention{Heads: 3, Dim: 10, Window: -1}, []int{12, 0, 40, 2}},
		{kernels.Attention{Heads: 2, Dim: 32, Window: 64}, []int{20, 300, 1}},
		{kernels.Attention{Heads: 1, Dim: 64, Window: 3}, []int{61, 4, 7}},
		{kernels.Attention{Heads: 1, Dim: 16, Window: 0}, []int{50}},
		{kernels.Attention{Heads: 1, Dim: 8, Window: -1}, []int{530}},
	} {
		seg := segments(at.rows...)
		n, w := seg.Tokens(), at.a.Heads*at.a.Dim
		// With gradients so small, chains end in zeros of either sign.
		for i, spread := range []float64{1, 8, 8} {
			small := []float64{1, 1, 1e-38}[i]
			if i > 0 && n > 500 {
				continue // one is enough of what is slow
			}
			v := draw("attention", at.a, at.rows, i)
			qkv, do := v.normal(n*3*w, spread), v.normal(n*w, small)
			name := fmt.Sprintf("%+v,%v,spread=%v,small=%v", at.a, at.rows, spread, small)
			x := in("qkv", qkv)
			c.compare("Attend/"+name, []operand{out("o", v.garbage(n*w)), out("stats", v.garbage(2*at.a.Heads*n)), x}, func(d device, m mems) {
				d.Attend(m[0], m[1], m[2], seg, at.a)
			})
			r := apply(c.T, c.ref, []operand{out("o", v.garbage(n*w)), out("stats", v.garbage(2*at.a.Heads*n)), x}, func(d device, m mems) {
				d.Attend(m[0], m[1], m[2], seg, at.a)
			})
			c.compare("AttendBack/"+name, []operand{out("dqkv", v.garbage(n*3*w)), in("do", do), in("o", r[0]), in("stats", r[1]), x}, func(d device, m mems) {
				d.AttendBack(m[0], m[1], m[2], m[3], m[4], seg, at.a)
			})
			for _, back := range []bool{false, true} {
				c.compare(fmt.Sprintf("Rope/%s,back=%v", name, back), []operand{out("qkv", qkv)}, func(d device, m mems) {
					d.Rope(m[0], seg, at.a, 160000, back)
				})
			}
		}
	}
}

func segmented(c comparison) {
	for _, w := range lengths {
		seg := segments(1, 3, 0, 17, 2)
		n, r := seg.Tokens(), seg.Rows()
		v := draw("segments", w)
		c.compare(fmt.Sprint("SegmentMean/", w), []operand{out("y", v.garbage(r*w)), in("x", v.normal(n*w, 1))}, func(d device, m mems) {
			d.SegmentMean(m[0], m[1], seg, w)
		})
		c.compare(fmt.Sprint("SegmentMeanBack/", w), []operand{out("dx", v.normal(n*w, 1)), in("dy", v.normal(r*w, 1))}, func(d device, m mems) {
			d.SegmentMeanBack(m[0], m[1], seg, w)
		})
		const cn, on, pairs = 3, 5, 19
		cs, os := v.normal(cn*w, 1), v.normal(on*w, 1)
		copy(os, cs[:w/2]) // equal values have slope 0
		ci, oi := v.ids(pairs, cn), v.ids(pairs, on)
		c.compare(fmt.Sprint("Probe/", w), []operand{out("y", v.garbage(pairs*4*w)), in("cs", cs), in("os", os)}, func(d device, m mems) {
			d.Probe(m[0], m[1], m[2], ci, oi, w)
		})
		c.compare(fmt.Sprint("ProbeBack/", w), []operand{out("dcs", v.normal(cn*w, 1)), out("dos", v.normal(on*w, 1)), in("dy", v.normal(pairs*4*w, 1)), in("cs", cs), in("os", os)}, func(d device, m mems) {
			d.ProbeBack(m[0], m[1], m[2], m[3], m[4], ci, oi, w)
		})
	}
}

func optimizer(c comparison) {
	a := kernels.AdamW{LR: 3e-4, Beta1: .9, Beta2: .98, Eps: 1e-6, Decay: .01, C1: .19, C2: .0396, Scale: .37}
	for _, n := range append([]int{70_003}, lengths...) {
		v := draw("adamw", n)
		w, d, m, s, g, b := out("w", v.garbage(n)), out("d", v.normal(n, .1)), out("m", v.normal(n, .1)), out("v", v.positive(n)), in("grad", v.edgy(n)), in("base", v.normal(n, 1))
		c.compare(fmt.Sprint("AdamW/", n), []operand{w, d, m, s, g, b}, func(dv device, x mems) { dv.AdamW(x[0], x[1], x[2], x[3], x[4], x[5], a) })
		c.compare(fmt.Sprint("AdamW/nobase/", n), []operand{d, m, s, g}, func(dv device, x mems) {
			dv.AdamW(kernels.Mem{}, x[0], x[1], x[2], x[3], kernels.Mem{}, a)
		})
	}
}
