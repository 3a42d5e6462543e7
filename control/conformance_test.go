package control_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

var purposes = []record.Purpose{record.Train, record.Dev, record.EvalOnly, record.SealedEval, record.TeacherMining}

// TestHIP1334Item3 attaches a dataset of every purpose in every role.
func TestHIP1334Item3(t *testing.T) {
	c := start(t).client("acme")
	created := c.created()
	// The matrix of §3.2, written out: it is what the server is held to.
	admits := map[record.Purpose]string{
		record.Train:         "train select evaluate query",
		record.Dev:           "select evaluate query",
		record.EvalOnly:      "evaluate query",
		record.SealedEval:    "evaluate",
		record.TeacherMining: "query",
	}
	for _, purpose := range purposes {
		id := strings.ReplaceAll(string(purpose), "_", "-")
		sha := c.sealed(id, purpose, 1)
		for _, role := range []record.Role{record.RoleTrain, record.RoleSelect, record.RoleEvaluate, record.RoleQuery} {
			l := log{c: c, run: id + "." + string(role)}
			c.appends(l.run, l.next(created))
			attach := event.DatasetAttached{Dataset: id, DatasetSHA256: sha, Purpose: purpose, Role: role}
			_, err := c.AppendEvents(t.Context(), l.run, []canon.Raw{l.next(attach)})
			if strings.Contains(admits[purpose], string(role)) {
				if err != nil {
					t.Errorf("%s in role %s: %v", purpose, role, err)
				}
				continue
			}
			refused(t, fmt.Sprintf("%s in role %s", purpose, role), err, api.PurposeRefused)
		}
	}
}

// TestHIP1334Item4 derives artifacts from parents of every purpose.
func TestHIP1334Item4(t *testing.T) {
	c := start(t).client("acme")
	parent := make(map[record.Purpose]canon.SHA256)
	for _, p := range purposes {
		parent[p] = c.put(record.KindDataset, p, fmt.Sprintf("{\"purpose\":%q}\n", p))
	}
	for i, tt := range []struct {
		purpose record.Purpose
		parents []record.Purpose
		code    api.Code // empty: accepted
	}{
		{record.Train, []record.Purpose{record.EvalOnly}, api.DerivationRefused},
		{record.EvalOnly, []record.Purpose{record.EvalOnly}, api.DerivationRefused},
		{record.Train, []record.Purpose{record.Train, record.SealedEval}, api.DerivationRefused},
		{record.Train, []record.Purpose{record.TeacherMining, record.Train}, ""},
		{record.TeacherMining, []record.Purpose{record.TeacherMining}, api.PurposeRefused},
		{record.Dev, []record.Purpose{record.Train, record.Dev}, ""},
		{record.Train, []record.Purpose{record.Dev}, api.PurposeRefused},
		{record.Train, nil, ""},
		{record.Dev, nil, api.PurposeRefused},
	} {
		var parents []canon.SHA256
		for _, p := range tt.parents {
			parents = append(parents, parent[p])
		}
		_, err := c.RegisterArtifact(t.Context(), artifact(record.KindPairs, tt.purpose, parents...), fmt.Appendf(nil, "{\"case\":%d}\n", i))
		what := fmt.Sprintf("%s from %v", tt.purpose, tt.parents)
		if tt.code == "" {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			continue
		}
		refused(t, what, err, tt.code)
	}
}

