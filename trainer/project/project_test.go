package project

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/kernels/cpu"
)

// The letters in this file are those of the tests that the design of the
// projection asks for: (e) the order of a suite's rows, (f) rows that come twice,
// (g) the ends.

// row is one protected row of a layer: t tokens of dy [t, out] and x [t, in].
type row struct {
	dy, x []float32
	t     int
}

// normal is n numbers of size s.
func normal(r *rand.Rand, n int, s float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(s * r.NormFloat64())
	}
	return v
}

// randomRows are rows of one to five tokens each.
func randomRows(seed uint64, n, in, out int) []row {
	r := rand.New(rand.NewPCG(seed, 5))
	rows := make([]row, n)
	for i := range rows {
		t := 1 + r.IntN(5)
		rows[i] = row{normal(r, t*out, .1), normal(r, t*in, 1), t}
	}
	return rows
}

func mem(v []float32) kernels.Mem { return kernels.Mem{Host: v, Len: len(v)} }

// gradient is the row's G [out, in] in float64.
func (r row) gradient(in, out int) []float64 {
	g := make([]float64, out*in)
	for i := range r.t {
		for o := range out {
			for k := range in {
				g[o*in+k] += float64(r.dy[i*out+o]) * float64(r.x[i*in+k])
			}
		}
	}
	return g
}

// suite gives b the rows of one layer.
func suite(t *testing.T, b *Builder, name string, layer int, rows []row) {
	t.Helper()
	for _, r := range rows {
		b.Tap(layer, mem(r.dy), mem(r.x), r.t)
		b.Row()
	}
	if err := b.Suite(name); err != nil {
		t.Fatal(err)
	}
}

// build is the only basis of a one-layer builder with these suites.
func build(t *testing.T, c Config, in, out int, suites ...[]row) *Basis {
	t.Helper()
	b := NewBuilder(cpu.New(1), []Layer{{"w", in, out}})
	for i, rows := range suites {
		suite(t, b, fmt.Sprint("suite ", i), 0, rows)
	}
	s, err := b.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	return s.Find("w")
}

// apart is how far the span of a lies outside that of b: the largest size of a
// row of a with b's span taken out, both orthonormal.
func apart(a, b *Basis) float64 {
	var most float64
	for i := range a.Rank {
		most = max(most, outside(a.V[i*a.In:][:a.In], b.V, b.In))
	}
	return most
}

// outside is the size of v with the span of some orthonormal rows taken out.
func outside(v, rows []float64, n int) float64 {
	rest := slices.Clone(v)
	for i := 0; i < len(rows); i += n {
		axpy(rest, -dot(rest, rows[i:i+n]), rows[i:i+n])
	}
	return math.Sqrt(dot(rest, rest))
}

// energy is tr(V·C·Vᵀ)/tr(C) of C = Σ GᵀG, in float64 from the rows themselves.
func energy(v []float64, rank, in, out int, rows []row) float64 {
	var kept, all float64
	for _, r := range rows {
		g := r.gradient(in, out)
		all += dot(g, g)
		for o := range out {
			for i := range rank {
				a := dot(g[o*in:][:in], v[i*in:][:in])
				kept += a * a
			}
		}
	}
	return kept / all
}

func close(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if !(math.Abs(got-want) <= within) {
		t.Errorf("%s is %v, want %v within %g", what, got, want, within)
	}
}

func TestBasisIsOrthonormalAndInOrder(t *testing.T) {
	for _, in := range []int{24, 96, 200} { // the whole layer, and subspaces of it
		b := build(t, Config{Energy: 1, Cap: .4}, in, 40, randomRows(1, 60, in, 40))
		if b.Rank != int(.4*float64(in)) {
			t.Errorf("in %d: rank %d with a cap of %d", in, b.Rank, int(.4*float64(in)))
		}
		for i := range b.Rank {
			for j := range i + 1 {
				want := 0.
				if i == j {
					want = 1
				}
				close(t, fmt.Sprintf("in %d: row %d times row %d", in, i, j), dot(b.V[i*in:][:in], b.V[j*in:][:in]), want, 1e-12)
			}
			top := slices.MaxFunc(b.V[i*in:][:in], func(x, y float64) int { return int(math.Copysign(1, math.Abs(x)-math.Abs(y))) })
			if top <= 0 {
				t.Errorf("in %d: the largest entry of row %d is %v", in, i, top)
			}
			if i > 0 && b.Spectrum[i] > b.Spectrum[i-1] {
				t.Errorf("in %d: share %d is %v, after %v", in, i, b.Spectrum[i], b.Spectrum[i-1])
			}
		}
	}
}

