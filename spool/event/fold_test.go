package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

var (
	environment = canon.Sum([]byte("environment"))
	config      = canon.Sum([]byte("config"))
	checkpoint  = canon.Sum([]byte("checkpoint"))
	devWeights  = canon.Sum([]byte("dev"))
	plan        = canon.Sum([]byte("plan"))
	trainSHA    = canon.Sum([]byte("train items"))
	valSHA      = canon.Sum([]byte("val items"))
	nowhere     = canon.Sum([]byte("not held"))
	gateHash    = canon.HashOf([]byte("gate"))
	noGate      = canon.HashOf([]byte("not stored"))
)

// held is what a store holds, as maps.
type held struct {
	artifacts map[canon.SHA256]record.Artifact
	gates     map[canon.Hash]bool
	datasets  map[string]record.Dataset
}

func (h held) Artifact(sha canon.SHA256) (record.Artifact, bool) {
	a, ok := h.artifacts[sha]
	return a, ok
}
func (h held) Gate(hash canon.Hash) bool                { return h.gates[hash] }
func (h held) Dataset(id string) (record.Dataset, bool) { d, ok := h.datasets[id]; return d, ok }

func world() held {
	h := held{artifacts: map[canon.SHA256]record.Artifact{}, gates: map[canon.Hash]bool{gateHash: true}, datasets: map[string]record.Dataset{}}
	for _, a := range []record.Artifact{
		{SHA256: environment, Kind: record.KindEnvironment, Purpose: record.Train},
		{SHA256: config, Kind: record.KindConfig, Purpose: record.Train},
		{SHA256: checkpoint, Kind: record.KindCheckpoint, Purpose: record.Train},
		{SHA256: devWeights, Kind: record.KindCheckpoint, Purpose: record.Dev},
	} {
		h.artifacts[a.SHA256] = a
	}
	h.add("triage.train", record.Train, trainSHA)
	h.add("triage.val", record.EvalOnly, valSHA)
	h.datasets["open"] = record.Dataset{ID: "open", Purpose: record.Train, State: record.Open}
	return h
}

func (h held) add(id string, p record.Purpose, sha canon.SHA256) {
	h.datasets[id] = record.Dataset{ID: id, Purpose: p, State: record.Sealed, SHA256: &sha}
}

// at makes the event of seq, which happened seq seconds into the run.
func at(seq uint64, body Body) Event {
	e, err := New("job_1", seq, time.Date(2026, 9, 29, 7, 42, int(seq), 0, time.UTC), body)
	if err != nil {
		panic(err)
	}
	return e
}

func created() RunCreated {
	return RunCreated{Kind: KindTrain, EnvironmentArtifactSHA256: environment, ConfigSHA256: config, Parents: []canon.SHA256{checkpoint}, GateSpecHash: &gateHash}
}

func creation(change func(*RunCreated)) RunCreated {
	c := created()
	change(&c)
	return c
}

func attach(dataset string, sha canon.SHA256, p record.Purpose, r record.Role) DatasetAttached {
	return DatasetAttached{dataset, sha, p, r}
}

var (
	forTraining   = attach("triage.train", trainSHA, record.Train, record.RoleTrain)
	forEvaluation = attach("triage.val", valSHA, record.EvalOnly, record.RoleEvaluate)
	started       = TrainStarted{plan, 10, 1000}
)

func step(n uint64, loss float64) StepRecorded {
	return StepRecorded{n, 100 * n, loss, 0.5, 1e-3, canon.HashOf(fmt.Append(nil, n))}
}

func differs(s StepRecorded, change func(*StepRecorded)) StepRecorded { change(&s); return s }

func evl(n int) string { return fmt.Sprintf("evl_%016x", n) }

func evalStarted(n int) EvalStarted {
	return EvalStarted{evl(n), Subject{Kind: SubjectArtifact, SHA256: checkpoint}, "triage.val", valSHA, Evaluator{Harness, "bench", "1", canon.HashOf(nil)}}
}

func evalCompleted(n int) EvalCompleted {
	return EvalCompleted{Evaluation: evl(n), Questions: ptr(uint64(3)), Answered: ptr(uint64(3)), ItemsSHA256: &valSHA,
		Measures: []gate.Measure{{Category: "all", Metric: "accuracy", Value: 1}}}
}

