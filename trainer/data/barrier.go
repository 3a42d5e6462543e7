package data

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// The barrier's parameters: HIP-1334 §3.5's, with the state as the unit of
// content. Whole inputs, or grams of characters, would match nearly all rows of a
// set that asks one question.
const (
	gramWords     = 5   // words in a gram
	nearJaccard   = 0.5 // share of common grams from which two texts are near
	minHashes     = 256
	minHashBands  = 64
	minHashRows   = minHashes / minHashBands
	minHashSeed   = 1
	barrierFormat = 1
)

// A barrierRecord is what contamination_barrier_hash is the hash of.
type barrierRecord struct {
	Format    int          `json:"format"`
	Unit      string       `json:"unit"`
	Unicode   string       `json:"unicode"` // version of the normal form's tables
	N         int          `json:"n"`
	Jaccard   float64      `json:"jaccard"`
	MinHash   int          `json:"minhash"`
	Bands     int          `json:"bands"`
	Rows      int          `json:"rows"`
	Seed      uint64       `json:"seed"`
	Official  []string     `json:"official"`  // suites held to equality alone
	Protected []canon.Hash `json:"protected"` // contamination hashes, sorted, each once
}

// A trace is what the barrier knows a row by.
type trace struct {
	suite, item   string
	example       string
	contamination canon.Hash
	words         int      // of the unit, the state's words in normal form
	unit          [16]byte // names the unit: two of one name have the same words
	grams         []uint64 // hashes of its word 5-grams, sorted, each once
}

// newTrace takes a state's leaves.
func newTrace(suite, item, example string, contamination canon.Hash, leaves []string) trace {
	var words []string
	for _, leaf := range leaves {
		words = append(words, strings.Fields(leaf)...)
	}
	return trace{
		suite: suite, item: item, example: example, contamination: contamination,
		words: len(words), unit: short([]byte(strings.Join(words, " "))), grams: grams(words),
	}
}

// A barrier finds rows that stand in sets that judge. MinHash proposes near
// pairs, a pair at Jaccard .5 with probability .98, and the grams decide.
//
// add all protected rows first. It is used by one goroutine.
type barrier struct {
	protected []protectedRow
	hashes    map[canon.Hash]int // first protected row, by contamination hash
	units     map[[16]byte]int   // by the unit's words
	examples  map[string]int
	bands     map[uint64][]int32
	seeds     [minHashes]uint64
	asked     []int // the last query that looked at a protected row, by row
	query     int
}

type protectedRow struct {
	name  string // <suite>/<item>
	grams []uint64
}

func newBarrier() *barrier {
	b := &barrier{
		hashes:   make(map[canon.Hash]int),
		units:    make(map[[16]byte]int),
		examples: make(map[string]int),
		bands:    make(map[uint64][]int32),
	}
	state := uint64(minHashSeed)
	for i := range b.seeds {
		state += golden
		b.seeds[i] = mix(state)
	}
	return b
}

// add protects a row.
func (b *barrier) add(t trace) {
	i := len(b.protected)
	row := protectedRow{name: t.suite + "/" + t.item, grams: t.grams}
	b.protected = append(b.protected, row)
	b.asked = append(b.asked, 0)
	put(b.hashes, t.contamination, i)
	put(b.examples, t.example, i)
	if t.words > 0 {
		put(b.units, t.unit, i)
	}
	for _, key := range b.bandKeys(row.grams) {
		b.bands[key] = append(b.bands[key], int32(i))
	}
}

// put keeps the first value of a key.
func put[K comparable, V any](m map[K]V, k K, v V) {
	if _, ok := m[k]; !ok {
		m[k] = v
	}
}

// match says which protected row t repeats, if any: the same content or the same
// example, else, when near is asked for, the nearest at or above the limit.
func (b *barrier) match(t trace, near bool) (Exclusion, bool) {
	e := Exclusion{Suite: t.suite, Item: t.item, Jaccard: 1}
	if i, ok := b.hashes[t.contamination]; ok {
		e.Why, e.Against = "equal", b.protected[i].name
		return e, true
	}
	if t.words > 0 {
		if i, ok := b.units[t.unit]; ok {
			e.Why, e.Against = "equal", b.protected[i].name
			return e, true
		}
	}
	if i, ok := b.examples[t.example]; ok {
		e.Why, e.Against = "example", b.protected[i].name
		return e, true
	}
	if !near || len(b.protected) == 0 {
		return Exclusion{}, false
	}
	b.query++
	best := -1
	for _, key := range b.bandKeys(t.grams) {
		for _, i := range b.bands[key] {
			if b.asked[i] == b.query {
				continue
			}
			b.asked[i] = b.query
			j := jaccard(t.grams, b.protected[i].grams)
			if j < nearJaccard {
				continue
			}
			if best < 0 || j > e.Jaccard || j == e.Jaccard && int(i) < best {
				best, e.Jaccard = int(i), j
			}
		}
	}
	if best < 0 {
		return Exclusion{}, false
	}
	e.Why, e.Against = "near", b.protected[best].name
	return e, true
}

// record is what the barrier ran as.
func (b *barrier) record(official []string) barrierRecord {
	return barrierRecord{
		Format: barrierFormat, Unit: "state", Unicode: record.UnicodeVersion,
		N: gramWords, Jaccard: nearJaccard, MinHash: minHashes, Bands: minHashBands, Rows: minHashRows,
		Seed: minHashSeed, Official: official,
		Protected: slices.Sorted(maps.Keys(b.hashes)),
	}
}

// grams are the hashes of a text's word n-grams, sorted, each once. A text of
// fewer words has none, and so is near nothing.
func grams(words []string) []uint64 {
	if len(words) < gramWords {
		return nil
	}
	each := make([]uint64, len(words))
	for i, w := range words {
		each[i] = fnv1a(w)
	}
	list := make([]uint64, 0, len(words)-gramWords+1)
	for i := range len(words) - gramWords + 1 {
		g := uint64(0)
		for _, w := range each[i : i+gramWords] {
			g = mix(g + golden ^ w)
		}
		list = append(list, g)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// fnv1a is the 64-bit FNV-1a hash.
func fnv1a(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return h
}

// bandKeys are the keys under which a set of grams is filed: texts that share one
// agree in all rows of a band. Without grams there are none.
func (b *barrier) bandKeys(grams []uint64) []uint64 {
	if len(grams) == 0 {
		return nil
	}
	keys := make([]uint64, minHashBands)
	for band := range keys {
		key := uint64(band)
		for row := range minHashRows {
			seed := b.seeds[band*minHashRows+row]
			least := ^uint64(0)
			for _, g := range grams {
				least = min(least, mix(g^seed))
			}
			key = mix(key + golden ^ least)
		}
		keys[band] = key
	}
	return keys
}

// jaccard is the share of two sorted sets that is common, in [0, 1].
func jaccard(a, b []uint64) float64 {
	common, i, j := 0, 0, 0
	for i < len(a) && j < len(b) {
		switch cmp.Compare(a[i], b[j]) {
		case -1:
			i++
		case 1:
			j++
		default:
			common, i, j = common+1, i+1, j+1
		}
	}
	return float64(common) / float64(len(a)+len(b)-common)
}

// point is where a name falls in [0, 2^64), the same on every machine and in
// every run.
func point(name string) uint64 {
	sum := short([]byte(name))
	return binary.BigEndian.Uint64(sum[:8])
}