func TestTurnTakesTheFirstOfEquals(t *testing.T) {
	v := []float64{1, -2, 2}
	turn(v)
	if !slices.Equal(v, []float64{-1, 2, -2}) {
		t.Errorf("turned to %v", v)
	}
}

func TestKeptIsWhatTheRowsHave(t *testing.T) {
	const in, out = 120, 40
	a, b := randomRows(1, 30, in, out), randomRows(2, 50, in, out)
	got := build(t, Config{Energy: .9, Cap: .25}, in, out, a, b)
	keptA, keptB := energy(got.V, got.Rank, in, out, a), energy(got.V, got.Rank, in, out, b)
	close(t, "kept of a", got.KeptBy[0], keptA, 1e-6)
	close(t, "kept of b", got.KeptBy[1], keptB, 1e-6)
	close(t, "kept", got.Kept, (keptA+keptB)/2, 1e-6)
	var sum float64
	for _, s := range got.Spectrum {
		sum += s
	}
	close(t, "the sum of the spectrum", sum, got.Kept, 1e-12)
}

// With a trace that falls off as gradients' does, the iteration finds what a full
// decomposition does.
func TestSubspaceIsThatOfTheWholeDecomposition(t *testing.T) {
	const n, k = 160, 40
	r := rand.New(rand.NewPCG(8, 8))
	q := make([]float64, n*n)
	for i := range q {
		q[i] = r.NormFloat64()
	}
	orthonormal(q, n, n)
	c, scaled := make([]float64, n*n), make([]float64, n*n)
	values := make([]float64, n)
	for i := range n {
		values[i] = math.Pow(float64(i+1), -1.5)
		for j := range n {
			scaled[j*n+i] = q[i*n+j] * values[i]
		}
	}
	add(c, scaled, q, n, n, n) // Qᵀ·diag·Q
	for i := range n {
		for j := range i {
			c[j*n+i] = c[i*n+j]
		}
	}
	got, vectors := largest(c, n, k)
	var all, best, kept float64
	for i, v := range values {
		all += v
		if i < k {
			best += v
			kept += got[i]
		}
	}
	if (best-kept)/all > 1e-3 {
		t.Errorf("kept %.6f of the trace where %.6f can be", kept/all, best/all)
	}
	for i := range 5 {
		close(t, fmt.Sprint("value ", i), got[i], values[i], 1e-6)
		if d := outside(vectors[i*n:][:n], q[i*n:][:n], n); d > 1e-3 {
			t.Errorf("vector %d is %g off its own", i, d)
		}
	}
}

// Rows that are all but one direction become orthonormal as others do, and a row
// that is a combination of others becomes zeros.
func TestOrthonormalOfNearlyParallelRows(t *testing.T) {
	const m, n = 80, 120 // more than a block of rows
	r := rand.New(rand.NewPCG(7, 7))
	common := make([]float64, n)
	for i := range common {
		common[i] = r.NormFloat64()
	}
	q := make([]float64, m*n)
	for i := range q {
		q[i] = common[i%n] + 1e-7*r.NormFloat64()
	}
	last := q[(m-1)*n:]
	for i := range last {
		last[i] = 2*q[i] - q[50*n+i]
	}
	orthonormal(q, m, n)
	for i := range m {
		for j := range i + 1 {
			want := 0.
			if i == j && i < m-1 {
				want = 1
			}
			close(t, fmt.Sprintf("row %d times row %d", i, j), dot(q[i*n:][:n], q[j*n:][:n]), want, 1e-14)
		}
	}
}

func TestJacobiRebuildsTheMatrix(t *testing.T) {
	const n = 30
	r := rand.New(rand.NewPCG(4, 4))
	a := make([]float64, n*n)
	for i := range n {
		for j := range i + 1 {
			a[i*n+j] = r.NormFloat64()
			a[j*n+i] = a[i*n+j]
		}
	}
	d := slices.Clone(a)
	u := jacobi(d, n)
	for i := range n {
		for j := range n {
			var got float64
			for k := range n {
				got += u[k*n+i] * d[k*n+k] * u[k*n+j]
			}
			close(t, fmt.Sprintf("entry %d,%d", i, j), got, a[i*n+j], 1e-13*n)
		}
	}
}

