package trainer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/eval"
)

// Gate is the gate that the stage's budget and suites make: each protected suite
// holds its accuracy and calibration within the budget, and each target suite
// gains accuracy over the baseline run. ok is false when the stage asks for
// neither.
//
// The name ends in a hash of the rest: two runs of one stage have different
// baselines, hence different gates, and neither is a version of the other.
func (s Stage) Gate(b *data.Build, baseline string) (g gate.Gate, ok bool, err error) {
	rule := func(suite, metric string, higher bool, test gate.Test) error {
		set, found := b.Find(suite, record.RoleEvaluate)
		if !found {
			return tooFew(b, suite, "evaluate, so that no gate can judge it")
		}
		g.Rules = append(g.Rules, gate.Rule{
			Dataset: set.Dataset.ID, DatasetSHA256: *set.Dataset.SHA256,
			Category: gate.All, Metric: metric, Higher: higher, Test: test,
		})
		return nil
	}
	if t := s.Protect.Budget; t != nil {
		for _, suite := range s.Protect.Suites {
			if err := rule(suite, gate.Accuracy, true, gate.Test{Kind: gate.Hold, Tolerance: t.Accuracy}); err != nil {
				return g, false, err
			}
			if err := rule(suite, gate.ECE, false, gate.Test{Kind: gate.Hold, Tolerance: t.ECE}); err != nil {
				return g, false, err
			}
		}
	}
	for _, suite := range s.Evaluation.Suites {
		if err := rule(suite, gate.Accuracy, true, gate.Test{Kind: gate.Improve}); err != nil {
			return g, false, err
		}
	}
	if len(g.Rules) == 0 {
		return g, false, nil
	}
	g.Version, g.Baseline = 1, &baseline
	h, err := canon.Of(g)
	if err != nil {
		return g, false, err
	}
	name := s.Stage
	if len(name) > 51 {
		name = name[:51]
	}
	g.Name = name + "." + h.Hex()[:12]
	return g, true, g.Validate()
}

// gate stores the run's gate before the run is created, and returns its hash.
func (f *fit) gate() (*canon.Hash, error) {
	baseline := ""
	if f.Baseline != nil {
		baseline = f.Baseline.Run
	}
	g, ok, err := f.Stage.Gate(f.Build, baseline)
	if err != nil || !ok {
		return nil, err
	}
	if f.Baseline == nil {
		return nil, fmt.Errorf("trainer: the stage protects or targets suites, and the base was not evaluated: run Evaluate on it first")
	}
	h, err := f.rec.PutGate(g)
	f.res.Gate = &g
	return &h, err
}

// evaluate answers every evaluate set of the build with the trained model, and puts
// the answers beside the base's.
func (f *fit) evaluate(ctx context.Context) error {
	before := Evaluated{}
	if f.Baseline != nil {
		before = *f.Baseline
	}
	for _, s := range f.Build.Role(record.RoleEvaluate) {
		rows, err := s.Rows()
		if err != nil {
			return err
		}
		r, err := f.rec.evaluate(ctx, f.Model, s, rows, f.res.Checkpoint, f.Progress)
		if err != nil {
			return err
		}
		if r.Flips, err = eval.Flips(ctx, f.Model, rows, FlipRows); err != nil {
			return err
		}
		f.Stage.beside(&r, rows, before)
		seen := 0
		for _, row := range rows {
			if f.set.states[row.State] {
				seen++
			}
		}
		f.warn(suiteWarnings(r, seen, f.Stage.Protect.Budget)...)
		if err := f.keep(r); err != nil {
			return err
		}
		f.res.Evaluations = append(f.res.Evaluations, r)
	}
	return nil
}

// keep writes a suite's predictions and items into the run's folder, for a person
// to look at: the record has them by their addresses.
func (f *fit) keep(r SuiteResult) error {
	predictions, _, err := gate.PredictionsNDJSON(r.Predictions)
	if err != nil {
		return err
	}
	items, _, err := gate.ItemsNDJSON(r.Items)
	if err != nil {
		return err
	}
	dir := filepath.Join(f.Dir, "eval")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	for name, b := range map[string][]byte{"predictions": predictions, "items": items} {
		if err := durable.WriteFile(filepath.Join(dir, r.Suite+"."+name+".ndjson"), b, 0o666); err != nil {
			return fmt.Errorf("trainer: %w", err)
		}
	}
	return nil
}

// judge evaluates the run's gate, unless a resumed run has its verdict.
func (f *fit) judge() error {
	if f.res.Gate == nil {
		return nil
	}
	v := f.res.Gate.Evaluate(gateEvaluations(f.res.Evaluations), gateEvaluations(f.Baseline.Suites))
	f.res.Verdict = &v
	judged(f.res.Evaluations, *f.res.Gate, v)
	if slices.ContainsFunc(f.rec.Run().View().Gates, func(g event.GateEvaluated) bool { return g.GateSpecHash == v.GateSpecHash }) {
		return nil
	}
	_, err := f.rec.Append(event.GateEvaluated(v))
	return err
}
