package cpu

import "github.com/hanzoai/link/kernels"

// ISA is an instruction set that a [Device] can be made of. All of them give the
// same bits.
type ISA string

const (
	Scalar ISA = "scalar" // Go, on any machine
	AVX2   ISA = "avx2"   // AVX2 and FMA
	AVX512 ISA = "avx512" // AVX-512 F, and AVX2, FMA, BMI2
)

// A table is one instruction set's code. Each function equals the function of
// the same name in scalar.go or gemm.go; all slices of one call are equally long
// unless a definition says otherwise.
type table struct {
	isa ISA

	// The tile of the product: rows x cols of c, from packed panels.
	rows, cols int
	gemm       func(k int, a, b, c []float32, ldc int, mode mode)
	// turn packs width lines of k values, stride apart, so that value p of line i
	// is dst[p*width+i]. It packs whole blocks of k and says how many values that
	// is. With width rows it may write past the last, by less than lanes values.
	turn func(dst, src []float32, stride, width, k int) int
	// interleave is for a width of rows or cols.
	interleave func(dst, src []float32, stride, width, k, n int)

	add, mul    func(y, a, b []float32)
	scale       func(y, x []float32, s float32)
	dot         func(a, b []float32) float32
	sumSquares  func(x []float32) float64
	norm        func(y, x, gamma, beta []float32, eps float32) (mean, rstd float32)
	normBack    func(dx, dy, x, gamma []float32, mean, rstd float32, add bool)
	normGrad    func(dgamma, dy, x []float32, mean, rstd float32)
	gelu        func(y, x []float32)
	geluBack    func(dx, dy, x []float32)
	geglu       func(y, a, b []float32)
	gegluBack   func(da, db, dy, a, b []float32)
	softmax     func(s []float32, scale float32) (top, sum float32)
	softmaxBack func(s, dp []float32, top, scale, inv, dot float32)
	rope        func(a, b, c, s []float32)
	adamw       func(w, d, m, v, grad, base []float32, a *kernels.AdamW)
}

var scalar = table{
	isa:         Scalar,
	rows:        4,
	cols:        4,
	gemm:        gemmScalar,
	turn:        func(dst, src []float32, stride, width, k int) int { return 0 },
	interleave:  interleaveScalar,
	add:         addScalar,
	mul:         mulScalar,
	scale:       scaleScalar,
	dot:         dotScalar,
	sumSquares:  sumSquaresScalar,
	norm:        normScalar,
	normBack:    normBackScalar,
	normGrad:    normGradScalar,
	gelu:        geluScalar,
	geluBack:    geluBackScalar,
	geglu:       gegluScalar,
	gegluBack:   gegluBackScalar,
	softmax:     softmaxScalar,
	softmaxBack: softmaxBackScalar,
	rope:        ropeScalar,
	adamw:       adamwScalar,
}
