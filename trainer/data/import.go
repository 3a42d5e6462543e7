package data

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/decision"
)

// ImportConfig says how a file's columns become rows. A column is a CSV or TSV
// header's name, or a member of a JSON line's object, with dots into objects
// ("user.name"). File and Suite are required.
type ImportConfig struct {
	File      string
	Format    string // "csv", "tsv", "jsonl"; "" by the file's extension
	Delimiter rune   // of CSV; 0: a comma
	Quoted    bool   // TSV: fields are quoted as CSV's are; else a quotation mark is a character
	MaxRow    int    // bytes of the longest row kept; 0: 16 MiB

	// The suite.
	Out     string // folder of suites
	Suite   string // ^[a-z0-9][a-z0-9._-]{0,39}$
	Replace bool   // an existing suite of other content is replaced, else refused
	Title   string // "": the suite's name
	License string // SPDX identifier; "": "unstated"
	Origin  string // "": file:<base name>
	Source  string // what canonical_example_id names as the source of Group; "": the suite's name
	Parents []string
	Purpose record.Purpose // of every row; "": by Split, else decided when staged

	// The columns.
	State  []string // one: its text, or its JSON; several: an object of them; none: "state" or "text"
	Label  string   // the right answer; "" with Target "": "label", or whole decision rows (HIP-1333 §4)
	Target string   // its distribution: a list in the order of Criteria, or an object by label
	Counts bool     // Target holds counts, which are divided by their sum
	ID     string   // the row's id; "": its line
	Group  string   // rows that belong together: one example, never on two sides of a split
	Lang   string
	Split  string // train, dev or validation, test or eval_only

	// The question asked of every row.
	Key          string        // "": the label's column
	Type         decision.Type // "": choice
	Instructions string        // "": from Key
	Criteria     canon.Raw     // as a question's; nil: the labels that occur, sorted
	Positive     string        // noul: the label that means true; the others mean false

	Tokens    func(text string) int // counts a state's tokens; nil: characters
	MaxLength int                   // states longer than this are counted and warned of; 0: none
}

// splits are the names under which people know the purposes.
var splits = map[string]record.Purpose{
	"train": record.Train, "training": record.Train,
	"dev": record.Dev, "val": record.Dev, "valid": record.Dev, "validation": record.Dev,
	"test": record.EvalOnly, "eval": record.EvalOnly, "eval_only": record.EvalOnly,
	"sealed_eval": record.SealedEval, "teacher_mining": record.TeacherMining,
}

// Import reads cfg.File and writes the open suite <Out>/<Suite>. Rows that
// cannot be kept are listed in the report; an error is returned, and nothing
// written, when the file as a whole cannot be used: it is unreadable or not of
// its format, a named column does not exist, the question cannot be asked, only
// one answer occurs, or no row is left. The report is valid in both cases, as
// far as the file was read.
//
// The file is read twice and not held; memory is some 100 bytes a row, and a few
// times the longest row. An identical suite is left as it is.
func Import(cfg ImportConfig) (Report, error) { return runImport(cfg, true) }

// Check does all of Import but writing.
func Check(cfg ImportConfig) (Report, error) { return runImport(cfg, false) }

func runImport(cfg ImportConfig, write bool) (Report, error) {
	r := Report{File: cfg.File, Suite: cfg.Suite, Purposes: make(map[record.Purpose]int)}
	err := importFile(&cfg, &r, write)
	if err != nil {
		err = fmt.Errorf("importing %s: %w", cfg.File, err)
	}
	return r, err
}

func importFile(cfg *ImportConfig, r *Report, write bool) error {
	t, err := cfg.check(r)
	if err != nil {
		return err
	}
	s := survey{columns: make(map[string]bool), labels: make(map[string]int)}
	if err := s.read(t, cfg); err != nil {
		return err
	}
	im := importer{cfg: cfg, report: r, tally: newTally(cfg), ids: make(map[string]int)}
	if !s.decisions {
		if im.asker, err = newAsker(cfg, s.labels); err != nil {
			return fmt.Errorf("the question: %w", err)
		}
		if im.leaves, err = record.Leaves(im.asker.questions); err != nil {
			return err
		}
		r.Warnings = im.asker.question.Warnings()
	}
	if write {
		if im.out, err = newSuiteWriter(cfg.Out, cfg.Suite); err != nil {
			return err
		}
		defer im.out.abort()
	}
	for l, err := range t.lines() {
		if err != nil {
			return err
		}
		r.Rows++
		reason, err := im.row(l)
		if err != nil {
			return err
		}
		if reason != nil {
			r.Refused = append(r.Refused, Refusal{Line: l.n, Reason: reason.Error()})
			continue
		}
		r.Kept++
	}
	im.tally.fill(r)
	if err := im.enough(); err != nil {
		return err
	}
	if !write {
		return nil
	}
	r.Dir, r.SHA256, err = im.out.commit(suite{
		Suite: cfg.Suite, Title: cfg.Title, License: cfg.License, Origin: cfg.Origin,
		Parents: cfg.Parents, Purpose: purposeOrNil(cfg.Purpose),
	}, cfg.Replace)
	return err
}

