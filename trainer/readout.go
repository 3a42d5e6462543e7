package trainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/eval"
	"github.com/hanzoai/link/trainer/kai"
)

// readout trains a small head for one question over the frozen base. The base
// reads each state once, before the first step; a step is then a few small
// products over features held in memory.
//
// After each epoch it asks the select rows, and keeps the weights of the best
// epoch by nll; patience epochs without a better one end training. Those weights
// are what is calibrated, saved and evaluated.
type readout struct {
	*fit
	head   *kai.Readout
	rows   []kai.Example // by row of the train set
	held   []kai.Example // the select rows
	best   []tensor      // the best epoch's changes, in the optimizer's order
	bucket string
}

func newReadout(ctx context.Context, f *fit) (*readout, error) {
	question, err := oneQuestion(f.set.rows)
	if err != nil {
		return nil, err
	}
	for _, r := range f.Model.Readouts() { // Attach would refuse it after the training
		if r.Name != f.Stage.Output.Name && r.Question.Hash() == question.Hash() {
			return nil, fmt.Errorf("trainer: the base's readout %s answers this question already: set output.name to %s to replace it", r.Name, r.Name)
		}
	}
	l := &readout{fit: f, bucket: kai.Bucket(question.Type, len(question.Options))}
	features := map[string][]float32{} // by state
	if l.rows, err = l.examples(ctx, f.set.rows, features); err != nil {
		return nil, err
	}
	for _, s := range f.Build.Role(record.RoleSelect) {
		rows, err := s.Rows()
		if err != nil {
			return nil, err
		}
		rows = slices.DeleteFunc(rows, func(r decision.Row) bool { return !asks(r, question) || r.Asked[0].Target == nil })
		held, err := l.examples(ctx, rows, features)
		if err != nil {
			return nil, err
		}
		l.held = append(l.held, held...)
	}
	if l.head, err = f.Model.NewReadout(f.Stage.Output.Name, question, f.Stage.Seed); err != nil {
		return nil, err
	}
	f.opt = newOptimizer(f.Device, l.head.Params(), nil, f.Stage.WeightDecay, f.Stage.Clip)
	for _, m := range f.opt.masters {
		l.best = append(l.best, tensor{"best/" + m.Name, m.Shape, f.Device.Alloc(m.d.Len)})
	}
	return l, nil
}

// oneQuestion is the question that every row asks.
func oneQuestion(rows []decision.Row) (decision.Question, error) {
	if len(rows) == 0 {
		return decision.Question{}, errors.New("trainer: there is no row to train on")
	}
	if n := len(rows[0].Asked); n != 1 {
		return decision.Question{}, fmt.Errorf("trainer: item %s asks %d questions: a readout answers one", rows[0].ID, n)
	}
	q := rows[0].Asked[0].Question
	for _, r := range rows {
		if !asks(r, q) {
			return q, fmt.Errorf("trainer: item %s does not ask what item %s asks (%q, the same options in the same order): a readout answers one question; train them apart, or use adaptation full", r.ID, rows[0].ID, q.Instructions)
		}
	}
	return q, nil
}

// asks reports whether a row asks q and nothing else.
func asks(r decision.Row, q decision.Question) bool {
	if len(r.Asked) != 1 {
		return false
	}
	a := r.Asked[0].Question
	return a.Type == q.Type && a.Instructions == q.Instructions && slices.Equal(a.Options, q.Options)
}

