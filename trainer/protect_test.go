package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/project"
)

// The letters are those of the tests that the design of the projection asks for:
// (a) nothing of the change in the subspace, (b) λ = 0 is the unprotected run,
// (c) protected outputs of a linear model stay, (d) the mutants fail (a), (f2)
// capability and base are the checkpoint, (f3) the leak at small changes, (g) the
// ends, (f) a doubled row. (e) stands in package project.

// linearModel is a linear model y = Wx that learns to be another one, beside
// inputs that are protected.
type linearModel struct {
	out, in   int
	w0, goal  []float64
	protected [][]float64
	basis     *project.Basis
}

func newLinearModel(t *testing.T) *linearModel {
	t.Helper()
	const out, in, directions = 24, 48, 8
	r := rand.New(rand.NewPCG(3, 9))
	m := &linearModel{out: out, in: in, w0: make([]float64, out*in), goal: make([]float64, out*in)}
	for i := range m.w0 {
		// Weights as they stand in a file, so that both precisions start alike.
		m.w0[i] = float64(float32(r.NormFloat64() * .2))
		m.goal[i] = m.w0[i] + r.NormFloat64()*.2
	}
	dev := cpu.New(1)
	b := project.NewBuilder(dev, []project.Layer{{Name: "w", In: in, Out: out}})
	for range directions {
		x := make([]float64, in)
		row, dy := dev.Alloc(in), dev.Alloc(out)
		for i := range x {
			row.Host[i] = float32(r.NormFloat64())
			x[i] = float64(row.Host[i])
		}
		for i := range out {
			dy.Host[i] = float32(r.NormFloat64())
		}
		m.protected = append(m.protected, x)
		b.Tap(0, dy, row, 1)
		b.Row()
	}
	if err := b.Suite("inputs"); err != nil {
		t.Fatal(err)
	}
	s, err := b.Build(project.Config{Energy: 1 - 1e-6, Cap: .5})
	if err != nil {
		t.Fatal(err)
	}
	if m.basis = s.Find("w"); m.basis == nil || m.basis.Rank != directions {
		t.Fatalf("%d inputs have no basis of as many directions", directions)
	}
	return m
}

// gradient is that of a step's loss, ½|(W - goal) x|² over a few inputs, which are
// the same in every precision.
func (m *linearModel) gradient(step int, w []float64) []float64 {
	r := rand.New(rand.NewPCG(uint64(step), 1))
	g := make([]float64, len(w))
	x, e := make([]float64, m.in), make([]float64, m.out)
	for range 4 {
		for i := range x {
			x[i] = r.NormFloat64()
		}
		for o := range e {
			e[o] = 0
			for i := range x {
				e[o] += (w[o*m.in+i] - m.goal[o*m.in+i]) * x[i]
			}
			for i := range x {
				g[o*m.in+i] += e[o] * x[i] / 4
			}
		}
	}
	return g
}

// smallLR takes the change to about a thousandth of the weights in 1,000 steps.
// At toy sizes the mutant whose master is W passes.
const smallLR = 4e-7

// train takes steps as the trainer does, and returns the change as stored before
// and after its end, and as served.
func (m *linearModel) train(t *testing.T, steps int, gradientOnly bool, warm bool) (d, sealed, served []float32) {
	t.Helper()
	dev := cpu.New(1)
	p := &kai.Param{Name: "w", Shape: []int{m.out, m.in}, Group: "encoder", Decay: true, W: dev.Alloc(m.out * m.in), Grad: dev.Alloc(m.out * m.in)}
	for i, v := range m.w0 {
		p.W.Host[i] = float32(v)
	}
	o := newOptimizer(dev, []*kai.Param{p}, nil, .1, 1)
	if warm {
		for i := range o.masters[0].m.Host { // moments that were made before the projection
			o.masters[0].m.Host[i], o.masters[0].v.Host[i] = 1e-3, 1e-4
		}
	}
	o.protect(map[string]*project.Projector{"w": m.basis.On(dev, 1)}, 1, gradientOnly)
	w := make([]float64, len(m.w0))
	for step := 1; step <= steps; step++ {
		for i, v := range p.W.Host {
			w[i] = float64(v)
		}
		for i, g := range m.gradient(step, w) {
			p.Grad.Host[i] = float32(g)
		}
		o.step(step, o.norm(), rates{encoder: smallLR})
		for i, v := range p.W.Host {
			if v != float32(m.w0[i])+o.masters[0].d.Host[i] {
				t.Fatalf("step %d: W is not fl(W0 + D)", step)
			}
		}
	}
	d = append(d, o.masters[0].d.Host...)
	sealed = append(sealed, d...)
	m.basis.Reproject(sealed, m.out)
	for i := range sealed {
		served = append(served, float32(m.w0[i])+sealed[i]-float32(m.w0[i]))
	}
	return d, sealed, served
}

