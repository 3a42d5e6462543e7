package control_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

// TestSealedScoring has the server score a sealed_eval dataset: only for a run
// that was gated on it, once, from predictions, against the gold that only the
// server has (HIP-1334 §8.4). The gold of every item is its first option.
func TestSealedScoring(t *testing.T) {
	c := start(t).client("acme")
	ctx := t.Context()
	sha := c.sealed("test", record.SealedEval, 4)
	stored, err := c.PutGate(ctx, floorGate(sha, 0.75))
	c.must(err)
	elsewhere := floorGate(canon.Sum(nil), 0.75)
	elsewhere.Name = "elsewhere"
	unrelated, err := c.PutGate(ctx, elsewhere)
	c.must(err)

	var predictions []gate.Prediction
	for i, p := range []float64{0.9, 0.8, 0.3, 0.6} {
		predictions = append(predictions, gate.Prediction{Item: fmt.Sprintf("i%d", i), Question: "q", Answer: "a", Probabilities: []float64{p, 1 - p}})
	}
	lines, address, err := gate.PredictionsNDJSON(predictions)
	c.must(err)
	few, fewAddress, err := gate.PredictionsNDJSON(predictions[:2])
	c.must(err)

	// begin starts a run under a gate, up to the event that ends its evaluation.
	runs := 0
	begin := func(under *canon.Hash, kind event.EvaluatorKind) *log {
		runs++
		created := c.created()
		created.GateSpecHash = under
		l := &log{c: c, run: fmt.Sprintf("r%d", runs)}
		c.appends(l.run, l.next(created),
			l.next(event.DatasetAttached{Dataset: "test", DatasetSHA256: sha, Purpose: record.SealedEval, Role: record.RoleEvaluate}),
			l.next(event.EvalStarted{
				Evaluation: fmt.Sprintf("evl_%016x", runs), Subject: event.Subject{Kind: "system", Name: "kai", Version: "a7"},
				Dataset: "test", DatasetSHA256: sha,
				Evaluator: event.Evaluator{Kind: kind, Name: "server", Version: "1", DefinitionHash: canon.HashOf(nil)},
			}))
		return l
	}
	end := func(questions, answered uint64, predictions *canon.SHA256) event.EvalCompleted {
		return event.EvalCompleted{
			Evaluation: fmt.Sprintf("evl_%016x", runs), Questions: &questions, Answered: &answered,
			Measures: []gate.Measure{}, PredictionsSHA256: predictions,
		}
	}
	refusedEnd := func(what string, l *log, e event.EvalCompleted, code api.Code) {
		t.Helper()
		_, err := c.AppendEvents(ctx, l.run, []canon.Raw{l.at(4, e)})
		refused(t, what, err, code)
	}

	l := begin(&stored.GateSpecHash, event.Server)
	refusedEnd("predictions that were not sent", l, end(4, 4, &address), api.NotStored)
	if got := c.put(record.KindPredictions, record.SealedEval, string(lines)); got != address {
		t.Fatalf("predictions are held as %s, want %s", got, address)
	}
	c.put(record.KindPredictions, record.SealedEval, string(few))
	refusedEnd("no predictions", l, end(4, 4, nil), api.PurposeRefused)
	measured := end(4, 4, &address)
	measured.Measures = []gate.Measure{{Category: gate.All, Metric: gate.Accuracy, Value: 1}}
	refusedEnd("measures of its own", l, measured, api.PurposeRefused)
	refusedEnd("two predictions said to be all", l, end(2, 2, &fewAddress), api.Miscounted)
	refusedEnd("two predictions said to be four", l, end(4, 4, &fewAddress), api.Miscounted)
	refusedEnd("no gate", begin(nil, event.Server), end(4, 4, &address), api.NotGated)
	refusedEnd("a gate on another dataset", begin(&unrelated.GateSpecHash, event.Server), end(4, 4, &address), api.NotGated)
	refusedEnd("an evaluator of its own", begin(&stored.GateSpecHash, event.Harness), end(4, 4, &address), api.PurposeRefused)

	l = begin(&stored.GateSpecHash, event.Server)
	id := fmt.Sprintf("evl_%016x", runs)
	e := l.next(end(4, 4, &address))
	c.appends(l.run, e)
	if got, err := c.AppendEvents(ctx, l.run, []canon.Raw{e}); err != nil || got.Duplicate != 1 {
		t.Errorf("sent again: %+v, %v", got, err)
	}
	ev, err := c.Evaluation(ctx, id)
	c.must(err)
	if ev.Completion != event.Complete || ev.ItemsSHA256 == nil {
		t.Fatalf("the evaluation is %+v", ev)
	}
	got := make(map[string]float64)
	for _, m := range ev.Measures {
		got[m.Metric] = m.Value
	}
	// Three of four first options are the likelier; Brier is 2(1−p)² for two options.
	if want := 2 * (0.01 + 0.04 + 0.49 + 0.16) / 4; got[gate.Accuracy] != 0.75 || got[gate.Brier] < want-1e-12 || got[gate.Brier] > want+1e-12 {
		t.Errorf("measures %v, want accuracy 0.75 and brier %v", got, want)
	}
	_, err = c.Artifact(ctx, *ev.ItemsSHA256)
	refused(t, "the items of a sealed scoring", err, api.Sealed, 403)
	_, err = c.Artifact(ctx, address)
	refused(t, "the predictions of a sealed scoring", err, api.Sealed, 403)

	again := event.EvalStarted{
		Evaluation: "evl_ffffffffffffffff", Subject: event.Subject{Kind: "system", Name: "kai", Version: "a8"}, Dataset: "test", DatasetSHA256: sha,
		Evaluator: event.Evaluator{Kind: event.Server, Name: "server", Version: "1", DefinitionHash: canon.HashOf(nil)},
	}
	c.appends(l.run, l.next(again))
	second := end(4, 4, &address)
	second.Evaluation = again.Evaluation
	_, err = c.AppendEvents(ctx, l.run, []canon.Raw{l.next(second)})
	refused(t, "scored twice for one run", err, api.Exists)

	for hash, want := range map[canon.Hash]uint64{stored.GateSpecHash: 1, unrelated.GateSpecHash: 0} {
		if g, err := c.Gate(ctx, hash); err != nil || g.Scorings != want {
			t.Errorf("gate %s counts %d scorings, %v, want %d", hash, g.Scorings, err, want)
		}
	}
	log, err := c.Events(ctx, l.run, 3, 1)
	if err != nil || len(log) != 1 || !bytes.Equal(log[0], e) {
		t.Errorf("the event is not held as it was sent: %s, %v", log, err)
	}
}
