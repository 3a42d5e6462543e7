package trainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/eval"
	"github.com/hanzoai/link/trainer/kai"
)

// trainSet is the rows that train, as the model reads them, and their order.
type trainSet struct {
	rows   []decision.Row
	ids    []string      // item ids, by row
	inputs [][]kai.Input // by row, one a question
	texts  *kai.Texts
	plan   *data.Plan

	context []int           // context tokens, by row
	states  map[string]bool // every state that trains
	cut     eval.Cut        // rows whose state does not fit
	lnK     float64         // mean logarithm of the number of options: the loss of knowing nothing
}

// read reads and encodes the training rows and plans their order. It refuses
// data whose purpose does not admit training before anything else happens
// (HIP-1334 §3.5); data.OpenBuild has held every row to its own.
func (f *fit) read(ctx context.Context, enc *kai.Encoder) (trainSet, error) {
	s, stage := trainSet{states: map[string]bool{}}, f.Stage
	sets := slices.DeleteFunc(f.Build.Role(record.RoleTrain), (*data.Set).Kept)
	if len(sets) == 0 {
		return s, fmt.Errorf("trainer: the build %s has nothing to train on: every take has rows 0 or an evaluation's purpose", f.Build.Dir)
	}
	for _, set := range sets {
		if !set.Dataset.Purpose.Admits(record.RoleTrain) {
			return s, fmt.Errorf("trainer: dataset %s: %w: purpose %s does not admit training", set.Dataset.ID, data.ErrPurpose, set.Dataset.Purpose)
		}
	}
	var err error
	if s.rows, err = f.Build.Train(); err != nil {
		return s, err
	}
	if err := f.limits(); err != nil {
		return s, err
	}
	s.texts = enc.Texts
	groups, err := f.groups(s.rows)
	if err != nil {
		return s, err
	}
	sizes, sharing := make([]data.Size, len(s.rows)), map[string]int{}
	questions := 0
	for i, row := range s.rows {
		if i%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return s, err
			}
			f.report(Progress{Phase: Preparing, Done: i, Rows: len(s.rows)})
		}
		var in []kai.Input
		if i > 0 && row.ID == s.rows[i-1].ID && row.State == s.rows[i-1].State {
			in = s.inputs[i-1] // a row that its take repeats
		} else if in, err = enc.Encode(row); err != nil {
			return s, fmt.Errorf("trainer: item %s: %w", row.ID, err)
		}
		cut := false
		for _, q := range in {
			if q.Target == nil {
				return s, fmt.Errorf("trainer: item %s, question %s has no target: a row that trains needs one", row.ID, q.Key)
			}
			cut = cut || q.Cut > 0
			s.lnK += math.Log(float64(len(q.Options)))
			questions++
		}
		if cut {
			s.cut.Add(row.ID)
		}
		sizes[i] = sizeOf(in, s.texts, f.Model.Config.TopK, sharing)
		if sizes[i].Group = groups[row.Group]; sizes[i].Group != 0 {
			in = slices.Clone(in)
			for j := range in {
				in[j].Group = sizes[i].Group
			}
		}
		s.ids, s.inputs, s.context = append(s.ids, row.ID), append(s.inputs, in), append(s.context, sizes[i].Context)
		s.states[row.State] = true
	}
	s.lnK /= float64(max(questions, 1))
	s.plan, err = data.NewPlan(sizes, data.PlanConfig{
		Seed: stage.Seed, Epochs: stage.Epochs, BatchTokens: stage.BatchTokens, BatchRows: stage.BatchRows, MaxSteps: stage.Limit(),
		Budget: data.Budget{Context: stage.Budget.Ctx, Options: stage.Budget.Options, Head: stage.Budget.Head, Rows: stage.Budget.Rows},
	})
	return s, err
}

// groups numbers the groups of more than one row, from 1, where a term of the
// objective compares the rows of a group. Such a group is never divided.
func (f *fit) groups(rows []decision.Row) (map[string]int, error) {
	if !slices.ContainsFunc(f.Stage.Objective.Terms, func(t Term) bool { return t.Kind != kai.HardMargin }) {
		return nil, nil
	}
	count, number := map[string]int{}, map[string]int{}
	for i, r := range rows {
		if i > 0 && r.ID == rows[i-1].ID && r.State == rows[i-1].State {
			continue // a row that its take repeats
		}
		if count[r.Group]++; count[r.Group] == 2 {
			number[r.Group] = len(number) + 1
		}
	}
	if len(number) == 0 {
		return nil, errors.New("trainer: objective.terms: pairwise_margin and consistency compare the rows of a group, and no two training rows share one: name the column of their group in the take (group)")
	}
	return number, nil
}

