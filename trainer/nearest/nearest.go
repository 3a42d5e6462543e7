// Package nearest guesses which known name somebody meant.
package nearest

import (
	"strings"
)

// Name is the known name fewest edits from name, or "" when none is near: at
// most a third of its letters. Case does not count.
func Name(name string, known []string) string {
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
