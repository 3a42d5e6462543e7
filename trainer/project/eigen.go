package project

import (
	"math"
	"slices"
)

// spare is how many directions are iterated beside those asked for: the last of
// a subspace converge slowest.
const spare = 8

// iterations of the subspace. The share of the trace that is kept is near its
// best after two or three (Halko, Martinsson and Tropp, arXiv 0909.4061, §9.3). On
// the sums of MiniLM's widest layers, 384 directions of 1,536, four keep a
// thousandth less of the trace than sixteen do (.9326 where .9337 can be), and
// where the energy and not the cap sets the rank, that rank is the same.
const iterations = 4

// largest are the k largest eigenvalues of the symmetric c [n, n], none of which
// is far below zero, in descending order, and their eigenvectors [k, n], rows. A
// direction with next to no energy may come as a value and a row of zeros. c is
// left as it was.
//
// Where k is not nearly n, it is block subspace iteration from a fixed start, with
// a fixed number of steps, then Rayleigh and Ritz: the values are the exact energies
// along the vectors, however far those have converged. (Golub and Van Loan, Matrix
// Computations, 4th edition, §8.2.4 and §8.1.4.) Where k is nearly n the last part
// is all of it, and costs about 60 n³ operations.
func largest(c []float64, n, k int) (values, vectors []float64) {
	m := min(n, k+spare)
	q := make([]float64, m*n)
	if m == n {
		for i := range n {
			q[i*n+i] = 1
		}
	} else {
		for i := range q {
			q[i] = start(uint64(i))
		}
		y := make([]float64, m*n)
		for range iterations {
			productT(y, q, c, m, n, n) // c is symmetric
			q, y = y, q
			orthonormal(q, m, n)
		}
	}
	// Rayleigh and Ritz: the eigenvectors u of t = q·c·qᵀ give those of c, u·q.
	cq, t := make([]float64, m*n), make([]float64, m*m)
	productT(cq, q, c, m, n, n)
	productT(t, q, cq, m, n, m)
	u := jacobi(t, m)
	order := make([]int, m)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch va, vb := t[a*m+a], t[b*m+b]; {
		case va > vb:
			return -1
		case va < vb:
			return 1
		}
		return 0
	})
	values, vectors = make([]float64, k), make([]float64, k*n)
	picked := make([]float64, k*m)
	for i, at := range order[:k] {
		values[i] = t[at*m+at]
		copy(picked[i*m:][:m], u[at*m:][:m])
	}
	add(vectors, picked, q, k, m, n)
	return values, vectors
}

// start is value i of the fixed start, in [-1, 1): SplitMix64 of a counter
// (Steele, Lea and Flood, OOPSLA 2014).
func start(i uint64) float64 {
	z := (i + 1) * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return float64(z>>11)*0x1p-52 - 1
}

// lost is how small, of what it was, a row must become when the rows before it
// are taken out for it to be their rounding and no direction of its own.
const lost = 1e-12

// orthonormal makes the rows of q [m, n] orthonormal by Gram and Schmidt, twice
// for each block of rows, which is enough (Giraud, Langou and Rozložník, 2005). A
// row that is a combination of those before it becomes zeros.
func orthonormal(q []float64, m, n int) {
	const block = 32
	along := make([]float64, block*m)
	for from := 0; from < m; from += block {
		rows := min(block, m-from)
		b, before := q[from*n:][:rows*n], q[:from*n]
		var was [block]float64
		for i := range rows {
			was[i] = math.Sqrt(dot(b[i*n:][:n], b[i*n:][:n]))
		}
		for range 2 {
			s := along[:rows*from]
			productT(s, b, before, rows, n, from)
			for i := range s {
				s[i] = -s[i]
			}
			add(b, s, before, rows, from, n)
			for i := range rows {
				r := b[i*n:][:n]
				for j := range i {
					p := b[j*n:][:n]
					axpy(r, -dot(r, p), p)
				}
				size := math.Sqrt(dot(r, r))
				if !(size > lost*was[i]) {
					clear(r)
					continue
				}
				for k := range r {
					r[k] /= size
				}
				was[i] = 1
			}
		}
	}
}

// sweeps is the most sweeps of jacobi; it ends by itself after about ten.
const sweeps = 60

// jacobi takes the symmetric t [m, m] to a diagonal matrix of its eigenvalues and
// returns their eigenvectors, rows in the same order, by cyclic rotations.
// (Golub and Van Loan, §8.5.)
func jacobi(t []float64, m int) []float64 {
	u := make([]float64, m*m)
	for i := range m {
		u[i*m+i] = 1
	}
	var size float64
	for _, v := range t {
		size += float64(v * v)
	}
	// Below this an entry moves no eigenvalue by more than a float64's rounding
	// of the largest.
	small := math.Sqrt(size) * 0x1p-53 / float64(m)
	for range sweeps {
		turned := false
		for p := range m {
			for q := p + 1; q < m; q++ {
				off := t[p*m+q]
				if math.Abs(off) <= small {
					continue
				}
				turned = true
				theta := (t[q*m+q] - t[p*m+p]) / (2 * off)
				tan := 1 / (math.Abs(theta) + math.Sqrt(float64(theta*theta)+1))
				if theta < 0 {
					tan = -tan
				}
				cos := 1 / math.Sqrt(float64(tan*tan)+1)
				sin := tan * cos
				rotate(t[p*m:][:m], t[q*m:][:m], cos, sin)
				for i := range m {
					a, b := t[i*m+p], t[i*m+q]
					t[i*m+p] = float64(cos*a) - float64(sin*b)
					t[i*m+q] = float64(sin*a) + float64(cos*b)
				}
				t[p*m+q], t[q*m+p] = 0, 0
				rotate(u[p*m:][:m], u[q*m:][:m], cos, sin)
			}
		}
		if !turned {
			break
		}
	}
	return u
}

// rotate is (a, b) = (cos·a − sin·b, sin·a + cos·b).
func rotate(a, b []float64, cos, sin float64) {
	for i, x := range a {
		y := b[i]
		a[i] = float64(cos*x) - float64(sin*y)
		b[i] = float64(sin*x) + float64(cos*y)
	}
}