// TestHIP1334Item6 reads a sealed_eval dataset by every route that could answer
// one of its items.
func TestHIP1334Item6(t *testing.T) {
	c := start(t).client("acme")
	sha := c.sealed("exam", record.SealedEval, 3)
	created := c.created()

	_, err := c.Items(t.Context(), "exam", "", 0, "")
	refused(t, "Items without a run", err, api.Sealed, 403)
	l := log{c: c, run: "r"}
	c.appends(l.run, l.next(created))
	_, err = c.Items(t.Context(), "exam", "", 0, "r")
	refused(t, "Items for a run that did not attach it", err, api.Sealed, 403)

	c.appends(l.run, l.next(event.DatasetAttached{Dataset: "exam", DatasetSHA256: sha, Purpose: record.SealedEval, Role: record.RoleEvaluate}))
	items, err := c.Items(t.Context(), "exam", "", 0, "r")
	c.must(err)
	if len(items) != 3 {
		t.Fatalf("%d items, want 3", len(items))
	}
	for _, it := range items {
		if it.Payload.Gold != nil && string(it.Payload.Gold) != "null" {
			t.Errorf("item %s carries gold %s", it.ItemID, it.Payload.Gold)
		}
		if !bytes.Contains(it.Payload.Input, []byte("exam row")) {
			t.Errorf("item %s lost its input: %s", it.ItemID, it.Payload.Input)
		}
	}
	_, err = c.Artifact(t.Context(), sha)
	refused(t, "the bytes of the sealed dataset", err, api.Sealed, 403)

	// The answer to an append must not say what the gold is.
	guess := c.item("exam", record.SealedEval, "i0", "exam row 0")
	guess.Payload.Gold = canon.Raw(`{"q":[0,1]}`)
	_, err = c.AppendItems(t.Context(), "exam", []record.DatasetItem{guess})
	if p := refused(t, "appending another gold", err, api.Exists); strings.Contains(p.Detail, "[1") {
		t.Errorf("the refusal tells the gold: %s", p.Detail)
	}
	for _, path := range []string{
		"/v1/research/datasets", "/v1/research/datasets/exam", "/v1/research/datasets/exam/items?run=r", "/v1/research/artifacts",
		"/v1/research/artifacts/" + string(sha), "/v1/research/runs/r", "/v1/research/runs/r/events", "/v1/research/evaluations",
	} {
		if _, _, body := c.raw("GET", path, nil); bytes.Contains(body, []byte(`"q"`)) {
			t.Errorf("GET %s answers gold: %s", path, body)
		}
	}
}

// TestHIP1334Item7 registers one JSON value from several spellings and
// compressions.
func TestHIP1334Item7(t *testing.T) {
	c := start(t).client("acme")
	const spelled = "{ \"b\": 1, \"a\": [1.50, 1e2] }\n"
	const form = `{"a":[1.5,100],"b":1}`
	for _, tt := range []struct {
		name    string
		content []byte
		how     record.Compression
	}{
		{"plain", []byte(spelled), ""},
		{"canonical", []byte(form), ""},
		{"gzip", gzipped(t, spelled), record.Gzip},
		{"zstd", zstded(t, spelled), record.Zstd},
	} {
		a := artifact(record.KindConfig, record.Train)
		if tt.how != "" {
			n := uint64(len(tt.content))
			a.Compression, a.CompressedSize = &tt.how, &n
		}
		got, err := c.RegisterArtifact(t.Context(), a, tt.content)
		c.must(err)
		if want := canon.Sum([]byte(form)); got.Artifact.SHA256 != want || got.Artifact.Size != uint64(len(form)) {
			t.Errorf("%s: registered as %s of %d bytes, want %s of %d", tt.name, got.Artifact.SHA256, got.Artifact.Size, want, len(form))
		}
		r, err := c.Artifact(t.Context(), got.Artifact.SHA256)
		c.must(err)
		b, err := io.ReadAll(r)
		r.Close()
		if err != nil || string(b) != form {
			t.Errorf("%s: its bytes are %q, %v", tt.name, b, err)
		}

		// The address of other bytes is refused, and nothing is kept under it.
		a.SHA256, a.Size = canon.Sum([]byte(tt.name)), uint64(len(form))
		_, err = c.RegisterArtifact(t.Context(), a, tt.content)
		refused(t, tt.name+" at a wrong address", err, api.AddressMismatch)
		_, err = c.Artifact(t.Context(), a.SHA256)
		refused(t, tt.name+" read at the wrong address", err, api.NotFound)
	}
	all, err := c.Artifacts(t.Context(), api.ArtifactQuery{})
	c.must(err)
	if len(all) != 1 {
		t.Errorf("%d artifacts are held, want one", len(all))
	}
}

func gzipped(t *testing.T, s string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := io.WriteString(w, s); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstded(t *testing.T, s string) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll([]byte(s), nil)
}

