package kernels

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// ulps is how far got is from want in units of want's last place as a float32.
func ulps(got float32, want float64) float64 {
	_, e := math.Frexp(want)
	e = max(e-24, -149)
	return math.Abs(float64(got)-want) / math.Ldexp(1, e)
}

// stride walks the float32 bit patterns. With 1, all of them, the worst found is
// Exp 1.011 ulp, at -5.8570795, and Erf 1.076 ulp, at 0.87710667 (ten minutes).
const stride = 2477 // prime, so that every exponent and low bit is met

func TestExp(t *testing.T) {
	var worst float64
	var at float32
	for u := uint64(0); u < 1<<32; u += stride {
		x := math.Float32frombits(uint32(u))
		got := Exp(x)
		want := math.Exp(float64(x))
		switch {
		case x != x:
			if got == got {
				t.Fatalf("Exp(NaN) = %v", got)
			}
		case math.IsInf(float64(float32(want)), 1):
			if got != float32(want) {
				t.Fatalf("Exp(%v) = %v, want %v", x, got, want)
			}
		default:
			if e := ulps(got, want); e > worst {
				worst, at = e, x
			}
		}
	}
	t.Logf("worst %.3f ulp at %v", worst, at)
	if worst > 1.02 {
		t.Errorf("Exp is %.3f ulp off at %v", worst, at)
	}
}

func TestErf(t *testing.T) {
	var worst float64
	var at float32
	for u := uint64(0); u < 1<<32; u += stride {
		x := math.Float32frombits(uint32(u))
		got := Erf(x)
		if x != x {
			if got == got {
				t.Fatalf("Erf(NaN) = %v", got)
			}
			continue
		}
		if e := ulps(got, math.Erf(float64(x))); e > worst {
			worst, at = e, x
		}
	}
	t.Logf("worst %.3f ulp at %v", worst, at)
	if worst > 1.08 {
		t.Errorf("Erf is %.3f ulp off at %v", worst, at)
	}
}

// TestFMA compares with exact rational arithmetic, on values of nearby and of
// far exponents, subnormals included.
func TestFMA(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	draw := func(span int) float32 {
		return float32(math.Ldexp(r.Float64()*2-1, r.IntN(2*span+1)-span))
	}
	for i := range 200_000 {
		span := []int{2, 30, 60}[i%3]
		x, y, z := draw(span), draw(span), draw(span)
		if i%5 == 0 { // a tie or nearly: z is the product's high part
			z = -float32(x*y) * float32(r.IntN(3))
		}
		exact := new(big.Float).SetPrec(600).SetFloat64(float64(x) * float64(y))
		exact.Add(exact, big.NewFloat(float64(z)))
		want, _ := exact.Float32()
		if got := FMA(x, y, z); got != want {
			t.Fatalf("FMA(%v, %v, %v) = %v, want %v", x, y, z, got, want)
		}
	}
	inf := float32(math.Inf(1))
	for _, c := range [][4]float32{{1, inf, 1, inf}, {1, 1, -inf, -inf}, {3e38, 3e38, -1, inf}} {
		if got := FMA(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("FMA(%v) = %v", c[:3], got)
		}
	}
	if got := FMA(0, inf, 1); got == got {
		t.Errorf("FMA(0, inf, 1) = %v, want NaN", got)
	}
}
