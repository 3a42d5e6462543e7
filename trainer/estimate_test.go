package trainer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/trainer/kai"
)

// dryRun estimates the world's stage. Nothing may be recorded: there is no
// Recorder.
func (w *world) dryRun(t *testing.T, dev kernels.Device) (Estimate, *kai.Model) {
	t.Helper()
	model, err := kai.Load(w.base, dev)
	if err != nil {
		t.Fatal(err)
	}
	e, err := DryRun(t.Context(), Config{Stage: w.stage, Build: w.build, Model: model, Device: dev})
	if err != nil {
		t.Fatal(err)
	}
	return e, model
}

// TestDryRun holds what a dry run counts to what Fit then does.
func TestDryRun(t *testing.T) {
	for name, edit := range map[string]func(map[string]any){
		"full": nil, "protected": protected, "adapted": adapted,
		"capped": func(s map[string]any) { s["max_steps"] = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, edit)
			e, _ := w.dryRun(t, w.dev)
			_, c := w.start(t)
			f, err := newFit(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if steps := f.set.plan.Steps(); e.Steps != steps || e.Rows != len(f.set.rows) {
				t.Errorf("%d steps over %d rows, Fit takes %d over %d", e.Steps, e.Rows, steps, len(f.set.rows))
			}
			preserved := uint64(0)
			for step := 1; step <= e.Steps; step++ {
				for _, r := range f.beside(step) {
					preserved += uint64(f.kept.context[r])
				}
			}
			if e.Preserved != preserved || e.Tokens+e.Preserved != f.total() {
				t.Errorf("%d and %d tokens, Fit reads %d, %d of them preserved", e.Tokens, e.Preserved, f.total(), preserved)
			}
			trained, bases := 0, 0
			for _, m := range f.opt.masters {
				trained += m.d.Len
				bases += m.base.Len
			}
			for _, b := range f.opt.bases {
				bases += b.Len
			}
			if e.Trained != trained || e.Parameters != c.Model.Size() {
				t.Errorf("%d parameters of %d are trained, Fit trains %d of %d", e.Trained, e.Parameters, trained, c.Model.Size())
			}
			m := e.Memory
			if m.Changes != 4*uint64(trained) || m.Moments != 8*uint64(trained) || m.Weights != 4*uint64(c.Model.Size()) {
				t.Errorf("memory %+v for %d trained parameters", m, trained)
			}
			if least := 4 * uint64(bases); m.Bases < least {
				t.Errorf("%d bytes of base copies, Fit holds %d", m.Bases, least)
			}
			if sum := m.Weights + m.Bases + m.Changes + m.Moments + m.Gradients + m.Subspace + m.Activations; m.Total != sum || m.Activations == 0 {
				t.Errorf("memory %+v sums to %d", m, sum)
			}
			if tm := e.Time; !(tm.Train > 0 && tm.Evaluate > 0) || tm.Total != tm.Protect+tm.Train+tm.Evaluate {
				t.Errorf("time %+v", tm)
			}
		})
	}
}

// TestDryRunSets checks the rows by suite and set, of which kept ones are none to
// train on.
func TestDryRunSets(t *testing.T) {
	w := newWorld(t, protected)
	e, _ := w.dryRun(t, w.dev)
	got := map[string]SetEstimate{}
	for _, s := range e.Sets {
		got[s.Suite+" "+s.Split] = s
	}
	for set, rows := range map[string]int{"colors train": 24, "colors dev": 9, "colors test": 9, "animals keep": 12, "animals dev": 4, "animals test": 6} {
		s := got[set]
		if s.Rows != rows || s.Questions != rows || s.Tokens == 0 {
			t.Errorf("%s: %+v, want %d rows", set, s, rows)
		}
		if colors := s.Suite == "colors"; s.Target != colors || s.Protected == colors {
			t.Errorf("%s: target %t, protected %t", set, s.Target, s.Protected)
		}
	}
	if len(got) != 6 || e.Rows != 24 {
		t.Errorf("%d sets, %d rows an epoch", len(got), e.Rows)
	}
	p := e.Protection
	if p == nil || p.Rows != 12 || p.Passes <= 0 || p.Cached || p.Memory == 0 || e.Memory.Subspace == 0 || e.Time.Protect <= 0 {
		t.Errorf("protection %+v, memory %+v, time %+v", p, e.Memory, e.Time)
	}
}

