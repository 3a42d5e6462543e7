package trainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/project"
)

// ErrProjection ends a resumed Fit whose protected subspace is not the one that
// its state was trained under.
var ErrProjection = errors.New("projection_mismatch")

// Protection is what a run's protection was and what came of it.
type Protection struct {
	Subspace string             `json:"subspace_sha256"` // "" where nothing was projected
	Strength float64            `json:"strength"`
	Energy   map[string]float64 `json:"energy"` // by suite: the share of its gradients' energy that the subspace holds, the mean over layers
	Layers   []LayerProtection  `json:"layers"`
	Rows     map[string]int     `json:"rows"` // by suite: rows of the preservation set

	Share float64 `json:"share"` // of the gradient's square, what was removed: the mean over steps
	Norm  float64 `json:"norm"`  // ‖D‖/‖W0‖ over the linear layers
	// Leak is ‖DV‖/‖D‖ over all projected layers, of the changes as stored; Served
	// is that of W − W0 as loaded from the files, which has W's own rounding in it,
	// and Bound what that rounding can make of it.
	Leak   float64 `json:"leak"`
	Served float64 `json:"served"`
	Bound  float64 `json:"bound"`

	Drift float64 `json:"drift"` // the mean KL(base‖model) on preservation rows at the end, in nats; 0 where none are kept
	Cuts  int     `json:"cuts"`  // how often the bound on it halved the learning rate
}

// LayerProtection is one layer's subspace and what it did.
type LayerProtection struct {
	Layer string  `json:"layer"`
	In    int     `json:"in"`
	Rank  int     `json:"rank"`
	Kept  float64 `json:"kept"`  // of the energy of all suites
	Share float64 `json:"share"` // removed, the mean over steps
	Leak  float64 `json:"leak"`
}

// rivals is how many options of a question the subspace's gradients are of: the
// gold one and those that the base finds next. All options of a question with 150
// would cost ten times the rest of the row, and those far from the answer do not
// move it.
const rivals = 16

// keeper holds what a run needs to protect: the preservation rows with the base's
// answers, and the subspace.
type keeper struct {
	inputs  [][]kai.Input // by kept row
	ids     []string
	suites  []string
	context []int // tokens, by row
	cycle   data.Cycle

	subspace *project.Subspace
	linears  []kai.Linear
	sample   []kai.Input // what the drift is looked at on
}

// keepSeed tells the order of the preservation rows from that of the targets.
const keepSeed = 0x6b656570

// guard reads the preservation rows and asks the base for its answers.
func (f *fit) guard(ctx context.Context, enc *kai.Encoder) (*keeper, error) {
	p := f.Stage.Protect
	if p.Projection == nil && p.Distillation == nil && p.Drift == nil {
		return nil, nil
	}
	k := &keeper{linears: f.Model.Linears()}
	predictor := f.Model.NewPredictor()
	for _, set := range f.Build.Keep() {
		rows, err := set.Rows()
		if err != nil {
			return nil, err
		}
		const pack = 64 // rows between looks at the context
		for from := 0; from < len(rows); from += pack {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			f.report(Progress{Phase: Protecting, Suite: set.Suite, Done: from, Rows: len(rows)})
			if err := k.read(f, enc, predictor, set.Suite, rows[from:min(from+pack, len(rows))]); err != nil {
				return nil, err
			}
		}
	}
	if len(p.Suites) > 0 && len(k.inputs) == 0 {
		return nil, fmt.Errorf("trainer: the build %s keeps no rows of the protected suites: stage it again", f.Build.Dir)
	}
	k.cycle = data.NewCycle(f.Stage.Seed^keepSeed, len(k.inputs))
	for i := range min(driftRows, len(k.inputs)) {
		k.sample = append(k.sample, k.inputs[k.cycle.At(i)]...)
	}
	var err error
	if p.Projection != nil {
		k.subspace, err = f.subspace(ctx, enc, k)
	}
	return k, err
}

// read adds a suite's rows with the base's answers to them.
func (k *keeper) read(f *fit, enc *kai.Encoder, predictor *kai.Predictor, suite string, rows []decision.Row) error {
	var inputs []kai.Input
	ends := make([]int, len(rows))
	for i, row := range rows {
		in, err := enc.Encode(row)
		if err != nil {
			return fmt.Errorf("trainer: item %s: %w", row.ID, err)
		}
		inputs = append(inputs, in...)
		ends[i] = len(inputs)
	}
	for i, t := range predictor.Teach(enc.Texts, inputs) {
		inputs[i].Teacher = &t
	}
	from := 0
	for i, row := range rows {
		in, tokens := inputs[from:ends[i]:ends[i]], 0
		for _, q := range in {
			tokens += len(q.Context)
		}
		k.inputs, k.ids = append(k.inputs, in), append(k.ids, row.ID)
		k.suites, k.context = append(k.suites, suite), append(k.context, tokens)
		from = ends[i]
	}
	return nil
}

