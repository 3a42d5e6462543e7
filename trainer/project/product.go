package project

// The products of this package, in float64. Every product of two numbers is
// rounded by itself (the conversions keep a compiler from fusing it with the
// sum), and every sum is one chain, the index ascending. So an architecture with
// fused operations gives the same bits, and so does any blocking.

// A block of the right side stays in the second-level cache: 64 rows of 256.
const (
	blockRows  = 64
	blockDepth = 256
)

// productT is y [m, n] = a [m, d] · b [n, d]ᵀ.
func productT(y, a, b []float64, m, d, n int) {
	clear(y[:m*n])
	for p := 0; p < d; p += blockDepth {
		depth := min(blockDepth, d-p)
		for from := 0; from < n; from += blockRows {
			to := min(n, from+blockRows)
			i := 0
			for ; i+2 <= m; i += 2 {
				a0, a1 := a[i*d+p:][:depth], a[(i+1)*d+p:][:depth]
				y0, y1 := y[i*n:][:n], y[(i+1)*n:][:n]
				j := from
				for ; j+4 <= to; j += 4 {
					tile(y0[j:j+4], y1[j:j+4], a0, a1,
						b[j*d+p:][:depth], b[(j+1)*d+p:][:depth], b[(j+2)*d+p:][:depth], b[(j+3)*d+p:][:depth])
				}
				for ; j < to; j++ {
					y0[j] = chain(y0[j], a0, b[j*d+p:][:depth])
					y1[j] = chain(y1[j], a1, b[j*d+p:][:depth])
				}
			}
			for ; i < m; i++ {
				for j := from; j < to; j++ {
					y[i*n+j] = chain(y[i*n+j], a[i*d+p:][:depth], b[j*d+p:][:depth])
				}
			}
		}
	}
}

// tile is chain for two rows and four columns at once.
func tile(y0, y1, a0, a1, b0, b1, b2, b3 []float64) {
	s00, s01, s02, s03 := y0[0], y0[1], y0[2], y0[3]
	s10, s11, s12, s13 := y1[0], y1[1], y1[2], y1[3]
	n := len(a0)
	a1, b0, b1, b2, b3 = a1[:n], b0[:n], b1[:n], b2[:n], b3[:n]
	for i, u := range a0 {
		v := a1[i]
		s00 += float64(u * b0[i])
		s10 += float64(v * b0[i])
		s01 += float64(u * b1[i])
		s11 += float64(v * b1[i])
		s02 += float64(u * b2[i])
		s12 += float64(v * b2[i])
		s03 += float64(u * b3[i])
		s13 += float64(v * b3[i])
	}
	y0[0], y0[1], y0[2], y0[3] = s00, s01, s02, s03
	y1[0], y1[1], y1[2], y1[3] = s10, s11, s12, s13
}

// chain is s + Σ a·b, one chain.
func chain(s float64, a, b []float64) float64 {
	b = b[:len(a)]
	for i, v := range a {
		s += float64(v * b[i])
	}
	return s
}

// dot is Σ a·b.
func dot(a, b []float64) float64 { return chain(0, a, b) }

// axpy is y += s·x.
func axpy(y []float64, s float64, x []float64) {
	x = x[:len(y)]
	for i, v := range x {
		y[i] += float64(s * v)
	}
}

// add is y [m, n] += a [m, d] · b [d, n].
func add(y, a, b []float64, m, d, n int) {
	for i := range m {
		r, s := y[i*n:][:n], a[i*d:][:d]
		p := 0
		for ; p+4 <= d; p += 4 {
			s0, s1, s2, s3 := s[p], s[p+1], s[p+2], s[p+3]
			b0, b1, b2, b3 := b[p*n:][:n], b[(p+1)*n:][:n], b[(p+2)*n:][:n], b[(p+3)*n:][:n]
			for j, v := range r {
				v += float64(s0 * b0[j])
				v += float64(s1 * b1[j])
				v += float64(s2 * b2[j])
				r[j] = v + float64(s3*b3[j])
			}
		}
		for ; p < d; p++ {
			axpy(r, s[p], b[p*n:][:n])
		}
	}
}
