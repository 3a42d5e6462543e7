package traincmd

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer"
)

// TestDeterminism probes a stage and finds the report in the spool.
func TestDeterminism(t *testing.T) {
	s := newShell(t)
	quick := strings.Replace(stage, `"epochs"`, `"adaptation": {"mode": "readout"}, "epochs"`, 1)
	if err := os.WriteFile("desk.json", []byte(quick), 0o644); err != nil {
		t.Fatal(err)
	}
	status, out := s.types(t.Context(), "determinism desk.json")
	if status != term.OK {
		t.Fatalf("status %d\n%s", status, out)
	}
	for _, says := range []string{
		"exact: after every probed step", "the optimizer's state at the end is equal too", "the stage plans 1 steps", "no answers were compared",
		"the environment is dirty", " 100  ", "\nreport sha256:",
	} {
		if !strings.Contains(out, says) {
			t.Errorf("it does not say %q:\n%s", says, out)
		}
	}
	records, err := spool.Open("spool", "", "")
	if err != nil {
		t.Fatal(err)
	}
	held, err := records.Determinism()
	if err != nil || len(held) != 1 || !strings.Contains(out, string(held[0])) {
		t.Errorf("the spool holds %v, %v", held, err)
	}

	status, out = s.types(t.Context(), "determinism desk.json --json --threads 1")
	var got probeOutcome
	if err := canon.Unmarshal([]byte(out[strings.Index(out, `{"dirty"`):]), &got); status != term.OK || err != nil {
		t.Fatalf("--json: status %d, %v\n%s", status, err, out)
	}
	if !got.Report.Exact || !got.Optimizer || got.Planned != 1 || !got.Dirty || len(got.Replicas) != 2 || got.Replicas[0].Device == got.Replicas[1].Device {
		t.Errorf("--json: %+v", got)
	}
	// It did the same once more, on other threads: the same report.
	if again, err := records.Determinism(); err != nil || len(again) != 1 || got.ReportHash != held[0] {
		t.Errorf("the spool holds %v, %v, and the report is %s", again, err, got.ReportHash)
	}
}

func TestDeterminismMistakes(t *testing.T) {
	s := newShell(t)
	if err := os.WriteFile("nowhere.json", []byte(strings.Replace(stage, `"new"`, `"nowhere"`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		line   string
		status term.Status
		says   string
	}{
		{"determinism", term.Usage, "expected one argument"},
		{"determinism none.json", term.Failed, "none.json"},
		{"determinism typo.json", term.Usage, "epochs"},
		{"determinism nowhere.json", term.Usage, "train init"},
		{"determinism --plan desk.json", term.Usage, "--plan takes no stage"},
		{"determinism desk.json --threads -1", term.Usage, "threads"},
	} {
		if status, out := s.types(t.Context(), tt.line); status != tt.status || !strings.Contains(out, tt.says) {
			t.Errorf("train %s: status %d, want %d and %q:\n%s", tt.line, status, tt.status, tt.says, out)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if status, out := s.types(ctx, "determinism desk.json"); status != term.Interrupted || !strings.Contains(out, "nothing is recorded") {
		t.Errorf("interrupted: status %d:\n%s", status, out)
	}
	records, err := spool.Open("spool", "", "")
	if err != nil {
		t.Fatal(err)
	}
	if held, err := records.Determinism(); err != nil || len(held) != 0 {
		t.Errorf("the spool holds %v, %v", held, err)
	}
}

// TestKernelPlan: what --plan prints is what a run's environment has the hash of.
func TestKernelPlan(t *testing.T) {
	s := &shell{t}
	env, err := trainer.Environment(cpu.New(1))
	if err != nil {
		t.Fatal(err)
	}
	if status, out := s.types(t.Context(), "determinism --plan"); status != term.OK || !strings.Contains(out, "kernel_plan_hash "+string(env.KernelPlanHash)) {
		t.Errorf("status %d:\n%s", status, out)
	}
	status, out := s.types(t.Context(), "determinism --plan --json")
	var plan []kernels.Selection
	if err := canon.Unmarshal([]byte(out), &plan); status != term.OK || err != nil || len(plan) == 0 {
		t.Fatalf("--json: status %d, %v\n%s", status, err, out)
	}
	if hash := canon.HashOf([]byte(strings.TrimSuffix(out, "\n"))); hash != env.KernelPlanHash {
		t.Errorf("the plan hashes to %s, want %s", hash, env.KernelPlanHash)
	}
}

// TestNotExact: replicas that differ end with status 1, and say where.
func TestNotExact(t *testing.T) {
	step := uint64(8)
	for _, tt := range []struct {
		change func(*trainer.ProbeResult)
		says   string
	}{
		{func(r *trainer.ProbeResult) {
			r.Report.Exact, r.Report.FirstDivergentStep, r.Report.MaxAbsWeightDelta = false, &step, 0.25
		}, "after step 8, and after step 100 by 0.25"},
		{func(r *trainer.ProbeResult) { r.State = false }, "the optimizer's state is not"},
		{func(r *trainer.ProbeResult) { r.Report.PredictionAgreement = 0.5 }, "answer differently"},
	} {
		r := trainer.ProbeResult{State: true}
		r.Report.Exact, r.Report.PredictionAgreement = true, 1
		if !r.Exact() {
			t.Fatalf("%+v is not exact", r)
		}
		tt.change(&r)
		if got := difference(r); r.Exact() || !strings.Contains(got, tt.says) {
			t.Errorf("exact is %t, and %q does not say %q", r.Exact(), got, tt.says)
		}
	}
}
