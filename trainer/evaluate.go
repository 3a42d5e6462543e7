package trainer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/eval"
	"github.com/hanzoai/link/trainer/kai"
)

// EvalConfig is one run of [Evaluate].
type EvalConfig struct {
	Run      string
	Build    *data.Build // its evaluate sets are answered
	Suites   []string    // only these; nil: all
	Model    *kai.Model
	Subject  canon.SHA256 // the model's checkpoint artifact, held by the Recorder
	Device   kernels.Device
	Recorder Recorder
	Flips    int // rows of a suite that are asked in other orders of their options; 0: none

	By       string
	Job      string
	Tags     []string
	Progress func(Progress)
}

// Evaluated is a run of kind eval that has ended: what a gate calls its
// baseline.
type Evaluated struct {
	Run    string
	Suites []SuiteResult
}

// SuiteResult is a model's answers to one suite.
type SuiteResult struct {
	Suite      string
	Evaluation string // its id
	Dataset    record.Dataset
	Protected  bool // by the stage: it must hold
	Target     bool // by the stage: it must improve

	// Cut and Tokens are 0 where a resumed run read the answers back from its
	// record.
	eval.Result
	Flips eval.Flipped // answers that changed with the order of options; Asked 0: nobody looked

	// What follows stands beside a base's answers; [Stage.Compare] and [Fit] set it.
	Before  []gate.Measure // the base's, nil without a baseline
	Change  *eval.Change   // since the base's, nil without a baseline or gold answers
	KL      *float64       // mean KL(base‖model) over the questions, in nats; nil without a baseline
	Common  eval.Common    // always giving the most common answer
	Chance  float64        // accuracy of answering at random; NaN without gold answers
	Verdict gate.Outcome   // of the gate's rules on the suite, fail where one fails; "" where none judges it
}

// FlipRows is how many rows of a suite [Fit] asks in other orders of their options.
const FlipRows = 16

// Evaluate answers a build's evaluate sets as a run of its own, of kind eval, and
// records it. The base is evaluated so before it is trained. A run that has
// ended already is read back from its record; one that has begun is gone on with.
// ErrInterrupted leaves it open.
func Evaluate(ctx context.Context, c EvalConfig) (Evaluated, error) {
	rec := recorder{c.Recorder, c.Run, "bench eval"}
	sets, err := evaluateSets(c.Build, c.Suites)
	if err != nil {
		return Evaluated{}, err
	}
	env, err := Environment(c.Device)
	if err != nil {
		return Evaluated{}, err
	}
	environment, err := rec.putJSON(record.KindEnvironment, env)
	if err != nil {
		return Evaluated{}, err
	}
	config, err := rec.putJSON(record.KindConfig, struct {
		Subject   canon.SHA256    `json:"subject"`
		Suites    []string        `json:"suites"`
		Evaluator event.Evaluator `json:"evaluator"`
	}{c.Subject, suiteNames(sets), evaluator()})
	if err != nil {
		return Evaluated{}, err
	}
	if err := rec.create(event.RunCreated{
		Kind: event.KindEval, EnvironmentArtifactSHA256: environment, ConfigSHA256: config,
		Parents: []canon.SHA256{c.Subject}, Job: optional(c.Job), Tags: append([]string{}, c.Tags...), By: c.By,
	}); err != nil {
		return Evaluated{}, err
	}
	out := Evaluated{Run: c.Run}
	for _, s := range sets {
		if err := rec.attach(s, record.RoleEvaluate); err != nil {
			return Evaluated{}, err
		}
		rows, err := s.Rows()
		if err != nil {
			return Evaluated{}, err
		}
		r, err := rec.evaluate(ctx, c.Model, s, rows, c.Subject, c.Progress)
		if err != nil {
			return Evaluated{}, interrupted(err)
		}
		if r.Flips, err = eval.Flips(ctx, c.Model, rows, c.Flips); err != nil {
			return Evaluated{}, interrupted(err)
		}
		out.Suites = append(out.Suites, r)
	}
	if rec.Run().View().Ended != nil {
		return out, nil
	}
	_, err = rec.Append(event.RunCompleted{Status: event.Completed})
	return out, err
}

// evaluateSets are a build's evaluate sets of the suites named, all for nil.
func evaluateSets(b *data.Build, suites []string) ([]*data.Set, error) {
	var sets []*data.Set
	for _, s := range b.Role(record.RoleEvaluate) {
		if suites == nil || slices.Contains(suites, s.Suite) {
			sets = append(sets, s)
		}
	}
	for _, name := range suites {
		if _, ok := b.Find(name, record.RoleEvaluate); !ok {
			return nil, tooFew(b, name, "evaluate")
		}
	}
	if len(sets) == 0 {
		return nil, tooFew(b, "", "evaluate")
	}
	return sets, nil
}

func suiteNames(sets []*data.Set) []string {
	var names []string
	for _, s := range sets {
		names = append(names, s.Suite)
	}
	return names
}

