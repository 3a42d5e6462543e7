package data

import (
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// A Report is what an import kept and what it did not.
type Report struct {
	File   string `json:"file"`
	Suite  string `json:"suite"`
	Format string `json:"format"` // "csv", "tsv" or "jsonl"
	Bytes  int64  `json:"bytes"`

	Rows     int                    `json:"rows"` // rows of data in the file
	Kept     int                    `json:"kept"`
	Purposes map[record.Purpose]int `json:"purposes"` // kept rows whose purpose the file says; the others are split when staged
	Refused  []Refusal              `json:"refused"`  // every row that was not kept, by line

	Labels     []LabelCount `json:"labels"` // by question, then most rows first
	Length     Lengths      `json:"length"` // of the states
	Duplicates []Duplicate  `json:"duplicates"`
	Conflicts  []Conflict   `json:"conflicts"`
	Warnings   []string     `json:"warnings"`

	Dir    string       `json:"dir"`             // the suite's folder; empty in a dry run
	SHA256 canon.SHA256 `json:"sha256,omitzero"` // of items.ndjson; absent in a dry run
}

// A Refusal is one row that was not kept.
type Refusal struct {
	Line   int    `json:"line"` // where the row starts
	Reason string `json:"reason"`
}

// A LabelCount is how many kept rows have an option as their most probable one.
type LabelCount struct {
	Question string `json:"question"`
	Label    string `json:"label"`
	Rows     int    `json:"rows"`
}

// Lengths are percentiles of the lengths of the states, nearest rank.
type Lengths struct {
	Unit string `json:"unit"` // "tokens", or "characters" when no tokenizer was given
	P50  int    `json:"p50"`
	P90  int    `json:"p90"`
	P99  int    `json:"p99"`
	Max  int    `json:"max"`
	Over int    `json:"over"` // rows longer than ImportConfig.MaxLength
}

// A Duplicate is a kept row that repeats an earlier one: the same state, a text
// in normal form, and the same answers.
type Duplicate struct {
	Line  int `json:"line"`
	First int `json:"first"` // the line it repeats
}

// A Conflict is one state under different answers. All its rows are kept.
type Conflict struct {
	State string `json:"state"` // its beginning
	Lines []int  `json:"lines"`
}
