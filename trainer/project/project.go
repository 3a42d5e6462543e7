// Package project finds the directions that protected rows need and takes them
// out of a change.
//
// A linear layer W [out, in] has, for each protected row, a gradient G [out, in]:
// of what the row's answer rests on, at the base. A [Builder] sums C = Σ GᵀG over
// a suite's rows, each layer apart, and the largest eigenvectors of C are the
// layer's [Basis] V [rank, in]. A change D with D·Vᵀ = 0 leaves every protected
// row as it is, to first order and for the part of the gradients that V keeps,
// for then ⟨D, G⟩ = 0. The same span of directions, from the input side only, is
// what Gradient Projection Memory takes from the layers' inputs (Saha, Garg and
// Roy, arXiv 2103.09762); a gradient's rows lie in the span of its inputs, so
// this span is the smaller one.
//
// A [Projector] takes the span out of a gradient or an update on the device, and
// [Basis.Reproject] out of a finished change in float64.
//
// The package knows no model: layers are names and sizes. It chooses no rows and
// no strength, and it holds no answers: zero first-order change at the base is
// all that it gives.
//
// # Precision
//
// A row's GᵀG is computed in float32 by the device, and 16 rows are summed there
// before they are added to a float64 sum on the host. A finished suite is divided
// by its trace, so that a large suite hides no small one, and rounded to float32.
// Directions below a millionth of the largest are rounding and never kept. The
// eigenvectors are computed in float64. Nothing depends on the number of threads.
package project

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hanzoai/link/kernels"
)

// What a suite can lack. [Builder.Suite] wraps them with the suite's name.
var (
	ErrEmpty      = errors.New("it has no rows")
	ErrOneRow     = errors.New("it has only one row")
	ErrNoGradient = errors.New("no layer has a gradient")
	ErrNotFinite  = errors.New("a gradient is not finite")
)

// Layer is one linear layer, y[Out] = W·x[In].
type Layer struct {
	Name    string
	In, Out int
}

// flushRows is how many rows the device sums in float32 before they join the
// float64 sum on the host. Reading a layer's [in, in] back for each row would
// cost more than the row.
const flushRows = 16

// Builder sums what the rows of suites give. One goroutine uses it, the device's.
//
// It holds, beside a row's taps, for each layer an [in, in] in float32 on the
// device and one in float64 on the host, and for each finished suite one more in
// float32 on the host.
type Builder struct {
	dev    kernels.Device
	layers []layerSum
	suites []string

	// The suite under way.
	rows, matrices int
	waiting        int // rows and matrices that are only on the device

	// Scratch on the device, grown as needed.
	open, g, gram, gx kernels.Mem
	read              []float32
}

// layerSum is one layer of a Builder.
type layerSum struct {
	Layer
	// The row under way: t tokens of the output's gradient [t, out] and the
	// input [t, in].
	dy, x kernels.Mem
	t     int

	device kernels.Mem // [in, in], float32, of the last rows; absent until one came
	host   []float64   // [in, in], of the suite's rows before those

	suites [][]float32 // [in, in] of each finished suite, trace 1; nil: no gradient
}

// NewBuilder is a builder for layers, whose names are distinct and whose indices
// are what Tap and Matrix take.
func NewBuilder(dev kernels.Device, layers []Layer) *Builder {
	b := &Builder{dev: dev, layers: make([]layerSum, len(layers))}
	for i, l := range layers {
		if l.In < 1 || l.Out < 1 {
			panic(fmt.Sprintf("project: layer %s is %d by %d", l.Name, l.Out, l.In))
		}
		b.layers[i].Layer = l
	}
	return b
}

// Tap takes t tokens of the row under way of one layer: the gradient dy [t, out]
// of the layer's output and its input x [t, in]. Both are copied. A row may come
// in several taps, as its context and its options do: G = Σ dyᵀx over all of
// them, cross terms and all.
func (b *Builder) Tap(layer int, dy, x kernels.Mem, t int) {
	l := &b.layers[layer]
	if dy.Len != t*l.Out || x.Len != t*l.In {
		panic(fmt.Sprintf("project: a tap of %s has %d and %d values for %d tokens", l.Name, dy.Len, x.Len, t))
	}
	if t == 0 {
		return
	}
	b.extend(&l.dy, dy, l.t*l.Out)
	b.extend(&l.x, x, l.t*l.In)
	l.t += t
}

