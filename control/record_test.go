package control_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/spool/upload"
)

// recordRun records a run with an object of every sort that an uploader sends, and an
// artifact of more bytes than go with a registration.
func recordRun(t *testing.T, run string) *spool.Spool {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := spool.Open(t.TempDir(), "", "")
	must(err)
	t.Cleanup(func() { s.Close() })
	put := func(kind record.Kind, content []byte, parents ...canon.SHA256) canon.SHA256 {
		t.Helper()
		a, err := s.Put(record.Artifact{
			Kind: kind, MediaType: kind.MediaType(), SchemaVersion: 1, Purpose: record.Train,
			Producer: record.Producer{Run: &run, Tool: "test"}, Parents: append([]canon.SHA256{}, parents...),
		}, bytes.NewReader(content))
		must(err)
		return a.SHA256
	}
	row := []byte(`{"text":"a row"}`)
	name := "rows-" + strings.ToLower(run[len(run)-8:])
	item, err := record.NewItem(name, record.Train, "i0", "rows:i0", row, row, []byte(`{"q":[0,1]}`))
	must(err)
	content, sha, err := record.ItemsNDJSON([]record.DatasetItem{item})
	must(err)
	put(record.KindDataset, content)
	when := "2026-09-29T07:42:00Z"
	rows := record.Dataset{
		ID: name, Purpose: record.Train, Title: "rows", License: "unstated", Origin: "test", Parents: []string{},
		State: record.Sealed, Items: 1, SHA256: &sha, Created: when, Sealed: &when,
	}
	must(s.PutDataset(rows))
	hash, err := s.PutGate(gate.Gate{Name: "g-" + rows.ID, Version: 1, Rules: []gate.Rule{{
		Dataset: rows.ID, DatasetSHA256: sha, Category: gate.All, Metric: "accuracy", Higher: true,
		Test: gate.Test{Kind: gate.Floor, Value: 0.25},
	}}})
	must(err)
	l, err := s.Create(run)
	must(err)
	defer l.Close()
	environment, err := canon.Marshal(record.Environment{
		LockfileHash: canon.HashOf(nil), KernelPlanHash: canon.HashOf(nil), Accelerator: record.Accelerator{API: record.CPU},
		Precision: record.Precision{Compute: "f32", Master: "f32", Accumulate: "f32"},
	})
	must(err)
	config := put(record.KindConfig, []byte(`{"stage":"tiny"}`))
	for _, body := range []event.Body{
		event.RunCreated{
			Kind: event.KindTrain, EnvironmentArtifactSHA256: put(record.KindEnvironment, environment), ConfigSHA256: config,
			GateSpecHash: &hash, Parents: []canon.SHA256{}, Tags: []string{}, By: "test",
		},
		event.DatasetAttached{Dataset: rows.ID, DatasetSHA256: sha, Purpose: rows.Purpose, Role: record.RoleTrain},
		event.TrainStarted{PlanSHA256: put(record.KindPlan, []byte(`{"plan":1}`)), Batches: 1, Tokens: 100},
		step(1, 0.5),
		event.CheckpointCreated{Step: 1, Tokens: 100, ArtifactSHA256: put(record.KindCapability, bytes.Repeat([]byte("weights."), 1<<18), config)},
		event.RunCompleted{Status: event.Completed, Steps: 1, Tokens: 100, Batches: 1},
	} {
		_, err := l.Append(body)
		must(err)
	}
	return s
}

