package kernels

import "math"

// FMA is x*y + z rounded once to float32.
//
// The product of two float32 is exact in float64. The sum is rounded to odd
// there, which keeps the final rounding right: a float64 has more than twice the
// bits of a float32 and two to spare (Boldo and Melquiond, "Emulation of FMA and
// correctly rounded sums", IEEE Trans. Computers 57(4), 2008). Go may or may not
// fuse x*y + z on its own; nothing here relies on it.
func FMA(x, y, z float32) float32 {
	p, c := float64(x)*float64(y), float64(z)
	s := p + c
	// The error of s, exactly (Knuth's two-sum).
	b := s - p
	e := (p - (s - b)) + (c - b)
	if e != 0 && e == e {
		if u := math.Float64bits(s); u&1 == 0 {
			// s was rounded to an even neighbour: step towards the exact sum.
			if (e > 0) == (s > 0) {
				u++
			} else {
				u--
			}
			s = math.Float64frombits(u)
		}
	}
	return float32(s)
}

// The constants of Exp, for the devices that repeat it. ln 2 is split as in W.
// Cody and W. Waite, "Software Manual for the Elementary Functions" (1980):
// Ln2High has 9 significant bits, so that n*Ln2High is exact for every n that Exp
// meets, and the two parts are 2^-39 off. ExpP is our own minimax fit of
// (e^r-1-r)/r^2 on |r| ≤ 0.3475, rounded coefficient by coefficient; its
// relative error in e^r is 2^-28.
const (
	ExpLow   float32 = -104 // below it e^x rounds to 0
	ExpHigh  float32 = 89   // above it e^x is infinite
	Log2E    float32 = 1.44269504
	Ln2High  float32 = 0.693359375
	Ln2Low   float32 = -2.12194440e-4
	ExpMagic float32 = 12582912 // 1.5 * 2^23: adding it rounds to an integer
)

// ExpP is the polynomial of Exp, the constant term first.
var ExpP = [5]float32{0.49999994, 0.16666521, 0.041668292, 0.008368716, 0.0013818699}

// Exp is e^x, over every float32 at most 1.02 units in the last place off.
// Exp(NaN) is NaN. It takes fma, add, multiply and integer operations on the
// bits only, so that every device can repeat it.
func Exp(x float32) float32 {
	// Written so that a NaN passes, as MINPS and MAXPS with x second do.
	if ExpHigh < x {
		x = ExpHigh
	}
	if ExpLow > x {
		x = ExpLow
	}
	z := FMA(x, Log2E, ExpMagic) // n in its low bits
	n := z - ExpMagic            // x = n ln 2 + r
	r := FMA(n, -Ln2High, x)
	r = FMA(n, -Ln2Low, r)
	p := ExpP[4]
	p = FMA(p, r, ExpP[3])
	p = FMA(p, r, ExpP[2])
	p = FMA(p, r, ExpP[1])
	p = FMA(p, r, ExpP[0])
	p = FMA(p, float32(r*r), r)
	p = p + 1
	// 2^n in two factors, since n reaches from -150 to 128.
	i := int32(math.Float32bits(z)) - int32(math.Float32bits(ExpMagic))
	h := i >> 1
	p = p * math.Float32frombits(uint32(h+127)<<23)
	return p * math.Float32frombits(uint32(i-h+127)<<23)
}

// Where Erf changes branch and where it ends.
//
// Below ErfEdge ErfP is a fit of erf(x)/x - 1 in x^2, above it ErfQ is one
// of (log erfc(x) + x)/x in x, both minimax and our own. The two-branch form
// follows N. Juffa (https://stackoverflow.com/q/35148198).
const (
	ErfEdge float32 = 0.875
	ErfEnd  float32 = 4 // erf(x) rounds to 1 from here
)

var (
	ErfP = [6]float32{0.12837915, -0.37612507, 0.11281963, -0.02677228, 0.005002021, -0.00060388056}
	ErfQ = [6]float32{-0.12852548, -0.63568044, -0.105312094, 0.022922397, -0.0032251352, 0.00021522785}
)

// Erf is the error function of x, over every float32 at most 1.08 units in the
// last place off. Erf(NaN) is NaN.
func Erf(x float32) float32 {
	t := math.Float32frombits(math.Float32bits(x) &^ (1 << 31))
	if !(t > ErfEdge) {
		s := x * x
		p := ErfP[5]
		for i := 4; i >= 0; i-- {
			p = FMA(p, s, ErfP[i])
		}
		return FMA(p, x, x)
	}
	if ErfEnd < t {
		t = ErfEnd
	}
	p := ErfQ[5]
	for i := 4; i >= 0; i-- {
		p = FMA(p, t, ErfQ[i])
	}
	e := 1 - Exp(FMA(p, t, -t))
	return math.Float32frombits(math.Float32bits(e) | math.Float32bits(x)&(1<<31))
}
