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
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/durable/durabletest"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/safetensors"
)

// TestFit follows one run: what it records, in order, and what it leaves.
func TestFit(t *testing.T) {
	w := newWorld(t, nil)
	m, c := w.start(t)
	var steps int
	c.Progress = func(p Progress) {
		if p.Phase == Training {
			steps = p.Step
		}
	}
	r, err := Fit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	want := []event.Type{
		event.TypeRunCreated, event.TypeDatasetAttached, event.TypeTrainStarted, event.TypeStepRecorded, event.TypeCheckpointCreated,
		event.TypeEvalStarted, event.TypeEvalCompleted, event.TypeEvalStarted, event.TypeEvalCompleted,
		event.TypeGateEvaluated, event.TypeRunCompleted,
	}
	if d := cmp.Diff(want, m.types()); d != "" {
		t.Errorf("events:\n%s", d)
	}
	view := m.fold.View()
	if view.Status != event.Completed || int(view.Steps) != r.Steps || r.Steps != steps || view.Tokens != r.Tokens || len(view.Datasets) != 6 {
		t.Errorf("view = %+v beside result %d steps, %d tokens", view, r.Steps, r.Tokens)
	}
	if r.Verdict == nil || len(r.Verdict.Rules) != 3 || len(r.Evaluations) != 2 {
		t.Fatalf("verdict = %+v over %d suites, want 3 rules over 2", r.Verdict, len(r.Evaluations))
	}
	for _, s := range r.Evaluations {
		if s.Change == nil || s.Common.Of != len(s.Items) {
			t.Errorf("suite %s: change %v, most common %+v", s.Suite, s.Change, s.Common)
		}
		if len(s.Before) == 0 || len(s.Measures) == 0 || s.Protected != (s.Suite == "animals") || s.Target != (s.Suite == "colors") {
			t.Errorf("suite %s: before %v, after %v, protected %v, target %v", s.Suite, s.Before, s.Measures, s.Protected, s.Target)
		}
	}
	if a := m.artifacts[r.Checkpoint]; a.Kind != record.KindCheckpoint || a.Purpose != record.Train || string(m.bytes[r.Checkpoint]) != string(packAll(t, r.CheckpointDir)) {
		t.Errorf("the checkpoint's artifact is %+v, and not the folder", a)
	}
	if weights(t, r.CheckpointDir) == weights(t, w.base) {
		t.Error("training changed nothing")
	}
	losses := m.steps()
	if first, last := losses[0].Loss, losses[len(losses)-1].Loss; last >= first {
		t.Errorf("the loss went from %v to %v", first, last)
	}
}