// examples reads the features of rows, of each state once, and tells how many
// rows have theirs.
func (l *readout) examples(ctx context.Context, rows []decision.Row, features map[string][]float32) ([]kai.Example, error) {
	p, enc := l.Model.NewPredictor(), l.Model.Encoder()
	const pack = 32 // states between looks at the context
	tell := func(done int) { l.report(Progress{Phase: Reading, Done: done, Rows: len(rows)}) }
	tell(0)
	var inputs []kai.Input
	var states []string
	for i, row := range rows {
		if _, ok := features[row.State]; !ok {
			in, err := enc.Encode(row)
			if err != nil {
				return nil, fmt.Errorf("trainer: item %s: %w", row.ID, err)
			}
			features[row.State] = nil
			inputs, states = append(inputs, in...), append(states, row.State)
		}
		if len(inputs) < pack && i < len(rows)-1 {
			continue
		}
		for j, f := range p.Features(inputs) {
			features[states[j]] = f
		}
		inputs, states = inputs[:0], states[:0]
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		tell(i + 1)
	}
	list := make([]kai.Example, len(rows))
	for i, row := range rows {
		asked := row.Asked[0]
		target := make([]float64, len(asked.Target)) // in text order, as a readout's logits are
		for j, o := range asked.Question.Sorted() {
			target[j] = asked.Target[o]
		}
		list[i] = kai.Example{Features: features[row.State], Target: target, Weight: 1}
	}
	return list, nil
}

func (l *readout) gradient(step int) (loss, cross float64) {
	var batch []kai.Example
	for _, r := range l.set.plan.Rows(step) {
		batch = append(batch, l.rows[r])
	}
	return l.head.Step(batch)
}

// after asks the select rows at the end of an epoch.
func (l *readout) after(_ context.Context, step int) (done bool, err error) {
	plan := l.set.plan
	if step < plan.Steps() && plan.Epoch(step+1) == plan.Epoch(step) {
		return false, nil
	}
	b := l.state.Best
	if len(l.held) > 0 {
		nll := eval.NLL(l.answers(), 1)
		if err := finite(step, "select nll", nll); err != nil {
			return false, err
		}
		l.last.SelectNLL = nll
		if b.Epoch > 0 && nll >= b.NLL {
			b.Since++
			return b.patient(l.Stage.Patience), nil
		}
		b.NLL = nll
	}
	b.Epoch, b.Since = plan.Epoch(step)+1, 0
	for i, m := range l.opt.masters {
		l.Device.Copy(l.best[i].mem, m.d)
	}
	return false, nil
}

// answers are the select rows' logits beside their targets.
func (l *readout) answers() []eval.Held {
	features := make([][]float32, len(l.held))
	for i, e := range l.held {
		features[i] = e.Features
	}
	held := make([]eval.Held, len(l.held))
	for i, z := range l.head.Logits(features) {
		held[i] = eval.Held{Bucket: l.bucket, Logits: z, Target: l.held[i].Target}
	}
	return held
}

func (l *readout) updated(int) error { return nil }

func (l *readout) extra() []tensor { return l.best }

// ended says after how many epochs training ended, and why.
func (l *readout) ended() string {
	b, last := l.state.Best, l.set.plan.Epoch(l.state.Step)+1
	if b.patient(l.Stage.Patience) {
		return fmt.Sprintf("stopped after epoch %d of %d: %d epochs without a better held-out loss", last, l.Stage.Epochs, b.Since)
	}
	if len(l.held) == 0 {
		return fmt.Sprintf("ended after epoch %d of %d, at the last planned step", last, l.Stage.Epochs)
	}
	return fmt.Sprintf("ended after epoch %d of %d, at the last planned step: epoch %d had the best held-out loss", last, l.Stage.Epochs, b.Epoch)
}

// finish goes back to the best epoch, fits its temperature and lets the model
// answer with it.
func (l *readout) finish(context.Context) error {
	l.res.Ended = l.ended()
	for i, m := range l.opt.masters {
		l.Device.Copy(m.d, l.best[i].mem)
	}
	l.opt.restore()
	if len(l.held) > 0 {
		c, err := eval.FitTemperatures("dev", l.answers())
		if err != nil {
			return err
		}
		l.res.Calibration = c
		l.head.Temperature = c.Buckets[l.bucket].Temperature
		b, err := canon.Marshal(c)
		if err != nil {
			return err
		}
		l.note("calibration", b)
	} else {
		l.warn(noHeldOut)
	}
	l.head.Provenance = maps.Clone(l.Model.Config.Provenance)
	return l.Model.Attach(l.head)
}
