package kai

import "github.com/hanzoai/link/kernels"

// linear is y = x·wᵀ + b. b is nil where the model has no bias.
type linear struct {
	w, b    *tensor
	in, out int
}

func (l *linear) forward(dev kernels.Device, y, x kernels.Mem, t int) {
	dev.Linear(y, x, l.w.mem(), l.b.mem(), t, l.in, l.out)
}

// weights sums the gradients of the weight and the bias. A tapped weight's is
// handed to its tap and summed nowhere.
func (l *linear) weights(dev kernels.Device, dy, x kernels.Mem, t int) {
	switch {
	case l.w.tap != nil:
		l.w.tap(dy, x, t)
	case l.w.learns():
		dev.LinearWeight(l.w.g(), dy, x, t, l.in, l.out)
	}
	if l.b.learns() {
		dev.ColumnSum(l.b.g(), dy, t, l.out)
	}
}

// input is the gradient of x; with add it adds to what stands in dx.
func (l *linear) input(dev kernels.Device, dx, dy kernels.Mem, t int, add bool) {
	dev.LinearInput(dx, dy, l.w.mem(), t, l.in, l.out, add)
}

func (l *linear) learns() bool { return l.w.learns() || l.b.learns() }

// norm is a layer norm; beta is nil where the model has none.
type norm struct {
	gamma, beta *tensor
	d           int
	eps         float32
}

func (n *norm) forward(dev kernels.Device, y, stats, x kernels.Mem, t int) {
	dev.LayerNorm(y, stats, x, n.gamma.mem(), n.beta.mem(), t, n.d, n.eps)
}

func (n *norm) backward(dev kernels.Device, dx, dy, x, stats kernels.Mem, t int, add bool) {
	dev.LayerNormBack(dx, n.gamma.g(), n.beta.g(), dy, x, stats, n.gamma.mem(), t, n.d, add)
}

func (n *norm) learns() bool { return n != nil && (n.gamma.learns() || n.beta.learns()) }

// block is one transformer layer. Pre-norm (ModernBERT and the head):
//
//	mid = x + out(attend(qkv(norm1(x))))
//	y   = mid + down(act(up(norm2(mid))))
//
// Post-norm (BERT):
//
//	mid = norm1(x + out(attend(qkv(x))))
//	y   = norm2(mid + down(act(up(mid))))
type block struct {
	post         bool
	norm1, norm2 *norm // norm1 is nil in ModernBERT's first layer, whose input is a norm's output
	qkv, out     linear
	up, down     linear
	gated        bool // act is GeGLU and up is twice as wide, or else GELU
	attention    kernels.Attention
	theta        float64 // of the rotary positions; 0: none
}

// saved is what one block keeps from forward to backward.
type saved struct {
	x, mid         kernels.Mem // [t,d]
	n1, n2         kernels.Mem // [t,d] pre-norm: the norms' outputs
	s1, s2         kernels.Mem // [t,d] post-norm: the norms' inputs
	stats1, stats2 kernels.Mem // [t,2] of the norms
	qkv            kernels.Mem // [t,3d] rotated
	o, stats       kernels.Mem // [t,d], [heads,t,2] of the attention
	up, act        kernels.Mem // [t,h], or [t,2h] when gated; [t,h]
}

// room takes the memory of one block for t tokens.
func (b *block) room(a *arena, t int) *saved {
	d, h := b.qkv.in, b.down.in
	s := &saved{
		x: a.take(t * d), mid: a.take(t * d),
		stats1: a.take(2 * t), stats2: a.take(2 * t),
		qkv: a.take(3 * t * d), o: a.take(t * d), stats: a.take(2 * t * b.attention.Heads),
		up: a.take(t * b.up.out), act: a.take(t * h),
	}
	if b.post {
		s.s1, s.s2 = a.take(t*d), a.take(t*d)
	} else {
		s.n1, s.n2 = a.take(t*d), a.take(t*d)
	}
	return s
}