// TestRecord sends the spool of an activity's run with its node's credential: the
// routes that open are all that the uploader needs, before the activity has ended
// and after, and what arrives is the org's and the activity's project's.
func TestRecord(t *testing.T) {
	s := start(t)
	alice := s.person(api.Identity{Owner: "acme", Name: "alice", Project: "triage"})
	m := alice.link(s, "evo")
	stage := alice.tree(map[string]string{"stage.json": "{}"})
	for name, before := range map[string]func(api.Activity){
		"before it starts":  func(api.Activity) {},
		"while it runs":     func(a api.Activity) { m.report(a.Activity, api.StateReport{State: activity.Ready}) },
		"when it has ended": func(a api.Activity) { m.end(a.Activity) },
	} {
		a := alice.fit("evo", stage, stage)
		before(a)
		there := recordRun(t, a.Activity)
		below := m.RecordOf("evo", a.Activity)
		who, err := below.Whoami(t.Context())
		if want := (api.Identity{Owner: "acme", Name: "evo", Project: "triage", Server: s.store.ID()}); err != nil || who != want {
			t.Errorf("%s: Whoami = %+v, %v, want %+v", name, who, err, want)
		}
		got, err := upload.New(upload.Config{Spool: there, Client: below, Runs: func(run string) bool { return activity.Records(a.Activity, run) }}).Drain(t.Context())
		if err != nil || len(got.Refused) != 0 {
			t.Fatalf("%s: %+v, %v", name, got, err)
		}
		found, err := upload.Check(t.Context(), there, alice.Client)
		if err != nil || len(found) != 0 {
			t.Errorf("%s: in the org's record %v, %v", name, found, err)
		}
		if run, err := alice.Run(t.Context(), a.Activity); err != nil || run.Project != "triage" {
			t.Errorf("%s: the run is of project %s, %v", name, run.Project, err)
		}
	}
}

// TestRecordOfAnother tries to write, with a node's credential and whole and valid
// requests, what is not its activity's.
func TestRecordOfAnother(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	alice := s.client("acme")
	m, neighbour := alice.link(s, "evo"), alice.link(s, "ovo")
	stage := alice.tree(map[string]string{"stage.json": "{}"})
	mine, other := alice.fit("evo", stage, stage), alice.fit("ovo", stage, stage)
	created := alice.created()
	below := m.RecordOf("evo", mine.Activity)

	for _, run := range []string{other.Activity, "a-run-of-alice", mine.Activity + "x"} {
		l := &log{c: alice, run: run}
		_, err := below.AppendEvents(ctx, run, []canon.Raw{l.next(created)})
		refused(t, "events of run "+run, err, api.Forbidden)
		a := artifact(record.KindConfig, record.Train)
		a.Producer.Run = &run
		_, err = below.RegisterArtifact(ctx, a, []byte(`{"stage":"forged"}`))
		refused(t, "an artifact that run "+run+" made", err, api.Forbidden)
	}
	// The events of another run under the own name are not the own either.
	l := &log{c: alice, run: other.Activity}
	if _, err := below.AppendEvents(ctx, mine.Activity, []canon.Raw{l.next(created)}); err == nil {
		t.Error("events of another run were taken under the activity's name")
	}
	_, err := m.RecordOf("evo", other.Activity).Whoami(ctx)
	refused(t, "another node's activity below the own node", err, api.NotFound)
	_, err = m.RecordOf("ovo", other.Activity).Whoami(ctx)
	refused(t, "another node's activity", err, api.Forbidden)
	_, err = alice.RecordOf("evo", mine.Activity).Whoami(ctx)
	refused(t, "a person below a node", err, api.Forbidden)

	// Not a byte of what is there can be read, nor anything removed.
	for _, err := range []error{
		func() error { _, err := below.Run(ctx, mine.Activity); return err }(),
		func() error { _, err := below.Runs(ctx, api.RunQuery{}); return err }(),
		func() error { _, err := below.Events(ctx, mine.Activity, 0, 0); return err }(),
		func() error { _, err := below.Artifact(ctx, created.ConfigSHA256); return err }(),
		func() error { _, err := below.Datasets(ctx, api.DatasetQuery{}); return err }(),
		below.DeleteDataset(ctx, "x"),
	} {
		refused(t, "reading by a node", err, api.Forbidden)
	}
	for _, run := range []string{mine.Activity, other.Activity, "a-run-of-alice"} {
		_, err := alice.Run(ctx, run)
		refused(t, "run "+run+" after all this", err, api.NotFound)
	}

	// A foreign org's activity of the same node's name.
	bob := s.client("globex")
	foreign := bob.link(s, "evo")
	_, err = foreign.RecordOf("evo", mine.Activity).Whoami(ctx)
	refused(t, "an activity of another org", err, api.NotFound)

	// A removed node writes nothing more, and is told so.
	alice.must(alice.DeleteWorker(ctx, "evo"))
	_, err = below.AppendEvents(ctx, mine.Activity, []canon.Raw{(&log{c: alice, run: mine.Activity}).next(created)})
	refused(t, "the record of a removed node", err, api.Gone)
	if _, err := neighbour.RecordOf("ovo", other.Activity).Whoami(ctx); err != nil {
		t.Errorf("its neighbour: %v", err)
	}
}

