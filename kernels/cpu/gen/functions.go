package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/hanzoai/link/kernels"
)

// Operand order here is the Go assembler's: VSUBPS(b, a, r) is r = a-b and
// VFMADD213PS(c, b, a) is a = b*a + c.

func (s *set) mul(a Op, b vec) vec {
	r := s.reg()
	VMULPS(a, b, r)
	return r
}

// sub is a - b.
func (s *set) sub(a vec, b Op) vec {
	r := s.reg()
	VSUBPS(b, a, r)
	return r
}

// horner is p = ((c[n]*x + c[n-1])*x + …) + c[0], fused.
func (s *set) horner(x vec, c []float32) vec {
	p := s.load(s.c(c[len(c)-1]))
	for i := len(c) - 2; i >= 0; i-- {
		VFMADD213PS(s.c(c[i]), x, p)
	}
	return p
}

// exp is kernels.Exp. With near, x must lie in [-87, 88], where 2^n is normal
// and one addition to the exponent equals the two multiplications.
func (s *set) exp(x vec, near bool) vec {
	r := s.reg()
	if near {
		VMOVAPS(x, r)
	} else {
		// MINPS and MAXPS return their second source for a NaN: x, here.
		t := s.load(s.c(kernels.ExpHigh))
		VMINPS(x, t, r)
		t = s.load(s.c(kernels.ExpLow))
		VMAXPS(r, t, r)
	}
	z := s.load(s.c(kernels.ExpMagic))
	VFMADD231PS(s.c(kernels.Log2E), r, z)
	n := s.sub(z, s.c(kernels.ExpMagic))
	VFMADD231PS(s.c(-kernels.Ln2High), n, r)
	VFMADD231PS(s.c(-kernels.Ln2Low), n, r)
	p := s.horner(r, kernels.ExpP[:])
	VFMADD213PS(r, s.mul(r, r), p)
	VADDPS(s.c(1), p, p)
	if near {
		VPSLLD(Imm(23), z, z)
		VPADDD(z, p, p)
		return p
	}
	i, h := s.reg(), s.reg()
	VPSUBD(s.c(kernels.ExpMagic), z, i)
	VPSRAD(Imm(1), i, h)
	VPSUBD(h, i, i)
	for _, e := range []vec{h, i} {
		VPADDD(s.bits(127), e, e)
		VPSLLD(Imm(23), e, e)
		VMULPS(e, p, p)
	}
	return p
}

// erf is kernels.Erf.
func (s *set) erf(x vec) vec {
	small := s.horner(s.mul(x, x), kernels.ErfP[:])
	VFMADD213PS(x, x, small)
	a := s.and(s.bits(1<<31-1), x)
	t := s.load(s.c(kernels.ErfEnd))
	VMINPS(a, t, t)
	q := s.horner(t, kernels.ErfQ[:])
	VFMSUB213PS(t, t, q)
	e := s.load(s.c(1))
	VSUBPS(s.exp(q, true), e, e)
	e = s.or(e, s.and(s.bits(1<<31), x))
	return s.ifAbove(a, s.c(kernels.ErfEdge), e, small)
}

// The factors of scalar.go.
const (
	sqrtHalf   float32 = 0.70710678
	rsqrtTwoPi float32 = 0.39894228
)

// gelu is gelu1 given erf(x/sqrt 2).
func (s *set) gelu(x, erf vec) vec {
	h := s.mul(s.c(0.5), x)
	y := s.reg()
	VMOVAPS(h, y)
	VFMADD231PS(erf, h, y)
	return y
}

// geluSlope is geluSlope1 given erf(x/sqrt 2).
func (s *set) geluSlope(x, erf vec) vec {
	c := s.load(s.c(0.5))
	VFMADD231PS(s.c(0.5), erf, c)
	p := s.exp(s.mul(s.c(-0.5), s.mul(x, x)), false)
	p = s.mul(s.c(rsqrtTwoPi), p)
	VFMADD231PS(p, x, c)
	return c
}

