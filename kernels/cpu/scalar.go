package cpu

import (
	"math"

	"github.com/hanzoai/link/kernels"
)

// This file holds the loops that the vector code equals, bit for bit. Each
// function's body is its definition. Products that are added to something are
// written fma, or converted to float32 first, since Go may fuse x*y + z on some
// machines.

const lanes = 16

// fma is x*y + z rounded once.
func fma(x, y, z float32) float32 { return kernels.FMA(x, y, z) }

// tree sums the lanes: lane i adds lane i+8, then i+4, i+2, i+1.
func tree(l *[lanes]float32) float32 {
	for h := lanes / 2; h > 0; h /= 2 {
		for i := range h {
			l[i] += l[i+h]
		}
	}
	return l[0]
}

func sqrt(x float32) float32 { return float32(math.Sqrt(float64(x))) }

// dotScalar is Σ a*b in 16 lanes of fused multiply-adds.
func dotScalar(a, b []float32) float32 {
	var l [lanes]float32
	for i := range a {
		l[i%lanes] = fma(a[i], b[i], l[i%lanes])
	}
	return tree(&l)
}

// chainScalar is Σ a[i]*b[i*stride], n terms, as one chain from c.
func chainScalar(c float32, n int, a []float32, astride int, b []float32, bstride int) float32 {
	for i := range n {
		c = fma(a[i*astride], b[i*bstride], c)
	}
	return c
}

func addScalar(y, a, b []float32) {
	for i := range y {
		y[i] = a[i] + b[i]
	}
}

func mulScalar(y, a, b []float32) {
	for i := range y {
		y[i] = a[i] * b[i]
	}
}

// scaleScalar is y = x*s + 0. The sum turns -0 into +0: a chain that also took
// terms of weight 0 cannot be told from one that did not.
func scaleScalar(y, x []float32, s float32) {
	for i := range y {
		y[i] = float32(x[i]*s) + 0
	}
}

func sumSquaresScalar(x []float32) float64 {
	var l [lanes]float64
	return squaresFrom(&l, x)
}

// squaresFrom adds the squares of x to the lanes, the first to lane 0, and sums
// the lanes as tree does. A float32 squared is exact in float64.
func squaresFrom(l *[lanes]float64, x []float32) float64 {
	for i, v := range x {
		l[i%lanes] += float64(v) * float64(v)
	}
	for h := lanes / 2; h > 0; h /= 2 {
		for i := range h {
			l[i] += l[i+h]
		}
	}
	return l[0]
}

// normScalar is the layer norm of one row; beta may be nil.
func normScalar(y, x, gamma, beta []float32, eps float32) (mean, rstd float32) {
	d := float32(len(x))
	var l [lanes]float32
	for i, v := range x {
		l[i%lanes] += v
	}
	mean = tree(&l) / d
	l = [lanes]float32{}
	for i, v := range x {
		l[i%lanes] = fma(v-mean, v-mean, l[i%lanes])
	}
	rstd = 1 / sqrt(tree(&l)/d+eps)
	for i, v := range x {
		h := float32((v - mean) * rstd)
		if beta != nil {
			y[i] = fma(h, gamma[i], beta[i])
		} else {
			y[i] = h * gamma[i]
		}
	}
	return mean, rstd
}

// normBackScalar is the gradient of one row's input. With g = dy*gamma and
// h = (x-mean)*rstd it is (g - Σg/d - h*Σ(g*h)/d) * rstd.
func normBackScalar(dx, dy, x, gamma []float32, mean, rstd float32, add bool) {
	d := float32(len(x))
	var l1, l2 [lanes]float32
	for i := range x {
		g := float32(dy[i] * gamma[i])
		h := float32((x[i] - mean) * rstd)
		l1[i%lanes] += g
		l2[i%lanes] = fma(g, h, l2[i%lanes])
	}
	m1, m2 := tree(&l1)/d, tree(&l2)/d
	for i := range x {
		g := float32(dy[i] * gamma[i])
		h := float32((x[i] - mean) * rstd)
		v := float32(fma(-h, m2, g-m1) * rstd)
		if add {
			v = dx[i] + v
		}
		dx[i] = v
	}
}

