package event

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/hanzoai/link/spool/canon"
)

// What a caller may want to tell apart. Every error of [Parse], [Run.Apply] and
// [Run.Check] is a *[Refusal] that is one of these; New's is ErrNotFinite or plain.
var (
	ErrInvalid   = errors.New("not a valid event")                    // 400
	ErrID        = errors.New("event_id is not the event's hash")     // 400
	ErrConflict  = errors.New("another event is stored at this seq")  // 409
	ErrGap       = errors.New("an earlier event is missing")          // 409
	ErrDiverged  = errors.New("a repeated step differs")              // 409
	ErrCompleted = errors.New("the run is completed")                 // 409
	ErrRule      = errors.New("a rule of the run's record is broken") // 422

	ErrNotFinite = canon.ErrNotFinite
)

// A Refusal is why an event was not accepted, in the words of the wire.
type Refusal struct {
	Code   string // event_conflict, gate_unknown, …
	Status int    // the HTTP status of Code
	Seq    uint64 // the refused event's; 0 when it could not be read
	Detail string // what, where, and what would be accepted

	kind error
}

func (r *Refusal) Error() string {
	if r.Seq == 0 {
		return r.Code + ": " + r.Detail
	}
	return fmt.Sprintf("%s: seq %d: %s", r.Code, r.Seq, r.Detail)
}

// Unwrap returns one of the package's sentinels.
func (r *Refusal) Unwrap() error { return r.kind }

// invalid refuses an event for what it is, whatever the run.
func invalid(kind error, seq uint64, format string, args ...any) *Refusal {
	return &Refusal{"invalid_event", http.StatusBadRequest, seq, fmt.Sprintf(format, args...), kind}
}

var conflicts = map[error]string{
	ErrConflict:  "event_conflict",
	ErrGap:       "seq_gap",
	ErrDiverged:  "step_diverged",
	ErrCompleted: "run_completed",
}

func conflict(kind error, seq uint64, format string, args ...any) *Refusal {
	return &Refusal{conflicts[kind], http.StatusConflict, seq, fmt.Sprintf(format, args...), kind}
}

// Codes of the rules of HIP-1334 §7.2.
const (
	RunNotCreated     = "run_not_created"     // the first event is not RUN_CREATED
	RunCreatedTwice   = "run_created_twice"   // RUN_CREATED after the first event
	ArtifactUnknown   = "artifact_unknown"    // an artifact it names is not registered
	ArtifactKind      = "artifact_kind"       // an artifact it names is of another kind
	GateUnknown       = "gate_unknown"        // the gate is not stored
	NotSealed         = "not_sealed"          // no dataset is sealed at that hash
	PurposeRefused    = "purpose_refused"     // the purpose is not the object's, or does not admit the use
	TrainStartedTwice = "train_started_twice" // TRAIN_STARTED after TRAIN_STARTED
	NoTrainDataset    = "no_train_dataset"    // TRAIN_STARTED without a dataset in role train
	TrainNotStarted   = "train_not_started"   // STEP_RECORDED without TRAIN_STARTED
	NotAttached       = "not_attached"        // EVAL_STARTED on a dataset not attached in role evaluate
	EvalStartedTwice  = "eval_started_twice"  // EVAL_STARTED of an evaluation that has begun
	EvalNotStarted    = "eval_not_started"    // EVAL_COMPLETED without its EVAL_STARTED
	EvalEndedTwice    = "eval_ended_twice"    // EVAL_COMPLETED of an evaluation that has ended
)

func broken(code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Status: http.StatusUnprocessableEntity, Detail: fmt.Sprintf(format, args...), kind: ErrRule}
}