// trainingLog is a whole run: two steps, a checkpoint, an evaluation.
func trainingLog(c *client, run string) []canon.Raw {
	c.t.Helper()
	created := c.created()
	train := event.DatasetAttached{Dataset: "rows", DatasetSHA256: c.sealed("rows", record.Train, 2), Purpose: record.Train, Role: record.RoleTrain}
	test := event.DatasetAttached{Dataset: "test", DatasetSHA256: c.sealed("test", record.EvalOnly, 2), Purpose: record.EvalOnly, Role: record.RoleEvaluate}
	checkpoint := c.put(record.KindCheckpoint, record.Train, "not really a tar")
	questions := uint64(2)
	l := log{c: c, run: run}
	return []canon.Raw{
		l.next(created), l.next(train), l.next(test),
		l.next(event.TrainStarted{PlanSHA256: created.ConfigSHA256, Batches: 2, Tokens: 200}),
		l.next(step(1, 0.6612)), l.next(step(2, 0.6588)),
		l.next(event.CheckpointCreated{Step: 2, Tokens: 200, ArtifactSHA256: checkpoint}),
		l.next(event.EvalStarted{
			Evaluation: "evl_9c1f0a7d52e84b36", Subject: event.Subject{Kind: "artifact", SHA256: checkpoint},
			Dataset: "test", DatasetSHA256: test.DatasetSHA256,
			Evaluator: event.Evaluator{Kind: "harness", Name: "bench", Version: "1", DefinitionHash: canon.HashOf(nil)},
		}),
		l.next(event.EvalCompleted{Evaluation: "evl_9c1f0a7d52e84b36", Questions: &questions, Answered: &questions, Measures: []gate.Measure{}}),
		l.next(event.RunCompleted{Status: "completed", Steps: 2, Tokens: 200, Batches: 2}),
	}
}

// TestHIP1334Item8 repeats, contradicts and skips events.
func TestHIP1334Item8(t *testing.T) {
	c := start(t).client("acme")
	events := trainingLog(c, "r")
	c.appends("r", events[:6]...)
	l := log{c: c, run: "r"}

	got, err := c.AppendEvents(t.Context(), "r", events[:6])
	c.must(err)
	if diff := cmp.Diff(api.Appended{Run: "r", Duplicate: 6, Next: 7}, got); diff != "" {
		t.Errorf("sent again (-want +got):\n%s", diff)
	}

	for _, tt := range []struct {
		name string
		e    canon.Raw
		code api.Code
		seq  uint64
	}{
		{"same seq, other content", l.at(6, step(2, 0.7)), api.EventConflict, 6},
		{"past next", l.at(8, step(3, 0.65)), api.SeqGap, 8},
		{"a re-sent step with another loss", l.at(7, step(2, 0.7)), api.StepDiverged, 7},
		{"an id that is not its hash", bytes.Replace(l.at(7, step(3, 0.5)), []byte("0.5"), []byte("0.6"), 1), api.InvalidEvent, 7},
		{"another run's", (&log{c: c, run: "s"}).at(7, step(3, 0.5)), api.InvalidEvent, 7},
		{"not an event", canon.Raw(`{"type":"STEP"}`), api.InvalidEvent, 0},
	} {
		_, err := c.AppendEvents(t.Context(), "r", []canon.Raw{tt.e})
		p := refused(t, tt.name, err, tt.code)
		if p.Seq != tt.seq || p.Batch == nil || p.Batch.Next != 7 || p.Batch.Accepted != 0 {
			t.Errorf("%s: seq %d, batch %+v; want seq %d and next 7", tt.name, p.Seq, p.Batch, tt.seq)
		}
	}

	// A refused batch applies what comes before the refusal.
	_, err = c.AppendEvents(t.Context(), "r", []canon.Raw{events[5], events[6], l.at(9, step(3, 1))})
	p := refused(t, "a batch with a gap", err, api.SeqGap)
	if diff := cmp.Diff(&api.Appended{Run: "r", Accepted: 1, Duplicate: 1, Next: 8}, p.Batch); diff != "" {
		t.Errorf("a batch with a gap (-want +got):\n%s", diff)
	}
	c.appends("r", events[7:]...)
	_, err = c.AppendEvents(t.Context(), "r", []canon.Raw{l.at(11, step(3, 1))})
	refused(t, "after the end", err, api.RunCompleted)

	log, err := c.Events(t.Context(), "r", 0, 0)
	c.must(err)
	if diff := cmp.Diff(events, log); diff != "" {
		t.Errorf("the log is not what was sent, byte for byte (-sent +log):\n%s", diff)
	}
	tail, err := c.Events(t.Context(), "r", 7, 2)
	c.must(err)
	if diff := cmp.Diff(events[7:9], tail); diff != "" {
		t.Errorf("after 7, at most 2 (-sent +log):\n%s", diff)
	}
}

