package decision

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/canon"
)

// An Asked is one question of a row.
type Asked struct {
	Key      string
	Question Question
	Target   []float64 // the right distribution over Question.Options; nil when unlabelled
}

// A Row is a state and what is asked of it.
type Row struct {
	ID      string // the item's id; empty for a row that is not in a dataset
	Example string // its canonical_example_id
	State   string // as [State] gives it
	Asked   []Asked
	Lang    string // the row's language, as its source names it; may be empty
	Group   string // rows of one group are not independent: they count as one unit when an interval is drawn
}

// SumTolerance is how far from 1 a target may sum.
const SumTolerance = 1e-6

// CheckTarget refuses what is not a distribution over n options.
func CheckTarget(target []float64, n int) error {
	if len(target) != n {
		return fmt.Errorf("has %d values for %d options", len(target), n)
	}
	sum := 0.0
	for i, p := range target {
		if math.IsNaN(p) || math.IsInf(p, 0) || p < 0 {
			return fmt.Errorf("value %d is %v; each must be 0 or more", i+1, p)
		}
		sum += p
	}
	if math.Abs(sum-1) > SumTolerance {
		return fmt.Errorf("sums to %v; it must sum to 1", sum)
	}
	return nil
}

// A Reader reads rows. It remembers the question sets it has read, so that the
// rows of a dataset, which nearly always ask the same, share one. Its zero
// value is ready; it is used by one goroutine.
type Reader struct {
	sets map[string][]Asked // by the bytes of the questions member; Target nil
	held int                // bytes of its keys
}

// maxHeld bounds what a Reader remembers, in bytes of questions as they are
// written, for files in which every row asks something else. Sets are not
// counted: one may be as long as a row.
const maxHeld = 4 << 20

// ParseRow reads a dataset item's payload: input is {"state", "questions",
// "lang"?} and gold null or {key: [p, …]}. The row has no ID, Example or Group.
func (r *Reader) ParseRow(input, gold canon.Raw) (Row, error) {
	return r.row(input, gold, false)
}

// ParseRow is [Reader.ParseRow] for a single row.
func ParseRow(input, gold canon.Raw) (Row, error) { return new(Reader).ParseRow(input, gold) }

// ParseDecision reads a row as HIP-1333 §4 has it: {"state", "questions",
// "target"?, "lang"?}.
func (r *Reader) ParseDecision(line canon.Raw) (Row, error) {
	return r.row(line, nil, true)
}

// ParseDecision is [Reader.ParseDecision] for a single row.
func ParseDecision(line canon.Raw) (Row, error) { return new(Reader).ParseDecision(line) }

