package data

import (
	"cmp"
	"maps"
	"slices"
)

// A candidate is a row that may be trained on.
type candidate struct {
	id    string
	class string // its answer
	lang  string
	draws int // times it is read in an epoch, before the take's times
}

// draw decides how often each candidate is read: set draws. What a cap leaves out
// is decided by the hash of seed and id, so that adding rows to a suite changes
// few of those chosen.
//
// A take without balance reads each row once, or the first take.Rows of them. A
// balanced one makes as many draws in all, the same number of every answer (or
// language, or pair of them) to within one: of an answer with more rows than its
// share some are left out, of one with fewer all are repeated alike.
func draw(list []candidate, take Take, seed uint64) {
	total := len(list)
	if take.Rows != nil {
		total = min(total, *take.Rows)
	}
	type cell struct{ class, lang string }
	cells := make(map[cell][]*candidate)
	for i := range list {
		c := &list[i]
		var k cell
		if take.BalanceClass {
			k.class = c.class
		}
		if take.BalanceLang {
			k.lang = c.lang
		}
		cells[k] = append(cells[k], c)
	}
	keys := slices.SortedFunc(maps.Keys(cells), func(a, b cell) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.lang, b.lang))
	})
	for i, k := range keys {
		rows := cells[k]
		share := total / len(keys)
		if i < total%len(keys) {
			share++
		}
		place := make(map[*candidate]uint64, len(rows))
		for _, c := range rows {
			place[c] = mix(fnv1a(c.id) ^ mix(seed))
		}
		slices.SortFunc(rows, func(a, b *candidate) int {
			return cmp.Or(cmp.Compare(place[a], place[b]), cmp.Compare(a.id, b.id))
		})
		for j, c := range rows {
			c.draws = share / len(rows)
			if j < share%len(rows) {
				c.draws++
			}
		}
	}
}