// evaluator says what scores here. The definition is a number that changes with
// how answers are scored, so that two builds that score alike are one evaluator.
func evaluator() event.Evaluator {
	const definition = `{"evaluator":"hanzo link trainer/eval","scoring":1}`
	return event.Evaluator{
		Kind: event.Harness, Name: "trainer/eval", Version: Version(),
		DefinitionHash: canon.HashOf([]byte(definition)),
	}
}

// evaluate answers the rows of an attached set and records it, or reads back what
// a resumed run recorded.
func (r recorder) evaluate(ctx context.Context, m *kai.Model, s *data.Set, rows []decision.Row, subject canon.SHA256, progress func(Progress)) (SuiteResult, error) {
	res := SuiteResult{Suite: s.Suite, Dataset: s.Dataset}
	started := event.EvalStarted{
		Subject: event.Subject{Kind: event.SubjectArtifact, SHA256: subject},
		Dataset: s.Dataset.ID, DatasetSHA256: *s.Dataset.SHA256, Evaluator: evaluator(),
	}
	h, err := canon.Of([]string{r.run, string(subject), s.Dataset.ID})
	if err != nil {
		return res, err
	}
	started.Evaluation = "evl_" + h.Hex()[:16]
	res.Evaluation = started.Evaluation
	known := slices.IndexFunc(r.Run().Evaluations(), func(e event.Evaluation) bool { return e.ID == started.Evaluation })
	if known < 0 {
		if _, err := r.Append(started); err != nil {
			return res, err
		}
	} else if e := r.Run().Evaluations()[known]; e.Ended != nil {
		res.Result, err = readBack(e, r.OpenArtifact)
		return res, err
	}
	tell := func(done int) {
		if progress != nil {
			progress(Progress{Phase: Evaluating, Suite: s.Suite, Done: done, Rows: len(rows)})
		}
	}
	if res.Result, err = eval.Evaluate(ctx, m, rows, tell); err != nil {
		return res, fmt.Errorf("suite %s: %w", s.Suite, err)
	}
	return res, r.complete(res, subject)
}

// complete stores an evaluation's artifacts and appends EVAL_COMPLETED. Of a
// sealed set the server has the gold: only the predictions are sent.
func (r recorder) complete(res SuiteResult, subject canon.SHA256) error {
	purpose, parents := res.Dataset.Purpose, []canon.SHA256{*res.Dataset.SHA256, subject}
	predictions, psha, err := gate.PredictionsNDJSON(res.Predictions)
	if err != nil {
		return err
	}
	if _, err := r.Put(r.artifact(record.KindPredictions, purpose, parents...), bytes.NewReader(predictions)); err != nil {
		return err
	}
	asked := uint64(len(res.Predictions))
	done := event.EvalCompleted{
		Evaluation: res.Evaluation, Questions: &asked, Answered: &asked,
		Measures: []gate.Measure{}, PredictionsSHA256: &psha,
	}
	if purpose != record.SealedEval {
		items, isha, err := gate.ItemsNDJSON(res.Items)
		if err != nil {
			return err
		}
		if _, err := r.Put(r.artifact(record.KindItems, purpose, parents...), bytes.NewReader(items)); err != nil {
			return err
		}
		done.Measures, done.ItemsSHA256 = res.Measures, &isha
	}
	_, err = r.Append(done)
	return err
}

// readBack reads an evaluation's answers from the artifacts that its record names.
func readBack(e event.Evaluation, open func(canon.SHA256) (io.ReadCloser, error)) (eval.Result, error) {
	res := eval.Result{Measures: e.Measures}
	if e.PredictionsSHA256 != nil {
		f, err := open(*e.PredictionsSHA256)
		if err != nil {
			return res, err
		}
		defer f.Close()
		if res.Predictions, err = gate.ParsePredictions(f); err != nil {
			return res, err
		}
	}
	if e.ItemsSHA256 != nil {
		f, err := open(*e.ItemsSHA256)
		if err != nil {
			return res, err
		}
		defer f.Close()
		if res.Items, err = gate.ParseItems(f); err != nil {
			return res, err
		}
	}
	answers, rows := map[string]bool{}, map[string]bool{}
	for _, p := range res.Predictions {
		answers[p.Question+"\x00"+p.Answer], rows[p.Item] = true, true
	}
	res.Answers, res.Rows = len(answers), len(rows)
	return res, nil
}

// gateEvaluations are results as a gate reads them.
func gateEvaluations(list []SuiteResult) []gate.Evaluation {
	out := make([]gate.Evaluation, len(list))
	for i, s := range list {
		out[i] = gate.Evaluation{
			Dataset: s.Dataset.ID, DatasetSHA256: *s.Dataset.SHA256, Complete: true,
			Items: s.Items, Measures: s.Measures,
		}
	}
	return out
}
