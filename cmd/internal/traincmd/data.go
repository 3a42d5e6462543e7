package traincmd

import (
	"context"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/tokenizer"
)

const importLong = `
FILE is CSV, TSV or JSON Lines. Name the column that holds the text (--state) and
the one that holds the answer (--label); the rest has defaults. Columns of JSON
rows may be reached into: user.name. Rows that cannot be used are listed with
their line and the reason, never dropped in silence. train data check says what
an import would do and writes nothing.

A split column keeps its authors' division: train, validation (or dev), test (or
eval_only). Without one, rows are divided by the hash of their state when they
are staged: 70 % train, 10 % select, 20 % graded, the same rows every time.`

var importCommand = term.Command{
	Name: "data import", Args: "FILE", Short: "read labelled rows from a file into a suite", Long: importLong,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		return rows(flags, data.Import)
	},
}

var checkCommand = term.Command{
	Name: "data check", Args: "FILE", Short: "say what an import would keep and refuse, and why", Long: importLong,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		return rows(flags, data.Check)
	},
}

// columns are the flags that say how a file's columns become rows.
type columns struct {
	state, label, target, id, group, lang, split string
	key, kind, instructions, criteria, positive  string
	suite, license, origin, format, delimiter    string
	counts                                       bool
}

func (c *columns) flag(flags *flag.FlagSet) {
	flags.StringVar(&c.suite, "suite", "", "the suite's `name`; default the file's")
	flags.StringVar(&c.state, "state", "", "the `columns` that hold what is read, separated by commas; default state or text")
	flags.StringVar(&c.label, "label", "", "the `column` that holds the right answer; default label")
	flags.StringVar(&c.target, "target", "", "the `column` that holds a distribution over the answers instead")
	flags.BoolVar(&c.counts, "counts", false, "the target holds counts, to be divided by their sum")
	flags.StringVar(&c.id, "id", "", "the `column` that names the row; default its line")
	flags.StringVar(&c.group, "group", "", "the `column` of what belongs together and may not be split")
	flags.StringVar(&c.lang, "lang", "", "the `column` of the row's language")
	flags.StringVar(&c.split, "split", "", "the `column` that says train, validation or test")
	flags.StringVar(&c.key, "key", "", "the question's `key`; default the label's column")
	flags.StringVar(&c.kind, "type", "", "the question's `type`: choice, score or noul; default choice")
	flags.StringVar(&c.instructions, "instructions", "", "the question, in `words`; default from its key")
	flags.StringVar(&c.criteria, "criteria", "", "the answers, as `JSON`: a list, or an object from label to description; default the labels that occur")
	flags.StringVar(&c.positive, "positive", "", "for a noul: the `label` that means true")
	flags.StringVar(&c.license, "license", "", "SPDX `identifier` of the rows' licence; default unstated")
	flags.StringVar(&c.origin, "origin", "", "where the rows come from, as an `address`")
	flags.StringVar(&c.format, "format", "", "the file's `format`: csv, tsv or jsonl; default from its extension")
	flags.StringVar(&c.delimiter, "delimiter", "", "the `character` between CSV fields; default a comma")
}

// take is the file as one suite of a stage.
func (c columns) take(file string) (trainer.Take, error) {
	take := trainer.Take{
		Suite: c.suite, Times: 1, File: file, Format: c.format, Delimiter: c.delimiter, State: term.List(c.state), Label: c.label,
		Target: c.target, Counts: c.counts, ID: c.id, Group: c.group, Lang: c.lang, Split: c.split, Key: c.key,
		Type: c.kind, Instructions: c.instructions, Positive: c.positive, License: c.license, Origin: c.origin,
	}
	if c.suite == "" {
		if take.Suite = suiteName(file); take.Suite == "" {
			return take, term.Usagef("no suite can be named after %s: give it a name of lower-case letters, digits, '.', '_' and '-' with --suite", file)
		}
	}
	if c.criteria != "" {
		take.Criteria = canon.Raw(c.criteria)
	}
	if c.delimiter == `\t` {
		take.Delimiter = "\t"
	}
	if err := take.Check(); err != nil {
		return take, term.Usagef("%w", err)
	}
	return take, nil
}

