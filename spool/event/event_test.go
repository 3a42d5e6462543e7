package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/gate"
)

const vectors = "../../test/vectors/"

// exampleEvents are the four of HIP-1334 §7.2.
func exampleEvents(t testing.TB) [][]byte {
	t.Helper()
	b, err := os.ReadFile(vectors + "hip1334-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct{ Events []json.RawMessage }
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Events) != 4 {
		t.Fatalf("%d example events", len(v.Events))
	}
	events := make([][]byte, len(v.Events))
	for i, e := range v.Events {
		events[i] = e
	}
	return events
}

func ptr[T any](v T) *T { return &v }

func TestExamples(t *testing.T) {
	for _, text := range exampleEvents(t) {
		e, err := Parse(text)
		if err != nil {
			t.Errorf("Parse(%s): %v", text, err)
			continue
		}
		want, err := canon.Canonicalize(text)
		if err != nil || !bytes.Equal(e.JSON(), want) {
			t.Errorf("JSON = %s, want %s", e.JSON(), want)
		}
		// Made afresh from its parts, it is the same event.
		at, err := time.Parse(time.RFC3339, e.At)
		if err != nil {
			t.Fatal(err)
		}
		made, err := New(e.Run, e.Seq, at, e.Body)
		if err != nil || made.ID != e.ID || !bytes.Equal(made.JSON(), e.JSON()) {
			t.Errorf("New = %s, %v\nwant  %s", made.JSON(), err, e.JSON())
		}
	}
}

// bodies has one of each type, with every member set.
var bodies = []Body{
	RunCreated{
		Kind: KindTrain, EnvironmentArtifactSHA256: environment, ConfigSHA256: config, Parents: []canon.SHA256{checkpoint},
		Seed: math.MaxUint64, GateSpecHash: ptr(gateHash), Job: ptr("job_1"), Tags: []string{"a"}, By: "evo",
	},
	DatasetAttached{"triage.train", trainSHA, "train", "train"},
	TrainStarted{plan, 10, 1000},
	StepRecorded{1, 100, 0.6612, 0.93, 1.5e-6, canon.HashOf(nil)},
	CheckpointCreated{1, 100, checkpoint},
	EvalStarted{"evl_0123456789abcdef", Subject{Kind: SubjectSystem, Name: "jev", Version: "1.13"}, "triage.val", valSHA,
		Evaluator{Judge, "judge", "1", canon.HashOf(nil)}},
	EvalCompleted{"evl_0123456789abcdef", ptr(uint64(3)), ptr(uint64(2)), []gate.Measure{{Category: "all", Metric: "accuracy", Value: 0.5}}, ptr(valSHA), nil},
	GateEvaluated{gateHash, gate.Fail, []gate.RuleResult{{Rule: 0, N: 3, Reason: ptr(gate.Missing)}}},
	RunCompleted{Failed, 1, 100, 1, ptr("loss is not finite at step 2")},
}

