package control_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/record"
)

// TestRefusedBodies sends bodies that a looser decoder would take.
func TestRefusedBodies(t *testing.T) {
	c := start(t).client("acme")
	const good = `{"id":"d","purpose":"train","title":"t","license":"unstated","origin":"o","parents":[],"benchmark":null}`
	change := func(old, now string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in the body", old)
		}
		return strings.Replace(good, old, now, 1)
	}
	for _, tt := range []struct {
		name, path, body string
		status           int
		code             api.Code
	}{
		{"nothing", "datasets", "", 400, api.Invalid},
		{"not JSON", "datasets", "{", 400, api.Invalid},
		{"two values", "datasets", good + good, 400, api.Invalid},
		{"byte order mark", "datasets", "\ufeff" + good, 400, api.Invalid},
		{"invalid UTF-8", "datasets", change(`"t"`, "\"\xff\""), 400, api.Invalid},
		{"lone surrogate", "datasets", change(`"t"`, `"\ud800"`), 400, api.Invalid},
		{"duplicate member", "datasets", change(`"title":"t"`, `"title":"t","title":"u"`), 400, api.Invalid},
		{"unknown member", "datasets", change(`"title":"t"`, `"title":"t","org":"globex"`), 400, api.Invalid},
		{"member in another case", "datasets", change(`"title"`, `"Title"`), 400, api.Invalid},
		{"missing member", "datasets", change(`"license":"unstated",`, ""), 400, api.Invalid},
		{"no purpose", "datasets", change(`"purpose":"train",`, ""), 400, api.Invalid},
		{"unknown purpose", "datasets", change(`"train"`, `"trian"`), 400, api.Invalid},
		{"bad id", "datasets", change(`"d"`, `"D"`), 400, api.Invalid},
		{"empty origin", "datasets", change(`"o"`, `""`), 400, api.Invalid},
		{"unknown parent", "datasets", change(`[]`, `["e"]`), 422, api.UnknownParent},
		{"over the limit", "datasets", change(`"t"`, `"`+strings.Repeat("t", 1<<20)+`"`), 413, api.TooLarge},
		{"items of no dataset", "datasets/none/items", `{"items":[]}`, 404, api.NotFound},
		{"seal of no dataset", "datasets/none/seal", "", 404, api.NotFound},
		{"a gate without rules", "gates", `{"name":"g","version":1,"previous":null,"baseline":null,"rules":[]}`, 422, api.BadGate},
		{"a gate that holds without baseline", "gates", `{"name":"g","version":1,"previous":null,"baseline":null,"rules":[{"dataset":"d","dataset_sha256":"` +
			string(canon.Sum(nil)) + `","category":"all","metric":"accuracy","higher":true,"test":{"kind":"hold","tolerance":0,"interval":null}}]}`, 422, api.BadGate},
		{"a rule that computes a slice", "gates", `{"name":"g","version":1,"previous":null,"baseline":null,"rules":[{"dataset":"d","dataset_sha256":"` +
			string(canon.Sum(nil)) + `","category":"spam","metric":"accuracy","higher":true,"test":{"kind":"floor","value":0,"strict":false}}]}`, 422, api.BadGate},
		{"a gate of version 2 alone", "gates", `{"name":"g","version":2,"previous":"` + string(canon.HashOf(nil)) + `","baseline":null,"rules":[]}`, 422, api.BadVersion},
		{"a version that is 1.0", "gates", `{"name":"g","version":1.0,"previous":null,"baseline":null,"rules":[]}`, 400, api.Invalid},
		{"a version over 32 bits", "gates", `{"name":"g","version":4294967296,"previous":null,"baseline":null,"rules":[]}`, 400, api.Invalid},
		{"events of a bad run", "runs/-r/events", `{"events":[]}`, 400, api.Invalid},
		{"a first event past 1", "runs/r/events", `{"events":[{"event_id":"x"}]}`, 400, api.InvalidEvent},
		{"too many events", "runs/r/events", `{"events":[` + strings.Repeat("1,", 1000) + `1]}`, 413, api.TooLarge},
	} {
		status, header, body := c.raw("POST", "/v1/research/"+tt.path, strings.NewReader(tt.body), "Content-Type", "application/json")
		var p api.Problem
		if err := json.Unmarshal(body, &p); err != nil {
			t.Errorf("%s: %d %s", tt.name, status, body)
			continue
		}
		if status != tt.status || p.Status != status || p.Code != tt.code || header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s, want %d %s", tt.name, status, body, tt.status, tt.code)
		}
	}
	if all, err := c.Datasets(t.Context(), api.DatasetQuery{}); err != nil || len(all) != 0 {
		t.Errorf("after refusals there are datasets %+v, %v", all, err)
	}
}

