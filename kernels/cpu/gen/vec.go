package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/gotypes"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A vec is one vector register of the chosen instruction set.
type vec = reg.VecVirtual

// set is the instruction set being generated: 8 floats a register (AVX2 and
// FMA) or 16 (AVX-512F alone, so no DQ, BW or VL forms).
type set struct {
	name string // the functions' suffix
	w    int    // floats a register

	table map[uint32]int // a constant's bits to its place in the table
	order []uint32
}

func (s *set) reg() vec {
	if s.w == 16 {
		return ZMM()
	}
	return YMM()
}

// halves is how many registers hold the 16 lanes of a reduction.
func (s *set) halves() int { return 16 / s.w }

// bits is the memory operand of a constant given by its bits, in every lane.
func (s *set) bits(u uint32) Mem {
	at, ok := s.table[u]
	if !ok {
		at = len(s.order)
		s.table[u] = at
		s.order = append(s.order, u)
	}
	return NewDataAddr(Symbol{Name: "constants" + s.name, Static: true}, at*64)
}

func (s *set) c(f float32) Mem { return s.bits(math.Float32bits(f)) }

// constants writes the table that bits and masks refer to.
func (s *set) constants() {
	GLOBL("constants"+s.name, RODATA|NOPTR)
	for i, u := range s.order {
		for lane := range 16 {
			DATA(i*64+lane*4, U32(u))
		}
	}
	if s.w == 8 {
		GLOBL("masks"+s.name, RODATA|NOPTR)
		for i := range 32 {
			var u uint32
			if i < 16 {
				u = math.MaxUint32
			}
			DATA(i*4, U32(u))
		}
	}
}

func (s *set) zero() vec {
	r := s.reg()
	if s.w == 16 {
		VPXORD(r, r, r)
	} else {
		VXORPS(r, r, r)
	}
	return r
}

func (s *set) load(m Op) vec {
	r := s.reg()
	VMOVUPS(m, r)
	return r
}

