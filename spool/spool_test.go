package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable/durabletest"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

// The parts of a small run. Its environment and config are any JSON: the spool
// does not read them.
var (
	environment = artifactOf(record.KindEnvironment, record.Train)
	config      = artifactOf(record.KindConfig, record.Train)

	environmentBytes = []byte(`{"git_sha":""}`)
	configBytes      = []byte(`{"stage":"tiny"}`)
	itemsBytes       = []byte(`{"item":1}` + "\n" + `{"item":2}` + "\n")
)

func artifactOf(kind record.Kind, purpose record.Purpose) record.Artifact {
	return record.Artifact{
		Kind: kind, MediaType: kind.MediaType(), SchemaVersion: 1, Purpose: purpose,
		Producer: record.Producer{Tool: "test"}, Parents: []canon.SHA256{},
	}
}

func created() event.RunCreated {
	return event.RunCreated{
		Kind: event.KindTrain, EnvironmentArtifactSHA256: canon.Sum(environmentBytes), ConfigSHA256: canon.Sum(configBytes),
		Parents: []canon.SHA256{}, Tags: []string{}, By: "test",
	}
}

func attached() event.DatasetAttached {
	return event.DatasetAttached{Dataset: "rows", DatasetSHA256: canon.Sum(itemsBytes), Purpose: record.Train, Role: record.RoleTrain}
}

func started() event.TrainStarted {
	return event.TrainStarted{PlanSHA256: canon.Sum(configBytes), Batches: 100, Tokens: 1000}
}

func step(n uint64) event.StepRecorded {
	return event.StepRecorded{Step: n, Tokens: 10 * n, Loss: 1 / float64(n), GradNorm: 0.5, LR: 1e-5, BatchIDsHash: canon.HashOf(fmt.Append(nil, n))}
}

func dataset() record.Dataset {
	sha, when := canon.Sum(itemsBytes), "2026-09-29T07:42:00Z"
	return record.Dataset{
		ID: "rows", Purpose: record.Train, Title: "rows", License: "unstated", Origin: "test", Parents: []string{},
		State: record.Sealed, Items: 2, SHA256: &sha, Created: when, Sealed: &when,
	}
}

func testGate(name string) gate.Gate {
	return gate.Gate{Name: name, Version: 1, Rules: []gate.Rule{{
		Dataset: "rows", DatasetSHA256: canon.Sum(itemsBytes), Category: gate.All, Metric: "accuracy", Higher: true,
		Test: gate.Test{Kind: gate.Floor, Value: 0.5},
	}}}
}

// testReport is of a probe in the run's environment.
func testReport() record.DeterminismReport {
	h := canon.HashOf(nil)
	r := record.DeterminismReport{
		EnvironmentArtifactSHA256: canon.Sum(environmentBytes), ConfigSHA256: canon.Sum(configBytes),
		Probe: record.Probe{WeightsHash: h, OptimizerHash: h, RNGHash: h, BatchIDsHash: h},
		Exact: true, PredictionAgreement: 1, KnownNondeterministicOps: []string{},
	}
	for _, step := range record.ProbeSteps {
		r.Probe.Steps = append(r.Probe.Steps, record.ProbedStep{Step: step, A: h, B: h})
	}
	return r
}

// furnish puts what the events of a run name.
func furnish(s *Spool) error {
	for _, p := range []struct {
		a record.Artifact
		b []byte
	}{
		{environment, environmentBytes},
		{config, configBytes},
		{artifactOf(record.KindDataset, record.Train), itemsBytes},
	} {
		if _, err := s.Put(p.a, bytes.NewReader(p.b)); err != nil {
			return err
		}
	}
	return s.PutDataset(dataset())
}

// newSpool returns a furnished spool on a disk whose syncs cost nothing.
func newSpool(t testing.TB) *Spool { return newSpoolIn(t, t.TempDir()) }