func (s *set) begin(name, signature, doc string) {
	TEXT(name+s.name, NOSPLIT, "func("+signature)
	Doc(doc)
	Pragma("noescape")
}

func finish() {
	VZEROUPPER()
	RET()
}

// elementwise are the functions that treat each value alone.
func (s *set) elementwise() {
	binary := func(name string, op func(b, a, r Op)) {
		s.begin(name, "y, a, b *float32, n int)", name+" equals "+name+"Scalar.")
		p := pointers("y", "a", "b")
		s.each(length("n"), false, p, func(l lot, _, d int) {
			r := s.get(ptr(p[1], d), l)
			if l == all {
				op(ptr(p[2], d), r, r)
			} else {
				op(s.get(ptr(p[2], d), l), r, r)
			}
			s.put(r, ptr(p[0], d), l)
		})
		finish()
	}
	binary("add", func(b, a, r Op) { VADDPS(b, a, r) })
	binary("mul", func(b, a, r Op) { VMULPS(b, a, r) })

	s.begin("scale", "y, x *float32, n int, s float32)", "scale equals scaleScalar.")
	p := pointers("y", "x")
	f, zero := s.broadcast("s"), s.zero()
	s.each(length("n"), false, p, func(l lot, _, d int) {
		r := s.mul(f, s.get(ptr(p[1], d), l))
		VADDPS(zero, r, r)
		s.put(r, ptr(p[0], d), l)
	})
	finish()

	s.begin("gelu", "y, x *float32, n int)", "gelu equals geluScalar.")
	p = pointers("y", "x")
	s.each(length("n"), false, p, func(l lot, _, d int) {
		x := s.get(ptr(p[1], d), l)
		s.put(s.gelu(x, s.erf(s.mul(s.c(sqrtHalf), x))), ptr(p[0], d), l)
	})
	finish()

	s.begin("geluBack", "dx, dy, x *float32, n int)", "geluBack equals geluBackScalar.")
	p = pointers("dx", "dy", "x")
	s.each(length("n"), false, p, func(l lot, _, d int) {
		x := s.get(ptr(p[2], d), l)
		g := s.geluSlope(x, s.erf(s.mul(s.c(sqrtHalf), x)))
		s.put(s.mul(s.get(ptr(p[1], d), l), g), ptr(p[0], d), l)
	})
	finish()

	s.begin("geglu", "y, a, b *float32, n int)", "geglu equals gegluScalar.")
	p = pointers("y", "a", "b")
	s.each(length("n"), false, p, func(l lot, _, d int) {
		x := s.get(ptr(p[1], d), l)
		y := s.gelu(x, s.erf(s.mul(s.c(sqrtHalf), x)))
		s.put(s.mul(s.get(ptr(p[2], d), l), y), ptr(p[0], d), l)
	})
	finish()

	s.begin("gegluBack", "da, db, dy, a, b *float32, n int)", "gegluBack equals gegluBackScalar.")
	p = pointers("da", "db", "dy", "a", "b")
	s.each(length("n"), false, p, func(l lot, _, d int) {
		x := s.get(ptr(p[3], d), l)
		erf := s.erf(s.mul(s.c(sqrtHalf), x))
		slope := s.geluSlope(x, erf)
		dy := s.get(ptr(p[2], d), l)
		da := s.mul(s.get(ptr(p[4], d), l), dy)
		s.put(s.mul(slope, da), ptr(p[0], d), l)
		s.put(s.mul(s.gelu(x, erf), dy), ptr(p[1], d), l)
	})
	finish()

	s.begin("softmaxBack", "s, dp *float32, n int, top, scale, inv, dot float32)", "softmaxBack equals softmaxBackScalar.")
	p = pointers("s", "dp")
	top, scale, inv, dot := s.broadcast("top"), s.broadcast("scale"), s.broadcast("inv"), s.broadcast("dot")
	s.each(length("n"), false, p, func(l lot, _, d int) {
		e := s.exp(s.mul(scale, s.sub(s.get(ptr(p[0], d), l), top)), false)
		e = s.mul(inv, e)
		s.put(e, ptr(p[0], d), l)
		s.put(s.mul(e, s.sub(s.get(ptr(p[1], d), l), dot)), ptr(p[1], d), l)
	})
	finish()

	s.begin("rope", "a, b, c, s *float32, n int)", "rope equals ropeScalar.")
	p = pointers("a", "b", "c", "s")
	s.each(length("n"), false, p, func(l lot, _, d int) {
		x, y := s.get(ptr(p[0], d), l), s.get(ptr(p[1], d), l)
		c, sn := s.get(ptr(p[2], d), l), s.get(ptr(p[3], d), l)
		a := s.mul(sn, y)
		VFMSUB231PS(c, x, a)
		b := s.mul(c, y)
		VFMADD231PS(sn, x, b)
		s.put(a, ptr(p[0], d), l)
		s.put(b, ptr(p[1], d), l)
	})
	finish()

	s.begin("normGrad", "dgamma, dy, x *float32, n int, mean, rstd float32)", "normGrad equals normGradScalar.")
	p = pointers("dgamma", "dy", "x")
	mean, rstd := s.broadcast("mean"), s.broadcast("rstd")
	s.each(length("n"), false, p, func(l lot, _, d int) {
		h := s.mul(rstd, s.sub(s.get(ptr(p[2], d), l), mean))
		g := s.get(ptr(p[0], d), l)
		VFMADD231PS(s.get(ptr(p[1], d), l), h, g)
		s.put(g, ptr(p[0], d), l)
	})
	finish()

	s.adamw()
}

