package cpu

import (
	"math"

	"github.com/hanzoai/link/kernels"
)

// Reference is the device that defines the others: every operation is its plain
// loop over scalars, on one thread. It is slow, and it is the truth. Its zero
// value is ready.
type Reference struct{}

var _ kernels.Device = Reference{}

func (Reference) Name() string              { return "cpu reference" }
func (Reference) Plan() []kernels.Selection { return kernels.ExactPlan() }

func (Reference) Alloc(n int) kernels.Mem { return kernels.Mem{Host: make([]float32, n), Len: n} }

func (Reference) Zero(m kernels.Mem) { clear(m.Host) }

func (Reference) Copy(dst, src kernels.Mem) {
	need("Copy src", src, dst.Len)
	copy(dst.Host, src.Host)
}

func (Reference) Write(dst kernels.Mem, src []float32) {
	need("Write dst", dst, len(src))
	copy(dst.Host, src)
}

func (Reference) Read(dst []float32, src kernels.Mem) {
	need("Read src", src, len(dst))
	copy(dst, src.Host)
}

func (Reference) Linear(y, x, w, bias kernels.Mem, t, in, out int) {
	needLinear(y, x, w, bias, t, in, out)
	for i := range t {
		for j := range out {
			c := chainScalar(0, in, x.Host[i*in:], 1, w.Host[j*in:], 1)
			if !bias.None() {
				c += bias.Host[j]
			}
			y.Host[i*out+j] = c
		}
	}
}

func (Reference) LinearInput(dx, dy, w kernels.Mem, t, in, out int, add bool) {
	needLinear(dy, dx, w, kernels.Mem{}, t, in, out)
	for i := range t {
		for j := range in {
			var c float32
			if add {
				c = dx.Host[i*in+j]
			}
			dx.Host[i*in+j] = chainScalar(c, out, dy.Host[i*out:], 1, w.Host[j:], in)
		}
	}
}

// blocks walks t tokens through g's blocks: f adds tokens [from, to), all of one
// block, to g.Open, which it first clears when fresh. A full block is closed.
func blocks(g *kernels.Grad, t int, f func(from, to int, fresh bool)) {
	for at := 0; at < t; {
		n := min(kernels.Block-g.Fill, t-at)
		f(at, at+n, g.Fill == 0)
		g.Fill += n
		at += n
		if g.Fill == kernels.Block {
			Reference{}.Close(g)
		}
	}
}

func (Reference) LinearWeight(g *kernels.Grad, dy, x kernels.Mem, t, in, out int) {
	needGrad("LinearWeight", g, out*in)
	need("LinearWeight dy", dy, t*out)
	need("LinearWeight x", x, t*in)
	blocks(g, t, func(from, to int, fresh bool) {
		for j := range out {
			for i := range in {
				c := g.Open.Host[j*in+i]
				if fresh {
					c = 0
				}
				g.Open.Host[j*in+i] = chainScalar(c, to-from, dy.Host[from*out+j:], out, x.Host[from*in+i:], in)
			}
		}
	})
}

func (Reference) ColumnSum(g *kernels.Grad, dy kernels.Mem, t, d int) {
	needGrad("ColumnSum", g, d)
	need("ColumnSum dy", dy, t*d)
	blocks(g, t, func(from, to int, fresh bool) {
		if fresh {
			clear(g.Open.Host)
		}
		for i := from; i < to; i++ {
			addScalar(g.Open.Host, g.Open.Host, dy.Host[i*d:(i+1)*d])
		}
	})
}

func (Reference) Close(g *kernels.Grad) {
	if g.Fill > 0 {
		addScalar(g.Sum.Host, g.Sum.Host, g.Open.Host)
		g.Fill = 0
	}
}

func (Reference) Gather(y, src kernels.Mem, ids []int32, d int, add bool) {
	needRows("Gather", y, src, ids, d)
	for i, id := range ids {
		move(y.Host[i*d:(i+1)*d], src.Host[int(id)*d:(int(id)+1)*d], add)
	}
}

func (Reference) Scatter(dst, src kernels.Mem, ids []int32, d int, add bool) {
	needRows("Scatter", src, dst, ids, d)
	for i, id := range ids {
		move(dst.Host[int(id)*d:(int(id)+1)*d], src.Host[i*d:(i+1)*d], add)
	}
}

