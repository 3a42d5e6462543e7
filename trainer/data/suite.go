package data

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/record"
)

// A suite is an open dataset: dataset.json beside its rows.
type suite struct {
	Format  int             `json:"format"` // 1
	Suite   string          `json:"suite"`
	Title   string          `json:"title"`
	License string          `json:"license"`
	Origin  string          `json:"origin"`
	Parents []string        `json:"parents"`
	Purpose *record.Purpose `json:"purpose"` // of every row; null: each says its own, or is split when staged
	Items   int             `json:"items"`
	SHA256  canon.SHA256    `json:"sha256"` // of items.ndjson
}

const (
	suiteFile = "dataset.json"
	itemsFile = "items.ndjson"
)

// A suite's name leaves room in a dataset id, at most 64 bytes, for the split and
// the hash.
var suiteName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,39}$`)

func checkSuiteName(name string) error {
	if !suiteName.MatchString(name) {
		return fmt.Errorf("suite %q must match %s", name, suiteName)
	}
	return nil
}

// appendOpen appends a suite's line, without its newline, from parts that are
// canonical: a dataset item's canonical form less what only sealing gives it,
// dataset_id and derivation_allowed. purpose is null until the row is staged,
// unless its file says it.
func appendOpen(dst []byte, example, contamination, id string, input, gold canon.Raw, purpose record.Purpose, source canon.Hash) ([]byte, error) {
	exampleJSON, err := canon.Marshal(example)
	if err != nil {
		return nil, err
	}
	dst = append(dst, `{"canonical_example_id":`...)
	dst = append(dst, exampleJSON...)
	dst = append(dst, `,"contamination_hash":"`...)
	dst = append(dst, contamination...)
	dst = append(dst, `","item_id":"`...) // an id needs no escapes
	dst = append(dst, id...)
	dst = append(dst, `","payload":{"gold":`...)
	dst = append(dst, gold...)
	dst = append(dst, `,"input":`...)
	dst = append(dst, input...)
	dst = append(dst, `},"purpose":`...)
	if purpose == "" {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, `"`+string(purpose)+`"`...)
	}
	dst = append(dst, `,"source_hash":"`...)
	dst = append(dst, source...)
	return append(dst, `"}`...), nil
}

// A suiteWriter writes a suite into a temporary folder.
type suiteWriter struct {
	out, name string
	tmp       string
	file      *durable.File
	buf       *bufio.Writer
	sum       hash.Hash
	items     int
}

func newSuiteWriter(out, name string) (*suiteWriter, error) {
	if err := durable.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(out, "."+name+".*.tmp")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(tmp, 0o755); err != nil { // MkdirTemp's is for one user
		return nil, errors.Join(err, os.RemoveAll(tmp))
	}
	f, err := durable.Create(filepath.Join(tmp, itemsFile))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(tmp))
	}
	w := &suiteWriter{out: out, name: name, tmp: tmp, file: f, sum: sha256.New()}
	w.buf = bufio.NewWriterSize(io.MultiWriter(f, w.sum), 1<<16)
	return w, nil
}

// add writes one item's line.
func (w *suiteWriter) add(line []byte) error {
	w.items++
	if _, err := w.buf.Write(line); err != nil {
		return err
	}
	return w.buf.WriteByte('\n')
}

// abort drops what was written. After commit it does nothing.
func (w *suiteWriter) abort() {
	w.file.Abort()
	os.RemoveAll(w.tmp)
}

// commit puts the suite in its place and returns its folder and its items' hash.
func (w *suiteWriter) commit(s suite, replace bool) (string, canon.SHA256, error) {
	if err := w.buf.Flush(); err != nil {
		return "", "", err
	}
	if err := w.file.Commit(); err != nil {
		return "", "", err
	}
	s.Format, s.Items = 1, w.items
	s.SHA256 = canon.SHA256(hex.EncodeToString(w.sum.Sum(nil)))
	doc, err := canon.Marshal(s)
	if err != nil {
		return "", "", err
	}
	if err := durable.WriteFile(filepath.Join(w.tmp, suiteFile), doc, 0o644); err != nil {
		return "", "", err
	}
	dst := filepath.Join(w.out, w.name)
	old, err := os.ReadFile(filepath.Join(dst, suiteFile))
	switch {
	case err == nil && string(old) == string(doc):
		if sum, err := sumFile(filepath.Join(dst, itemsFile)); err == nil && sum == s.SHA256 {
			return dst, s.SHA256, os.RemoveAll(w.tmp)
		}
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(dst); errors.Is(err, fs.ErrNotExist) {
			return dst, s.SHA256, durable.RenameDir(w.tmp, dst)
		}
		return "", "", fmt.Errorf("%s is there and is not a suite; choose another name or folder", dst)
	case err != nil:
		return "", "", err
	}
	if !replace {
		return "", "", fmt.Errorf("%s holds another import: --replace replaces it, as train fit and train stage do by themselves; or choose another name with --suite", dst)
	}
	// Not one step: a crash between the renames leaves the old suite under its
	// temporary name and none in its place, and the import is done again.
	aside := w.tmp + ".old"
	if err := durable.RenameDir(dst, aside); err != nil {
		return "", "", err
	}
	if err := durable.RenameDir(w.tmp, dst); err != nil {
		return "", "", err
	}
	return dst, s.SHA256, os.RemoveAll(aside)
}

// sumFile is the SHA-256 of a file.
func sumFile(path string) (canon.SHA256, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	return canon.SHA256(hex.EncodeToString(h.Sum(nil))), nil
}

// openSuite reads a suite's description.
func openSuite(folder, name string) (suite, error) {
	if err := checkSuiteName(name); err != nil {
		return suite{}, err
	}
	path := filepath.Join(folder, name, suiteFile)
	doc, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return suite{}, unknown("suite", name, suitesIn(folder))
	}
	if err != nil {
		return suite{}, err
	}
	var s suite
	if err := canon.Unmarshal(doc, &s); err != nil {
		return suite{}, fmt.Errorf("%s: %w: %w", path, ErrCorrupt, err)
	}
	if s.Format != 1 {
		return suite{}, fmt.Errorf("%s: format %d; this program reads 1", path, s.Format)
	}
	if s.Suite != name {
		return suite{}, fmt.Errorf("%s: holds suite %q; a suite's folder has its name", path, s.Suite)
	}
	return s, nil
}

// suitesIn names the suites in a folder.
func suitesIn(folder string) []string {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names
}
