package kai

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// ulps is how many float64 values lie between a and b.
func ulps(a, b float64) float64 {
	return math.Abs(float64(int64(math.Float64bits(a)) - int64(math.Float64bits(b))))
}

func TestExpLog(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		x := -rng.Float64() * 40
		if got, want := exp(x), math.Exp(x); ulps(got, want) > 2 {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
		y := math.Exp(rng.Float64()*80 - 40)
		if got, want := log(y), math.Log(y); ulps(got, want) > 4 && math.Abs(got-want) > 1e-16 {
			t.Fatalf("log(%v) = %v, want %v", y, got, want)
		}
	}
	for _, c := range []struct{ x, want float64 }{
		{0, 1}, {-1e-300, 1}, {-1e300, 0}, {math.Inf(-1), 0}, {-745.1, 5e-324},
	} {
		if got := exp(c.x); got != c.want {
			t.Errorf("exp(%v) = %v, want %v", c.x, got, c.want)
		}
	}
	for _, c := range []struct{ x, want float64 }{
		{1, 0}, {0, math.Inf(-1)}, {math.Inf(1), math.Inf(1)}, {5e-324, -744.4400719213812}, {math.E, 1},
	} {
		if got := log(c.x); math.Abs(got-c.want) > 1e-15*math.Abs(c.want) && got != c.want {
			t.Errorf("log(%v) = %v, want %v", c.x, got, c.want)
		}
	}
	if !math.IsNaN(exp(math.NaN())) || !math.IsNaN(log(-1)) {
		t.Error("a NaN is lost")
	}
}

// TestExpExact compares some values with 200-bit arithmetic, so that the bits
// cannot move unseen.
func TestExpExact(t *testing.T) {
	for _, x := range []float64{-0.1, -0.5, -1, -math.Pi, -10, -30.5} {
		sum, term := new(big.Float).SetPrec(200).SetInt64(1), new(big.Float).SetPrec(200).SetInt64(1)
		bx := new(big.Float).SetPrec(200).SetFloat64(x)
		for n := int64(1); n < 200; n++ {
			term.Mul(term, bx)
			term.Quo(term, new(big.Float).SetPrec(200).SetInt64(n))
			sum.Add(sum, term)
		}
		want, _ := sum.Float64()
		if got := exp(x); ulps(got, want) > 1 {
			t.Errorf("exp(%v) = %x, want %x", x, got, want)
		}
	}
}

func TestSoftmax(t *testing.T) {
	p, logSum := softmax([]float64{1, leftOut, 1, 1}, 2)
	if p[1] != 0 || p[0] != p[2] || math.Abs(p[0]-1./3) > 1e-16 || math.Abs(logSum-(.5+math.Log(3))) > 1e-15 {
		t.Errorf("softmax = %v, log of the sum %v", p, logSum)
	}
	if p, _ := softmax([]float64{1e30, -1e30}, 1); p[0] != 1 || p[1] != 0 {
		t.Errorf("softmax of extremes = %v", p)
	}
	if p, _ := softmax([]float64{math.NaN(), 1}, 1); p[0] == p[0] {
		t.Errorf("softmax hides a NaN: %v", p)
	}
}
