package spool

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// MaxLine is the most bytes in a line of a JSON Lines artifact, so that checking
// one does not need memory for a file without newlines.
const MaxLine = 64 << 20

// Put stores an artifact whose bytes r gives, and returns it as it is held.
//
// a.SHA256 is empty, or the address that the bytes must have. Size, state and
// creation time are filled in. A JSON artifact must be canonical, and each line
// of a JSON Lines one. Parents must be held here, and the purpose must be the one
// that follows from theirs (HIP-1334 §3.3).
//
// Bytes that are held already are not written again, and keep the metadata that
// they came with; a different kind, media type or purpose is [ErrExists]. When
// a.SHA256 names such an artifact r is not read.
//
// On return bytes and metadata are on stable storage. After an error put it
// again.
func (s *Spool) Put(a record.Artifact, r io.Reader) (record.Artifact, error) {
	fail := func(err error) (record.Artifact, error) {
		return record.Artifact{}, fmt.Errorf("putting %s artifact: %w", a.Kind, err)
	}
	if a.SHA256 != "" {
		if !a.SHA256.Valid() {
			return fail(fmt.Errorf("%q is no address: 64 lower-case hex digits", a.SHA256))
		}
		if held, ok, err := s.held(a); ok || err != nil {
			return held, err
		}
	}
	if err := s.checkLineage(a); err != nil {
		return fail(err)
	}
	f, err := s.disk.Create(s.path(artifacts, "incoming"))
	if err != nil {
		return fail(err)
	}
	defer f.Abort()
	sum := sha256.New()
	size := &counter{w: io.MultiWriter(f, sum)}
	if err := copyChecked(size, r, a.MediaType); err != nil {
		return fail(err)
	}
	address := canon.SHA256(hex.EncodeToString(sum.Sum(nil)))
	if a.SHA256 != "" && a.SHA256 != address {
		return fail(fmt.Errorf("its bytes hash to %s, not to %s", address, a.SHA256))
	}
	a.SHA256, a.Size = address, uint64(size.n)
	if held, ok, err := s.held(a); ok || err != nil {
		return held, err
	}
	a.State = record.Registered
	a.Created = time.Now().UTC().Format(time.RFC3339)
	if err := a.Validate(); err != nil {
		return fail(err)
	}
	meta, err := canon.Marshal(a)
	if err != nil {
		return fail(err)
	}
	if err := f.CommitAs(string(address)); err != nil {
		return fail(err)
	}
	if err := s.disk.WriteFile(s.path(artifacts, string(address)+".json"), append(meta, '\n'), s.mode); err != nil {
		return fail(err)
	}
	return a, nil
}

// held answers for Put when the address is held already.
func (s *Spool) held(a record.Artifact) (record.Artifact, bool, error) {
	held, ok, err := s.artifact(a.SHA256)
	if !ok || err != nil {
		return held, ok, err
	}
	if held.Kind != a.Kind || held.MediaType != a.MediaType || held.Purpose != a.Purpose {
		return held, true, fmt.Errorf("artifact %s is %w as %s of purpose %s and type %s; it cannot also be %s, %s, %s: the purpose of bytes does not change",
			a.SHA256, ErrExists, held.Kind, held.Purpose, held.MediaType, a.Kind, a.Purpose, a.MediaType)
	}
	path := s.path(artifacts, string(a.SHA256))
	there, err := s.files.exists(path)
	if err == nil && !there {
		there, err = s.files.exists(path + ".zst")
	}
	if !there {
		return held, false, err // only metadata: its bytes are put again
	}
	// Whoever put it may have died between the rename and the sync of the name.
	return held, true, s.disk.SyncDir(s.path(artifacts, ""))
}

// checkLineage holds a to what its parents are.
func (s *Spool) checkLineage(a record.Artifact) error {
	var parents []record.Artifact
	for _, sha := range a.Parents {
		p, ok, err := s.artifact(sha)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("its parent %s is not in the spool: put that first", sha)
		}
		parents = append(parents, p)
	}
	return a.CheckParents(parents...)
}