// TestCapability: the base with the capability applied is the checkpoint, bit
// for bit.
func TestCapability(t *testing.T) {
	w := newWorld(t, nil)
	m, c := w.start(t)
	r, err := Fit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if m.artifacts[r.Capability].Kind != record.KindCapability {
		t.Fatalf("capability %q is not held", r.Capability)
	}
	model, err := kai.Load(w.base, w.dev)
	if err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(filepath.Join(c.Dir, "capability", "delta.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range model.Params() {
		if slices.Contains(f.Names(), p.Name) {
			d, err := f.ReadFloat32(p.Name)
			if err != nil {
				t.Fatal(err)
			}
			for i := range d {
				p.W.Host[i] += d[i]
			}
		} else if !strings.Contains(p.Name, "word_embeddings") {
			t.Errorf("%s is not in the capability, and only the embeddings are frozen", p.Name)
		}
	}
	applied := filepath.Join(tempDir(t), "applied")
	if err := model.Save(applied); err != nil {
		t.Fatal(err)
	}
	if weights(t, applied) != weights(t, r.CheckpointDir) {
		t.Error("base + capability is not the checkpoint")
	}
}

// TestAccumulation: how a step is cut into micro-batches and how many threads
// compute it change no bit of any event or weight.
func TestAccumulation(t *testing.T) {
	var steps []event.StepRecorded
	var sum any
	for i, budget := range []map[string]any{
		nil,
		{"rows": 1},
		{"ctx": 24, "options": 16, "head": 40, "rows": 3},
		{"ctx": 1, "options": 1, "head": 1, "rows": 1},
	} {
		w := newWorld(t, func(stage map[string]any) {
			if budget != nil {
				stage["budget"] = budget
			}
		})
		if i == 2 {
			w.dev = cpu.New(3)
		}
		m, c := w.start(t)
		r, err := Fit(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			steps, sum = m.steps(), weights(t, r.CheckpointDir)
			continue
		}
		if d := cmp.Diff(steps, m.steps()); d != "" {
			t.Errorf("budget %v: steps differ:\n%s", budget, d)
		}
		if weights(t, r.CheckpointDir) != sum {
			t.Errorf("budget %v: the weights differ", budget)
		}
	}
}

// killed is how a test's process dies.
type killed struct{}

// attempt runs Fit and reports whether it was killed.
func attempt(t *testing.T, ctx context.Context, c Config) (r Result, err error, dead bool) {
	t.Helper()
	defer func() {
		switch p := recover(); p {
		case nil:
		case any(killed{}):
			dead = true
		default:
			panic(p)
		}
	}()
	r, err = Fit(ctx, c)
	return r, err, false
}

// again is a new process over the same record and folder.
func (w *world) again(t *testing.T, m *memory, c Config) Config {
	t.Helper()
	next := w.config(t, m, c.Dir)
	next.Baseline, next.Resume, next.StateEvery = c.Baseline, true, c.StateEvery
	return next
}

// modes are the adaptations, each with a stage of few steps.
var modes = map[string]func(stage map[string]any){
	Full: func(stage map[string]any) { stage["max_steps"] = 4 },
	"protected": func(stage map[string]any) {
		protected(stage)
		stage["max_steps"] = 4
	},
	LoRA: func(stage map[string]any) {
		adapted(stage)
		stage["max_steps"] = 4
	},
	Readout: func(stage map[string]any) {
		stage["adaptation"] = map[string]any{"mode": "readout"}
		stage["takes"] = stage["takes"].([]any)[:1]
		delete(stage, "protect")
		delete(stage, "lr_encoder")
		delete(stage, "batch_tokens")
		stage["batch_rows"], stage["epochs"], stage["patience"], stage["lr_head"] = 10, 3, 2, 3e-2
	},
}

// TestResume kills a run before and after every event it appends and goes on:
// the log and the checkpoint are those of a run that nobody killed, bit for bit,
// with states saved at every step, seldom, and only at the end.
func TestResume(t *testing.T) {
	for mode, edit := range modes {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, edit)
			whole, c := w.start(t)
			want, err := Fit(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			for n := range whole.log {
				for _, late := range []bool{false, true} {
					if b := whole.log[n].Body.Type(); late && b != event.TypeStepRecorded && b != event.TypeCheckpointCreated {
						continue // nothing happens between this event and the next
					}
					m, c := w.start(t)
					if n%2 == 0 {
						c.StateEvery = -1
					}
					calls := 0
					die := func(event.Body) error {
						if calls++; calls == n+1 {
							panic(killed{})
						}
						return nil
					}
					if m.before = die; late {
						m.before, m.after = nil, die
					}
					if _, err, dead := attempt(t, t.Context(), c); !dead {
						t.Fatalf("event %d: Fit = %v, want it killed", n, err)
					}
					m.before, m.after = nil, nil
					got, err := Fit(t.Context(), w.again(t, m, c))
					if err != nil {
						t.Fatalf("killed at event %d (%T), late %v: %v", n, whole.log[n].Body, late, err)
					}
					if d := cmp.Diff(whole.bodies(), m.bodies()); d != "" {
						t.Fatalf("killed at event %d (%T), late %v: the log differs:\n%s", n, whole.log[n].Body, late, d)
					}
					if got.Checkpoint != want.Checkpoint || got.Capability != want.Capability {
						t.Fatalf("killed at event %d (%T), late %v: the checkpoint differs", n, whole.log[n].Body, late)
					}
				}
			}
		})
	}
}

// TestResumeAfterFault kills a run at every call that saves a state, and fails
// each with a full disk: the previous state loads, and the run goes on to the
// same bits.
func TestResumeAfterFault(t *testing.T) {
	w := newWorld(t, func(stage map[string]any) { stage["max_steps"] = 2 })
	whole, c := w.start(t)
	count := &durabletest.FS{}
	c.disk, c.StateEvery = new(durable.On(count)), -1
	want, err := Fit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	full := errors.New("no space left on device")
	for n := 1; n <= count.Calls(); n++ {
		m, c := w.start(t)
		broken := &durabletest.FS{Plan: func(call durabletest.Call) durabletest.Fault {
			switch {
			case call.N != n:
				return durabletest.Fault{}
			case n%2 == 0:
				return durabletest.Fault{Err: full}
			}
			return durabletest.Fault{Then: func() { panic(killed{}) }}
		}}
		c.disk, c.StateEvery = new(durable.On(broken)), -1
		if _, err, dead := attempt(t, t.Context(), c); !dead && !errors.Is(err, full) {
			t.Fatalf("call %d: Fit = %v, want the fault", n, err)
		}
		if m.fold.View().Ended != nil {
			t.Fatalf("call %d: a full disk ended the run", n)
		}
		c = w.again(t, m, c)
		c.disk = new(durable.On(&durabletest.FS{}))
		got, err := Fit(t.Context(), c)
		if err != nil {
			t.Fatalf("call %d: %v", n, err)
		}
		if d := cmp.Diff(whole.bodies(), m.bodies()); d != "" || got.Checkpoint != want.Checkpoint {
			t.Fatalf("call %d: the run differs:\n%s", n, d)
		}
	}
}