// TestAnotherInstall: what an install was asked for stays its own. Another one that is
// linked under the same id, once that is free, has nothing to do with it; the same one
// that is linked again has.
func TestAnotherInstall(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	alice := s.client("acme")
	first := alice.link(s, "evo")
	stage := alice.tree(map[string]string{"stage.json": "{}"})
	a := alice.fit("evo", stage, stage)
	first.report(a.Activity, api.StateReport{State: activity.Ready})
	created := alice.created()
	alice.must(alice.DeleteWorker(ctx, "evo"))

	other := alice.linkAs(s, "evo", strings.Repeat("0", 32))
	_, err := other.RecordOf("evo", a.Activity).Whoami(ctx)
	refused(t, "the record of another install's activity", err, api.NotFound)
	_, err = other.RecordOf("evo", a.Activity).AppendEvents(ctx, a.Activity, []canon.Raw{(&log{c: alice, run: a.Activity}).next(created)})
	refused(t, "events of another install's activity", err, api.NotFound)
	_, err = other.NodeTree(ctx, "evo", a.Activity, stage)
	refused(t, "a tree of another install's activity", err, api.NotFound)
	_, err = other.NodeBlob(ctx, "evo", a.Activity, stage, string(canon.Sum([]byte("{}"))), 0)
	refused(t, "a file of another install's activity", err, api.NotFound)
	for _, r := range []api.StateReport{
		{State: activity.Ready}, {State: activity.Stopped, Reason: activity.Done}, {State: activity.Stopped, Reason: activity.Unlink},
	} {
		r.Key = other.key
		refused(t, "a report of another install's activity", other.Report(ctx, "evo", a.Activity, r), api.NotFound)
	}
	// One that claims to run it is told to end it, as of any activity that is not its own.
	got, err := other.Claim(ctx, "evo", api.Claim{Key: other.key, Wait: 1, Running: []api.Running{{Activity: a.Activity, State: activity.Ready}}})
	if want := []api.Stop{{Activity: a.Activity, Reason: activity.Cancel}}; err != nil || !slices.Equal(got.Stop, want) {
		t.Errorf("a claim with another install's activity: %+v, %v, want %+v", got, err, want)
	}
	if got, err := alice.Activity(ctx, a.Activity); err != nil || got.State != activity.Stopped || got.Reason != activity.Unlink {
		t.Errorf("the activity is %+v, %v", got, err)
	}

	alice.must(alice.DeleteWorker(ctx, "evo"))
	again := alice.link(s, "evo")
	if _, err := again.RecordOf("evo", a.Activity).Whoami(ctx); err != nil {
		t.Errorf("the record of its own activity, linked again: %v", err)
	}
	again.report(a.Activity, api.StateReport{State: activity.Stopped, Reason: activity.Unlink})
}