// copyChecked copies r to w and refuses JSON that is not canonical.
func copyChecked(w io.Writer, r io.Reader, media string) error {
	switch media {
	case record.MediaJSON:
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		canonical, err := canon.Canonicalize(b)
		if err != nil {
			return err
		}
		if !bytes.Equal(b, canonical) {
			return errors.New("its JSON is not canonical: write it with package canon")
		}
		_, err = w.Write(b)
		return err
	case record.MediaNDJSON:
		end := &lastByte{b: '\n'}
		for line, err := range canon.Lines(io.TeeReader(r, io.MultiWriter(w, end)), MaxLine) {
			if err != nil {
				return err
			}
			canonical, err := canon.Canonicalize(line.Bytes)
			if err != nil {
				return fmt.Errorf("line %d: %w", line.N, err)
			}
			if !bytes.Equal(line.Bytes, canonical) {
				return fmt.Errorf("line %d is not canonical JSON: write it with package canon", line.N)
			}
		}
		if end.b != '\n' {
			return errors.New("its last line has no newline")
		}
		return nil
	}
	_, err := io.Copy(w, r)
	return err
}

// counter counts what passes to w.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// lastByte remembers the last byte written.
type lastByte struct{ b byte }

func (l *lastByte) Write(p []byte) (int, error) {
	if len(p) > 0 {
		l.b = p[len(p)-1]
	}
	return len(p), nil
}

// Artifact returns the metadata of an artifact that is held. One whose metadata
// cannot be read is not; Put says why.
func (s *Spool) Artifact(sha canon.SHA256) (record.Artifact, bool) {
	a, ok, err := s.artifact(sha)
	return a, ok && err == nil
}

func (s *Spool) artifact(sha canon.SHA256) (a record.Artifact, ok bool, err error) {
	if !sha.Valid() {
		return a, false, nil
	}
	ok, err = s.load(artifacts, string(sha), &a)
	if err == nil && ok && a.SHA256 != sha {
		err = fmt.Errorf("%w: %s.json in %s describes %s", ErrCorrupt, sha, s.path(artifacts, ""), a.SHA256)
	}
	return a, ok, err
}

// Artifacts returns the addresses of all artifacts held, sorted.
func (s *Spool) Artifacts() ([]canon.SHA256, error) {
	return list(s, artifacts, ".json", canon.SHA256.Valid)
}

// artifactReader hashes what is read and answers, at the end, for all of it.
type artifactReader struct {
	path string
	sha  canon.SHA256
	left uint64 // of the size that the metadata says; more is too much
	sum  hash.Hash
	file *os.File
	r    io.Reader     // file, or zstd over it
	zstd *zstd.Decoder // nil when the file is not compressed
}

func (r *artifactReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.sum.Write(p[:n])
	switch over := uint64(n) > r.left; {
	case over, err == io.EOF && hex.EncodeToString(r.sum.Sum(nil)) != string(r.sha):
		return 0, fmt.Errorf("%w: the bytes of %s are not the ones put there; move it away and put the artifact again", ErrCorrupt, r.path)
	}
	r.left -= uint64(n)
	return n, err
}

func (r *artifactReader) Close() error {
	if r.zstd != nil {
		r.zstd.Close()
	}
	return r.file.Close()
}

// OpenArtifact opens an artifact's canonical, uncompressed bytes. The last read
// fails when they are not the ones that the address names, and an earlier one when
// they are more than its metadata says.
func (s *Spool) OpenArtifact(sha canon.SHA256) (io.ReadCloser, error) {
	if !sha.Valid() {
		return nil, fmt.Errorf("%q is no address of an artifact", sha)
	}
	path := s.path(artifacts, string(sha))
	meta, held, err := s.artifact(sha)
	size := meta.Size
	switch {
	case err != nil:
		return nil, err
	case !held && s.attached:
		return nil, fmt.Errorf("opening artifact: %w", absent("no artifact "+string(sha)+" in "+s.dir))
	case !held:
		size = math.MaxUint64
	case s.attached && size > maxArtifact:
		return nil, fmt.Errorf("%w: artifact %s is said to have %d bytes; the most is %d", ErrCorrupt, sha, size, uint64(maxArtifact))
	}
	f, err := s.files.open(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) && !s.attached {
		path += ".zst"
		f, err = s.files.open(path, os.O_RDONLY, 0)
	}
	if errors.Is(err, fs.ErrNotExist) && held {
		return nil, fmt.Errorf("%w: artifact %s has metadata and no bytes; put it again", ErrCorrupt, sha)
	}
	if err != nil {
		return nil, fmt.Errorf("opening artifact: %w", err)
	}
	r := &artifactReader{path: path, sha: sha, left: size, sum: sha256.New(), file: f, r: f}
	if strings.HasSuffix(path, ".zst") {
		z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("opening artifact %s: %w", path, err)
		}
		r.r, r.zstd = z, z
	}
	return r, nil
}
