package data

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/record"
)

// write puts the build in its place.
func (s *stager) write() error {
	if err := durable.MkdirAll(s.cfg.Builds, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(s.cfg.Builds, "."+s.cfg.Stage+".*.tmp")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // after the rename there is nothing
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	m := manifest{
		Format: 1, Stage: s.cfg.Stage, Seed: s.cfg.Seed, Fractions: s.cfg.Fractions,
		Takes: s.cfg.Takes, Official: s.cfg.Official, Datasets: []sealedSet{},
	}
	for _, src := range s.sources {
		for _, p := range parts {
			if rows := src.chosen(p); len(rows) > 0 {
				set, err := src.seal(tmp, p, rows)
				if err != nil {
					return fmt.Errorf("suite %s: %w", src.suite.Suite, err)
				}
				m.Datasets = append(m.Datasets, set)
				s.report.Sets = append(s.report.Sets, src.reportOf(set))
			}
		}
	}
	if len(m.Datasets) == 0 {
		return errors.New("no row is left")
	}
	if m.Barrier, err = s.writeBarrier(tmp); err != nil {
		return err
	}
	doc, err := canon.Marshal(m)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(tmp, manifestFile), doc, 0o644); err != nil {
		return err
	}
	s.report.Dir = filepath.Join(s.cfg.Builds, s.cfg.Stage+"-"+canon.HashOf(doc).Hex()[:16])
	if _, err := os.Stat(s.report.Dir); err == nil {
		if _, err := OpenBuild(s.report.Dir); err != nil {
			return fmt.Errorf("a build of this content is there and is damaged; remove %s: %w", s.report.Dir, err)
		}
		s.report.Existed = true
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return durable.RenameDir(tmp, s.report.Dir)
}

// writeBarrier writes what the barrier ran as and what it left out.
func (s *stager) writeBarrier(dir string) (barrierRef, error) {
	rec := s.barrier.record(s.cfg.Official)
	h, err := canon.Of(rec)
	if err != nil {
		return barrierRef{}, err
	}
	doc, err := canon.Marshal(barrierDoc{Record: rec, Excluded: s.report.Excluded})
	if err != nil {
		return barrierRef{}, err
	}
	return barrierRef{Hash: h, SHA256: canon.Sum(doc)}, durable.WriteFile(filepath.Join(dir, barrierFile), doc, 0o644)
}

// reportOf says what became of the suite's rows of a set's purpose. What stands
// of the train rows in their own set's report does not stand in the kept one's.
func (src *source) reportOf(set sealedSet) SetReport {
	r := SetReport{ID: set.ID, Suite: set.Suite, Purpose: set.Purpose, Split: set.Split, Items: set.Items, SHA256: set.SHA256}
	if set.Split == keepSplit {
		return r
	}
	for _, e := range src.rows {
		switch {
		case e.purpose != set.Purpose:
		case e.excluded:
			r.Excluded++
		case e.kept:
		case set.Purpose == record.Train && e.draws == 0:
			r.Cut++
		case set.Purpose == record.Train:
			r.Draws += e.draws * src.take.Times
		}
	}
	return r
}

// seal writes the rows of a part as a sealed dataset.
//
// Its id ends in 12 digits of the SHA-256 of its items. The items hold the id, so
// the digits are those of the items without their dataset_id: the same rows have
// the same id, and other rows another.
func (src *source) seal(dir string, p part, rows []entry) (sealedSet, error) {
	f, err := os.Open(src.path)
	if err != nil {
		return sealedSet{}, err
	}
	defer f.Close()
	sum := sha256.New()
	if err := writeItems(sum, f, "", p.purpose, rows); err != nil {
		return sealedSet{}, err
	}
	set := sealedSet{
		ID:    fmt.Sprintf("%s.%s.%x", src.suite.Suite, p.split, sum.Sum(nil)[:6]),
		Suite: src.suite.Suite, Split: p.split, Purpose: p.purpose, Role: roles[p.purpose],
		Title: src.suite.Title + ", " + p.split, License: src.suite.License, Origin: src.suite.Origin, Parents: src.suite.Parents,
		Items: len(rows), Times: 1, Draws: []int{},
	}
	if p.split == "train" {
		set.Times = src.take.Times
		if slices.ContainsFunc(rows, func(e entry) bool { return e.draws != 1 }) {
			for _, e := range rows {
				set.Draws = append(set.Draws, e.draws)
			}
		}
	}
	out, err := durable.Create(filepath.Join(dir, set.ID+".ndjson"))
	if err != nil {
		return sealedSet{}, err
	}
	defer out.Abort()
	sum.Reset()
	w := bufio.NewWriterSize(io.MultiWriter(out, sum), 1<<16)
	if err := writeItems(w, f, set.ID, p.purpose, rows); err != nil {
		return sealedSet{}, err
	}
	if err := w.Flush(); err != nil {
		return sealedSet{}, err
	}
	set.SHA256 = canon.SHA256(hex.EncodeToString(sum.Sum(nil)))
	return set, out.Commit()
}

// writeItems writes rows of a suite's file as items of a dataset; without an id
// the member is left out.
//
// A suite's line is an item's canonical form less members whose places are known:
// no string before item_id, and none after the last purpose, can hold the text
// that is looked for, because a quotation mark inside a string is escaped.
func writeItems(w io.Writer, f io.ReaderAt, id string, purpose record.Purpose, rows []entry) error {
	middle := fmt.Sprintf(`,"derivation_allowed":%t`, purpose.Derivation())
	if id != "" {
		middle = `,"dataset_id":"` + id + `"` + middle
	}
	var out []byte
	for _, e := range rows {
		line, err := e.read(f)
		if err != nil {
			return err
		}
		item := bytes.Index(line, []byte(`,"item_id":"`))
		from := bytes.LastIndex(line, []byte(`,"purpose":`))
		to := bytes.LastIndex(line, []byte(`,"source_hash":`))
		if item < 0 || from < item || to < from {
			return fmt.Errorf("item %s: %w: its line changed while it was staged", e.item, ErrCorrupt)
		}
		out = append(append(append(out[:0], line[:item]...), middle...), line[item:from]...)
		out = append(out, `,"purpose":"`+string(purpose)+`"`...)
		out = append(append(out, line[to:]...), '\n')
		if _, err := w.Write(out); err != nil {
			return err
		}
	}
	return nil
}
