package main

import (
	"math"

	"github.com/hanzoai/link/kernels"
)

// logistic is a multinomial logistic regression over fixed features: the
// plainest thing a person would try before a readout.
type logistic struct {
	dev     kernels.Device
	n, d, k int
	x       kernels.Mem // [n, d], standardised, the last column 1
	y       []int       // n labels in [0, k)
}

// fit minimises the mean cross-entropy plus l2/2 times the squared weights (the
// intercepts are free) by L-BFGS with ten pairs and Armijo backtracking (Nocedal
// and Wright, Numerical Optimization, 2nd ed., algorithm 7.5), until the largest
// gradient is under 1e-5 or 300 steps are made.
func (l *logistic) fit(l2 float64) []float32 {
	const pairs, steps, tolerance = 10, 300, 1e-5
	w := make([]float64, l.k*l.d)
	f, g := l.loss(w, l2)
	var ss, ys [][]float64
	for range steps {
		if largest(g) < tolerance {
			break
		}
		dir := twoLoop(g, ss, ys)
		slope := dot(dir, g)
		if slope >= 0 { // rounding has eaten the curvature: start over downhill
			ss, ys = nil, nil
			for i := range dir {
				dir[i] = -g[i]
			}
			slope = dot(dir, g)
		}
		next := make([]float64, len(w))
		var fn float64
		var gn []float64
		for rate := 1.0; ; rate /= 2 {
			if rate < 1e-10 {
				return single(w)
			}
			for i := range w {
				next[i] = w[i] + rate*dir[i]
			}
			if fn, gn = l.loss(next, l2); fn <= f+1e-4*rate*slope {
				break
			}
		}
		s, y := make([]float64, len(w)), make([]float64, len(w))
		for i := range w {
			s[i], y[i] = next[i]-w[i], gn[i]-g[i]
		}
		if dot(s, y) > 1e-12 {
			ss, ys = append(ss, s), append(ys, y)
			if len(ss) > pairs {
				ss, ys = ss[1:], ys[1:]
			}
		}
		w, f, g = next, fn, gn
	}
	return single(w)
}

// loss is the objective and its gradient. The two products run on the device in
// float32, the softmax and the sums in float64.
func (l *logistic) loss(w []float64, l2 float64) (float64, []float64) {
	wm := l.dev.Alloc(l.k * l.d)
	l.dev.Write(wm, single(w))
	logits := l.dev.Alloc(l.n * l.k)
	l.dev.Linear(logits, l.x, wm, kernels.Mem{}, l.n, l.d, l.k)
	z := make([]float32, l.n*l.k)
	l.dev.Read(z, logits)
	f := 0.0
	for i, label := range l.y {
		row := z[i*l.k : (i+1)*l.k]
		top := float64(row[0])
		for _, v := range row {
			top = max(top, float64(v))
		}
		sum := 0.0
		for _, v := range row {
			sum += math.Exp(float64(v) - top)
		}
		f += top + math.Log(sum) - float64(row[label])
		for j, v := range row {
			p := math.Exp(float64(v)-top) / sum
			if j == label {
				p--
			}
			row[j] = float32(p / float64(l.n))
		}
	}
	f /= float64(l.n)
	l.dev.Write(logits, z)
	grad := kernels.Grad{Sum: l.dev.Alloc(l.k * l.d), Open: l.dev.Alloc(l.k * l.d)}
	l.dev.LinearWeight(&grad, logits, l.x, l.n, l.d, l.k)
	l.dev.Close(&grad)
	g32 := make([]float32, l.k*l.d)
	l.dev.Read(g32, grad.Sum)
	g := make([]float64, len(w))
	for i, v := range g32 {
		g[i] = float64(v)
		if i%l.d != l.d-1 {
			f += l2 / 2 * w[i] * w[i]
			g[i] += l2 * w[i]
		}
	}
	return f, g
}

// predict is the most probable label of each row of x [n, d].
func predict(dev kernels.Device, w []float32, x kernels.Mem, n, d, k int) []int {
	wm, logits := dev.Alloc(k*d), dev.Alloc(n*k)
	dev.Write(wm, w)
	dev.Linear(logits, x, wm, kernels.Mem{}, n, d, k)
	z := make([]float32, n*k)
	dev.Read(z, logits)
	answers := make([]int, n)
	for i := range answers {
		for j := range k {
			if z[i*k+j] > z[i*k+answers[i]] {
				answers[i] = j
			}
		}
	}
	return answers
}

// twoLoop is -H·g for L-BFGS's inverse Hessian H (algorithm 7.4 there).
func twoLoop(g []float64, ss, ys [][]float64) []float64 {
	dir := make([]float64, len(g))
	copy(dir, g)
	alpha := make([]float64, len(ss))
	for i := len(ss) - 1; i >= 0; i-- {
		alpha[i] = dot(ss[i], dir) / dot(ss[i], ys[i])
		axpy(dir, -alpha[i], ys[i])
	}
	if n := len(ss); n > 0 {
		scale := dot(ss[n-1], ys[n-1]) / dot(ys[n-1], ys[n-1])
		for i := range dir {
			dir[i] *= scale
		}
	}
	for i := range ss {
		beta := dot(ys[i], dir) / dot(ss[i], ys[i])
		axpy(dir, alpha[i]-beta, ss[i])
	}
	for i := range dir {
		dir[i] = -dir[i]
	}
	return dir
}

func dot(a, b []float64) float64 {
	s := 0.0
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

func axpy(y []float64, a float64, x []float64) {
	for i := range y {
		y[i] += a * x[i]
	}
}

func largest(g []float64) float64 {
	top := 0.0
	for _, v := range g {
		top = max(top, math.Abs(v))
	}
	return top
}

func single(w []float64) []float32 {
	s := make([]float32, len(w))
	for i, v := range w {
		s[i] = float32(v)
	}
	return s
}
