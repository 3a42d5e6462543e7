package trainer

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/safetensors"
)

// probeStore is a memory that takes reports.
type probeStore struct {
	*memory
	reports []record.DeterminismReport
}

func (s *probeStore) PutDeterminism(r record.DeterminismReport) (canon.Hash, error) {
	if err := r.Validate(); err != nil {
		return "", err
	}
	if s.artifacts[r.EnvironmentArtifactSHA256].Kind != record.KindEnvironment || s.artifacts[r.ConfigSHA256].Kind != record.KindConfig {
		return "", errors.New("the report names what is not held")
	}
	s.reports = append(s.reports, r)
	return canon.Of(r)
}

// probe probes the world's stage on two devices.
func (w *world) probe(t *testing.T, a, b kernels.Device) (ProbeResult, *probeStore, error) {
	t.Helper()
	store := &probeStore{memory: newMemory("none")}
	load := func(dev kernels.Device) func() (*kai.Model, error) {
		return func() (*kai.Model, error) { return kai.Load(w.base, dev) }
	}
	res, err := Probe(t.Context(), ProbeConfig{Stage: w.stage, Build: w.build, A: load(a), B: load(b), Store: store})
	return res, store, err
}

// TestProbe: on another number of threads, in another instruction set and cut into
// other micro-batches, a stage trains the same bits.
func TestProbe(t *testing.T) {
	scalar, err := cpu.NewISA(cpu.Scalar, 3)
	if err != nil {
		t.Fatal(err)
	}
	one := func(doc map[string]any) { // a readout answers one question
		doc["takes"] = doc["takes"].([]any)[:1]
		doc["protect"] = map[string]any{}
	}
	for name, edit := range map[string]func(map[string]any){
		"full": nil,
		"readout": func(doc map[string]any) {
			one(doc)
			doc["adaptation"] = map[string]any{"mode": "readout"}
			doc["lr_head"] = 1e-2
			delete(doc, "batch_tokens")
		},
		"protected":         protected,
		"protected adapter": adapted,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, edit)
			var other kernels.Device = cpu.New(3)
			if name == "full" {
				other = scalar // which is slow
			}
			res, store, err := w.probe(t, w.dev, other)
			if err != nil {
				t.Fatal(err)
			}
			r := res.Report
			if !res.Exact() || !r.Exact || r.FirstDivergentStep != nil || r.MaxAbsWeightDelta != 0 || r.MaxRelWeightDelta != 0 || r.PredictionAgreement != 1 {
				t.Errorf("the replicas differ: %+v", res)
			}
			if want, _ := canon.Of(r); len(store.reports) != 1 || res.Hash != want {
				t.Errorf("%d reports are stored, the last as %s, want %s", len(store.reports), res.Hash, want)
			}
			if res.Planned == 0 || res.Planned >= 100 || res.Selected == 0 {
				t.Errorf("planned %d steps and selected %d", res.Planned, res.Selected)
			}
			if res.A.Device == res.B.Device || name != "readout" && res.B.Micro <= res.A.Micro {
				t.Errorf("A computed on %s in %d micro-batches, B on %s in %d", res.A.Device, res.A.Micro, res.B.Device, res.B.Micro)
			}
			seen := map[canon.Hash]bool{r.Probe.WeightsHash: true}
			for _, s := range r.Probe.Steps {
				if seen[s.A] {
					t.Errorf("after step %d the weights are those of before: nothing was trained", s.Step)
				}
				seen[s.A] = true
			}
			if name == "full" {
				if want := hashOfFile(t, filepath.Join(w.base, "model.safetensors")); r.Probe.WeightsHash != want {
					t.Errorf("the initial weights hash to %s, want %s", r.Probe.WeightsHash, want)
				}
			}
		})
	}
}

