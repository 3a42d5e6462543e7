package term

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table prints rows in columns as wide as their widest cell. A cell that reads
// as a number stands to the right. Nothing is printed before Flush.
type Table struct {
	w    io.Writer
	rows [][]string
}

// NewTable is an empty table that will print to w.
func NewTable(w io.Writer) *Table { return &Table{w: w} }

// Row adds a row.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Flush prints the rows.
func (t *Table) Flush() {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				line.WriteString("  ")
			}
			if numeric(cell) {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
		}
		fmt.Fprintln(t.w, strings.TrimRight(line.String(), " "))
	}
	t.rows = nil
}

func numeric(cell string) bool {
	digits := false
	for _, r := range cell {
		switch {
		case r >= '0' && r <= '9':
			digits = true
		case strings.ContainsRune("+-.,%±", r):
		default:
			return false
		}
	}
	return digits
}
