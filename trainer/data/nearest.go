package data

import (
	"fmt"
	"slices"
	"strings"
)

// unknown says that a name is not among those known, and which it may have
// meant.
func unknown(what, name string, known []string) error {
	if near := nearest(name, known); near != "" {
		return fmt.Errorf("there is no %s %q; did you mean %q?", what, name, near)
	}
	return fmt.Errorf("there is no %s %q; there are %s", what, name, listed(known))
}

// nearest is the known name fewest edits from name, or "" when none is near: at
// most a third of its letters. Case does not count.
func nearest(name string, known []string) string {
	best, bestEdits := "", len([]rune(name))/3+1
	for _, k := range known {
		if e := edits(strings.ToLower(name), strings.ToLower(k)); e < bestEdits {
			best, bestEdits = k, e
		}
	}
	return best
}

// edits is the Levenshtein distance between two strings, in characters.
func edits(a, b string) int {
	x, y := []rune(a), []rune(b)
	row := make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := range x {
		diagonal := row[0]
		row[0] = i + 1
		for j := range y {
			cost := 1
			if x[i] == y[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(y)]
}

// listed names up to twenty things for a person.
func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	names = slices.Clone(names)
	if len(names) > 20 {
		names = append(names[:20], fmt.Sprintf("and %d more", len(names)-20))
	}
	return strings.Join(names, ", ")
}
