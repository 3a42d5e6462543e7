package record

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/spool/canon"
)

// itemJSON and artifactJSON are the examples of HIP-1334 §4.1 and §5.2.
const itemJSON = `{
  "dataset_id": "jev-teacher-train-v1",
  "item_id": "support_triage:4812",
  "purpose": "teacher_mining",
  "canonical_example_id": "support_triage:train:4812",
  "source_hash": "sha256:09bfe0857d425f3ec0211ceab1105394fcc53bc131ee82de6d456486195ed8f5",
  "contamination_hash": "sha256:fda7140abe86d58bd2432f6234c501e3d0d96bf3a00f672a45862fc281dd326b",
  "derivation_allowed": true,
  "payload": {
    "input": {"ticket": "I was charged twice for my March invoice."},
    "gold": {"team": "billing"}
  }
}`

const artifactJSON = `{
  "sha256": "86a96f20c92f165b388152896a5e71a8712919a6f481f19c927a7c39fef58c3f",
  "kind": "capability",
  "media_type": "application/x-tar",
  "schema_version": 1,
  "purpose": "train",
  "size": 502030336,
  "compressed_size": null,
  "compression": null,
  "producer": {
    "run": "job_30bfc6e5af09a9f7",
    "event_id": "sha256:bf1f52c93c849ca3be6301c4edaa3de0ab3f7396e33ab234724c65fab7118ed0",
    "tool": "train fit",
    "version": "edd4821"
  },
  "parents": ["0834a74f2d140642a453373da09e5a128e3d2c8d9e8bb1dcaf86d7210a4ecdfc"],
  "state": "stored",
  "created": "2026-09-29T07:50:36Z"
}`

func read[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := canon.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestExamples reads the specification's examples and writes them back.
func TestExamples(t *testing.T) {
	it := read[DatasetItem](t, itemJSON)
	a := read[Artifact](t, artifactJSON)
	for _, ex := range []struct {
		v    interface{ Validate() error }
		text string
	}{{it, itemJSON}, {a, artifactJSON}} {
		if err := ex.v.Validate(); err != nil {
			t.Errorf("Validate: %v", err)
		}
		want, _ := canon.Canonicalize([]byte(ex.text))
		if got, err := canon.Marshal(ex.v); err != nil || !bytes.Equal(got, want) {
			t.Errorf("Marshal = %s, %v; want %s", got, err, want)
		}
	}
}

func TestNewItem(t *testing.T) {
	want := read[DatasetItem](t, itemJSON)
	source := canon.Raw(`{"text":"I was charged twice"}`)
	got, err := NewItem(want.DatasetID, want.Purpose, want.ItemID, want.CanonicalExampleID, source, want.Payload.Input, want.Payload.Gold)
	if err != nil {
		t.Fatal(err)
	}
	want.SourceHash = canon.HashOf(source)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("NewItem (-want +got):\n%s", diff)
	}
	for _, input := range []string{"", `{"a":1,"a":2}`} {
		if _, err := NewItem("d", Train, "i", "s:1", source, canon.Raw(input), nil); err == nil {
			t.Errorf("NewItem with input %q was accepted", input)
		}
	}
	if _, err := NewItem("d", Train, "i", "s:1", canon.Raw("nope"), want.Payload.Input, nil); err == nil {
		t.Error("NewItem with a source that is not JSON was accepted")
	}
}