func completed(s RunStatus) RunCompleted {
	return RunCompleted{Status: s, Steps: 2, Tokens: 200, Batches: 2}
}

// log numbers bodies from 1.
func log(bodies ...Body) []Event {
	events := make([]Event, len(bodies))
	for i, b := range bodies {
		events[i] = at(uint64(i+1), b)
	}
	return events
}

// fold applies events of which none is refused.
func fold(t testing.TB, events []Event) *Run {
	t.Helper()
	var run Run
	for _, e := range events {
		if got, err := run.Apply(e, world()); err != nil {
			t.Fatalf("setting up: Apply(seq %d, %s) = %v, %v", e.Seq, e.Body.Type(), got, err)
		}
	}
	return &run
}

// TestApply checks the rules of HIP-1334 §7.2 and §7.3, one row a rule.
func TestApply(t *testing.T) {
	training := log(created(), forTraining, started, step(1, 0.6612), step(2, 0.6588)) // next is 6
	evaluating := log(created(), forEvaluation, evalStarted(1))                        // next is 4
	ended := log(created(), completed(Completed))                                      // next is 3

	other := at(1, created())
	other.Run = "job_2"
	theirs, err := New("job_2", 6, time.Unix(0, 0), step(3, 0.6))
	if err != nil {
		t.Fatal(err)
	}

	tests := []struct {
		name    string
		log     []Event // already applied
		e       Event
		want    Outcome
		wantErr error  // matched with errors.Is; nil means accepted or duplicate
		code    string // of the refusal
	}{
		// §7.3
		{"first event", nil, at(1, created()), Accepted, nil, ""},
		{"next event", training, at(6, step(3, 0.65)), Accepted, nil, ""},
		{"sent twice", training, at(4, step(1, 0.6612)), Duplicate, nil, ""},
		{"first sent twice", training, at(1, created()), Duplicate, nil, ""},
		{"last sent twice after completion", ended, ended[1], Duplicate, nil, ""},
		{"same seq, other content", training, at(4, step(1, 0.7)), Refused, ErrConflict, "event_conflict"},
		{"same seq, other content after completion", ended, at(2, completed(Failed)), Refused, ErrConflict, "event_conflict"},
		{"past next", training, at(7, step(3, 0.65)), Refused, ErrGap, "seq_gap"},
		{"first is not seq 1", nil, at(2, created()), Refused, ErrGap, "seq_gap"},
		{"after completion", ended, at(3, step(3, 0.65)), Refused, ErrCompleted, "run_completed"},
		{"long after completion", ended, at(9, step(3, 0.65)), Refused, ErrCompleted, "run_completed"},
		{"not made by New or Parse", nil, Event{ID: other.ID, Run: "job_1", Seq: 1, Body: created()}, Refused, ErrID, "invalid_event"},
		{"id changed since", nil, func() Event { e := at(1, created()); e.ID = noGate; return e }(), Refused, ErrID, "invalid_event"},
		{"of another run", training, theirs, Refused, ErrInvalid, "invalid_event"},
		{"repeated step agrees", training, at(6, step(1, 0.6612)), Accepted, nil, ""},
		{"repeated step: tokens", training, at(6, differs(step(1, 0.6612), func(s *StepRecorded) { s.Tokens++ })), Refused, ErrDiverged, "step_diverged"},
		{"repeated step: loss", training, at(6, step(1, 0.6613)), Refused, ErrDiverged, "step_diverged"},
		{"repeated step: grad_norm", training, at(6, differs(step(2, 0.6588), func(s *StepRecorded) { s.GradNorm = 0.5000000000000001 })), Refused, ErrDiverged, "step_diverged"},
		{"repeated step: lr", training, at(6, differs(step(2, 0.6588), func(s *StepRecorded) { s.LR = 2e-3 })), Refused, ErrDiverged, "step_diverged"},
		{"repeated step: batch_ids_hash", training, at(6, differs(step(2, 0.6588), func(s *StepRecorded) { s.BatchIDsHash = canon.HashOf(nil) })), Refused, ErrDiverged, "step_diverged"},
		{"step that was skipped", log(created(), forTraining, started, step(5, 0.6)), at(5, step(3, 0.6)), Refused, ErrDiverged, "step_diverged"},

		// §7.2: RUN_CREATED
		{"RUN_CREATED twice", training, at(6, created()), Refused, ErrRule, "run_created_twice"},
		{"first is not RUN_CREATED", nil, at(1, forTraining), Refused, ErrRule, "run_not_created"},
		{"environment not registered", nil, at(1, creation(func(c *RunCreated) { c.EnvironmentArtifactSHA256 = nowhere })), Refused, ErrRule, "artifact_unknown"},
		{"environment is something else", nil, at(1, creation(func(c *RunCreated) { c.EnvironmentArtifactSHA256 = config })), Refused, ErrRule, "artifact_kind"},
		{"config not registered", nil, at(1, creation(func(c *RunCreated) { c.ConfigSHA256 = nowhere })), Refused, ErrRule, "artifact_unknown"},
		{"config is something else", nil, at(1, creation(func(c *RunCreated) { c.ConfigSHA256 = checkpoint })), Refused, ErrRule, "artifact_kind"},
		{"parent not registered", nil, at(1, creation(func(c *RunCreated) { c.Parents = []canon.SHA256{checkpoint, nowhere} })), Refused, ErrRule, "artifact_unknown"},
		{"no parents", nil, at(1, creation(func(c *RunCreated) { c.Parents = nil })), Accepted, nil, ""},
		{"gate not stored", nil, at(1, creation(func(c *RunCreated) { c.GateSpecHash = &noGate })), Refused, ErrRule, "gate_unknown"},
		{"no gate", nil, at(1, creation(func(c *RunCreated) { c.GateSpecHash = nil })), Accepted, nil, ""},

		// §7.2: DATASET_ATTACHED (purposes and roles: TestHIP1334Item3)
		{"dataset unknown", training, at(6, attach("other", trainSHA, record.Train, record.RoleTrain)), Refused, ErrRule, "not_sealed"},
		{"dataset open", training, at(6, attach("open", trainSHA, record.Train, record.RoleTrain)), Refused, ErrRule, "not_sealed"},
		{"dataset sealed at another hash", training, at(6, attach("triage.train", valSHA, record.Train, record.RoleTrain)), Refused, ErrRule, "not_sealed"},
		{"purpose is not the dataset's", training, at(6, attach("triage.val", valSHA, record.Train, record.RoleTrain)), Refused, ErrRule, "purpose_refused"},

		// §7.2: TRAIN_STARTED, STEP_RECORDED, CHECKPOINT_CREATED
		{"TRAIN_STARTED twice", training, at(6, started), Refused, ErrRule, "train_started_twice"},
		{"TRAIN_STARTED without a dataset", log(created()), at(2, started), Refused, ErrRule, "no_train_dataset"},
		{"TRAIN_STARTED with a dataset in another role", log(created(), forEvaluation), at(3, started), Refused, ErrRule, "no_train_dataset"},
		{"step before TRAIN_STARTED", log(created(), forTraining), at(3, step(1, 0.6)), Refused, ErrRule, "train_not_started"},
		{"first step is not 1", log(created(), forTraining, started), at(4, step(7, 0.6)), Accepted, nil, ""},
		{"checkpoint", training, at(6, CheckpointCreated{2, 200, checkpoint}), Accepted, nil, ""},
		{"checkpoint not registered", training, at(6, CheckpointCreated{2, 200, nowhere}), Refused, ErrRule, "artifact_unknown"},
		{"checkpoint of another purpose", training, at(6, CheckpointCreated{2, 200, devWeights}), Refused, ErrRule, "purpose_refused"},

		// §7.2: EVAL_STARTED, EVAL_COMPLETED
		{"EVAL_STARTED", log(created(), forEvaluation), at(3, evalStarted(1)), Accepted, nil, ""},
		{"EVAL_STARTED on a dataset not attached", log(created()), at(2, evalStarted(1)), Refused, ErrRule, "not_attached"},
		{"EVAL_STARTED on a dataset in another role", log(created(), attach("triage.val", valSHA, record.EvalOnly, record.RoleQuery)), at(3, evalStarted(1)), Refused, ErrRule, "not_attached"},
		{"EVAL_STARTED twice", evaluating, at(4, evalStarted(1)), Refused, ErrRule, "eval_started_twice"},
		{"a second evaluation", evaluating, at(4, evalStarted(2)), Accepted, nil, ""},
		{"EVAL_COMPLETED", evaluating, at(4, evalCompleted(1)), Accepted, nil, ""},
		{"EVAL_COMPLETED without EVAL_STARTED", evaluating, at(4, evalCompleted(2)), Refused, ErrRule, "eval_not_started"},
		{"EVAL_COMPLETED twice", append(evaluating[:3:3], at(4, evalCompleted(1))), at(5, evalCompleted(1)), Refused, ErrRule, "eval_ended_twice"},

		// §7.2: GATE_EVALUATED, RUN_COMPLETED
		{"GATE_EVALUATED", training, at(6, GateEvaluated{gateHash, gate.Pass, []gate.RuleResult{}}), Accepted, nil, ""},
		{"GATE_EVALUATED by a gate not stored", training, at(6, GateEvaluated{GateSpecHash: noGate, Verdict: gate.Pass}), Refused, ErrRule, "gate_unknown"},
		{"RUN_COMPLETED", evaluating, at(4, completed(Failed)), Accepted, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run := fold(t, tt.log)
			before, next := show(run), run.Next()

			got, err := run.Apply(tt.e, world())
			if got != tt.want || !errors.Is(err, tt.wantErr) || (err == nil) != (tt.wantErr == nil) {
				t.Fatalf("Apply(seq %d) = %v, %v; want %v, %v", tt.e.Seq, got, err, tt.want, tt.wantErr)
			}
			if tt.want == Accepted {
				next++
			} else if after := show(run); after != before {
				// A refused or repeated event leaves the run as it was.
				t.Errorf("%v changed the run\nfrom %s\nto   %s", got, before, after)
			}
			if run.Next() != next {
				t.Errorf("after Apply, Next = %d, want %d", run.Next(), next)
			}
			if err == nil {
				return
			}
			var r *Refusal
			wantStatus := map[error]int{ErrID: 400, ErrInvalid: 400, ErrRule: 422}[tt.wantErr]
			if wantStatus == 0 {
				wantStatus = 409
			}
			if !errors.As(err, &r) || r.Code != tt.code || r.Status != wantStatus || r.Seq != tt.e.Seq {
				t.Errorf("refusal %+v, want %d %s at seq %d", r, wantStatus, tt.code, tt.e.Seq)
			}
		})
	}
}

