package data

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/decision"
)

// ErrPurpose is a row or dataset whose purpose does not admit how it would be
// read. The error names the file, the line and the item.
var ErrPurpose = record.ErrPurpose

// ErrCorrupt is a build or a suite whose files are not those that were written.
var ErrCorrupt = errors.New("corrupt")

// A manifest is a build's description; the build is named by its hash.
type manifest struct {
	Format    int         `json:"format"` // 1
	Stage     string      `json:"stage"`
	Seed      uint64      `json:"seed"`
	Fractions Fractions   `json:"fractions"`
	Takes     []Take      `json:"takes"`
	Official  []string    `json:"official"`
	Barrier   barrierRef  `json:"barrier"`
	Datasets  []sealedSet `json:"datasets"`
}

// A barrierRef names barrier.json: the hash of its record, and its bytes.
type barrierRef struct {
	Hash   canon.Hash   `json:"hash"`
	SHA256 canon.SHA256 `json:"sha256"`
}

type barrierDoc struct {
	Record   barrierRecord `json:"record"`
	Excluded []Exclusion   `json:"excluded"`
}

// A sealedSet is one dataset of a manifest.
type sealedSet struct {
	ID      string         `json:"id"`
	Suite   string         `json:"suite"`
	Split   string         `json:"split"`
	Purpose record.Purpose `json:"purpose"`
	Role    record.Role    `json:"role"`
	Title   string         `json:"title"`
	License string         `json:"license"`
	Origin  string         `json:"origin"`
	Parents []string       `json:"parents"`
	Items   int            `json:"items"`
	SHA256  canon.SHA256   `json:"sha256"`
	Times   int            `json:"times"` // how often an epoch reads the set
	Draws   []int          `json:"draws"` // and, within that, each item; empty: once
}

const (
	manifestFile = "manifest.json"
	barrierFile  = "barrier.json"
)

// A Build is a verified folder of sealed datasets.
type Build struct {
	Dir         string
	Stage       string
	Hash        canon.Hash // of the manifest; its first 16 hex end the folder's name
	BarrierHash canon.Hash // contamination_barrier_hash (HIP-1334 §3.5)
	Sets        []*Set     // by suite, then train, keep, dev, test, sealed, mining
}

// A Set is one sealed dataset of a build.
type Set struct {
	// Dataset is as it is recorded, except that Created and Sealed are empty: who
	// records it stamps it.
	Dataset record.Dataset
	Suite   string
	Split   string // "train", "keep", "dev", "test", "sealed" or "mining"
	Role    record.Role

	path  string
	times int
	draws []int
}

// OpenBuild reads and verifies the build in dir. Sets that are trained on are
// read first: when a row of one, or the set itself, does not admit training, or
// descends from a set that judges, the error is [ErrPurpose], whatever else is
// wrong with the build. Other damage is [ErrCorrupt].
func OpenBuild(dir string) (*Build, error) {
	path := filepath.Join(dir, manifestFile)
	doc, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not a build: it has no %s", dir, manifestFile)
	}
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := canon.Unmarshal(doc, &m); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrCorrupt, err)
	}
	if m.Format != 1 {
		return nil, fmt.Errorf("%s: format %d; this program reads 1", path, m.Format)
	}
	b := &Build{Dir: dir, Stage: m.Stage, Hash: canon.HashOf(doc), BarrierHash: m.Barrier.Hash}
	for _, d := range m.Datasets {
		if !record.ValidDataset(d.ID) {
			return nil, fmt.Errorf("%s: %w: %q does not name a dataset", path, ErrCorrupt, d.ID)
		}
		b.Sets = append(b.Sets, newSet(dir, d))
	}
	damage := make(map[*Set]error)
	for _, s := range b.Sets {
		if s.Role != record.RoleTrain {
			continue
		}
		if err := b.checkLineage(s); err != nil {
			return nil, err
		}
		if err := s.verify(); errors.Is(err, ErrPurpose) {
			return nil, err
		} else if err != nil {
			damage[s] = err
		}
	}
	if name := m.Stage + "-" + b.Hash.Hex()[:16]; filepath.Base(absolute(dir)) != name {
		return nil, fmt.Errorf("%s: %w: its content is that of %s; stage it again", path, ErrCorrupt, name)
	}
	for _, s := range b.Sets {
		err := damage[s]
		if s.Role != record.RoleTrain {
			err = s.verify()
		}
		if err != nil {
			return nil, err
		}
	}
	return b, b.checkBarrier(m.Barrier)
}

