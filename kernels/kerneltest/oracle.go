package kerneltest

import (
	"math"
	"testing"

	"github.com/hanzoai/link/kernels"
)

// A function is an operation with its way back, and what it is in float64.
type function struct {
	name   string
	inputs [][]float32
	outs   int // length of the output
	exact  func(x [][]float64) []float64
	// run is the operation; it returns its output and, given the output's
	// gradient, the gradients of the inputs.
	run func(d device, x mems) (y kernels.Mem, back func(dy kernels.Mem) mems)
}

// The stated errors: of a result and of a gradient, each relative to the largest
// of its tensor. The inputs below are of order 1 and the sums short, so that a
// float32 unit in the last place, 6e-8, is the yardstick.
const (
	forwardError  = 4e-7
	backwardError = 6e-7
)

// Oracle compares every operation of d with float64, and its way back with
// central differences of that.
func Oracle(t *testing.T, d kernels.Device) {
	for _, f := range functions() {
		t.Run(f.name, func(t *testing.T) { f.check(t, d) })
	}
	t.Run("AdamW", func(t *testing.T) { exactAdamW(t, d) })
	t.Run("SumSquares", func(t *testing.T) { exactSquares(t, d) })
}

func (f function) check(t *testing.T, d device) {
	x := make([][]float64, len(f.inputs))
	in := make(mems, len(f.inputs))
	for i, v := range f.inputs {
		in[i] = host(d, v)
		for _, e := range v {
			x[i] = append(x[i], float64(e))
		}
	}
	y, back := f.run(d, in)
	if y.Len != f.outs {
		t.Fatalf("output has %d values, want %d", y.Len, f.outs)
	}
	near(t, "result", read(d, y), f.exact(x), forwardError)
	dy := draw(f.name, "dy").normal(f.outs, 1)
	grads := back(host(d, dy))
	for i, g := range grads {
		if g.None() {
			continue
		}
		want := make([]float64, len(x[i]))
		for k := range want {
			const h = 1e-5
			at := x[i][k]
			x[i][k] = at + h
			up := f.exact(x)
			x[i][k] = at - h
			down := f.exact(x)
			x[i][k] = at
			for j := range up {
				want[k] += float64(dy[j]) * (up[j] - down[j]) / (2 * h)
			}
		}
		near(t, "gradient", read(d, g), want, backwardError)
	}
}

// near fails t where got is further from want than limit times the largest of want.
func near(t *testing.T, what string, got []float32, want []float64, limit float64) {
	t.Helper()
	var size, worst float64
	for _, w := range want {
		size = max(size, math.Abs(w))
	}
	for i, w := range want {
		e := math.Abs(float64(got[i])-w) / size
		if !(e <= limit) {
			t.Errorf("%s[%d] = %v, want %v: off by %.2g of the largest", what, i, got[i], w, e)
			return
		}
		worst = max(worst, e)
	}
	t.Logf("%s: off by at most %.2g of the largest", what, worst)
}

// sum closes g and gives its sum.
func sum(d device, g *kernels.Grad) kernels.Mem {
	d.Close(g)
	return g.Sum
}

func newGrad(d device, n int) *kernels.Grad {
	return &kernels.Grad{Sum: d.Alloc(n), Open: d.Alloc(n)}
}

