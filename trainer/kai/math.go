package kai

import "math"

// exp is e^x in float64 for x ≤ 0, the same on every machine: the standard
// library's has assembly of its own on several. e^x = 2^k·e^f with |f| ≤ ln2/2,
// and e^f is its Taylor series to the 13th power (remainder < 2^-58). Every
// multiplication that a compiler could fuse is written as an FMA.
func exp(x float64) float64 {
	switch {
	case math.IsNaN(x) || x == 0:
		return 1 + x
	case x < -745.2: // below the smallest denormal
		return 0
	}
	const (
		// ln 2 in two parts; the first has 32 trailing zero bits, so that k times
		// it is exact (Cody and Waite).
		hi = 0x1.62e42feep-1
		lo = 0x1.a39ef35793c76p-33
	)
	k := math.RoundToEven(x * (1 / math.Ln2))
	f := math.FMA(-k, lo, math.FMA(-k, hi, x))
	p := 1.0 / 6227020800 // 1/13!
	for _, c := range [...]float64{479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1} {
		p = math.FMA(p, f, 1/c)
	}
	return math.Ldexp(p, int(k))
}

// log is the natural logarithm in float64 for x > 0, the same on every machine.
// x = 2^k·m with m in [√½, √2); with s = (m-1)/(m+1), log m = 2·(s + s³/3 + …) to
// the 21st power, where |s| < .172 leaves less than 2^-58.
func log(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 1) {
		return math.Log(x) // -Inf, NaN or +Inf
	}
	m, k := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, k = 2*m, k-1
	}
	s := (m - 1) / (m + 1)
	z := s * s
	p := 1.0 / 21
	for n := 19; n >= 1; n -= 2 {
		p = math.FMA(p, z, 1/float64(n))
	}
	return math.FMA(float64(k), math.Ln2, float64(2*s)*p)
}

// softmax is exp(z/t) over its sum, in float64, in index order, and the log of
// that sum. A logit of -Inf has probability 0.
func softmax(z []float64, t float64) (p []float64, logSum float64) {
	top := math.Inf(-1)
	for _, v := range z {
		top = max(top, v) // NaN stays
	}
	p, sum := make([]float64, len(z)), 0.0
	for i, v := range z {
		if !math.IsInf(v, -1) {
			p[i] = exp((v - top) / t)
			sum += p[i]
		}
	}
	for i := range p {
		p[i] /= sum
	}
	return p, top/t + log(sum)
}
