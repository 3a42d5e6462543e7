package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gemm is the micro-kernel: a tile of rows x 2 registers of c from a panel of a
// (k x rows) and one of b (k x 2 registers). Each element is one chain over k.
func (s *set) gemm(rows int) {
	s.begin("gemm", "k int, a, b, c *float32, ldc int, mode int)",
		"gemm equals gemmScalar for its tile; ldc is in bytes.")
	k := length("k")
	a, b, c := pointers("a")[0], pointers("b")[0], pointers("c")[0]
	ldc, mode := length("ldc"), length("mode")
	acc := make([][2]vec, rows)
	// eachRow visits the tile's rows of c, from a copy of its pointer.
	eachRow := func(f func(i int, row reg.Register)) {
		row := again(c)[0]
		for i := range rows {
			f(i, row)
			if i+1 < rows {
				ADDQ(ldc, row)
			}
		}
	}
	for i := range acc {
		acc[i] = [2]vec{s.reg(), s.reg()}
	}
	fresh, start := label("fresh"), label("start")
	CMPQ(mode, Imm(1))
	JNE(LabelRef(fresh))
	eachRow(func(i int, row reg.Register) {
		for j, r := range acc[i] {
			VMOVUPS(ptr(row, j*4*s.w), r)
		}
	})
	JMP(LabelRef(start))
	Label(fresh)
	eachRow(func(i int, row reg.Register) {
		for line := 0; line < 2*4*s.w; line += 64 {
			PREFETCHT0(ptr(row, line))
		}
		for _, r := range acc[i] {
			if s.w == 16 {
				VPXORD(r, r, r)
			} else {
				VXORPS(r, r, r)
			}
		}
	})
	Label(start)
	bv := [2]vec{s.reg(), s.reg()}
	spare := []vec{s.reg(), s.reg()}
	step := func(u int) {
		for j, r := range bv {
			VMOVUPS(ptr(b, (2*u+j)*4*s.w), r)
		}
		for i := range rows {
			r := spare[i%len(spare)]
			VBROADCASTSS(ptr(a, (u*rows+i)*4), r)
			for j := range bv {
				VFMADD231PS(bv[j], r, acc[i][j])
			}
		}
	}
	run := func(unroll int) {
		loop, end := label("loop"), label("end")
		Label(loop)
		CMPQ(k, U32(uint32(unroll)))
		JL(LabelRef(end))
		for u := range unroll {
			step(u)
		}
		ADDQ(U32(uint32(unroll*rows*4)), a)
		ADDQ(U32(uint32(unroll*2*4*s.w)), b)
		SUBQ(U32(uint32(unroll)), k)
		JMP(LabelRef(loop))
		Label(end)
	}
	run(4)
	run(1)
	store := label("store")
	CMPQ(mode, Imm(2))
	JNE(LabelRef(store))
	eachRow(func(i int, row reg.Register) {
		for j, r := range acc[i] {
			VADDPS(ptr(row, j*4*s.w), r, r)
		}
	})
	Label(store)
	eachRow(func(i int, row reg.Register) {
		for j, r := range acc[i] {
			VMOVUPS(r, ptr(row, j*4*s.w))
		}
	})
	finish()
}

// turn transposes w rows of w columns at a time, w the floats of a register,
// reading only the first rows of them. The store of each column is whole, so it
// writes w-rows values past the column's own; the next column overwrites them.
func (s *set) turn(name string, rows int) {
	s.begin(name, "dst, src *float32, stride, blocks, step int)",
		name+" writes src's columns to dst, step bytes apart; rows are stride bytes apart and blocks registers long.")
	dst, src := pointers("dst")[0], pointers("src")[0]
	stride, blocks, step := length("stride"), length("blocks"), length("step")
	// Three rows an address register: base, base+stride, base+2*stride.
	base := []reg.Register{src}
	for i := 1; i < (rows+2)/3; i++ {
		g := GP64()
		LEAQ(Mem{Base: base[i-1], Index: stride, Scale: 2}, g)
		ADDQ(stride, g)
		base = append(base, g)
	}
	loop := label("loop")
	Label(loop)
	r := make([]vec, s.w)
	for i := range r {
		if i >= rows {
			r[i] = s.zero()
			continue
		}
		m := Mem{Base: base[i/3]}
		if i%3 > 0 {
			m.Index, m.Scale = stride, uint8(i%3)
		}
		r[i] = s.load(m)
	}
	for _, o := range s.transpose(r) {
		VMOVUPS(o, ptr(dst, 0))
		ADDQ(step, dst)
	}
	for _, g := range base {
		ADDQ(U32(uint32(4*s.w)), g)
	}
	DECQ(blocks)
	JNZ(LabelRef(loop))
	finish()
}