// extend copies src behind the first n values of buf, which grows as needed.
func (b *Builder) extend(buf *kernels.Mem, src kernels.Mem, n int) {
	if buf.Len < n+src.Len {
		grown := b.dev.Alloc(max(n+src.Len, 2*buf.Len))
		if n > 0 {
			b.dev.Copy(grown.Slice(0, n), buf.Slice(0, n))
		}
		*buf = grown
	}
	b.dev.Copy(buf.Slice(n, n+src.Len), src)
}

// scratch is n values of *m, whatever stood there, grown as needed.
func (b *Builder) scratch(m *kernels.Mem, n int) kernels.Mem {
	if m.Len < n {
		*m = b.dev.Alloc(n)
	}
	return m.Slice(0, n)
}

// Row ends a row: GᵀG of each layer that it tapped joins the suite.
func (b *Builder) Row() {
	for i := range b.layers {
		l := &b.layers[i]
		if l.t == 0 {
			continue
		}
		dy, x, t := l.dy.Slice(0, l.t*l.Out), l.x.Slice(0, l.t*l.In), l.t
		// Two ways to GᵀG, in multiplications: by the tokens' Gram matrix,
		// Xᵀ(δδᵀ)X, or by G itself.
		byGram := t*t*(l.Out+l.In) + t*l.In*l.In
		byG := t*l.Out*l.In + l.Out*l.In*l.In
		if byGram <= byG {
			gram, gx := b.scratch(&b.gram, t*t), b.scratch(&b.gx, t*l.In)
			b.dev.Linear(gram, dy, dy, kernels.Mem{}, t, l.Out, t)
			b.dev.LinearInput(gx, gram, x, t, l.In, t, false)
			b.add(l, gx, x, t)
		} else {
			g := kernels.Grad{Sum: b.scratch(&b.g, l.Out*l.In), Open: b.scratch(&b.open, l.Out*l.In)}
			b.dev.Zero(g.Sum)
			b.dev.LinearWeight(&g, dy, x, t, l.In, l.Out)
			b.dev.Close(&g)
			b.add(l, g.Sum, g.Sum, l.Out)
		}
		l.t = 0
	}
	b.rows++
	b.joined()
}

// Matrix takes g [out, in] as one row's G of a layer: it is how the directions of
// a change that is already made are protected. It may stand without [Builder.Row],
// and one matrix is enough for a suite.
func (b *Builder) Matrix(layer int, g kernels.Mem) {
	l := &b.layers[layer]
	if g.Len != l.Out*l.In {
		panic(fmt.Sprintf("project: a matrix of %s has %d values, not %d by %d", l.Name, g.Len, l.Out, l.In))
	}
	b.add(l, g, g, l.Out)
	b.matrices++
	b.joined()
}

// add adds aᵀ·c [in, in] to a layer's sum on the device, a and c [n, in].
func (b *Builder) add(l *layerSum, a, c kernels.Mem, n int) {
	if l.device.None() {
		l.device = b.dev.Alloc(l.In * l.In)
	}
	sum := kernels.Grad{Sum: l.device, Open: b.scratch(&b.open, l.In*l.In)}
	b.dev.LinearWeight(&sum, a, c, n, l.In, l.In)
	b.dev.Close(&sum)
}

// joined counts what joined the suite, and empties the device's sums in time.
func (b *Builder) joined() {
	if b.waiting++; b.waiting == flushRows {
		b.flush()
	}
}