func TestRoundTrip(t *testing.T) {
	if len(bodies) != len(variants) {
		t.Fatalf("%d bodies for %d types", len(bodies), len(variants))
	}
	at := time.Date(2026, 9, 29, 9, 42, 0, 10_999_999, time.FixedZone("", 2*3600))
	for i, body := range bodies {
		e, err := New("run@1", uint64(i+1), at, body)
		if err != nil {
			t.Errorf("New(%s): %v", body.Type(), err)
			continue
		}
		if e.At != "2026-09-29T07:42:00.010Z" {
			t.Errorf("At = %s, want UTC to the millisecond", e.At)
		}
		back, err := Parse(e.JSON())
		if err != nil {
			t.Errorf("Parse(%s): %v", e.JSON(), err)
			continue
		}
		if diff := cmp.Diff(e, back, cmp.AllowUnexported(Event{})); diff != "" {
			t.Errorf("%s (-made +read):\n%s", body.Type(), diff)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	step := StepRecorded{1, 100, 0.5, 1, 1e-3, canon.HashOf(nil)}
	with := func(change func(*StepRecorded)) Body { s := step; change(&s); return s }
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := []struct {
		name string
		run  string
		seq  uint64
		at   time.Time
		body Body
		want string
		is   error
	}{
		{"NaN loss", "r", 1, now, with(func(s *StepRecorded) { s.Loss = math.NaN() }), "/loss: ", ErrNotFinite},
		{"infinite gradient", "r", 1, now, with(func(s *StepRecorded) { s.GradNorm = math.Inf(1) }), "/grad_norm: ", ErrNotFinite},
		{"NaN measure", "r", 1, now, EvalCompleted{Evaluation: "evl_0123456789abcdef",
			Measures: []gate.Measure{{Value: 1}, {Value: math.NaN()}}}, "/measures/1/value: ", ErrNotFinite},
		{"no body", "r", 1, now, nil, "without a body", nil},
		{"run", "a b", 1, now, step, "/run: ", nil},
		{"seq 0", "r", 0, now, step, "/seq: ", nil},
		{"year of five digits", "r", 1, now.AddDate(9000, 0, 0), step, "/at: ", nil},
		{"step 0", "r", 1, now, with(func(s *StepRecorded) { s.Step = 0 }), "/step: ", nil},
		{"hash", "r", 1, now, with(func(s *StepRecorded) { s.BatchIDsHash = "x" }), "/batch_ids_hash: ", nil},
		{"status that does not end", "r", 1, now, RunCompleted{Status: Training}, "/status: ", nil},
		{"status", "r", 1, now, RunCompleted{}, "/status: ", nil},
		{"evaluation", "r", 1, now, EvalCompleted{Evaluation: "evl_1"}, "/evaluation: ", nil},
		{"subject", "r", 1, now, EvalStarted{Evaluation: "evl_0123456789abcdef", Dataset: "d"}, "/dataset_sha256: ", nil},
		{"dataset", "r", 1, now, DatasetAttached{"D", trainSHA, "train", "train"}, "/dataset: ", nil},
		{"role", "r", 1, now, DatasetAttached{"d", trainSHA, "train", "test"}, "/role: ", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := New(tt.run, tt.seq, tt.at, tt.body)
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("New = %s, %v; want %s", e.JSON(), err, tt.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	step := string(exampleEvents(t)[2])
	replace := func(old, new string) string {
		if !strings.Contains(step, old) {
			t.Fatalf("%q is not in the example", old)
		}
		return strings.Replace(step, old, new, 1)
	}
	tests := []struct {
		name, text string
		want       string
		is         error
	}{
		{"another loss", replace("0.6612", "0.6613"), "but the event hashes to", ErrID},
		{"another run", replace("job_30bf", "job_30bg"), "but the event hashes to", ErrID},
		{"no id", replace(`"event_id"`, `"id"`), "/id: unknown member", ErrInvalid},
		{"null id", replace(`"sha256:950cdfa41cc2866bbe233a03ba6ef12ddf34fa417e22fd42fd77f190011e6cbe"`, "null"), "/event_id: null", ErrInvalid},
		{"not JSON", step[1:], "invalid", ErrInvalid},
		{"type", replace("STEP_RECORDED", "STEP"), "is not one of the nine events", ErrInvalid},
		{"no type", replace(`"type"`, `"kind"`), "/type: member is missing", ErrInvalid},
		{"a member of another type", replace(`"loss"`, `"role":"train","loss"`), "/role: unknown member", ErrInvalid},
		{"missing member", replace(`"loss": 0.6612,`, ``), "/loss: member is missing", ErrInvalid},
		{"wrong case", replace(`"seq"`, `"SEQ"`), "/SEQ: unknown member", ErrInvalid},
		{"duplicate", replace(`"loss": 0.6612,`, `"loss": 0.6612,"loss": 0.6612,`), "duplicate", ErrInvalid},
		{"null loss", replace("0.6612", "null"), "/loss: null", ErrInvalid},
		{"seq 4.0", replace(`"seq": 4`, `"seq": 4.0`), "/seq: 4.0 is not an integer", ErrInvalid},
		{"seq 0", replace(`"seq": 4`, `"seq": 0`), "/seq: counts from 1", ErrInvalid},
		{"instant without milliseconds", replace("03.000Z", "03Z"), "/at: ", ErrInvalid},
		{"instant with an offset", replace("03.000Z", "03.000+00:00"), "/at: ", ErrInvalid},
		{"31st of September", replace("2026-09-29", "2026-09-31"), "/at: ", ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := Parse([]byte(tt.text))
			var r *Refusal
			if !errors.As(err, &r) || r.Code != "invalid_event" || r.Status != 400 || !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Parse = %s, %v; want %s", e.JSON(), err, tt.want)
			}
		})
	}
}

// TestParseKeepsTies reads an event as a Rust producer may write it: the loss lies
// between two shortest decimals, and is spelt with the one that we do not write.
func TestParseKeepsTies(t *testing.T) {
	theirs := `{"at":"2026-09-29T07:42:03.000Z","batch_ids_hash":"` + string(canon.HashOf(nil)) +
		`","grad_norm":1,"loss":0.7832717895507813,"lr":1,"run":"r","seq":1,"step":1,"tokens":1,"type":"STEP_RECORDED"}`
	id := canon.HashOf([]byte(theirs))
	e, err := Parse([]byte(`{"event_id":"` + string(id) + `",` + theirs[1:]))
	if err != nil || e.ID != id || !bytes.Contains(e.JSON(), []byte("0.7832717895507813")) {
		t.Errorf("Parse = %s, %v", e.JSON(), err)
	}
}

func FuzzParse(f *testing.F) {
	for _, e := range exampleEvents(f) {
		f.Add(e)
	}
	for i, body := range bodies {
		e, err := New("r", uint64(i+1), time.Unix(0, 0), body)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(e.JSON())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Parse(b)
		if err != nil {
			var r *Refusal
			if !errors.As(err, &r) || r.Status != 400 {
				t.Fatalf("Parse(%q): %v is not a refusal", b, err)
			}
			return
		}
		again, err := Parse(e.JSON())
		if err != nil || !bytes.Equal(again.JSON(), e.JSON()) || again.ID != e.ID {
			t.Fatalf("Parse(%s) = %s, %v", e.JSON(), again.JSON(), err)
		}
		var run Run
		if got, err := run.Apply(e, world()); got == Refused && err == nil {
			t.Fatalf("Apply(%s) was refused without a reason", e.JSON())
		}
	})
}

func BenchmarkParse(b *testing.B) {
	e, err := New("job_30bfc6e5af09a9f7", 4, time.Unix(0, 0), bodies[3])
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(e.JSON()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := New("job_30bfc6e5af09a9f7", 4, time.Unix(0, 0), bodies[3]); err != nil {
			b.Fatal(err)
		}
	}
}