// hashOfFile is HIP-1334 §6.2's hash of a checkpoint's tensors, as the text says it.
func hashOfFile(t *testing.T, name string) canon.Hash {
	t.Helper()
	f, err := safetensors.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b []byte
	names := slices.Clone(f.Names())
	slices.Sort(names)
	for _, n := range names {
		info, _ := f.Info(n)
		b = append(append(b, n...), 0)
		b = append(append(b, "f32"...), 0)
		for _, d := range info.Shape {
			b = binary.LittleEndian.AppendUint64(b, uint64(d))
		}
		values, err := f.ReadFloat32(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	}
	return canon.HashOf(b)
}

// TestProbeNamesRuns: the report speaks for the runs that train fit records.
func TestProbeNamesRuns(t *testing.T) {
	w := newWorld(t, nil)
	res, _, err := w.probe(t, cpu.New(2), cpu.New(1))
	if err != nil {
		t.Fatal(err)
	}
	m, c := w.start(t)
	if _, err := Fit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	run := m.Run().View()
	if r := res.Report; r.EnvironmentArtifactSHA256 != run.EnvironmentArtifactSHA256 || r.ConfigSHA256 != run.ConfigSHA256 {
		t.Errorf("the report is of environment %s and config %s, the run of %s and %s",
			r.EnvironmentArtifactSHA256, r.ConfigSHA256, run.EnvironmentArtifactSHA256, run.ConfigSHA256)
	}
}

// TestProbeIsFit: the weights of a probe are those of a run of as many steps.
func TestProbeIsFit(t *testing.T) {
	w := newWorld(t, func(doc map[string]any) { doc["epochs"], doc["max_steps"] = 100, 100 })
	res, _, err := w.probe(t, cpu.New(2), cpu.New(1))
	if err != nil {
		t.Fatal(err)
	}
	if res.Planned != 100 {
		t.Fatalf("planned %d steps", res.Planned)
	}
	_, c := w.start(t)
	run, err := Fit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	last := res.Report.Probe.Steps[len(res.Report.Probe.Steps)-1]
	if want := hashOfFile(t, filepath.Join(run.CheckpointDir, "model.safetensors")); last.A != want {
		t.Errorf("after 100 steps the probe has %s, the run %s", last.A, want)
	}
}

// unsteady is a device whose AdamW goes wrong in one value, once.
type unsteady struct {
	kernels.Device
	left int // updates until then
}

func (d *unsteady) AdamW(w, delta, m, v, grad, base kernels.Mem, a kernels.AdamW) {
	d.Device.AdamW(w, delta, m, v, grad, base, a)
	if d.left--; d.left == 0 {
		delta.Host[0] += 1e-3
		if !w.None() { // where the update is projected, it is written later
			w.Host[0] = base.Host[0] + delta.Host[0]
		}
	}
}

// TestProbeDiverges: one wrong value in one update is found, and it is said when.
func TestProbeDiverges(t *testing.T) {
	w := newWorld(t, nil)
	// How many updates a step has.
	count := &unsteady{Device: cpu.New(1)}
	if _, _, err := w.probe(t, cpu.New(1), count); err != nil {
		t.Fatal(err)
	}
	each := -count.left / 100
	for _, tt := range []struct{ step, first int }{{1, 1}, {3, 4}, {65, 100}, {100, 100}} {
		bad := &unsteady{Device: cpu.New(1), left: each*(tt.step-1) + 1}
		res, store, err := w.probe(t, cpu.New(1), bad)
		if err != nil {
			t.Fatal(err)
		}
		r := res.Report
		if res.Exact() || r.Exact || r.FirstDivergentStep == nil || *r.FirstDivergentStep != uint64(tt.first) {
			t.Errorf("wrong in step %d: %+v", tt.step, r)
			continue
		}
		if r.MaxAbsWeightDelta <= 0 || r.MaxRelWeightDelta <= 0 || r.MaxRelWeightDelta > 2 || len(store.reports) != 1 {
			t.Errorf("wrong in step %d: deltas %v and %v, %d reports", tt.step, r.MaxAbsWeightDelta, r.MaxRelWeightDelta, len(store.reports))
		}
	}
}

// TestProbeRefuses what cannot be compared, and records nothing.
func TestProbeRefuses(t *testing.T) {
	w := newWorld(t, nil)
	fails := func(name, says string, edit func(*ProbeConfig)) {
		t.Helper()
		store := &probeStore{memory: newMemory("none")}
		load := func() (*kai.Model, error) { return kai.Load(w.base, cpu.New(1)) }
		c := ProbeConfig{Stage: w.stage, Build: w.build, A: load, B: load, Store: store}
		edit(&c)
		_, err := Probe(t.Context(), c)
		if err == nil || !strings.Contains(err.Error(), says) || len(store.reports) != 0 {
			t.Errorf("%s: %v with %d reports, want %q", name, err, len(store.reports), says)
		}
	}
	fails("another base", "did not begin alike", func(c *ProbeConfig) {
		c.B = func() (*kai.Model, error) {
			m, err := kai.Load(w.base, cpu.New(1))
			if err == nil {
				m.Params()[0].W.Host[0]++
			}
			return m, err
		}
	})
	fails("another kernel plan", "two environments", func(c *ProbeConfig) {
		c.B = func() (*kai.Model, error) { return kai.Load(w.base, otherPlan{cpu.New(1)}) }
	})
	fails("a base that is gone", "gone", func(c *ProbeConfig) {
		c.B = func() (*kai.Model, error) { return nil, errors.New("the base is gone") }
	})
	fails("a learning rate that explodes", "step ", func(c *ProbeConfig) { c.Stage.LREncoder, c.Stage.LRHead = 1e30, 1e30 })
	fails("a stage that trains nothing", "from", func(c *ProbeConfig) { c.Stage.From = "somewhere" })

	ctx, cancel := context.WithCancel(t.Context())
	store := &probeStore{memory: newMemory("none")}
	load := func() (*kai.Model, error) { return kai.Load(w.base, cpu.New(1)) }
	_, err := Probe(ctx, ProbeConfig{
		Stage: w.stage, Build: w.build, A: load, B: load, Store: store,
		Progress: func(replica string, p Progress) {
			if replica == "B" && p.Step == 7 {
				cancel()
			}
		},
	})
	if !errors.Is(err, ErrInterrupted) || len(store.reports) != 0 {
		t.Errorf("cancelled: %v with %d reports", err, len(store.reports))
	}
}

// otherPlan is a device of another kernel plan.
type otherPlan struct{ kernels.Device }

func (d otherPlan) Plan() []kernels.Selection {
	return append(d.Device.Plan(), kernels.Selection{Op: "zzz"})
}