// adamw takes the ten factors in the order of adamwFactors, 16 copies of each.
func (s *set) adamw() {
	s.begin("adamw", "d, m, v, grad, w, base, factors *float32, n int)", "adamw equals adamwScalar; w and base are not touched when base is nil.")
	p := pointers("d", "m", "v", "grad", "w", "base")
	factors := pointers("factors")[0]
	factor := func(i int) Mem { return ptr(factors, i*64) }
	scale, beta1, n1, beta2, n2 := factor(0), factor(1), factor(2), factor(3), factor(4)
	c1, c2, eps, decay, lr := factor(5), factor(6), factor(7), factor(8), factor(9)
	update := func(p []reg.Register, based bool) {
		s.each(length("n"), false, p, func(l lot, _, at int) {
			g := s.mul(scale, s.get(ptr(p[3], at), l))
			m := s.mul(n1, g)
			VFMADD231PS(beta1, s.get(ptr(p[1], at), l), m)
			s.put(m, ptr(p[1], at), l)
			v := s.mul(g, s.mul(n2, g))
			VFMADD231PS(beta2, s.get(ptr(p[2], at), l), v)
			s.put(v, ptr(p[2], at), l)
			root, u := s.reg(), s.reg()
			VDIVPS(c2, v, root)
			VSQRTPS(root, root)
			VADDPS(eps, root, root)
			VDIVPS(c1, m, u)
			VDIVPS(root, u, u)
			d := s.get(ptr(p[0], at), l)
			VADDPS(s.mul(decay, d), u, u)
			VMULPS(lr, u, u)
			VSUBPS(u, d, d)
			s.put(d, ptr(p[0], at), l)
			if based {
				VADDPS(s.get(ptr(p[5], at), l), d, d)
				s.put(d, ptr(p[4], at), l)
			}
		})
	}
	alone, done := label("alone"), label("done")
	TESTQ(p[5], p[5])
	JZ(LabelRef(alone))
	update(again(p...), true)
	JMP(LabelRef(done))
	Label(alone)
	update(again(p[:4]...), false)
	Label(done)
	finish()
}

