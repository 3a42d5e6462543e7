package trainer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/eval"
	"github.com/hanzoai/link/trainer/kai"
)

// TestOptionOrder: listing the options in another order changes no bit of an
// answer, its probabilities or its score.
func TestOptionOrder(t *testing.T) {
	w := newWorld(t, nil)
	model, err := kai.Load(w.base, w.dev)
	if err != nil {
		t.Fatal(err)
	}
	set, _ := w.build.Find("colors", record.RoleEvaluate)
	rows, err := set.Rows()
	if err != nil {
		t.Fatal(err)
	}
	one, err := eval.Evaluate(t.Context(), model, rows, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rows {
		q := &rows[i].Asked[0]
		rows[i].Asked = []decision.Asked{*q}
		q = &rows[i].Asked[0]
		q.Question.Options = slices.Clone(q.Question.Options)
		q.Target = slices.Clone(r.Asked[0].Target)
		slices.Reverse(q.Question.Options)
		slices.Reverse(q.Target)
	}
	two, err := eval.Evaluate(t.Context(), model, rows, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(one.Items, two.Items); d != "" {
		t.Errorf("reversed options change the items:\n%s", d)
	}
	for i, p := range two.Predictions {
		slices.Reverse(p.Probabilities)
		if d := cmp.Diff(one.Predictions[i], p); d != "" {
			t.Errorf("reversed options change a prediction:\n%s", d)
		}
	}
}

// TestEvaluateResume kills the base's evaluation at every event and goes on: the
// log is that of a run that nobody killed.
func TestEvaluateResume(t *testing.T) {
	w := newWorld(t, nil)
	run := func(m *memory, ctx context.Context) (err error, dead bool) {
		defer func() {
			if p := recover(); p != nil {
				if p != any(killed{}) {
					panic(p)
				}
				dead = true
			}
		}()
		c := w.config(t, m, "")
		_, err = Evaluate(ctx, EvalConfig{Run: m.run, Build: w.build, Model: c.Model, Subject: c.Base, Device: w.dev, Recorder: m})
		return err, false
	}
	whole := newMemory("base")
	if err, _ := run(whole, t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := range whole.log {
		m := newMemory("base")
		m.before = func(event.Body) error {
			if len(m.log) == n {
				panic(killed{})
			}
			return nil
		}
		if err, dead := run(m, t.Context()); !dead {
			t.Fatalf("event %d: %v, want it killed", n, err)
		}
		m.before = nil
		if err, _ := run(m, t.Context()); err != nil {
			t.Fatalf("event %d: %v", n, err)
		}
		if d := cmp.Diff(whole.bodies(), m.bodies()); d != "" {
			t.Fatalf("event %d: the log differs:\n%s", n, d)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := newMemory("base")
	if err, _ := run(m, ctx); !errors.Is(err, ErrInterrupted) || m.fold.View().Ended != nil {
		t.Errorf("a cancelled evaluation = %v, ended %v; want it interrupted and open", err, m.fold.View().Ended)
	}
}

// TestBeside: a run's answers stand beside the base's, each suite has the outcome of
// its own rules, and the same is found again from the record alone.
func TestBeside(t *testing.T) {
	w := newWorld(t, func(stage map[string]any) {
		protected(stage)
		stage["protect"].(map[string]any)["budget"] = map[string]any{"accuracy": 0.5, "ece": 0.0}
	})
	m, c := w.start(t)
	r, err := Fit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Evaluations) != 2 {
		t.Fatalf("%d suites were evaluated, want 2", len(r.Evaluations))
	}
	for _, s := range r.Evaluations {
		want := gate.Pass
		for i, rule := range r.Gate.Rules {
			if rule.Dataset == s.Dataset.ID && !r.Verdict.Rules[i].Pass {
				want = gate.Fail
			}
		}
		if s.Verdict != want {
			t.Errorf("%s: verdict %q, its rules make it %q", s.Suite, s.Verdict, want)
		}
		if s.Protected == s.Target || s.Protected != (s.Suite == "animals") {
			t.Errorf("%s: protected %t, target %t", s.Suite, s.Protected, s.Target)
		}
		chance := map[string]float64{"colors": 1. / 3, "animals": .5}[s.Suite]
		if math.Abs(s.Chance-chance) > 1e-15 {
			t.Errorf("%s: chance is %v, want %v", s.Suite, s.Chance, chance)
		}
		if s.KL == nil || !(*s.KL > 0) || s.Change == nil || s.Before == nil {
			t.Errorf("%s: KL %v, change %v, before %v: want them all", s.Suite, s.KL, s.Change, s.Before)
		}
		if want := (eval.Flipped{Asked: s.Rows}); s.Flips != want {
			t.Errorf("%s: asked in other orders %+v, want %+v", s.Suite, s.Flips, want)
		}
	}

	after, err := Recorded("run", m.Run(), m.OpenArtifact)
	if err != nil {
		t.Fatal(err)
	}
	for i := range after.Suites {
		after.Suites[i].Suite = r.Evaluations[i].Suite
	}
	compared, err := w.stage.Compare(w.build, *w.baseline, after.Suites)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range compared {
		was := r.Evaluations[i]
		s.Result, was.Result, s.Flips, was.Flips, s.Dataset, was.Dataset = eval.Result{}, eval.Result{}, eval.Flipped{}, eval.Flipped{}, record.Dataset{}, record.Dataset{}
		if d := cmp.Diff(was, s); d != "" {
			t.Errorf("from the record the suite differs:\n%s", d)
		}
	}
}

// TestReadoutRefuses: a readout answers one question, and says which row asks
// another.
func TestReadoutRefuses(t *testing.T) {
	w := newWorld(t, func(stage map[string]any) {
		stage["adaptation"] = map[string]any{"mode": "readout"}
		delete(stage, "batch_tokens")
	})
	m, c := w.start(t)
	_, err := Fit(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "a readout answers one question") || !strings.Contains(err.Error(), "item ") {
		t.Errorf("Fit = %v, want the row that asks another question named", err)
	}
	if len(m.log) != 0 {
		t.Errorf("%d events were recorded", len(m.log))
	}
}

// TestProgress: nothing is said to be done before it is, of the base's
// evaluation, of a readout's rows and of its own evaluation.
func TestProgress(t *testing.T) {
	w := newWorld(t, modes[Readout])
	_, c := w.start(t)
	var parts []string
	var done int
	c.Progress = func(p Progress) {
		if p.Phase == Training || p.Phase == Calibrating {
			return
		}
		part := fmt.Sprint(p.Phase, " ", p.Suite, " of ", p.Rows)
		if p.Done == 0 {
			parts = append(parts, part)
		} else if part != parts[len(parts)-1] || p.Done < done || p.Done > p.Rows {
			t.Errorf("%s: %d are done after %d of %s", part, p.Done, done, parts[len(parts)-1])
		}
		done = p.Done
	}
	if _, err := Fit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"prepare  of 24", "read  of 24", "read  of 9", "evaluate colors of 9"}, parts); d != "" {
		t.Errorf("parts that begin at none (-want +got):\n%s", d)
	}
}

// TestCut: a row that does not fit is counted and named, of a readout's training
// rows too.
func TestCut(t *testing.T) {
	for _, mode := range []string{Full, Readout} {
		w := newWorld(t, func(stage map[string]any) {
			modes[mode](stage)
			stage["max_len"] = 12
		})
		_, c := w.start(t)
		r, err := Fit(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if r.Cut.Rows == 0 || len(r.Cut.Items) == 0 {
			t.Fatalf("%s: cut %+v, want some", mode, r.Cut)
		}
		if w := r.Warnings[0]; w.Code != CutRows || !strings.Contains(w.Text, r.Cut.Items[0]) {
			t.Errorf("%s: the first warning is %+v, want the rows that were cut", mode, w)
		}
	}
}

// TestReadoutBest: the weights that are kept are those of the best epoch.
func TestReadoutBest(t *testing.T) {
	w := newWorld(t, func(stage map[string]any) {
		modes[Readout](stage)
		stage["epochs"], stage["patience"], stage["lr_head"] = 12, 0, .3 // overfits, and nothing stops it
	})
	_, c := w.start(t)
	var seen []float64
	c.Progress = func(p Progress) {
		if p.Phase == Training && p.SelectNLL > 0 && (len(seen) == 0 || seen[len(seen)-1] != p.SelectNLL) {
			seen = append(seen, p.SelectNLL)
		}
	}
	f, err := newFit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := f.learner.(*readout)
	best := f.state.Best.NLL
	if got := eval.NLL(l.answers(), 1); got != best || math.IsNaN(got) {
		t.Errorf("the weights kept have a select nll of %v, the best epoch had %v", got, best)
	}
	if len(seen) < 3 || best > slices.Min(seen) {
		t.Errorf("the best nll is %v, epochs had %v", best, seen)
	}
}

// spooled is a Recorder made of a spool and one of its logs.
type spooled struct {
	*spool.Spool
	*spool.Log
}

// TestSpool: a run recorded in a spool is there in whole, and its view is the
// fold of its log.
func TestSpool(t *testing.T) {
	w := newWorld(t, func(stage map[string]any) {
		stage["max_steps"] = 2
		delete(stage, "protect")
		delete(stage, "evaluation")
	})
	s, err := spool.Open(tempDir(t), "", "")
	if err != nil {
		t.Fatal(err)
	}
	log, err := s.Create("run")
	if err != nil {
		t.Fatal(err)
	}
	base, err := PutCheckpoint(s, w.base, "train init")
	if err != nil {
		t.Fatal(err)
	}
	model, err := kai.Load(w.base, w.dev)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Fit(t.Context(), Config{
		Run: "run", Stage: w.stage, Build: w.build, Model: model, Base: base, Device: w.dev,
		Recorder: spooled{s, log}, Dir: filepath.Join(tempDir(t), "run"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	view, err := s.View("run")
	if err != nil {
		t.Fatal(err)
	}
	if view.Status != event.Completed || view.Steps != 2 || len(view.Evaluations) != 2 || len(view.Gates) != 0 {
		t.Errorf("view = %+v", view)
	}
	for _, sha := range append(view.Parents, view.ConfigSHA256, view.EnvironmentArtifactSHA256, r.Checkpoint, r.Capability) {
		if _, ok := s.Artifact(sha); !ok {
			t.Errorf("artifact %s is not held", sha)
		}
	}
}