func (r *Reader) row(input, gold canon.Raw, target bool) (Row, error) {
	members, err := object(input)
	if err != nil {
		return Row{}, fmt.Errorf("row: %w", err)
	}
	var row Row
	var state canon.Raw
	for _, m := range members {
		switch {
		case m.Name == "state":
			state = m.Value
		case m.Name == "questions":
			row.Asked, err = r.questions(m.Value)
		case m.Name == "lang":
			if kindOf(m.Value) != 'n' {
				row.Lang, err = text(m.Value)
			}
		case m.Name == "target" && target:
			gold = m.Value
		default:
			err = errors.New("is not a member of a row")
		}
		if err != nil {
			return Row{}, fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	if row.State, err = State(state); err != nil {
		return Row{}, err
	}
	if row.Asked == nil {
		return Row{}, errors.New("questions are missing")
	}
	if err := setTargets(row.Asked, gold); err != nil {
		return Row{}, fmt.Errorf("target: %w", err)
	}
	return row, nil
}

// Asked reads a row's questions and its gold, without its state.
func (r *Reader) Asked(questions, gold canon.Raw) ([]Asked, error) {
	asked, err := r.questions(questions)
	if err != nil {
		return nil, fmt.Errorf("questions: %w", err)
	}
	if err := setTargets(asked, gold); err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	return asked, nil
}

// questions reads {key: question, …} into a slice of the caller's own, by key.
func (r *Reader) questions(raw canon.Raw) ([]Asked, error) {
	if set, ok := r.sets[string(raw)]; ok {
		return slices.Clone(set), nil
	}
	members, err := object(raw)
	switch {
	case err != nil:
		return nil, err
	case len(members) == 0:
		return nil, errors.New("none is asked")
	case len(members) > MaxQuestions:
		return nil, fmt.Errorf("%d are asked; at most %d", len(members), MaxQuestions)
	}
	set := make([]Asked, len(members))
	for i, m := range members {
		if err := CheckKey(m.Name); err != nil {
			return nil, err
		}
		q, err := ParseQuestion(m.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		set[i] = Asked{Key: m.Name, Question: q}
	}
	slices.SortFunc(set, func(a, b Asked) int { return strings.Compare(a.Key, b.Key) })
	if r.sets == nil || r.held+len(raw) > maxHeld {
		r.sets, r.held = make(map[string][]Asked), 0
	}
	r.sets[string(raw)] = set
	r.held += len(raw)
	return slices.Clone(set), nil
}

// CheckKey refuses what cannot name a question: 1 to MaxKey bytes without
// control characters (HIP-1333 §6).
func CheckKey(key string) error {
	switch {
	case key == "":
		return errors.New("a question's key is empty")
	case len(key) > MaxKey:
		return fmt.Errorf("key %.40q… is %d bytes; at most %d", key, len(key), MaxKey)
	case strings.ContainsFunc(key, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		return fmt.Errorf("key %q has a control character", key)
	}
	return nil
}

// setTargets reads {key: [p, …], …} into the questions it names.
func setTargets(asked []Asked, gold canon.Raw) error {
	if k := kindOf(gold); k == 'n' || k == 0 {
		return nil
	}
	members, err := object(gold)
	if err != nil {
		return err
	}
	for _, m := range members {
		i := slices.IndexFunc(asked, func(a Asked) bool { return a.Key == m.Name })
		if i < 0 {
			return fmt.Errorf("names %q, which is not asked", m.Name)
		}
		if k := kindOf(m.Value); k != '[' {
			return fmt.Errorf("%s is %s; it must be a list of numbers", m.Name, kindName(k))
		}
		var target []float64
		if err := canon.Unmarshal(m.Value, &target); err != nil {
			return fmt.Errorf("%s must be a list of numbers: %w", m.Name, err)
		}
		if err := CheckTarget(target, len(asked[i].Question.Options)); err != nil {
			return fmt.Errorf("%s %w", m.Name, err)
		}
		asked[i].Target = target
	}
	return nil
}

// Input writes the input that [ParseRow] reads from its canonical parts: a state,
// and questions as [Questions] writes them. lang may be empty.
func Input(state, questions canon.Raw, lang string) canon.Raw {
	o := newObject()
	if lang != "" {
		o.add("lang", quote(lang))
	}
	o.add("questions", questions)
	o.add("state", state)
	return o.close()
}

// Questions writes questions and their targets as [ParseRow] reads them, in
// canonical JSON. A target follows its options into the order in which they are
// stored. gold is null when no question has a target.
func Questions(asked []Asked) (questions, gold canon.Raw, err error) {
	if len(asked) == 0 {
		return nil, nil, errors.New("questions: none is asked")
	}
	asked = slices.Clone(asked)
	slices.SortFunc(asked, func(a, b Asked) int { return strings.Compare(a.Key, b.Key) })
	qs, gs := newObject(), newObject()
	for _, a := range asked {
		raw, order := a.Question.JSON()
		qs.add(a.Key, raw)
		if a.Target == nil {
			continue
		}
		if err := CheckTarget(a.Target, len(order)); err != nil {
			return nil, nil, fmt.Errorf("target: %s %w", a.Key, err)
		}
		target := make([]float64, len(order))
		for i, j := range order {
			target[i] = a.Target[j]
		}
		b, err := canon.Marshal(target)
		if err != nil {
			return nil, nil, fmt.Errorf("target: %s: %w", a.Key, err)
		}
		gs.add(a.Key, b)
	}
	if gs.empty {
		return qs.close(), canon.Raw("null"), nil
	}
	return qs.close(), gs.close(), nil
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }
