package db

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// maxArtifact is HIP-1333 §6's largest artifact.
const maxArtifact = 64 << 30

// RegisterArtifact registers what a describes, without its bytes. One that is
// held is answered as it is held; see register. Should every part of it have come
// to a server that died before it put them together, that is done now: the
// artifact is stored, or its parts are dropped and it is refused.
func (o *Org) RegisterArtifact(ctx context.Context, a record.Artifact) (record.Artifact, error) {
	var out record.Artifact
	err := o.update(ctx, func(t *tx) error {
		a.State, a.Created = record.Registered, t.received
		var err error
		out, err = t.register(a)
		return err
	})
	if err != nil || out.State == record.Stored || partCount(travels(out)) == 1 {
		return out, err
	}
	return o.assemble(ctx, out)
}

// register stores an artifact's metadata and returns what is held under its
// address. Metadata of a stored artifact never change. Those of one only
// registered were never checked against bytes, so a later registration replaces
// them, all but the purpose.
func (t *tx) register(a record.Artifact) (record.Artifact, error) {
	if err := a.Validate(); err != nil {
		return a, api.Refuse(api.Invalid, "artifact: %v", err)
	}
	if a.Size > maxArtifact || (a.CompressedSize != nil && *a.CompressedSize > maxArtifact) {
		return a, api.Refuse(api.TooLarge, "artifact %s: over %d bytes", a.SHA256, int64(maxArtifact))
	}
	held, ok, err := t.artifact(a.SHA256)
	if err != nil {
		return a, err
	}
	if ok && held.Purpose != a.Purpose {
		return a, api.Refuse(api.Exists, "artifact %s exists with purpose %s, which never changes; this is %s", a.SHA256, held.Purpose, a.Purpose)
	}
	if ok && held.State == record.Stored {
		return held, nil
	}
	parents := make([]record.Artifact, len(a.Parents))
	for i, sha := range a.Parents {
		p, ok, err := t.artifact(sha)
		if err != nil {
			return a, err
		}
		if !ok {
			return a, api.Refuse(api.UnknownParent, "artifact %s: there is no parent %s", a.SHA256, sha)
		}
		parents[i] = p
	}
	if err := a.CheckParents(parents...); err != nil {
		return a, purposeRefused("artifact "+string(a.SHA256), err)
	}
	if ok {
		a.Created = held.Created
		return a, t.putArtifact(a)
	}
	seq, err := t.next()
	if err != nil {
		return a, err
	}
	body, err := canon.Marshal(a)
	if err != nil {
		return a, err
	}
	return a, t.exec("insert into artifact(sha256, seq, kind, run, purpose, created, stored, body) values(?, ?, ?, ?, ?, ?, 0, ?)",
		string(a.SHA256), seq, string(a.Kind), a.Producer.Run, string(a.Purpose), a.Created, body)
}

// putArtifact writes a held artifact's new state.
func (t *tx) putArtifact(a record.Artifact) error {
	body, err := canon.Marshal(a)
	if err != nil {
		return err
	}
	return t.exec("update artifact set kind = ?, run = ?, stored = ?, body = ? where sha256 = ?",
		string(a.Kind), a.Producer.Run, a.State == record.Stored, body, string(a.SHA256))
}

// markStored records that the bytes are at the artifact's path. They are kept
// uncompressed, so how they travelled is forgotten.
func (t *tx) markStored(a *record.Artifact) error {
	a.State, a.Compression, a.CompressedSize = record.Stored, nil, nil
	return t.putArtifact(*a)
}

func (t *tx) artifact(sha canon.SHA256) (record.Artifact, bool, error) {
	var a record.Artifact
	ok, err := t.object(&a, "select body from artifact where sha256 = ?", string(sha))
	return a, ok, err
}

// Artifact answers one artifact's metadata.
func (o *Org) Artifact(ctx context.Context, sha canon.SHA256) (record.Artifact, error) {
	var a record.Artifact
	err := o.view(ctx, func(t *tx) error {
		var ok bool
		var err error
		if a, ok, err = t.artifact(sha); err == nil && !ok {
			return unknown("artifact", string(sha))
		}
		return err
	})
	return a, err
}

// Artifacts lists artifacts.
func (o *Org) Artifacts(ctx context.Context, q api.ArtifactQuery) ([]canon.Raw, error) {
	var f filter
	f.and("kind = ?", string(q.Kind))
	f.and("run = ?", q.Run)
	f.and("purpose = ?", string(q.Purpose))
	f.and("unixepoch(created) >= unixepoch(?)", q.Since)
	return o.page(ctx, "artifact", "sha256", f, q.After, q.Limit)
}

// OpenArtifact opens a stored artifact's bytes for reading. Those of a
// sealed_eval artifact are never served.
func (o *Org) OpenArtifact(ctx context.Context, sha canon.SHA256) (record.Artifact, *os.File, error) {
	a, err := o.Artifact(ctx, sha)
	if err != nil {
		return a, nil, err
	}
	if a.Purpose == record.SealedEval {
		return a, nil, api.Refuse(api.Sealed, "artifact %s is sealed_eval: its bytes are never served", sha).With(403)
	}
	if a.State != record.Stored {
		return a, nil, api.Refuse(api.NotFound, "artifact %s is registered, but its bytes have not come", sha)
	}
	f, err := os.Open(o.artifactPath(string(sha)))
	return a, f, err
}

func (o *Org) artifactPath(name string) string { return filepath.Join(o.artifacts(), name) }

func (o *Org) partPath(sha canon.SHA256, number uint32) string {
	return filepath.Join(o.parts(), fmt.Sprintf("%s.%d", sha, number))
}

// travels is how many bytes of an artifact are sent.
func travels(a record.Artifact) uint64 {
	if a.CompressedSize != nil {
		return *a.CompressedSize
	}
	return a.Size
}

// partCount is how many parts an upload of total bytes has; 1 means a single PUT.
func partCount(total uint64) uint32 {
	return uint32(max(1, (total+api.PartSize-1)/api.PartSize))
}

// A Part is a range of the bytes that travel. Numbers start at 1.
type Part struct {
	Number       uint32
	Offset, Size uint64
}

// Missing lists the parts of an artifact's upload that are not held.
func (o *Org) Missing(a record.Artifact) ([]Part, error) {
	total := travels(a)
	if partCount(total) == 1 {
		return []Part{{Number: 1, Size: total}}, nil // it is received whole and kept nowhere before that
	}
	var missing []Part
	for n := range partCount(total) {
		offset := uint64(n) * api.PartSize
		p := Part{Number: n + 1, Offset: offset, Size: min(api.PartSize, total-offset)}
		held, err := o.holds(a.SHA256, p)
		if err != nil {
			return nil, err
		}
		if !held {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

// holds reports whether a part of the given size was received. A part of another
// size is left from a registration that was replaced.
func (o *Org) holds(sha canon.SHA256, p Part) (bool, error) {
	info, err := os.Stat(o.partPath(sha, p.Number))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for part %d of %s: %w", p.Number, sha, err)
	}
	return uint64(info.Size()) == p.Size, nil
}
