package eval

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
)

// ErrNotFinite is a probability or a logit that is NaN or infinite: the model's
// weights are not usable. The error says of which question.
var ErrNotFinite = errors.New("not finite")

// Result is a model's answers to one dataset.
type Result struct {
	Predictions []gate.Prediction // one a question, as asked
	Items       []gate.Item       // one a question that has a target
	Measures    []gate.Measure    // accuracy, nll, brier and ece of Items

	Rows    int    // states read
	Cut     Cut    // rows whose state did not fit
	Tokens  uint64 // context tokens read
	Answers int    // distinct answers given, over all questions of the dataset
}

// Cut is the rows whose state did not fit, of which the model read the beginning.
type Cut struct {
	Rows  int
	Items []string // the ids of the first few
}

// Add counts a row. One that is repeated is named once.
func (c *Cut) Add(item string) {
	c.Rows++
	if len(c.Items) < 3 && !slices.Contains(c.Items, item) {
		c.Items = append(c.Items, item)
	}
}

// chunk is how many questions are answered between looks at the context: some
// seconds of a small machine.
const chunk = 64

// Evaluate answers every question of rows. progress, which may be nil, is told
// how many rows are done, at first none. When ctx is cancelled it returns ctx's error.
//
// The answer to a question is its most probable option, and its gold answer the
// one its target gives most; ties go to the smaller option text in both, so that
// neither depends on the order in which options are listed. Of a soft target
// brier takes all of it.
func Evaluate(ctx context.Context, m *kai.Model, rows []decision.Row, progress func(done int)) (Result, error) {
	var res Result
	p, enc := m.NewPredictor(), m.Encoder()
	answers := map[string]bool{}
	var asked []asking
	var inputs []kai.Input
	flush := func(done int) error {
		for i, pr := range p.Predict(enc.Texts, inputs) {
			if err := res.add(asked[i], inputs[i], pr, answers); err != nil {
				return err
			}
		}
		asked, inputs = asked[:0], inputs[:0]
		if progress != nil {
			progress(done)
		}
		return ctx.Err()
	}
	if progress != nil {
		progress(0)
	}
	for i, row := range rows {
		in, err := enc.Encode(row)
		if err != nil {
			return Result{}, fmt.Errorf("eval: item %s: %w", row.ID, err)
		}
		cut := false
		for j := range in {
			asked = append(asked, asking{&rows[i], &rows[i].Asked[j]})
			cut = cut || in[j].Cut > 0
			res.Tokens += uint64(len(in[j].Context))
		}
		inputs = append(inputs, in...)
		res.Rows++
		if cut {
			res.Cut.Add(row.ID)
		}
		if len(inputs) >= chunk || i == len(rows)-1 {
			if err := flush(i + 1); err != nil {
				return Result{}, err
			}
		}
	}
	res.Answers = len(answers)
	res.Measures = gate.Measures(res.Items)
	return res, nil
}

// asking is one question of a row.
type asking struct {
	row *decision.Row
	*decision.Asked
}

// add scores one prediction.
func (r *Result) add(q asking, in kai.Input, pr kai.Prediction, answers map[string]bool) error {
	for _, p := range pr.P {
		if math.IsNaN(p) || math.IsInf(p, 0) {
			return fmt.Errorf("eval: item %s, question %s: probability is %v: %w", q.row.ID, q.Key, p, ErrNotFinite)
		}
	}
	options := q.Question.Options
	top := kai.Top(in.Order, pr.P)
	r.Predictions = append(r.Predictions, gate.Prediction{
		Item: q.row.ID, Question: q.Key, Answer: options[top].Key, Probabilities: pr.P,
	})
	answers[q.Key+"\x00"+options[top].Key] = true
	if q.Target == nil {
		return nil // predicted, not scored
	}
	gold := kai.Top(in.Order, q.Target)
	correct, brier := top == gold, 0.0
	for _, i := range in.Order {
		brier += (pr.P[i] - q.Target[i]) * (pr.P[i] - q.Target[i])
	}
	r.Items = append(r.Items, gate.Item{
		Item: q.row.ID, Question: q.Key, Group: q.row.Example,
		Correct: &correct, PGold: &pr.P[gold], Confidence: &pr.P[top], Brier: &brier,
	})
	return nil
}

// Hold answers the questions of rows that have a target, without temperatures,
// for [FitTemperatures]. Questions that a readout answers are left out: a
// readout has a temperature of its own.
func Hold(ctx context.Context, m *kai.Model, rows []decision.Row) ([]Held, error) {
	p, enc := m.NewPredictor(), m.Encoder()
	var held []Held
	var inputs []kai.Input
	for i, row := range rows {
		in, err := enc.Encode(row)
		if err != nil {
			return nil, fmt.Errorf("eval: item %s: %w", row.ID, err)
		}
		for _, q := range in {
			if q.Target != nil && q.Readout == "" {
				inputs = append(inputs, q)
			}
		}
		if len(inputs) < chunk && i < len(rows)-1 {
			continue
		}
		for j, pr := range p.Predict(enc.Texts, inputs) {
			held = append(held, Held{pr.Bucket, pr.Logits, inputs[j].Target})
		}
		inputs = inputs[:0]
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return held, nil
}