// forward computes y [t,d] from s.x.
func (b *block) forward(dev kernels.Device, y kernels.Mem, s *saved, seg kernels.Segments) {
	t := seg.Tokens()
	x := s.x
	if !b.post && b.norm1 != nil {
		b.norm1.forward(dev, s.n1, s.stats1, x, t)
		x = s.n1
	}
	b.qkv.forward(dev, s.qkv, x, t)
	if b.theta != 0 {
		dev.Rope(s.qkv, seg, b.attention, b.theta, false)
	}
	dev.Attend(s.o, s.stats, s.qkv, seg, b.attention)
	if b.post {
		b.out.forward(dev, s.s1, s.o, t)
		dev.Add(s.s1, s.s1, s.x)
		b.norm1.forward(dev, s.mid, s.stats1, s.s1, t)
		b.feed(dev, s.s2, s.mid, s, t)
		dev.Add(s.s2, s.s2, s.mid)
		b.norm2.forward(dev, y, s.stats2, s.s2, t)
		return
	}
	b.out.forward(dev, s.mid, s.o, t)
	dev.Add(s.mid, s.mid, s.x)
	b.norm2.forward(dev, s.n2, s.stats2, s.mid, t)
	b.feed(dev, y, s.n2, s, t)
	dev.Add(y, y, s.mid)
}

// feed is y = down(act(up(x))).
func (b *block) feed(dev kernels.Device, y, x kernels.Mem, s *saved, t int) {
	b.up.forward(dev, s.up, x, t)
	if b.gated {
		dev.GeGLU(s.act, s.up, t, b.down.in)
	} else {
		dev.GELU(s.act, s.up)
	}
	b.down.forward(dev, y, s.act, t)
}

// backward turns dx from the gradient of y into that of s.x.
func (b *block) backward(a *arena, dx kernels.Mem, s *saved, seg kernels.Segments) {
	dev, t, d := a.dev, seg.Tokens(), b.qkv.in
	defer a.release(a.at)
	if b.post {
		b.norm2.backward(dev, dx, dx, s.s2, s.stats2, t, false) // of s2 = mid + feed
		b.feedBack(a, dx, dx, s.mid, s, t, true)
		b.norm1.backward(dev, dx, dx, s.s1, s.stats1, t, false) // of s1 = x + out
		b.attendBack(a, dx, dx, s.x, s, seg, true)
		return
	}
	dn := a.take(t * d)
	b.feedBack(a, dn, dx, s.n2, s, t, false)
	b.norm2.backward(dev, dx, dn, s.mid, s.stats2, t, true)
	if b.norm1 == nil {
		b.attendBack(a, dx, dx, s.x, s, seg, true)
		return
	}
	b.attendBack(a, dn, dx, s.n1, s, seg, false)
	b.norm1.backward(dev, dx, dn, s.x, s.stats1, t, true)
}

// feedBack is the way back through feed: dx from dy, which may be the same
// memory when it adds.
func (b *block) feedBack(a *arena, dx, dy, x kernels.Mem, s *saved, t int, add bool) {
	dev := a.dev
	b.down.weights(dev, dy, s.act, t)
	dact := a.take(t * b.down.in)
	b.down.input(dev, dact, dy, t, false)
	dup := dact
	if b.gated {
		dup = a.take(t * b.up.out)
		dev.GeGLUBack(dup, dact, s.up, t, b.down.in)
	} else {
		dev.GELUBack(dup, dact, s.up)
	}
	b.up.weights(dev, dup, x, t)
	b.up.input(dev, dx, dup, t, add)
}

// attendBack is the way back through attention: dx from dy, which may be the
// same memory when it adds. x is what qkv read.
func (b *block) attendBack(a *arena, dx, dy, x kernels.Mem, s *saved, seg kernels.Segments, add bool) {
	dev, t, d := a.dev, seg.Tokens(), b.qkv.in
	b.out.weights(dev, dy, s.o, t)
	do, dqkv := a.take(t*d), a.take(3*t*d)
	b.out.input(dev, do, dy, t, false)
	dev.AttendBack(dqkv, do, s.o, s.stats, s.qkv, seg, b.attention)
	if b.theta != 0 {
		dev.Rope(dqkv, seg, b.attention, b.theta, true)
	}
	b.qkv.weights(dev, dqkv, x, t)
	b.qkv.input(dev, dx, dqkv, t, add)
}

func (b *block) learns() bool {
	return b.norm1.learns() || b.norm2.learns() ||
		b.qkv.learns() || b.out.learns() || b.up.learns() || b.down.learns()
}
