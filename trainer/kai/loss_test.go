package kai

import (
	"math"
	"testing"

	"github.com/hanzoai/link/trainer/decision"
)

// TestLossGradients compares the losses' gradients with central differences.
func TestLossGradients(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Input
		z    []float64
	}{
		{"choice", Input{Type: decision.Choice, Target: []float64{.2, .5, 0, .3}}, []float64{.3, -1, leftOut, 2}},
		{"score", Input{Type: decision.Score, Order: []int{2, 0, 1, 3}, Target: []float64{.1, 0, .9, 0}}, []float64{.3, -1, .5, 2}},
		{"score, one left out", Input{Type: decision.Score, Order: []int{2, 0, 1, 3}, Target: []float64{.1, 0, .9, 0}}, []float64{.3, leftOut, .5, 2}},
		{"certain", Input{Type: decision.Noul, Target: []float64{0, 1}}, []float64{40, -40}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const scale = .25
			loss := func(z []float64) float64 {
				e, r := headLoss(&c.in, z, scale, make([]float64, len(z)))
				return scale * (e + r)
			}
			dz := make([]float64, len(c.z))
			headLoss(&c.in, c.z, scale, dz)
			for i := range c.z {
				if math.IsInf(c.z[i], -1) {
					if dz[i] != 0 {
						t.Errorf("option %d is left out and has gradient %v", i, dz[i])
					}
					continue
				}
				const h = 1e-5
				z := append([]float64(nil), c.z...)
				z[i] += h
				up := loss(z)
				z[i] -= 2 * h
				near(t, "gradient", dz[i], (up-loss(z))/(2*h), 1, 1e-9)
			}
		})
	}
}

func TestRanked(t *testing.T) {
	// All mass on level 2 of 3 against level 0: both cumulative differences are 1.
	z := []float64{-1000, -1000, 0}
	if got := ranked(z, []float64{1, 0, 0}, []int{0, 1, 2}, 1, make([]float64, 3)); got != 1 {
		t.Errorf("ranked = %v, want 1", got)
	}
	// The same distribution with the options listed in another order.
	if got := ranked([]float64{0, -1000, -1000}, []float64{0, 1, 0}, []int{2, 0, 1}, 1, make([]float64, 3)); got != 1 {
		t.Errorf("ranked in another order = %v, want 1", got)
	}
}

func TestEnter(t *testing.T) {
	for _, c := range []struct {
		name   string
		scores []float64
		k      int
		gold   []float64
		want   []int
	}{
		{"all fit", []float64{1, 2, 3}, 3, nil, []int{0, 1, 2}},
		{"the best, in text order", []float64{1, 3, 0, 2}, 2, nil, []int{1, 3}},
		{"ties to the smaller text", []float64{1, 2, 1, 1}, 2, nil, []int{0, 1}},
		{"gold always", []float64{1, 3, 0, 2}, 2, []float64{0, 0, 1, 0}, []int{1, 2}},
		{"more gold than room", []float64{1, 3, 0, 2}, 2, []float64{.3, 0, .3, .4}, []int{0, 2, 3}},
	} {
		got := enter(c.scores, c.k, c.gold)
		if len(got) != len(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
			}
		}
	}
}
