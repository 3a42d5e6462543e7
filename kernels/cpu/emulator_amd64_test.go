package cpu

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/hanzoai/link/kernels/kerneltest"
)

// TestAVX512 runs the AVX-512 code on a machine that lacks it, in an emulator of
// the instructions that the generator uses, and compares its digest. It says
// nothing of how the assembler encodes them.
func TestAVX512(t *testing.T) {
	if slices.Contains(ISAs(), AVX512) {
		t.Skip("this machine runs it: see TestReference")
	}
	source, err := os.ReadFile("avx512_amd64.s")
	if err != nil {
		t.Fatal(err)
	}
	table := newEmulator(string(source)).code().table()
	d := &Device{table: &table, workers: []worker{{t: &table}}}
	if got := kerneltest.Digest(t, d); got != kerneltest.Exact {
		t.Errorf("digest = %s, want %s", got, kerneltest.Exact)
	}
}

// An emulator is a program and the state of a processor.
type emulator struct {
	functions map[string]int // where each begins
	program   []func()
	constants []uint32

	pc    int // the next instruction; below 0 after RET
	z     [32][16]uint32
	k     [8]uint16
	gpr   [16]word // in the order of registers
	flags int64    // what the last comparison left: its sign and whether it is 0
	frame map[string]word
}

// A word is what a general register holds: an integer, or a place in memory at
// v bytes from p.
type word struct {
	p unsafe.Pointer
	v int64
}

var registers = []string{"AX", "BX", "CX", "DX", "SI", "DI", "BP", "SP", "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15"}

// general is a general register by its name.
func (e *emulator) general(name string) *word { return &e.gpr[slices.Index(registers, name)] }

func (w word) zero() bool { return w.p == nil && w.v == 0 }

// at is the float32's or half float64's bits at byte offset off.
func (w word) at(off int64) *uint32 { return (*uint32)(unsafe.Add(w.p, w.v+off)) }

var (
	textLine = regexp.MustCompile(`^TEXT ·(\w+)AVX512\(SB\)`)
	dataLine = regexp.MustCompile(`^DATA constantsAVX512<>\+(\d+)\(SB\)/4, \$(\w+)`)
	codeLine = regexp.MustCompile(`^\t([A-Z][A-Z0-9.]*)\s*(.*)$`)
	placed   = regexp.MustCompile(`^(-?\d*)\((\w+)\)(?:\((\w+)\*(\d)\))?$`)
	inFrame  = regexp.MustCompile(`^(\w+)\+\d+\(FP\)$`)
	inTable  = regexp.MustCompile(`^constantsAVX512<>\+(\d+)\(SB\)$`)
	vector   = regexp.MustCompile(`^([XYZ])(\d+)$`)
)