func move(y, x []float32, add bool) {
	if add {
		addScalar(y, y, x)
	} else {
		copy(y, x)
	}
}

func (Reference) Add(y, a, b kernels.Mem) {
	need("Add a", a, y.Len)
	need("Add b", b, y.Len)
	addScalar(y.Host, a.Host, b.Host)
}

func (Reference) Mul(y, a, b kernels.Mem) {
	need("Mul a", a, y.Len)
	need("Mul b", b, y.Len)
	mulScalar(y.Host, a.Host, b.Host)
}

func (Reference) Scale(y kernels.Mem, s float32) {
	scaleScalar(y.Host, y.Host, s)
}

func (Reference) LayerNorm(y, stats, x, gamma, beta kernels.Mem, t, d int, eps float32) {
	needNorm(y, stats, x, gamma, t, d)
	if !beta.None() {
		need("LayerNorm beta", beta, d)
	}
	for i := range t {
		stats.Host[2*i], stats.Host[2*i+1] = normScalar(y.Host[i*d:(i+1)*d], x.Host[i*d:(i+1)*d], gamma.Host, beta.Host, eps)
	}
}

func (Reference) LayerNormBack(dx kernels.Mem, dgamma, dbeta *kernels.Grad, dy, x, stats, gamma kernels.Mem, t, d int, add bool) {
	needNorm(dx, stats, x, gamma, t, d)
	need("LayerNormBack dy", dy, t*d)
	row := func(m kernels.Mem, i int) []float32 { return m.Host[i*d : (i+1)*d] }
	if dgamma != nil {
		needGrad("LayerNormBack dgamma", dgamma, d)
		blocks(dgamma, t, func(from, to int, fresh bool) {
			if fresh {
				clear(dgamma.Open.Host)
			}
			for i := from; i < to; i++ {
				normGradScalar(dgamma.Open.Host, row(dy, i), row(x, i), stats.Host[2*i], stats.Host[2*i+1])
			}
		})
	}
	if dbeta != nil {
		Reference{}.ColumnSum(dbeta, dy, t, d)
	}
	for i := range t {
		normBackScalar(row(dx, i), row(dy, i), row(x, i), gamma.Host, stats.Host[2*i], stats.Host[2*i+1], add)
	}
}

func (Reference) GELU(y, x kernels.Mem) {
	need("GELU x", x, y.Len)
	geluScalar(y.Host, x.Host)
}

func (Reference) GELUBack(dx, dy, x kernels.Mem) {
	need("GELUBack dy", dy, dx.Len)
	need("GELUBack x", x, dx.Len)
	geluBackScalar(dx.Host, dy.Host, x.Host)
}

func (Reference) GeGLU(y, x kernels.Mem, t, h int) {
	need("GeGLU y", y, t*h)
	need("GeGLU x", x, t*2*h)
	for i := range t {
		r := x.Host[i*2*h:]
		gegluScalar(y.Host[i*h:(i+1)*h], r[:h], r[h:2*h])
	}
}

func (Reference) GeGLUBack(dx, dy, x kernels.Mem, t, h int) {
	need("GeGLUBack dx", dx, t*2*h)
	need("GeGLUBack dy", dy, t*h)
	need("GeGLUBack x", x, t*2*h)
	for i := range t {
		r, g := x.Host[i*2*h:], dx.Host[i*2*h:]
		gegluBackScalar(g[:h], g[h:2*h], dy.Host[i*h:(i+1)*h], r[:h], r[h:2*h])
	}
}

func (Reference) Rope(qkv kernels.Mem, seg kernels.Segments, a kernels.Attention, theta float64, back bool) {
	needRope(qkv, seg, a)
	table := ropeTable(seg, a, theta, back)
	for r := range seg.Rows() {
		table.turn(qkv.Host, int(seg[r]), int(seg[r+1]), ropeScalar)
	}
}

// angles are the turns of one Rope: for each position dim/2 cosines and sines.
type angles struct {
	kernels.Attention
	cos, sin []float32
}

func ropeTable(seg kernels.Segments, a kernels.Attention, theta float64, back bool) angles {
	longest := 0
	for r := range seg.Rows() {
		longest = max(longest, int(seg[r+1]-seg[r]))
	}
	cos, sin := kernels.RopeTable(longest, a.Dim, theta)
	if back {
		for i := range sin {
			sin[i] = -sin[i]
		}
	}
	return angles{a, cos, sin}
}