func TestValidateItem(t *testing.T) {
	tests := []struct {
		name   string
		change func(*DatasetItem)
		want   string
	}{
		{"dataset", func(it *DatasetItem) { it.DatasetID = "Upper" }, "/dataset_id: "},
		{"item", func(it *DatasetItem) { it.ItemID = "a b" }, "/item_id: "},
		{"purpose", func(it *DatasetItem) { it.Purpose = "test" }, "/purpose: "},
		{"example", func(it *DatasetItem) { it.CanonicalExampleID = "4812" }, "/canonical_example_id: "},
		{"source hash", func(it *DatasetItem) { it.SourceHash = "" }, "/source_hash: "},
		{"contamination hash", func(it *DatasetItem) { it.ContaminationHash = it.SourceHash }, "/contamination_hash: "},
		{"derivation", func(it *DatasetItem) { it.DerivationAllowed = false }, "/derivation_allowed: purpose refused"},
		{"no input", func(it *DatasetItem) { it.Payload.Input = nil }, "/payload/input: "},
		{"input is not JSON", func(it *DatasetItem) { it.Payload.Input = canon.Raw("{") }, "/payload/input: "},
	}
	for _, tt := range tests {
		it := read[DatasetItem](t, itemJSON)
		tt.change(&it)
		checkFault(t, tt.name, it.Validate(), tt.want)
	}
	it := read[DatasetItem](t, itemJSON)
	it.DerivationAllowed = false
	if err := it.Validate(); !errors.Is(err, ErrPurpose) {
		t.Errorf("wrong derivation_allowed: %v, want ErrPurpose", err)
	}
	it = read[DatasetItem](t, itemJSON)
	it.Payload.Gold = nil
	if err := it.Validate(); err != nil {
		t.Errorf("an unlabelled item: %v", err)
	}
}

func checkFault(t *testing.T, name string, err error, want string) {
	t.Helper()
	var at *canon.Error
	if !errors.As(err, &at) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%s: %v, want %s", name, err, want)
	}
}

func TestValidateArtifact(t *testing.T) {
	size, zstd, run := uint64(1), Zstd, "a b"
	tests := []struct {
		name   string
		change func(*Artifact)
		want   string
	}{
		{"address", func(a *Artifact) { a.SHA256 = "sha256:" }, "/sha256: "},
		{"kind", func(a *Artifact) { a.Kind = "model" }, "/kind: "},
		{"media type", func(a *Artifact) { a.MediaType = MediaJSON }, "/media_type: "},
		{"schema version", func(a *Artifact) { a.SchemaVersion = 0 }, "/schema_version: "},
		{"compression without size", func(a *Artifact) { a.Compression = &zstd }, "/compressed_size: "},
		{"size without compression", func(a *Artifact) { a.CompressedSize = &size }, "/compressed_size: "},
		{"tool", func(a *Artifact) { a.Producer.Tool = "" }, "/producer/tool: "},
		{"run", func(a *Artifact) { a.Producer.Run = &run }, "/producer/run: "},
		{"own parent", func(a *Artifact) { a.Parents[0] = a.SHA256 }, "/parents/0: "},
		{"parent", func(a *Artifact) { a.Parents[0] = "x" }, "/parents/0: "},
		{"state", func(a *Artifact) { a.State = "" }, "/state: "},
		{"created", func(a *Artifact) { a.Created = "2026-09-29T07:50:36+02:00" }, "/created: "},
	}
	for _, tt := range tests {
		a := read[Artifact](t, artifactJSON)
		tt.change(&a)
		checkFault(t, tt.name, a.Validate(), tt.want)
	}
	for kind, media := range mediaTypes {
		if !kind.Valid() || kind.MediaType() != media {
			t.Errorf("kind %s", kind)
		}
	}
}