// The gradient's rows are sums of the inputs: outside the inputs' span there is
// nothing to protect.
func TestGradientSpanLiesInTheInputsSpan(t *testing.T) {
	const in, out = 100, 30
	rows := randomRows(3, 12, in, out)
	b := build(t, Config{Energy: 1, Cap: .9}, in, out, rows)
	var inputs []float64
	tokens := 0
	for _, r := range rows {
		for _, v := range r.x {
			inputs = append(inputs, float64(v))
		}
		tokens += r.t
	}
	orthonormal(inputs, tokens, in)
	if b.Rank > tokens {
		t.Errorf("rank %d from %d tokens", b.Rank, tokens)
	}
	for i := range b.Rank {
		// The sums are float32's: the smaller a direction's share, the more of it
		// is their rounding.
		d, within := outside(b.V[i*in:][:in], inputs, in), rounding*b.Spectrum[0]/b.Spectrum[i]
		if d > within {
			t.Errorf("direction %d of %d, share %.1e, is %.1e outside the inputs' span, want at most %.1e", i, b.Rank, b.Spectrum[i], d, within)
		}
	}
}

// A change off the subspace is orthogonal to each row's gradient.
func TestChangeOffTheSubspaceIsOrthogonalToEveryGradient(t *testing.T) {
	const in, out = 100, 30
	rows := randomRows(3, 12, in, out)
	b := build(t, Config{Energy: 1, Cap: .9}, in, out, rows)
	change := normal(rand.New(rand.NewPCG(1, 1)), out*in, 1)
	free := slices.Clone(change)
	b.Reproject(free, out)
	for i, r := range rows {
		g := r.gradient(in, out)
		var along, before float64
		for j, v := range g {
			along += v * float64(free[j])
			before += v * float64(change[j])
		}
		if size := math.Sqrt(dot(g, g)) * math.Sqrt(squares(free)); math.Abs(along) > 1e-4*size {
			t.Errorf("row %d: its gradient times the change is %.1e of their sizes (before: %.1e)", i, along/size, before/size)
		}
	}
}

func squares(v []float32) (s float64) {
	for _, x := range v {
		s += float64(x) * float64(x)
	}
	return s
}

// A row's context and options are one gradient.
func TestTapsOfARowAreOneGradient(t *testing.T) {
	const in, out = 40, 20
	whole := randomRows(6, 9, in, out)
	b := NewBuilder(cpu.New(1), []Layer{{"w", in, out}})
	for _, r := range whole {
		cut := r.t / 2
		b.Tap(0, mem(r.dy[:cut*out]), mem(r.x[:cut*in]), cut)
		b.Tap(0, mem(r.dy[cut*out:]), mem(r.x[cut*in:]), r.t-cut)
		b.Row()
	}
	if err := b.Suite("s"); err != nil {
		t.Fatal(err)
	}
	s, err := b.Build(Config{Energy: .99, Cap: .5})
	if err != nil {
		t.Fatal(err)
	}
	want := build(t, Config{Energy: .99, Cap: .5}, in, out, whole)
	if !slices.Equal(s.Find("w").V, want.V) {
		t.Error("rows in two taps give another basis than rows in one")
	}
}

// What was tapped is copied: a model reuses its memory.
func TestTapCopies(t *testing.T) {
	const in, out = 10, 4
	rows := randomRows(7, 5, in, out)
	b := NewBuilder(cpu.New(1), []Layer{{"w", in, out}})
	for _, r := range rows {
		dy, x := slices.Clone(r.dy), slices.Clone(r.x)
		b.Tap(0, mem(dy), mem(x), r.t)
		clear(dy)
		clear(x)
		b.Row()
	}
	if err := b.Suite("s"); err != nil {
		t.Fatal(err)
	}
	s, err := b.Build(Config{Energy: .99, Cap: .5})
	if err != nil {
		t.Fatal(err)
	}
	if want := build(t, Config{Energy: .99, Cap: .5}, in, out, rows); !slices.Equal(s.Find("w").V, want.V) {
		t.Error("the basis changed with the memory that was tapped")
	}
}

