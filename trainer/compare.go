package trainer

import (
	"slices"

	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/eval"
)

// Compare puts evaluations beside the base's, as the stage's suites are meant: it
// fills in what each suite was before, how it changed, what always giving the most
// common answer is worth, and which suites are protected or targets.
func (s Stage) Compare(b *data.Build, before Evaluated, after []SuiteResult) ([]SuiteResult, error) {
	list := slices.Clone(after)
	for i := range list {
		r := &list[i]
		set, ok := b.Find(r.Suite, record.RoleEvaluate)
		if !ok {
			continue
		}
		rows, err := set.Rows()
		if err != nil {
			return nil, err
		}
		r.Protected, r.Target = slices.Contains(s.Protect.Suites, r.Suite), slices.Contains(s.Evaluation.Suites, r.Suite)
		r.Common = eval.MostCommon(rows)
		for _, base := range before.Suites {
			if base.Dataset.ID == r.Dataset.ID {
				r.Before = base.Measures
				if c, ok := eval.ChangeIn(base.Items, r.Items); ok {
					r.Change = &c
				}
			}
		}
	}
	return list, nil
}