// turn turns the row [lo, hi) by pairs, which is ropeScalar or its equal.
func (t angles) turn(qkv []float32, lo, hi int, pairs func(a, b, c, s []float32)) {
	h := t.Dim / 2
	for i := lo; i < hi; i++ {
		p := (i - lo) * h
		for k := range 2 * t.Heads { // the queries' heads, then the keys'
			v := qkv[(3*t.Heads*i+k)*t.Dim:]
			pairs(v[:h], v[h:t.Dim], t.cos[p:p+h], t.sin[p:p+h])
		}
	}
}

// reach is the tokens that token i of the row [lo, hi) attends to.
func reach(a kernels.Attention, i, lo, hi int) (from, to int) {
	if a.Window < 0 {
		return lo, hi
	}
	return max(lo, i-a.Window), min(hi, i+a.Window+1)
}

// scoreScale is 1/sqrt(Dim), rounded once.
func scoreScale(a kernels.Attention) float32 { return float32(1 / math.Sqrt(float64(a.Dim))) }

func (Reference) Attend(o, stats, qkv kernels.Mem, seg kernels.Segments, a kernels.Attention) {
	needAttention(o, stats, qkv, seg, a)
	t, width, scale := seg.Tokens(), 3*a.Heads*a.Dim, scoreScale(a)
	for r := range seg.Rows() {
		lo, hi := int(seg[r]), int(seg[r+1])
		for h := range a.Heads {
			q := qkv.Host[h*a.Dim:]
			k := q[a.Heads*a.Dim:]
			v := k[a.Heads*a.Dim:]
			for i := lo; i < hi; i++ {
				from, to := reach(a, i, lo, hi)
				s := make([]float32, to-from)
				for j := range s {
					s[j] = chainScalar(0, a.Dim, q[i*width:], 1, k[(from+j)*width:], 1)
				}
				top, sum := softmaxScalar(s, scale)
				stats.Host[2*(h*t+i)], stats.Host[2*(h*t+i)+1] = top, sum
				out := o.Host[(i*a.Heads+h)*a.Dim:][:a.Dim]
				for d := range out {
					out[d] = chainScalar(0, to-from, s, 1, v[from*width+d:], width)
				}
				scaleScalar(out, out, 1/sum)
			}
		}
	}
}

func (Reference) AttendBack(dqkv, do, o, stats, qkv kernels.Mem, seg kernels.Segments, a kernels.Attention) {
	needAttention(o, stats, qkv, seg, a)
	need("AttendBack dqkv", dqkv, qkv.Len)
	need("AttendBack do", do, o.Len)
	t, width, scale := seg.Tokens(), 3*a.Heads*a.Dim, scoreScale(a)
	clear(dqkv.Host)
	for r := range seg.Rows() {
		lo, hi := int(seg[r]), int(seg[r+1])
		for h := range a.Heads {
			q, dq := qkv.Host[h*a.Dim:], dqkv.Host[h*a.Dim:]
			k, dk := q[a.Heads*a.Dim:], dq[a.Heads*a.Dim:]
			v, dv := k[a.Heads*a.Dim:], dk[a.Heads*a.Dim:]
			for i := lo; i < hi; i++ {
				from, to := reach(a, i, lo, hi)
				oi, doi := o.Host[(i*a.Heads+h)*a.Dim:][:a.Dim], do.Host[(i*a.Heads+h)*a.Dim:][:a.Dim]
				p, ds := make([]float32, to-from), make([]float32, to-from)
				for j := range p {
					p[j] = chainScalar(0, a.Dim, q[i*width:], 1, k[(from+j)*width:], 1)
					ds[j] = chainScalar(0, a.Dim, doi, 1, v[(from+j)*width:], 1)
				}
				top, sum := stats.Host[2*(h*t+i)], stats.Host[2*(h*t+i)+1]
				softmaxBackScalar(p, ds, top, scale, 1/sum, dotScalar(doi, oi))
				for d := range a.Dim {
					dq[i*width+d] = chainScalar(0, to-from, ds, 1, k[from*width+d:], width)
				}
				// The chains of the keys and values run over the queries.
				for j := range p {
					for d := range a.Dim {
						at := (from+j)*width + d
						dk[at] = fma(ds[j], q[i*width+d], dk[at])
						dv[at] = fma(p[j], doi[d], dv[at])
					}
				}
			}
			for i := lo; i < hi; i++ {
				scaleScalar(dq[i*width:][:a.Dim], dq[i*width:][:a.Dim], scale)
				scaleScalar(dk[i*width:][:a.Dim], dk[i*width:][:a.Dim], scale)
				scaleScalar(dv[i*width:][:a.Dim], dv[i*width:][:a.Dim], 1)
			}
		}
	}
}