// Short rows go by the tokens' Gram matrix, long ones by G. Both are Σ GᵀG.
func TestSumsAreTheGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for _, c := range []struct{ t, in, out int }{{2, 16, 24}, {90, 16, 24}, {700, 8, 6}} {
		rows := make([]row, flushRows+3)
		want := make([]float64, c.in*c.in)
		b := NewBuilder(cpu.New(1), []Layer{{"w", c.in, c.out}})
		for i := range rows {
			rows[i] = row{normal(r, c.t*c.out, 1), normal(r, c.t*c.in, 1), c.t}
			b.Tap(0, mem(rows[i].dy), mem(rows[i].x), c.t)
			b.Row()
			g := rows[i].gradient(c.in, c.out)
			for o := range c.out {
				for j := range c.in {
					axpy(want[j*c.in:][:c.in], g[o*c.in+j], g[o*c.in:][:c.in])
				}
			}
		}
		if err := b.Suite("s"); err != nil {
			t.Fatal(err)
		}
		var trace float64
		for i := 0; i < len(want); i += c.in + 1 {
			trace += want[i]
		}
		for i, v := range b.layers[0].suites[0] {
			close(t, fmt.Sprintf("%d tokens of %d by %d: entry %d", c.t, c.out, c.in, i), float64(v), want[i]/trace, 1e-6)
		}
	}
}

// (e) Rows have an order and bits depend on it, but the span does not.
func TestOrderOfRowsKeepsTheSpan(t *testing.T) {
	const in, out = 64, 20
	rows := randomRows(9, 40, in, out)
	shuffled := slices.Clone(rows)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	c := Config{Energy: .9, Cap: 1}
	a, b := build(t, c, in, out, rows), build(t, c, in, out, shuffled)
	if a.Rank != b.Rank {
		t.Fatalf("ranks %d and %d", a.Rank, b.Rank)
	}
	if d := apart(a, b); d > 1e-4 {
		t.Errorf("the spans are %.1e apart", d)
	}
	close(t, "kept", a.Kept, b.Kept, 1e-6)
	// The sums are float32's, so the spans are as near as those are. From sums in
	// float64 the same directions are found to 1e-10.
	sum := func(rows []row) *Basis {
		c := make([]float64, in*in)
		for _, r := range rows {
			g := r.gradient(in, out)
			for i, v := range g {
				axpy(c[i%in*in:][:in], v, g[i/in*in:][:in])
			}
		}
		_, v := largest(c, in, a.Rank)
		return &Basis{In: in, Rank: a.Rank, V: v}
	}
	if d := apart(sum(rows), sum(shuffled)); d > 1e-10 {
		t.Errorf("from sums in float64 the spans are %.1e apart", d)
	}
}

// (f) A suite in which every row stands twice weighs no more.
func TestDoubledRowsKeepTheBasis(t *testing.T) {
	const in, out = 64, 20
	small, large := randomRows(9, 40, in, out), randomRows(10, 40, in, out)
	twice := slices.Concat(large, large)
	c := Config{Energy: .9, Cap: 1}
	a, b := build(t, c, in, out, small, large), build(t, c, in, out, small, twice)
	if a.Rank != b.Rank {
		t.Fatalf("ranks %d and %d", a.Rank, b.Rank)
	}
	if d := apart(a, b); d > 1e-4 {
		t.Errorf("the spans are %.1e apart", d)
	}
}

// A suite with a thousand times the gradient hides no other.
func TestSuitesWeighAlike(t *testing.T) {
	const in, out = 64, 20
	quiet, loud := randomRows(9, 20, in, out), randomRows(10, 20, in, out)
	for _, r := range loud {
		for i := range r.dy {
			r.dy[i] *= 1024 // exact, so that nothing but the weight could change
		}
	}
	b := build(t, Config{Energy: .8, Cap: .5}, in, out, quiet, loud)
	want := build(t, Config{Energy: .8, Cap: .5}, in, out, randomRows(9, 20, in, out), randomRows(10, 20, in, out))
	if !slices.Equal(b.V, want.V) {
		t.Error("the basis depends on a suite's scale")
	}
}

