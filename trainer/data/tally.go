package data

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/decision"
)

// A tally gathers what a report says of the rows kept. It holds some 60 bytes a
// row.
type tally struct {
	alike     bool // warn of labels that look alike
	measure   func(string) int
	unit      string
	over      int // longest state that is not warned of; 0: any
	lengths   []int
	labels    map[[2]string]int   // {question, label}
	first     map[[16]byte]seen   // by state
	others    map[[2][16]byte]int // {state, answers} other than its first row's: their first line
	again     map[[16]byte][]int  // all lines of a state with several
	conflicts map[[16]byte]string // the beginning of a state under different answers
	order     [][16]byte          // of conflicts
	repeats   []Duplicate
	nul       int
}

// seen is the first row of a state.
type seen struct {
	line int
	gold [16]byte
}

func newTally(cfg *ImportConfig) *tally {
	t := &tally{
		alike:   cfg.Label+cfg.Target == "", // else the question's own warnings say it
		measure: utf8.RuneCountInString, unit: "characters", over: cfg.MaxLength,
		labels:    make(map[[2]string]int),
		first:     make(map[[16]byte]seen),
		others:    make(map[[2][16]byte]int),
		again:     make(map[[16]byte][]int),
		conflicts: make(map[[16]byte]string),
	}
	if cfg.Tokens != nil {
		t.measure, t.unit = cfg.Tokens, "tokens"
	}
	return t
}

// add counts one kept row. identity names its state.
func (t *tally) add(line int, state string, identity [16]byte, asked []decision.Asked, gold canon.Raw) {
	t.lengths = append(t.lengths, t.measure(state))
	if strings.IndexByte(state, 0) >= 0 {
		t.nul++
	}
	for _, a := range asked {
		if a.Target != nil {
			t.labels[[2]string{a.Key, shown(a.Question, argmax(a.Question, a.Target))}]++
		}
	}
	now := seen{line, short(gold)}
	was, ok := t.first[identity]
	if !ok {
		t.first[identity] = now
		return
	}
	if t.again[identity] == nil {
		t.again[identity] = []int{was.line}
	}
	t.again[identity] = append(t.again[identity], line)
	if was.gold == now.gold {
		t.repeats = append(t.repeats, Duplicate{Line: line, First: was.line})
		return
	}
	other := [2][16]byte{identity, now.gold}
	if earlier, ok := t.others[other]; ok {
		t.repeats = append(t.repeats, Duplicate{Line: line, First: earlier})
		return
	}
	t.others[other] = line
	if _, ok := t.conflicts[identity]; !ok {
		t.conflicts[identity] = beginning(state)
		t.order = append(t.order, identity)
	}
}

// fill writes what was gathered into a report.
func (t *tally) fill(r *Report) {
	slices.Sort(t.lengths)
	rank := func(p int) int { // nearest rank of the p-th percentile
		if len(t.lengths) == 0 {
			return 0
		}
		return t.lengths[max(0, (len(t.lengths)*p+99)/100-1)]
	}
	r.Length = Lengths{Unit: t.unit, P50: rank(50), P90: rank(90), P99: rank(99), Max: rank(100)}
	if t.over > 0 {
		i, _ := slices.BinarySearch(t.lengths, t.over+1)
		r.Length.Over = len(t.lengths) - i
	}
	for k, n := range t.labels {
		r.Labels = append(r.Labels, LabelCount{Question: k[0], Label: k[1], Rows: n})
	}
	slices.SortFunc(r.Labels, func(a, b LabelCount) int {
		return cmp.Or(cmp.Compare(a.Question, b.Question), cmp.Compare(b.Rows, a.Rows), cmp.Compare(a.Label, b.Label))
	})
	r.Duplicates = t.repeats
	for _, identity := range t.order {
		r.Conflicts = append(r.Conflicts, Conflict{State: t.conflicts[identity], Lines: t.again[identity]})
	}
	r.Warnings = append(r.Warnings, t.warnings(r)...)
}

// fewRows is how many rows of a label are too few to learn it from or to grade it.
const fewRows = 5

// warnings are what a person should know of the rows before training on them.
func (t *tally) warnings(r *Report) []string {
	var list []string
	folded := make(map[[2]string]string)
	few := 0
	for _, key := range slices.SortedFunc(maps.Keys(t.labels), func(a, b [2]string) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	}) {
		if t.labels[key] < fewRows {
			few++
		}
		if !t.alike {
			continue
		}
		f := [2]string{key[0], decision.Folded(key[1])}
		if other, ok := folded[f]; ok {
			list = append(list, fmt.Sprintf("labels %q and %q differ only in case, Unicode form or spelling of a number", other, key[1]))
			continue
		}
		folded[f] = key[1]
	}
	if few > 0 {
		list = append(list, fmt.Sprintf("%d of %d labels %s fewer than %d rows", few, len(t.labels), number(few, "has", "have"), fewRows))
	}
	if n := len(t.conflicts); n > 0 {
		list = append(list, fmt.Sprintf("%s under different answers", number(n, "1 state stands", fmt.Sprint(n, " states stand"))))
	}
	if n := r.Length.Over; n > 0 {
		list = append(list, fmt.Sprintf("%s longer than %d %s and will be cut", number(n, "1 state is", fmt.Sprint(n, " states are")), t.over, t.unit))
	}
	if t.nul > 0 {
		list = append(list, fmt.Sprintf("%s NUL, which is kept", number(t.nul, "1 state contains", fmt.Sprint(t.nul, " states contain"))))
	}
	return list
}

// number is the words for n things.
func number(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}

// argmax is the most probable option, ties to the smaller text.
func argmax(q decision.Question, target []float64) int {
	best := 0
	for i := range target {
		if target[i] > target[best] || target[i] == target[best] && q.Options[i].Text < q.Options[best].Text {
			best = i
		}
	}
	return best
}

// shown is how a person calls an option: its label, or a level's text.
func shown(q decision.Question, i int) string {
	if q.Type == decision.Score {
		return q.Options[i].Text
	}
	return q.Options[i].Key
}

// beginning is the first 80 characters of a text.
func beginning(s string) string {
	n := 0
	for i := range s {
		if n == 80 {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

// short is the first half of a SHA-256: enough that two of a person's rows do not
// meet by chance.
func short(b []byte) [16]byte {
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}
