package cpu

import "github.com/hanzoai/link/kernels"

// The product is blocked as in Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication" (TOMS 34(3), 2008): b is packed in
// panels of cols lines, a in panels of rows lines, and a micro-kernel makes one
// tile of c from two panels. It differs in one point: where k is cut, the next
// block continues the chain that stands in c, so a cut does not change a bit.

// mode is how a product meets what stands in c.
type mode int

const (
	fresh mode = 0 // c = the chain from +0
	chain mode = 1 // the chain starts from c
	total mode = 2 // c = c + the chain from +0
)

// blockK is the longest run of k in one packed block. It is a token block, so
// that a weight's gradient adds a whole block at once.
const blockK = kernels.Block

// blockLines is about how many lines of a are packed at a time: with blockK, a
// third of a megabyte of second-level cache or less.
const blockLines = 96

// A view is a matrix of lines, each of k values: value p of line i is
// v[i*line+p*k], and line or k is 1.
type view struct {
	v       []float32
	line, k int
}

// gemmScalar makes a tile of 4 x 4: element (i, j) of c, ldc apart, is the chain
// of a[p*4+i]*b[p*4+j] over p in [0, k), by mode.
func gemmScalar(k int, a, b, c []float32, ldc int, mode mode) {
	const rows, cols = 4, 4
	for i := range rows {
		for j := range cols {
			var v float32
			if mode == chain {
				v = c[i*ldc+j]
			}
			if k > 0 {
				v = chainScalar(v, k, a[i:], rows, b[j:], cols)
			}
			if mode == total {
				v = c[i*ldc+j] + v
			}
			c[i*ldc+j] = v
		}
	}
}

// worker is one thread's memory. Buffers grow to what a product needs and stay.
type worker struct {
	t     *table
	a, b  []float32 // packed panels
	tile  []float32 // a tile at c's edge
	lines []float32 // lines short of a panel
	strip [2][]float32
}

// grow makes *buf at least n long and returns its first n values.
func grow(buf *[]float32, n int) []float32 {
	if len(*buf) < n {
		*buf = aligned(n)
	}
	return (*buf)[:n]
}

// pack packs lines [i, i+n) of a, values [p, p+k), in panels of width lines, one
// after another: value q of line l of a panel is its q*width+l, with zeros where
// the last panel lacks lines. Panels of rows lines may be written past their
// end, by less than lanes values; those of cols lines are not, so that threads
// can share a buffer of them.
func (w *worker) pack(dst []float32, a view, i, n, width, p, k int) {
	src := a.v[i*a.line+p*a.k:]
	whole := n / width
	if a.k == 1 { // values side by side: transpose
		for l := range whole {
			w.transpose(dst[l*width*k:], src[l*width*a.line:], a.line, width, k)
		}
		if rest := n - whole*width; rest > 0 {
			// The transposer reads whole panels.
			lines := grow(&w.lines, width*k)
			for l := range rest {
				copy(lines[l*k:(l+1)*k], src[(whole*width+l)*a.line:])
			}
			clear(lines[rest*k:])
			w.transpose(dst[whole*width*k:], lines, k, width, k)
		}
		return
	}
	// Lines side by side: copy, all panels for each value, since the next value
	// may be pages away.
	w.t.interleave(dst, src, a.k, width, k, whole)
	if rest := n - whole*width; rest > 0 {
		dst, src = dst[whole*width*k:], src[whole*width:]
		for q := range k {
			copy(dst[q*width:q*width+rest], src[q*a.k:])
			clear(dst[q*width+rest : (q+1)*width])
		}
	}
}

// transpose packs one whole panel whose lines are stride apart.
func (w *worker) transpose(dst, src []float32, stride, width, k int) {
	for q := w.t.turn(dst, src, stride, width, k); q < k; q++ {
		for l := range width {
			dst[q*width+l] = src[l*stride+q]
		}
	}
}

// interleaveScalar copies k runs of n*width values, stride apart, into n panels.
func interleaveScalar(dst, src []float32, stride, width, k, n int) {
	for q := range k {
		for l := range n {
			copy(dst[(l*k+q)*width:][:width], src[q*stride+l*width:])
		}
	}
}