func norm32(v []float32) float64 { return math.Sqrt(squares(v)) }

// TestLeak is (a), (d) and (f3).
func TestLeak(t *testing.T) {
	m := newLinearModel(t)
	const bound = 5e-6
	for _, steps := range []int{1, 10, 1000} {
		for _, warm := range []bool{false, true} {
			d, sealed, served := m.train(t, steps, false, warm)
			if leak := m.basis.Leak(d, m.out); leak > bound {
				t.Errorf("%d steps, warm moments %v: the change as trained has %.2g of itself in the subspace, want at most %.0e", steps, warm, leak, bound)
			}
			if leak := m.basis.Leak(sealed, m.out); leak > bound {
				t.Errorf("%d steps, warm moments %v: the change as stored has %.2g of itself in the subspace", steps, warm, leak)
			}
			var half float64
			for i := range served {
				r := 0x1p-24 * (m.w0[i] + float64(served[i]))
				half += r * r
			}
			if leak, most := m.basis.Leak(served, m.out), 2*math.Sqrt(half)/norm32(served); leak > most {
				t.Errorf("%d steps: W - W0 has %.2g of itself in the subspace, its rounding allows %.2g", steps, leak, most)
			}
			if steps == 1000 {
				size := norm32(d) / math.Sqrt(dot(m.w0, m.w0))
				t.Logf("‖D‖/‖W‖ %.1e: leak %.1e as trained, %.1e as stored, %.1e as served", size, m.basis.Leak(d, m.out), m.basis.Leak(sealed, m.out), m.basis.Leak(served, m.out))
				if size < 3e-4 || size > 3e-3 {
					t.Errorf("the change is %.1e of the weights: the test wants about 1e-3", size)
				}
			}
		}
	}
	d, _, _ := m.train(t, 1000, true, false)
	if leak := m.basis.Leak(d, m.out); leak < 100*bound {
		t.Errorf("projecting the gradient alone leaks %.2g: the test cannot tell it from the update's projection", leak)
	}
	if leak := m.basis.Leak(m.weightMaster(1000), m.out); leak < bound {
		t.Errorf("with W as the master the change leaks %.2g: the test cannot tell it from D as the master", leak)
	}
}

// weightMaster is the mutant that keeps W in float32 and no change: every update
// is projected exactly, and rounded at the size of W.
func (m *linearModel) weightMaster(steps int) []float32 {
	w := make([]float32, len(m.w0))
	for i := range w {
		w[i] = float32(m.w0[i])
	}
	m.reference(steps, func(u []float64) []float64 {
		at := make([]float64, len(w))
		for i := range w {
			w[i] -= float32(u[i])
			at[i] = float64(w[i]) - m.w0[i]
		}
		return at
	})
	for i := range w {
		w[i] -= float32(m.w0[i])
	}
	return w
}

// reference is the whole rule in float64. apply takes a step's update and returns
// the change that stands afterwards.
func (m *linearModel) reference(steps int, apply func(u []float64) []float64) {
	n := len(m.w0)
	d, m1, m2 := make([]float64, n), make([]float64, n), make([]float64, n)
	w := make([]float64, n)
	off := func(x []float64) {
		for row := range m.out {
			x := x[row*m.in:][:m.in]
			for k := range m.basis.Rank {
				v := m.basis.V[k*m.in:][:m.in]
				c := dot(x, v)
				for i := range x {
					x[i] -= c * v[i]
				}
			}
		}
	}
	for step := 1; step <= steps; step++ {
		for i := range w {
			w[i] = m.w0[i] + d[i]
		}
		g := m.gradient(step, w)
		if norm := math.Sqrt(dot(g, g)); norm > 1 {
			for i := range g {
				g[i] /= norm
			}
		}
		off(g)
		u := make([]float64, n)
		c1, c2 := 1-math.Pow(beta1, float64(step)), 1-math.Pow(beta2, float64(step))
		for i := range u {
			m1[i] = beta1*m1[i] + (1-beta1)*g[i]
			m2[i] = beta2*m2[i] + (1-beta2)*g[i]*g[i]
			u[i] = smallLR * (m1[i]/c1/(math.Sqrt(m2[i]/c2)+adamE) + .1*d[i])
		}
		off(u)
		d = apply(u)
	}
}

