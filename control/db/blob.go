package db

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/record"
)

// Limits on bytes that are held in memory or whose size nobody declared.
const (
	maxJSON    = 64 << 20  // one JSON artifact, as it came out of its compression
	maxLine    = 16 << 20  // one line of a JSON Lines artifact
	maxUnsized = 256 << 20 // an artifact registered with its bytes and without its size
)

// StoreArtifact registers a with its bytes as they travelled. When known is false
// a's address and size are taken from them. On return the bytes are on stable
// storage under their address, or nothing changed.
func (o *Org) StoreArtifact(ctx context.Context, a record.Artifact, known bool, r io.Reader) (record.Artifact, error) {
	if !known {
		a.SHA256, a.Size = "", maxUnsized
	}
	b, err := o.receive(a, r)
	if err != nil {
		return a, err
	}
	defer b.file.Abort()
	if !known {
		a.SHA256, a.Size = b.address(), b.n
	}
	if err := b.check(a); err != nil {
		return a, err
	}
	var out record.Artifact
	err = o.update(ctx, func(t *tx) error {
		a.State, a.Created = record.Registered, t.received
		if out, err = t.register(a); err != nil || out.State == record.Stored {
			return err
		}
		if err := b.file.CommitAs(string(a.SHA256)); err != nil {
			return err
		}
		return t.markStored(&out)
	})
	return out, err
}

// PutPart receives one part of a registered artifact's upload, of an upload that
// was granted for total bytes under compression. When it is the last one missing,
// the artifact becomes stored, or, when the bytes are not the artifact's, all
// parts are dropped and it is refused.
func (o *Org) PutPart(ctx context.Context, sha canon.SHA256, p Part, total uint64, compression string, r io.Reader) (record.Artifact, error) {
	a, err := o.Artifact(ctx, sha)
	if err != nil {
		return a, err
	}
	if a.State == record.Stored {
		return a, api.Refuse(api.GrantUsed, "artifact %s is stored already", sha)
	}
	if travels(a) != total || compressionOf(a) != compression {
		return a, api.Refuse(api.GrantInvalid, "artifact %s was registered again in another form since: use the newer grant", sha)
	}
	if partCount(total) == 1 {
		return o.finish(ctx, a, r)
	}
	if held, err := o.holds(sha, p); err != nil {
		return a, err
	} else if held {
		// It was the last one, when the server died before it could answer.
		if a, err := o.assemble(ctx, a); err != nil || a.State == record.Stored {
			return a, err
		}
		return a, api.Refuse(api.GrantUsed, "part %d of artifact %s is held already", p.Number, sha)
	}
	f, err := durable.Create(o.partPath(sha, p.Number))
	if err != nil {
		return a, err
	}
	defer f.Abort()
	if err := copyExactly(f, r, p.Size); err != nil {
		return a, err
	}
	if err := f.Commit(); err != nil {
		return a, err
	}
	return o.assemble(ctx, a)
}

// assemble finishes an upload whose parts are all held, and does so also when its
// caller stops waiting: many GiB take longer than a call, and the next one is to
// find them stored.
func (o *Org) assemble(ctx context.Context, a record.Artifact) (record.Artifact, error) {
	ctx = context.WithoutCancel(ctx)
	o.assembling.Lock()
	defer o.assembling.Unlock()
	if now, err := o.Artifact(ctx, a.SHA256); err != nil || now.State == record.Stored {
		return now, err
	}
	missing, err := o.Missing(a)
	if err != nil || len(missing) > 0 {
		return a, err
	}
	var parts []io.Reader
	for n := range partCount(travels(a)) {
		f, err := os.Open(o.partPath(a.SHA256, n+1))
		if err != nil {
			return a, fmt.Errorf("reading a part: %w", err)
		}
		defer f.Close()
		parts = append(parts, f)
	}
	stored, err := o.finish(ctx, a, io.MultiReader(parts...))
	if p, ok := errors.AsType[*api.Problem](err); err != nil && (!ok || p.Status >= 500) {
		return a, err // the parts are good: the next registration finishes the upload
	}
	for n := range partCount(travels(a)) {
		if err := os.Remove(o.partPath(a.SHA256, n+1)); err != nil {
			return stored, fmt.Errorf("dropping a part: %w", err)
		}
	}
	return stored, err
}

// finish receives all bytes of a registered artifact and marks it stored.
func (o *Org) finish(ctx context.Context, a record.Artifact, r io.Reader) (record.Artifact, error) {
	b, err := o.receive(a, r)
	if err != nil {
		return a, err
	}
	defer b.file.Abort()
	if err := b.check(a); err != nil {
		return a, err
	}
	err = o.update(ctx, func(t *tx) error {
		now, ok, err := t.artifact(a.SHA256)
		if err != nil {
			return err
		}
		if !ok || now.State == record.Stored {
			a = now
			return err
		}
		if err := b.file.CommitAs(string(a.SHA256)); err != nil {
			return err
		}
		a = now
		a.Size = b.n
		return t.markStored(&a)
	})
	return a, err
}

// A blob is an artifact's canonical uncompressed bytes in a temporary file.
type blob struct {
	*summer
	file *durable.File
}

