package report

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/eval"
)

// A world is a spool and what its runs name.
type world struct {
	t *testing.T
	*spool.Spool
	environment, config canon.SHA256
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s, err := spool.Open(t.TempDir(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, Spool: s}
	w.environment = w.put(record.KindEnvironment, record.Train, []byte(`{"git_sha":""}`))
	w.config = w.put(record.KindConfig, record.Train, []byte(`{"stage":"test"}`))
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) put(kind record.Kind, purpose record.Purpose, content []byte) canon.SHA256 {
	w.t.Helper()
	a, err := w.Put(record.Artifact{
		Kind: kind, MediaType: kind.MediaType(), SchemaVersion: 1, Purpose: purpose,
		Producer: record.Producer{Tool: "test"}, Parents: []canon.SHA256{},
	}, bytes.NewReader(content))
	w.must(err)
	return a.SHA256
}

// dataset seals a dataset of one item, whose question is q.
func (w *world) dataset(id string, purpose record.Purpose) event.DatasetAttached {
	w.t.Helper()
	input := canon.Raw(`{"questions":{"q":{"criteria":["no","yes"],"instructions":"is it","type":"choice"}},"state":"` + id + `"}`)
	item, err := record.NewItem(id, purpose, "i0", "test:i0", input, input, canon.Raw(`{"q":[0,1]}`))
	w.must(err)
	lines, sha, err := record.ItemsNDJSON([]record.DatasetItem{item})
	w.must(err)
	w.put(record.KindDataset, purpose, lines)
	when := "2026-09-29T07:42:00Z"
	w.must(w.PutDataset(record.Dataset{
		ID: id, Purpose: purpose, Title: id, License: "unstated", Origin: "test", Parents: []string{},
		State: record.Sealed, Items: 1, SHA256: &sha, Created: when, Sealed: &when,
	}))
	role := record.RoleEvaluate
	if purpose == record.Train {
		role = record.RoleTrain
	}
	return event.DatasetAttached{Dataset: id, DatasetSHA256: sha, Purpose: purpose, Role: role}
}

// run records events after a RUN_CREATED under a gate, which may be nil, and
// returns its open log.
func (w *world) run(id string, g *gate.Gate, events ...event.Body) *spool.Log {
	w.t.Helper()
	created := event.RunCreated{
		Kind: event.KindTrain, EnvironmentArtifactSHA256: w.environment, ConfigSHA256: w.config,
		Parents: []canon.SHA256{}, Tags: []string{}, By: "test",
	}
	if g != nil {
		hash, err := w.PutGate(*g)
		w.must(err)
		created.GateSpecHash = &hash
	}
	log, err := w.Create(id)
	w.must(err)
	w.t.Cleanup(func() { log.Close() })
	for _, body := range append([]event.Body{created}, events...) {
		if _, err := log.Append(body); err != nil {
			w.t.Fatalf("run %s: %T: %v", id, body, err)
		}
	}
	return log
}

// evaluation is the events of a dataset's evaluation that was right or wrong.
func (w *world) evaluation(id string, on event.DatasetAttached, right bool) []event.Body {
	w.t.Helper()
	answer, p := "no", []float64{.8, .2}
	if right {
		answer, p = "yes", []float64{.2, .8}
	}
	predictions, _, err := gate.PredictionsNDJSON([]gate.Prediction{{Item: "i0", Question: "q", Answer: answer, Probabilities: p}})
	w.must(err)
	scored := item("i0", right)
	items, _, err := gate.ItemsNDJSON([]gate.Item{scored})
	w.must(err)
	one := uint64(1)
	predictionsSHA, itemsSHA := w.put(record.KindPredictions, on.Purpose, predictions), w.put(record.KindItems, on.Purpose, items)
	return []event.Body{
		on,
		event.EvalStarted{
			Evaluation: id, Subject: event.Subject{Kind: event.SubjectSystem, Name: "kai", Version: "1"}, Dataset: on.Dataset, DatasetSHA256: on.DatasetSHA256,
			Evaluator: event.Evaluator{Kind: event.Harness, Name: "test", Version: "1", DefinitionHash: canon.HashOf(nil)},
		},
		event.EvalCompleted{
			Evaluation: id, Questions: &one, Answered: &one, Measures: gate.Measures([]gate.Item{scored}),
			PredictionsSHA256: &predictionsSHA, ItemsSHA256: &itemsSHA,
		},
	}
}

func (w *world) read(run, baseline string) Report {
	w.t.Helper()
	r, err := Read(w.Spool, run, baseline)
	w.must(err)
	if page := render(w.t, r); strings.Contains(page, "NaN") {
		w.t.Error("the page says NaN")
	}
	return r
}

// TestRead reads a run back: its suites beside its baseline's, and each answer
// beside its gold.
func TestRead(t *testing.T) {
	w := newWorld(t)
	desk := w.dataset("desk.test.0123456789ab", record.EvalOnly)
	w.run("before", nil, w.evaluation("evl_0000000000000001", desk, false)...)
	log := w.run("after", nil, w.evaluation("evl_0000000000000002", desk, true)...)
	w.must(log.Metric(map[string]string{"text": "look here"}))
	w.must(log.Metric(map[string]string{"text": "look here"}))
	w.must(log.Metric(Cut{Evaluation: "evl_0000000000000002", Cut: 3}))
	w.must(log.Metric(Cut{Cut: 4}))

	r := w.read("after", "before")
	if len(r.Suites) != 1 {
		t.Fatalf("%d suites, want 1", len(r.Suites))
	}
	s := r.Suites[0]
	if s.Name != "desk" || len(s.Before) != 1 || *s.Before[0].Correct || !*s.After[0].Correct || s.Lo != nil || points(s) != "+100.0 [–]" {
		t.Errorf("the suite is %+v, want a change without an interval: its rows are one group", s)
	}
	if want := (eval.Common{Answer: "yes", Right: 1, Of: 1, Questions: 1, Golds: 1, Options: 2}); s.Common != want {
		t.Errorf("most common %+v, want %+v", s.Common, want)
	}
	if diff := cmp.Diff([]Answer{{Gold: "yes", Given: "yes"}}, s.Answers); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"look here"}, r.Notices); diff != "" {
		t.Errorf("notices (-want +got):\n%s", diff)
	}
	if s.Cut == nil || *s.Cut != 3 {
		t.Errorf("states cut: %v, want 3", s.Cut)
	}
	if want := (Fact{"training rows cut to fit", "4"}); !slices.Contains(r.Facts, want) {
		t.Errorf("the facts are %v, want %v", r.Facts, want)
	}
	if want := "taught desk: +100.0 points, 100.0 % right"; r.Sentence != want {
		t.Errorf("sentence %q, want %q", r.Sentence, want)
	}

	// Alone it has nothing before, and what was not counted is not called none.
	if s := w.read("before", "").Suites[0]; s.Before != nil || s.Lo != nil || s.Cut != nil {
		t.Errorf("without a baseline the suite is %+v", s)
	}
	if _, err := Read(w.Spool, "after", "nowhere"); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("a baseline that is not here: %v", err)
	}
	if _, err := Read(w.Spool, "nowhere", ""); err == nil {
		t.Error("a run that is not here was read")
	}
}