// address is where a float32 parameter or result stands. avo's Load and Store
// would use the old MOVSS, which on some processors waits for the upper halves of
// all vector registers to be put away (some 100 ns here).
func address(c gotypes.Component) Mem {
	b, err := c.Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

// broadcast fills a register with the named float32 parameter.
func (s *set) broadcast(name string) vec {
	r := s.reg()
	VBROADCASTSS(address(Param(name)), r)
	return r
}

func (s *set) spread(x reg.VecVirtual) vec {
	r := s.reg()
	VBROADCASTSS(x.AsX(), r)
	return r
}

func (s *set) and(a Op, b vec) vec {
	r := s.reg()
	if s.w == 16 {
		VPANDD(a, b, r)
	} else {
		VANDPS(a, b, r)
	}
	return r
}

func (s *set) or(a Op, b vec) vec {
	r := s.reg()
	if s.w == 16 {
		VPORD(a, b, r)
	} else {
		VORPS(a, b, r)
	}
	return r
}

// ifAbove is yes in the lanes where a > b and no in the others.
func (s *set) ifAbove(a vec, b Mem, yes, no vec) vec {
	const greater = 0x1e // GT_OQ
	r := s.reg()
	if s.w == 16 {
		k := K()
		VCMPPS(Imm(greater), b, a, k)
		VBLENDMPS(yes, no, k, r)
	} else {
		m := YMM()
		VCMPPS(Imm(greater), b, a, m)
		VBLENDVPS(m, yes, no, r)
	}
	return r
}

// A lot is which lanes of a register are in use: all of them when k is nil.
type lot struct{ k reg.Register }

var all = lot{}

// masks are the lots of the last n lanes, 0 < n < 16 in all, by halves.
func (s *set) masks(n reg.GPVirtual) []lot {
	if s.w == 16 {
		k, one := K(), GP32()
		sh := GP64()
		MOVQ(n, sh)
		MOVL(U32(1), one)
		SHLXL(sh.As32(), one, one)
		DECL(one)
		KMOVW(one, k)
		return []lot{{k}}
	}
	base := GP64()
	LEAQ(NewDataAddr(Symbol{Name: "masks" + s.name, Static: true}, 64), base)
	off := GP64()
	MOVQ(n, off)
	NEGQ(off)
	var l []lot
	for h := range s.halves() {
		m := YMM()
		VMOVUPS(Mem{Base: base, Index: off, Scale: 4, Disp: h * 32}, m)
		l = append(l, lot{m})
	}
	return l
}

// get loads the lot's lanes of m, zeros elsewhere.
func (s *set) get(m Mem, l lot) vec {
	r := s.reg()
	switch {
	case l == all:
		VMOVUPS(m, r)
	case s.w == 16:
		VMOVUPS_Z(m, l.k, r)
	default:
		VMASKMOVPS(m, l.k, r)
	}
	return r
}

// put stores the lot's lanes of r.
func (s *set) put(r vec, m Mem, l lot) {
	switch {
	case l == all:
		VMOVUPS(r, m)
	case s.w == 16:
		VMOVUPS(r, l.k, m)
	default:
		VMASKMOVPS(r, l.k, m)
	}
}

// keep zeroes the lanes outside the lot.
func (s *set) keep(r vec, l lot) vec {
	switch {
	case l == all:
		return r
	case s.w == 16:
		o := s.reg()
		VMOVAPS_Z(r, l.k, o)
		return o
	default:
		return s.and(l.k, r)
	}
}

// tree reduces the 16 lanes that acc holds by op, high half onto low half, and
// returns the result in the lowest lane.
func (s *set) tree(acc []vec, op func(high, low, to Op)) reg.VecVirtual {
	y := YMM()
	if s.w == 16 {
		VEXTRACTF64X4(Imm(1), acc[0], y)
		op(y, acc[0].AsY(), y)
	} else {
		op(acc[1], acc[0], y)
	}
	x := XMM()
	VEXTRACTF128(Imm(1), y, x)
	op(x, y.AsX(), x)
	t := XMM()
	VMOVHLPS(x, x, t)
	op(t, x, x)
	u := XMM()
	VMOVSHDUP(x, u)
	op(u, x, x)
	return x
}

func addOp(high, low, to Op) { VADDPS(high, low, to) }

// maxOp is high > low ? high : low, which is how MAXPS treats its operands.
func maxOp(high, low, to Op) { VMAXPS(low, high, to) }

var labels int

// label is a fresh name for a jump's target.
func label(name string) string {
	labels++
	const digits = "0123456789"
	var b []byte
	for n := labels; n > 0; n /= 10 {
		b = append([]byte{digits[n%10]}, b...)
	}
	return name + string(b)
}

// each runs body over n values, 16 lanes at a time, or one register at a time when wide is
// false. The pointers move along and n is not kept. body is given the lot of
// lanes in use, the half it works on, and its byte offset from the pointers.
func (s *set) each(n reg.GPVirtual, wide bool, pointers []reg.Register, body func(l lot, half, disp int)) {
	left := GP64()
	MOVQ(n, left)
	step, halves := s.w, 1
	if wide {
		step, halves = 16, s.halves()
	}
	loop, tail, end := label("loop"), label("tail"), label("end")
	Label(loop)
	CMPQ(left, U32(uint32(step)))
	JL(LabelRef(tail))
	for h := range halves {
		body(all, h, h*4*s.w)
	}
	for _, p := range pointers {
		ADDQ(U32(uint32(4*step)), p)
	}
	SUBQ(U32(uint32(step)), left)
	JMP(LabelRef(loop))
	Label(tail)
	TESTQ(left, left)
	JZ(LabelRef(end))
	for h, l := range s.masks(left) {
		if h < halves {
			body(l, h, h*4*s.w)
		}
	}
	Label(end)
}

func ptr(p reg.Register, disp int) Mem { return Mem{Base: p, Disp: disp} }

// pointers loads the named pointer parameters.
func pointers(names ...string) []reg.Register {
	var ps []reg.Register
	for _, n := range names {
		ps = append(ps, Load(Param(n), GP64()))
	}
	return ps
}

// again is copies of pointers, for another pass.
func again(ps ...reg.Register) []reg.Register {
	var qs []reg.Register
	for _, p := range ps {
		q := GP64()
		MOVQ(p, q)
		qs = append(qs, q)
	}
	return qs
}

func length(name string) reg.GPVirtual {
	n := GP64()
	Load(Param(name), n)
	return n
}