// check fills in the defaults that need no look at the rows.
func (cfg *ImportConfig) check(r *Report) (table, error) {
	info, err := os.Stat(cfg.File)
	if err != nil {
		return table{}, errors.Unwrap(err) // the caller names the file
	}
	if info.IsDir() {
		return table{}, errors.New("is a folder; name a file")
	}
	r.Bytes = info.Size()
	if err := checkSuiteName(cfg.Suite); err != nil {
		return table{}, err
	}
	if cfg.Format == "" {
		if cfg.Format, err = formatOf(cfg.File); err != nil {
			return table{}, err
		}
	}
	if formats := []string{"csv", "tsv", "jsonl"}; !slices.Contains(formats, cfg.Format) {
		return table{}, unknown("format", cfg.Format, formats)
	}
	r.Format = cfg.Format
	t := table{path: cfg.File, format: cfg.Format, delimiter: cfg.Delimiter, quoted: cfg.Quoted, max: cfg.MaxRow}
	if t.max == 0 {
		t.max = maxRow
	}
	if t.delimiter == 0 {
		t.delimiter = ','
		if cfg.Format == "tsv" {
			t.delimiter = '\t'
		}
	}
	if cfg.Label != "" && cfg.Target != "" {
		return table{}, errors.New("a label and a target are both named; a row has one or the other")
	}
	if cfg.Counts && cfg.Target == "" {
		return table{}, errors.New("counts are a target's; name its column")
	}
	if cfg.Purpose != "" && !cfg.Purpose.Valid() {
		return table{}, fmt.Errorf("purpose is %q; it is train, dev, eval_only, sealed_eval or teacher_mining", cfg.Purpose)
	}
	if cfg.Purpose != "" && cfg.Split != "" {
		return table{}, errors.New("a purpose for all rows and a split column are both named")
	}
	if cfg.Type == "" {
		cfg.Type = decision.Choice
	}
	if cfg.Type, err = decision.ParseType(string(cfg.Type)); err != nil {
		return table{}, err
	}
	if cfg.Positive != "" && cfg.Type != decision.Noul {
		return table{}, errors.New("a positive label is a noul's; the type is " + string(cfg.Type))
	}
	if cfg.Title == "" {
		cfg.Title = cfg.Suite
	}
	if cfg.License == "" {
		cfg.License = "unstated"
	}
	if cfg.Origin == "" {
		cfg.Origin = "file:" + filepath.Base(cfg.File)
	}
	if cfg.Source == "" {
		cfg.Source = cfg.Suite
	}
	return t, nil
}

// enough refuses a file that teaches nothing: no row left, or one answer only.
func (im *importer) enough() error {
	r := im.report
	if r.Kept == 0 {
		if len(r.Refused) > 0 {
			return fmt.Errorf("no row can be kept; the first, line %d: %s", r.Refused[0].Line, r.Refused[0].Reason)
		}
		return errors.New("the file has no rows")
	}
	answers := make(map[string]int)
	for _, l := range r.Labels {
		answers[l.Question]++
	}
	useful := im.cfg.Purpose.Evaluation() || im.cfg.Target != "" // a distribution says more than its peak
	var said string
	for _, l := range r.Labels {
		if answers[l.Question] > 1 {
			useful = true
			continue
		}
		said = fmt.Sprintf("every row answers %s with %q", l.Question, l.Label)
		r.Warnings = append(r.Warnings, said)
	}
	if !useful {
		return errors.New(said + "; a question needs rows of two answers or more")
	}
	return nil
}

func purposeOrNil(p record.Purpose) *record.Purpose {
	if p == "" {
		return nil
	}
	return &p
}