// rows counts a suite's preservation rows.
func (k *keeper) rows() map[string]int {
	n := map[string]int{}
	for _, s := range k.suites {
		n[s]++
	}
	return n
}

// subspace is what the protected suites and capabilities span at the base: read
// from the cache where it stands there, or else built.
func (f *fit) subspace(ctx context.Context, enc *kai.Encoder, k *keeper) (*project.Subspace, error) {
	key, err := f.subspaceKey()
	if err != nil {
		return nil, err
	}
	file := ""
	if f.Cache != "" {
		file = filepath.Join(f.Cache, key)
		if s, err := readSubspace(file); err == nil {
			return s, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("trainer: the cached subspace %s: %w: delete it, and it is built again", file, err)
		}
	}
	p := f.Stage.Protect
	layers := make([]project.Layer, len(k.linears))
	for i, l := range k.linears {
		layers[i] = project.Layer{Name: l.Name, In: l.In, Out: l.Out}
	}
	b := project.NewBuilder(f.Device, layers)
	for _, suite := range p.Suites {
		done := 0
		for i, in := range k.inputs {
			if k.suites[i] != suite || done == p.Projection.Rows {
				continue
			}
			if done%16 == 0 {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				f.report(Progress{Phase: Protecting, Suite: suite, Done: done, Rows: p.Projection.Rows})
			}
			for _, q := range in {
				if q.Target != nil {
					f.Model.Sensitivity(enc.Texts, q.Hardest(q.Teacher.P, rivals), b.Tap)
					b.Row()
				}
			}
			done++
		}
		if err := b.Suite(suite); err != nil {
			return nil, fmt.Errorf("trainer: protect.suites: %w", err)
		}
	}
	for _, address := range p.Capabilities {
		if err := f.addCapability(b, k, canon.SHA256(address)); err != nil {
			return nil, fmt.Errorf("trainer: protect.capabilities: %s: %w", address, err)
		}
	}
	s, err := b.Build(project.Config{Energy: p.Projection.Energy, Cap: p.Projection.Cap})
	if err != nil {
		return nil, fmt.Errorf("trainer: %w", err)
	}
	if file == "" {
		return s, nil
	}
	return s, writeSubspace(f.disk, file, s)
}

// subspaceVersion changes with how a subspace is built.
const subspaceVersion = 1

// subspaceKey names a subspace by what it is built from.
func (f *fit) subspaceKey() (string, error) {
	var sets []canon.SHA256
	for _, s := range f.Build.Keep() {
		sets = append(sets, *s.Dataset.SHA256)
	}
	h, err := canon.Of(struct {
		Version      int            `json:"version"`
		Base         string         `json:"base"` // of the weights
		Sets         []canon.SHA256 `json:"sets"`
		Suites       []string       `json:"suites"`
		Capabilities []string       `json:"capabilities"`
		Projection   Projection     `json:"projection"`
		MaxLen       int            `json:"max_len"`
		TopK         int            `json:"top_k"`
		Rivals       int            `json:"rivals"`
	}{subspaceVersion, f.weights, sets, f.Stage.Protect.Suites, f.Stage.Protect.Capabilities,
		Projection{1, f.Stage.Protect.Projection.Energy, f.Stage.Protect.Projection.Cap, f.Stage.Protect.Projection.Rows},
		f.Model.Config.MaxLen, f.Model.Config.TopK, rivals})
	return h.Hex(), err
}

func readSubspace(file string) (*project.Subspace, error) {
	r, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return project.Decode(r)
}

// writeSubspace writes the cache's file, whole or not at all.
func writeSubspace(disk durable.Disk, file string, s *project.Subspace) error {
	if err := disk.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	w, err := disk.Create(file)
	if err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	defer w.Abort()
	if err := s.Encode(w); err != nil {
		return fmt.Errorf("trainer: writing the subspace: %w", err)
	}
	return w.Commit()
}