func TestRefusedQueries(t *testing.T) {
	c := start(t).client("acme")
	c.sealed("d", record.Train, 1)
	for _, query := range []string{
		"datasets?purpose=trian", "datasets?limit=0", "datasets?limit=1001", "datasets?limit=x", "datasets?org=globex", "datasets?after=none",
		"datasets/d/items?limit=1001", "artifacts?kind=nothing", "artifacts?since=yesterday", "runs?status=done", "runs?since=1", "runs?until=2026-02-30T00:00:00Z",
		"gates?after=x", "determinism?environment=x", "determinism?after=x", "determinism?config=x",
	} {
		status, _, body := c.raw("GET", "/v1/research/"+query, nil)
		if status != 400 || !strings.Contains(string(body), `"code":"invalid"`) {
			t.Errorf("GET %s = %d %s, want 400 invalid", query, status, body)
		}
	}
}

func TestDatasets(t *testing.T) {
	c := start(t).client("acme")
	ctx := t.Context()
	created, err := c.CreateDataset(ctx, dataset("d", record.Train))
	c.must(err)
	again, err := c.CreateDataset(ctx, dataset("d", record.Train))
	if diff := cmp.Diff(created, again); err != nil || diff != "" {
		t.Errorf("created again: %v\n%s", err, diff)
	}
	other := dataset("d", record.Train)
	other.Title = "another"
	_, err = c.CreateDataset(ctx, other)
	refused(t, "created with another title", err, api.Exists)
	_, err = c.CreateDataset(ctx, dataset("d", record.Dev))
	refused(t, "created with another purpose", err, api.Exists)

	one, two := c.item("d", record.Train, "i1", "one"), c.item("d", record.Train, "i2", "two")
	got, err := c.AppendItems(ctx, "d", []record.DatasetItem{two, one, one})
	c.must(err)
	if diff := cmp.Diff(api.ItemsAppended{Dataset: "d", Accepted: 2, Duplicate: 1, Items: 2}, got); diff != "" {
		t.Errorf("appended (-want +got):\n%s", diff)
	}
	changed := one
	changed.Payload.Gold = canon.Raw(`{"q":[0,1]}`)
	_, err = c.AppendItems(ctx, "d", []record.DatasetItem{c.item("d", record.Train, "i3", "three"), changed})
	if p := refused(t, "an item changed", err, api.Exists); !strings.Contains(p.Detail, `items/1 (item_id "i1")`) {
		t.Errorf("the refusal does not name the item: %s", p.Detail)
	}
	for _, tt := range []struct {
		name string
		it   record.DatasetItem
		code api.Code
	}{
		{"of another dataset", c.item("e", record.Train, "i9", "nine"), api.Invalid},
		{"of another purpose", c.item("d", record.Dev, "i9", "nine"), api.PurposeRefused},
		{"that says derivation is off", with(one, func(it *record.DatasetItem) { it.DerivationAllowed = false }), api.PurposeRefused},
		{"whose contamination hash is not its text's", with(one, func(it *record.DatasetItem) { it.ContaminationHash = canon.HashOf(nil) }), api.Invalid},
		{"whose example has no source", with(one, func(it *record.DatasetItem) { it.CanonicalExampleID = "i1" }), api.Invalid},
	} {
		_, err = c.AppendItems(ctx, "d", []record.DatasetItem{tt.it})
		refused(t, "an item "+tt.name, err, tt.code)
	}

	items, err := c.Items(ctx, "d", "", 0, "")
	c.must(err)
	if diff := cmp.Diff([]record.DatasetItem{one, two}, items); diff != "" {
		t.Errorf("Items, after a refused append (-want +got):\n%s", diff)
	}
	if items, err = c.Items(ctx, "d", "i1", 1, ""); err != nil || len(items) != 1 || items[0].ItemID != "i2" {
		t.Errorf("Items after i1 = %+v, %v", items, err)
	}

	sealed, err := c.SealDataset(ctx, "d")
	c.must(err)
	if _, want, err := record.ItemsNDJSON([]record.DatasetItem{one, two}); err != nil || *sealed.SHA256 != want {
		t.Errorf("sealed at %s, want %s, %v", *sealed.SHA256, want, err)
	}
	if again, err = c.SealDataset(ctx, "d"); err != nil || *again.SHA256 != *sealed.SHA256 {
		t.Errorf("sealed again: %+v, %v", again, err)
	}
	if _, err = c.AppendItems(ctx, "d", []record.DatasetItem{one}); err != nil {
		t.Errorf("an item that is there, appended to a sealed dataset: %v", err)
	}
	_, err = c.AppendItems(ctx, "d", []record.DatasetItem{c.item("d", record.Train, "i3", "three")})
	refused(t, "an item appended to a sealed dataset", err, api.Sealed)

	l := log{c: c, run: "r"}
	c.appends("r", l.next(c.created()))
	attach := event.DatasetAttached{Dataset: "d", DatasetSHA256: *sealed.SHA256, Purpose: record.Train, Role: record.RoleTrain}
	wrong := attach
	wrong.DatasetSHA256 = canon.Sum(nil)
	_, err = c.AppendEvents(ctx, "r", []canon.Raw{l.at(2, wrong)})
	refused(t, "attached at another hash", err, api.NotSealed)
	c.appends("r", l.next(attach))
	refused(t, "deleted while attached", c.DeleteDataset(ctx, "d"), api.Referenced)

	c.sealed("e", record.Train, 1)
	c.must(c.DeleteDataset(ctx, "e"))
	refused(t, "deleted twice", c.DeleteDataset(ctx, "e"), api.NotFound)
	listed, err := c.Datasets(ctx, api.DatasetQuery{Purpose: record.Train})
	if err != nil || len(listed) != 1 || listed[0].ID != "d" {
		t.Errorf("Datasets = %+v, %v", listed, err)
	}
}

func with(it record.DatasetItem, change func(*record.DatasetItem)) record.DatasetItem {
	change(&it)
	return it
}

// TestDatasetParents derives datasets from datasets.
func TestDatasetParents(t *testing.T) {
	c := start(t).client("acme")
	for _, p := range purposes {
		_, err := c.CreateDataset(t.Context(), dataset("of-"+strings.ReplaceAll(string(p), "_", "-"), p))
		c.must(err)
	}
	for i, tt := range []struct {
		purpose, parent record.Purpose
		code            api.Code
	}{
		{record.EvalOnly, record.EvalOnly, ""}, // an item retired
		{record.Train, record.TeacherMining, ""},
		{record.Train, record.EvalOnly, api.DerivationRefused},
		{record.EvalOnly, record.SealedEval, api.DerivationRefused},
		{record.Train, record.Dev, api.PurposeRefused},
		{record.EvalOnly, record.Train, api.PurposeRefused},
	} {
		d := dataset(fmt.Sprintf("d%d", i), tt.purpose)
		d.Parents = []string{"of-" + strings.ReplaceAll(string(tt.parent), "_", "-")}
		_, err := c.CreateDataset(t.Context(), d)
		what := fmt.Sprintf("%s from %s", tt.purpose, tt.parent)
		if tt.code == "" {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			continue
		}
		refused(t, what, err, tt.code)
	}
}