func integer(s string) int64 {
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func newEmulator(source string) *emulator {
	e := &emulator{functions: map[string]int{}}
	type line struct {
		op   string
		args []string
	}
	var lines []line
	labels := map[string]int{}
	for _, s := range strings.Split(source, "\n") {
		if m := textLine.FindStringSubmatch(s); m != nil {
			e.functions[m[1]] = len(lines)
		} else if m := dataLine.FindStringSubmatch(s); m != nil {
			e.constants = append(e.constants, uint32(integer(m[2])))
		} else if m := codeLine.FindStringSubmatch(s); m != nil {
			var args []string
			if m[2] != "" {
				args = strings.Split(m[2], ", ")
			}
			lines = append(lines, line{m[1], args})
		} else if strings.HasSuffix(s, ":") {
			labels[strings.TrimSuffix(s, ":")] = len(lines)
		}
	}
	for _, l := range lines {
		e.program = append(e.program, e.decode(l.op, l.args, labels))
	}
	return e
}

// run calls a function with its frame and returns the frame.
func (e *emulator) run(name string, frame map[string]word) map[string]word {
	e.gpr, e.frame = [16]word{}, frame
	for e.pc = e.functions[name]; e.pc >= 0; {
		step := e.program[e.pc]
		e.pc++
		step()
	}
	return frame
}

// width is how many lanes the widest vector operand has.
func width(args []string) int {
	n := 0
	for _, a := range args {
		if m := vector.FindStringSubmatch(a); m != nil {
			n = max(n, map[string]int{"X": 4, "Y": 8, "Z": 16}[m[1]])
		}
	}
	return n
}

// place is a memory operand's address.
func (e *emulator) place(s string) func() word {
	m := placed.FindStringSubmatch(s)
	if m == nil {
		return nil
	}
	var off int64
	if m[1] != "" {
		off = integer(m[1])
	}
	base := e.general(m[2])
	if m[3] == "" {
		return func() word { return word{base.p, base.v + off} }
	}
	index, scale := e.general(m[3]), integer(m[4])
	return func() word { return word{base.p, base.v + off + index.v*scale} }
}

// read is a vector operand's first n lanes.
func (e *emulator) read(s string, n int) func() [16]uint32 {
	if m := vector.FindStringSubmatch(s); m != nil {
		r := &e.z[integer(m[2])]
		return func() [16]uint32 { return *r }
	}
	if m := inTable.FindStringSubmatch(s); m != nil {
		at := integer(m[1]) / 4
		return func() (v [16]uint32) {
			copy(v[:n], e.constants[at:])
			return v
		}
	}
	if m := inFrame.FindStringSubmatch(s); m != nil {
		return func() [16]uint32 { return [16]uint32{uint32(e.frame[m[1]].v)} }
	}
	at := e.place(s)
	return func() (v [16]uint32) {
		w := at()
		for i := range n {
			v[i] = *w.at(int64(4 * i))
		}
		return v
	}
}

// register is a destination; a write of n lanes clears those above.
func (e *emulator) register(s string) *[16]uint32 {
	return &e.z[integer(vector.FindStringSubmatch(s)[2])]
}

func (e *emulator) mask(s string) *uint16 { return &e.k[integer(strings.TrimPrefix(s, "K"))] }

func f(u uint32) float32 { return math.Float32frombits(u) }
func u(x float32) uint32 { return math.Float32bits(x) }

// lanewise are the operations on each lane of (b, a, dst), dst's old value c.
var lanewise = map[string]func(b, a, c uint32) uint32{
	"VADDPS": func(b, a, _ uint32) uint32 { return u(f(a) + f(b)) },
	"VSUBPS": func(b, a, _ uint32) uint32 { return u(f(a) - f(b)) },
	"VMULPS": func(b, a, _ uint32) uint32 { return u(f(a) * f(b)) },
	"VDIVPS": func(b, a, _ uint32) uint32 { return u(f(a) / f(b)) },
	"VMINPS": func(b, a, _ uint32) uint32 {
		if f(a) < f(b) {
			return a
		}
		return b
	},
	"VMAXPS": func(b, a, _ uint32) uint32 {
		if f(a) > f(b) {
			return a
		}
		return b
	},
	"VFMADD231PS":  func(b, a, c uint32) uint32 { return u(fma(f(a), f(b), f(c))) },
	"VFMADD213PS":  func(b, a, c uint32) uint32 { return u(fma(f(a), f(c), f(b))) },
	"VFMSUB231PS":  func(b, a, c uint32) uint32 { return u(fma(f(a), f(b), -f(c))) },
	"VFMSUB213PS":  func(b, a, c uint32) uint32 { return u(fma(f(a), f(c), -f(b))) },
	"VFNMADD231PS": func(b, a, c uint32) uint32 { return u(fma(-f(a), f(b), f(c))) },
	"VPANDD":       func(b, a, _ uint32) uint32 { return a & b },
	"VPORD":        func(b, a, _ uint32) uint32 { return a | b },
	"VPXORD":       func(b, a, _ uint32) uint32 { return a ^ b },
	"VXORPS":       func(b, a, _ uint32) uint32 { return a ^ b },
	"VPADDD":       func(b, a, _ uint32) uint32 { return a + b },
	"VPSUBD":       func(b, a, _ uint32) uint32 { return a - b },
}

// lowest are the operations on the lowest lane of (b, a, dst).
var lowest = map[string]func(b, a float32) float32{
	"VADDSS":  func(b, a float32) float32 { return a + b },
	"VDIVSS":  func(b, a float32) float32 { return a / b },
	"VSQRTSS": func(b, _ float32) float32 { return sqrt(b) },
}

// shuffles say which lane of (b, a) becomes lane i: below 16 one of a, else of b.
var shuffles = map[string]func(imm, i int) int{
	"VUNPCKLPS":  func(_, i int) int { return i/4*4 + i%4/2 + 16*(i%2) },
	"VUNPCKHPS":  func(_, i int) int { return i/4*4 + 2 + i%4/2 + 16*(i%2) },
	"VUNPCKLPD":  func(_, i int) int { return i/4*4 + i%2 + 16*(i%4/2) },
	"VUNPCKHPD":  func(_, i int) int { return i/4*4 + 2 + i%2 + 16*(i%4/2) },
	"VSHUFF32X4": func(imm, i int) int { return imm>>(i/4*2)&3*4 + i%4 + 16*(i/8) },
	"VMOVHLPS":   func(_, i int) int { return []int{16 + 2, 16 + 3, 2, 3}[i%4] },
}

// decode is one instruction, its operands in the assembler's order.
func (e *emulator) decode(op string, args []string, labels map[string]int) func() {
	n := width(args)
	if f := lanewise[op]; f != nil {
		b, a, dst := e.read(args[0], n), e.read(args[1], n), e.register(args[2])
		return func() {
			x, y, c := b(), a(), *dst
			*dst = [16]uint32{}
			for i := range n {
				dst[i] = f(x[i], y[i], c[i])
			}
		}
	}
	if f := lowest[op]; f != nil {
		b, a, dst := e.read(args[0], 1), e.read(args[1], 4), e.register(args[2])
		return func() {
			x, y := b(), a()
			y[0] = u(f(math.Float32frombits(x[0]), math.Float32frombits(y[0])))
			*dst = y
		}
	}
	if f := shuffles[op]; f != nil {
		imm := 0
		if strings.HasPrefix(args[0], "$") {
			imm, args = int(integer(args[0][1:])), args[1:]
		}
		b, a, dst := e.read(args[0], n), e.read(args[1], n), e.register(args[2])
		return func() {
			x, y := b(), a()
			*dst = [16]uint32{}
			for i := range n {
				if l := f(imm, i); l < 16 {
					dst[i] = y[l]
				} else {
					dst[i] = x[l-16]
				}
			}
		}
	}
	if strings.HasPrefix(op, "V") {
		return e.decodeVector(op, args, n)
	}
	return e.decodeScalar(op, args, labels)
}

func (e *emulator) decodeVector(op string, args []string, n int) func() {
	if op == "VZEROUPPER" {
		return func() {
			for i := range 16 {
				clear(e.z[i][4:])
			}
		}
	}
	last := args[len(args)-1]
	switch op {
	case "VMOVUPS", "VMOVAPS", "VMOVUPD", "VMOVUPS.Z", "VMOVAPS.Z", "VMOVSS":
		if op == "VMOVSS" {
			n = 1
		}
		return e.decodeMove(strings.HasSuffix(op, ".Z"), args, n)
	case "VBROADCASTSS":
		src, dst := e.read(args[0], 1), e.register(last)
		return func() {
			v := src()[0]
			*dst = [16]uint32{}
			for i := range n {
				dst[i] = v
			}
		}
	case "VSQRTPS":
		src, dst := e.read(args[0], n), e.register(last)
		return func() {
			for i, v := range src() {
				dst[i] = u(sqrt(f(v)))
			}
		}
	case "VPSLLD", "VPSRAD":
		imm, src, dst := integer(args[0][1:]), e.read(args[1], n), e.register(last)
		return func() {
			for i, v := range src() {
				if op == "VPSLLD" {
					dst[i] = v << imm
				} else {
					dst[i] = uint32(int32(v) >> imm)
				}
			}
		}
	case "VCMPPS": // GT_OQ is the only one used
		if args[0] != "$0x1e" {
			panic(op + args[0])
		}
		b, a, k := e.read(args[1], n), e.read(args[2], n), e.mask(last)
		return func() {
			x, y := b(), a()
			*k = 0
			for i := range n {
				if f(y[i]) > f(x[i]) {
					*k |= 1 << i
				}
			}
		}
	case "VBLENDMPS":
		b, a, k, dst := e.read(args[0], n), e.read(args[1], n), e.mask(args[2]), e.register(last)
		return func() {
			x, y := b(), a()
			for i := range n {
				dst[i] = y[i]
				if *k>>i&1 == 1 {
					dst[i] = x[i]
				}
			}
		}
	case "VEXTRACTF64X4", "VEXTRACTF128":
		half, src, dst := map[string]int{"VEXTRACTF64X4": 8, "VEXTRACTF128": 4}[op], e.read(args[1], n), e.register(last)
		from := int(integer(args[0][1:])) * half
		return func() {
			v := src()
			*dst = [16]uint32{}
			copy(dst[:half], v[from:])
		}
	case "VMOVSHDUP":
		src, dst := e.read(args[0], n), e.register(last)
		return func() {
			v := src()
			*dst = [16]uint32{v[1], v[1], v[3], v[3]}
		}
	case "VCVTSI2SSQ":
		src, a, dst := e.general(args[0]), e.read(args[1], 4), e.register(last)
		return func() {
			v := a()
			v[0] = u(float32(src.v))
			*dst = v
		}
	case "VCVTPS2PD":
		src, dst := e.read(args[0], 8), e.register(last)
		return func() {
			v := src()
			for i := range 8 {
				putDouble(dst, i, float64(f(v[i])))
			}
		}
	case "VFMADD231PD": // a squared float32 is exact, so that nothing is lost unfused
		b, a, dst := e.read(args[0], n), e.read(args[1], n), e.register(last)
		return func() {
			x, y := b(), a()
			for i := range 8 {
				putDouble(dst, i, math.FMA(double(&y, i), double(&x, i), double(dst, i)))
			}
		}
	}
	panic("no " + op)
}

func double(v *[16]uint32, i int) float64 {
	return math.Float64frombits(uint64(v[2*i]) | uint64(v[2*i+1])<<32)
}

func putDouble(v *[16]uint32, i int, x float64) {
	b := math.Float64bits(x)
	v[2*i], v[2*i+1] = uint32(b), uint32(b>>32)
}

// decodeMove is a move of n lanes, of those in a mask's when there is one; what
// is outside it is cleared with zero, and kept else.
func (e *emulator) decodeMove(zero bool, args []string, n int) func() {
	masked := len(args) == 3
	in := func(i int) bool { return true }
	if masked {
		k := e.mask(args[1])
		in = func(i int) bool { return *k>>i&1 == 1 }
	}
	from, to := args[0], args[len(args)-1]
	if vector.MatchString(to) {
		dst, src := e.register(to), e.read(from, n)
		if at := e.place(from); at != nil && masked {
			src = func() (v [16]uint32) { // reads nothing outside the mask
				w := at()
				for i := range n {
					if in(i) {
						v[i] = *w.at(int64(4 * i))
					}
				}
				return v
			}
		}
		return func() {
			v, old := src(), *dst
			*dst = [16]uint32{}
			for i := range n {
				switch {
				case in(i):
					dst[i] = v[i]
				case !zero:
					dst[i] = old[i]
				}
			}
		}
	}
	src := e.read(from, n)
	if m := inFrame.FindStringSubmatch(to); m != nil {
		return func() { e.frame[m[1]] = word{v: int64(src()[0])} }
	}
	at := e.place(to)
	return func() {
		w, v := at(), src()
		for i := range n {
			if in(i) {
				*w.at(int64(4 * i)) = v[i]
			}
		}
	}
}

func (e *emulator) decodeScalar(op string, args []string, labels map[string]int) func() {
	value := func(s string) func() word {
		if s[0] == '$' {
			v := word{v: integer(s[1:])}
			return func() word { return v }
		}
		if m := inFrame.FindStringSubmatch(s); m != nil {
			return func() word { return e.frame[m[1]] }
		}
		r := e.general(s)
		return func() word { return *r }
	}
	jump := func(when func() bool) func() {
		to, ok := labels[args[0]]
		if !ok {
			panic("no label " + args[0])
		}
		return func() {
			if when() {
				e.pc = to
			}
		}
	}
	// update sets the last operand and the flags.
	update := func(f func(src, dst word) word) func() {
		src, dst := value(args[0]), e.general(args[len(args)-1])
		return func() {
			*dst = f(src(), *dst)
			e.flags = dst.v
		}
	}
	switch op {
	case "RET":
		return func() { e.pc = -1 }
	case "PREFETCHT0":
		return func() {}
	case "MOVQ", "MOVL", "MOVB":
		src, dst := value(args[0]), e.general(args[1])
		return func() { *dst = src() }
	case "ADDQ":
		return update(func(src, dst word) word {
			if dst.p == nil {
				dst.p = src.p
			}
			dst.v += src.v
			return dst
		})
	case "SUBQ":
		return update(func(src, dst word) word { return word{dst.p, dst.v - src.v} })
	case "DECQ", "DECL":
		return update(func(_, dst word) word { return word{dst.p, dst.v - 1} })
	case "SHLXL":
		count, src, dst := value(args[0]), value(args[1]), e.general(args[2])
		return func() { *dst = word{v: int64(uint32(src().v) << (count().v & 31))} }
	case "CMPQ":
		a, b := value(args[0]), value(args[1])
		return func() { e.flags = a().v - b().v }
	case "TESTQ", "TESTB": // of a register with itself
		a := value(args[0])
		return func() {
			e.flags = 1
			if a().zero() {
				e.flags = 0
			}
		}
	case "LEAQ":
		at, dst := e.place(args[0]), e.general(args[1])
		return func() { *dst = at() }
	case "KMOVW":
		src, k := value(args[0]), e.mask(args[1])
		return func() { *k = uint16(src().v) }
	case "JMP":
		return jump(func() bool { return true })
	case "JZ":
		return jump(func() bool { return e.flags == 0 })
	case "JNZ", "JNE":
		return jump(func() bool { return e.flags != 0 })
	case "JL":
		return jump(func() bool { return e.flags < 0 })
	}
	panic(fmt.Sprintf("no %s %v", op, args))
}

// code is the program's functions as a processor would offer them.
func (e *emulator) code() *code {
	p := func(x *float32) word { return word{p: unsafe.Pointer(x)} }
	n := func(x int) word { return word{v: int64(x)} }
	s := func(x float32) word { return word{v: int64(u(x))} }
	frame := func(names string, w ...word) map[string]word {
		f := map[string]word{}
		for i, name := range strings.Fields(names) {
			f[name] = w[i]
		}
		return f
	}
	result := func(frame map[string]word, name string) float32 { return f(uint32(frame[name].v)) }
	return &code{
		isa: "emulated " + AVX512, rows: avx512Code.rows, width: avx512Code.width,
		gemm: func(k int, a, b, c *float32, ldc, mode int) {
			e.run("gemm", frame("k a b c ldc mode", n(k), p(a), p(b), p(c), n(ldc), n(mode)))
		},
		turnA: func(dst, src *float32, stride, blocks, step int) {
			e.run("turnA", frame("dst src stride blocks step", p(dst), p(src), n(stride), n(blocks), n(step)))
		},
		turnB: func(dst, src *float32, stride, blocks, step int) {
			e.run("turnB", frame("dst src stride blocks step", p(dst), p(src), n(stride), n(blocks), n(step)))
		},
		copyA: func(dst, src *float32, stride, k, m, step int) {
			e.run("copyA", frame("dst src stride k n step", p(dst), p(src), n(stride), n(k), n(m), n(step)))
		},
		copyB: func(dst, src *float32, stride, k, m, step int) {
			e.run("copyB", frame("dst src stride k n step", p(dst), p(src), n(stride), n(k), n(m), n(step)))
		},
		add:   func(y, a, b *float32, m int) { e.run("add", frame("y a b n", p(y), p(a), p(b), n(m))) },
		mul:   func(y, a, b *float32, m int) { e.run("mul", frame("y a b n", p(y), p(a), p(b), n(m))) },
		scale: func(y, x *float32, m int, f float32) { e.run("scale", frame("y x n s", p(y), p(x), n(m), s(f))) },
		dot: func(a, b *float32, m int) float32 {
			return result(e.run("dot", frame("a b n", p(a), p(b), n(m))), "ret")
		},
		sumSquares: func(x *float32, m int, lanes *float64) {
			e.run("sumSquares", frame("x n lanes", p(x), n(m), word{p: unsafe.Pointer(lanes)}))
		},
		norm: func(y, x, gamma, beta *float32, m int, eps float32) (mean, rstd float32) {
			f := e.run("norm", frame("y x gamma beta n eps", p(y), p(x), p(gamma), p(beta), n(m), s(eps)))
			return result(f, "mean"), result(f, "rstd")
		},
		normBack: func(dx, dy, x, gamma *float32, m int, mean, rstd float32, add bool) {
			var flag word
			if add {
				flag.v = 1
			}
			e.run("normBack", frame("dx dy x gamma n mean rstd add", p(dx), p(dy), p(x), p(gamma), n(m), s(mean), s(rstd), flag))
		},
		normGrad: func(dgamma, dy, x *float32, m int, mean, rstd float32) {
			e.run("normGrad", frame("dgamma dy x n mean rstd", p(dgamma), p(dy), p(x), n(m), s(mean), s(rstd)))
		},
		gelu:     func(y, x *float32, m int) { e.run("gelu", frame("y x n", p(y), p(x), n(m))) },
		geluBack: func(dx, dy, x *float32, m int) { e.run("geluBack", frame("dx dy x n", p(dx), p(dy), p(x), n(m))) },
		geglu:    func(y, a, b *float32, m int) { e.run("geglu", frame("y a b n", p(y), p(a), p(b), n(m))) },
		gegluBack: func(da, db, dy, a, b *float32, m int) {
			e.run("gegluBack", frame("da db dy a b n", p(da), p(db), p(dy), p(a), p(b), n(m)))
		},
		softmax: func(x *float32, m int, scale float32) (top, sum float32) {
			f := e.run("softmax", frame("s n scale", p(x), n(m), s(scale)))
			return result(f, "top"), result(f, "sum")
		},
		softmaxBack: func(x, dp *float32, m int, top, scale, inv, dot float32) {
			e.run("softmaxBack", frame("s dp n top scale inv dot", p(x), p(dp), n(m), s(top), s(scale), s(inv), s(dot)))
		},
		rope: func(a, b, c, d *float32, m int) { e.run("rope", frame("a b c s n", p(a), p(b), p(c), p(d), n(m))) },
		adamw: func(d, m, v, grad, w, base, factors *float32, k int) {
			e.run("adamw", frame("d m v grad w base factors n", p(d), p(m), p(v), p(grad), p(w), p(base), p(factors), n(k)))
		},
	}
}