func dot(a, b []float64) float64 {
	s := 0.0
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

// TestLeakInDoublePrecision: what is left in float32 is rounding. The same rule in
// float64 leaves a millionth of that.
func TestLeakInDoublePrecision(t *testing.T) {
	m := newLinearModel(t)
	d := make([]float64, len(m.w0))
	m.reference(1000, func(u []float64) []float64 {
		for i := range d {
			d[i] -= u[i]
		}
		return append([]float64(nil), d...)
	})
	inside := 0.0
	for row := range m.out {
		for k := range m.basis.Rank {
			c := dot(d[row*m.in:][:m.in], m.basis.V[k*m.in:][:m.in])
			inside += c * c
		}
	}
	if leak := math.Sqrt(inside / dot(d, d)); leak > 1e-12 {
		t.Errorf("the leak is %.2g, want at most 1e-12", leak)
	}
	// And it is the same rule: the trained change is this one, rounded.
	got, _, _ := m.train(t, 1000, false, false)
	apart := 0.0
	for i := range got {
		e := float64(got[i]) - d[i]
		apart += e * e
	}
	if rel := math.Sqrt(apart / dot(d, d)); rel > 1e-3 {
		t.Errorf("the trainer's change is %.2g away from the reference's", rel)
	}
}

// TestProtectedOutputs is (c): a linear model answers the protected inputs as
// before.
func TestProtectedOutputs(t *testing.T) {
	m := newLinearModel(t)
	_, d, _ := m.train(t, 1000, false, false)
	for n, x := range m.protected {
		moved, was := 0.0, 0.0
		for o := range m.out {
			var y, y0 float64
			for i := range x {
				y += float64(d[o*m.in+i]) * x[i]
				y0 += m.w0[o*m.in+i] * x[i]
			}
			moved, was = moved+y*y, was+y0*y0
		}
		if rel := math.Sqrt(moved / was); rel > 1e-6 {
			t.Errorf("protected input %d: its output moved by %.2g of itself", n, rel)
		}
	}
}

// TestNoStrength is (b): λ = 0 is the unprotected run, bit for bit.
func TestNoStrength(t *testing.T) {
	fit := func(protect map[string]any) Result {
		w := newWorld(t, func(stage map[string]any) {
			protected(stage)
			stage["protect"] = protect
		})
		_, c := w.start(t)
		r, err := Fit(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	bare := fit(map[string]any{})
	zero := fit(map[string]any{"suites": []any{"animals"}, "projection": map[string]any{"strength": 0}, "distillation": false})
	whole := fit(map[string]any{"suites": []any{"animals"}, "distillation": false})
	if weights(t, bare.CheckpointDir) != weights(t, zero.CheckpointDir) {
		t.Error("with strength 0 the weights are not those of the unprotected run")
	}
	if weights(t, bare.CheckpointDir) == weights(t, whole.CheckpointDir) {
		t.Error("with strength 1 the weights are those of the unprotected run")
	}
}

// TestProtectedRun: a run says what its protection was and came to, in the result,
// in the metrics and in the capability.
func TestProtectedRun(t *testing.T) {
	for mode, edit := range map[string]func(map[string]any){"full": protected, "lora": adapted} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, func(stage map[string]any) {
				edit(stage)
				stage["epochs"] = 8 // the drift is looked at every so many steps
			})
			m, c := w.start(t)
			r, err := Fit(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			p := r.Protection
			switch {
			case p.Subspace == "" || p.Strength != 1 || p.Rows["animals"] == 0 || p.Energy["animals"] <= 0 || p.Energy["animals"] > 1+1e-9:
				t.Errorf("strength %v, rows %v, energy %v", p.Strength, p.Rows, p.Energy)
			case p.Leak > 5e-6 || p.Served > 2*p.Bound:
				t.Errorf("leak %.2g, served %.2g of a bound %.2g", p.Leak, p.Served, p.Bound)
			case p.Norm == 0:
				t.Error("nothing was trained")
			case p.Drift <= 0:
				t.Error("nobody looked at the drift")
			}
			if mode == "full" {
				if p.Share <= 0 || p.Share > 1+1e-6 {
					t.Errorf("share removed is %v", p.Share)
				}
				var line struct {
					Step  int
					Share map[string]float64
				}
				if len(m.metrics) != r.Steps {
					t.Fatalf("%d lines of metrics for %d steps", len(m.metrics), r.Steps)
				}
				if err := json.Unmarshal([]byte(m.metrics[0]), &line); err != nil || line.Step != 1 || len(line.Share) == 0 {
					t.Errorf("the first line of metrics is %s", m.metrics[0])
				}
			}
			model, err := kai.Load(w.base, w.dev)
			if err != nil {
				t.Fatal(err)
			}
			if err := Apply(model, filepath.Join(c.Dir, "capability")); err != nil {
				t.Fatal(err)
			}
			applied := filepath.Join(tempDir(t), "applied")
			if err := model.Save(applied); err != nil {
				t.Fatal(err)
			}
			if weights(t, applied) != weights(t, r.CheckpointDir) { // (f2)
				t.Error("base + capability is not the checkpoint")
			}
		})
	}
}

