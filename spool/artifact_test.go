package spool

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

func TestPut(t *testing.T) {
	s := newSpool(t)
	a, err := s.Put(artifactOf(record.KindConfig, record.Train), strings.NewReader(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if a.SHA256 != canon.Sum([]byte(`{"a":1}`)) || a.Size != 7 || a.State != record.Registered || a.Created == "" {
		t.Errorf("Put = %+v", a)
	}
	if got, ok := s.Artifact(a.SHA256); !ok || got.SHA256 != a.SHA256 || got.Created != a.Created {
		t.Errorf("Artifact = %+v, %t", got, ok)
	}
	r, err := s.OpenArtifact(a.SHA256)
	if got, err := readAll(t, r, err); got != `{"a":1}` || err != nil {
		t.Errorf("OpenArtifact = %q, %v", got, err)
	}
	// The same bytes, by content and by address.
	if again, err := s.Put(artifactOf(record.KindConfig, record.Train), strings.NewReader(`{"a":1}`)); err != nil || again.Created != a.Created {
		t.Errorf("Put again = %+v, %v", again, err)
	}
	named := artifactOf(record.KindConfig, record.Train)
	named.SHA256 = a.SHA256
	if _, err := s.Put(named, nil); err != nil {
		t.Errorf("Put by address = %v", err)
	}
	all, err := s.Artifacts()
	if err != nil || len(all) != 4 {
		t.Errorf("Artifacts = %v, %v", all, err)
	}
}

func TestPutRefused(t *testing.T) {
	s := newSpool(t)
	evalRows, err := s.Put(artifactOf(record.KindDataset, record.EvalOnly), strings.NewReader("{\"e\":1}\n"))
	if err != nil {
		t.Fatal(err)
	}
	files := countFiles(t, s)
	for _, tt := range []struct {
		name   string
		change func(*record.Artifact)
		bytes  string
		want   string
		is     error
	}{
		{"other bytes than the address", func(a *record.Artifact) { a.SHA256 = canon.Sum(nil) }, `{}`, "hash to", nil},
		{"no address", func(a *record.Artifact) { a.SHA256 = "../x" }, `{}`, "no address", nil},
		{"not JSON", nil, `{`, "", nil},
		{"JSON that is not canonical", nil, `{"b":1, "a":2}`, "not canonical", nil},
		{"JSON with a newline", nil, "{}\n", "not canonical", nil},
		{"a line that is not canonical", ofKind(record.KindTarget), "{}\n{\"a\":1.0}\n", "line 2", nil},
		{"an empty line", ofKind(record.KindTarget), "{}\n\n", "line 2", nil},
		{"a line without its newline", ofKind(record.KindTarget), "{}\n{}", "newline", nil},
		{"an unknown parent", func(a *record.Artifact) { a.Parents = []canon.SHA256{canon.Sum(nil)} }, `{}`, "not in the spool", nil},
		{"derived from evaluation data", func(a *record.Artifact) { a.Parents = []canon.SHA256{evalRows.SHA256} }, `{}`, "", record.ErrDerivation},
		{"a purpose that does not follow", func(a *record.Artifact) { a.Purpose = record.Dev }, `{}`, "", record.ErrPurpose},
		{"no tool", func(a *record.Artifact) { a.Producer.Tool = "" }, `{}`, "tool", nil},
		{"held with another kind", ofKind(record.KindPlan), string(configBytes), "", ErrExists},
	} {
		a := artifactOf(record.KindConfig, record.Train)
		if tt.change != nil {
			tt.change(&a)
		}
		_, err := s.Put(a, strings.NewReader(tt.bytes))
		if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("%s: Put = %v, want %q %v", tt.name, err, tt.want, tt.is)
		}
	}
	if got := countFiles(t, s); got != files {
		t.Errorf("refused artifacts left %d files", got-files)
	}
}

func ofKind(k record.Kind) func(*record.Artifact) {
	return func(a *record.Artifact) { a.Kind, a.MediaType = k, k.MediaType() }
}

// TestOpenArtifact reads what another producer compressed, and what rotted.
func TestOpenArtifact(t *testing.T) {
	s := newSpool(t)
	sha := canon.Sum(configBytes)
	path := s.path(artifacts, string(sha))

	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".zst", z.EncodeAll(configBytes, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r, err := s.OpenArtifact(sha)
	if got, err := readAll(t, r, err); got != string(configBytes) || err != nil {
		t.Errorf("compressed: %q, %v", got, err)
	}
	if err := os.WriteFile(path, bytes.ToUpper(configBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err = s.OpenArtifact(sha)
	if _, err := readAll(t, r, err); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "move it away and put the artifact again") {
		t.Errorf("changed bytes: %v", err)
	}
	os.Remove(path)
	os.Remove(path + ".zst")
	if _, err := s.OpenArtifact(sha); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "put it again") {
		t.Errorf("bytes gone: %v", err)
	}
	// Which is done by content or by address.
	for _, address := range []canon.SHA256{"", sha} {
		os.Remove(path)
		again := artifactOf(record.KindConfig, record.Train)
		again.SHA256 = address
		if _, err := s.Put(again, bytes.NewReader(configBytes)); err != nil {
			t.Errorf("Put again: %v", err)
		}
		r, err = s.OpenArtifact(sha)
		if got, err := readAll(t, r, err); got != string(configBytes) || err != nil {
			t.Errorf("put again: %q, %v", got, err)
		}
	}
	os.Remove(path)
	if _, err := s.Put(artifactOf(record.KindPlan, record.Train), bytes.NewReader(configBytes)); !errors.Is(err, ErrExists) {
		t.Errorf("put again with another kind: %v", err)
	}
	if _, err := s.OpenArtifact(canon.Sum([]byte("never put"))); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("never put: %v", err)
	}
}

func countFiles(t *testing.T, s *Spool) int {
	t.Helper()
	entries, err := os.ReadDir(s.path(artifacts, ""))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