// TestReadRepeatedStep draws a step that a resumed run recorded again once.
func TestReadRepeatedStep(t *testing.T) {
	w := newWorld(t)
	step := event.StepRecorded{Step: 1, Tokens: 1, Loss: .5, LR: .1, BatchIDsHash: canon.HashOf(nil)}
	w.run("r", nil, w.dataset("rows", record.Train), event.TrainStarted{PlanSHA256: w.config, Batches: 1, Tokens: 1}, step, step)
	if r := w.read("r", ""); len(r.Steps) != 1 {
		t.Errorf("%d steps, want 1", len(r.Steps))
	}
}

// TestReadGate shows what a gate asks of each suite, and which rule failed.
func TestReadGate(t *testing.T) {
	w := newWorld(t)
	rule := func(on event.DatasetAttached, test gate.Test) gate.Rule {
		return gate.Rule{Dataset: on.Dataset, DatasetSHA256: on.DatasetSHA256, Category: gate.All, Metric: gate.Accuracy, Higher: true, Test: test}
	}
	learn, hold := w.dataset("learn.test.0123456789ab", record.EvalOnly), w.dataset("hold.test.0123456789ab", record.EvalOnly)
	other := w.dataset("learn.dev.0123456789ab", record.EvalOnly) // of the same suite, and no rule's
	before, both := "before", append(w.evaluation("evl_0000000000000001", learn, false), w.evaluation("evl_0000000000000002", hold, true)...)
	w.run(before, nil, both...)
	g := gate.Gate{Name: "g", Version: 1, Baseline: &before, Rules: []gate.Rule{
		rule(learn, gate.Test{Kind: gate.Improve}), rule(learn, gate.Test{Kind: gate.Hold, Tolerance: .1}), rule(hold, gate.Test{Kind: gate.Hold, Tolerance: .1}),
	}}
	hash, err := g.Hash()
	w.must(err)
	events := append(w.evaluation("evl_0000000000000003", learn, true), w.evaluation("evl_0000000000000004", hold, false)...)
	events = append(events, w.evaluation("evl_0000000000000005", other, true)...)
	events = append(events, event.GateEvaluated{GateSpecHash: hash, Verdict: gate.Fail, Rules: []gate.RuleResult{
		{Rule: 0, Pass: true}, {Rule: 1, Pass: true}, {Rule: 2},
	}})
	w.run("after", &g, events...)

	type line struct{ Name, Role, Rule, Verdict string }
	var got []line
	for _, s := range w.read("after", "").Suites {
		got = append(got, line{s.Name, s.Role, s.Rule, s.Verdict})
	}
	want := []line{
		{"learn", "target", "accuracy must improve; accuracy may fall by 0.1", "pass"},
		{"hold", "protected", "accuracy may fall by 0.1", "fail"},
		{"learn", "", "", ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("suites (-want +got):\n%s", diff)
	}
}