// flush adds the device's sums to the host's and zeroes them.
func (b *Builder) flush() {
	for i := range b.layers {
		l := &b.layers[i]
		if l.device.None() {
			continue
		}
		if l.host == nil {
			l.host = make([]float64, l.In*l.In)
		}
		b.read = slices.Grow(b.read[:0], len(l.host))[:len(l.host)]
		b.dev.Read(b.read, l.device)
		b.dev.Zero(l.device)
		for j, v := range b.read {
			l.host[j] += float64(v)
		}
	}
	b.waiting = 0
}

// Suite ends a suite: its sums are kept by that name, and the next row begins
// another. It fails with [ErrEmpty], [ErrOneRow] (unless a matrix came too),
// [ErrNoGradient] or [ErrNotFinite], wrapped with the name, and then what the
// suite gave is forgotten.
func (b *Builder) Suite(name string) error {
	b.flush()
	sums := make([][]float32, len(b.layers))
	any, finite := false, true
	for i := range b.layers {
		sums[i] = b.layers[i].take(&finite)
		any = any || sums[i] != nil
	}
	rows, matrices := b.rows, b.matrices
	b.rows, b.matrices = 0, 0
	var err error
	switch {
	case rows == 0 && matrices == 0:
		err = ErrEmpty
	case rows == 1 && matrices == 0:
		err = ErrOneRow
	case !finite:
		err = ErrNotFinite
	case !any:
		err = ErrNoGradient
	}
	if err != nil {
		return fmt.Errorf("suite %s: %w", name, err)
	}
	for i, s := range sums {
		b.layers[i].suites = append(b.layers[i].suites, s)
	}
	b.suites = append(b.suites, name)
	return nil
}

// take ends a suite in one layer: its sum made symmetric, with trace 1, in
// float32, or nil where no row had a gradient. The layer's sum is zeros again.
func (l *layerSum) take(finite *bool) []float32 {
	var trace float64
	for i := 0; i < len(l.host); i += l.In + 1 {
		trace += l.host[i]
	}
	// A NaN on or off the diagonal comes from an infinity on it.
	if math.IsNaN(trace) || math.IsInf(trace, 0) {
		*finite = false
	}
	defer clear(l.host)
	if !(trace > 0) || !*finite {
		return nil
	}
	s := make([]float32, len(l.host))
	for i := range l.In {
		for j := range i + 1 {
			// By the Gram matrix the two sides differ by rounding.
			v := float32((l.host[i*l.In+j] + l.host[j*l.In+i]) / 2 / trace)
			s[i*l.In+j], s[j*l.In+i] = v, v
		}
	}
	return s
}

// Config says how much is protected.
type Config struct {
	Energy float64 // the least share of the trace that a basis keeps, in (0, 1]; .99 is usual
	Cap    float64 // the most directions, as a share of the layer's In, in (0, 1]; .25 is usual
}

func (c Config) check() error {
	if !(c.Energy > 0 && c.Energy <= 1) {
		return fmt.Errorf("energy is %v, not in (0, 1]", c.Energy)
	}
	if !(c.Cap > 0 && c.Cap <= 1) {
		return fmt.Errorf("cap is %v, not in (0, 1]", c.Cap)
	}
	return nil
}

// Most is the cap in directions, of a layer with so many inputs.
func (c Config) Most(in int) int { return max(1, int(c.Cap*float64(in))) }

// Subspace is what some suites need, by layer.
type Subspace struct {
	Suites []string // in the order in which they ended
	Bases  []Basis  // by the layer's name; a layer in which no suite has a gradient has none
}

// Basis is what the suites need of one layer.
type Basis struct {
	Name          string
	In, Out, Rank int
	V             []float64 // [Rank, In], orthonormal rows, largest share first; the entry largest in size, the first of equals, is positive
	Spectrum      []float64 // [Rank], the share of the trace along each row of V
	Kept          float64   // the share of the trace along all of V, measured: less than Config.Energy where the cap bound
	KeptBy        []float64 // the same of each suite of Subspace.Suites; 1 where it has no gradient in this layer
}

// Find is a layer's basis, or nil where it has none.
func (s *Subspace) Find(layer string) *Basis {
	i, ok := slices.BinarySearchFunc(s.Bases, layer, func(b Basis, name string) int { return strings.Compare(b.Name, name) })
	if !ok {
		return nil
	}
	return &s.Bases[i]
}