// transpose turns the square of registers r: first 4x4 squares within the
// 128-bit lanes, then the lanes themselves.
func (s *set) transpose(r []vec) []vec {
	groups := s.w / 4
	q := make([][4]vec, groups) // q[g][c]: column c mod 4 of rows 4g..4g+3, a lane for each four columns
	for g := range q {
		t := [4]vec{s.reg(), s.reg(), s.reg(), s.reg()}
		VUNPCKLPS(r[4*g+1], r[4*g], t[0])
		VUNPCKHPS(r[4*g+1], r[4*g], t[1])
		VUNPCKLPS(r[4*g+3], r[4*g+2], t[2])
		VUNPCKHPS(r[4*g+3], r[4*g+2], t[3])
		q[g] = [4]vec{s.reg(), s.reg(), s.reg(), s.reg()}
		VUNPCKLPD(t[2], t[0], q[g][0])
		VUNPCKHPD(t[2], t[0], q[g][1])
		VUNPCKLPD(t[3], t[1], q[g][2])
		VUNPCKHPD(t[3], t[1], q[g][3])
	}
	o := make([]vec, s.w)
	for c := range 4 {
		if s.w == 8 {
			o[c], o[4+c] = s.reg(), s.reg()
			VPERM2F128(Imm(0x20), q[1][c], q[0][c], o[c])
			VPERM2F128(Imm(0x31), q[1][c], q[0][c], o[4+c])
			continue
		}
		t := [4]vec{s.reg(), s.reg(), s.reg(), s.reg()}
		VSHUFF32X4(Imm(0x44), q[1][c], q[0][c], t[0])
		VSHUFF32X4(Imm(0xee), q[1][c], q[0][c], t[1])
		VSHUFF32X4(Imm(0x44), q[3][c], q[2][c], t[2])
		VSHUFF32X4(Imm(0xee), q[3][c], q[2][c], t[3])
		for i := range 4 {
			o[4*i+c] = s.reg()
		}
		VSHUFF32X4(Imm(0x88), t[2], t[0], o[c])
		VSHUFF32X4(Imm(0xdd), t[2], t[0], o[4+c])
		VSHUFF32X4(Imm(0x88), t[3], t[1], o[8+c])
		VSHUFF32X4(Imm(0xdd), t[3], t[1], o[12+c])
	}
	return o
}

// interleave deals runs of n*width values, stride bytes apart, to n panels: k values
// of each, width a value, the panels step bytes apart.
func (s *set) interleave(name string, width int) {
	s.begin(name, "dst, src *float32, stride, k, n, step int)", name+" equals interleave for its width; stride and step are in bytes.")
	dst, src := pointers("dst")[0], pointers("src")[0]
	stride, k, n, step := length("stride"), length("k"), length("n"), length("step")
	values, panels := label("values"), label("panels")
	Label(values)
	at := again(dst, src)
	left := GP64()
	MOVQ(n, left)
	Label(panels)
	for off := 0; off < width; {
		var r vec
		switch rest := width - off; {
		case rest >= 16 && s.w == 16:
			r = ZMM()
		case rest >= 8:
			r = YMM()
		case rest >= 4:
			r = XMM()
		default: // two
			r := XMM()
			VMOVSD(ptr(at[1], off*4), r)
			VMOVSD(r, ptr(at[0], off*4))
			off += 2
			continue
		}
		VMOVUPS(ptr(at[1], off*4), r)
		VMOVUPS(r, ptr(at[0], off*4))
		off += int(r.Size()) / 4
	}
	ADDQ(step, at[0])
	ADDQ(U32(uint32(4*width)), at[1])
	DECQ(left)
	JNZ(LabelRef(panels))
	ADDQ(U32(uint32(4*width)), dst)
	ADDQ(stride, src)
	DECQ(k)
	JNZ(LabelRef(values))
	finish()
}
