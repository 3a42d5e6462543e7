package cpu

import "github.com/hanzoai/link/kernels"

// An attention is cut into its (row, head) pairs, a task each, and a task into
// tiles of queries. A tile's scores against all the keys that one of its queries
// reaches stand in a strip; pairs out of reach get weight 0 there, which leaves
// a chain as it was but for the sign of a zero, and scaleScalar removes that.

// stripLen is about how many scores a strip holds: a quarter of a megabyte.
const stripLen = 1 << 16

// tileOf is how many queries share a strip in rows of n tokens.
func tileOf(t *table, a kernels.Attention, n int) int {
	keys := n
	if a.Window >= 0 {
		keys = min(n, 2*a.Window+1+blockLines/2)
	}
	q := stripLen / max(keys, 1)
	if a.Window >= 0 {
		q = min(q, blockLines/2) // a taller tile would be mostly out of reach
	}
	return max(q/t.rows, 1) * t.rows
}

// heads calls f for every (row, head): row [lo, hi), and the offset of the
// head's queries in a token's qkv.
func (d *Device) heads(seg kernels.Segments, a kernels.Attention, products int, f func(w *worker, lo, hi, head int)) {
	work := 0
	for r := range seg.Rows() {
		n := int(seg[r+1] - seg[r])
		work += products * 2 * n * n * a.Dim * a.Heads
	}
	d.each(seg.Rows()*a.Heads, work, func(w *worker, i int) {
		r := i / a.Heads
		f(w, int(seg[r]), int(seg[r+1]), i%a.Heads)
	})
}

func (d *Device) Rope(qkv kernels.Mem, seg kernels.Segments, a kernels.Attention, theta float64, back bool) {
	needRope(qkv, seg, a)
	table := ropeTable(seg, a, theta, back)
	d.each(seg.Rows(), qkv.Len*moveCost, func(w *worker, r int) {
		table.turn(qkv.Host, int(seg[r]), int(seg[r+1]), w.t.rope)
	})
}

func (d *Device) Attend(o, stats, qkv kernels.Mem, seg kernels.Segments, a kernels.Attention) {
	needAttention(o, stats, qkv, seg, a)
	t, out, scale := seg.Tokens(), a.Heads*a.Dim, scoreScale(a)
	d.heads(seg, a, 2, func(w *worker, lo, hi, head int) {
		q := qkv.Host[head*a.Dim:]
		k, v := q[out:], q[2*out:]
		tile := tileOf(w.t, a, hi-lo)
		for i := lo; i < hi; i += tile {
			m := min(tile, hi-i)
			from, to := keysOf(a, i, m, lo, hi)
			n := to - from
			s := grow(&w.strip[0], m*n)
			w.product(s, n, m, n, a.Dim, view{q[i*3*out:], 3 * out, 1}, view{k[from*3*out:], 3 * out, 1}, fresh)
			st := stats.Host[2*(head*t+i):][:2*m]
			for r := range m {
				kf, kt := reach(a, i+r, lo, hi)
				row := s[r*n : (r+1)*n]
				clear(row[:kf-from])
				clear(row[kt-from:])
				st[2*r], st[2*r+1] = w.t.softmax(row[kf-from:kt-from], scale)
			}
			oi := o.Host[i*out+head*a.Dim:]
			w.product(oi, out, m, a.Dim, n, view{s, n, 1}, view{v[from*3*out:], 1, 3 * out}, fresh)
			for r := range m {
				row := oi[r*out:][:a.Dim]
				w.t.scale(row, row, 1/st[2*r+1])
			}
		}
	})
}

// keysOf is the keys that any of the m queries from i reaches.
func keysOf(a kernels.Attention, i, m, lo, hi int) (from, to int) {
	from, _ = reach(a, i, lo, hi)
	_, to = reach(a, i+m-1, lo, hi)
	return from, to
}

func (d *Device) AttendBack(dqkv, do, o, stats, qkv kernels.Mem, seg kernels.Segments, a kernels.Attention) {
	needAttention(o, stats, qkv, seg, a)
	need("AttendBack dqkv", dqkv, qkv.Len)
	need("AttendBack do", do, o.Len)
	t, out, scale := seg.Tokens(), a.Heads*a.Dim, scoreScale(a)
	d.heads(seg, a, 5, func(w *worker, lo, hi, head int) {
		q, dq := qkv.Host[head*a.Dim:], dqkv.Host[head*a.Dim:]
		k, dk := q[out:], dq[out:]
		v, dv := k[out:], dk[out:]
		for i := lo; i < hi; i++ {
			clear(dk[i*3*out:][:a.Dim])
			clear(dv[i*3*out:][:a.Dim])
		}
		tile := tileOf(w.t, a, hi-lo)
		for i := lo; i < hi; i += tile {
			m := min(tile, hi-i)
			from, to := keysOf(a, i, m, lo, hi)
			n := to - from
			p, ds := grow(&w.strip[0], m*n), grow(&w.strip[1], m*n)
			qi, doi := q[i*3*out:], do.Host[i*out+head*a.Dim:]
			w.product(p, n, m, n, a.Dim, view{qi, 3 * out, 1}, view{k[from*3*out:], 3 * out, 1}, fresh)
			w.product(ds, n, m, n, a.Dim, view{doi, out, 1}, view{v[from*3*out:], 3 * out, 1}, fresh)
			for r := range m {
				kf, kt := reach(a, i+r, lo, hi)
				kf, kt = kf-from, kt-from
				pr, dr := p[r*n:(r+1)*n], ds[r*n:(r+1)*n]
				for _, row := range [][]float32{pr, dr} {
					clear(row[:kf])
					clear(row[kt:])
				}
				at := 2 * (head*t + i + r)
				oi := o.Host[(i+r)*out+head*a.Dim:][:a.Dim]
				w.t.softmaxBack(pr[kf:kt], dr[kf:kt], stats.Host[at], scale, 1/stats.Host[at+1], w.t.dot(doi[r*out:][:a.Dim], oi))
			}
			dqi := dq[i*3*out:]
			w.product(dqi, 3*out, m, a.Dim, n, view{ds, n, 1}, view{k[from*3*out:], 1, 3 * out}, fresh)
			for r := range m {
				row := dqi[r*3*out:][:a.Dim]
				w.t.scale(row, row, scale)
			}
			// The chains of the keys and values run over the queries, tile by tile.
			w.product(dk[from*3*out:], 3*out, n, a.Dim, m, view{ds, 1, n}, view{qi, 1, 3 * out}, chain)
			w.product(dv[from*3*out:], 3*out, n, a.Dim, m, view{p, 1, n}, view{doi, 1, out}, chain)
		}
		for i := lo; i < hi; i++ {
			row := dk[i*3*out:][:a.Dim]
			w.t.scale(row, row, scale)
			row = dv[i*3*out:][:a.Dim]
			w.t.scale(row, row, 1)
		}
	})
}
