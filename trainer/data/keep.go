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
		if err := src.keep(t); err != nil {
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

// twin is a row that trains and is the example of e or has its state, or nil.
func (t trained) twin(e *entry) *entry {
	if twin := t.units[e.unit]; e.words > 0 && twin != nil {
		return twin
	}
	return t.examples[e.example]
}

// keep chooses which rows of the suite are kept: take.Keep of those that may be
// trained on and are not, and that no suite trains on, in the order of a hash of
// their ids. It does not know the seed, so that what is made of them at the base,
// which takes long, is good for every seed.
func (src *source) keep(t trained) error {
	var left []*entry
	trains, same := 0, 0
	var other *entry // a row of another suite that trains on one of these
	var shared *entry
	for i := range src.rows {
		e := &src.rows[i]
		if e.purpose != record.Train || e.excluded {
			continue
		}
		twin := t.twin(e)
		switch {
		case e.draws > 0:
			trains++
		case twin != nil:
			same++
			if other == nil && twin.suite != e.suite {
				other, shared = twin, e
			}
		default:
			left = append(left, e)
		}
	}
	switch {
	case len(left) >= 2:
	case trains+same+len(left) == 0:
		return fmt.Errorf("keep is %d, and it has no train row to keep: give rows of its file the split train, which trains none of them with rows 0", src.take.Keep)
	case other != nil:
		return fmt.Errorf("keep is %d, and %d of its train rows can be kept, where 2 are the least: %d train already, as row %s does as %s of suite %s: a suite that is taught cannot be protected from it",
			src.take.Keep, len(left), trains+same, shared.item, other.item, other.suite)
	case len(left) == 0 && same == 0:
		return fmt.Errorf("keep is %d, and no row is left to keep: all %d of its train rows train: set rows to leave some", src.take.Keep, trains)
	default:
		return fmt.Errorf("keep is %d, and %d of its train rows can be kept, where 2 are the least: %d train and %d repeat the state of one that does: set rows to leave more",
			src.take.Keep, len(left), trains, same)
	}
	place := func(e *entry) uint64 { return mix(fnv1a(e.item)) }
	slices.SortFunc(left, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a.item, b.item))
	})
	for _, e := range left[:min(src.take.Keep, len(left))] {
		e.kept = true
	}
	src.shared = same
	return nil
}
