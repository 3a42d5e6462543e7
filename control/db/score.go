package db

import (
	"fmt"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

// A scoring is what the server found on a sealed_eval dataset: it replaces the
// measures and items that the event may not bring (HIP-1334 §8.4).
type scoring struct {
	Evaluation  string         `json:"evaluation"`
	Dataset     string         `json:"dataset"`
	Gate        canon.Hash     `json:"gate"` // under which it was made and is counted
	Predictions canon.SHA256   `json:"predictions"`
	Items       canon.SHA256   `json:"items"`
	Measures    []gate.Measure `json:"measures"`

	lines []byte // the items' bytes
}

// score scores an evaluation that ends on a sealed_eval dataset. It changes
// nothing; keepScoring writes it once the fold has taken the event.
func (b *batch) score(e event.EvalCompleted, ev event.Evaluation) (*scoring, error) {
	if ev.Evaluator.Kind != event.Server || e.PredictionsSHA256 == nil || e.ItemsSHA256 != nil || len(e.Measures) > 0 {
		return nil, api.Refuse(api.PurposeRefused, "dataset %s is sealed_eval: its evaluator is of kind server, and what ends it brings predictions, no items and no measures", ev.Dataset)
	}
	s := &scoring{Evaluation: ev.ID, Dataset: ev.Dataset, Predictions: *e.PredictionsSHA256}
	named := b.fold.View().GateSpecHash
	if named == nil {
		return nil, api.Refuse(api.NotGated, "dataset %s is sealed_eval: it is scored only for a run whose RUN_CREATED named a gate with a rule on it", ev.Dataset)
	}
	s.Gate = *named
	g, _, err := b.tx.gateSpec(s.Gate)
	if err != nil {
		return nil, err
	}
	ruled := false
	for _, r := range g.Rules {
		ruled = ruled || r.DatasetSHA256 == ev.DatasetSHA256
	}
	if !ruled {
		return nil, api.Refuse(api.NotGated, "dataset %s is sealed_eval, and gate %s has no rule on it", ev.Dataset, s.Gate)
	}
	var before string
	scored, err := b.tx.row("select evaluation from scoring where run = ? and dataset = ?", []any{b.run, ev.Dataset}, &before)
	if err != nil {
		return nil, err
	}
	if scored {
		return nil, api.Refuse(api.Exists, "dataset %s is sealed_eval and was scored for this run in %s; it is scored once", ev.Dataset, before)
	}
	predictions, err := readStored(b, "predictions", s.Predictions, gate.ParsePredictions)
	if err != nil {
		return nil, err
	}
	golds, questions, err := b.tx.golds(ev.Dataset)
	if err != nil {
		return nil, err
	}
	// A count that left questions out would make a gate believe in rows that the
	// runtime chose.
	if e.Questions == nil || e.Answered == nil || *e.Questions != questions || *e.Answered != uint64(len(predictions)) {
		return nil, api.Refuse(api.Miscounted, "the dataset has %d questions and the predictions answer %d; questions and answered say otherwise", questions, len(predictions))
	}
	items := make([]gate.Item, len(predictions))
	for i, p := range predictions {
		if items[i], err = scoreOne(p, golds[p.Item]); err != nil {
			return nil, api.Refuse(api.Invalid, "predictions %s: item %s, question %s: %v", s.Predictions, p.Item, p.Question, err)
		}
	}
	s.Measures = gate.Measures(items)
	s.lines, s.Items, err = gate.ItemsNDJSON(items)
	return s, err
}

// gold is what the store holds of one item's answers: for each question the
// probability of every option, in the question's order.
type gold struct {
	example string
	targets map[string][]float64
}

// golds reads the golds of a dataset and counts their questions.
func (t *tx) golds(dataset string) (map[string]gold, uint64, error) {
	golds := make(map[string]gold)
	var questions uint64
	err := t.eachItem(dataset, func(body []byte) error {
		var it record.DatasetItem
		if err := decode(body, &it); err != nil {
			return err
		}
		g := gold{example: it.CanonicalExampleID}
		if it.Payload.Gold != nil && string(it.Payload.Gold) != "null" {
			if err := canon.Unmarshal(it.Payload.Gold, &g.targets); err != nil {
				return api.Refuse(api.Invalid, "dataset %s: the gold of item %s does not give each question's options a probability, so the server cannot score it", dataset, it.ItemID)
			}
		}
		questions += uint64(len(g.targets))
		golds[it.ItemID] = g
		return nil
	})
	return golds, questions, err
}

// scoreOne compares a prediction with its gold as bench does (§8.2): both answer
// with their likeliest option, the first of equal ones.
func scoreOne(p gate.Prediction, g gold) (gate.Item, error) {
	target, ok := g.targets[p.Question]
	if !ok {
		return gate.Item{}, fmt.Errorf("the dataset asks no such question")
	}
	if len(p.Probabilities) != len(target) || len(target) == 0 {
		return gate.Item{}, fmt.Errorf("%d probabilities for %d options", len(p.Probabilities), len(target))
	}
	top, want, brier := likeliest(p.Probabilities), likeliest(target), 0.0
	for i, y := range target {
		brier += float64((p.Probabilities[i] - y) * (p.Probabilities[i] - y))
	}
	correct, confidence, given := top == want, p.Probabilities[top], p.Probabilities[want]
	return gate.Item{
		Item: p.Item, Question: p.Question, Group: g.example,
		Correct: &correct, PGold: &given, Confidence: &confidence, Brier: &brier,
	}, nil
}

func likeliest(p []float64) int {
	top := 0
	for i := range p {
		if p[i] > p[top] {
			top = i
		}
	}
	return top
}

// keepScoring stores a scoring and its items.
func (b *batch) keepScoring(s *scoring) error {
	if err := durable.WriteFile(b.org.artifactPath(string(s.Items)), s.lines, 0o644); err != nil {
		return err
	}
	a, err := b.tx.register(record.Artifact{
		SHA256: s.Items, Kind: record.KindItems, MediaType: record.MediaNDJSON, SchemaVersion: 1,
		Purpose: record.SealedEval, Size: uint64(len(s.lines)),
		Producer: record.Producer{Run: &b.run, Tool: "hanzo-cloud"}, Parents: []canon.SHA256{s.Predictions},
		State: record.Registered, Created: b.tx.received,
	})
	if err != nil {
		return err
	}
	if err := b.tx.markStored(&a); err != nil {
		return err
	}
	body, err := canon.Marshal(s)
	if err != nil {
		return err
	}
	return b.tx.exec("insert into scoring(run, dataset, evaluation, gate, body) values(?, ?, ?, ?, ?)",
		b.run, s.Dataset, s.Evaluation, string(s.Gate), body)
}

// evaluations are the fold's, with what the server scored.
func (b *batch) evaluations() ([]event.Evaluation, error) {
	evaluations := b.fold.Evaluations()
	for i := range evaluations {
		ev := &evaluations[i]
		if ev.Purpose != record.SealedEval || ev.Ended == nil {
			continue
		}
		var s scoring
		ok, err := b.tx.object(&s, "select body from scoring where evaluation = ?", ev.ID)
		if err != nil {
			return nil, err
		}
		if ok {
			ev.Measures, ev.ItemsSHA256 = s.Measures, &s.Items
		}
	}
	return evaluations, nil
}