// TestTreesOfANode reads trees as a node does: those that a live activity of its own
// names, whole or from an offset.
func TestTreesOfANode(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	alice := s.client("acme")
	m, neighbour := alice.link(s, "evo"), alice.link(s, "ovo")
	rows := bytes.Repeat([]byte("0123456789"), 1000)
	stage := alice.tree(map[string]string{"stage.json": "{}", "data/rows": string(rows), "empty": ""})
	base := alice.tree(map[string]string{"weights": "w"})
	unnamed := alice.tree(map[string]string{"secret": "s"})
	a := alice.fit("evo", stage, base)
	sha := string(canon.Sum(rows))

	for _, hash := range []string{stage, base} {
		got, err := m.NodeTree(ctx, "evo", a.Activity, hash)
		alice.must(err)
		var files []policy.TreeFile
		for _, f := range got.Files {
			files = append(files, policy.TreeFile(f))
		}
		if policy.TreeHash(files) != hash {
			t.Errorf("tree %s came as %+v", hash, got)
		}
	}
	read := func(sha string, offset int64) []byte {
		t.Helper()
		r, err := m.NodeBlob(ctx, "evo", a.Activity, stage, sha, offset)
		alice.must(err)
		defer r.Close()
		var b bytes.Buffer
		_, err = b.ReadFrom(r)
		alice.must(err)
		return b.Bytes()
	}
	for _, offset := range []int64{0, 1, 9999} {
		if got := read(sha, offset); !bytes.Equal(got, rows[offset:]) {
			t.Errorf("from byte %d: %d bytes", offset, len(got))
		}
	}
	if got := read(string(canon.Sum(nil)), 0); len(got) != 0 {
		t.Errorf("the empty file has %d bytes", len(got))
	}

	at := "/v1/compute/fleet/workers/evo/activities/" + a.Activity + "/trees/" + stage + "/" + sha
	for _, tt := range []struct {
		ranges string
		status int
		size   int // at most; -1: any
	}{
		{"bytes=0-0", 206, 1}, {"bytes=-1", 206, 1}, {"bytes=9990-", 206, 10}, {"bytes=0-99999999", 206, len(rows)},
		{"bytes=10000-", 416, -1}, {"bytes=5-1", 416, -1}, {"bytes=-", 416, -1}, {"bytes=x-", 416, -1},
		{"bytes=99999999999999999999-", 416, -1}, {"lines=1-2", 416, -1},
		// Many ranges are no way to be sent more than there is.
		{"bytes=0-" + repeat(",0-", 2000), 200, len(rows)},
		{"bytes=0-0" + repeat(",0-0", 2000), 206, -1},
	} {
		status, header, body := m.raw("GET", at, nil, "Range", tt.ranges)
		if status != tt.status || tt.size >= 0 && len(body) > tt.size {
			t.Errorf("Range %.40s: %d with %d bytes, want %d", tt.ranges, status, len(body), tt.status)
		}
		var p api.Problem
		if status == 416 && (header.Get("Content-Type") != "application/problem+json" || json.Unmarshal(body, &p) != nil || p.Code != api.RangeInvalid || p.Status != 416) {
			t.Errorf("Range %.40s: %s %q is no problem document", tt.ranges, header.Get("Content-Type"), body)
		}
		if status == 206 && header.Get("ETag") != `"`+sha+`"` {
			t.Errorf("Range %.40s: ETag %s", tt.ranges, header.Get("ETag"))
		}
	}
	if status, _, body := m.raw("GET", at, nil, "Range", "bytes=1-", "If-Range", `"other"`); status != 200 || len(body) != len(rows) {
		t.Errorf("a range of other bytes: %d with %d bytes", status, len(body))
	}

	denied := func(what string, m *machine, id, act, hash string, code api.Code) {
		t.Helper()
		_, err := m.NodeTree(ctx, id, act, hash)
		refused(t, what, err, code)
		_, err = m.NodeBlob(ctx, id, act, hash, sha, 0)
		refused(t, what+", a file", err, code)
	}
	denied("a tree that is not named", m, "evo", a.Activity, unnamed, api.NotFound)
	denied("no tree", m, "evo", a.Activity, "x", api.NotFound)
	denied("no activity", m, "evo", "act_none", stage, api.NotFound)
	denied("another node's activity", neighbour, "ovo", a.Activity, stage, api.NotFound)
	denied("below another node", neighbour, "evo", a.Activity, stage, api.Forbidden)
	denied("a person", &machine{client: alice}, "evo", a.Activity, stage, api.Forbidden)
	_, err := m.NodeBlob(ctx, "evo", a.Activity, base, sha, 0)
	refused(t, "a file of the other tree", err, api.NotFound)

	b := alice.fit("evo", base, base)
	denied("what another activity names", m, "evo", b.Activity, stage, api.NotFound)
	m.end(a.Activity)
	denied("after the end", m, "evo", a.Activity, stage, api.NotFound)
}

func repeat(s string, n int) string { return string(bytes.Repeat([]byte(s), n)) }

// TestPutTree sends trees and blobs that are not what they say they are.
func TestPutTree(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	alice := s.client("acme")
	hash, tree := treeOf(map[string]string{"a": "one", "b/c": "two", "d": "two"})
	stored, err := alice.PutTree(ctx, hash, tree)
	if err != nil || len(stored.Missing) != 2 {
		t.Fatalf("PutTree = %+v, %v, want two missing", stored, err)
	}
	one := string(canon.Sum([]byte("one")))
	alice.must(alice.PutBlob(ctx, one, 3, bytes.NewReader([]byte("one"))))
	alice.must(alice.PutBlob(ctx, one, 3, bytes.NewReader([]byte("one"))))
	if stored, err = alice.PutTree(ctx, hash, tree); err != nil || len(stored.Missing) != 1 {
		t.Errorf("with one of two: %+v, %v", stored, err)
	}
	// Another org holds nothing of it, and cannot tell that anybody does.
	bob := s.client("globex")
	if stored, err = bob.PutTree(ctx, hash, tree); err != nil || len(stored.Missing) != 2 {
		t.Errorf("another org: %+v, %v", stored, err)
	}

	path := "/v1/compute/fleet/trees/" + hash
	file := func(path, sha string, size any) string {
		return fmt.Sprintf(`{"files":[{"path":%q,"sha256":%q,"size":%v}]}`, path, sha, size)
	}
	for name, tt := range map[string]struct {
		path, body string
		code       api.Code
	}{
		"not the files of the name": {path, file("a", one, 3), api.AddressMismatch},
		"no name":                   {"/v1/compute/fleet/trees/x", file("a", one, 3), api.AddressMismatch},
		"no files":                  {path, `{"files":[]}`, api.Invalid},
		"null":                      {path, `{"files":null}`, api.Invalid},
		"no member":                 {path, `{}`, api.Invalid},
		"an unknown member":         {path, `{"files":[],"mode":1}`, api.Invalid},
		"a path up":                 {path, file("../a", one, 3), api.Invalid},
		"a path from the root":      {path, file("/etc/passwd", one, 3), api.Invalid},
		"a path with a newline":     {path, file("a\nb", one, 3), api.Invalid},
		"a size below 0":            {path, file("a", one, -1), api.Invalid},
		"half a byte":               {path, file("a", one, 0.5), api.Invalid},
		"no hash":                   {path, file("a", "x", 3), api.Invalid},
		"a body that is none":       {path, `{"files":`, api.Invalid},
	} {
		if status, _, p := alice.send("PUT", tt.path, tt.body); p.Code != tt.code {
			t.Errorf("%s: %d %s (%s), want %s", name, status, p.Code, p.Detail, tt.code)
		}
	}
	big := api.Tree{}
	for i := range api.MaxTreeFiles + 1 {
		big.Files = append(big.Files, api.TreeFile{Path: fmt.Sprint("f", i), SHA256: one, Size: 3})
	}
	_, err = alice.PutTree(ctx, hash, big)
	refused(t, "too many files", err, api.TooLarge)
	if status, _, p := alice.send("PUT", path, repeat(" ", 17<<20)); status != 413 {
		t.Errorf("17 MiB of nothing: %d %s", status, p.Code)
	}

	two := string(canon.Sum([]byte("two")))
	refused(t, "other bytes", alice.PutBlob(ctx, two, 3, bytes.NewReader([]byte("TWO"))), api.AddressMismatch)
	status, _, body := alice.raw("PUT", "/v1/compute/fleet/blobs/"+two, struct{ *bytes.Reader }{bytes.NewReader([]byte("two"))}) // chunked: no length
	if status != 422 {
		t.Errorf("without a length: %d %s", status, body)
	}
	refused(t, "no name", alice.PutBlob(ctx, "..", 3, bytes.NewReader([]byte("two"))), api.NotFound)
	refused(t, "a name that is none", alice.PutBlob(ctx, "x", 3, bytes.NewReader([]byte("two"))), api.Invalid)
	if stored, err = alice.PutTree(ctx, hash, tree); err != nil || len(stored.Missing) != 1 || stored.Missing[0] != two {
		t.Errorf("after all this: %+v, %v", stored, err)
	}
	if alice.PutBlob(ctx, two, 3, bytes.NewReader([]byte("tw"))) == nil {
		t.Error("a short body was taken")
	}
	if stored, err = alice.PutTree(ctx, hash, tree); err != nil || len(stored.Missing) != 1 {
		t.Errorf("after a short body: %+v, %v", stored, err)
	}
}