func TestRankIsTheSmallestThatKeepsTheEnergy(t *testing.T) {
	const in, out = 80, 30
	rows := randomRows(11, 40, in, out)
	full := build(t, Config{Energy: 1, Cap: 1}, in, out, rows)
	for _, want := range []float64{.1, .5, .9, .95, .99} {
		b := build(t, Config{Energy: want, Cap: 1}, in, out, rows)
		if b.Kept < want {
			t.Errorf("energy %v: kept %v", want, b.Kept)
		}
		if less := b.Kept - b.Spectrum[b.Rank-1]; less >= want {
			t.Errorf("energy %v: rank %d where %d keep %v", want, b.Rank, b.Rank-1, less)
		}
		if b.Rank > full.Rank {
			t.Errorf("energy %v: rank %d of %d", want, b.Rank, full.Rank)
		}
	}
	if b := build(t, Config{Energy: .99, Cap: .001}, in, out, rows); b.Rank != 1 {
		t.Errorf("rank %d where the cap leaves less than one direction", b.Rank)
	}
	if b := build(t, Config{Energy: .99, Cap: .1}, in, out, rows); b.Rank != 8 || b.Kept >= .99 {
		t.Errorf("rank %d, kept %v with a cap of 8", b.Rank, b.Kept)
	}
}

// Directions that the rows do not have, but for rounding, are not protected.
func TestNoDirectionBeyondTheRows(t *testing.T) {
	for _, in := range []int{48, 300} {
		r := rand.New(rand.NewPCG(3, 3))
		var rows []row
		for range 5 {
			rows = append(rows, row{normal(r, 24, 1), normal(r, in, 1), 1})
		}
		b := build(t, Config{Energy: 1, Cap: .5}, in, 24, rows, rows)
		if b.Rank != 5 {
			t.Errorf("in %d: rank %d from 5 tokens", in, b.Rank)
		}
		close(t, "kept", b.Kept, 1, 1e-6)
	}
}