// absolute resolves "." and the like, so that a folder has its name.
func absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

func newSet(dir string, d sealedSet) *Set {
	sum := d.SHA256
	return &Set{
		Dataset: record.Dataset{
			ID: d.ID, Purpose: d.Purpose, Title: d.Title, License: d.License, Origin: d.Origin, Parents: d.Parents,
			State: record.Sealed, Items: uint64(d.Items), SHA256: &sum,
		},
		Suite: d.Suite, Split: d.Split, Role: d.Role,
		path: filepath.Join(dir, d.ID+".ndjson"), times: d.Times, draws: d.Draws,
	}
}

// checkLineage refuses to train on what descends from a set that judges.
func (b *Build) checkLineage(s *Set) error {
	seen := make(map[string]bool)
	var walk func(parents []string) error
	walk = func(parents []string) error {
		for _, id := range parents {
			for _, p := range b.Sets {
				if p.Dataset.ID != id || seen[id] {
					continue
				}
				seen[id] = true
				if p.Dataset.Purpose.Evaluation() {
					return fmt.Errorf("%s: dataset %s descends from %s, which is %s: %w", s.path, s.Dataset.ID, id, p.Dataset.Purpose, ErrPurpose)
				}
				if err := walk(p.Dataset.Parents); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return walk(s.Dataset.Parents)
}

// checkBarrier checks that barrier.json is what the manifest names.
func (b *Build) checkBarrier(ref barrierRef) error {
	path := filepath.Join(b.Dir, barrierFile)
	doc, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w: it is missing: stage it again", path, ErrCorrupt)
	}
	if err != nil {
		return err
	}
	var d barrierDoc
	if err := canon.Unmarshal(doc, &d); err != nil {
		return fmt.Errorf("%s: %w: %w", path, ErrCorrupt, err)
	}
	if h, err := canon.Of(d.Record); err != nil || h != ref.Hash || canon.Sum(doc) != ref.SHA256 {
		return fmt.Errorf("%s: %w: it is not the manifest's", path, ErrCorrupt)
	}
	return nil
}

// verify reads the whole set for its purposes and its hash. What a line holds
// besides is then what was sealed, for the manifest names the hash.
func (s *Set) verify() error {
	return s.lines(func(int, []byte) error { return nil })
}

// read reads the set's items in order. That they are those that were sealed is
// certain only at the end.
func (s *Set) read(each func(record.DatasetItem) error) error {
	last := ""
	return s.lines(func(n int, line []byte) error {
		var it record.DatasetItem
		if err := canon.Unmarshal(line, &it); err != nil {
			return fmt.Errorf("%s line %d: %w: %w", s.path, n, ErrCorrupt, err)
		}
		if it.DatasetID != s.Dataset.ID || n > 1 && it.ItemID <= last {
			return fmt.Errorf("%s line %d: %w: item %s of %s does not belong here", s.path, n, ErrCorrupt, it.ItemID, it.DatasetID)
		}
		last = it.ItemID
		return each(it)
	})
}

// lines gives away the set's lines in order, each one's purpose checked, and at
// the end checks their number and hash. A purpose that is refused is reported
// before any other fault of an earlier line.
func (s *Set) lines(each func(n int, line []byte) error) error {
	refused := func(n int, line []byte, purpose record.Purpose) error {
		id, _ := canon.Tag(line, "item_id") // named as far as it can be
		return fmt.Errorf("%s line %d: item %q is %s, which its dataset (%s, role %s) does not admit: %w",
			s.path, n, id, purpose, s.Dataset.Purpose, s.Role, ErrPurpose)
	}
	if !s.Dataset.Purpose.Admits(s.Role) {
		return fmt.Errorf("%s: dataset %s is %s, which does not admit role %s: %w", s.path, s.Dataset.ID, s.Dataset.Purpose, s.Role, ErrPurpose)
	}
	f, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w: it is missing: stage it again", s.path, ErrCorrupt)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	r := bufio.NewReaderSize(io.TeeReader(f, sum), 1<<20)
	var fault error // the first, a purpose aside
	n := 0
	for {
		line, err := r.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return fmt.Errorf("reading %s: %w", s.path, err)
		}
		if len(line) == 0 {
			break
		}
		n++
		tag, err := canon.Tag(line, "purpose")
		purpose := record.Purpose(tag)
		switch {
		case err == nil && (!purpose.Admits(s.Role) || purpose != s.Dataset.Purpose):
			return refused(n, line, purpose)
		case fault != nil:
		case err != nil:
			fault = fmt.Errorf("%s line %d: %w: %w", s.path, n, ErrCorrupt, err)
		default:
			fault = each(n, line)
		}
	}
	if fault != nil {
		return fault
	}
	if got := canon.SHA256(hex.EncodeToString(sum.Sum(nil))); uint64(n) != s.Dataset.Items || got != *s.Dataset.SHA256 {
		return fmt.Errorf("%s: %w: it holds %d items of hash %.12s…, the manifest names %d of %.12s…: stage it again",
			s.path, ErrCorrupt, n, got, s.Dataset.Items, *s.Dataset.SHA256)
	}
	return nil
}

// Kept reports whether the set's rows are kept for preservation: their purpose
// and role are train's, and no step has them as targets.
func (s *Set) Kept() bool { return s.Split == keepSplit }

// Keep lists the sets that are kept for preservation, by suite.
func (b *Build) Keep() []*Set {
	return slices.DeleteFunc(b.Role(record.RoleTrain), func(s *Set) bool { return !s.Kept() })
}

// Role lists the sets attached in a role. Those of role train hold the kept ones.
func (b *Build) Role(role record.Role) []*Set {
	var list []*Set
	for _, s := range b.Sets {
		if s.Role == role {
			list = append(list, s)
		}
	}
	return list
}

// Find returns a suite's set in a role, never a kept one.
func (b *Build) Find(suite string, role record.Role) (*Set, bool) {
	for _, s := range b.Role(role) {
		if s.Suite == suite && !s.Kept() {
			return s, true
		}
	}
	return nil, false
}

// Train returns the rows that a gradient step has as targets, set after set in
// item order; kept sets are not among them. A row that its take repeats stands
// there as often, next to itself.
func (b *Build) Train() ([]decision.Row, error) {
	var list []decision.Row
	for _, s := range b.Role(record.RoleTrain) {
		if s.Kept() {
			continue
		}
		rows, err := s.Rows()
		if err != nil {
			return nil, err
		}
		for i, row := range rows {
			n := s.times
			if len(s.draws) > 0 {
				if len(s.draws) != len(rows) {
					return nil, fmt.Errorf("%s: %w: the manifest draws %d items of %d", s.path, ErrCorrupt, len(s.draws), len(rows))
				}
				n *= s.draws[i]
			}
			for range n {
				list = append(list, row)
			}
		}
	}
	return list, nil
}

// Rows reads the set, in item order, for its role. Rows that ask the same share
// their questions' options.
func (s *Set) Rows() ([]decision.Row, error) {
	rows := make([]decision.Row, 0, s.Dataset.Items)
	var reader decision.Reader
	err := s.read(func(it record.DatasetItem) error {
		row, err := reader.ParseRow(it.Payload.Input, it.Payload.Gold)
		if err != nil {
			return fmt.Errorf("%s: item %s: %w: %w", s.path, it.ItemID, ErrCorrupt, err)
		}
		row.ID, row.Example, row.Group = it.ItemID, it.CanonicalExampleID, it.CanonicalExampleID
		rows = append(rows, row)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

var errStop = errors.New("stopped by the reader")

// Items yields the set's items, in order; after an error it ends. That the items
// are those that were sealed is certain only when the last has been yielded.
func (s *Set) Items() iter.Seq2[record.DatasetItem, error] {
	return func(yield func(record.DatasetItem, error) bool) {
		err := s.read(func(it record.DatasetItem) error {
			if !yield(it, nil) {
				return errStop
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(record.DatasetItem{}, err)
		}
	}
}

// Reader opens the items artifact: the bytes whose SHA-256 is the dataset's.
func (s *Set) Reader() (io.ReadCloser, error) { return os.Open(s.path) }

// Excluded lists the rows that the barrier left out.
func (b *Build) Excluded() ([]Exclusion, error) {
	path := filepath.Join(b.Dir, barrierFile)
	doc, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var d barrierDoc
	if err := canon.Unmarshal(doc, &d); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrCorrupt, err)
	}
	return d.Excluded, nil
}