func newSpoolIn(t testing.TB, root string) *Spool {
	t.Helper()
	s, err := open(new(durabletest.FS).Over, root, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := furnish(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// training appends the events before the first step.
func training(t testing.TB, s *Spool, run string) *Log {
	t.Helper()
	l, err := s.Create(run)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for _, body := range []event.Body{created(), attached(), started()} {
		if _, err := l.Append(body); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func TestAppendAndRead(t *testing.T) {
	s := newSpool(t)
	l := training(t, s, "run")

	// Another process that opened the same folder earlier.
	reader, err := Open(filepath.Dir(filepath.Dir(s.Dir())), "", "")
	if err != nil {
		t.Fatal(err)
	}
	tail := reader.Tail("run", 3)
	for n := uint64(1); n <= 20; n++ {
		want, err := l.Append(step(n))
		if err != nil {
			t.Fatal(err)
		}
		got, err := tail.Next(10, 1<<20)
		if err != nil || len(got) != 1 || got[0].ID != want.ID {
			t.Fatalf("after Append of seq %d a reader sees %v, %v", want.Seq, got, err)
		}
	}
	if got := l.Last(); got != 23 {
		t.Errorf("Last = %d, want 23", got)
	}
	view, err := reader.View("run")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(l.View(), view); diff != "" {
		t.Errorf("a reader's view differs from the writer's:\n%s", diff)
	}
	if view.Seq != 23 || view.Steps != 20 {
		t.Errorf("view has seq %d and %d steps, want 23 and 20", view.Seq, view.Steps)
	}
	runs, err := reader.Runs()
	if err != nil || !cmp.Equal(runs, []string{"run"}) {
		t.Errorf("Runs = %q, %v", runs, err)
	}
}

// TestAppendRefused checks that what breaks a rule changes nothing and does not
// stop the run.
func TestAppendRefused(t *testing.T) {
	s := newSpool(t)
	l := training(t, s, "run")
	if _, err := l.Append(step(1)); err != nil {
		t.Fatal(err)
	}
	before := readFile(t, s.path(runs, "run.log"))

	diverged := step(1)
	diverged.Loss *= 2
	infinite := step(2)
	infinite.GradNorm /= 0 * infinite.Loss
	unknown := canon.Sum([]byte("unknown"))
	for _, tt := range []struct {
		name string
		body event.Body
		want error
	}{
		{"a repeated step differs", diverged, event.ErrDiverged},
		{"not finite", infinite, event.ErrNotFinite},
		{"an artifact that is not held", event.CheckpointCreated{Step: 1, Tokens: 10, ArtifactSHA256: unknown}, event.ErrRule},
		{"begun twice", created(), event.ErrRule},
	} {
		if _, err := l.Append(tt.body); !errors.Is(err, tt.want) {
			t.Errorf("%s: Append = %v, want %v", tt.name, err, tt.want)
		}
	}
	if got := readFile(t, s.path(runs, "run.log")); got != before {
		t.Errorf("a refused event changed the log")
	}
	if _, err := l.Append(step(2)); err != nil {
		t.Errorf("after refusals, Append = %v", err)
	}
	big := created()
	big.By = strings.Repeat("x", MaxEvent)
	other, err := s.Create("big")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Append(big); err == nil || !strings.Contains(err.Error(), "the most is") {
		t.Errorf("an event over the limit: Append = %v", err)
	}
	if _, err := other.Append(created()); err != nil {
		t.Errorf("after an event over the limit: %v", err)
	}
}

func TestCheck(t *testing.T) {
	s := newSpool(t)
	l := training(t, s, "run")
	for n := uint64(1); n <= 3; n++ {
		if _, err := l.Append(step(n)); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	l, err := s.Resume("run")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if recorded, err := l.Check(step(2)); !recorded || err != nil {
		t.Errorf("Check of a step that agrees = %t, %v", recorded, err)
	}
	if recorded, err := l.Check(step(4)); recorded || err != nil {
		t.Errorf("Check of a step to come = %t, %v", recorded, err)
	}
	other := step(3)
	other.LR = 2e-5
	if _, err := l.Check(other); !errors.Is(err, event.ErrDiverged) {
		t.Errorf("Check of a step that differs = %v", err)
	}
}

func TestCreateAndResume(t *testing.T) {
	s := newSpool(t)
	_, noView := s.View("run")
	if want := "no run run in " + s.Dir(); !errors.Is(noView, fs.ErrNotExist) || noView.Error() != want {
		t.Errorf("View of no run = %v, want %q", noView, want)
	}
	if _, err := s.Resume("run"); !errors.Is(err, fs.ErrNotExist) || err.Error() != noView.Error() {
		t.Errorf("Resume of no run = %v", err)
	}
	if _, err := s.Create("../run"); err == nil {
		t.Errorf("Create of ../run succeeded")
	}
	l, err := s.Create("run")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	// A run that died before its first event can be begun again.
	training(t, s, "run").Close()
	if _, err := s.Create("run"); !errors.Is(err, ErrExists) {
		t.Errorf("Create of a run with events = %v", err)
	}
	l, err = s.Resume("run")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l.Last() != 3 || l.Cut() != 0 {
		t.Errorf("resumed at %d, cut %d", l.Last(), l.Cut())
	}
	// In one process as between two.
	if _, err := s.Resume("run"); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("a second Resume = %v, want ErrLocked naming pid %d", err, os.Getpid())
	}
}

// TestResumeSyncs: a writer may have died between a write and its sync, and what
// Last counts is on stable storage.
func TestResumeSyncs(t *testing.T) {
	synced := false
	disk := (&durabletest.FS{Plan: func(c durabletest.Call) durabletest.Fault {
		synced = synced || c.Op == durabletest.Sync && filepath.Base(c.Path) == "run.log"
		return durabletest.Fault{}
	}}).Over
	s, err := open(disk, t.TempDir(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := furnish(s); err != nil {
		t.Fatal(err)
	}
	training(t, s, "run").Close()
	synced = false
	l, err := s.Resume("run")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if !synced {
		t.Errorf("Resume at seq %d did not sync the log", l.Last())
	}
}

// TestCloseTwice: a second Close is no business of whoever has the run now.
func TestCloseTwice(t *testing.T) {
	s := newSpool(t)
	first := training(t, s, "run")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := s.Resume("run")
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := first.Close(); err != nil {
		t.Errorf("a second Close = %v", err)
	}
	if _, err := first.Append(step(1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Append after Close = %v", err)
	}
	if err := first.Metric(1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Metric after Close = %v", err)
	}
	if _, err := s.Resume("run"); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("Resume = %v, want ErrLocked naming pid %d", err, os.Getpid())
	}
}

// TestForeignFiles: what is named as nothing of ours is not listed.
func TestForeignFiles(t *testing.T) {
	s := newSpool(t)
	for _, name := range []string{"runs/a copy of run.log", "datasets/Rows (1).json", "gates/mine.json", "artifacts/x.json", "runs/.log"} {
		if err := os.WriteFile(filepath.Join(s.Dir(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Runs(); err != nil || len(got) != 0 {
		t.Errorf("Runs = %q, %v", got, err)
	}
	if got, err := s.Datasets(); err != nil || !cmp.Equal(got, []string{"rows"}) {
		t.Errorf("Datasets = %q, %v", got, err)
	}
	if got, err := s.Gates(); err != nil || len(got) != 0 {
		t.Errorf("Gates = %q, %v", got, err)
	}
	if got, err := s.Artifacts(); err != nil || len(got) != 3 {
		t.Errorf("Artifacts = %q, %v", got, err)
	}
}

// TestOpenDamaged shows a log each kind of damage. A torn tail is cut; anything
// else is reported and the file is left alone.
func TestOpenDamaged(t *testing.T) {
	s := newSpool(t)
	l := training(t, s, "run")
	l.Close()
	whole := readFile(t, s.path(runs, "run.log"))
	lines := strings.SplitAfter(whole, "\n")
	last := lines[2]
	other := training(t, s, "other")
	other.Close()

	for _, tt := range []struct {
		name string
		log  string
		cut  int    // when it opens
		want string // in the error, when it does not
	}{
		{"whole", whole, 0, ""},
		{"empty", "", 0, ""},
		{"one byte of the next", whole + "{", 1, ""},
		{"half of the next", whole + last[:len(last)/2], len(last) / 2, ""},
		{"all of the next but its newline", lines[0] + lines[1] + strings.TrimSuffix(last, "\n"), len(last) - 1, ""},
		{"only a torn line", last[:30], 30, ""},
		{"a hole at the end", whole + strings.Repeat("\x00", 300), 300, ""},
		{"the last line's first page is a hole", lines[0] + lines[1] + strings.Repeat("\x00", 100) + last[100:], len(last), ""},
		{"a middle line torn", lines[0] + lines[1][:40] + last, 0, "line 2"},
		{"a middle line's page is a hole", lines[0] + strings.Repeat("\x00", 100) + lines[1][100:] + last, 0, "line 2"},
		{"a digit changed", strings.Replace(whole, `"tokens":1000`, `"tokens":1001`, 1), 0, "line 3"},
		{"a line missing", lines[0] + last, 0, "line 2"},
		{"a line twice", lines[0] + lines[0], 0, "line 2"},
		{"an empty line", lines[0] + "\n", 0, "line 2"},
		{"carriage returns", strings.ReplaceAll(whole, "\n", "\r\n"), 0, "line 1"},
		{"spaces", strings.Replace(whole, `":`, `": `, 1), 0, "line 1"},
		{"another run's", readFile(t, s.path(runs, "other.log")), 0, "run other"},
		{"no log at all", "ELF\x01\x02 no newline", 0, "is this file a run's log?"},
		{"a text", "Dear reader,\n", 0, "line 1"},
		{"a line without end", whole + `{"` + strings.Repeat("x", MaxEvent), 0, "line 4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := s.path(runs, "run.log")
			if err := os.WriteFile(path, []byte(tt.log), 0o600); err != nil {
				t.Fatal(err)
			}
			l, err := s.Resume("run")
			if tt.want != "" {
				if err == nil {
					l.Close()
				}
				if !errors.Is(err, ErrCorrupt) || !strings.Contains(fmt.Sprint(err), tt.want) || !strings.Contains(fmt.Sprint(err), "run.log") {
					t.Fatalf("Resume = %v, want ErrCorrupt naming run.log and %q", err, tt.want)
				}
				if got := readFile(t, path); got != tt.log {
					t.Errorf("the file was changed")
				}
				if _, err := s.View("run"); !errors.Is(err, ErrCorrupt) && !strings.Contains(tt.want, "?") {
					t.Errorf("View = %v, want ErrCorrupt", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if l.Cut() != int64(tt.cut) {
				t.Errorf("Cut = %d, want %d", l.Cut(), tt.cut)
			}
			if got := readFile(t, path); got != tt.log[:len(tt.log)-tt.cut] {
				t.Errorf("the log holds %q", got)
			}
			// What is appended next has whole neighbours.
			next := []event.Body{created(), attached(), started(), step(1)}[l.Last()]
			if _, err := l.Append(next); err != nil {
				t.Fatal(err)
			}
			if v, err := s.View("run"); err != nil || v.Seq != l.Last() {
				t.Errorf("View has seq %d, %v, want %d", v.Seq, err, l.Last())
			}
		})
	}
}

// TestLostEvents: a log that ends before what the server acknowledged must not
// be continued, because the server has other events at those seqs.
func TestLostEvents(t *testing.T) {
	s := newSpool(t)
	training(t, s, "run").Close()
	if err := s.Ack("run", 4); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resume("run"); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "acknowledged 4") {
		t.Errorf("Resume = %v", err)
	}
	if _, err := s.Tail("run", 4).Next(10, 1<<20); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Next = %v", err)
	}
}

// TestAnotherServer: acks are one control plane's, and say nothing of another.
func TestAnotherServer(t *testing.T) {
	s := newSpool(t)
	training(t, s, "run").Close()
	config := canon.Sum(configBytes)
	acked := func() bool {
		t.Helper()
		seq, err := s.Acked("run")
		if err != nil {
			t.Fatal(err)
		}
		a, err := s.ArtifactAcked(config)
		if err != nil {
			t.Fatal(err)
		}
		return seq > 0 && a
	}
	filed := filepath.Join(s.Dir(), "filed.json")
	// As it was written before servers had ids.
	if err := os.WriteFile(filed, []byte(`{"org":"acme","project":"default"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{"", "one", "", "one"} { // unknown, learned, unknown again, the same
		if err := s.FileUnder("acme", "", server); err != nil {
			t.Errorf("FileUnder server %q: %v", server, err)
		}
	}
	if err := errors.Join(s.Ack("run", 2), s.AckArtifact(config)); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"FileUnder": s.FileUnder("acme", "", "two"), "Belongs": s.Belongs("acme", "", "two")} {
		if !errors.Is(err, ErrOtherServer) || !strings.Contains(err.Error(), "train sync --again") {
			t.Errorf("%s another server: %v", what, err)
		}
	}
	if err := s.Refile("other", "", "two"); !errors.Is(err, ErrForeign) || !acked() {
		t.Errorf("Refile under another org: %v", err)
	}
	if err := s.Refile("acme", "", "two"); err != nil || acked() {
		t.Errorf("Refile: %v, acknowledged: %t", err, acked())
	}
	if err := s.Belongs("acme", "", "two"); err != nil {
		t.Errorf("after Refile: %v", err)
	}
	if err := s.Belongs("acme", "", "one"); !errors.Is(err, ErrOtherServer) {
		t.Errorf("the server before: %v", err)
	}
}

func TestForeign(t *testing.T) {
	root := t.TempDir()
	mustOpen := func(org, project string) *Spool {
		s, err := Open(root, org, project)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if err := mustOpen("acme", "vision").FileUnder("acme", "vision", ""); err != nil {
		t.Errorf("its own org: %v", err)
	}
	if err := mustOpen("acme", "vision").FileUnder("other", "vision", ""); !errors.Is(err, ErrForeign) {
		t.Errorf("another org: %v", err)
	}
	if err := mustOpen("acme", "vision").FileUnder("acme", "", ""); !errors.Is(err, ErrForeign) {
		t.Errorf("another project: %v", err)
	}
	for range 2 {
		if err := mustOpen("", "").FileUnder("acme", "", ""); err != nil {
			t.Errorf("before anyone signed in: %v", err)
		}
	}
	if err := mustOpen("", "").FileUnder("other", "", ""); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "acme/default") {
		t.Errorf("filed already: %v", err)
	}
	for _, bad := range []string{"..", "a/b", ".hidden", "-x"} {
		if _, err := Open(root, bad, ""); err == nil {
			t.Errorf("Open(%q) succeeded", bad)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(root, "file", ""); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("Open over a file = %v", err)
	}
}

// TestNotAFile puts what is no file in place of a log.
func TestNotAFile(t *testing.T) {
	s := newSpool(t)
	if err := os.Mkdir(s.path(runs, "dir.log"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resume("dir"); err == nil || !strings.Contains(err.Error(), "dir.log") {
		t.Errorf("Resume of a directory = %v", err)
	}
	if err := mkfifo(s.path(runs, "pipe.log")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resume("pipe"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Resume of a named pipe = %v", err)
	}
}

func TestMetric(t *testing.T) {
	s := newSpool(t)
	l := training(t, s, "run")
	if err := l.Metric(map[string]float64{"share": 0.25}); err != nil {
		t.Fatal(err)
	}
	l.Close()
	path := s.path(runs, "run.metrics")
	if err := os.WriteFile(path, []byte("{\"share\":0.25}\n{\"sha"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := s.Resume("run")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Metric(map[string]float64{"share": 0.5}); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, path); got != "{\"share\":0.25}\n{\"share\":0.5}\n" {
		t.Errorf("metrics hold %q", got)
	}
}

func TestAck(t *testing.T) {
	s := newSpool(t)
	for _, seq := range []uint64{3, 10, 7} {
		if err := s.Ack("run", seq); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Acked("run"); got != 10 || err != nil {
		t.Errorf("Acked = %d, %v, want 10: it never goes back", got, err)
	}
	if err := os.WriteFile(s.path(runs, "run.ack"), []byte("ten"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acked("run"); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "run.ack") {
		t.Errorf("Acked of nonsense = %v", err)
	}
	sha := canon.Sum(environmentBytes)
	if acked, err := s.ArtifactAcked(sha); acked || err != nil {
		t.Errorf("ArtifactAcked = %t, %v", acked, err)
	}
	if err := s.AckArtifact(sha); err != nil {
		t.Fatal(err)
	}
	if acked, err := s.ArtifactAcked(sha); !acked || err != nil {
		t.Errorf("ArtifactAcked = %t, %v", acked, err)
	}
}

func TestGates(t *testing.T) {
	s := newSpool(t)
	g := testGate("tiny")
	hash, err := s.PutGate(g)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.PutGate(g); again != hash || err != nil {
		t.Errorf("PutGate again = %s, %v", again, err)
	}
	got, err := s.LoadGate(hash)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(g, got); diff != "" {
		t.Errorf("LoadGate:\n%s", diff)
	}
	if all, err := s.Gates(); err != nil || len(all) != 1 || all[0] != hash {
		t.Errorf("Gates = %v, %v", all, err)
	}
	if s.Gate(canon.HashOf([]byte("other"))) {
		t.Errorf("an unknown gate is held")
	}
	path := s.path(gates, hash.Hex()+".json")
	if err := os.WriteFile(path, []byte(strings.Replace(readFile(t, path), "0.5", "0.4", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.LoadGate(hash); !errors.Is(err, ErrCorrupt) {
		t.Errorf("LoadGate of a changed gate = %v", err)
	}
}

func TestDeterminism(t *testing.T) {
	s := newSpool(t)
	report := testReport()
	hash, err := s.PutDeterminism(report)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.PutDeterminism(report); again != hash || err != nil {
		t.Errorf("PutDeterminism again = %s, %v", again, err)
	}
	got, err := s.LoadDeterminism(hash)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(report, got); diff != "" {
		t.Errorf("LoadDeterminism:\n%s", diff)
	}
	if all, err := s.Determinism(); err != nil || len(all) != 1 || all[0] != hash {
		t.Errorf("Determinism = %v, %v", all, err)
	}
	if _, err := s.LoadDeterminism(canon.HashOf([]byte("other"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("LoadDeterminism of another = %v", err)
	}
	for name, change := range map[string]func(*record.DeterminismReport){
		"is not in the spool":                func(r *record.DeterminismReport) { r.EnvironmentArtifactSHA256 = canon.Sum(nil) },
		"is config, not environment":         func(r *record.DeterminismReport) { r.EnvironmentArtifactSHA256 = canon.Sum(configBytes) },
		"/exact: is false, but the hashes":   func(r *record.DeterminismReport) { r.Exact = false },
		"/probe/steps: are after the steps ": func(r *record.DeterminismReport) { r.Probe.Steps = nil },
	} {
		bad := testReport()
		change(&bad)
		if _, err := s.PutDeterminism(bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("PutDeterminism = %v, want that it %s", err, name)
		}
	}
	if err := s.AckDeterminism(hash); err != nil {
		t.Fatal(err)
	}
	if acked, err := s.DeterminismAcked(hash); !acked || err != nil {
		t.Errorf("DeterminismAcked = %t, %v", acked, err)
	}
	// Whoever writes an attached spool does not speak for an environment.
	there, err := Attach(filepath.Dir(filepath.Dir(s.Dir())), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if all, err := there.Determinism(); len(all) != 0 || err != nil {
		t.Errorf("attached: Determinism = %v, %v", all, err)
	}
	if _, err := there.LoadDeterminism(hash); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("attached: LoadDeterminism = %v", err)
	}
	if err := s.Refile(LocalOrg, LocalProject, "two"); err != nil {
		t.Fatal(err)
	}
	if acked, err := s.DeterminismAcked(hash); acked || err != nil {
		t.Errorf("after Refile: DeterminismAcked = %t, %v", acked, err)
	}
	path := s.path(probes, hash.Hex()+".json")
	if err := os.WriteFile(path, []byte(strings.Replace(readFile(t, path), `"prediction_agreement":1`, `"prediction_agreement":0`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.LoadDeterminism(hash); !errors.Is(err, ErrCorrupt) {
		t.Errorf("LoadDeterminism of a changed report = %v", err)
	}
}

// TestRefileBeforeProbes: a spool that another wrote before there were determinism
// reports has no folder of them.
func TestRefileBeforeProbes(t *testing.T) {
	s := newSpool(t)
	if err := os.RemoveAll(s.path(probes, "")); err != nil {
		t.Fatal(err)
	}
	there, err := Attach(filepath.Dir(filepath.Dir(s.Dir())), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if err := there.Refile(LocalOrg, LocalProject, "two"); err != nil {
		t.Errorf("Refile = %v", err)
	}
}

func TestDatasets(t *testing.T) {
	s := newSpool(t)
	if got, ok := s.Dataset("rows"); !ok || got.Items != 2 {
		t.Errorf("Dataset = %+v, %t", got, ok)
	}
	later := dataset()
	later.Created = "2027-01-01T00:00:00Z"
	if err := s.PutDataset(later); err != nil {
		t.Errorf("the same dataset at another time: %v", err)
	}
	other := dataset()
	other.Title = "other"
	if err := s.PutDataset(other); !errors.Is(err, ErrExists) {
		t.Errorf("another title: %v", err)
	}
	for name, change := range map[string]func(*record.Dataset){
		"open":           func(d *record.Dataset) { d.State, d.SHA256, d.Sealed = record.Open, nil, nil },
		"items not held": func(d *record.Dataset) { sha := canon.Sum(nil); d.SHA256 = &sha },
		"not a dataset":  func(d *record.Dataset) { sha := canon.Sum(configBytes); d.SHA256 = &sha },
		"purpose":        func(d *record.Dataset) { d.Purpose = record.EvalOnly },
		"id":             func(d *record.Dataset) { d.ID = "../x" },
	} {
		d := dataset()
		d.ID = "new"
		change(&d)
		if err := s.PutDataset(d); err == nil {
			t.Errorf("%s: PutDataset succeeded", name)
		}
	}
	if ids, err := s.Datasets(); err != nil || !cmp.Equal(ids, []string{"rows"}) {
		t.Errorf("Datasets = %q, %v", ids, err)
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func readAll(t testing.TB, r io.ReadCloser, err error) (string, error) {
	t.Helper()
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), err
}

// TestFormat1 opens a spool as the first version of this format wrote it. The
// files in testdata are never written again: whoever changes the format keeps
// reading this one.
func TestFormat1(t *testing.T) {
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS("testdata/v1")); err != nil {
		t.Fatal(err)
	}
	verify(t, root, []string{"furnished", "gate", "artifact ack", "ack", "seq 6"})
	s, err := Open(root, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Belongs("acme", "", "one"); err != nil {
		t.Errorf("it was filed under acme: %v", err)
	}
	l, err := s.Resume("run")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for _, kept := range []string{"runs/run.log", "filed.json", "datasets/rows.json"} {
		path := filepath.Join("local", "default", kept)
		if got, want := readFile(t, filepath.Join(root, path)), readFile(t, filepath.Join("testdata", "v1", path)); got != want {
			t.Errorf("reading changed %s", kept)
		}
	}
}

func TestSpoolIsShared(t *testing.T) {
	for _, tt := range []struct {
		name         string
		root         fs.FileMode
		folder, file fs.FileMode
	}{
		{"its owner's alone", 0o755, 0o700, 0o600},
		{"with the group of a set-group-id root", fs.ModeSetgid | 0o770, fs.ModeSetgid | 0o770, 0o660},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.Chmod(root, tt.root); err != nil {
				t.Fatal(err)
			}
			defer unix.Umask(unix.Umask(0o007))
			s, err := Open(root, "", "")
			if err != nil {
				t.Fatal(err)
			}
			log, err := s.Create("run")
			if err != nil {
				t.Fatal(err)
			}
			if err := log.Metric("noted"); err != nil {
				t.Fatal(err)
			}
			if err := log.Close(); err != nil {
				t.Fatal(err)
			}
			for path, want := range map[string]fs.FileMode{
				s.path(runs, ""): tt.folder | fs.ModeDir, s.path(artifacts, ""): tt.folder | fs.ModeDir,
				s.path(runs, "run.log"): tt.file, s.path(runs, "run.metrics"): tt.file,
			} {
				if info, err := os.Stat(path); err != nil || info.Mode() != want {
					t.Errorf("%s is %v, %v; want %v", path, info.Mode(), err, want)
				}
			}
		})
	}
}
