package trainer

import (
	"io"
	"slices"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/eval"
)

// Compare puts evaluations beside the base's, as the stage's suites are meant: it
// fills in what each suite was before, how it changed and how far its answers went
// from the base's, what answering without looking is worth, which suites are
// protected or targets, and what the stage's gate says of each. The zero Stage
// protects and targets nothing. A suite that the build or the base's evaluations
// lack is left as far as it can be compared.
func (s Stage) Compare(b *data.Build, before Evaluated, after []SuiteResult) ([]SuiteResult, error) {
	list := slices.Clone(after)
	for i := range list {
		set, ok := b.Find(list[i].Suite, record.RoleEvaluate)
		if !ok {
			continue
		}
		rows, err := set.Rows()
		if err != nil {
			return nil, err
		}
		s.beside(&list[i], rows, before)
	}
	g, ok, err := s.Gate(b, before.Run)
	if err != nil || !ok {
		return list, err
	}
	judged(list, g, g.Evaluate(gateEvaluations(list), gateEvaluations(before.Suites)))
	return list, nil
}

// beside compares the answers to a suite's rows with the base's, but for the
// verdict.
func (s Stage) beside(r *SuiteResult, rows []decision.Row, before Evaluated) {
	r.Protected, r.Target = slices.Contains(s.Protect.Suites, r.Suite), slices.Contains(s.Evaluation.Suites, r.Suite)
	r.Common, r.Chance = eval.MostCommon(rows), eval.Chance(rows)
	for _, base := range before.Suites {
		if base.Dataset.ID != r.Dataset.ID {
			continue
		}
		r.Before = base.Measures
		if c, ok := eval.ChangeIn(base.Items, r.Items); ok {
			r.Change = &c
		}
		if nats, ok := eval.KL(base.Predictions, r.Predictions); ok {
			r.KL = &nats
		}
	}
}

// judged gives each suite the outcome of the gate's rules on it: fail where one
// fails.
func judged(list []SuiteResult, g gate.Gate, v gate.Verdict) {
	for i := range list {
		list[i].Verdict = ""
		for j, rule := range g.Rules {
			if rule.Dataset != list[i].Dataset.ID {
				continue
			}
			if !v.Rules[j].Pass {
				list[i].Verdict = gate.Fail
				break
			}
			list[i].Verdict = gate.Pass
		}
	}
}

// Recorded reads a run's complete evaluations back from its record, for [Stage.Compare].
// open opens the artifacts that the record names.
func Recorded(run string, r *event.Run, open func(canon.SHA256) (io.ReadCloser, error)) (Evaluated, error) {
	out := Evaluated{Run: run}
	for _, e := range r.Evaluations() {
		if e.Completion != event.Complete {
			continue
		}
		s := SuiteResult{Evaluation: e.ID, Dataset: record.Dataset{ID: e.Dataset, SHA256: &e.DatasetSHA256}}
		var err error
		if s.Result, err = readBack(e, open); err != nil {
			return out, err
		}
		out.Suites = append(out.Suites, s)
	}
	return out, nil
}
