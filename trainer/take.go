package trainer

import (
	"errors"
	"fmt"
	"path/filepath"
	"unicode/utf8"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/decision"
)

// Take is one suite's part of a stage: how many of its rows are trained on and,
// when it comes from a file, how that file is read. The columns are those of
// [data.ImportConfig].
type Take struct {
	Suite        string `json:"suite"`
	Rows         *int   `json:"rows"`          // rows trained on; null: all; 0: the suite only judges
	Times        int    `json:"times"`         // how often each is read in an epoch
	BalanceClass bool   `json:"balance_class"` // as many draws of each answer
	BalanceLang  bool   `json:"balance_lang"`  // as many draws of each language

	File      string `json:"file"`   // relative to the stage file; "": a suite that was imported before
	Format    string `json:"format"` // "csv", "tsv", "jsonl"; "" by the file's extension
	Delimiter string `json:"delimiter"`
	Quoted    bool   `json:"quoted"`

	State  []string `json:"state"`
	Label  string   `json:"label"`
	Target string   `json:"target"`
	Counts bool     `json:"counts"`
	ID     string   `json:"id"`
	Group  string   `json:"group"`
	Lang   string   `json:"lang"`
	Split  string   `json:"split"`

	Key          string    `json:"key"`
	Type         string    `json:"type"`
	Instructions string    `json:"instructions"`
	Criteria     canon.Raw `json:"criteria"` // null: the labels that occur
	Positive     string    `json:"positive"`

	Title   string          `json:"title"`
	License string          `json:"license"`
	Origin  string          `json:"origin"`
	Purpose *record.Purpose `json:"purpose"` // of every row; null: by split
}

// Check holds a take to its ranges. The columns are held to the file when it is
// imported.
func (t Take) Check() error {
	switch {
	case !stageName.MatchString(t.Suite) || len(t.Suite) > 40:
		return fmt.Errorf("suite: %q is not a name: lower-case letters, digits, '.', '_' and '-', at most 40", t.Suite)
	case t.Rows != nil && *t.Rows < 0:
		return fmt.Errorf("rows: %d is negative: leave it out for all rows", *t.Rows)
	case t.Times < 1 || t.Times > 1000:
		return fmt.Errorf("times: %d is outside [1, 1000]", t.Times)
	case t.Label != "" && t.Target != "":
		return errors.New("label: and target are both named: a row has one or the other")
	case t.Purpose != nil && t.Split != "":
		return errors.New("purpose: and split are both named: a row's purpose comes from one or the other")
	case t.Purpose != nil && !t.Purpose.Valid():
		return fmt.Errorf("purpose: %q is none: train, dev, eval_only, sealed_eval and teacher_mining are", *t.Purpose)
	case utf8.RuneCountInString(t.Delimiter) > 1:
		return fmt.Errorf("delimiter: %q is more than one character", t.Delimiter)
	}
	if t.Type != "" {
		if _, err := decision.ParseType(t.Type); err != nil {
			return err
		}
	}
	if t.File == "" && (t.Format != "" || len(t.State) > 0 || t.Label != "" || t.Target != "" || t.Criteria != nil) {
		return errors.New("file: is missing, and columns of a file are named")
	}
	return nil
}

// data is the take as a build is staged by it, nothing kept.
func (t Take) data() data.Take {
	return data.Take{
		Suite: t.Suite, Rows: t.Rows, Times: t.Times,
		BalanceClass: t.BalanceClass, BalanceLang: t.BalanceLang,
	}
}

// Import is how the take's file becomes a suite in the folder suites. File is
// taken relative to dir, the stage file's folder. The caller adds what a
// tokenizer knows (Tokens, MaxLength).
func (t Take) Import(dir, suites string) data.ImportConfig {
	file := t.File
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	delimiter, _ := utf8.DecodeRuneInString(t.Delimiter)
	if t.Delimiter == "" {
		delimiter = 0
	}
	var purpose record.Purpose
	if t.Purpose != nil {
		purpose = *t.Purpose
	}
	kind, _ := decision.ParseType(t.Type) // checked when the stage was read; "" stays ""
	return data.ImportConfig{
		File: file, Format: t.Format, Delimiter: delimiter, Quoted: t.Quoted,
		Out: suites, Suite: t.Suite, Replace: true,
		Title: t.Title, License: t.License, Origin: t.Origin, Purpose: purpose,
		State: t.State, Label: t.Label, Target: t.Target, Counts: t.Counts,
		ID: t.ID, Group: t.Group, Lang: t.Lang, Split: t.Split,
		Key: t.Key, Type: kind, Instructions: t.Instructions, Criteria: t.Criteria, Positive: t.Positive,
	}
}