// projectors are the subspace on the device, by parameter. It warns of layers in
// which nothing is left to train, and fails when that is every layer.
func (f *fit) projectors(k *keeper) (map[string]*project.Projector, error) {
	if k == nil || k.subspace == nil {
		return nil, nil
	}
	off := map[string]*project.Projector{}
	var covered []string
	for _, l := range k.linears {
		b := k.subspace.Find(l.Name)
		if b == nil {
			continue
		}
		if b.Rank == b.In {
			covered = append(covered, l.Name)
		}
		p := b.On(f.Device, f.Stage.Protect.Projection.Strength)
		for _, param := range l.Params {
			off[param.Name] = p
		}
	}
	if len(covered) == len(k.linears) {
		return nil, fmt.Errorf("trainer: the protected directions are all directions of every layer: there is nothing left to train; lower protect.projection.cap or energy, or protect fewer suites")
	}
	if len(covered) > 0 {
		f.warn(Warning{Code: Covered, Text: fmt.Sprintf("there is nothing left to train in %d of %d layers, all of whose directions are protected: %s",
			len(covered), len(k.linears), strings.Join(covered, ", "))})
	}
	return off, nil
}

// linear reports whether a parameter is the weight of a linear layer, which is
// what can be trained beside a subspace.
func (k *keeper) linear(name string) bool {
	return slices.ContainsFunc(k.linears, func(l kai.Linear) bool {
		return slices.ContainsFunc(l.Params, func(p *kai.Param) bool { return p.Name == name })
	})
}

// batch are the preservation rows beside n target rows of which from stand before
// them in the run.
func (k *keeper) batch(from, n int) []int {
	rows := make([]int, n)
	for i := range rows {
		rows[i] = k.cycle.At(from + i)
	}
	return rows
}

// The drift is looked at every driftEvery steps on driftRows preservation rows.
// Above its bound the learning rate is halved; a run that is above it after
// driftCuts of that ends.
const (
	driftEvery = 20
	driftRows  = 64
	driftCuts  = 3
)

// drift looks at how far the model has gone from the base, and reports whether
// the run ends there.
func (l *full) drift(step int) (done bool) {
	bound := l.Stage.Protect.Drift
	if bound == nil || step%driftEvery != 0 {
		return false
	}
	l.state.Drift = l.drifted()
	if l.state.Drift <= *bound {
		return false
	}
	l.state.Cuts++
	return l.state.Cuts > driftCuts
}

// drifted is the mean KL(base‖model) on the drift's rows, with the weights as they
// are.
func (l *full) drifted() (sum float64) {
	for i, t := range l.Model.NewPredictor().Teach(l.set.texts, l.kept.sample) {
		sum += l.kept.sample[i].Teacher.KL(t) / float64(len(l.kept.sample))
	}
	return sum
}

// driftWarning says what the bound on the drift did.
func (l *full) driftWarning() {
	bound := l.Stage.Protect.Drift
	switch {
	case bound == nil || l.state.Cuts == 0:
	case l.state.Cuts > driftCuts:
		l.warn(Warning{Code: Drifted, Text: fmt.Sprintf(
			"training ended after step %d of %d: the answers to the protected suites went %.3f nats from the base's, over the bound of %g, and halving the learning rate %d times did not bring them back",
			l.state.Step, l.set.plan.Steps(), l.state.Drift, *bound, driftCuts)})
	default:
		l.warn(Warning{Code: Drifted, Text: fmt.Sprintf(
			"the learning rate was halved %d times, because the answers to the protected suites went over the bound of %g nats from the base's; they ended at %.3f",
			l.state.Cuts, *bound, l.state.Drift)})
	}
}

// seal is the end of projected training: at λ = 1 the change is projected once
// more in float64 and rounded once, so that what is evaluated, saved and applied
// has nothing in the subspace but that rounding.
func (l *full) seal() {
	k := l.kept
	if k == nil || k.subspace == nil {
		return
	}
	if l.Stage.Protect.Projection.Strength == 1 && !l.GradientOnly {
		for i := range l.opt.masters {
			m := &l.opt.masters[i]
			if b := k.basis(m.Name); b != nil && m.off != nil {
				d := hostValues(l.Device, m.d)
				b.Reproject(d, m.Shape[0])
				l.Device.Write(m.d, d)
			}
		}
		for _, a := range l.opt.adapters {
			if b := k.basis(a.Param.Name); b != nil {
				a.Fold(b)
			}
		}
		l.opt.restore()
	}
}

// basis is the subspace of the layer that a parameter belongs to, nil where it
// has none.
func (k *keeper) basis(param string) *project.Basis {
	for _, l := range k.linears {
		if slices.ContainsFunc(l.Params, func(p *kai.Param) bool { return p.Name == param }) {
			return k.subspace.Find(l.Name)
		}
	}
	return nil
}

