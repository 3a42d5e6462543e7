package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/adapter"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/eval"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/project"
)

// full trains the model's own parameters: every one that the stage does not
// freeze, or as the products of an adapter's factors.
type full struct {
	*fit
	objective kai.Objective
	selects   []decision.Row // rows held out for looking and for temperatures
	starts    []int          // target rows read before each step, counted from 1
}

func newFull(f *fit) (*full, error) {
	if list := f.Model.Readouts(); len(list) > 0 {
		return nil, fmt.Errorf("trainer: the base has a readout, %s, which holds for its weights as they are: start from the base without readouts/, or use adaptation readout", list[0].Name)
	}
	l := &full{fit: f}
	for _, t := range f.Stage.Objective.Terms {
		l.objective.Terms = append(l.objective.Terms, kai.Term(t))
	}
	if d := f.Stage.Protect.Distillation; d != nil {
		l.objective.Distillation = d.Weight
	}
	learns, err := f.Stage.learns(f.Model)
	if err != nil {
		return nil, err
	}
	off, err := f.projectors(f.kept, learns)
	if err != nil {
		return nil, err
	}
	f.Model.Train(func(name string) bool { return !learns(name) })
	if f.Stage.Mode() == LoRA {
		list, err := l.adapters(off)
		if err != nil {
			return nil, err
		}
		f.opt = newOptimizer(f.Device, nil, list, f.Stage.WeightDecay, f.Stage.Clip)
	} else {
		f.opt = newOptimizer(f.Device, f.Model.Params(), nil, f.Stage.WeightDecay, f.Stage.Clip)
		if off != nil {
			f.opt.protect(off, f.Stage.Protect.Projection.Strength, f.GradientOnly)
		}
	}
	if len(f.opt.masters) == 0 {
		return nil, errors.New("trainer: frozen: nothing is left to train")
	}
	for _, s := range f.Build.Role(record.RoleSelect) {
		rows, err := s.Rows()
		if err != nil {
			return nil, err
		}
		l.selects = append(l.selects, rows...)
	}
	l.starts = make([]int, f.set.plan.Steps()+2)
	for step := 1; step <= f.set.plan.Steps(); step++ {
		l.starts[step+1] = l.starts[step] + len(f.set.plan.Rows(step))
	}
	return l, nil
}

// learns reports which parameters of m training moves, by name: what an adapter
// writes, or else all that are not frozen. Beside a subspace they are linear layers.
func (s Stage) learns(m *kai.Model) (func(name string) bool, error) {
	if s.Mode() == LoRA {
		targets, err := s.targets(m)
		return func(name string) bool {
			return slices.ContainsFunc(targets, func(p *kai.Param) bool { return p.Name == name })
		}, err
	}
	frozen, linears := m.Frozen, m.Linears()
	if s.Frozen != nil {
		frozen = func(name string) bool {
			return slices.ContainsFunc(*s.Frozen, func(p string) bool { return strings.HasPrefix(name, p) })
		}
	}
	return func(name string) bool {
		return !frozen(name) && (s.Protect.Projection == nil || layerOf(linears, name) != nil)
	}, nil
}

// adapters are one for every target. Their input side is projected, so that at
// λ = 1 no optimizer can write anything into the subspace.
func (l *full) adapters(off map[string]*project.Projector) ([]*adapter.LoRA, error) {
	targets, err := l.Stage.targets(l.Model)
	var list []*adapter.LoRA
	for _, p := range targets {
		list = append(list, adapter.New(l.Device, p, l.Stage.adapter(), off[p.Name], l.Stage.Seed))
	}
	return list, err
}

func (l *full) gradient(step int) (loss, cross float64) {
	micro := make([][]kai.Input, 0, 8)
	for _, rows := range l.set.plan.Micro(step) {
		var batch []kai.Input
		for _, r := range rows {
			batch = append(batch, l.set.inputs[r]...)
		}
		micro = append(micro, batch)
	}
	if l.objective.Distillation > 0 {
		var inputs []kai.Input
		for _, r := range l.beside(step) {
			inputs = append(inputs, l.kept.inputs[r]...)
		}
		micro = append(micro, l.Model.Budget.Cut(inputs, l.Model.Config.TopK)...)
	}
	s := l.Model.Step(l.set.texts, micro, l.objective)
	for _, a := range l.opt.adapters {
		a.Backward()
	}
	return s.Total, s.CrossEntropy
}

// beside are the preservation rows of a step: as many as it has target rows.
func (l *full) beside(step int) []int {
	if l.objective.Distillation == 0 {
		return nil
	}
	return l.kept.batch(l.starts[step], l.starts[step+1]-l.starts[step])
}

// after looks at the select rows where the stage says so, which is for a person to
// see and changes nothing, and at the drift.
func (l *full) after(ctx context.Context, step int) (done bool, err error) {
	if done = l.drift(step); done {
		return true, nil
	}
	every := l.Stage.EvalEvery
	if every == 0 || step%every != 0 || len(l.selects) == 0 {
		return false, nil
	}
	rows := l.selects
	if n := l.Stage.EvalRows; n > 0 && n < len(rows) {
		rows = rows[:n]
	}
	// A cancelled run finishes its step, and this is a part of it.
	r, err := eval.Evaluate(context.WithoutCancel(ctx), l.Model, rows, nil)
	if err != nil {
		return false, fmt.Errorf("step %d, looking at the select rows: %w", step, err)
	}
	l.last.SelectNLL, _ = gate.Metric(gate.NLL, r.Items)
	return false, nil
}

// updated notes what projection took out of a step. Metrics stand beside the log,
// once a step.
func (l *full) updated(step int) error {
	if l.kept == nil || l.kept.subspace == nil {
		return nil
	}
	shares := l.state.Removed.step(l.opt, l.kept)
	l.last.Share = l.state.Removed.mean()
	if len(shares) == 0 { // an adapter's factors are not projected: what they write is
		return nil
	}
	return l.rec.Metric(struct {
		Step  int                `json:"step"`
		Share map[string]float64 `json:"share"`
	}{step, shares})
}

func (l *full) extra() []tensor { return nil }

// finish projects the change once more, then fits the temperatures on the select
// rows. A bucket that they do not reach keeps what the base had.
func (l *full) finish(ctx context.Context) error {
	l.seal()
	l.res.Protection = l.protection()
	l.driftWarning()
	if p := l.Stage.Protect.Projection; p != nil && p.Strength < 1 && l.Stage.Protect.Budget == nil {
		l.warn(Warning{Code: Leaky, Text: fmt.Sprintf(
			"protect.projection.strength is %g: below 1 it slows the drift and bounds nothing, and there is no budget to judge it by", p.Strength)})
	}
	if p := l.Stage.Protect; len(p.Suites) > 0 && p.Budget == nil {
		l.warn(Warning{Code: Unjudged, Text: "protect.budget is left out, so nothing judges the protected suites: say how much they may lose"})
	}
	if len(l.selects) == 0 {
		l.warn(noHeldOut)
		return nil
	}
	l.report(Progress{Phase: Calibrating, Rows: len(l.selects)})
	var err error
	l.res.Calibration, err = eval.Calibrate(ctx, l.Model, l.selects)
	return err
}
