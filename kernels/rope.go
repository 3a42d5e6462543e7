package kernels

import "math"

// RopeTable is the cosines and sines by which [Device.Rope] turns: n positions
// of dim/2 pairs each, computed in float64 and rounded once. Every device takes
// its table from here.
func RopeTable(n, dim int, theta float64) (cos, sin []float32) {
	h := dim / 2
	cos, sin = make([]float32, n*h), make([]float32, n*h)
	for i := range h {
		f := math.Pow(theta, -2*float64(i)/float64(dim))
		for p := range n {
			s, c := math.Sincos(float64(p) * f)
			cos[p*h+i], sin[p*h+i] = float32(c), float32(s)
		}
	}
	return cos, sin
}