// reductions are the functions that reduce along a row in 16 lanes.
func (s *set) reductions() {
	sums := func() []vec {
		var acc []vec
		for range s.halves() {
			acc = append(acc, s.zero())
		}
		return acc
	}
	// perCount is x / n in the lowest lane.
	perCount := func(x, n vec) { VDIVSS(n.AsX(), x.AsX(), x.AsX()) }
	count := func() vec {
		n := XMM()
		VXORPS(n, n, n)
		VCVTSI2SSQ(length("n"), n, n)
		return n
	}

	s.begin("dot", "a, b *float32, n int) float32", "dot equals dotScalar.")
	p := pointers("a", "b")
	acc := sums()
	s.each(length("n"), true, p, func(l lot, h, d int) {
		VFMADD231PS(s.get(ptr(p[1], d), l), s.get(ptr(p[0], d), l), acc[h])
	})
	VMOVSS(s.tree(acc, addOp), address(ReturnIndex(0)))
	finish()

	s.begin("norm", "y, x, gamma, beta *float32, n int, eps float32) (mean, rstd float32)", "norm equals normScalar.")
	y, x, gamma, beta := pointers("y")[0], pointers("x")[0], pointers("gamma")[0], pointers("beta")[0]
	acc = sums()
	q := again(x)
	s.each(length("n"), true, q, func(l lot, h, d int) {
		VADDPS(s.get(ptr(q[0], d), l), acc[h], acc[h])
	})
	m := s.tree(acc, addOp)
	perCount(m, count())
	VMOVSS(m, address(Return("mean")))
	mean := s.spread(m)
	acc = sums()
	q = again(x)
	s.each(length("n"), true, q, func(l lot, h, d int) {
		v := s.keep(s.sub(s.get(ptr(q[0], d), l), mean), l)
		VFMADD231PS(v, v, acc[h])
	})
	v := s.tree(acc, addOp)
	perCount(v, count())
	VADDSS(address(Param("eps")), v, v)
	VSQRTSS(v, v, v)
	r := XMM()
	VMOVUPS(s.c(1), r)
	VDIVSS(v, r, r)
	VMOVSS(r, address(Return("rstd")))
	rstd := s.spread(r)
	plain, done := label("plain"), label("done")
	TESTQ(beta, beta)
	JZ(LabelRef(plain))
	ps := again(y, x, gamma, beta)
	s.each(length("n"), false, ps, func(l lot, _, d int) {
		h := s.mul(rstd, s.sub(s.get(ptr(ps[1], d), l), mean))
		b := s.get(ptr(ps[3], d), l)
		VFMADD231PS(s.get(ptr(ps[2], d), l), h, b)
		s.put(b, ptr(ps[0], d), l)
	})
	JMP(LabelRef(done))
	Label(plain)
	pt := again(y, x, gamma)
	s.each(length("n"), false, pt, func(l lot, _, d int) {
		h := s.mul(rstd, s.sub(s.get(ptr(pt[1], d), l), mean))
		s.put(s.mul(s.get(ptr(pt[2], d), l), h), ptr(pt[0], d), l)
	})
	Label(done)
	finish()

	s.begin("normBack", "dx, dy, x, gamma *float32, n int, mean, rstd float32, add bool)", "normBack equals normBackScalar.")
	p = pointers("dx", "dy", "x", "gamma")
	mean, rstd = s.broadcast("mean"), s.broadcast("rstd")
	gh := func(p []Mem, l lot) (g, h vec) {
		g = s.mul(s.get(p[2], l), s.get(p[0], l))
		h = s.mul(rstd, s.sub(s.get(p[1], l), mean))
		return g, h
	}
	acc1, acc2 := sums(), sums()
	q = again(p[1], p[2], p[3])
	s.each(length("n"), true, q, func(l lot, half, d int) {
		// Outside the lot g is 0*0, so its lanes add +0.
		g, h := gh([]Mem{ptr(q[0], d), ptr(q[1], d), ptr(q[2], d)}, l)
		VADDPS(g, acc1[half], acc1[half])
		VFMADD231PS(g, s.keep(h, l), acc2[half])
	})
	n := count()
	t1 := s.tree(acc1, addOp)
	perCount(t1, n)
	m1 := s.spread(t1)
	t2 := s.tree(acc2, addOp)
	perCount(t2, n)
	m2 := s.spread(t2)
	back := func(add bool) {
		ps := again(p...)
		s.each(length("n"), false, ps, func(l lot, _, d int) {
			g, h := gh([]Mem{ptr(ps[1], d), ptr(ps[2], d), ptr(ps[3], d)}, l)
			VSUBPS(m1, g, g)
			VFNMADD231PS(m2, h, g)
			VMULPS(rstd, g, g)
			if add {
				VADDPS(s.get(ptr(ps[0], d), l), g, g)
			}
			s.put(g, ptr(ps[0], d), l)
		})
	}
	flag := GP8()
	Load(Param("add"), flag)
	plain, done = label("plain"), label("done")
	TESTB(flag, flag)
	JZ(LabelRef(plain))
	back(true)
	JMP(LabelRef(done))
	Label(plain)
	back(false)
	Label(done)
	finish()

	s.begin("softmax", "s *float32, n int, scale float32) (top, sum float32)", "softmax equals softmaxScalar.")
	base := pointers("s")[0]
	scale := s.broadcast("scale")
	acc = nil
	for range s.halves() {
		acc = append(acc, s.load(s.c(float32(math.Inf(-1)))))
	}
	q = again(base)
	s.each(length("n"), true, q, func(l lot, h, d int) {
		if l == all {
			v := s.load(ptr(q[0], d))
			VMAXPS(acc[h], v, acc[h])
			return
		}
		// A lane outside the lot keeps its maximum.
		v, t := s.get(ptr(q[0], d), l), s.reg()
		VMAXPS(acc[h], v, t)
		if s.w == 16 {
			VMOVAPS(t, l.k, acc[h])
		} else {
			VBLENDVPS(l.k, t, acc[h], acc[h])
		}
	})
	t := s.tree(acc, maxOp)
	VMOVSS(t, address(Return("top")))
	top := s.spread(t)
	acc = sums()
	q = again(base)
	s.each(length("n"), true, q, func(l lot, h, d int) {
		e := s.exp(s.mul(scale, s.sub(s.get(ptr(q[0], d), l), top)), false)
		s.put(e, ptr(q[0], d), l)
		VADDPS(s.keep(e, l), acc[h], acc[h])
	})
	VMOVSS(s.tree(acc, addOp), address(Return("sum")))
	finish()

	s.sumSquares()
}

// sumSquares adds the squares of whole runs of 16 to 16 lanes of float64.
func (s *set) sumSquares() {
	s.begin("sumSquares", "x *float32, n int, lanes *float64)", "sumSquares adds x[i]*x[i] to lanes[i%16] in float64; n is a multiple of 16.")
	x, n, lanes := pointers("x")[0], length("n"), pointers("lanes")[0]
	parts := 2 * s.halves() // registers of float64
	var acc []vec
	for i := range parts {
		r := s.reg()
		VMOVUPD(ptr(lanes, i*4*s.w), r)
		acc = append(acc, r)
	}
	loop, end := label("loop"), label("end")
	Label(loop)
	CMPQ(n, U32(16))
	JL(LabelRef(end))
	for i := range parts {
		d := s.reg()
		VCVTPS2PD(ptr(x, i*2*s.w), d)
		VFMADD231PD(d, d, acc[i]) // the square is exact, so fusing changes nothing
	}
	ADDQ(U32(64), x)
	SUBQ(U32(16), n)
	JMP(LabelRef(loop))
	Label(end)
	for i := range parts {
		VMOVUPD(acc[i], ptr(lanes, i*4*s.w))
	}
	finish()
}
