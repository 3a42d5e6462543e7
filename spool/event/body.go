package event

import (
	"regexp"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

// A Type names a kind of event.
type Type string

const (
	TypeRunCreated        Type = "RUN_CREATED"
	TypeDatasetAttached   Type = "DATASET_ATTACHED"
	TypeTrainStarted      Type = "TRAIN_STARTED"
	TypeStepRecorded      Type = "STEP_RECORDED"
	TypeCheckpointCreated Type = "CHECKPOINT_CREATED"
	TypeEvalStarted       Type = "EVAL_STARTED"
	TypeEvalCompleted     Type = "EVAL_COMPLETED"
	TypeGateEvaluated     Type = "GATE_EVALUATED"
	TypeRunCompleted      Type = "RUN_COMPLETED"
)

// A Body is what one kind of event says: one of the nine structs below, by value.
type Body interface {
	Type() Type
	check() error // what its fields' types cannot say
}

// RunCreated begins a run. It is seq 1 and nowhere else.
type RunCreated struct {
	Kind                      RunKind        `json:"kind"`
	EnvironmentArtifactSHA256 canon.SHA256   `json:"environment_artifact_sha256"`
	ConfigSHA256              canon.SHA256   `json:"config_sha256"`
	Parents                   []canon.SHA256 `json:"parents"` // the checkpoints it starts from
	Seed                      uint64         `json:"seed"`
	GateSpecHash              *canon.Hash    `json:"gate_spec_hash"`
	Job                       *string        `json:"job"`
	Tags                      []string       `json:"tags"`
	By                        string         `json:"by"`
}

// DatasetAttached says that the run reads a sealed dataset, and how.
type DatasetAttached struct {
	Dataset       string         `json:"dataset"`
	DatasetSHA256 canon.SHA256   `json:"dataset_sha256"`
	Purpose       record.Purpose `json:"purpose"`
	Role          record.Role    `json:"role"`
}

// TrainStarted gives the plan of training, in whole.
type TrainStarted struct {
	PlanSHA256 canon.SHA256 `json:"plan_sha256"`
	Batches    uint64       `json:"batches"`
	Tokens     uint64       `json:"tokens"`
}

// StepRecorded is one optimizer step. Tokens counts from the start of the run,
// this step included.
type StepRecorded struct {
	Step         uint64     `json:"step"` // from 1
	Tokens       uint64     `json:"tokens"`
	Loss         float64    `json:"loss"`
	GradNorm     float64    `json:"grad_norm"`
	LR           float64    `json:"lr"`
	BatchIDsHash canon.Hash `json:"batch_ids_hash"`
}

// CheckpointCreated names the weights after a step.
type CheckpointCreated struct {
	Step           uint64       `json:"step"`
	Tokens         uint64       `json:"tokens"`
	ArtifactSHA256 canon.SHA256 `json:"artifact_sha256"`
}

// EvalStarted begins an evaluation of a subject on an attached dataset.
type EvalStarted struct {
	Evaluation    string       `json:"evaluation"` // evl_ and 16 hex digits
	Subject       Subject      `json:"subject"`
	Dataset       string       `json:"dataset"`
	DatasetSHA256 canon.SHA256 `json:"dataset_sha256"`
	Evaluator     Evaluator    `json:"evaluator"`
}

// EvalCompleted ends it.
type EvalCompleted struct {
	Evaluation        string         `json:"evaluation"`
	Questions         *uint64        `json:"questions"`
	Answered          *uint64        `json:"answered"`
	Measures          []gate.Measure `json:"measures"`
	PredictionsSHA256 *canon.SHA256  `json:"predictions_sha256"`
	ItemsSHA256       *canon.SHA256  `json:"items_sha256"`
}

// GateEvaluated is a verdict reached where the run ran. The server reaches its own
// and refuses one that disagrees.
type GateEvaluated gate.Verdict

// RunCompleted ends a run. Nothing follows it.
type RunCompleted struct {
	Status  RunStatus `json:"status"` // completed, failed or cancelled
	Steps   uint64    `json:"steps"`
	Tokens  uint64    `json:"tokens"`
	Batches uint64    `json:"batches"`
	Error   *string   `json:"error"`
}

func (RunCreated) Type() Type        { return TypeRunCreated }
func (DatasetAttached) Type() Type   { return TypeDatasetAttached }
func (TrainStarted) Type() Type      { return TypeTrainStarted }
func (StepRecorded) Type() Type      { return TypeStepRecorded }
func (CheckpointCreated) Type() Type { return TypeCheckpointCreated }
func (EvalStarted) Type() Type       { return TypeEvalStarted }
func (EvalCompleted) Type() Type     { return TypeEvalCompleted }
func (GateEvaluated) Type() Type     { return TypeGateEvaluated }
func (RunCompleted) Type() Type      { return TypeRunCompleted }

func (RunCreated) check() error { return nil }

func (b DatasetAttached) check() error { return checkDataset(b.Dataset) }

func (TrainStarted) check() error { return nil }

func (b StepRecorded) check() error {
	if b.Step == 0 {
		return fault("/step", "counts from 1")
	}
	return nil
}

func (CheckpointCreated) check() error { return nil }

func (b EvalStarted) check() error {
	if err := checkEvaluation(b.Evaluation); err != nil {
		return err
	}
	return checkDataset(b.Dataset)
}

func (b EvalCompleted) check() error { return checkEvaluation(b.Evaluation) }

func (GateEvaluated) check() error { return nil }

func (b RunCompleted) check() error {
	if !b.Status.ended() {
		return fault("/status", "a run completes as completed, failed or cancelled, not %q", b.Status)
	}
	return nil
}

func checkDataset(id string) error {
	if !record.ValidDataset(id) {
		return fault("/dataset", "%q is not a dataset's name", id)
	}
	return nil
}

var evaluationForm = regexp.MustCompile(`^evl_[0-9a-f]{16}$`)

func checkEvaluation(id string) error {
	if !evaluationForm.MatchString(id) {
		return fault("/evaluation", "%q is not evl_ and 16 hex digits", id)
	}
	return nil
}

// A RunKind is train, eval, harvest or probe.
type RunKind string

const (
	KindTrain   RunKind = "train"
	KindEval    RunKind = "eval"
	KindHarvest RunKind = "harvest"
	KindProbe   RunKind = "probe"
)

// Valid reports whether k is one of the four.
func (k RunKind) Valid() bool {
	return k == KindTrain || k == KindEval || k == KindHarvest || k == KindProbe
}

// A RunStatus says how far a run is.
type RunStatus string

const (
	Created    RunStatus = "created"
	Training   RunStatus = "training"
	Evaluating RunStatus = "evaluating"
	Completed  RunStatus = "completed"
	Failed     RunStatus = "failed"
	Cancelled  RunStatus = "cancelled"
)

// Valid reports whether s is one of the six.
func (s RunStatus) Valid() bool {
	return s == Created || s == Training || s == Evaluating || s.ended()
}

func (s RunStatus) ended() bool { return s == Completed || s == Failed || s == Cancelled }

// A SubjectKind is artifact or system.
type SubjectKind string

const (
	SubjectArtifact SubjectKind = "artifact"
	SubjectSystem   SubjectKind = "system"
)

// Valid reports whether k is one of the two.
func (k SubjectKind) Valid() bool { return k == SubjectArtifact || k == SubjectSystem }

// A Subject is what an evaluation judges: an artifact by its address, or a system
// by its name and version. Only the fields of its kind are written and read.
type Subject struct {
	Kind    SubjectKind
	SHA256  canon.SHA256 // artifact
	Name    string       // system
	Version string       // system
}

type (
	artifactJSON struct {
		Kind   SubjectKind  `json:"kind"`
		SHA256 canon.SHA256 `json:"sha256"`
	}
	systemJSON struct {
		Kind    SubjectKind `json:"kind"`
		Name    string      `json:"name"`
		Version string      `json:"version"`
	}
)

// MarshalJSON writes the fields of s's kind.
func (s Subject) MarshalJSON() ([]byte, error) {
	if s.Kind == SubjectArtifact {
		return canon.Marshal(artifactJSON{s.Kind, s.SHA256})
	}
	return canon.Marshal(systemJSON{s.Kind, s.Name, s.Version})
}

// UnmarshalJSON reads the fields of the kind it finds and refuses others.
func (s *Subject) UnmarshalJSON(b []byte) error {
	kind, err := canon.Tag(b, "kind")
	if err != nil {
		return err
	}
	if SubjectKind(kind) == SubjectArtifact {
		var v artifactJSON
		err = canon.Unmarshal(b, &v)
		*s = Subject{Kind: v.Kind, SHA256: v.SHA256}
		return err
	}
	var v systemJSON
	err = canon.Unmarshal(b, &v)
	*s = Subject{Kind: v.Kind, Name: v.Name, Version: v.Version}
	return err
}

// An EvaluatorKind is harness, judge, human or server.
type EvaluatorKind string

const (
	Harness EvaluatorKind = "harness"
	Judge   EvaluatorKind = "judge"
	Human   EvaluatorKind = "human"
	Server  EvaluatorKind = "server"
)

// Valid reports whether k is one of the four.
func (k EvaluatorKind) Valid() bool {
	return k == Harness || k == Judge || k == Human || k == Server
}

// An Evaluator is what scored an evaluation.
type Evaluator struct {
	Kind           EvaluatorKind `json:"kind"`
	Name           string        `json:"name"`
	Version        string        `json:"version"`
	DefinitionHash canon.Hash    `json:"definition_hash"` // a harness's code tree; a judge's model, criteria and score name
}

// A line is an event's JSON: the envelope and the body's members side by side.
type line[B Body] struct {
	envelope
	Body B `json:",inline"`
}

// A variant reads and writes events of one type.
type variant struct {
	parse func([]byte) (envelope, Body, error)
	line  func(envelope, Body) any
}

var variants = map[Type]variant{
	TypeRunCreated:        variantOf[RunCreated](),
	TypeDatasetAttached:   variantOf[DatasetAttached](),
	TypeTrainStarted:      variantOf[TrainStarted](),
	TypeStepRecorded:      variantOf[StepRecorded](),
	TypeCheckpointCreated: variantOf[CheckpointCreated](),
	TypeEvalStarted:       variantOf[EvalStarted](),
	TypeEvalCompleted:     variantOf[EvalCompleted](),
	TypeGateEvaluated:     variantOf[GateEvaluated](),
	TypeRunCompleted:      variantOf[RunCompleted](),
}

func variantOf[B Body]() variant {
	return variant{
		parse: func(b []byte) (envelope, Body, error) {
			var l line[B]
			err := canon.Unmarshal(b, &l)
			return l.envelope, l.Body, err
		},
		line: func(e envelope, b Body) any { return line[B]{e, b.(B)} },
	}
}

// Valid reports whether t is one of the nine.
func (t Type) Valid() bool { _, ok := variants[t]; return ok }