// TestHIP1334Item9 sends one log in one batch and one by one, and folds it here.
func TestHIP1334Item9(t *testing.T) {
	c := start(t).client("acme")
	events := trainingLog(c, "r")
	c.appends("r", events...)

	d := start(t).client("acme")
	trainingLog(d, "r")
	for _, e := range events {
		d.appends("r", e)
	}

	var fold event.Run
	for _, raw := range events {
		e, err := event.Parse(raw)
		c.must(err)
		if _, err := fold.Apply(e, everything{c}); err != nil {
			t.Fatal(err)
		}
	}
	want := fold.View()
	want.Project = "default"
	for name, client := range map[string]*client{"one batch": c, "one by one": d} {
		got, err := client.Run(t.Context(), "r")
		c.must(err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: the view is not the fold (-fold +view):\n%s", name, diff)
		}
		evaluations, err := client.Evaluations(t.Context(), api.EvaluationQuery{Run: "r"})
		c.must(err)
		if diff := cmp.Diff(fold.Evaluations(), evaluations); diff != "" {
			t.Errorf("%s: the evaluations are not the fold's (-fold +server):\n%s", name, diff)
		}
	}
}

// everything answers the fold's questions from the server.
type everything struct{ c *client }

func (e everything) Artifact(sha canon.SHA256) (record.Artifact, bool) {
	all, err := e.c.Artifacts(e.c.t.Context(), api.ArtifactQuery{})
	e.c.must(err)
	for _, a := range all {
		if a.SHA256 == sha {
			return a, true
		}
	}
	return record.Artifact{}, false
}

func (e everything) Gate(h canon.Hash) bool {
	_, err := e.c.Gate(e.c.t.Context(), h)
	return err == nil
}

func (e everything) Dataset(id string) (record.Dataset, bool) {
	d, err := e.c.Dataset(e.c.t.Context(), id)
	return d, err == nil
}

func floorGate(dataset canon.SHA256, value float64) gate.Gate {
	return gate.Gate{Name: "g", Version: 1, Rules: []gate.Rule{{
		Dataset: "test", DatasetSHA256: dataset, Category: gate.All, Metric: gate.Accuracy, Higher: true,
		Test: gate.Test{Kind: gate.Floor, Value: value},
	}}}
}