// TestContamination appends training items that equal evaluation items.
func TestContamination(t *testing.T) {
	c := start(t).client("acme")
	ctx := t.Context()
	for id, p := range map[string]record.Purpose{"exam": record.EvalOnly, "seal": record.SealedEval, "rows": record.Train, "mine": record.TeacherMining, "dev": record.Dev} {
		_, err := c.CreateDataset(ctx, dataset(id, p))
		c.must(err)
	}
	number := func(dataset string, p record.Purpose, id string) record.DatasetItem {
		it, err := record.NewItem(dataset, p, id, "src:"+dataset+":"+id, canon.Raw(id), canon.Raw(`{"x":1}`), nil)
		c.must(err)
		return it
	}
	_, err := c.AppendItems(ctx, "exam", []record.DatasetItem{c.item("exam", record.EvalOnly, "i1", "Hello,  World!"), number("exam", record.EvalOnly, "1")})
	c.must(err)
	_, err = c.AppendItems(ctx, "seal", []record.DatasetItem{c.item("seal", record.SealedEval, "i1", "sealed text")})
	c.must(err)

	twin := c.item("rows", record.Train, "i2", "a view of it")
	twin.CanonicalExampleID = "src:exam:i1"
	for _, tt := range []struct {
		name string
		it   record.DatasetItem
		ok   bool
	}{
		{"the same text, spelled otherwise", c.item("rows", record.Train, "i1", "hello world"), false},
		{"the same text, to be mined", c.item("mine", record.TeacherMining, "i1", "HELLO; WORLD"), false},
		{"a sealed text", c.item("rows", record.Train, "i1", "Sealed text."), false},
		{"the same example under another id", twin, false},
		{"the same text for development", c.item("dev", record.Dev, "i1", "hello world"), true},
		{"another text", c.item("rows", record.Train, "i1", "hello moon"), true},
		{"equal numbers and no text", number("rows", record.Train, "2"), true},
	} {
		_, err := c.AppendItems(ctx, tt.it.DatasetID, []record.DatasetItem{tt.it})
		if tt.ok {
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		refused(t, tt.name, err, api.Contaminated)
	}
}

func TestRefusedArtifacts(t *testing.T) {
	c := start(t).client("acme")
	ctx := t.Context()
	gz := record.Gzip
	size := func(n uint64) *uint64 { return &n }
	config := artifact(record.KindConfig, record.Train)
	for _, tt := range []struct {
		name    string
		change  func(*record.Artifact)
		content string
		code    api.Code
	}{
		{"a parent that is not held", func(a *record.Artifact) { a.Parents = []canon.SHA256{canon.Sum([]byte("?"))} }, "{}", api.UnknownParent},
		{"a media type of another kind", func(a *record.Artifact) { a.MediaType = "text/html" }, "{}", api.Invalid},
		{"schema version 0", func(a *record.Artifact) { a.SchemaVersion = 0 }, "{}", api.Invalid},
		{"bytes that are not JSON", func(*record.Artifact) {}, "{", api.Invalid},
		{"bytes that are not gzip", func(a *record.Artifact) { a.Compression, a.CompressedSize = &gz, size(2) }, "{}", api.LengthMismatch},
		{"a torn gzip", func(a *record.Artifact) { a.Compression, a.CompressedSize = &gz, size(12) }, string(gzipped(t, "{}")[:12]), api.LengthMismatch},
		{"a wrong compressed_size", func(a *record.Artifact) { a.Compression, a.CompressedSize = &gz, size(5) }, string(gzipped(t, "{}")), api.LengthMismatch},
		{"a size too small", func(a *record.Artifact) { a.SHA256, a.Size = canon.Sum([]byte(`{"a":1}`)), 6 }, `{"a":1}`, api.LengthMismatch},
		{"a size too large", func(a *record.Artifact) { a.SHA256, a.Size = canon.Sum([]byte(`{"a":1}`)), 8 }, `{"a":1}`, api.LengthMismatch},
		{"over 64 GiB", func(a *record.Artifact) { a.SHA256, a.Size = canon.Sum(nil), 64<<30+1 }, "", api.TooLarge},
	} {
		a := config
		tt.change(&a)
		var content []byte
		if tt.content != "" {
			content = []byte(tt.content)
		}
		_, err := c.RegisterArtifact(ctx, a, content)
		refused(t, tt.name, err, tt.code)
	}
	_, err := c.RegisterArtifact(ctx, artifact(record.KindPlan, record.Train), []byte(`{"a":`+strings.Repeat("[", 200)+strings.Repeat("]", 200)+`}`))
	refused(t, "JSON nested too deep", err, api.Invalid)
	_, err = c.RegisterArtifact(ctx, artifact(record.KindItems, record.EvalOnly), []byte("{}\n\n{}\n"))
	if p := refused(t, "a blank line", err, api.Invalid); !strings.Contains(p.Detail, "line 2") {
		t.Errorf("the refusal does not name the line: %s", p.Detail)
	}
	_, err = c.RegisterArtifact(ctx, config, nil)
	refused(t, "neither an address nor content", err, api.Invalid)
	_, err = c.RegisterArtifact(ctx, artifact(record.KindReport, record.Train), make([]byte, api.MaxInline+1))
	refused(t, "content over 16 MiB", err, api.TooLarge)
	_, err = c.RegisterArtifact(ctx, artifact(record.KindReport, record.Train), make([]byte, 2*api.MaxInline))
	refused(t, "a body over the route's limit", err, api.TooLarge)
	status, _, body := c.raw("POST", "/v1/research/artifacts", strings.NewReader(fmt.Sprintf(
		`{"kind":"config","media_type":"application/json","schema_version":1,"purpose":"train","size":2,"producer":{"tool":"t","version":""},"parents":[],"content":"%s"}`,
		strings.TrimRight(base64.StdEncoding.EncodeToString([]byte("{}")), "="))))
	if status != 400 {
		t.Errorf("unpadded base64: %d %s", status, body)
	}
	if all, err := c.Artifacts(ctx, api.ArtifactQuery{}); err != nil || len(all) != 0 {
		t.Errorf("after refusals there are artifacts %+v, %v", all, err)
	}

	sha := c.put(record.KindItems, record.Dev, "{}\n")
	_, err = c.RegisterArtifact(ctx, artifact(record.KindItems, record.EvalOnly), []byte("{}\n"))
	refused(t, "the same bytes with another purpose", err, api.Exists)
	if got := c.put(record.KindItems, record.Dev, " { } \n"); got != sha {
		t.Errorf("registered again as %s, want %s", got, sha)
	}
}

// TestEvaluationPurpose ends an evaluation with items of a purpose that would let
// evaluation data be trained on.
func TestEvaluationPurpose(t *testing.T) {
	c := start(t).client("acme")
	events := trainingLog(c, "r")
	c.appends("r", events[:8]...)
	sha := c.put(record.KindItems, record.Train, "{\"item\":\"i0\"}\n")
	questions := uint64(2)
	l := log{c: c, run: "r"}
	_, err := c.AppendEvents(t.Context(), "r", []canon.Raw{l.at(9, event.EvalCompleted{
		Evaluation: "evl_9c1f0a7d52e84b36", Questions: &questions, Answered: &questions, ItemsSHA256: &sha,
	})})
	refused(t, "items of purpose train over an eval_only dataset", err, api.PurposeRefused)

	other := log{c: c, run: "s"}
	started := event.EvalStarted{
		Evaluation: "evl_9c1f0a7d52e84b36", Subject: event.Subject{Kind: "system", Name: "kai", Version: "1"},
		Dataset: "test", DatasetSHA256: mustDataset(c, "test"),
		Evaluator: event.Evaluator{Kind: "harness", Name: "bench", Version: "1", DefinitionHash: canon.HashOf(nil)},
	}
	c.appends("s", other.next(c.created()),
		other.next(event.DatasetAttached{Dataset: "test", DatasetSHA256: started.DatasetSHA256, Purpose: record.EvalOnly, Role: record.RoleEvaluate}))
	_, err = c.AppendEvents(t.Context(), "s", []canon.Raw{other.next(started)})
	refused(t, "another run's evaluation id", err, api.Exists)
}

func mustDataset(c *client, id string) canon.SHA256 {
	c.t.Helper()
	d, err := c.Dataset(c.t.Context(), id)
	c.must(err)
	return *d.SHA256
}

// TestRuns filters listings.
func TestRuns(t *testing.T) {
	c := start(t).client("acme")
	job := "job_1"
	for i, change := range []func(*event.RunCreated){
		func(*event.RunCreated) {},
		func(e *event.RunCreated) { e.Kind = "eval" },
		func(e *event.RunCreated) { e.Tags, e.Job = []string{"weekly"}, &job },
	} {
		l := log{c: c, run: fmt.Sprintf("r%d", i), seq: 0}
		created := c.created()
		change(&created)
		c.appends(l.run, l.next(created))
		if i == 2 {
			c.appends(l.run, l.next(event.RunCompleted{Status: "cancelled"}))
		}
	}
	for _, tt := range []struct {
		q    api.RunQuery
		want []string
	}{
		{api.RunQuery{}, []string{"r0", "r1", "r2"}},
		{api.RunQuery{Kind: "eval"}, []string{"r1"}},
		{api.RunQuery{Status: "cancelled"}, []string{"r2"}},
		{api.RunQuery{Tag: "nightly"}, []string{"r0", "r1"}},
		{api.RunQuery{Job: "job_1"}, []string{"r2"}},
		{api.RunQuery{After: "r0", Limit: 1}, []string{"r1"}},
		{api.RunQuery{Since: "2026-09-29T07:42:00Z", Until: "2026-09-29T07:42:01Z"}, []string{"r0", "r1", "r2"}},
		{api.RunQuery{Since: "2026-09-29T09:42:00.002+02:00"}, nil},
		{api.RunQuery{Until: "2026-09-29T07:42:00Z"}, nil},
	} {
		runs, err := c.Runs(t.Context(), tt.q)
		c.must(err)
		var got []string
		for _, r := range runs {
			got = append(got, r.ID)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("Runs(%+v) (-want +got):\n%s", tt.q, diff)
		}
	}
}
