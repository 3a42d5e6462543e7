package data

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hanzoai/link/spool/canon"
)

// maxRow is the longest row that is kept unless a caller says otherwise.
const maxRow = 16 << 20

// A table is a person's file as rows of named cells.
type table struct {
	path      string
	format    string // "csv", "tsv", "jsonl"
	delimiter rune
	quoted    bool
	max       int
}

// A line is one row of a table. It is valid until the next one is read.
type line struct {
	n      int      // where it starts, from 1
	header []string // CSV, TSV
	fields []string
	object canon.Raw // JSON Lines
	member []canon.Member
	err    error // why the row is of no use, or nil
}

// A cell is one value of a row: text where the format knows only text, else JSON.
type cell struct {
	text string
	json canon.Raw
}

// formatOf is the format that a file's name says.
func formatOf(path string) (string, error) {
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".csv":
		return "csv", nil
	case ".tsv", ".tab":
		return "tsv", nil
	case ".jsonl", ".ndjson", ".json":
		return "jsonl", nil
	default:
		return "", fmt.Errorf("the extension %q says no format; name one (--format, or a take's format): csv, tsv or jsonl", ext)
	}
}

// lines reads the table's rows. A row that cannot be read has its err set and
// the reading goes on; an error that ends the file is yielded last, alone.
func (t table) lines() iter.Seq2[*line, error] {
	return func(yield func(*line, error) bool) {
		f, err := os.Open(t.path)
		if err != nil {
			yield(nil, err)
			return
		}
		defer f.Close()
		r := bufio.NewReaderSize(f, 1<<16)
		if err := skipMark(r); err != nil {
			yield(nil, err)
			return
		}
		switch {
		case t.format == "jsonl":
			t.jsonLines(r, yield)
		case t.format == "tsv" && !t.quoted:
			t.plainLines(r, yield)
		default:
			t.csvLines(r, yield)
		}
	}
}

// foreign are the first bytes of files that people take for text.
var foreign = []struct{ magic, what string }{
	{"\xff\xfe", "UTF-16; save it as UTF-8"},
	{"\xfe\xff", "UTF-16; save it as UTF-8"},
	{"\x1f\x8b", "compressed with gzip; decompress it first"},
	{"\x28\xb5\x2f\xfd", "compressed with zstd; decompress it first"},
	{"PK\x03\x04", "a zip archive or a spreadsheet; save it as CSV"},
	{"PAR1", "Parquet; write it as JSON Lines"},
}

// skipMark skips a UTF-8 byte order mark and refuses what is not text.
func skipMark(r *bufio.Reader) error {
	head, _ := r.Peek(4)
	for _, f := range foreign {
		if bytes.HasPrefix(head, []byte(f.magic)) {
			return errors.New("the file is " + f.what)
		}
	}
	if bytes.HasPrefix(head, []byte("\xef\xbb\xbf")) {
		r.Discard(3) // just peeked
	}
	return nil
}

// jsonLines reads one object a line; blank lines are no rows.
func (t table) jsonLines(r *bufio.Reader, yield func(*line, error) bool) {
	first := true
	for text, l := range physical(r, t.max, yield) {
		if l.err == nil && len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		if first && bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
			yield(nil, fmt.Errorf("line %d: the file is one JSON list; write one object a line (jq -c '.[]' does)", l.n))
			return
		}
		first = false
		if l.err == nil {
			l.object = text
			l.member, l.err = canon.Members(text)
		}
		if !yield(l, nil) {
			return
		}
	}
}

// plainLines reads tab-separated values as IANA registered them: no quoting, a
// field holds neither tab nor line end.
func (t table) plainLines(r *bufio.Reader, yield func(*line, error) bool) {
	var header []string
	for text, l := range physical(r, t.max, yield) {
		if l.err == nil && len(text) == 0 {
			continue
		}
		fields := strings.Split(string(text), "\t")
		if header == nil {
			if l.err != nil {
				yield(nil, fmt.Errorf("line %d: the header: %w", l.n, l.err))
				return
			}
			header = trimmed(fields)
			continue
		}
		l.header, l.fields = header, fields
		l.checkWidth()
		if !yield(l, nil) {
			return
		}
	}
}