// TestHIP1334Item11 stores gates before and after the runs that name them.
func TestHIP1334Item11(t *testing.T) {
	s := start(t)
	c := s.client("acme")
	g := floorGate(canon.Sum(nil), 0.5)
	hash, err := g.Hash()
	c.must(err)

	created := c.created()
	created.GateSpecHash = &hash
	l := log{c: c, run: "r"}
	first := l.next(created)
	_, err = c.AppendEvents(t.Context(), "r", []canon.Raw{first})
	refused(t, "a run naming a gate that is not held", err, api.GateUnknown)
	_, err = c.Run(t.Context(), "r")
	refused(t, "the run that was refused", err, api.NotFound)

	for i, created := range []bool{true, false} {
		got, err := c.PutGate(t.Context(), g)
		c.must(err)
		if diff := cmp.Diff(api.GateStored{GateSpecHash: hash, Created: created}, got); diff != "" {
			t.Errorf("stored, time %d (-want +got):\n%s", i+1, diff)
		}
	}
	// A gate without its optional members is the same gate.
	status, _, body := c.raw("POST", "/v1/research/gates", strings.NewReader(fmt.Sprintf(
		`{"name":"g","version":1,"rules":[{"dataset":"test","dataset_sha256":"%s","category":"all","metric":"accuracy","higher":true,"test":{"kind":"floor","value":0.50,"strict":false}}]}`,
		canon.Sum(nil))))
	if status != 200 || !strings.Contains(string(body), string(hash)) || !strings.Contains(string(body), `"created":false`) {
		t.Errorf("posted without nulls: %d %s", status, body)
	}
	c.appends("r", first)

	changed := floorGate(canon.Sum(nil), 0.6)
	_, err = c.PutGate(t.Context(), changed)
	refused(t, "one threshold changed", err, api.BadVersion)
	changed.Version = 2
	_, err = c.PutGate(t.Context(), changed)
	refused(t, "version 2 without previous", err, api.BadVersion)
	other := canon.HashOf(nil)
	changed.Previous = &other
	_, err = c.PutGate(t.Context(), changed)
	refused(t, "version 2 with another previous", err, api.BadVersion)
	changed.Previous = &hash
	stored, err := c.PutGate(t.Context(), changed)
	c.must(err)
	fork := floorGate(canon.Sum(nil), 0.7)
	fork.Version, fork.Previous = 2, &hash
	_, err = c.PutGate(t.Context(), fork)
	refused(t, "a second version 2", err, api.BadVersion)

	held, err := c.Gate(t.Context(), stored.GateSpecHash)
	c.must(err)
	if held.Received != "2026-09-29T07:42:00Z" || held.Spec.Version != 2 {
		t.Errorf("Gate = %+v", held)
	}
	versions, err := c.Gates(t.Context(), "g")
	c.must(err)
	if len(versions) != 2 || versions[0].Sequence >= versions[1].Sequence {
		t.Errorf("Gates = %+v, want two in the order of receipt", versions)
	}
}

// TestHIP1334Item12 sends verdicts, true and false, on items that the server holds.
func TestHIP1334Item12(t *testing.T) {
	c := start(t).client("acme")
	sha := c.sealed("test", record.EvalOnly, 4)
	g := floorGate(sha, 0.75)
	stored, err := c.PutGate(t.Context(), g)
	c.must(err)

	var items []gate.Item
	for i := range 4 {
		correct := i > 0
		items = append(items, gate.Item{Item: fmt.Sprintf("i%d", i), Question: "q", Group: fmt.Sprintf("i%d", i), Correct: &correct})
	}
	bytes, address, err := gate.ItemsNDJSON(items)
	c.must(err)
	if got := c.put(record.KindItems, record.EvalOnly, string(bytes)); got != address {
		t.Fatalf("items are held as %s, not %s", got, address)
	}

	created := c.created()
	created.GateSpecHash = &stored.GateSpecHash
	questions := uint64(4)
	l := log{c: c, run: "r"}
	c.appends("r", l.next(created),
		l.next(event.DatasetAttached{Dataset: "test", DatasetSHA256: sha, Purpose: record.EvalOnly, Role: record.RoleEvaluate}),
		l.next(event.EvalStarted{
			Evaluation: "evl_9c1f0a7d52e84b36", Subject: event.Subject{Kind: "system", Name: "kai", Version: "a7"}, Dataset: "test", DatasetSHA256: sha,
			Evaluator: event.Evaluator{Kind: "harness", Name: "bench", Version: "1", DefinitionHash: canon.HashOf(nil)},
		}))
	seq := l.seq + 1
	verdict := func(evaluations ...gate.Evaluation) event.GateEvaluated {
		return event.GateEvaluated(g.Evaluate(evaluations, nil))
	}
	pass := verdict(gate.Evaluation{Dataset: "test", DatasetSHA256: sha, Complete: true, Items: items})
	if pass.Verdict != gate.Pass {
		t.Fatalf("the gate's own verdict is %s", pass.Verdict)
	}
	_, err = c.AppendEvents(t.Context(), "r", []canon.Raw{l.at(seq, pass)})
	refused(t, "a pass before the evaluation has ended", err, api.GateDisagrees)

	l.seq++
	ended := l.at(seq, event.EvalCompleted{
		Evaluation: "evl_9c1f0a7d52e84b36", Questions: &questions, Answered: &questions,
		Measures: gate.Measures(items), ItemsSHA256: &address,
	})
	lie := pass
	lie.Verdict, lie.Rules = gate.Fail, []gate.RuleResult{{Rule: 0, Pass: false}}
	_, err = c.AppendEvents(t.Context(), "r", []canon.Raw{ended, l.at(seq+1, lie)})
	p := refused(t, "a verdict the server does not reproduce", err, api.GateDisagrees)
	if p.Batch == nil || p.Batch.Accepted != 1 || p.Seq != seq+1 {
		t.Errorf("batch %+v, seq %d", p.Batch, p.Seq)
	}
	view, err := c.Run(t.Context(), "r")
	c.must(err)
	if len(view.Gates) != 0 {
		t.Errorf("the refused verdict is on the run: %+v", view.Gates)
	}
	c.appends("r", l.at(seq+1, pass))
	if view, err = c.Run(t.Context(), "r"); err != nil || len(view.Gates) != 1 {
		t.Errorf("the run has gates %+v, %v", view.Gates, err)
	}
}