func functions() []function {
	var fs []function
	add := func(f function) { fs = append(fs, f) }
	{
		const t, i, o = 5, 11, 7
		v := draw("oracle linear")
		add(function{"Linear", [][]float32{v.normal(t*i, 1), v.normal(o*i, 1), v.normal(o, 1)}, t * o,
			func(x [][]float64) []float64 { return linear(x[0], x[1], x[2], t, i, o) },
			func(d device, x mems) (kernels.Mem, func(kernels.Mem) mems) {
				y := d.Alloc(t * o)
				d.Linear(y, x[0], x[1], x[2], t, i, o)
				return y, func(dy kernels.Mem) mems {
					dx, dw, db := d.Alloc(t*i), newGrad(d, o*i), newGrad(d, o)
					d.LinearInput(dx, dy, x[1], t, i, o, false)
					d.LinearWeight(dw, dy, x[0], t, i, o)
					d.ColumnSum(db, dy, t, o)
					return mems{dx, sum(d, dw), sum(d, db)}
				}
			}})
	}
	{
		const t, w, eps = 4, 19, 1e-5
		v := draw("oracle norm")
		add(function{"LayerNorm", [][]float32{v.normal(t*w, 1), v.normal(w, 1), v.normal(w, 1)}, t * w,
			func(x [][]float64) []float64 { return norm(x[0], x[1], x[2], t, w, eps) },
			func(d device, x mems) (kernels.Mem, func(kernels.Mem) mems) {
				y, stats := d.Alloc(t*w), d.Alloc(2*t)
				d.LayerNorm(y, stats, x[0], x[1], x[2], t, w, eps)
				return y, func(dy kernels.Mem) mems {
					dx, dg, db := d.Alloc(t*w), newGrad(d, w), newGrad(d, w)
					d.LayerNormBack(dx, dg, db, dy, x[0], stats, x[1], t, w, false)
					return mems{dx, sum(d, dg), sum(d, db)}
				}
			}})
	}
	{
		const n = 60
		add(function{"GELU", [][]float32{draw("oracle gelu").normal(n, 2)}, n,
			func(x [][]float64) []float64 { return each(x[0], gelu) },
			func(d device, x mems) (kernels.Mem, func(kernels.Mem) mems) {
				y := d.Alloc(n)
				d.GELU(y, x[0])
				return y, func(dy kernels.Mem) mems {
					d.GELUBack(dy, dy, x[0])
					return mems{dy}
				}
			}})
	}
	{
		const t, h = 3, 9
		add(function{"GeGLU", [][]float32{draw("oracle geglu").normal(t*2*h, 1)}, t * h,
			func(x [][]float64) []float64 {
				y := make([]float64, t*h)
				for i := range y {
					r := x[0][i/h*2*h:]
					y[i] = gelu(r[i%h]) * r[h+i%h]
				}
				return y
			},
			func(d device, x mems) (kernels.Mem, func(kernels.Mem) mems) {
				y := d.Alloc(t * h)
				d.GeGLU(y, x[0], t, h)
				return y, func(dy kernels.Mem) mems {
					dx := d.Alloc(t * 2 * h)
					d.GeGLUBack(dx, dy, x[0], t, h)
					return mems{dx}
				}
			}})
	}
	for _, window := range []int{-1, 2} {
		a := kernels.Attention{Heads: 2, Dim: 4, Window: window}
		seg := segments(3, 9, 1)
		n, w := seg.Tokens(), a.Heads*a.Dim
		name := map[bool]string{true: "Attend/global", false: "Attend/window"}[window < 0]
		const theta = 100
		add(function{name, [][]float32{draw(name).normal(n*3*w, 1)}, n * w,
			func(x [][]float64) []float64 { return attend(x[0], seg, a, theta) },
			func(d device, x mems) (kernels.Mem, func(kernels.Mem) mems) {
				o, stats, qkv := d.Alloc(n*w), d.Alloc(2*a.Heads*n), d.Alloc(n*3*w)
				d.Copy(qkv, x[0])
				d.Rope(qkv, seg, a, theta, false)
				d.Attend(o, stats, qkv, seg, a)
				return o, func(do kernels.Mem) mems {
					dqkv := d.Alloc(n * 3 * w)
					d.AttendBack(dqkv, do, o, stats, qkv, seg, a)
					d.Rope(dqkv, seg, a, theta, true)
					return mems{dqkv}
				}
			}})
	}
	{
		const w = 5
		seg := segments(2, 7, 1)
		n, r := seg.Tokens(), seg.Rows()
		add(function{"SegmentMean", [][]float32{draw("oracle mean").normal(n*w, 1)}, r * w,
			func(x [][]float64) []float64 {
				y := make([]float64, r*w)
				for i := range y {
					lo, hi := int(seg[i/w]), int(seg[i/w+1])
					for k := lo; k < hi; k++ {
						y[i] += x[0][k*w+i%w] / float64(hi-lo)
					}
				}
				return y
			},
			func(d device, x mems) (kernels.Mem, func(kernels.Mem) mems) {
				y := d.Alloc(r * w)
				d.SegmentMean(y, x[0], seg, w)
				return y, func(dy kernels.Mem) mems {
					dx := d.Alloc(n * w)
					d.SegmentMeanBack(dx, dy, seg, w)
					return mems{dx}
				}
			}})
	}
	{
		const w = 6
		ci, oi := []int32{0, 1, 1, 0}, []int32{2, 0, 2, 2}
		v := draw("oracle probe")
		add(function{"Probe", [][]float32{v.normal(2*w, 1), v.normal(3*w, 1)}, 4 * w * len(ci),
			func(x [][]float64) []float64 {
				var y []float64
				for i := range ci {
					c, o := x[0][int(ci[i])*w:][:w], x[1][int(oi[i])*w:][:w]
					y = append(append(y, c...), o...)
					for k := range c {
						y = append(y, c[k]*o[k])
					}
					for k := range c {
						y = append(y, math.Abs(c[k]-o[k]))
					}
				}
				return y
			},
			func(d device, x mems) (kernels.Mem, func(kernels.Mem) mems) {
				y := d.Alloc(4 * w * len(ci))
				d.Probe(y, x[0], x[1], ci, oi, w)
				return y, func(dy kernels.Mem) mems {
					dc, do := d.Alloc(2*w), d.Alloc(3*w)
					d.ProbeBack(dc, do, dy, x[0], x[1], ci, oi, w)
					return mems{dc, do}
				}
			}})
	}
	{
		const w, table = 4, 3
		ids := []int32{2, 0, 2, 1, 2}
		add(function{"Gather", [][]float32{draw("oracle gather").normal(table*w, 1)}, len(ids) * w,
			func(x [][]float64) []float64 {
				var y []float64
				for _, id := range ids {
					y = append(y, x[0][int(id)*w:][:w]...)
				}
				return y
			},
			func(d device, x mems) (kernels.Mem, func(kernels.Mem) mems) {
				y := d.Alloc(len(ids) * w)
				d.Gather(y, x[0], ids, w, false)
				return y, func(dy kernels.Mem) mems {
					dx := d.Alloc(table * w)
					d.Scatter(dx, dy, ids, w, true)
					return mems{dx}
				}
			}})
	}
	{
		const n = 21
		v := draw("oracle arithmetic")
		add(function{"Add, Mul and Scale", [][]float32{v.normal(n, 1), v.normal(n, 1)}, n,
			func(x [][]float64) []float64 {
				y := make([]float64, n)
				for i := range y {
					y[i] = .3 * (x[0][i]*x[1][i] + x[1][i])
				}
				return y
			},
			func(d device, x mems) (kernels.Mem, func(kernels.Mem) mems) {
				y := d.Alloc(n)
				d.Mul(y, x[0], x[1])
				d.Add(y, y, x[1])
				d.Scale(y, .3)
				return y, func(dy kernels.Mem) mems {
					d0, d1 := d.Alloc(n), d.Alloc(n)
					d.Scale(dy, .3)
					d.Mul(d0, dy, x[1])
					d.Mul(d1, dy, x[0])
					d.Add(d1, d1, dy)
					return mems{d0, d1}
				}
			}})
	}
	return fs
}

