package trainer

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

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
	total   uint64          // context tokens of the whole plan
	states  map[string]bool // every state that trains
	cut     eval.Cut        // rows whose state does not fit
	lnK     float64         // mean logarithm of the number of options: the loss of knowing nothing
}

// read reads and encodes the training rows and plans their order. It refuses
// data whose purpose does not admit training before anything else happens
// (HIP-1334 §3.5); data.OpenBuild has held every row to its own.
func (f *fit) read(ctx context.Context) (trainSet, error) {
	s, stage := trainSet{states: map[string]bool{}}, f.Stage
	sets := f.Build.Role(record.RoleTrain)
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
	enc := f.Model.Encoder()
	s.texts = enc.Texts
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
		s.ids, s.inputs, s.context = append(s.ids, row.ID), append(s.inputs, in), append(s.context, sizes[i].Context)
		s.states[row.State] = true
	}
	s.lnK /= float64(max(questions, 1))
	s.plan, err = data.NewPlan(sizes, data.PlanConfig{
		Seed: stage.Seed, Epochs: stage.Epochs, BatchTokens: stage.BatchTokens, BatchRows: stage.BatchRows, MaxSteps: stage.Limit(),
		Budget: data.Budget{Context: stage.Budget.Ctx, Options: stage.Budget.Options, Head: stage.Budget.Head, Rows: stage.Budget.Rows},
	})
	if err != nil {
		return s, err
	}
	for step := 1; step <= s.plan.Steps(); step++ {
		s.total += s.tokens(step)
	}
	return s, nil
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

// tokens are the context tokens of a step, counted from 1.
func (s trainSet) tokens(step int) uint64 {
	var n uint64
	for _, r := range s.plan.Rows(step) {
		n += uint64(s.context[r])
	}
	return n
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