// TestInterrupt: a cancelled run finishes its step, saves its state and is left
// open; resumed, it ends as if nothing had happened.
func TestInterrupt(t *testing.T) {
	w := newWorld(t, nil)
	whole, c := w.start(t)
	want, err := Fit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	m, c := w.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	c.Progress = func(p Progress) {
		if p.Phase == Training && p.Step == 2 {
			cancel()
		}
	}
	r, err := Fit(ctx, c)
	if !errors.Is(err, ErrInterrupted) || r.Steps != 2 || m.fold.View().Ended != nil {
		t.Fatalf("Fit = %d steps, %v, ended %v; want 2, interrupted and open", r.Steps, err, m.fold.View().Ended)
	}
	if steps, _ := savedSteps(filepath.Join(c.Dir, "state")); !slices.Equal(steps, []int{2}) {
		t.Errorf("states of steps %v are saved, want 2", steps)
	}
	if _, err := Fit(t.Context(), w.config(t, m, c.Dir)); err == nil {
		t.Error("a run that has begun was begun again")
	}
	early, err := Fit(ctx, w.again(t, m, c))
	if !errors.Is(err, ErrInterrupted) || early.Run != c.Run || early.Steps != 2 || early.Tokens != r.Tokens || early.Status != event.Training {
		t.Errorf("interrupted while it reads its rows: %+v, %v; want it where it stood", early, err)
	}
	got, err := Fit(t.Context(), w.again(t, m, c))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(whole.bodies(), m.bodies()); d != "" || got.Checkpoint != want.Checkpoint {
		t.Errorf("the resumed run differs:\n%s", d)
	}
}

// TestResumeRefuses: a run is not gone on with over other data, another stage or
// a base that was evaluated otherwise.
func TestResumeRefuses(t *testing.T) {
	w := newWorld(t, nil)
	other := newWorld(t, func(stage map[string]any) {
		stage["takes"].([]any)[1].(map[string]any)["rows"] = 3
		stage["takes"].([]any)[0].(map[string]any)["rows"] = 6
	})
	for _, tt := range []struct {
		name  string
		spoil func(c *Config)
		want  string
	}{
		{"other data", func(c *Config) { c.Build = other.build }, "its data changed"},
		{"another stage", func(c *Config) { c.Stage.Epochs++ }, "has config"},
		{"another baseline", func(c *Config) { b := *c.Baseline; b.Run = "base2"; c.Baseline = &b }, "another gate"},
		{"not resumed", func(c *Config) { c.Resume = false }, "has begun"},
	} {
		m, c := w.start(t)
		m.after = func(b event.Body) error {
			if b.Type() == event.TypeStepRecorded {
				panic(killed{})
			}
			return nil
		}
		if _, err, dead := attempt(t, t.Context(), c); !dead {
			t.Fatalf("Fit = %v, want it killed", err)
		}
		m.after = nil
		before := len(m.log)
		c = w.again(t, m, c)
		tt.spoil(&c)
		if _, err := Fit(t.Context(), c); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Fit = %v, want an error with %q", tt.name, err, tt.want)
		}
		if len(m.log) != before {
			t.Errorf("%s: %d events were recorded", tt.name, len(m.log)-before)
		}
	}
}

// TestOtherRunsFolder: a run does not take up what another left in its folder.
func TestOtherRunsFolder(t *testing.T) {
	w := newWorld(t, nil)
	for _, name := range []string{"state", "checkpoint", "capability", "lora"} {
		_, c := w.start(t)
		write(t, filepath.Join(c.Dir, name, "file"), "")
		if _, err := Fit(t.Context(), c); err == nil || !strings.Contains(err.Error(), "another run's "+name) {
			t.Errorf("with a %s: Fit = %v", name, err)
		}
	}
}