// TestHIP1334Item16 asks for every kind of object by another org's id, and finds
// what an unknown id finds, word for word.
func TestHIP1334Item16(t *testing.T) {
	s := start(t)
	c, stranger := s.client("acme"), s.client("globex")
	events := trainingLog(c, "run-a")
	c.appends("run-a", events...)
	stored, err := c.PutGate(t.Context(), floorGate(canon.Sum(nil), 0.5))
	c.must(err)
	sha := string(c.put(record.KindConfig, record.Train, `{"secret":1}`))
	unknownHash, unknownSHA := string(canon.HashOf([]byte("?"))), string(canon.Sum([]byte("?")))

	for _, tt := range []struct{ method, path, held, unknown, body string }{
		{"GET", "/v1/research/datasets/%s", "rows", "rowz", ""},
		{"DELETE", "/v1/research/datasets/%s", "rows", "rowz", ""},
		{"GET", "/v1/research/datasets/%s/items", "rows", "rowz", ""},
		{"POST", "/v1/research/datasets/%s/items", "rows", "rowz", `{"items":[]}`},
		{"POST", "/v1/research/datasets/%s/seal", "rows", "rowz", ""},
		{"GET", "/v1/research/artifacts/%s", sha, unknownSHA, ""},
		{"GET", "/v1/research/gates/%s", string(stored.GateSpecHash), unknownHash, ""},
		{"GET", "/v1/research/runs/%s/events", "run-a", "run-z", ""},
		{"GET", "/v1/research/runs/%s", "run-a", "run-z", ""},
		{"GET", "/v1/research/evaluations/%s", "evl_9c1f0a7d52e84b36", "evl_0000000000000000", ""},
	} {
		foreign, _, a := stranger.raw(tt.method, fmt.Sprintf(tt.path, tt.held), strings.NewReader(tt.body))
		none, _, b := stranger.raw(tt.method, fmt.Sprintf(tt.path, tt.unknown), strings.NewReader(tt.body))
		a = bytes.ReplaceAll(a, []byte(tt.held), []byte(tt.unknown))
		if foreign != 404 || none != 404 || !bytes.Equal(a, b) {
			t.Errorf("%s %s: foreign %d %s\nunknown %d %s", tt.method, tt.path, foreign, a, none, b)
		}
	}
	for _, path := range []string{"datasets", "artifacts", "gates", "determinism", "runs", "evaluations"} {
		if status, _, body := stranger.raw("GET", "/v1/research/"+path, nil); status != 200 || string(body) != `{"data":[]}` {
			t.Errorf("GET %s of another org: %d %s", path, status, body)
		}
	}
	// A write by another org makes an object of its own.
	if _, err := stranger.CreateDataset(t.Context(), dataset("rows", record.Dev)); err != nil {
		t.Errorf("another org creates a dataset of that name: %v", err)
	}
	if d, err := c.Dataset(t.Context(), "rows"); err != nil || d.Purpose != record.Train {
		t.Errorf("the first org's dataset is now %+v, %v", d, err)
	}
}