// suiteName makes a suite's name of a file's: its base without the extension, in
// the characters that a name may have.
func suiteName(file string) string {
	base := strings.ToLower(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)))
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-' {
			return r
		}
		return '-'
	}, base)
	name = strings.TrimLeft(name, "-._")
	return strings.TrimRight(name[:min(len(name), 40)], "-._")
}

func rows(flags *flag.FlagSet, act func(data.ImportConfig) (data.Report, error)) func(context.Context, term.IO, []string) error {
	var c columns
	c.flag(flags)
	out := flags.String("out", "data", "the `folder` of suites")
	replace := flags.Bool("replace", false, "replace a suite of the same name")
	tokens := flags.String("tokenizer", "", "count lengths in the tokens of this `file`, a tokenizer.json; default characters")
	var maxLen int
	term.Natural(flags, &maxLen, "max-len", "warn of states over this `number` of tokens or characters")
	asJSON := term.AsJSON(flags)
	return func(_ context.Context, streams term.IO, args []string) error {
		file, err := term.One(args, "a file of rows")
		if err != nil {
			return err
		}
		take, err := c.take(file)
		if err != nil {
			return err
		}
		config := take.Import("", *out)
		config.Replace, config.MaxLength = *replace, maxLen
		if *tokens != "" {
			words, err := tokenizer.Load(*tokens)
			if err != nil {
				return err
			}
			var ids []int32
			config.Tokens = func(text string) int {
				ids = words.Encode(ids[:0], text)
				return len(ids)
			}
		}
		report, err := act(config)
		if *asJSON {
			if printed := term.PrintJSON(streams.Out, report); printed != nil {
				return printed
			}
		} else {
			showImport(streams.Out, report)
		}
		return term.Refuse(err)
	}
}

// shown bounds how many of a kind of line a person is shown; --json has all.
const shown = 10

func showImport(w io.Writer, r data.Report) {
	if r.Rows == 0 {
		return // the file was refused before its first row, and the error says why
	}
	fmt.Fprintf(w, "%s: %s, %d kept, %d refused\n", r.File, count(r.Rows, "row", "rows"), r.Kept, len(r.Refused))
	for _, refusal := range r.Refused[:min(len(r.Refused), shown)] {
		fmt.Fprintf(w, "  line %d: %s\n", refusal.Line, refusal.Reason)
	}
	more(w, len(r.Refused), "refused rows")
	if len(r.Labels) > 0 {
		fmt.Fprintf(w, "answers: %d\n", len(r.Labels))
		table := term.NewTable(w)
		for _, l := range r.Labels[:min(len(r.Labels), shown)] {
			table.Row("  "+l.Question, l.Label, fmt.Sprint(l.Rows))
		}
		table.Flush()
		more(w, len(r.Labels), "answers")
	}
	if r.Kept > 0 {
		fmt.Fprintf(w, "length in %s: half up to %d, 90 %% up to %d, 99 %% up to %d, the longest %d\n", r.Length.Unit, r.Length.P50, r.Length.P90, r.Length.P99, r.Length.Max)
	}
	if n := len(r.Duplicates); n > 0 {
		d := r.Duplicates[0]
		fmt.Fprintf(w, "duplicates: %s an earlier one; the first is line %d, as line %d\n", count(n, "row repeats", "rows repeat"), d.Line, d.First)
	}
	for _, c := range r.Conflicts[:min(len(r.Conflicts), shown)] {
		fmt.Fprintf(w, "one state, different answers: %s, lines %s: %q\n", count(len(c.Lines), "row", "rows"), numbers(c.Lines), c.State)
	}
	more(w, len(r.Conflicts), "such states")
	for _, warning := range r.Warnings {
		fmt.Fprintf(w, "note: %s\n", warning)
	}
	if r.Dir != "" {
		fmt.Fprintf(w, "suite: %s (sha256 %s)\n", r.Dir, r.SHA256)
	}
}

func more(w io.Writer, n int, what string) {
	if n > shown {
		fmt.Fprintf(w, "  and %d more %s; --json lists all\n", n-shown, what)
	}
}

// numbers lists the first lines and says how many there are besides.
func numbers(lines []int) string {
	var text []string
	for _, n := range lines[:min(len(lines), shown)] {
		text = append(text, fmt.Sprint(n))
	}
	list := strings.Join(text, ", ")
	if n := len(lines) - shown; n > 0 {
		list += fmt.Sprintf(" and %d more", n)
	}
	return list
}

// count is "1 row" or "3 rows".
func count(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}