// show prints all that a run answers.
func show(r *Run) string {
	v, _ := json.Marshal(r.View())
	e, _ := json.Marshal(r.Evaluations())
	return fmt.Sprintf("%s %s %v", v, e, slices.Collect(r.Steps()))
}

// TestHIP1334Item3 attaches every purpose in every role.
func TestHIP1334Item3(t *testing.T) {
	b, err := os.ReadFile(vectors + "hip1334-admission-matrix.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Roles  []record.Role
		Matrix map[record.Purpose][]bool
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	pairs := 0
	for purpose, row := range v.Matrix {
		for i, admitted := range row {
			pairs++
			refs := world()
			refs.add("d", purpose, trainSHA)
			run := fold(t, log(created()))
			got, err := run.Apply(at(2, attach("d", trainSHA, purpose, v.Roles[i])), refs)
			var r *Refusal
			refused := errors.As(err, &r) && r.Code == "purpose_refused" && r.Status == 422
			if (got == Accepted) != admitted || refused == admitted {
				t.Errorf("%s in role %s: %v, %v; the table says %t", purpose, v.Roles[i], got, err, admitted)
			}
		}
	}
	if pairs != 20 {
		t.Errorf("%d pairs, want 20", pairs)
	}
}

// TestHIP1334Item8 is the list of item 8 as one story.
func TestHIP1334Item8(t *testing.T) {
	events := log(created(), forTraining, started, step(1, 0.6612))
	run := fold(t, events)
	code := func(e Event) string {
		got, err := run.Apply(e, world())
		var r *Refusal
		if errors.As(err, &r) {
			return fmt.Sprint(r.Status, " ", r.Code)
		}
		return got.String()
	}
	for _, want := range []struct {
		e    Event
		code string
	}{
		{events[3], "duplicate"},
		{at(4, step(1, 0.9)), "409 event_conflict"},
		{at(6, step(2, 0.6)), "409 seq_gap"},
		{at(5, step(1, 0.9)), "409 step_diverged"},
		{at(5, step(2, 0.6)), "accepted"},
	} {
		if got := code(want.e); got != want.code {
			t.Errorf("Apply(seq %d) = %s, want %s", want.e.Seq, got, want.code)
		}
	}
	_, err := run.Apply(at(9, step(3, 0.6)), world())
	if !strings.Contains(err.Error(), "next seq is 6") {
		t.Errorf("a gap does not name next: %v", err)
	}
}

// story is a run with everything in it.
func story() []Event {
	var b []Body
	b = append(b, created(), forTraining, forEvaluation, started)
	for n := uint64(1); n <= 20; n++ {
		b = append(b, step(n, 1/float64(n)))
		if n%5 == 0 {
			b = append(b, CheckpointCreated{n, 100 * n, checkpoint}, step(n-1, 1/float64(n-1)))
		}
	}
	b = append(b, evalStarted(1), evalStarted(2), evalCompleted(2), evalCompleted(1),
		GateEvaluated{gateHash, gate.Pass, []gate.RuleResult{}}, RunCompleted{Completed, 20, 2000, 20, nil})
	return log(b...)
}

// TestHIP1334Item9 delivers one log in many ways: whole, one by one, in batches
// that overlap and repeat, and read back from its bytes. The fold is the same.
func TestHIP1334Item9(t *testing.T) {
	events := story()
	want := show(fold(t, events))
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var run Run
		for run.Next() <= uint64(len(events)) {
			// A batch starts anywhere up to next and may be sent again.
			from := r.IntN(int(run.Next()))
			batch := events[from:min(len(events), from+1+r.IntN(20))]
			for range 1 + r.IntN(2) {
				for _, e := range batch {
					if r.IntN(2) == 0 {
						back, err := Parse(e.JSON())
						if err != nil {
							t.Fatal(err)
						}
						e = back
					}
					before := run.Next()
					got, err := run.Apply(e, world())
					if err != nil || (got == Duplicate) != (e.Seq < before) {
						t.Fatalf("Apply(seq %d) at next %d = %v, %v", e.Seq, before, got, err)
					}
				}
			}
			// A bad event in between leaves no trace.
			if _, err := run.Apply(at(run.Next(), created()), world()); err == nil && run.Next() > 2 {
				t.Fatal("a second RUN_CREATED was accepted")
			}
		}
		if got := show(&run); got != want {
			t.Fatalf("the fold depends on delivery:\n%s\n%s", got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	run := fold(t, log(created(), forTraining, started, step(1, 0.6612), step(2, 0.6588)))
	tests := []struct {
		name     string
		step     StepRecorded
		recorded bool
		want     string // in the error
	}{
		{"recorded and equal", step(1, 0.6612), true, ""},
		{"the last", step(2, 0.6588), true, ""},
		{"not recorded yet", step(3, 0.65), false, ""},
		{"differs", step(2, 0.7), true, "step 2 was recorded with loss 0.6588, and now has 0.7"},
		{"differs in the batch", differs(step(2, 0.6588), func(s *StepRecorded) { s.BatchIDsHash = gateHash }), true, "batch_ids_hash"},
	}
	for _, tt := range tests {
		recorded, err := run.Check(tt.step)
		if recorded != tt.recorded || errors.Is(err, ErrDiverged) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Check = %t, %v", tt.name, recorded, err)
		}
	}
	for n := range uint64(2) {
		if recorded, err := new(Run).Check(step(n, 1)); recorded || err != nil {
			t.Errorf("Check of step %d on an empty run = %t, %v", n, recorded, err)
		}
	}
}

func TestView(t *testing.T) {
	events := story()
	stages := []struct {
		after  Type
		status RunStatus
		steps  uint64
	}{
		{TypeRunCreated, Created, 0},
		{TypeDatasetAttached, Created, 0},
		{TypeTrainStarted, Training, 0},
		{TypeStepRecorded, Training, 1},
		{TypeEvalStarted, Evaluating, 20},
		{TypeGateEvaluated, Training, 20},
		{TypeRunCompleted, Completed, 20},
	}
	var run Run
	for _, e := range events {
		if _, err := run.Apply(e, world()); err != nil {
			t.Fatal(err)
		}
		if len(stages) == 0 || e.Body.Type() != stages[0].after {
			continue
		}
		v := run.View()
		if want := stages[0]; v.Status != want.status || v.Steps != want.steps || v.Tokens != 100*want.steps || v.Batches != want.steps || v.Seq != e.Seq {
			t.Errorf("after %s: status %s, %d steps, %d tokens, %d batches, seq %d", want.after, v.Status, v.Steps, v.Tokens, v.Batches, v.Seq)
		}
		if _, err := canon.Marshal(v); err != nil {
			t.Errorf("after %s: the view is not JSON: %v", e.Body.Type(), err)
		}
		stages = stages[1:]
	}
	if len(stages) > 0 {
		t.Errorf("not reached: %v", stages)
	}

	v := run.View()
	want := View{
		ID: "job_1", Kind: KindTrain, Status: Completed, Tags: []string{}, EnvironmentArtifactSHA256: environment, ConfigSHA256: config,
		Parents: []canon.SHA256{checkpoint}, GateSpecHash: &gateHash, Datasets: []DatasetAttached{forTraining, forEvaluation},
		Steps: 20, Tokens: 2000, Batches: 20,
		Checkpoints: []CheckpointCreated{{5, 500, checkpoint}, {10, 1000, checkpoint}, {15, 1500, checkpoint}, {20, 2000, checkpoint}},
		Evaluations: []string{evl(1), evl(2)}, Gates: []GateEvaluated{{gateHash, gate.Pass, []gate.RuleResult{}}},
		Seq: uint64(len(events)), Created: events[0].At, Ended: &events[len(events)-1].At, Visibility: Private,
	}
	if diff := cmp.Diff(want, v); diff != "" {
		t.Errorf("View (-want +got):\n%s", diff)
	}
	// What a caller does to a view does not reach the run.
	v.Datasets[0].Dataset = "changed"
	if run.View().Datasets[0].Dataset != "triage.train" {
		t.Error("a view shares memory with the run")
	}
	steps := slices.Collect(run.Steps())
	if len(steps) != 20 || steps[19] != step(20, 0.05) {
		t.Errorf("Steps = %d, last %+v", len(steps), steps[len(steps)-1])
	}
}

func TestEvaluations(t *testing.T) {
	tests := []struct {
		name                string
		questions, answered *uint64
		want                Completion
	}{
		{"equal", ptr(uint64(3)), ptr(uint64(3)), Complete},
		{"below", ptr(uint64(3)), ptr(uint64(2)), Partial},
		{"above", ptr(uint64(3)), ptr(uint64(4)), Inconsistent},
		{"no questions", nil, ptr(uint64(4)), Unknown},
		{"no answers", ptr(uint64(3)), nil, Unknown},
	}
	for _, tt := range tests {
		done := evalCompleted(1)
		done.Questions, done.Answered = tt.questions, tt.answered
		events := log(created(), forEvaluation, evalStarted(1), done)
		got := fold(t, events).Evaluations()
		want := []Evaluation{{
			ID: evl(1), Run: "job_1", Subject: Subject{Kind: SubjectArtifact, SHA256: checkpoint}, Dataset: "triage.val", DatasetSHA256: valSHA,
			Purpose: record.EvalOnly, Evaluator: evalStarted(1).Evaluator, Questions: tt.questions, Answered: tt.answered, Completion: tt.want,
			Measures: done.Measures, ItemsSHA256: &valSHA, EnvironmentArtifactSHA256: environment, Started: events[2].At, Ended: &events[3].At,
		}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if _, err := canon.Marshal(got); err != nil {
			t.Errorf("%s: not JSON: %v", tt.name, err)
		}
	}
	running := fold(t, log(created(), forEvaluation, evalStarted(1))).Evaluations()
	if len(running) != 1 || running[0].Completion != Unknown || running[0].Ended != nil || running[0].Measures == nil {
		t.Errorf("a running evaluation: %+v", running)
	}
	if none := new(Run).Evaluations(); none == nil || len(none) != 0 {
		t.Errorf("Evaluations of an empty run = %v", none)
	}
}

// TestSizeOfAStep holds the package comment to its number.
func TestSizeOfAStep(t *testing.T) {
	var (
		id digest
		st = stepOf(step(1, 1))
	)
	if n := unsafe.Sizeof(id) + unsafe.Sizeof(st); n != 104 {
		t.Errorf("a step takes %d bytes, not 104", n)
	}
}

func BenchmarkApplyStep(b *testing.B) {
	run := fold(b, log(created(), forTraining, started))
	events := make([]Event, 10_000)
	for i := range events {
		events[i] = at(uint64(i+4), step(uint64(i+1), 0.5))
	}
	refs := world()
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		next := *run
		b.StartTimer()
		for _, e := range events {
			if _, err := next.Apply(e, refs); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(events)), "ns/event")
}