// (g) A suite must have something to protect.
func TestSuiteWithNothingToProtectIsRefused(t *testing.T) {
	const in, out = 6, 4
	dev := cpu.New(1)
	rows := randomRows(1, 3, in, out)
	give := func(b *Builder, rows []row) {
		for _, r := range rows {
			b.Tap(0, mem(r.dy), mem(r.x), r.t)
			b.Row()
		}
	}
	zero := row{make([]float32, out), make([]float32, in), 1}
	huge := row{slices.Repeat([]float32{1e30}, out), slices.Repeat([]float32{1e30}, in), 1}
	for _, c := range []struct {
		name string
		rows []row
		want error
	}{
		{"empty", nil, ErrEmpty},
		{"one", rows[:1], ErrOneRow},
		{"zero", []row{zero, zero}, ErrNoGradient},
		{"huge", []row{huge, huge}, ErrNotFinite},
	} {
		b := NewBuilder(dev, []Layer{{"w", in, out}})
		give(b, c.rows)
		err := b.Suite(c.name)
		if !errors.Is(err, c.want) || err.Error() != "suite "+c.name+": "+c.want.Error() {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, err := b.Build(Config{Energy: .99, Cap: .25}); err == nil {
			t.Errorf("%s: a subspace of no suite was built", c.name)
		}
		// Nothing of it stays.
		give(b, rows)
		if err := b.Suite("good"); err != nil {
			t.Fatal(err)
		}
		s, err := b.Build(Config{Energy: .99, Cap: .25})
		if err != nil {
			t.Fatal(err)
		}
		if want := build(t, Config{Energy: .99, Cap: .25}, in, out, rows); !slices.Equal(s.Suites, []string{"good"}) || !slices.Equal(s.Bases[0].V, want.V) {
			t.Errorf("%s: the suite after it has another basis", c.name)
		}
	}
}

// (g) With the cap off, enough rows protect the whole layer: nothing is left of a
// change.
func TestWholeLayerProtected(t *testing.T) {
	const in, out = 12, 8
	b := build(t, Config{Energy: 1, Cap: 1}, in, out, randomRows(1, 40, in, out))
	if b.Rank != in {
		t.Fatalf("rank %d of %d", b.Rank, in)
	}
	close(t, "kept", b.Kept, 1, 1e-12)
	change := normal(rand.New(rand.NewPCG(1, 1)), out*in, 1)
	before := squares(change)
	b.Reproject(change, out)
	if left := math.Sqrt(squares(change) / before); left > 1e-14 {
		t.Errorf("%g of a change is left", left)
	}
}

// (g) A matrix is protected as it is, with no row beside it.
func TestMatrixIsARowOfItsOwn(t *testing.T) {
	const in, out = 30, 10
	r := rows1(5, in, out)
	g := make([]float32, out*in)
	for i, v := range r.gradient(in, out) {
		g[i] = float32(v)
	}
	b := NewBuilder(cpu.New(1), []Layer{{"free", 4, 4}, {"w", in, out}})
	b.Matrix(1, mem(g))
	if err := b.Suite("change"); err != nil {
		t.Fatal(err)
	}
	s, err := b.Build(Config{Energy: 1, Cap: .5})
	if err != nil {
		t.Fatal(err)
	}
	if s.Find("free") != nil || s.Find("none") != nil {
		t.Error("a layer without a gradient has a basis")
	}
	basis := s.Find("w")
	if basis == nil || basis.Rank != r.t {
		t.Fatalf("the basis of a matrix of rank %d is %+v", r.t, basis)
	}
	close(t, "its leak", basis.Leak(g, out), 1, 1e-6)
	// With a row beside it, the row is not alone.
	b.Tap(1, mem(r.dy), mem(r.x), r.t)
	b.Row()
	b.Matrix(1, mem(g))
	if err := b.Suite("a row and a change"); err != nil {
		t.Error(err)
	}
}

func rows1(seed uint64, in, out int) row {
	r := rand.New(rand.NewPCG(seed, 1))
	return row{normal(r, 3*out, 1), normal(r, 3*in, 1), 3}
}

// A suite without a gradient in a layer loses nothing there, and does not weigh.
func TestSuiteThatALayerDoesNotServe(t *testing.T) {
	const in, out = 30, 10
	layers := []Layer{{"a", in, out}, {"b", in, out}}
	both := func(b *Builder, rows []row, also bool) {
		for _, r := range rows {
			b.Tap(0, mem(r.dy), mem(r.x), r.t)
			if also {
				b.Tap(1, mem(r.dy), mem(r.x), r.t)
			}
			b.Row()
		}
		if err := b.Suite("s"); err != nil {
			t.Fatal(err)
		}
	}
	b := NewBuilder(cpu.New(1), layers)
	both(b, randomRows(1, 20, in, out), true)
	both(b, randomRows(2, 20, in, out), false)
	s, err := b.Build(Config{Energy: .8, Cap: .5})
	if err != nil {
		t.Fatal(err)
	}
	got := s.Find("b")
	if want := build(t, Config{Energy: .8, Cap: .5}, in, out, randomRows(1, 20, in, out)); !slices.Equal(got.V, want.V) {
		t.Error("a suite without a gradient changes the basis")
	}
	if got.KeptBy[1] != 1 || math.Abs(got.KeptBy[0]-got.Kept) > 1e-6 {
		t.Errorf("kept %v, by suite %v", got.Kept, got.KeptBy)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []Config{{0, .25}, {1.01, .25}, {-1, .25}, {math.NaN(), .25}, {.99, 0}, {.99, 1.1}, {.99, math.NaN()}} {
		b := NewBuilder(cpu.New(1), []Layer{{"w", 6, 4}})
		suite(t, b, "s", 0, randomRows(1, 3, 6, 4))
		if _, err := b.Build(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

// The same bits whatever computes them.
func TestBitsDoNotDependOnThreads(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	sizes := []Layer{{"d", 96, 64}, {"b", 130, 40}, {"a", 96, 200}, {"c", 33, 17}}
	make := func(dev kernels.Device, threads int) string {
		runtime.GOMAXPROCS(threads)
		b := NewBuilder(dev, sizes)
		for _, name := range []string{"one", "two"} {
			r := rand.New(rand.NewPCG(uint64(len(name)), uint64(name[0])))
			for range flushRows + 3 {
				for i, l := range sizes {
					n := 1 + r.IntN(40)
					b.Tap(i, mem(normal(r, n*l.Out, .1)), mem(normal(r, n*l.In, 1)), n)
				}
				b.Row()
			}
			if err := b.Suite(name); err != nil {
				t.Fatal(err)
			}
		}
		s, err := b.Build(Config{Energy: .99, Cap: .25})
		if err != nil {
			t.Fatal(err)
		}
		return s.SHA256()
	}
	want := make(cpu.New(1), 1)
	for _, threads := range []int{2, 8} {
		if got := make(cpu.New(threads), threads); got != want {
			t.Errorf("%d threads: %s, with one %s", threads, got, want)
		}
	}
	if got := make(cpu.Reference{}, 2); got != want {
		t.Errorf("the reference device: %s, want %s", got, want)
	}
}