// protection measures what the protection came to.
func (l *full) protection() *Protection {
	k := l.kept
	p := &Protection{Energy: map[string]float64{}, Layers: []LayerProtection{}, Rows: map[string]int{}}
	if k != nil {
		p.Rows = k.rows()
	}
	if k != nil && len(k.sample) > 0 {
		p.Drift, p.Cuts = l.drifted(), l.state.Cuts
	}
	layers := map[string]*LayerProtection{}
	if k != nil && k.subspace != nil {
		p.Subspace, p.Strength = k.subspace.SHA256(), l.Stage.Protect.Projection.Strength
		for _, b := range k.subspace.Bases {
			p.Layers = append(p.Layers, LayerProtection{Layer: b.Name, In: b.In, Rank: b.Rank, Kept: b.Kept})
			for i, s := range k.subspace.Suites {
				p.Energy[s] += b.KeptBy[i] / float64(len(k.subspace.Bases))
			}
		}
		for i := range p.Layers {
			layers[p.Layers[i].Layer] = &p.Layers[i]
		}
	}
	var norm, whole, leak, stored, served, apart, bound float64
	for _, c := range l.changes() {
		w, w0 := hostValues(l.Device, c.param.W), hostValues(l.Device, c.base)
		moved := make([]float32, len(w))
		for i := range w {
			moved[i] = w[i] - w0[i]
			// fl(W0+D) is off by at most half a unit in the last place of W.
			half := 0x1p-24 * math.Abs(float64(w[i]))
			bound += float64(half * half)
		}
		d := squares(c.d)
		norm, whole = norm+d, whole+squares(w0)
		if k == nil || k.subspace == nil {
			continue
		}
		b := k.basis(c.param.Name)
		if b == nil {
			continue
		}
		own := b.Leak(c.d, c.param.Shape[0])
		there := b.Leak(moved, c.param.Shape[0])
		m := squares(moved)
		leak, stored = leak+own*own*d, stored+d
		served, apart = served+there*there*m, apart+m
		for _, lin := range k.linears {
			if slices.Contains(lin.Params, c.param) {
				layers[lin.Name].Leak = max(layers[lin.Name].Leak, own)
			}
		}
	}
	ratio := func(a, b float64) float64 {
		if b == 0 {
			return 0
		}
		return math.Sqrt(a / b)
	}
	p.Norm, p.Leak, p.Served, p.Bound = ratio(norm, whole), ratio(leak, stored), ratio(served, apart), ratio(bound, apart)
	if r := l.state.Removed; r != nil && r.Steps > 0 {
		for name, sum := range r.Layers {
			if at := layers[name]; at != nil {
				at.Share = sum / float64(r.Steps)
			}
		}
		p.Share = r.mean()
	}
	return p
}

// change is one linear parameter's change from the base.
type change struct {
	param *kai.Param
	base  kernels.Mem
	d     []float32
}

// changes are those of the linear layers that are trained.
func (l *full) changes() []change {
	var list []change
	for _, m := range l.opt.masters {
		if !m.W.None() && len(m.Shape) == 2 && !m.Param.Grad.None() {
			list = append(list, change{m.Param, m.base, hostValues(l.Device, m.d)})
		}
	}
	for i, a := range l.opt.adapters {
		d := l.Device.Alloc(a.Param.W.Len)
		a.Delta(d)
		list = append(list, change{a.Param, l.opt.bases[i], hostValues(l.Device, d)})
	}
	return list
}

func squares(v []float32) float64 {
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	return sum
}

// removal adds up what projection took out of the gradients, step by step. It is
// part of the state, so that a resumed run says the same.
type removal struct {
	Steps  int                `json:"steps"`
	Layers map[string]float64 `json:"layers"` // of the shares, by layer
	Whole  float64            `json:"whole"`  // of the share over all projected layers
}

// step takes the last step's shares, and returns them by layer.
func (r *removal) step(o *optimizer, k *keeper) map[string]float64 {
	shares, out, all := map[string]float64{}, 0.0, 0.0
	for _, l := range k.linears {
		removed, square := 0.0, 0.0
		for i := range o.masters {
			if m := &o.masters[i]; m.off != nil && slices.Contains(l.Params, m.Param) {
				removed, square = removed+float64(m.share*m.square), square+m.square
			}
		}
		if square > 0 {
			shares[l.Name] = removed / square
			r.Layers[l.Name] += removed / square
		}
		out, all = out+removed, all+square
	}
	r.Steps++
	if all > 0 {
		r.Whole += out / all
	}
	return shares
}

// mean is the share over all projected layers, the mean over steps.
func (r *removal) mean() float64 {
	if r == nil || r.Steps == 0 {
		return 0
	}
	return r.Whole / float64(r.Steps)
}

// The codes of protection's warnings.
const (
	Covered = "covered" // every direction of some layers is protected
	Drifted = "drifted" // the bound on the drift cut the learning rate or ended training
	Leaky   = "leaky"   // a strength below 1, which slows the drift and bounds nothing
)