// panels is how many panels of width lines hold n lines.
func panels(n, width int) int { return (n + width - 1) / width }

// cuts is the length of the blocks into which k is cut: about equal, and whole
// vectors.
func cuts(k int) int {
	n := max(1, panels(k, blockK))
	return max(1, panels(panels(k, n), lanes)) * lanes
}

// product is c[m,n] = a·bᵀ by mode, c's rows ldc apart: line i of a times line j
// of b, one chain over k ascending. It runs on this worker alone.
func (w *worker) product(c []float32, ldc, m, n, k int, a, b view, how mode) {
	if m == 0 || n == 0 {
		return
	}
	t, step := w.t, cuts(k)
	bp := grow(&w.b, panels(n, t.cols)*t.cols*step)
	for p := 0; ; p += step {
		kc := min(step, k-p)
		w.pack(bp, b, 0, n, t.cols, p, kc)
		for i := 0; i < m; i += blockLines {
			w.block(c, ldc, i, min(blockLines, m-i), 0, n, a, p, kc, bp, how)
		}
		if p+kc >= k {
			return
		}
		how = chain
	}
}

// block makes rows [i0, i0+m) and columns [j0, j0+n) of c from values
// [p, p+k) of a and the packed panels bp of b. j0 is a multiple of cols.
func (w *worker) block(c []float32, ldc, i0, m, j0, n int, a view, p, k int, bp []float32, how mode) {
	t := w.t
	ap := grow(&w.a, panels(m, t.rows)*t.rows*k+lanes)
	w.pack(ap, a, i0, m, t.rows, p, k)
	tile := grow(&w.tile, t.rows*t.cols)
	for j := j0; j < j0+n; j += t.cols {
		b := bp[j*k : (j+t.cols)*k]
		for i := 0; i < m; i += t.rows {
			rows, cols := min(t.rows, m-i), min(t.cols, j0+n-j)
			at := c[(i0+i)*ldc+j:]
			if rows == t.rows && cols == t.cols {
				t.gemm(k, ap[i*k:], b, at, ldc, how)
				continue
			}
			if how != fresh {
				for r := range rows {
					copy(tile[r*t.cols:r*t.cols+cols], at[r*ldc:])
				}
			}
			t.gemm(k, ap[i*k:], b, tile, t.cols, how)
			for r := range rows {
				copy(at[r*ldc:r*ldc+cols], tile[r*t.cols:])
			}
		}
	}
}

// product is [worker.product] on all threads, cut into tiles of c. after, when
// not nil, is called for rows [i, i+m) and columns [j, j+n) once they are done.
func (d *Device) product(c []float32, ldc, m, n, k int, a, b view, how mode, after func(i, m, j, n int)) {
	if m == 0 || n == 0 {
		return
	}
	t := d.table
	step := cuts(k)
	bp := grow(&d.b, panels(n, t.cols)*t.cols*step)
	// Enough tasks that no thread waits long for another.
	tall := blockLines
	if per := panels(m, 2*len(d.workers)); per < tall {
		tall = max(panels(per, t.rows)*t.rows, 2*t.rows)
	}
	high, wide := panels(m, tall), 1
	if tasks := 3 * len(d.workers); high < tasks {
		wide = min(panels(tasks, high), panels(panels(n, t.cols), 4))
	}
	run := panels(panels(n, t.cols), wide) * t.cols // columns of a task
	flops := 2 * m * n * k
	for p := 0; ; p += step {
		kc := min(step, k-p)
		const some = 4 // panels of b a task
		d.each(panels(panels(n, t.cols), some), flops, func(w *worker, i int) {
			j := i * some * t.cols
			w.pack(bp[j*kc:], b, j, min(some*t.cols, n-j), t.cols, p, kc)
		})
		d.each(high*wide, flops, func(w *worker, task int) {
			i, j := task/wide*tall, task%wide*run
			if j >= n {
				return
			}
			h, l := min(tall, m-i), min(run, n-j)
			w.block(c, ldc, i, h, j, l, a, p, kc, bp, how)
			if after != nil && p+kc >= k {
				after(i, h, j, l)
			}
		})
		if p+kc >= k {
			return
		}
		how = chain
	}
}