// Build finds the bases. A layer's rank is the smallest whose rows keep c.Energy,
// at most the cap and at least 1; with an energy of 1 it is every direction above
// the rounding of the sums. Layers are worked on at once; the result does not
// depend on how many. A layer of 1,536 inputs takes about four seconds of a
// processor with a cap of .25, and minutes with a cap of 1.
func (b *Builder) Build(c Config) (*Subspace, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("project: %w", err)
	}
	if len(b.suites) == 0 {
		return nil, errors.New("project: there is no suite to protect")
	}
	bases := make([]*Basis, len(b.layers))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(b.layers)) {
		workers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(bases) {
					return
				}
				bases[i] = b.layers[i].basis(c)
			}
		})
	}
	workers.Wait()
	s := &Subspace{Suites: slices.Clone(b.suites)}
	for i, basis := range bases {
		if basis != nil {
			b.keptBy(basis, b.layers[i].suites)
			s.Bases = append(s.Bases, *basis)
		}
	}
	slices.SortFunc(s.Bases, func(a, b Basis) int { return strings.Compare(a.Name, b.Name) })
	return s, nil
}

// basis is a layer's, or nil where no suite has a gradient. KeptBy is left out.
func (l *layerSum) basis(c Config) *Basis {
	sum := make([]float64, l.In*l.In)
	some := false
	for _, s := range l.suites {
		for i, v := range s {
			sum[i] += float64(v)
		}
		some = some || s != nil
	}
	if !some {
		return nil
	}
	var trace float64
	for i := range l.In {
		trace += sum[i*l.In+i]
	}
	most := c.Most(l.In)
	values, vectors := largest(sum, l.In, most)
	basis := &Basis{Name: l.Name, In: l.In, Out: l.Out}
	for basis.Rank < most && basis.Kept < c.Energy {
		v := values[basis.Rank]
		if basis.Rank > 0 && v < rounding*values[0] {
			break
		}
		basis.Spectrum = append(basis.Spectrum, v/trace)
		basis.Kept += v / trace
		basis.Rank++
	}
	basis.V = slices.Clone(vectors[:basis.Rank*l.In])
	for i := range basis.Rank {
		turn(basis.V[i*l.In:][:l.In])
	}
	return basis
}

// rounding is the size, of the largest, below which a direction is the rounding
// of float32 sums: a chain of 512 products has an error of about √512 · 2⁻²⁴.
const rounding = 1e-6

// turn makes v's entry of largest size positive, the first of equals.
func turn(v []float64) {
	at := 0
	for i, x := range v {
		if math.Abs(x) > math.Abs(v[at]) {
			at = i
		}
	}
	if v[at] < 0 {
		for i := range v {
			v[i] = -v[i]
		}
	}
}

// keptBy measures what a basis keeps of each suite, tr(V·C·Vᵀ) with tr(C) = 1: the
// product in float32 on the device, the sum in float64.
func (b *Builder) keptBy(basis *Basis, suites [][]float32) {
	n := basis.Rank * basis.In
	v, cv := b.scratch(&b.g, n), b.scratch(&b.gx, n)
	c := b.scratch(&b.open, basis.In*basis.In)
	b.dev.Write(v, narrow(basis.V))
	b.read = slices.Grow(b.read[:0], n)[:n]
	for _, s := range suites {
		kept := 1.
		if s != nil {
			b.dev.Write(c, s)
			b.dev.Linear(cv, v, c, kernels.Mem{}, basis.Rank, basis.In, basis.In)
			b.dev.Read(b.read, cv)
			kept = 0
			for i, x := range b.read {
				kept += float64(float64(x) * basis.V[i])
			}
		}
		basis.KeptBy = append(basis.KeptBy, kept)
	}
}

// narrow is v rounded to float32.
func narrow(v []float64) []float32 {
	w := make([]float32, len(v))
	for i, x := range v {
		w[i] = float32(x)
	}
	return w
}
