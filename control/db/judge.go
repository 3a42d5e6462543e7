package db

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

// judge tests the next event of a run against what the fold cannot see: other
// runs and the bytes of artifacts. It changes nothing.
func (b *batch) judge(body event.Body) error {
	switch body.(type) {
	case event.EvalStarted, event.EvalCompleted, event.GateEvaluated:
		if b.fold.View().Ended != nil {
			return nil // the fold refuses whatever follows the end
		}
	}
	switch e := body.(type) {
	case event.EvalStarted:
		var run string
		held, err := b.tx.row("select run from evaluation where id = ?", []any{e.Evaluation}, &run)
		if err != nil {
			return err
		}
		if held && run != b.run {
			return api.Refuse(api.Exists, "evaluation %s is another run's", e.Evaluation)
		}
	case event.EvalCompleted:
		return b.judgeEnd(e)
	case event.GateEvaluated:
		return b.judgeGate(e)
	}
	return nil
}

// judgeEnd holds an evaluation's artifacts to the purpose of what it evaluated
// (HIP-1334 §3.3), so that evaluation data do not become training data by way of
// their predictions, and scores a sealed one.
func (b *batch) judgeEnd(e event.EvalCompleted) error {
	for _, ev := range b.fold.Evaluations() {
		if ev.ID != e.Evaluation || ev.Ended != nil {
			continue
		}
		for _, sha := range []*canon.SHA256{e.PredictionsSHA256, e.ItemsSHA256} {
			if sha == nil {
				continue
			}
			a, ok, err := b.tx.artifact(*sha)
			if err != nil {
				return err
			}
			if ok && a.Purpose != ev.Purpose {
				return api.Refuse(api.PurposeRefused, "artifact %s has purpose %s, but dataset %s, which it was made over, is %s",
					a.SHA256, a.Purpose, ev.Dataset, ev.Purpose)
			}
		}
		if ev.Purpose == record.SealedEval {
			var err error
			b.scored, err = b.score(e, ev)
			return err
		}
	}
	return nil
}

// judgeGate evaluates the gate of a GATE_EVALUATED from the stored evaluations and
// items, and refuses a verdict that differs in any rule's pass (HIP-1334 §9.4).
func (b *batch) judgeGate(e event.GateEvaluated) error {
	g, ok, err := b.tx.gateSpec(e.GateSpecHash)
	if err != nil || !ok {
		return err // an unknown gate is the fold's to refuse
	}
	own, err := b.evaluations()
	if err != nil {
		return err
	}
	subject, err := b.evidence(g, own)
	if err != nil {
		return err
	}
	var baseline []gate.Evaluation
	if g.Baseline != nil {
		held, err := b.tx.evaluationsOf(*g.Baseline)
		if *g.Baseline == b.run {
			held = own // the store lags behind the batch
		}
		if err != nil {
			return err
		}
		if baseline, err = b.evidence(g, held); err != nil {
			return err
		}
	}
	return compareVerdicts(gate.Verdict(e), g.Evaluate(subject, baseline))
}

// compareVerdicts refuses a verdict that the server's own does not confirm.
func compareVerdicts(theirs, own gate.Verdict) error {
	if len(theirs.Rules) != len(own.Rules) {
		return api.Refuse(api.GateDisagrees, "the event judges %d rules and the gate has %d", len(theirs.Rules), len(own.Rules))
	}
	for i, r := range own.Rules {
		switch t := theirs.Rules[i]; {
		case t.Rule != r.Rule:
			return api.Refuse(api.GateDisagrees, "the event's result %d is of rule %d; results stand in the order of the rules", i, t.Rule)
		case t.Pass != r.Pass:
			return api.Refuse(api.GateDisagrees, "rule %d: the event says pass %t, the stored evaluations give %s", i, t.Pass, describe(r))
		}
	}
	if theirs.Verdict != own.Verdict {
		return api.Refuse(api.GateDisagrees, "the event's verdict is %s, the stored evaluations give %s", theirs.Verdict, own.Verdict)
	}
	return nil
}

func describe(r gate.RuleResult) string {
	text := fmt.Sprintf("pass %t", r.Pass)
	if r.Reason != nil {
		return text + " (" + string(*r.Reason) + ")"
	}
	if r.Value != nil {
		text += fmt.Sprintf(" with value %v", *r.Value)
	}
	if r.Baseline != nil {
		text += fmt.Sprintf(" against %v", *r.Baseline)
	}
	return text
}

// evaluationsOf reads a run's evaluations in EVAL_STARTED order.
func (t *tx) evaluationsOf(run string) ([]event.Evaluation, error) {
	bodies, err := t.bodies("select body from evaluation where run = ? order by seq", run)
	if err != nil {
		return nil, err
	}
	out := make([]event.Evaluation, len(bodies))
	for i, body := range bodies {
		if err := decode(body, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// evidence is what a gate reads of evaluations: those on the datasets of its
// rules, with their items.
func (b *batch) evidence(g gate.Gate, evaluations []event.Evaluation) ([]gate.Evaluation, error) {
	wanted := make(map[canon.SHA256]bool)
	for _, r := range g.Rules {
		wanted[r.DatasetSHA256] = true
	}
	var out []gate.Evaluation
	for _, ev := range evaluations {
		if !wanted[ev.DatasetSHA256] {
			continue
		}
		e := gate.Evaluation{
			Dataset: ev.Dataset, DatasetSHA256: ev.DatasetSHA256,
			Complete: ev.Completion == event.Complete, Measures: ev.Measures,
		}
		if ev.ItemsSHA256 != nil {
			var err error
			if e.Items, err = readStored(b, "items", *ev.ItemsSHA256, gate.ParseItems); err != nil {
				return nil, err
			}
		}
		out = append(out, e)
	}
	return out, nil
}

// maxEvidence bounds the bytes of an artifact that the server itself reads to
// judge or score: some two million items.
const maxEvidence = 256 << 20

// readStored parses a stored artifact. It is for the server's own use: sealed
// bytes are read too.
func readStored[T any](b *batch, what string, sha canon.SHA256, parse func(io.Reader) (T, error)) (parsed T, err error) {
	a, ok, err := b.tx.artifact(sha)
	if err != nil {
		return parsed, err
	}
	if !ok || a.State != record.Stored {
		return parsed, api.Refuse(api.NotStored, "%s artifact %s is not stored: send it before the event that rests on it", what, sha)
	}
	if a.Size > maxEvidence {
		return parsed, api.Refuse(api.Invalid, "%s artifact %s has %d bytes; the server reads at most %d to judge by: evaluate fewer rows", what, sha, a.Size, maxEvidence)
	}
	content, err := os.ReadFile(b.org.artifactPath(string(sha)))
	if err != nil {
		return parsed, fmt.Errorf("reading artifact %s: %w", sha, err)
	}
	if parsed, err = parse(bytes.NewReader(content)); err != nil {
		return parsed, api.Refuse(api.Invalid, "%s artifact %s: %v", what, sha, err)
	}
	return parsed, nil
}
