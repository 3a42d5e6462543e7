package event

import (
	"slices"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

// A Visibility says who may read an object.
type Visibility string

const (
	Private Visibility = "private"
	Org     Visibility = "org"
	Public  Visibility = "public"
)

// Valid reports whether v is one of the three.
func (v Visibility) Valid() bool { return v == Private || v == Org || v == Public }

// A View is what is known of a run (HIP-1334 §7.4). Measures are not on it: they
// are on its evaluations. Project, reference and visibility are the server's to
// fill; the fold leaves them empty, false and private.
type View struct {
	ID                        string              `json:"id"`
	Project                   string              `json:"project"`
	Kind                      RunKind             `json:"kind"`
	Status                    RunStatus           `json:"status"`
	Tags                      []string            `json:"tags"`
	EnvironmentArtifactSHA256 canon.SHA256        `json:"environment_artifact_sha256"`
	Reference                 bool                `json:"reference"` // reference-eligible (§6.3)
	ConfigSHA256              canon.SHA256        `json:"config_sha256"`
	Parents                   []canon.SHA256      `json:"parents"`
	Seed                      uint64              `json:"seed"`
	GateSpecHash              *canon.Hash         `json:"gate_spec_hash"`
	Job                       *string             `json:"job"`
	By                        string              `json:"by"`
	Datasets                  []DatasetAttached   `json:"datasets"`
	Steps                     uint64              `json:"steps"`
	Tokens                    uint64              `json:"tokens"`
	Batches                   uint64              `json:"batches"`
	Checkpoints               []CheckpointCreated `json:"checkpoints"`
	Evaluations               []string            `json:"evaluations"`
	Gates                     []GateEvaluated     `json:"gates"`
	Error                     *string             `json:"error"`
	Seq                       uint64              `json:"seq"` // the last event applied
	Created                   string              `json:"created"`
	Ended                     *string             `json:"ended"`
	Visibility                Visibility          `json:"visibility"`
}

// View returns what the events so far say. Until RUN_COMPLETED gives the totals,
// steps, tokens and batches are those of the last step, one batch a step. Instants
// are the producer's.
func (r *Run) View() View {
	step, tokens := r.last()
	v := View{
		ID:                        r.id,
		Kind:                      r.created.Kind,
		Status:                    r.status(),
		Tags:                      list(r.created.Tags),
		EnvironmentArtifactSHA256: r.created.EnvironmentArtifactSHA256,
		ConfigSHA256:              r.created.ConfigSHA256,
		Parents:                   list(r.created.Parents),
		Seed:                      r.created.Seed,
		GateSpecHash:              r.created.GateSpecHash,
		Job:                       r.created.Job,
		By:                        r.created.By,
		Datasets:                  list(r.datasets),
		Steps:                     step,
		Tokens:                    tokens,
		Batches:                   step,
		Checkpoints:               list(r.checkpoints),
		Evaluations:               []string{},
		Gates:                     list(r.gates),
		Seq:                       uint64(len(r.ids)),
		Created:                   r.createdAt,
		Visibility:                Private,
	}
	for _, ev := range r.evaluations {
		v.Evaluations = append(v.Evaluations, ev.started.Evaluation)
	}
	if c := r.completed; c != nil {
		v.Steps, v.Tokens, v.Batches = c.Steps, c.Tokens, c.Batches
		v.Error = c.Error
		v.Ended = &r.completedAt
	}
	return v
}

func (r *Run) status() RunStatus {
	running := func(ev evaluation) bool { return ev.completed == nil }
	switch {
	case r.completed != nil:
		return r.completed.Status
	case slices.ContainsFunc(r.evaluations, running):
		return Evaluating
	case r.plan != nil:
		return Training
	}
	return Created
}

// list copies s, and an empty list is never nil.
func list[T any](s []T) []T { return append([]T{}, s...) }

// A Completion says how much of an evaluation's questions were answered.
type Completion string

const (
	Complete     Completion = "complete"     // all, and the evaluation has ended
	Partial      Completion = "partial"      // not all
	Inconsistent Completion = "inconsistent" // more than there are
	Unknown      Completion = "unknown"      // it has not ended, or does not say
)

// Valid reports whether c is one of the four.
func (c Completion) Valid() bool {
	return c == Complete || c == Partial || c == Inconsistent || c == Unknown
}

// An Evaluation is the home of a subject's measures on a dataset (HIP-1334 §8.1).
type Evaluation struct {
	ID                        string         `json:"id"`
	Run                       string         `json:"run"`
	Subject                   Subject        `json:"subject"`
	Dataset                   string         `json:"dataset"`
	DatasetSHA256             canon.SHA256   `json:"dataset_sha256"`
	Purpose                   record.Purpose `json:"purpose"` // the dataset's
	Evaluator                 Evaluator      `json:"evaluator"`
	Questions                 *uint64        `json:"questions"`
	Answered                  *uint64        `json:"answered"`
	Completion                Completion     `json:"completion"`
	Measures                  []gate.Measure `json:"measures"`
	PredictionsSHA256         *canon.SHA256  `json:"predictions_sha256"`
	ItemsSHA256               *canon.SHA256  `json:"items_sha256"`
	EnvironmentArtifactSHA256 canon.SHA256   `json:"environment_artifact_sha256"` // the run's
	Started                   string         `json:"started"`
	Ended                     *string        `json:"ended"`
}

// Evaluations returns the run's evaluations in EVAL_STARTED order.
func (r *Run) Evaluations() []Evaluation {
	evaluations := []Evaluation{}
	for _, ev := range r.evaluations {
		e := Evaluation{
			ID:                        ev.started.Evaluation,
			Run:                       r.id,
			Subject:                   ev.started.Subject,
			Dataset:                   ev.started.Dataset,
			DatasetSHA256:             ev.started.DatasetSHA256,
			Purpose:                   r.purpose(ev.started.Dataset),
			Evaluator:                 ev.started.Evaluator,
			Completion:                Unknown,
			Measures:                  []gate.Measure{},
			EnvironmentArtifactSHA256: r.created.EnvironmentArtifactSHA256,
			Started:                   ev.startedAt,
		}
		if c := ev.completed; c != nil {
			e.Questions, e.Answered = c.Questions, c.Answered
			e.Completion = completion(c)
			e.Measures = list(c.Measures)
			e.PredictionsSHA256, e.ItemsSHA256 = c.PredictionsSHA256, c.ItemsSHA256
			e.Ended = &ev.completedAt
		}
		evaluations = append(evaluations, e)
	}
	return evaluations
}

func (r *Run) purpose(dataset string) record.Purpose {
	for _, d := range r.datasets {
		if d.Dataset == dataset {
			return d.Purpose
		}
	}
	panic("event: an evaluation on a dataset that was not attached: " + dataset)
}

func completion(c *EvalCompleted) Completion {
	switch {
	case c.Questions == nil || c.Answered == nil:
		return Unknown
	case *c.Answered > *c.Questions:
		return Inconsistent
	case *c.Answered < *c.Questions:
		return Partial
	}
	return Complete
}