// TestDryRunCached checks that a subspace that stands in the cache costs nothing.
func TestDryRunCached(t *testing.T) {
	w := newWorld(t, protected)
	_, c := w.start(t)
	c.Cache = filepath.Join(tempDir(t), "cache")
	if _, err := newFit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if c.Model, _ = kai.Load(w.base, w.dev); c.Model == nil {
		t.Fatal("no base")
	}
	e, err := DryRun(t.Context(), c)
	if err != nil || !e.Protection.Cached {
		t.Errorf("protection %+v, %v; want it cached", e.Protection, err)
	}
}

// TestDryRunTrainsNothing checks the modes without steps through the model.
func TestDryRunTrainsNothing(t *testing.T) {
	w := newWorld(t, func(s map[string]any) {
		s["adaptation"] = map[string]any{"mode": "readout"}
		s["takes"] = s["takes"].([]any)[:1]
		s["protect"] = map[string]any{}
		s["output"] = map[string]any{"kind": "checkpoint", "name": "colors"}
		delete(s, "batch_tokens")
		delete(s, "lr_encoder")
	})
	if e, _ := w.dryRun(t, w.dev); e.Mode != Readout || e.Steps == 0 || e.Memory.Gradients != 0 || e.Protection != nil || e.Time.Train <= 0 {
		t.Errorf("readout: %+v", e)
	}
	w.stage.From = "somewhere"
	if e, _ := w.dryRun(t, w.dev); e.Mode != "from" || e.Steps != 0 || e.Trained != 0 || e.Time.Train != 0 || e.Time.Evaluate <= 0 {
		t.Errorf("from: %+v", e)
	}
}

// TestDryRunLeavesNothing checks that a dry run writes no file beside the build.
func TestDryRunLeavesNothing(t *testing.T) {
	w := newWorld(t, protected)
	list := func() (names []string) {
		err := filepath.WalkDir(w.dir, func(path string, _ os.DirEntry, err error) error {
			names = append(names, path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	before := list()
	w.dryRun(t, w.dev)
	if after := list(); strings.Join(before, "\n") != strings.Join(after, "\n") {
		t.Errorf("the folder holds %q, held %q", after, before)
	}
}

// counter is a device that counts what is taken of it.
type counter struct {
	kernels.Device
	values int
}

func (c *counter) Alloc(n int) kernels.Mem {
	c.values += n
	return c.Device.Alloc(n)
}

// TestDryRunActivations holds the planned activations to what a step takes of the
// device, in a micro-batch of some 100 MiB.
func TestDryRunActivations(t *testing.T) {
	w := newWorld(t, func(s map[string]any) { s["batch_tokens"] = 100_000; s["epochs"] = 1 })
	dev := &counter{Device: w.dev}
	model, err := kai.Load(w.base, dev)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Stage: w.stage, Build: w.build, Model: model, Device: dev}
	d := dry{fit: &fit{Config: c}, shapes: shapesOf(model)}
	enc := model.Encoder()
	d.texts = enc.Texts
	if d.set, err = d.read(t.Context(), enc); err != nil {
		t.Fatal(err)
	}
	model.Train(func(string) bool { return false })
	var inputs []kai.Input
	for contextTokens(inputs) < 40_000 {
		inputs = append(inputs, d.set.inputs[0]...)
	}
	before := dev.values
	model.Step(d.texts, [][]kai.Input{inputs}, kai.Objective{})
	took := dev.values - before
	planned := d.shapes.activations(d.work(inputs, map[int]bool{}), model.Budget.Options)
	if ratio := float64(planned) / float64(took); took < 20<<20 || ratio < .8 || ratio > 1.3 {
		t.Errorf("%d values are planned, a step took %d: %.2f", planned, took, ratio)
	}
}