func each(x []float64, f func(float64) float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = f(v)
	}
	return y
}

func gelu(x float64) float64 { return x * (1 + math.Erf(x/math.Sqrt2)) / 2 }

func linear(x, w, b []float64, t, in, out int) []float64 {
	y := make([]float64, t*out)
	for i := range y {
		y[i] = b[i%out]
		for k := range in {
			y[i] += x[i/out*in+k] * w[i%out*in+k]
		}
	}
	return y
}

func norm(x, gamma, beta []float64, t, w int, eps float64) []float64 {
	y := make([]float64, t*w)
	for i := range t {
		r := x[i*w : (i+1)*w]
		var mean, variance float64
		for _, v := range r {
			mean += v / float64(w)
		}
		for _, v := range r {
			variance += (v - mean) * (v - mean) / float64(w)
		}
		for k, v := range r {
			y[i*w+k] = (v-mean)/math.Sqrt(variance+eps)*gamma[k] + beta[k]
		}
	}
	return y
}

// attend turns queries and keys by theta and attends.
func attend(qkv []float64, seg kernels.Segments, a kernels.Attention, theta float64) []float64 {
	w, h := a.Heads*a.Dim, a.Dim/2
	y := make([]float64, seg.Tokens()*w)
	turned := func(i, lo, part, head int) []float64 {
		v := qkv[i*3*w+part*w+head*a.Dim:][:a.Dim]
		r := make([]float64, a.Dim)
		for k := range h {
			s, c := math.Sincos(float64(i-lo) * math.Pow(theta, -2*float64(k)/float64(a.Dim)))
			r[k], r[h+k] = v[k]*c-v[h+k]*s, v[k]*s+v[h+k]*c
		}
		return r
	}
	for r := range seg.Rows() {
		lo, hi := int(seg[r]), int(seg[r+1])
		for head := range a.Heads {
			for i := lo; i < hi; i++ {
				q := turned(i, lo, 0, head)
				var total float64
				o := y[i*w+head*a.Dim:][:a.Dim]
				for j := lo; j < hi; j++ {
					if a.Window >= 0 && max(i-j, j-i) > a.Window {
						continue
					}
					var s float64
					for k, e := range turned(j, lo, 1, head) {
						s += q[k] * e / math.Sqrt(float64(a.Dim))
					}
					p := math.Exp(s)
					total += p
					for k := range o {
						o[k] += p * qkv[j*3*w+2*w+head*a.Dim+k]
					}
				}
				for k := range o {
					o[k] /= total
				}
			}
		}
	}
	return y
}

