package data

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hanzoai/link/spool/record"
)

// keep chooses the rows that each take keeps, after every take has drawn its own.
func (s *stager) keep() error {
	if !slices.ContainsFunc(s.cfg.Takes, func(t Take) bool { return t.Keep > 0 }) {
		return nil
	}
	t := trained{examples: make(map[string]*entry), units: make(map[[16]byte]*entry)}
	for _, src := range s.sources {
		for i := range src.rows {
			if e := &src.rows[i]; e.draws > 0 {
				put(t.examples, e.example, e)
				if e.words > 0 {
					put(t.units, e.unit, e)
				}
			}
		}
	}
	for _, src := range s.sources {
		if src.take.Keep == 0 {
			continue
		}
		if err := src.keep(s.cfg.Seed, t); err != nil {
			return fmt.Errorf("suite %s: %w", src.suite.Suite, err)
		}
	}
	return nil
}

// trained are the rows that train: the first of each example and of each state.
type trained struct {
	examples map[string]*entry
	units    map[[16]byte]*entry
}

// keep chooses which rows of the suite are kept: of those that may be trained on
// and are not, and whose state does not train, take.Keep from the far end of the
// order in which a cap takes them.
func (src *source) keep(seed uint64, t trained) error {
	var left []*entry
	trains, same := 0, 0
	for i := range src.rows {
		e := &src.rows[i]
		if e.purpose != record.Train || e.excluded {
			continue
		}
		twin := t.units[e.unit]
		switch {
		case e.draws > 0:
			trains++
		case e.words > 0 && twin != nil && twin.suite == e.suite:
			same++
		default:
			left = append(left, e)
		}
	}
	switch {
	case trains+same+len(left) == 0:
		return fmt.Errorf("keep is %d, and it has no train row to keep: give rows of its file the split train, which trains none of them with rows 0", src.take.Keep)
	case len(left) == 0 && same == 0:
		return fmt.Errorf("keep is %d, and no row is left to keep: all %d of its train rows train: set rows to leave some", src.take.Keep, trains)
	case len(left) < 2:
		return fmt.Errorf("keep is %d, and %d of its train rows can be kept, where 2 are the least: %d train and %d repeat the state of one that does: set rows to leave more",
			src.take.Keep, len(left), trains, same)
	}
	place := func(e *entry) uint64 { return mix(fnv1a(e.item) ^ mix(seed)) } // as draw has it
	slices.SortFunc(left, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(place(b), place(a)), cmp.Compare(b.item, a.item))
	})
	for _, e := range left[:min(src.take.Keep, len(left))] {
		other, what := t.examples[e.example], "example"
		if twin := t.units[e.unit]; e.words > 0 && twin != nil {
			other, what = twin, "state"
		}
		if other != nil && other.suite != e.suite {
			return fmt.Errorf("row %s, which is to be kept, has the %s of %s of suite %s, which trains: a text cannot be taught and held at once: leave one of them out of its file, or keep nothing of suite %s",
				e.item, what, other.item, other.suite, e.suite)
		}
		e.kept = true
	}
	return nil
}