// limits sets what the stage says about the model's reading.
func (f *fit) limits() error {
	s, m := f.Stage, f.Model
	m.Budget = kai.Budget{Context: s.Budget.Ctx, Options: s.Budget.Options, Head: s.Budget.Head, Rows: s.Budget.Rows}
	if s.MaxLen > m.Config.MaxLen {
		return fmt.Errorf("trainer: max_len: %d is over the %d tokens that the base reads", s.MaxLen, m.Config.MaxLen)
	}
	if s.MaxLen > 0 {
		m.Config.MaxLen = s.MaxLen
	}
	if s.TopK > 0 {
		m.Config.TopK = s.TopK
	}
	return nil
}

// sizeOf is what a row costs. Rows that ask of the same options share a number
// in sharing.
func sizeOf(in []kai.Input, texts *kai.Texts, topK int, sharing map[string]int) data.Size {
	var size data.Size
	var options []int
	for _, q := range in {
		size.Context += len(q.Context)
		size.Head += len(q.Context) + min(topK, len(q.Options))
		options = append(options, q.Options...)
	}
	slices.Sort(options)
	options = slices.Compact(options)
	key := make([]byte, 0, 4*len(options))
	for _, o := range options {
		size.Options += texts.Tokens(o)
		key = append(key, byte(o), byte(o>>8), byte(o>>16), byte(o>>24))
	}
	if sharing[string(key)] == 0 {
		sharing[string(key)] = len(sharing) + 1
	}
	size.Set = sharing[string(key)]
	return size
}

// targets are the context tokens of a step's target rows, counted from 1.
func (s trainSet) targets(step int) uint64 {
	var n uint64
	for _, r := range s.plan.Rows(step) {
		n += uint64(s.context[r])
	}
	return n
}

// beside are the preservation rows of a step.
func (f *fit) beside(step int) []int {
	if l, ok := f.learner.(*full); ok {
		return l.beside(step)
	}
	return nil
}

// tokens are the context tokens that a step reads, counted from 1.
func (f *fit) tokens(step int) uint64 {
	n := f.set.targets(step)
	for _, r := range f.beside(step) {
		n += uint64(f.kept.context[r])
	}
	return n
}

// total is the context tokens of the whole plan.
func (f *fit) total() uint64 {
	if f.whole == 0 {
		for step := 1; step <= f.set.plan.Steps(); step++ {
			f.whole += f.tokens(step)
		}
	}
	return f.whole
}

// batchIDsHash is the _hash of the ids of the rows that a step reads, in order:
// the target rows, then the preservation rows.
func (f *fit) batchIDsHash(step int) (canon.Hash, error) {
	beside := f.beside(step)
	if beside == nil {
		return f.set.plan.BatchIDsHash(step, f.set.ids)
	}
	var ids []string
	for _, r := range f.set.plan.Rows(step) {
		ids = append(ids, f.set.ids[r])
	}
	for _, r := range beside {
		ids = append(ids, f.kept.ids[r])
	}
	return canon.Of(ids)
}

// planJSON is the plan artifact. The preservation rows of a step follow from
// their ids in order, the seed and the steps' target rows.
func (f *fit) planJSON() ([]byte, error) {
	plan, err := f.set.plan.JSON(f.set.ids)
	if err != nil || f.beside(1) == nil {
		return plan, err
	}
	items, err := canon.Of(f.kept.ids)
	if err != nil {
		return nil, err
	}
	type preserve struct {
		Order     string     `json:"order"`
		Seed      uint64     `json:"seed"`
		Rows      int        `json:"rows"`
		ItemsHash canon.Hash `json:"items_hash"`
	}
	return canon.Marshal(struct {
		Plan     canon.Raw `json:"plan"`
		Preserve preserve  `json:"preserve"`
	}{plan, preserve{"cycle:feistel8-splitmix64", f.Stage.Seed ^ keepSeed, len(f.kept.ids), items}})
}

// asked are the distinct questions of the rows, by key; of one key's questions
// the last.
func (s trainSet) asked() []decision.Asked {
	byKey := map[string]decision.Asked{}
	for _, row := range s.rows {
		for _, a := range row.Asked {
			byKey[a.Key] = a
		}
	}
	var list []decision.Asked
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		list = append(list, byKey[key])
	}
	return list
}