func TestValidateDataset(t *testing.T) {
	sha, sealed := canon.Sum(nil), "2026-09-29T07:50:36.123Z"
	good := Dataset{
		ID: "triage.train", Purpose: Train, Title: "Triage", License: "unstated", Origin: "hf://a/b@c",
		State: Sealed, Items: 2, SHA256: &sha, Created: "2026-09-29T07:50:36Z", Sealed: &sealed,
	}
	if err := good.Validate(); err != nil {
		t.Errorf("Validate: %v", err)
	}
	tests := []struct {
		name   string
		change func(*Dataset)
		want   string
	}{
		{"id", func(d *Dataset) { d.ID = ".x" }, "/id: "},
		{"long id", func(d *Dataset) { d.ID = strings.Repeat("x", 65) }, "/id: "},
		{"purpose", func(d *Dataset) { d.Purpose = "" }, "/purpose: "},
		{"license", func(d *Dataset) { d.License = "" }, "/license: "},
		{"origin", func(d *Dataset) { d.Origin = "" }, "/origin: "},
		{"parents", func(d *Dataset) { d.Parents = []string{d.ID} }, "/parents/0: "},
		{"benchmark", func(d *Dataset) { d.Benchmark = &Benchmark{} }, "/benchmark/id: "},
		{"sealed without address", func(d *Dataset) { d.SHA256 = nil }, "/sha256: "},
		{"open with address", func(d *Dataset) { d.State = Open }, "/sha256: "},
		{"sealed without instant", func(d *Dataset) { d.Sealed = nil }, "/sealed: "},
		{"created", func(d *Dataset) { d.Created = "today" }, "/created: "},
		{"created with a comma", func(d *Dataset) { d.Created = "2026-09-29T07:50:36,5Z" }, "/created: "},
		{"created at an hour of one digit", func(d *Dataset) { d.Created = "2026-09-29T7:50:36Z" }, "/created: "},
	}
	for _, tt := range tests {
		d := good
		tt.change(&d)
		checkFault(t, tt.name, d.Validate(), tt.want)
	}
}

func TestValidateEnvironment(t *testing.T) {
	good := Environment{
		GitSHA: strings.Repeat("0a", 20), LockfileHash: canon.HashOf(nil), KernelPlanHash: canon.HashOf(nil),
		Accelerator: Accelerator{API: CPU}, Precision: Precision{"f32", "f32", "f32"},
	}
	if err := good.Validate(); err != nil {
		t.Errorf("Validate: %v", err)
	}
	const want = `{"accelerator":{"api":"cpu","driver":"","version":""},"compiler_flags":[],"determinism_flags":[],"dirty":false,` +
		`"git_sha":"0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a","gpus":[],"image":null,` +
		`"kernel_plan_hash":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","kernels":"",` +
		`"lockfile_hash":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","ml":"",` +
		`"precision":{"accumulate":"f32","compute":"f32","master":"f32"}}`
	if got, err := canon.Marshal(good); err != nil || string(got) != want {
		t.Errorf("Marshal = %s, %v\nwant %s", got, err, want)
	}
	for name, change := range map[string]func(*Environment){
		"/git_sha: ":           func(e *Environment) { e.GitSHA = "edd4821" },
		"/accelerator/api: ":   func(e *Environment) { e.Accelerator.API = "tpu" },
		"/lockfile_hash: ":     func(e *Environment) { e.LockfileHash = "" },
		"/precision/compute: ": func(e *Environment) { e.Precision.Compute = "" },
	} {
		e := good
		change(&e)
		checkFault(t, name, e.Validate(), name)
	}
}

func TestItemsNDJSON(t *testing.T) {
	a, b := read[DatasetItem](t, itemJSON), read[DatasetItem](t, itemJSON)
	a.ItemID, b.ItemID = "i10", "i2"
	out, sha, err := ItemsNDJSON([]DatasetItem{b, a})
	if err != nil || sha != canon.Sum(out) {
		t.Fatalf("ItemsNDJSON = %s, %v", sha, err)
	}
	lineA, _ := canon.Marshal(a)
	lineB, _ := canon.Marshal(b)
	if want := string(lineA) + "\n" + string(lineB) + "\n"; string(out) != want {
		t.Errorf("ItemsNDJSON = %s\nwant %s", out, want)
	}
	if _, again, _ := ItemsNDJSON([]DatasetItem{a, b}); again != sha {
		t.Error("the address depends on the order of the items given")
	}
	if _, _, err := ItemsNDJSON([]DatasetItem{a, b, a}); err == nil {
		t.Error("two items of one id were accepted")
	}
	if out, sha, err := ItemsNDJSON(nil); len(out) != 0 || sha != canon.Sum(nil) || err != nil {
		t.Errorf("ItemsNDJSON of nothing = %q, %s, %v", out, sha, err)
	}
}
