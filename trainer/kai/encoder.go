package kai

import (
	"fmt"

	"github.com/hanzoai/link/kernels"
)

// encoder is BERT or ModernBERT: rows of tokens in, one state [d] a token out.
type encoder struct {
	d                int
	tokens           *tensor // [vocab,d]
	positions, types *tensor // [positions,d], [types,d] of BERT, else nil
	norm             *norm   // of the sum of the embeddings
	blocks           []*block
	final            *norm // ModernBERT's last norm, or nil
}

// newEncoder declares an encoder's parameters, with Hugging Face's names under
// "encoder.".
func newEncoder(c hfConfig, ps *params) *encoder {
	ps.group = "encoder"
	if c.ModelType == "bert" {
		return newBERT(c, ps)
	}
	return newModern(c, ps)
}

func newBERT(c hfConfig, ps *params) *encoder {
	d, eps := c.Width, float32(c.LayerEps)
	layerNorm := func(name string) *norm {
		return &norm{gamma: ps.vector(name+".weight", d), beta: ps.vector(name+".bias", d), d: d, eps: eps}
	}
	dense := func(name string, out, in int) linear {
		return linear{w: ps.matrix(name+".weight", out, in), b: ps.vector(name+".bias", out), in: in, out: out}
	}
	e := &encoder{d: d,
		tokens:    ps.lookup("encoder.embeddings.word_embeddings.weight", c.Vocab, d),
		positions: ps.lookup("encoder.embeddings.position_embeddings.weight", c.Positions, d),
		types:     ps.lookup("encoder.embeddings.token_type_embeddings.weight", c.Types, d),
		norm:      layerNorm("encoder.embeddings.LayerNorm"),
	}
	for l := range c.Layers {
		name := fmt.Sprintf("encoder.encoder.layer.%d.", l)
		self := name + "attention.self."
		b := &block{post: true, attention: kernels.Attention{Heads: c.Heads, Dim: d / c.Heads, Window: -1}}
		b.qkv = linear{in: d, out: 3 * d,
			w: ps.add(true, false,
				part{self + "query.weight", []int{d, d}}, part{self + "key.weight", []int{d, d}}, part{self + "value.weight", []int{d, d}}),
			b: ps.add(false, false,
				part{self + "query.bias", []int{d}}, part{self + "key.bias", []int{d}}, part{self + "value.bias", []int{d}}),
		}
		b.out = dense(name+"attention.output.dense", d, d)
		b.norm1 = layerNorm(name + "attention.output.LayerNorm")
		b.up = dense(name+"intermediate.dense", c.Inner, d)
		b.down = dense(name+"output.dense", d, c.Inner)
		b.norm2 = layerNorm(name + "output.LayerNorm")
		e.blocks = append(e.blocks, b)
	}
	return e
}

func newModern(c hfConfig, ps *params) *encoder {
	d, eps := c.Width, float32(c.NormEps)
	bias := func(on bool, name string, n int) *tensor {
		if !on {
			return nil
		}
		return ps.vector(name, n)
	}
	layerNorm := func(name string) *norm {
		return &norm{gamma: ps.vector(name+".weight", d), beta: bias(c.NormBias, name+".bias", d), d: d, eps: eps}
	}
	dense := func(name string, out, in int, on bool) linear {
		return linear{w: ps.matrix(name+".weight", out, in), b: bias(on, name+".bias", out), in: in, out: out}
	}
	e := &encoder{d: d,
		tokens: ps.lookup("encoder.embeddings.tok_embeddings.weight", c.Vocab, d),
		norm:   layerNorm("encoder.embeddings.norm"),
	}
	for l := range c.Layers {
		name := fmt.Sprintf("encoder.layers.%d.", l)
		b := &block{gated: true, theta: c.theta(c.global(l)),
			attention: kernels.Attention{Heads: c.Heads, Dim: d / c.Heads, Window: -1}}
		if !c.global(l) {
			b.attention.Window = c.Local / 2
		}
		if l > 0 { // the first layer reads a norm's output
			b.norm1 = layerNorm(name + "attn_norm")
		}
		b.qkv = dense(name+"attn.Wqkv", 3*d, d, c.AttentionBias)
		b.out = dense(name+"attn.Wo", d, d, c.AttentionBias)
		b.norm2 = layerNorm(name + "mlp_norm")
		b.up = dense(name+"mlp.Wi", 2*c.Inner, d, c.MLPBias)
		b.down = dense(name+"mlp.Wo", d, c.Inner, c.MLPBias)
		e.blocks = append(e.blocks, b)
	}
	e.final = layerNorm("encoder.final_norm")
	return e
}