// physical reads lines without their ends, LF or CR LF. One longer than max has
// its err set and no text. A failure to read is yielded to the caller's yield.
func physical(r *bufio.Reader, max int, yield func(*line, error) bool) iter.Seq2[[]byte, *line] {
	return func(each func([]byte, *line) bool) {
		var text []byte
		for n := 1; ; n++ {
			text = text[:0]
			size := 0
			var err error
			for {
				var part []byte
				part, err = r.ReadSlice('\n')
				size += len(part)
				if size <= max+2 {
					text = append(text, part...)
				}
				if err != bufio.ErrBufferFull {
					break
				}
			}
			if err != nil && err != io.EOF {
				yield(nil, fmt.Errorf("line %d: %w", n, err))
				return
			}
			if size == 0 {
				return
			}
			l := &line{n: n}
			text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
			if size > max+2 || len(text) > max {
				l.err = fmt.Errorf("the row is longer than %d bytes", max)
				text = nil
			}
			if !each(text, l) || err == io.EOF {
				return
			}
		}
	}
}

// A tether is a reader that fails when left runs out, so that one row cannot take
// in a whole file.
type tether struct {
	r    io.Reader
	left int
}

var errTether = errors.New("the row takes in too much of the file: a quotation mark opens a field that is not closed, or the row is far too long")

func (t *tether) Read(p []byte) (int, error) {
	if t.left <= 0 {
		return 0, errTether
	}
	n, err := t.r.Read(p[:min(len(p), t.left)])
	t.left -= n
	return n, err
}

// csvLines reads RFC 4180. A line end inside quotes becomes LF. A row longer than
// max is refused; one of twice that and of twice maxRow ends the file, because a
// row is read whole.
func (t table) csvLines(r *bufio.Reader, yield func(*line, error) bool) {
	// Twice, because each quotation mark in a field may be written as two.
	bound := 2 * max(t.max, maxRow)
	tied := &tether{r: r, left: bound}
	in := csv.NewReader(tied)
	in.Comma = t.delimiter
	in.FieldsPerRecord = -1
	in.ReuseRecord = true
	record, err := in.Read()
	if err == io.EOF {
		return
	}
	if err != nil {
		yield(nil, fmt.Errorf("the header: %w", t.quoting(err)))
		return
	}
	header := trimmed(record)
	var torn *line // a row that ended lines after it began, by a fault
	last := 1      // where the row before starts
	for {
		tied.left = bound
		record, err := in.Read()
		if err == io.EOF && torn != nil {
			yield(nil, fmt.Errorf("line %d: a quotation mark opens a field here that takes in the rest of the file: it is not closed, or the file is cut", torn.n))
			return
		}
		if torn != nil && !yield(torn, nil) || err == io.EOF {
			return
		}
		torn = nil
		l := &line{header: header, fields: record}
		if pe := (*csv.ParseError)(nil); errors.As(err, &pe) {
			l.n, l.err = pe.StartLine, pe.Err
			if len(header) == 1 {
				l.err = t.quoting(l.err)
			}
			if pe.Line > pe.StartLine {
				l.err = fmt.Errorf("%w, in line %d of the file", pe.Err, pe.Line)
				torn = l
				continue
			}
		} else if errors.Is(err, errTether) {
			yield(nil, fmt.Errorf("the row after that of line %d: %w", last, err))
			return
		} else if err != nil {
			yield(nil, err)
			return
		} else {
			l.n, _ = in.FieldPos(0)
			l.checkWidth()
			size := 0
			for _, f := range record {
				size += len(f)
			}
			if size > t.max {
				l.err = fmt.Errorf("the row is longer than %d bytes", t.max)
			}
		}
		last = l.n
		if !yield(l, nil) {
			return
		}
	}
}