func (Reference) SegmentMean(y, x kernels.Mem, seg kernels.Segments, d int) {
	need("SegmentMean y", y, seg.Rows()*d)
	need("SegmentMean x", x, seg.Tokens()*d)
	for r := range seg.Rows() {
		segmentMean(y.Host[r*d:(r+1)*d], x.Host[int(seg[r])*d:int(seg[r+1])*d], addScalar)
	}
}

// segmentMean is the mean of x's rows, or zeros when there is none.
func segmentMean(y, x []float32, add func(y, a, b []float32)) {
	clear(y)
	for at := 0; at < len(x); at += len(y) {
		add(y, y, x[at:at+len(y)])
	}
	if n := len(x) / max(len(y), 1); n > 0 {
		s := 1 / float32(n)
		for i := range y {
			y[i] *= s
		}
	}
}

func (Reference) SegmentMeanBack(dx, dy kernels.Mem, seg kernels.Segments, d int) {
	need("SegmentMeanBack dx", dx, seg.Tokens()*d)
	need("SegmentMeanBack dy", dy, seg.Rows()*d)
	for r := range seg.Rows() {
		segmentMeanBack(dx.Host[int(seg[r])*d:int(seg[r+1])*d], dy.Host[r*d:(r+1)*d])
	}
}

func segmentMeanBack(dx, dy []float32) {
	s := 1 / float32(len(dx)/max(len(dy), 1))
	for at := 0; at < len(dx); at += len(dy) {
		for i, v := range dy {
			dx[at+i] += float32(v * s)
		}
	}
}

func (Reference) Probe(y, cs, os kernels.Mem, ci, oi []int32, d int) {
	needProbe(y, cs, os, ci, oi, d)
	for i := range ci {
		probe(y.Host[i*4*d:(i+1)*4*d], cs.Host[int(ci[i])*d:], os.Host[int(oi[i])*d:], d)
	}
}

func probe(y, c, o []float32, d int) {
	for k := range d {
		y[k], y[d+k] = c[k], o[k]
		y[2*d+k] = c[k] * o[k]
		y[3*d+k] = float32(math.Abs(float64(c[k] - o[k])))
	}
}

func (Reference) ProbeBack(dcs, dos, dy, cs, os kernels.Mem, ci, oi []int32, d int) {
	needProbe(dy, cs, os, ci, oi, d)
	need("ProbeBack dcs", dcs, cs.Len)
	need("ProbeBack dos", dos, os.Len)
	probeBack(dcs.Host, dos.Host, dy.Host, cs.Host, os.Host, ci, oi, d, 0, d)
}

// probeBack does columns [from, to) of every pair. With s the sign of c-o it adds
// (dy0 + dy2*o) + s*dy3 to dc, and (dy1 + dy2*c) - s*dy3 to do.
func probeBack(dcs, dos, dy, cs, os []float32, ci, oi []int32, d, from, to int) {
	for i := range ci {
		g, c, o := dy[i*4*d:], int(ci[i])*d, int(oi[i])*d
		for k := from; k < to; k++ {
			x, y := cs[c+k], os[o+k]
			gc, go_ := fma(g[2*d+k], y, g[k]), fma(g[2*d+k], x, g[d+k])
			if x > y {
				gc, go_ = gc+g[3*d+k], go_-g[3*d+k]
			} else if x < y {
				gc, go_ = gc-g[3*d+k], go_+g[3*d+k]
			}
			dcs[c+k] += gc
			dos[o+k] += go_
		}
	}
}

func (Reference) SumSquares(m kernels.Mem) float64 { return sumSquaresScalar(m.Host) }

func (Reference) AdamW(w, d, m, v, grad, base kernels.Mem, a kernels.AdamW) {
	needAdamW(w, d, m, v, grad, base)
	adamwScalar(w.Host, d.Host, m.Host, v.Host, grad.Host, base.Host, &a)
}
