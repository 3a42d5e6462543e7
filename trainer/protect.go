package trainer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/project"
)

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

// projectors are the subspace on the device, by parameter, of the layers that learn.
// It warns of those in which nothing is left to train, and fails when that is every
// one.
func (f *fit) projectors(k *keeper, learns func(name string) bool) (map[string]*project.Projector, error) {
	if k == nil || k.subspace == nil {
		return nil, nil
	}
	off, layers := map[string]*project.Projector{}, 0
	var covered []string
	for _, l := range k.linears {
		if !slices.ContainsFunc(l.Params, func(p *kai.Param) bool { return learns(p.Name) }) {
			continue
		}
		layers++
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
	if layers > 0 && len(covered) == layers {
		return nil, fmt.Errorf("trainer: the protected directions are all directions of every layer that learns: there is nothing left to train; lower protect.projection.cap or energy, or protect fewer suites")
	}
	if len(covered) > 0 {
		f.warn(Warning{Code: Covered, Text: fmt.Sprintf("there is nothing left to train in %d of %d layers, all of whose directions are protected: %s",
			len(covered), layers, strings.Join(covered, ", "))})
	}
	return off, nil
}

// layerOf is the layer whose weight, or a part of it, is the parameter of that name;
// nil where it is no linear layer's.
func layerOf(linears []kai.Linear, param string) *kai.Linear {
	i := slices.IndexFunc(linears, func(l kai.Linear) bool {
		return slices.ContainsFunc(l.Params, func(p *kai.Param) bool { return p.Name == param })
	})
	if i < 0 {
		return nil
	}
	return &linears[i]
}

// basis is the subspace of the layer that a parameter belongs to, nil where it
// has none.
func (k *keeper) basis(param string) *project.Basis {
	if l := layerOf(k.linears, param); l != nil && k.subspace != nil {
		return k.subspace.Find(l.Name)
	}
	return nil
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

// The codes of protection's warnings.
const (
	Covered  = "covered"  // every direction of some layers is protected
	Drifted  = "drifted"  // the bound on the drift cut the learning rate or ended training
	Unjudged = "unjudged" // suites are protected and no budget judges them
	Leaky    = "leaky"    // a strength below 1, which slows the drift and bounds nothing
)