func exactAdamW(t *testing.T, d device) {
	const n = 50
	a := kernels.AdamW{LR: 1e-2, Beta1: .9, Beta2: .98, Eps: 1e-6, Decay: .1, C1: .19, C2: .0396, Scale: .5}
	v := draw("oracle adamw")
	delta, m, s, g, base := v.normal(n, 1), v.normal(n, 1), v.positive(n), v.normal(n, 1), v.normal(n, 1)
	md, mm, ms, mw := host(d, delta), host(d, m), host(d, s), d.Alloc(n)
	d.AdamW(mw, md, mm, ms, host(d, g), host(d, base), a)
	var wd, wm, ws, ww []float64
	for i := range n {
		gi := float64(a.Scale) * float64(g[i])
		mi := float64(a.Beta1)*float64(m[i]) + (1-float64(a.Beta1))*gi
		si := float64(a.Beta2)*float64(s[i]) + (1-float64(a.Beta2))*gi*gi
		di := float64(delta[i])
		di -= float64(a.LR) * (mi/float64(a.C1)/(math.Sqrt(si/float64(a.C2))+float64(a.Eps)) + float64(a.Decay)*di)
		wd, wm, ws, ww = append(wd, di), append(wm, mi), append(ws, si), append(ww, float64(base[i])+di)
	}
	near(t, "d", read(d, md), wd, forwardError)
	near(t, "m", read(d, mm), wm, forwardError)
	near(t, "v", read(d, ms), ws, forwardError)
	near(t, "w", read(d, mw), ww, forwardError)
}

func exactSquares(t *testing.T, d device) {
	x := draw("oracle squares").normal(10_007, 3)
	var want float64
	for _, v := range x {
		want += float64(v) * float64(v)
	}
	if got := d.SumSquares(host(d, x)); math.Abs(got-want) > 1e-13*want {
		t.Errorf("SumSquares = %v, want %v", got, want)
	}
}
