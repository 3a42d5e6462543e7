package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/hanzoai/link/spool/canon"
)

// twin is a report of replicas that go apart at the first probed step of at least
// from, or never when it is 0.
func twin(from uint64) DeterminismReport {
	h := func(what string, step uint64) canon.Hash { return canon.HashOf(fmt.Append(nil, what, step)) }
	r := DeterminismReport{
		EnvironmentArtifactSHA256: canon.Sum([]byte("environment")), ConfigSHA256: canon.Sum([]byte("config")),
		Probe: Probe{WeightsHash: h("w", 0), OptimizerHash: h("o", 0), RNGHash: h("r", 0), BatchIDsHash: h("b", 0)},
		Exact: true, PredictionAgreement: 1,
	}
	for _, step := range ProbeSteps {
		s := ProbedStep{step, h("w", step), h("w", step)}
		if from > 0 && step >= from {
			s.B = h("other", step)
			if r.Exact {
				r.Exact, r.FirstDivergentStep = false, &s.Step
				r.MaxAbsWeightDelta, r.MaxRelWeightDelta, r.PredictionAgreement = 1e-7, 0.25, 0.5
			}
		}
		r.Probe.Steps = append(r.Probe.Steps, s)
	}
	return r
}

func TestValidateDeterminism(t *testing.T) {
	for _, from := range []uint64{0, 1, 8, 100} {
		if err := twin(from).Validate(); err != nil {
			t.Errorf("apart from step %d: %v", from, err)
		}
	}
	back := twin(8) // apart at 8 and together again, which is not exact
	for i := range back.Probe.Steps {
		if s := &back.Probe.Steps[i]; s.Step != 8 {
			s.B = s.A
		}
	}
	back.MaxAbsWeightDelta, back.MaxRelWeightDelta, back.PredictionAgreement = 0, 0, 1
	if err := back.Validate(); err != nil {
		t.Errorf("together again: %v", err)
	}
	zeros := twin(100) // -0 and 0 are other bits and no difference
	zeros.MaxAbsWeightDelta, zeros.MaxRelWeightDelta = 0, 0
	if err := zeros.Validate(); err != nil {
		t.Errorf("zeros of two signs: %v", err)
	}
	guess := twin(0) // equal weights that answer differently: an inference that is not exact
	guess.PredictionAgreement = 0.5
	if err := guess.Validate(); err != nil {
		t.Errorf("equal weights, other answers: %v", err)
	}
	step := func(n uint64) *uint64 { return &n }
	nan := func() float64 { z := 0.0; return z / z }()
	for _, tt := range []struct {
		name   string
		from   uint64
		change func(*DeterminismReport)
		want   string
	}{
		{"environment", 0, func(r *DeterminismReport) { r.EnvironmentArtifactSHA256 = "x" }, "/environment_artifact_sha256: "},
		{"config", 0, func(r *DeterminismReport) { r.ConfigSHA256 = "" }, "/config_sha256: "},
		{"initial weights", 0, func(r *DeterminismReport) { r.Probe.WeightsHash = "" }, "/probe/weights_hash: "},
		{"optimizer", 0, func(r *DeterminismReport) { r.Probe.OptimizerHash = "" }, "/probe/optimizer_hash: "},
		{"rng", 0, func(r *DeterminismReport) { r.Probe.RNGHash = "" }, "/probe/rng_hash: "},
		{"batch ids", 0, func(r *DeterminismReport) { r.Probe.BatchIDsHash = "" }, "/probe/batch_ids_hash: "},
		{"a hash of a step", 0, func(r *DeterminismReport) { r.Probe.Steps[3].B = "sha256:" }, "/probe/steps/3/b: "},
		{"no steps", 0, func(r *DeterminismReport) { r.Probe.Steps = nil }, "/probe/steps: "},
		{"the last step left out", 0, func(r *DeterminismReport) { r.Probe.Steps = r.Probe.Steps[:7] }, "/probe/steps: "},
		{"another step", 0, func(r *DeterminismReport) { r.Probe.Steps[7].Step = 99 }, "/probe/steps: "},
		{"steps out of order", 0, func(r *DeterminismReport) {
			s := r.Probe.Steps
			s[0], s[1] = s[1], s[0]
		}, "/probe/steps: "},
		{"a step twice", 0, func(r *DeterminismReport) { r.Probe.Steps = append(r.Probe.Steps, r.Probe.Steps[7]) }, "/probe/steps: "},
		{"said to be exact", 8, func(r *DeterminismReport) { r.Exact = true }, "/exact: "},
		{"said to be inexact", 0, func(r *DeterminismReport) { r.Exact = false }, "/exact: "},
		{"no first step", 8, func(r *DeterminismReport) { r.FirstDivergentStep = nil }, "/first_divergent_step: "},
		{"a later first step", 8, func(r *DeterminismReport) { r.FirstDivergentStep = step(16) }, "/first_divergent_step: "},
		{"a first step of none", 0, func(r *DeterminismReport) { r.FirstDivergentStep = step(1) }, "/first_divergent_step: "},
		{"a difference below 0", 1, func(r *DeterminismReport) { r.MaxAbsWeightDelta = -1 }, "/max_abs_weight_delta: "},
		{"a difference that is none", 1, func(r *DeterminismReport) { r.MaxAbsWeightDelta = nan }, "/max_abs_weight_delta: "},
		{"a relative difference above 2", 1, func(r *DeterminismReport) { r.MaxRelWeightDelta = 2.5 }, "/max_rel_weight_delta: "},
		{"an absolute difference alone", 1, func(r *DeterminismReport) { r.MaxRelWeightDelta = 0 }, "/max_rel_weight_delta: "},
		{"agreement above 1", 1, func(r *DeterminismReport) { r.PredictionAgreement = 1.5 }, "/prediction_agreement: "},
		{"agreement below 0", 1, func(r *DeterminismReport) { r.PredictionAgreement = -0.5 }, "/prediction_agreement: "},
		{"a difference of equal weights", 0, func(r *DeterminismReport) { r.MaxAbsWeightDelta, r.MaxRelWeightDelta = 1, 1 }, "/max_abs_weight_delta: "},
		{"an op without a name", 0, func(r *DeterminismReport) { r.KnownNondeterministicOps = []string{""} }, "/known_nondeterministic_ops/0: "},
		{"ops not sorted", 0, func(r *DeterminismReport) { r.KnownNondeterministicOps = []string{"b", "a"} }, "/known_nondeterministic_ops/1: "},
		{"an op twice", 0, func(r *DeterminismReport) { r.KnownNondeterministicOps = []string{"a", "a"} }, "/known_nondeterministic_ops/1: "},
	} {
		r := twin(tt.from)
		tt.change(&r)
		checkFault(t, tt.name, r.Validate(), tt.want)
	}
}

// TestDeterminismWire holds the names of the wire, and reading to be closed.
func TestDeterminismWire(t *testing.T) {
	b, err := canon.Marshal(twin(0))
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(b, &members); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"environment_artifact_sha256", "config_sha256", "probe", "exact", "first_divergent_step", "max_abs_weight_delta",
		"max_rel_weight_delta", "prediction_agreement", "known_nondeterministic_ops",
	} {
		if _, ok := members[name]; !ok {
			t.Errorf("there is no member %s", name)
		}
		delete(members, name)
	}
	if len(members) > 0 {
		t.Errorf("HIP-1334 §6.2 has no %v", members)
	}
	var back DeterminismReport
	if err := canon.Unmarshal(b, &back); err != nil {
		t.Errorf("read back: %v", err)
	}
	var fault *canon.Error
	if err := canon.Unmarshal(append([]byte(`{"passes":true,`), b[1:]...), &back); !errors.As(err, &fault) {
		t.Errorf("a member more: %v", err)
	}
}
