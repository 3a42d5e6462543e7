package record

import (
	"fmt"
	"slices"

	"github.com/hanzoai/link/spool/canon"
)

// ProbeSteps are the steps after which a probe hashes the weights of its replicas
// (HIP-1334 §6.2). The last is how many steps a replica takes.
var ProbeSteps = []uint64{1, 2, 4, 8, 16, 32, 64, 100}

// A DeterminismReport is what became of one configuration that was trained twice
// from one start in one environment (HIP-1334 §6.2). It passes when it is exact.
type DeterminismReport struct {
	EnvironmentArtifactSHA256 canon.SHA256 `json:"environment_artifact_sha256"`
	ConfigSHA256              canon.SHA256 `json:"config_sha256"`
	Probe                     Probe        `json:"probe"`
	Exact                     bool         `json:"exact"`                // every probed step hashed equal
	FirstDivergentStep        *uint64      `json:"first_divergent_step"` // of the probed ones; null when exact
	MaxAbsWeightDelta         float64      `json:"max_abs_weight_delta"` // at the last step, max |a − b| over every element
	MaxRelWeightDelta         float64      `json:"max_rel_weight_delta"` // max |a − b| / max(|a|, |b|) over elements not both 0; at most 2
	// PredictionAgreement is the share of the config's select rows that both replicas
	// answer alike at the last step, in [0, 1]; 1 when there is no such row.
	PredictionAgreement float64 `json:"prediction_agreement"`
	// KnownNondeterministicOps is what the backend declares nondeterministic here,
	// sorted, each once.
	KnownNondeterministicOps []string `json:"known_nondeterministic_ops"`
}

// A Probe is what was hashed of two replicas, A and B. The first four are of the
// start that they share, before the first step.
type Probe struct {
	WeightsHash   canon.Hash   `json:"weights_hash"`
	OptimizerHash canon.Hash   `json:"optimizer_hash"`
	RNGHash       canon.Hash   `json:"rng_hash"`
	BatchIDsHash  canon.Hash   `json:"batch_ids_hash"`
	Steps         []ProbedStep `json:"steps"` // of ProbeSteps, in order
}

// A ProbedStep holds the hashes of the weights of both replicas after a step.
type ProbedStep struct {
	Step uint64     `json:"step"`
	A    canon.Hash `json:"a"`
	B    canon.Hash `json:"b"`
}

// Divergent returns the first step at which the replicas differ, nil when they do
// at none.
func (p Probe) Divergent() *uint64 {
	for _, s := range p.Steps {
		if s.A != s.B {
			return &s.Step
		}
	}
	return nil
}

// Validate checks that a report is whole and says one thing: the verdict follows
// from the hashes, and the differences do not contradict them.
func (r DeterminismReport) Validate() error {
	if err := shape(r); err != nil {
		return err
	}
	var steps []uint64
	for _, s := range r.Probe.Steps {
		steps = append(steps, s.Step)
	}
	if !slices.Equal(steps, ProbeSteps) {
		return fault("probe/steps", fmt.Errorf("are after the steps %v; a probe looks after %v", steps, ProbeSteps))
	}
	first := r.Probe.Divergent()
	switch {
	case r.Exact != (first == nil):
		return fault("exact", fmt.Errorf("is %t, but the hashes say %t", r.Exact, first == nil))
	case (r.FirstDivergentStep == nil) != (first == nil) || first != nil && *first != *r.FirstDivergentStep:
		return fault("first_divergent_step", fmt.Errorf("is %s, but the hashes say %s", number(r.FirstDivergentStep), number(first)))
	case r.MaxAbsWeightDelta < 0:
		return fault("max_abs_weight_delta", fmt.Errorf("%v is below 0", r.MaxAbsWeightDelta))
	case r.MaxRelWeightDelta < 0 || r.MaxRelWeightDelta > 2:
		return fault("max_rel_weight_delta", fmt.Errorf("%v is not in [0, 2]", r.MaxRelWeightDelta))
	case (r.MaxAbsWeightDelta == 0) != (r.MaxRelWeightDelta == 0):
		return fault("max_rel_weight_delta", fmt.Errorf("%v: it is 0 when, and only when, max_abs_weight_delta is", r.MaxRelWeightDelta))
	case r.PredictionAgreement < 0 || r.PredictionAgreement > 1:
		return fault("prediction_agreement", fmt.Errorf("%v is not in [0, 1]", r.PredictionAgreement))
	}
	if last := r.Probe.Steps[len(r.Probe.Steps)-1]; last.A == last.B && r.MaxAbsWeightDelta != 0 {
		return fault("max_abs_weight_delta", fmt.Errorf("is %v, but the weights after step %d are the same", r.MaxAbsWeightDelta, last.Step))
	}
	for i, op := range r.KnownNondeterministicOps {
		if op == "" || i > 0 && op <= r.KnownNondeterministicOps[i-1] {
			return fault(fmt.Sprintf("known_nondeterministic_ops/%d", i), fmt.Errorf("%q: the names are sorted, each once", op))
		}
	}
	return nil
}

// number is n, or null.
func number(n *uint64) string {
	if n == nil {
		return "null"
	}
	return fmt.Sprint(*n)
}
