package trainer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/eval"
	"github.com/hanzoai/link/trainer/kai"
)

// full trains every parameter that the stage does not freeze.
type full struct {
	*fit
	selects []decision.Row // rows held out for looking and for temperatures
}

func newFull(f *fit) (*full, error) {
	if list := f.Model.Readouts(); len(list) > 0 {
		return nil, fmt.Errorf("trainer: the base has a readout, %s, which holds for its weights as they are: start from the base without readouts/, or use adaptation readout", list[0].Name)
	}
	frozen := f.Model.Frozen
	if prefixes := f.Stage.Frozen; prefixes != nil {
		frozen = func(name string) bool {
			return slices.ContainsFunc(*prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
		}
	}
	f.Model.Train(frozen)
	f.opt = newOptimizer(f.Device, f.Model.Params(), f.Stage.WeightDecay, f.Stage.Clip)
	l := &full{fit: f}
	for _, s := range f.Build.Role(record.RoleSelect) {
		rows, err := s.Rows()
		if err != nil {
			return nil, err
		}
		l.selects = append(l.selects, rows...)
	}
	return l, nil
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
	s := l.Model.Step(l.set.texts, micro)
	return s.Total, s.CrossEntropy
}

// after looks at the select rows where the stage says so. It is for a person to
// see and changes nothing.
func (l *full) after(ctx context.Context, step int) (done bool, err error) {
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

func (l *full) extra() []tensor { return nil }

// finish fits the temperatures on the select rows. A bucket that they do not
// reach keeps what the base had.
func (l *full) finish(ctx context.Context) error {
	if len(l.selects) == 0 {
		l.warn(noHeldOut)
		return nil
	}
	l.report(Progress{Phase: Calibrating, Rows: len(l.selects)})
	var err error
	l.res.Calibration, err = eval.Calibrate(ctx, l.Model, l.selects)
	return err
}
