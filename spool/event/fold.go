package event

import (
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"sort"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// Refs answers what the rules ask about objects outside the run. A producer
// answers from its spool, the server from its store.
type Refs interface {
	Artifact(canon.SHA256) (record.Artifact, bool) // registered, and may not be stored yet
	Gate(canon.Hash) bool
	Dataset(id string) (record.Dataset, bool)
}

// An Outcome is what became of an event.
type Outcome uint8

const (
	Refused   Outcome = iota // it changed nothing
	Accepted                 // it is the run's newest event
	Duplicate                // it was there already
)

func (o Outcome) String() string {
	switch o {
	case Accepted:
		return "accepted"
	case Duplicate:
		return "duplicate"
	}
	return "refused"
}

// A Run is the fold of a run's events. The zero Run has none.
type Run struct {
	id    string
	ids   []digest     // event ids, by seq − 1
	steps []stepRecord // ascending; a repeated step is one

	created     RunCreated
	createdAt   string
	datasets    []DatasetAttached
	plan        *TrainStarted
	checkpoints []CheckpointCreated
	evaluations []evaluation // in EVAL_STARTED order
	gates       []GateEvaluated
	completed   *RunCompleted
	completedAt string
}

// A digest is the 32 bytes of a canon.Hash.
type digest [32]byte

// A stepRecord is a StepRecorded in 72 bytes without pointers.
type stepRecord struct {
	step, tokens       uint64
	loss, gradNorm, lr float64
	batchIDs           digest
}

type evaluation struct {
	started     EvalStarted
	startedAt   string
	completed   *EvalCompleted
	completedAt string
}

// Next returns the seq that the run expects.
func (r *Run) Next() uint64 { return uint64(len(r.ids)) + 1 }

// Apply adds an event to the run. It returns Duplicate without error for one that
// is there already, and Refused with a *[Refusal] for one that breaks a rule.
func (r *Run) Apply(e Event, refs Refs) (Outcome, error) {
	if e.json == nil || e.ID != e.id {
		return Refused, invalid(ErrID, e.Seq, "the event was not made by New or Parse, or was changed since")
	}
	if r.id != "" && e.Run != r.id {
		return Refused, invalid(ErrInvalid, e.Seq, "/run: the event is of run %s, not %s", e.Run, r.id)
	}
	switch next := r.Next(); {
	case e.Seq < next:
		if stored := r.ids[e.Seq-1]; stored != digestOf(e.ID) {
			return Refused, conflict(ErrConflict, e.Seq, "the event stored there is %s, not %s", stored.hash(), e.ID)
		}
		return Duplicate, nil
	case r.completed != nil:
		return Refused, conflict(ErrCompleted, e.Seq, "seq %d completed the run; a later event belongs to a new run", len(r.ids))
	case e.Seq > next:
		return Refused, conflict(ErrGap, e.Seq, "the next seq is %d", next)
	}
	if refusal := r.admit(e.Body, refs); refusal != nil {
		refusal.Seq = e.Seq
		return Refused, refusal
	}
	r.id = e.Run
	r.ids = append(r.ids, digestOf(e.ID))
	r.record(e)
	return Accepted, nil
}

// admit tests a body against the rules of HIP-1334 §7.2.
func (r *Run) admit(body Body, refs Refs) *Refusal {
	_, creates := body.(RunCreated)
	switch first := len(r.ids) == 0; {
	case first && !creates:
		return broken(RunNotCreated, "a run's first event is RUN_CREATED, not %s", body.Type())
	case creates && !first:
		return broken(RunCreatedTwice, "RUN_CREATED is seq 1 and nowhere else")
	}
	switch b := body.(type) {
	case RunCreated:
		return admitCreation(b, refs)
	case DatasetAttached:
		return admitDataset(b, refs)
	case TrainStarted:
		if r.plan != nil {
			return broken(TrainStartedTwice, "training starts at most once in a run")
		}
		inTrain := func(d DatasetAttached) bool { return d.Role == record.RoleTrain }
		if !slices.ContainsFunc(r.datasets, inTrain) {
			return broken(NoTrainDataset, "training starts after a dataset is attached in role train")
		}
	case StepRecorded:
		if r.plan == nil {
			return broken(TrainNotStarted, "a step is recorded after TRAIN_STARTED")
		}
		_, refusal := r.repeats(b)
		return refusal
	case CheckpointCreated:
		a, ok := refs.Artifact(b.ArtifactSHA256)
		if !ok {
			return broken(ArtifactUnknown, "artifact_sha256: artifact %s is not registered", b.ArtifactSHA256)
		}
		if a.Purpose != record.Train {
			return broken(PurposeRefused, "artifact_sha256: a checkpoint's purpose is train, and %s has %s", a.SHA256, a.Purpose)
		}
	case EvalStarted:
		attached := func(d DatasetAttached) bool {
			return d.Role == record.RoleEvaluate && d.Dataset == b.Dataset && d.DatasetSHA256 == b.DatasetSHA256
		}
		if !slices.ContainsFunc(r.datasets, attached) {
			return broken(NotAttached, "dataset %s at %s is not attached in role evaluate", b.Dataset, b.DatasetSHA256)
		}
		if r.evaluation(b.Evaluation) != nil {
			return broken(EvalStartedTwice, "evaluation %s has begun before", b.Evaluation)
		}
	case EvalCompleted:
		switch ev := r.evaluation(b.Evaluation); {
		case ev == nil:
			return broken(EvalNotStarted, "evaluation %s has not begun", b.Evaluation)
		case ev.completed != nil:
			return broken(EvalEndedTwice, "evaluation %s has ended before", b.Evaluation)
		}
	case GateEvaluated:
		if !refs.Gate(b.GateSpecHash) {
			return broken(GateUnknown, "gate %s is not stored", b.GateSpecHash)
		}
	}
	return nil
}

func admitCreation(b RunCreated, refs Refs) *Refusal {
	for _, named := range []struct {
		member string
		sha256 canon.SHA256
		kind   record.Kind
	}{
		{"environment_artifact_sha256", b.EnvironmentArtifactSHA256, record.KindEnvironment},
		{"config_sha256", b.ConfigSHA256, record.KindConfig},
	} {
		a, ok := refs.Artifact(named.sha256)
		if !ok {
			return broken(ArtifactUnknown, "%s: artifact %s is not registered", named.member, named.sha256)
		}
		if a.Kind != named.kind {
			return broken(ArtifactKind, "%s: artifact %s is of kind %s, not %s", named.member, named.sha256, a.Kind, named.kind)
		}
	}
	for i, p := range b.Parents {
		if _, ok := refs.Artifact(p); !ok {
			return broken(ArtifactUnknown, "parents/%d: artifact %s is not registered", i, p)
		}
	}
	if b.GateSpecHash != nil && !refs.Gate(*b.GateSpecHash) {
		return broken(GateUnknown, "gate_spec_hash: gate %s is not stored; a gate is stored before the run it judges", *b.GateSpecHash)
	}
	return nil
}

func admitDataset(b DatasetAttached, refs Refs) *Refusal {
	d, ok := refs.Dataset(b.Dataset)
	switch {
	case !ok:
		return broken(NotSealed, "dataset %s is unknown; a run attaches only a sealed dataset", b.Dataset)
	case d.State != record.Sealed || d.SHA256 == nil:
		return broken(NotSealed, "dataset %s is open; a run attaches only a sealed dataset", b.Dataset)
	case *d.SHA256 != b.DatasetSHA256:
		return broken(NotSealed, "dataset %s is sealed at %s, not %s", b.Dataset, *d.SHA256, b.DatasetSHA256)
	case d.Purpose != b.Purpose:
		return broken(PurposeRefused, "dataset %s has purpose %s, not %s", b.Dataset, d.Purpose, b.Purpose)
	case !b.Purpose.Admits(b.Role):
		return broken(PurposeRefused, "purpose %s of dataset %s does not admit role %s", b.Purpose, b.Dataset, b.Role)
	}
	return nil
}

// record adds what an admitted event says.
func (r *Run) record(e Event) {
	switch b := e.Body.(type) {
	case RunCreated:
		r.created, r.createdAt = b, e.At
	case DatasetAttached:
		r.datasets = append(r.datasets, b)
	case TrainStarted:
		r.plan = &b
	case StepRecorded:
		if last, _ := r.last(); b.Step > last {
			r.steps = append(r.steps, stepOf(b))
		}
	case CheckpointCreated:
		r.checkpoints = append(r.checkpoints, b)
	case EvalStarted:
		r.evaluations = append(r.evaluations, evaluation{started: b, startedAt: e.At})
	case EvalCompleted:
		ev := r.evaluation(b.Evaluation)
		ev.completed, ev.completedAt = &b, e.At
	case GateEvaluated:
		r.gates = append(r.gates, b)
	case RunCompleted:
		r.completed, r.completedAt = &b, e.At
	default:
		panic(fmt.Sprintf("event: the fold does not know %T", b))
	}
}

func (r *Run) evaluation(id string) *evaluation {
	for i := range r.evaluations {
		if r.evaluations[i].started.Evaluation == id {
			return &r.evaluations[i]
		}
	}
	return nil
}

// Check compares a step that a resumed trainer repeats with the log, before
// anything is appended. recorded is false for a step the log does not have yet. A
// step that differs in any number or in its batch is [ErrDiverged]: the run has
// to end as failed and go on as a new run from the checkpoint (HIP-1334 §7.3).
func (r *Run) Check(s StepRecorded) (recorded bool, err error) {
	recorded, refusal := r.repeats(s)
	if refusal != nil {
		return true, refusal
	}
	return recorded, nil
}

// repeats reports whether s is a step recorded before, and refuses one that differs
// from its record.
func (r *Run) repeats(s StepRecorded) (bool, *Refusal) {
	i := sort.Search(len(r.steps), func(i int) bool { return r.steps[i].step >= s.Step })
	if i == len(r.steps) {
		return false, nil
	}
	if r.steps[i].step != s.Step {
		return true, conflict(ErrDiverged, 0, "step %d was not recorded, and later steps were", s.Step)
	}
	was := r.steps[i].body()
	for _, f := range []struct {
		name     string
		was, now any
	}{
		{"tokens", was.Tokens, s.Tokens},
		{"loss", was.Loss, s.Loss},
		{"grad_norm", was.GradNorm, s.GradNorm},
		{"lr", was.LR, s.LR},
		{"batch_ids_hash", was.BatchIDsHash, s.BatchIDsHash},
	} {
		if f.was != f.now {
			return true, conflict(ErrDiverged, 0, "step %d was recorded with %s %v, and now has %v", s.Step, f.name, f.was, f.now)
		}
	}
	return true, nil
}

// Steps returns the recorded steps in order, each once.
func (r *Run) Steps() iter.Seq[StepRecorded] {
	return func(yield func(StepRecorded) bool) {
		for _, s := range r.steps {
			if !yield(s.body()) {
				return
			}
		}
	}
}

// last returns the highest recorded step and its tokens, or zeros.
func (r *Run) last() (step, tokens uint64) {
	if len(r.steps) == 0 {
		return 0, 0
	}
	s := r.steps[len(r.steps)-1]
	return s.step, s.tokens
}

func stepOf(b StepRecorded) stepRecord {
	return stepRecord{b.Step, b.Tokens, b.Loss, b.GradNorm, b.LR, digestOf(b.BatchIDsHash)}
}

func (s stepRecord) body() StepRecorded {
	return StepRecorded{s.step, s.tokens, s.loss, s.gradNorm, s.lr, s.batchIDs.hash()}
}

// digestOf returns the bytes of a hash that New or Parse has found valid.
func digestOf(h canon.Hash) (d digest) {
	if n, err := hex.Decode(d[:], []byte(h.Hex())); err != nil || n != len(d) {
		panic(fmt.Sprintf("event: %q passed for a hash", h))
	}
	return d
}

func (d digest) hash() canon.Hash { return canon.Hash("sha256:" + hex.EncodeToString(d[:])) }
