// Package kernels says what training needs of a device: some memory and about
// thirty operations, each with one result to the last bit. Package
// kernels/cpu's Reference is these operations as plain loops; where a comment
// here leaves a rounding open, that code decides.
//
// # One result
//
// Every operation here is defined by its arithmetic, not by a tolerance. All
// values are IEEE binary32 with denormals kept, and:
//
//   - A product over model dimensions is one chain of fused multiply-adds an
//     output element, the index ascending, started from +0 (or from the value
//     already there, where an operation adds). The bias is added after.
//   - A product or sum over tokens (the gradient of a weight, a bias, a norm) is
//     a chain in blocks of [Block] consecutive tokens of the step in its
//     canonical order; the blocks' sums are added in ascending order. [Grad]
//     carries an open block from one micro-batch to the next, so how a step is
//     cut into micro-batches does not change a bit.
//   - A reduction along a row (the mean of a layer norm, a softmax) runs in 16
//     strided lanes, lane i taking elements i, i+16, …, then a halving tree:
//     lane i adds lane i+8, then i+4, i+2, i+1.
//   - exp and erf are the polynomials of this package ([Exp], [Erf]), and the
//     angles of a rotation its table ([RopeTable]), never the platform's.
//
// Hence the number of threads, the packing of rows and the choice among the
// scalar, AVX2 and AVX-512 code cannot change a result, and a second device can
// be held to equality. Package kerneltest is that check. It holds for finite
// operands and results; once a value overflowed, every device gives an infinity
// or a NaN, but not always the same one.
//
// # Shapes and concurrency
//
// Matrices are row-major and dense. t counts tokens (rows); a weight is
// [out, in] as Hugging Face stores it. Lengths are checked by panics: a wrong
// shape is a fault of the caller in this repository, never of a user's input.
// Operands must not overlap unless the operation says so. A Device is used by
// one goroutine at a time; it may run its own threads inside an operation and
// none outside.
package kernels

// Block is how many consecutive tokens one partial sum of a gradient covers.
const Block = 512

// Mem is a run of float32 values in one device's memory. Its zero value is
// absent memory: an optional operand left out.
type Mem struct {
	Host []float32 // the values, on a device that computes in host memory
	Addr uint64    // their address, on one that does not
	Len  int       // how many values
}

// Slice returns values [i, j) of m, sharing its memory.
func (m Mem) Slice(i, j int) Mem {
	if i < 0 || j < i || j > m.Len {
		panic("kernels: Mem.Slice out of range")
	}
	s := Mem{Len: j - i}
	if m.Host != nil {
		s.Host = m.Host[i:j:j]
	} else {
		s.Addr = m.Addr + 4*uint64(i)
	}
	return s
}

// None reports whether m is absent.
func (m Mem) None() bool { return m.Len == 0 }

// Grad is the gradient of one parameter while a step's tokens are summed into
// it. Sum holds the closed blocks, zeros at a step's start, and Open the block
// being filled, which holds Fill tokens, 0 ≤ Fill < Block; while Fill is 0 its
// values mean nothing. A block is added to Sum when it is full, and by
// [Device.Close] when the step ends before.
type Grad struct {
	Sum, Open Mem
	Fill      int
}

// Segments are the bounds of packed rows: row r owns tokens
// [s[r], s[r+1]). s[0] is 0 and the last is the number of tokens.
type Segments []int32

// Rows is the number of rows.
func (s Segments) Rows() int { return len(s) - 1 }

// Tokens is the number of tokens.
func (s Segments) Tokens() int { return int(s[len(s)-1]) }

// Attention describes one multi-head attention over packed rows. Queries, keys
// and values lie side by side in qkv [t, 3*Heads*Dim], each head's Dim values
// together. A token attends to the tokens of its own row at a distance of at
// most Window, or to all of them when Window is negative. Scores are scaled by
// 1/sqrt(Dim).
type Attention struct {
	Heads, Dim, Window int
}

// AdamW is one update of one parameter in float32, element by element and in
// this order (no operation fused unless written fma):
//
//	g = Scale*grad
//	m = fma(Beta1, m, (1-Beta1)*g)
//	v = fma(Beta2, v, ((1-Beta2)*g)*g)
//	u = LR * (m/C1 / (sqrt(v/C2) + Eps) + Decay*d)
//	d = d - u
//	w = base + d
//
// 1-Beta is rounded to float32 once. C1 and C2 are the bias corrections
// 1-Beta1^t and 1-Beta2^t, rounded once from float64. (Loshchilov and Hutter,
// arXiv 1711.05101, with the decay toward the base.)
type AdamW struct {
	LR, Beta1, Beta2, Eps, Decay, C1, C2, Scale float32
}

// Selection is one kernel a device chose, a line of the kernel plan of HIP-1334
// §6.1. Two plans with equal selections give equal bits.
type Selection struct {
	Op        string `json:"op"`
	DType     string `json:"dtype"`
	Shape     string `json:"shape"`
	Kernel    string `json:"kernel"`
	Reduction string `json:"reduction"`
}

