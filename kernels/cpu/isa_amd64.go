package cpu

import (
	"golang.org/x/sys/cpu"

	"github.com/hanzoai/link/kernels"
)

//go:generate go run ./gen -set AVX2 -out avx2_amd64.s -stubs avx2_amd64.go -pkg cpu
//go:generate go run ./gen -set AVX512 -out avx512_amd64.s -stubs avx512_amd64.go -pkg cpu

// tables are this machine's instruction sets, the best first.
func tables() []table {
	var t []table
	avx2 := cpu.X86.HasAVX2 && cpu.X86.HasFMA
	if avx2 && cpu.X86.HasAVX512F && cpu.X86.HasBMI2 {
		t = append(t, avx512Code.table())
	}
	if avx2 {
		t = append(t, avx2Code.table())
	}
	return append(t, scalar)
}

// code is what the generator writes for one instruction set, in its own terms:
// pointers and lengths, no empty rows.
type code struct {
	isa         ISA
	rows, width int // the tile's rows; floats a register
	gemm        func(k int, a, b, c *float32, ldc int, mode int)
	turnA       func(dst, src *float32, stride, blocks, step int) // rows lines
	turnB       func(dst, src *float32, stride, blocks, step int) // width lines
	copyA       func(dst, src *float32, stride, k, n, step int)   // rows wide
	copyB       func(dst, src *float32, stride, k, n, step int)   // 2*width wide
	add, mul    func(y, a, b *float32, n int)
	scale       func(y, x *float32, n int, s float32)
	dot         func(a, b *float32, n int) float32
	sumSquares  func(x *float32, n int, lanes *float64)
	norm        func(y, x, gamma, beta *float32, n int, eps float32) (mean, rstd float32)
	normBack    func(dx, dy, x, gamma *float32, n int, mean, rstd float32, add bool)
	normGrad    func(dgamma, dy, x *float32, n int, mean, rstd float32)
	gelu        func(y, x *float32, n int)
	geluBack    func(dx, dy, x *float32, n int)
	geglu       func(y, a, b *float32, n int)
	gegluBack   func(da, db, dy, a, b *float32, n int)
	softmax     func(s *float32, n int, scale float32) (top, sum float32)
	softmaxBack func(s, dp *float32, n int, top, scale, inv, dot float32)
	rope        func(a, b, c, s *float32, n int)
	adamw       func(d, m, v, grad, w, base, factors *float32, n int)
}

var avx2Code = code{
	isa: AVX2, rows: 6, width: 8,
	gemm: gemmAVX2, turnA: turnAAVX2, turnB: turnBAVX2, copyA: copyAAVX2, copyB: copyBAVX2,
	add: addAVX2, mul: mulAVX2, scale: scaleAVX2, dot: dotAVX2, sumSquares: sumSquaresAVX2,
	norm: normAVX2, normBack: normBackAVX2, normGrad: normGradAVX2,
	gelu: geluAVX2, geluBack: geluBackAVX2, geglu: gegluAVX2, gegluBack: gegluBackAVX2,
	softmax: softmaxAVX2, softmaxBack: softmaxBackAVX2, rope: ropeAVX2, adamw: adamwAVX2,
}

var avx512Code = code{
	isa: AVX512, rows: 12, width: 16,
	gemm: gemmAVX512, turnA: turnAAVX512, turnB: turnBAVX512, copyA: copyAAVX512, copyB: copyBAVX512,
	add: addAVX512, mul: mulAVX512, scale: scaleAVX512, dot: dotAVX512, sumSquares: sumSquaresAVX512,
	norm: normAVX512, normBack: normBackAVX512, normGrad: normGradAVX512,
	gelu: geluAVX512, geluBack: geluBackAVX512, geglu: gegluAVX512, gegluBack: gegluBackAVX512,
	softmax: softmaxAVX512, softmaxBack: softmaxBackAVX512, rope: ropeAVX512, adamw: adamwAVX512,
}