// TestProtectedCapability: a capability's directions join the protected ones, and
// what it wrote stays as it is.
func TestProtectedCapability(t *testing.T) {
	w := newWorld(t, nil)
	m, c := w.start(t)
	first, err := Fit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	w.stage.Protect = Protect{
		Capabilities: []string{string(first.Capability)},
		Projection:   &Projection{Strength: 1, Energy: .99, Cap: .5, Rows: 8},
	}
	second := m.another("second")
	c = w.config(t, second, filepath.Join(tempDir(t), "run"))
	c.Baseline = w.baseline
	r, err := Fit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if name := "capability:" + string(first.Capability); r.Protection.Energy[name] <= 0 || r.Protection.Leak > 5e-6 {
		t.Errorf("energy is %v, the leak %.2g", r.Protection.Energy, r.Protection.Leak)
	}
}

// TestFits: what a stage asks for and its base or the store does not have is refused
// before there is a run.
func TestFits(t *testing.T) {
	w := newWorld(t, nil)
	m, c := w.start(t)
	r, err := Fit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	base, err := kai.Load(w.base, w.dev)
	if err != nil {
		t.Fatal(err)
	}
	trained, err := kai.Load(r.CheckpointDir, w.dev)
	if err != nil {
		t.Fatal(err)
	}
	lora := func(rank int, targets ...string) Stage {
		return Stage{Adaptation: Adaptation{Mode: LoRA, Rank: rank, Alpha: 1, Targets: targets}}
	}
	capability := func(address canon.SHA256) Stage {
		return Stage{Protect: Protect{Capabilities: []string{string(address)}}}
	}
	for _, tt := range []struct {
		name  string
		stage Stage
		base  *kai.Model
		want  string
	}{
		{"adapter", lora(4), base, ""},
		{"rank over the layer", lora(17), base, "adaptation.rank"},
		{"unknown target", lora(4, "qeury"), base, "adaptation.targets"},
		{"capability", capability(r.Capability), base, ""},
		{"capability over what it made", capability(r.Capability), trained, "over the base that it was trained from"},
		{"unknown capability", capability(canon.Sum([]byte("none"))), base, "holds no artifact"},
		{"checkpoint for a capability", capability(r.Checkpoint), base, "it is a checkpoint"},
	} {
		err := tt.stage.Fits(tt.base, m)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestDoubledRows is (f): a suite whose rows are all there twice has the same
// subspace, and one of other rows another.
func TestDoubledRows(t *testing.T) {
	w := newWorld(t, protected)
	_, c := w.start(t)
	f := &fit{Config: c, weights: c.Model.SHA256}
	enc := c.Model.Encoder()
	once, err := f.guard(t.Context(), enc)
	if err != nil {
		t.Fatal(err)
	}
	twice := *once
	twice.inputs, twice.suites = nil, nil
	for i, in := range once.inputs {
		twice.inputs = append(twice.inputs, in, in)
		twice.suites = append(twice.suites, once.suites[i], once.suites[i])
	}
	half := *once
	half.inputs, half.suites = once.inputs[:4], once.suites[:4]
	for _, tt := range []struct {
		name string
		k    *keeper
		same bool
	}{{"doubled", &twice, true}, {"halved", &half, false}} {
		s, err := f.subspace(t.Context(), enc, tt.k)
		if err != nil {
			t.Fatal(err)
		}
		if same := s.SHA256() == once.subspace.SHA256(); same != tt.same {
			t.Errorf("%s: the same subspace: %v, want %v", tt.name, same, tt.same)
		}
	}
}

// TestNothingLeftToTrain is (g): with every direction protected the job says so.
func TestNothingLeftToTrain(t *testing.T) {
	w := newWorld(t, func(stage map[string]any) {
		protected(stage)
		stage["protect"].(map[string]any)["projection"] = map[string]any{"energy": 1, "cap": 1}
	})
	k := &fit{Config: Config{Stage: w.stage, Device: w.dev}}
	full := &keeper{subspace: &project.Subspace{}}
	for _, name := range []string{"a", "b"} {
		full.linears = append(full.linears, kai.Linear{Name: name, In: 2, Out: 2, Params: []*kai.Param{{Name: name + ".weight"}}})
		full.subspace.Bases = append(full.subspace.Bases, project.Basis{Name: name, In: 2, Out: 2, Rank: 2, V: []float64{1, 0, 0, 1}})
	}
	every := func(string) bool { return true }
	if _, err := k.projectors(full, every); err == nil || !strings.Contains(err.Error(), "nothing left to train") {
		t.Errorf("all layers covered: %v", err)
	}
	full.subspace.Bases[0] = project.Basis{Name: "a", In: 2, Out: 2, Rank: 1, V: []float64{1, 0}}
	if _, err := k.projectors(full, every); err != nil {
		t.Errorf("one of two layers covered: %v", err)
	}
	if len(k.res.Warnings) != 1 || k.res.Warnings[0].Code != Covered || !strings.Contains(k.res.Warnings[0].Text, "in 1 of 2 layers") {
		t.Errorf("warnings are %+v", k.res.Warnings)
	}
	if _, err := k.projectors(full, func(name string) bool { return name == "b.weight" }); err == nil {
		t.Error("the only layer that learns is covered, and nobody says so")
	}
}

// TestOtherSubspace: a state that was trained off another subspace is refused and
// nothing is rebuilt.
func TestOtherSubspace(t *testing.T) {
	w := newWorld(t, protected)
	m, c := w.start(t)
	c.StateEvery = -1
	ctx, cancel := context.WithCancel(t.Context())
	m.after = func(b event.Body) error {
		if b.Type() == event.TypeStepRecorded {
			cancel()
		}
		return nil
	}
	if _, err := Fit(ctx, c); !errors.Is(err, ErrInterrupted) {
		t.Fatalf("Fit = %v, want it interrupted", err)
	}
	m.after = nil
	name := filepath.Join(c.Dir, "state", "1", "state.json")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	was := regexp.MustCompile(`"subspace_sha256":"[0-9a-f]{64}"`)
	if !was.Match(b) {
		t.Fatalf("the state names no subspace: %s", b)
	}
	write(t, name, string(was.ReplaceAll(b, []byte(`"subspace_sha256":"`+strings.Repeat("0", 64)+`"`))))
	if _, err := Fit(t.Context(), w.again(t, m, c)); !errors.Is(err, ErrProjection) {
		t.Errorf("resumed off another subspace: %v", err)
	}
	write(t, name, string(b))
	if _, err := Fit(t.Context(), w.again(t, m, c)); err != nil {
		t.Errorf("resumed off its own: %v", err)
	}
}

// TestSubspaceCache: a subspace is read back instead of built, is the same, and is
// refused where its file is damaged.
func TestSubspaceCache(t *testing.T) {
	w := newWorld(t, protected)
	cache := tempDir(t)
	fit := func() (Result, error) {
		_, c := w.start(t)
		c.Cache = cache
		return Fit(t.Context(), c)
	}
	first, err := fit()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the cache holds %v (%v)", files, err)
	}
	second, err := fit()
	if err != nil {
		t.Fatal(err)
	}
	if first.Checkpoint != second.Checkpoint || first.Protection.Subspace != second.Protection.Subspace {
		t.Error("with the subspace from the cache the run is another one")
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	write(t, files[0], string(b))
	if _, err := fit(); err == nil || !strings.Contains(err.Error(), files[0]) {
		t.Errorf("with a damaged cache: %v", err)
	}
}

// TestSubspaceKey: what a subspace is built from is in its name, and what it is not is
// not.
func TestSubspaceKey(t *testing.T) {
	w := newWorld(t, protected)
	key := func(edit func(f *fit)) string {
		_, c := w.start(t)
		p := *c.Stage.Protect.Projection
		c.Stage.Protect.Projection = &p
		f := &fit{Config: c, weights: c.Model.SHA256}
		edit(f)
		name, err := f.subspaceKey()
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	whole := key(func(*fit) {})
	for _, tt := range []struct {
		name string
		edit func(f *fit)
		same bool
	}{
		{"seed", func(f *fit) { f.Stage.Seed++ }, true},
		{"strength", func(f *fit) { f.Stage.Protect.Projection.Strength = .5 }, true},
		{"weights", func(f *fit) { f.weights = strings.Repeat("0", 64) }, false},
		{"encoder", func(f *fit) { f.Model.Config.Encoder = []byte(`{}`) }, false},
		{"max_len", func(f *fit) { f.Model.Config.MaxLen-- }, false},
		{"option_len", func(f *fit) { f.Model.Config.OptionLen-- }, false},
		{"top_k", func(f *fit) { f.Model.Config.TopK-- }, false},
		{"energy", func(f *fit) { f.Stage.Protect.Projection.Energy = .9 }, false},
		{"cap", func(f *fit) { f.Stage.Protect.Projection.Cap = .5 }, false},
		{"rows", func(f *fit) { f.Stage.Protect.Projection.Rows-- }, false},
		{"suites", func(f *fit) { f.Stage.Protect.Suites = []string{"colors", "animals"} }, false},
		{"capabilities", func(f *fit) { f.Stage.Protect.Capabilities = []string{"x"} }, false},
	} {
		if same := key(tt.edit) == whole; same != tt.same {
			t.Errorf("%s: the same subspace: %v, want %v", tt.name, same, tt.same)
		}
	}
}

// TestDriftBound: a run whose answers leave the base's further than it may cuts its
// step, then ends, and says so; and so it does when it is resumed.
func TestDriftBound(t *testing.T) {
	w := newWorld(t, func(stage map[string]any) {
		protected(stage)
		stage["protect"] = map[string]any{"suites": []any{"animals"}, "projection": map[string]any{"strength": 0}, "distillation": false, "drift": 1e-9}
		stage["epochs"] = 40
	})
	m, c := w.start(t)
	r, err := Fit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if want := driftEvery * (driftCuts + 1); r.Steps != want {
		t.Errorf("%d steps, want it ended after %d", r.Steps, want)
	}
	steps := m.steps()
	if before, after := steps[driftEvery-1].LR, steps[driftEvery].LR; after != before/2 {
		t.Errorf("the learning rate went from %v to %v, want half", before, after)
	}
	drifted := func(w Warning) bool { return w.Code == Drifted }
	if !slices.ContainsFunc(r.Warnings, drifted) {
		t.Errorf("warnings are %+v", r.Warnings)
	}
	w.stage.MaxSteps = driftEvery - 1
	_, c = w.start(t)
	if r, err = Fit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if r.Protection.Cuts != 0 || !slices.ContainsFunc(r.Warnings, drifted) {
		t.Errorf("over the bound before the first look: %d cuts, warnings %+v", r.Protection.Cuts, r.Warnings)
	}
}
