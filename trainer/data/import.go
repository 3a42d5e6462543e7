package data

import (
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
	Out     string // folder of suites; "" is refused except by Check
	Suite   string // ^[a-z0-9][a-z0-9._-]*$, at most 40 bytes
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

// Import reads cfg.File and writes the open suite <Out>/<Suite>. Rows that
// cannot be kept are listed in the report; an error is returned, and nothing
// written, when the file as a whole cannot be used: it is unreadable or not of
// its format, a named column does not exist, the question cannot be asked, only
// one answer occurs, or no row is left. The report is valid in both cases, as
// far as the file was read.
//
// An identical suite is left as it is.
func Import(cfg ImportConfig) (Report, error) { panic("data: unwritten") }

// Check does all of Import but writing.
func Check(cfg ImportConfig) (Report, error) { panic("data: unwritten") }