// TestLook: looking at the select rows on the way changes nothing.
func TestLook(t *testing.T) {
	var want []event.StepRecorded
	for _, every := range []int{0, 1} {
		w := newWorld(t, func(stage map[string]any) { stage["max_steps"], stage["eval_every"], stage["eval_rows"] = 3, every, 5 })
		m, c := w.start(t)
		looked := 0.0
		c.Progress = func(p Progress) { looked = max(looked, p.SelectNLL) }
		if _, err := Fit(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if (looked > 0) != (every > 0) {
			t.Errorf("eval_every %d: the select rows' nll is %v", every, looked)
		}
		if want == nil {
			want = m.steps()
		} else if d := cmp.Diff(want, m.steps()); d != "" {
			t.Errorf("looking changes the steps:\n%s", d)
		}
	}
}

// TestDiverged: a resumed step that is not the recorded one ends the run failed
// and appends nothing else (HIP-1334 §7.3).
func TestDiverged(t *testing.T) {
	w := newWorld(t, nil)
	m, c := w.start(t)
	m.after = func(b event.Body) error {
		if s, ok := b.(event.StepRecorded); ok && s.Step == 2 {
			panic(killed{})
		}
		return nil
	}
	if _, err, dead := attempt(t, t.Context(), c); !dead {
		t.Fatalf("Fit = %v, want it killed", err)
	}
	m.after = nil
	before := len(m.log)
	c = w.again(t, m, c)
	for _, p := range c.Model.Params() { // other weights under the same name
		if p.Name == "head.score.out.weight" {
			p.W.Host[0] += .5
		}
	}
	r, err := Fit(t.Context(), c)
	if !errors.Is(err, ErrFailed) || !errors.Is(err, event.ErrDiverged) {
		t.Fatalf("Fit = %v, want failed and diverged", err)
	}
	view := m.fold.View()
	if view.Status != event.Failed || r.Status != event.Failed || len(m.log) != before+1 || !strings.Contains(*view.Error, "step 1") {
		t.Errorf("view = %s with %d events more, error %q; want failed with one, naming the step", view.Status, len(m.log)-before, *view.Error)
	}
}

// TestNotFinite: a loss that is not finite ends the run failed, naming the step
// and the field, and the last state is still there.
func TestNotFinite(t *testing.T) {
	w := newWorld(t, func(stage map[string]any) { stage["lr_encoder"], stage["lr_head"], stage["clip"] = 1.0, 1.0, 0 })
	m, c := w.start(t)
	c.StateEvery = -1
	c.Progress = func(p Progress) {
		if p.Phase == Training && p.Step == 2 {
			for _, x := range c.Model.Params() {
				if x.Name == "head.score.out.weight" {
					x.W.Host[0] = float32(math.Inf(1))
				}
			}
		}
	}
	r, err := Fit(t.Context(), c)
	if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "step 3: ") {
		t.Fatalf("Fit = %v, want failed at step 3", err)
	}
	view := m.fold.View()
	if view.Status != event.Failed || view.Error == nil || !strings.Contains(*view.Error, "step 3: loss is ") || view.Steps != 2 || r.Steps != 2 {
		t.Errorf("view = %s, error %v, %d steps; want failed after 2, naming step 3's loss", view.Status, view.Error, view.Steps)
	}
	if steps, _ := savedSteps(filepath.Join(c.Dir, "state")); !slices.Equal(steps, []int{2}) {
		t.Errorf("states of steps %v are saved, want 2", steps)
	}
	if _, err := Fit(t.Context(), w.again(t, m, c)); err == nil || !strings.Contains(err.Error(), "has ended failed") {
		t.Errorf("resuming a failed run = %v, want it refused", err)
	}
}

// TestFirewall: a set whose purpose does not admit training is refused before
// anything is recorded (HIP-1334 §17 item 5).
func TestFirewall(t *testing.T) {
	w := newWorld(t, nil)
	m, c := w.start(t)
	for _, s := range w.build.Sets {
		if s.Role == record.RoleTrain {
			s.Dataset.Purpose = record.EvalOnly
		}
	}
	if _, err := Fit(t.Context(), c); !errors.Is(err, record.ErrPurpose) || !strings.Contains(err.Error(), "eval_only") {
		t.Errorf("Fit = %v, want the purpose refused", err)
	}
	if len(m.log) != 0 {
		t.Errorf("%d events were recorded", len(m.log))
	}
}