// Device computes. In the comments, y = f(x) writes all of y; "adds" means it
// adds to what stands there, element by element, with one rounding after f.
type Device interface {
	Name() string      // "cpu", with the instruction set and threads for a person to read
	Plan() []Selection // every kernel it uses, sorted; what the bits depend on and nothing else

	Alloc(n int) Mem              // n zeros
	Zero(m Mem)                   // m = 0
	Copy(dst, src Mem)            // equal lengths
	Write(dst Mem, src []float32) // from host memory
	Read(dst []float32, src Mem)  // to host memory; returns when the values are there

	// Linear is y[t,out] = x[t,in]·wᵀ + bias[out]; bias may be absent.
	Linear(y, x, w, bias Mem, t, in, out int)
	// LinearInput is dx[t,in] = dy[t,out]·w, the chain over out; with add it
	// continues the chain from dx.
	LinearInput(dx, dy, w Mem, t, in, out int, add bool)
	// LinearWeight sums dyᵀ·x into g [out,in] by the block rule.
	LinearWeight(g *Grad, dy, x Mem, t, in, out int)
	// ColumnSum sums the rows of dy[t,d] into g [d] by the block rule.
	ColumnSum(g *Grad, dy Mem, t, d int)
	// Close adds an open block to g.Sum and leaves g with no open block.
	Close(g *Grad)

	// Gather is y[i] = src[ids[i]], rows of d; with add it adds.
	Gather(y, src Mem, ids []int32, d int, add bool)
	// Scatter is dst[ids[i]] = src[i], rows of d, ids distinct; with add it adds
	// in ascending i and ids may repeat.
	Scatter(dst, src Mem, ids []int32, d int, add bool)

	// Add is y = a + b; y may be a or b.
	Add(y, a, b Mem)
	// Mul is y = a * b; y may be a or b.
	Mul(y, a, b Mem)
	// Scale is y = s*y + 0; the sum turns -0 into +0.
	Scale(y Mem, s float32)

	// LayerNorm is y = (x-mean)*rstd*gamma + beta along rows of d, with
	// rstd = 1/sqrt(var+eps), var the mean of squared deviations. beta may be
	// absent. stats [t,2] keeps mean and rstd for the way back. y may be x.
	LayerNorm(y, stats, x, gamma, beta Mem, t, d int, eps float32)
	// LayerNormBack writes dx (adds with add) and sums the gradients of gamma
	// and beta by the block rule; either Grad may be nil. dx may be dy.
	LayerNormBack(dx Mem, dgamma, dbeta *Grad, dy, x, stats, gamma Mem, t, d int, add bool)

	// GELU is y = x*(1+erf(x/sqrt 2))/2. GELUBack is dx = dy*gelu'(x); dx may be dy.
	GELU(y, x Mem)
	GELUBack(dx, dy, x Mem)
	// GeGLU is y[t,h] = gelu(x[:, :h]) * x[:, h:], x [t,2h]. GeGLUBack is its dx.
	GeGLU(y, x Mem, t, h int)
	GeGLUBack(dx, dy, x Mem, t, h int)

	// Rope turns the queries and keys of qkv in place: the pair (i, i+dim/2) of
	// a head at position p of its row turns by p*theta^(-2i/dim), the angles'
	// cosines and sines computed in float64 and rounded once. With back it turns
	// the other way.
	Rope(qkv Mem, seg Segments, a Attention, theta float64, back bool)
	// Attend is o[t, Heads*Dim]: with scores s one chain over Dim each, their
	// maximum m, and e = Exp((s-m)/sqrt(Dim)), it is the chain of e*v over the
	// keys ascending, times 1/Σe. stats [Heads, t, 2] keeps each query's m and
	// Σe. The scale 1/sqrt(Dim) is rounded once.
	Attend(o, stats, qkv Mem, seg Segments, a Attention)
	// AttendBack is dqkv; do is the gradient of o. With p = e*(1/Σe) and
	// ds = p*(do·v - do·o), the last product in 16 lanes, dq and dk are the
	// chains of ds*k over keys and ds*q over queries, times the scale, and dv is
	// the chain of p*do over queries. These and o are never -0.
	AttendBack(dqkv, do, o, stats, qkv Mem, seg Segments, a Attention)

	// SegmentMean is y[r] = the mean of row r's tokens: their sum in ascending
	// order, times 1/n, or zeros for a row of none. SegmentMeanBack adds
	// dy[r] * 1/n to each token of dx.
	SegmentMean(y, x Mem, seg Segments, d int)
	SegmentMeanBack(dx, dy Mem, seg Segments, d int)

	// Probe is y[i] = [c, o, c*o, |c-o|], 4d wide, with c = cs[ci[i]] and
	// o = os[oi[i]]. ProbeBack adds to dcs and dos in ascending i; |.| has slope
	// 0 at 0.
	Probe(y, cs, os Mem, ci, oi []int32, d int)
	ProbeBack(dcs, dos, dy, cs, os Mem, ci, oi []int32, d int)

	// SumSquares is Σ m², each square and sum in float64, in 16 strided lanes
	// and their halving tree.
	SumSquares(m Mem) float64
	// AdamW updates one parameter; see [AdamW]. base and w may both be absent,
	// when the parameter has no base apart from d: then d is the parameter.
	AdamW(w, d, m, v, grad, base Mem, a AdamW)
}
