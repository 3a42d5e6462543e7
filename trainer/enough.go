package trainer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
)

// ErrRows is a build without rows that a run needs. The error says how many there
// are and what to do.
var ErrRows = errors.New("has no rows to")

// Enough refuses a build that the stage cannot be run on: without a row to train
// on, where it trains, or without one to evaluate, of the build and of each suite
// that its gate judges. The error is [ErrRows].
func (s Stage) Enough(b *data.Build) error {
	if s.From == "" && !slices.ContainsFunc(b.Role(record.RoleTrain), func(set *data.Set) bool { return !set.Kept() }) {
		return tooFew(b, "", "train on")
	}
	if err := EvaluateSuites(b, nil); err != nil {
		return err
	}
	if judged := slices.Concat(s.Protect.Suites, s.Evaluation.Suites); len(judged) > 0 {
		return EvaluateSuites(b, judged)
	}
	return nil
}

// EvaluateSuites checks that a build has rows to evaluate of the suites named,
// or any for nil. Its error is [ErrRows].
func EvaluateSuites(b *data.Build, suites []string) error {
	_, err := evaluateSets(b, suites)
	return err
}

// tooFew says what is missing of suite, or of all for "".
func tooFew(b *data.Build, suite, what string) error {
	count := func(role record.Role) (n uint64) {
		for _, set := range b.Role(role) {
			if (suite == "" || set.Suite == suite) && !set.Kept() {
				n += set.Dataset.Items
			}
		}
		return n
	}
	train, held, graded := count(record.RoleTrain), count(record.RoleSelect), count(record.RoleEvaluate)
	whose := ""
	if suite != "" {
		whose = "suite " + suite + " of "
	}
	return fmt.Errorf("trainer: %sbuild %s %w %s: of its %d rows %d are to train on, %d to select by and %d to evaluate, and at least 1, 0 and 1 are needed; "+
		"rows are divided by the hash of their state, equal states together: add rows with other states (30 are usually enough), "+
		"or a split column with train and test rows (--split, or a take's split; a stage file may also say fractions with a test part)",
		whose, b.Dir, ErrRows, what, train+held+graded, train, held, graded)
}