// normGradScalar continues the chains of dgamma with one row.
func normGradScalar(dgamma, dy, x []float32, mean, rstd float32) {
	for i := range dgamma {
		dgamma[i] = fma(dy[i], float32((x[i]-mean)*rstd), dgamma[i])
	}
}

const (
	sqrtHalf   float32 = 0.70710678 // 1/sqrt 2
	rsqrtTwoPi float32 = 0.39894228 // 1/sqrt(2 pi)
)

func gelu1(x float32) float32 {
	h := 0.5 * x
	return fma(h, kernels.Erf(x*sqrtHalf), h)
}

// geluSlope1 is gelu'(x) = (1+erf(x/sqrt 2))/2 + x*exp(-x²/2)/sqrt(2 pi).
func geluSlope1(x float32) float32 {
	c := fma(0.5, kernels.Erf(x*sqrtHalf), 0.5)
	p := float32(kernels.Exp(float32(x*x)*-0.5) * rsqrtTwoPi)
	return fma(x, p, c)
}

func geluScalar(y, x []float32) {
	for i, v := range x {
		y[i] = gelu1(v)
	}
}

func geluBackScalar(dx, dy, x []float32) {
	for i, v := range x {
		dx[i] = dy[i] * geluSlope1(v)
	}
}

func gegluScalar(y, a, b []float32) {
	for i, v := range a {
		y[i] = gelu1(v) * b[i]
	}
}

func gegluBackScalar(da, db, dy, a, b []float32) {
	for i, v := range a {
		da[i] = float32(dy[i]*b[i]) * geluSlope1(v)
		db[i] = dy[i] * gelu1(v)
	}
}

// softmaxScalar replaces the scores s by e = exp((s-max)*scale) and returns
// max and Σe.
func softmaxScalar(s []float32, scale float32) (top, sum float32) {
	var l [lanes]float32
	for i := range l {
		l[i] = float32(math.Inf(-1))
	}
	for i, v := range s {
		if v > l[i%lanes] {
			l[i%lanes] = v
		}
	}
	for h := lanes / 2; h > 0; h /= 2 {
		for i := range h {
			if l[i+h] > l[i] {
				l[i] = l[i+h]
			}
		}
	}
	top = l[0]
	l = [lanes]float32{}
	for i, v := range s {
		s[i] = kernels.Exp((v - top) * scale)
		l[i%lanes] += s[i]
	}
	return top, tree(&l)
}

// softmaxBackScalar replaces the scores s by their probabilities
// p = exp((s-top)*scale)*inv, and dp by p*(dp-dot).
func softmaxBackScalar(s, dp []float32, top, scale, inv, dot float32) {
	for i, v := range s {
		p := kernels.Exp((v-top)*scale) * inv
		s[i] = p
		dp[i] = p * (dp[i] - dot)
	}
}

// ropeScalar turns the pairs (a[i], b[i]) by the angles of cosine c and sine s.
func ropeScalar(a, b, c, s []float32) {
	for i := range a {
		x, y := a[i], b[i]
		a[i] = fma(x, c[i], -float32(y*s[i]))
		b[i] = fma(x, s[i], float32(y*c[i]))
	}
}

// adamwScalar is [kernels.AdamW]; base may be nil, and then w too.
func adamwScalar(w, d, m, v, grad, base []float32, a *kernels.AdamW) {
	n1, n2 := 1-a.Beta1, 1-a.Beta2
	for i := range d {
		g := float32(a.Scale * grad[i])
		m[i] = fma(a.Beta1, m[i], float32(n1*g))
		v[i] = fma(a.Beta2, v[i], float32(float32(n2*g)*g))
		u := float32(m[i] / a.C1 / (sqrt(v[i]/a.C2) + a.Eps))
		u = float32(a.LR * float32(u+float32(a.Decay*d[i])))
		d[i] -= u
		if base != nil {
			w[i] = base[i] + d[i]
		}
	}
}