// quoting says of a misplaced quotation mark that another delimiter may be why:
// `"a";"b"` is no field.
func (t table) quoting(err error) error {
	if t.delimiter == ',' && (errors.Is(err, csv.ErrQuote) || errors.Is(err, csv.ErrBareQuote)) {
		return fmt.Errorf("%w (if something else than a comma separates the fields, name it: --delimiter ';', or a take's delimiter)", err)
	}
	return err
}

// trimmed copies a header's names without the white space around them.
func trimmed(fields []string) []string {
	names := slices.Clone(fields)
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return names
}

func (l *line) checkWidth() {
	if l.err == nil && len(l.fields) != len(l.header) {
		l.err = fmt.Errorf("the row has %d fields, the header %d", len(l.fields), len(l.header))
	}
}

// cell finds a column in the row.
func (l *line) cell(column string) (cell, bool, error) {
	if l.header == nil {
		raw, ok := find(l.member, column)
		return cell{json: raw}, ok, nil
	}
	i := slices.Index(l.header, column)
	if i < 0 {
		return cell{}, false, nil
	}
	if !utf8.ValidString(l.fields[i]) {
		return cell{}, true, fmt.Errorf("%s is not UTF-8; convert the file to it", column)
	}
	return cell{text: l.fields[i]}, true, nil
}

// find looks a column up in an object: the member of that name, else, at each
// dot, a member of the object on its left.
func find(members []canon.Member, column string) (canon.Raw, bool) {
	for _, m := range members {
		if m.Name == column {
			return m.Value, true
		}
	}
	for i := range len(column) {
		if column[i] != '.' {
			continue
		}
		for _, m := range members {
			if m.Name != column[:i] || m.Value.Kind() != '{' {
				continue
			}
			inner, err := canon.Members(m.Value)
			if err != nil {
				continue
			}
			if raw, ok := find(inner, column[i+1:]); ok {
				return raw, true
			}
		}
	}
	return nil, false
}

// names are the row's columns, objects' members with dots.
func (l *line) names() []string {
	if l.header != nil {
		return l.header
	}
	return memberNames(nil, "", l.member, 3)
}

func memberNames(names []string, prefix string, members []canon.Member, depth int) []string {
	for _, m := range members {
		names = append(names, prefix+m.Name)
		if m.Value.Kind() == '{' && depth > 1 {
			if inner, err := canon.Members(m.Value); err == nil {
				names = memberNames(names, prefix+m.Name+".", inner, depth-1)
			}
		}
	}
	return names
}

// source is the row as canonical JSON: what source_hash is of.
func (l *line) source() (canon.Raw, error) {
	if l.header == nil {
		return canon.Canonicalize(l.object)
	}
	row := make(map[string]string, len(l.header))
	for i, name := range l.header {
		if !utf8.ValidString(l.fields[i]) || !utf8.ValidString(name) {
			return nil, fmt.Errorf("%q is not UTF-8", name)
		}
		row[name] = l.fields[i]
	}
	return canon.Marshal(row)
}

// asJSON is the cell's value as JSON.
func (c cell) asJSON() (canon.Raw, error) {
	if c.json != nil {
		return canon.Canonicalize(c.json)
	}
	return canon.Marshal(c.text)
}

// label is the cell's value as a label, without white space around it: a string,
// or a number, true or false as JSON writes it.
func (c cell) label() (string, error) {
	s := c.text
	if c.json != nil {
		switch kind := c.json.Kind(); kind {
		case '"':
			if err := canon.Unmarshal(c.json, &s); err != nil {
				return "", err
			}
		case '[', '{':
			return "", errors.New("is a list or an object; it must be one label (a distribution over labels is named as the target)")
		case 'n':
			return "", errors.New("is null")
		default:
			b, err := canon.Canonicalize(c.json)
			if err != nil {
				return "", err
			}
			s = string(b)
		}
	}
	if s = strings.TrimSpace(s); s == "" {
		return "", errors.New("is empty")
	}
	return s, nil
}