// TestBaseline: the base's run is of kind eval and complete; asked for again, it
// is read back and not recorded twice.
func TestBaseline(t *testing.T) {
	w := newWorld(t, nil)
	m, c := newMemory("base"), Config{}
	c = w.config(t, m, "")
	config := EvalConfig{Run: "base", Build: w.build, Model: c.Model, Subject: c.Base, Device: w.dev, Recorder: m}
	one, err := Evaluate(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	view, events := m.fold.View(), len(m.log)
	if view.Kind != event.KindEval || view.Status != event.Completed || len(one.Suites) != 2 {
		t.Errorf("the base's run is %s, %s over %d suites", view.Kind, view.Status, len(one.Suites))
	}
	for _, e := range m.fold.Evaluations() {
		if e.Completion != event.Complete || e.ItemsSHA256 == nil || m.artifacts[*e.ItemsSHA256].Purpose != e.Purpose {
			t.Errorf("evaluation %s: %s, items %v", e.Dataset, e.Completion, e.ItemsSHA256)
		}
	}
	config.Model = nil // nothing is asked of it
	two, err := Evaluate(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.log) != events {
		t.Errorf("%d events more", len(m.log)-events)
	}
	for i := range one.Suites {
		if d := cmp.Diff(one.Suites[i].Items, two.Suites[i].Items); d != "" {
			t.Errorf("the items read back differ:\n%s", d)
		}
		if d := cmp.Diff(gate.Measures(two.Suites[i].Items), one.Suites[i].Measures); d != "" {
			t.Errorf("the items do not give the measures:\n%s", d)
		}
	}
	w.stage.Protect.Suites, w.stage.Protect.Budget = nil, nil
	w.stage.Evaluation.Suites = nil
	if _, ok, err := w.stage.Gate(w.build, "base"); ok || err != nil {
		t.Errorf("a stage that protects and targets nothing has a gate: %v, %v", ok, err)
	}
}

// TestReadout: a readout trains, stops when the select rows stop improving, ships
// the best epoch, answers its own question and leaves the base as it was.
func TestReadout(t *testing.T) {
	w := newWorld(t, func(stage map[string]any) {
		modes[Readout](stage)
		stage["epochs"], stage["patience"], stage["lr_head"], stage["lr_encoder"] = 60, 3, 0.125, 1e-3
	})
	m, c := w.start(t)
	c.Progress = func(p Progress) {
		if p.Phase == Training && p.LR != 0.125 {
			t.Errorf("step %d is recorded with the rate %v, want the head's: no encoder is trained", p.Step, p.LR)
		}
	}
	r, err := Fit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if weights(t, r.CheckpointDir) != weights(t, w.base) {
		t.Error("a readout changed the base")
	}
	if view := m.fold.View(); r.Steps >= 60*3 || view.Status != event.Completed {
		t.Errorf("%d steps, %s: patience never ran out", r.Steps, view.Status)
	}
	if want := fmt.Sprintf("stopped after epoch %d of 60: 3 epochs without a better held-out loss", (r.Steps+2)/3); r.Ended != want {
		t.Errorf("ended: %q, want %q", r.Ended, want)
	}
	model, err := kai.Load(r.CheckpointDir, w.dev)
	if err != nil {
		t.Fatal(err)
	}
	if list := model.Readouts(); len(list) != 1 || list[0].Name != "tiny" {
		t.Errorf("readouts = %v, want tiny", list)
	}
	if got, want := model.Readouts()[0].Provenance, model.Config.Provenance; len(got) == 0 || string(got["spec"]) != string(want["spec"]) {
		t.Errorf("the readout's provenance is %v, want the run's %v", got, want)
	}
	if acc := r.Evaluations[0].Measures[0]; acc.Metric != gate.Accuracy || acc.Value < r.Evaluations[0].Before[0].Value {
		t.Errorf("accuracy went from %v to %v", r.Evaluations[0].Before[0].Value, acc)
	}
	if m.artifacts[r.Capability].Kind != record.KindCapability {
		t.Errorf("capability %q is not held", r.Capability)
	}
}

// TestBaseWithReadout: a base whose readout could not be saved beside what is
// trained is refused before anything is recorded.
func TestBaseWithReadout(t *testing.T) {
	for mode, want := range map[string]string{Full: "start from the base without", Readout: "set output.name to other"} {
		w := newWorld(t, modes[mode])
		m, c := w.start(t)
		train, err := w.build.Train()
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Model.NewReadout("other", train[0].Asked[0].Question, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Model.Attach(r); err != nil {
			t.Fatal(err)
		}
		if _, err := Fit(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: Fit = %v, want an error with %q", mode, err, want)
		}
		if n := len(m.types()); n != 0 {
			t.Errorf("%s: %d events are recorded, want none", mode, n)
		}
	}
}