// first is the address of s[0], or nil.
func first(s []float32) *float32 {
	if len(s) == 0 {
		return nil
	}
	return &s[0]
}

func (c *code) table() table {
	return table{
		isa:  c.isa,
		rows: c.rows,
		cols: 2 * c.width,
		gemm: func(k int, a, b, out []float32, ldc int, mode mode) {
			c.gemm(k, first(a), first(b), &out[0], ldc*4, int(mode))
		},
		turn: func(dst, src []float32, stride, width, k int) int {
			blocks := k / c.width
			if blocks == 0 {
				return 0
			}
			if width == c.rows {
				c.turnA(&dst[0], &src[0], stride*4, blocks, width*4)
			} else {
				c.turnB(&dst[0], &src[0], stride*4, blocks, width*4)
				c.turnB(&dst[c.width], &src[c.width*stride], stride*4, blocks, width*4)
			}
			return blocks * c.width
		},
		interleave: func(dst, src []float32, stride, width, k, n int) {
			if k == 0 || n == 0 {
				return
			}
			pack := c.copyA
			if width != c.rows {
				pack = c.copyB
			}
			pack(&dst[0], &src[0], stride*4, k, n, k*width*4)
		},
		add:   func(y, a, b []float32) { c.add(first(y), first(a), first(b), len(y)) },
		mul:   func(y, a, b []float32) { c.mul(first(y), first(a), first(b), len(y)) },
		scale: func(y, x []float32, s float32) { c.scale(first(y), first(x), len(y), s) },
		dot:   func(a, b []float32) float32 { return c.dot(first(a), first(b), len(a)) },
		sumSquares: func(x []float32) float64 {
			var l [lanes]float64
			n := len(x) / lanes * lanes
			c.sumSquares(first(x), n, &l[0])
			return squaresFrom(&l, x[n:])
		},
		norm: func(y, x, gamma, beta []float32, eps float32) (mean, rstd float32) {
			return c.norm(first(y), first(x), first(gamma), first(beta), len(x), eps)
		},
		normBack: func(dx, dy, x, gamma []float32, mean, rstd float32, add bool) {
			c.normBack(first(dx), first(dy), first(x), first(gamma), len(x), mean, rstd, add)
		},
		normGrad: func(dgamma, dy, x []float32, mean, rstd float32) {
			c.normGrad(first(dgamma), first(dy), first(x), len(dgamma), mean, rstd)
		},
		gelu:     func(y, x []float32) { c.gelu(first(y), first(x), len(x)) },
		geluBack: func(dx, dy, x []float32) { c.geluBack(first(dx), first(dy), first(x), len(x)) },
		geglu:    func(y, a, b []float32) { c.geglu(first(y), first(a), first(b), len(a)) },
		gegluBack: func(da, db, dy, a, b []float32) {
			c.gegluBack(first(da), first(db), first(dy), first(a), first(b), len(a))
		},
		softmax: func(s []float32, scale float32) (top, sum float32) { return c.softmax(first(s), len(s), scale) },
		softmaxBack: func(s, dp []float32, top, scale, inv, dot float32) {
			c.softmaxBack(first(s), first(dp), len(s), top, scale, inv, dot)
		},
		rope: func(a, b, cos, sin []float32) { c.rope(first(a), first(b), first(cos), first(sin), len(a)) },
		adamw: func(w, d, m, v, grad, base []float32, a *kernels.AdamW) {
			f := adamwFactors(a)
			c.adamw(first(d), first(m), first(v), first(grad), first(w), first(base), &f[0], len(d))
		},
	}
}

// adamwFactors are the factors of one update in the order that the vector code
// takes them, a vector of each.
func adamwFactors(a *kernels.AdamW) (f [10 * lanes]float32) {
	for i, v := range []float32{a.Scale, a.Beta1, 1 - a.Beta1, a.Beta2, 1 - a.Beta2, a.C1, a.C2, a.Eps, a.Decay, a.LR} {
		for j := range lanes {
			f[i*lanes+j] = v
		}
	}
	return f
}