// pack is rows of tokens, one after another, and what the encoder made of them.
type pack struct {
	ids    []int32
	seg    kernels.Segments
	places []int32     // each token's position in its row
	out    kernels.Mem // [t,d] the final states

	// What backward needs.
	embedded, stats kernels.Mem // [t,d] the sum of the embeddings, [t,2]
	saved           []*saved
	last, lastStats kernels.Mem // [t,d], [t,2] the final norm's input
}

// newPack lays rows end to end.
func newPack(rows [][]int32) *pack {
	p := &pack{seg: kernels.Segments{0}}
	for _, r := range rows {
		p.ids = append(p.ids, r...)
		for i := range r {
			p.places = append(p.places, int32(i))
		}
		p.seg = append(p.seg, int32(len(p.ids)))
	}
	return p
}

// firsts is the index of each row's first token.
func (p *pack) firsts() []int32 { return p.seg[:p.seg.Rows()] }

// forward computes p.out. With keep it keeps what backward needs; without, the
// blocks share their memory.
func (e *encoder) forward(a *arena, p *pack, keep bool) {
	dev, t := a.dev, len(p.ids)
	p.out = a.take(t * e.d)
	p.embedded, p.stats = a.take(t*e.d), a.take(2*t)
	dev.Gather(p.embedded, e.tokens.mem(), p.ids, e.d, false)
	if e.positions != nil {
		dev.Gather(p.embedded, e.types.mem(), make([]int32, t), e.d, true) // token type 0 throughout
		dev.Gather(p.embedded, e.positions.mem(), p.places, e.d, true)
	}
	rooms := len(e.blocks)
	if !keep {
		rooms = min(2, rooms) // a block's input and the next one's
	}
	p.saved = make([]*saved, len(e.blocks))
	for l, b := range e.blocks {
		if l < rooms {
			p.saved[l] = b.room(a, t)
		} else {
			p.saved[l] = p.saved[l-2]
		}
	}
	e.norm.forward(dev, p.saved[0].x, p.stats, p.embedded, t)
	p.last, p.lastStats = p.out, kernels.Mem{}
	if e.final != nil {
		p.last, p.lastStats = a.take(t*e.d), a.take(2*t)
	}
	for l, b := range e.blocks {
		y := p.last
		if l+1 < len(e.blocks) {
			y = p.saved[l+1].x
		}
		b.forward(dev, y, p.saved[l], p.seg)
	}
	if e.final != nil {
		e.final.forward(dev, p.out, p.lastStats, p.last, t)
	}
}

// backward sums the gradients of the encoder's parameters from dx, the gradient
// of p.out, which it overwrites. It stops at the lowest layer that learns. p was
// computed with keep, unless the encoder learns nothing.
func (e *encoder) backward(a *arena, p *pack, dx kernels.Mem) {
	if !e.learns() {
		return
	}
	lowest := e.lowest()
	dev, t := a.dev, len(p.ids)
	if e.final != nil {
		e.final.backward(dev, dx, dx, p.last, p.lastStats, t, false)
	}
	for l := len(e.blocks) - 1; l >= max(lowest, 0); l-- {
		e.blocks[l].backward(a, dx, p.saved[l], p.seg)
	}
	if lowest >= 0 {
		return
	}
	e.norm.backward(dev, dx, dx, p.embedded, p.stats, t, false)
	rows := func(table *tensor, ids []int32) {
		if table.learns() {
			dev.Scatter(table.grad.Sum, dx, ids, e.d, true)
		}
	}
	rows(e.tokens, p.ids)
	rows(e.types, make([]int32, t))
	rows(e.positions, p.places)
}

func (e *encoder) learns() bool { return e.lowest() <= len(e.blocks) }

// lowest is the first block that learns: -1 when the embeddings learn, the
// number of blocks when only the final norm does, and one more when nothing
// does.
func (e *encoder) lowest() int {
	if e.tokens.learns() || e.positions.learns() || e.types.learns() || e.norm.learns() {
		return -1
	}
	for l, b := range e.blocks {
		if b.learns() {
			return l
		}
	}
	if e.final.learns() {
		return len(e.blocks)
	}
	return len(e.blocks) + 1
}