// check compares a blob with what was registered.
func (b *blob) check(a record.Artifact) error {
	if b.n != a.Size {
		return api.Refuse(api.LengthMismatch, "artifact %s: %d bytes in canonical form, but size is %d", a.SHA256, b.n, a.Size)
	}
	if got := b.address(); got != a.SHA256 {
		return api.Refuse(api.AddressMismatch, "artifact %s: its bytes hash to %s in canonical form", a.SHA256, got)
	}
	return nil
}

// receive reads an artifact's bytes as they travel into a temporary file of their
// canonical uncompressed form, of at most a.Size bytes, and hashes them on the
// way. The caller commits or aborts the file.
func (o *Org) receive(a record.Artifact, r io.Reader) (*blob, error) {
	f, err := durable.Create(o.artifactPath("received"))
	if err != nil {
		return nil, err
	}
	b := &blob{newSummer(f), f}
	b.max = a.Size
	sent := &counter{r: r}
	if err := canonical(b, a, sent); err != nil {
		f.Abort()
		if errors.Is(err, errPastSize) {
			return nil, api.Refuse(api.LengthMismatch, "artifact %s: more than %d bytes in canonical form", a.SHA256, a.Size)
		}
		return nil, err
	}
	if a.CompressedSize != nil && sent.n != *a.CompressedSize {
		f.Abort()
		return nil, api.Refuse(api.LengthMismatch, "artifact %s: %d bytes came, but compressed_size is %d", a.SHA256, sent.n, *a.CompressedSize)
	}
	return b, nil
}

// canonical writes to w the canonical uncompressed form of the bytes of a
// (HIP-1334 §5.1).
func canonical(w io.Writer, a record.Artifact, r io.Reader) error {
	plain, closeIt, err := decompress(a, r)
	if err != nil {
		return err
	}
	defer closeIt()
	switch a.MediaType {
	case record.MediaJSON:
		src, err := io.ReadAll(io.LimitReader(plain, maxJSON+1))
		if err != nil {
			return received(err)
		}
		if len(src) > maxJSON {
			return api.Refuse(api.TooLarge, "a JSON artifact of over %d bytes", maxJSON)
		}
		form, err := canon.Canonicalize(src)
		if err != nil {
			return api.Refuse(api.Invalid, "the artifact's bytes are not JSON: %v", err)
		}
		_, err = w.Write(form)
		return err
	case record.MediaNDJSON:
		for line, err := range canon.Lines(plain, maxLine) {
			if err != nil {
				return received(err) // a line over the limit also ends here
			}
			form, err := canon.Canonicalize(line.Bytes)
			if err != nil {
				return api.Refuse(api.Invalid, "the artifact's bytes are not JSON Lines: line %d: %v", line.N, err)
			}
			if _, err := w.Write(append(form, '\n')); err != nil {
				return err
			}
		}
		return nil
	}
	_, err = io.Copy(w, plain)
	return received(err)
}

// decompress undoes an artifact's compression.
func decompress(a record.Artifact, r io.Reader) (io.Reader, func(), error) {
	switch compressionOf(a) {
	case string(record.Gzip):
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, received(fmt.Errorf("gzip: %w", err))
		}
		return z, func() { z.Close() }, nil
	case string(record.Zstd):
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, nil, received(fmt.Errorf("zstd: %w", err))
		}
		return z, z.Close, nil
	}
	return r, func() {}, nil
}

func compressionOf(a record.Artifact) string {
	if a.Compression == nil {
		return ""
	}
	return string(*a.Compression)
}

// received turns a fault of the bytes or of their coming into a refusal. A fault
// of our own disk and a refusal already made stay as they are.
func received(err error) error {
	if err == nil || errors.Is(err, errPastSize) {
		return err
	}
	if _, ok := errors.AsType[*os.PathError](err); ok {
		return err
	}
	if _, ok := errors.AsType[*api.Problem](err); ok {
		return err
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return api.Refuse(api.Timeout, "the bytes stopped coming")
	}
	return api.Refuse(api.LengthMismatch, "the artifact's bytes do not read to their end: %v", err)
}

// copyExactly copies size bytes and refuses fewer.
func copyExactly(w io.Writer, r io.Reader, size uint64) error {
	n, err := io.Copy(w, io.LimitReader(r, int64(size)))
	if err != nil {
		return received(err)
	}
	if uint64(n) != size {
		return api.Refuse(api.LengthMismatch, "%d bytes came of %d", n, size)
	}
	return nil
}

// errPastSize is written past a summer's max.
var errPastSize = errors.New("more bytes than declared")

// A summer hashes and counts what it passes on.
type summer struct {
	w   io.Writer
	h   hash.Hash
	n   uint64
	max uint64
}

func newSummer(w io.Writer) *summer { return &summer{w: w, h: sha256.New(), max: maxArtifact} }

func (s *summer) Write(p []byte) (int, error) {
	if s.n+uint64(len(p)) > s.max {
		return 0, errPastSize
	}
	n, err := s.w.Write(p)
	s.h.Write(p[:n])
	s.n += uint64(n)
	return n, err
}

func (s *summer) address() canon.SHA256 {
	return canon.SHA256(hex.EncodeToString(s.h.Sum(nil)))
}

// A counter counts the bytes read through it.
type counter struct {
	r io.Reader
	n uint64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += uint64(n)
	return n, err
}
