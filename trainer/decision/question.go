// Package decision is the typed question: what is asked of a state, between
// which options, and what the right answer is.
//
// A [Question] is a choice between labels, a score on an ordered scale, or a
// noul, which is true or false. It is written as POST /v1/decisions takes it:
//
//	{"type": "choice", "instructions": "which queue", "criteria": ["billing", "bug"]}
//
// A [Row] is a state and the questions asked of it, each with the distribution
// over its options that is right, as HIP-1333 §4 has it.
//
// # Order
//
// A question's options keep their caller's order, and a target follows it.
// Everything is computed in the order of [Question.Sorted], which depends on
// the options' texts alone, so that an answer's bits do not depend on the order
// in which a caller lists the options. This is why equal texts are refused.
//
// The caller's order of a list is the list's. Of an object it is the order in
// which the members are written; canonical JSON sorts them, so a target must be
// brought to that order when a question is stored, which [Questions] does. A
// noul's order is always false, true.
//
// # Text
//
// What a person typed is kept: no case folding, no Unicode normal form, NUL and
// U+FEFF are characters of a state like others. Instructions, labels and
// descriptions are trimmed of white space at both ends and must be free of NUL.
// JSON is read strictly: a duplicate member, invalid UTF-8 or a lone surrogate
// is an error that says where.
//
// The package is pure: no clock, no disk, no goroutine. Values are safe for
// concurrent reading.
package decision

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/hanzoai/link/spool/canon"
)

// Type is a question's kind.
type Type string

// The three kinds. On the wire "boolean" is another name of noul.
const (
	Choice Type = "choice" // one of several labels
	Score  Type = "score"  // a level of an ordered scale, lowest first
	Noul   Type = "noul"   // true or false
)

// Limits of one question. The published limit of a request is MaxQuestions; the
// others keep a damaged file from becoming a question, well above any real one.
const (
	MaxQuestions    = 100      // questions asked of one state
	MaxOptions      = 10_000   // options of one question
	MaxInstructions = 64 << 10 // bytes of instructions
	MaxOptionText   = 16 << 10 // bytes of one option's text
	MaxKey          = 256      // bytes of a question's key (HIP-1333 §6)
)

// An Option is one possible answer.
type Option struct {
	Key  string // as answers name it: the label, the level's index, "true" or "false"
	Text string // what the encoder reads; unique within a question
}

// A Question asks one thing. Its zero value is not a question; [ParseQuestion]
// and [New] make one.
type Question struct {
	Type         Type
	Instructions string
	Options      []Option // in the caller's order, two or more
}

// A Criterion is a label or a level and what it means. Description may be empty.
type Criterion struct{ Label, Description string }

// ParseType reads the name of a kind, "boolean" being noul.
func ParseType(name string) (Type, error) {
	switch t := Type(name); t {
	case Choice, Score, Noul:
		return t, nil
	case "boolean":
		return Noul, nil
	}
	return "", fmt.Errorf("type is %q; it must be choice, score or noul", name)
}

// New makes a question. For a choice the criteria are its labels, for a score
// its levels, lowest first (a level's description is not used), and for a noul
// nothing, or descriptions of "true" and "false".
func New(t Type, instructions string, criteria []Criterion) (Question, error) {
	q := Question{Type: t, Instructions: strings.TrimSpace(instructions)}
	switch t {
	case Choice:
		for _, c := range criteria {
			q.Options = append(q.Options, Option{Key: c.Label, Text: labelText(c)})
		}
	case Score:
		for i, c := range criteria {
			level := strconv.Itoa(i)
			text := strings.TrimSpace(c.Label)
			if text == "" {
				return Question{}, fmt.Errorf("level %d is empty", i)
			}
			q.Options = append(q.Options, Option{Key: level, Text: "level " + level + ": " + text})
		}
	case Noul:
		// The defaults are those of Kai's public ancestor, Laya.
		described := map[string]string{
			"false": "no, the statement does not hold",
			"true":  "yes, the statement holds",
		}
		for _, c := range criteria {
			if _, ok := described[c.Label]; !ok {
				return Question{}, fmt.Errorf("criteria has %q; a noul describes only true and false", c.Label)
			}
			if d := strings.TrimSpace(c.Description); d != "" {
				described[c.Label] = d
			}
		}
		for _, key := range []string{"false", "true"} {
			q.Options = append(q.Options, Option{Key: key, Text: key + ": " + described[key]})
		}
	default:
		_, err := ParseType(string(t))
		return Question{}, err
	}
	if err := q.check(); err != nil {
		return Question{}, err
	}
	return q, nil
}

// labelText is the text of a choice's option.
func labelText(c Criterion) string {
	label, description := strings.TrimSpace(c.Label), strings.TrimSpace(c.Description)
	if description == "" || label == "" { // an empty label is refused by check
		return label
	}
	return label + ": " + description
}

// check refuses what no answer could be given to.
func (q Question) check() error {
	switch {
	case q.Instructions == "":
		return errors.New("instructions are empty; say what is asked")
	case len(q.Instructions) > MaxInstructions:
		return fmt.Errorf("instructions are %d bytes; at most %d", len(q.Instructions), MaxInstructions)
	case strings.ContainsRune(q.Instructions, 0):
		return errors.New("instructions contain NUL")
	case !utf8.ValidString(q.Instructions):
		return errors.New("instructions are not UTF-8")
	case len(q.Options) < 2:
		return fmt.Errorf("criteria has %d options; a %s needs at least 2", len(q.Options), q.Type)
	case len(q.Options) > MaxOptions:
		return fmt.Errorf("criteria has %d options; at most %d", len(q.Options), MaxOptions)
	}
	seen := make(map[string]int, len(q.Options))
	for i, o := range q.Options {
		switch {
		case o.Text == "":
			return fmt.Errorf("option %d is empty", i+1)
		case len(o.Text) > MaxOptionText:
			return fmt.Errorf("option %d (%.40q…) is %d bytes; at most %d", i+1, o.Text, len(o.Text), MaxOptionText)
		case strings.ContainsRune(o.Text, 0):
			return fmt.Errorf("option %d (%.40q) contains NUL", i+1, o.Text)
		case !utf8.ValidString(o.Text):
			return fmt.Errorf("option %d (%.40q) is not UTF-8", i+1, o.Text)
		}
		if first, ok := seen[o.Text]; ok {
			return fmt.Errorf("options %d and %d are both %q after trimming; options must differ", first+1, i+1, o.Text)
		}
		seen[o.Text] = i
	}
	return nil
}

// ParseQuestion reads {"type", "instructions", "criteria"}.
//
// A choice's criteria is a list of labels, or an object from label to
// description (null or "" for none). A score's is a list of levels, lowest
// first, or an object whose keys are the levels' indices "0" to "n-1". A noul's
// is absent, null, or an object describing true and false. A level or a
// description that is not a string is rendered as canonical JSON.
func ParseQuestion(raw canon.Raw) (Question, error) {
	members, err := object(raw)
	if err != nil {
		return Question{}, fmt.Errorf("question: %w", err)
	}
	var t Type
	var instructions string
	var criteria canon.Raw
	for _, m := range members {
		switch m.Name {
		case "type":
			var name string
			if name, err = text(m.Value); err == nil {
				t, err = ParseType(name)
			}
		case "instructions":
			instructions, err = text(m.Value)
		case "criteria":
			criteria = m.Value
		default:
			err = errors.New("is not a member of a question; type, instructions and criteria are")
		}
		if err != nil {
			return Question{}, fmt.Errorf("question: %s: %w", m.Name, err)
		}
	}
	if t == "" {
		return Question{}, errors.New("question: type is missing")
	}
	list, err := parseCriteria(t, criteria)
	if err != nil {
		return Question{}, fmt.Errorf("question: criteria: %w", err)
	}
	q, err := New(t, instructions, list)
	if err != nil {
		return Question{}, fmt.Errorf("question: %w", err)
	}
	return q, nil
}

// ParseCriteria reads the criteria of a question of type t, as [ParseQuestion].
func ParseCriteria(t Type, raw canon.Raw) ([]Criterion, error) {
	if _, err := canon.Canonicalize(raw); err != nil {
		return nil, err
	}
	return parseCriteria(t, raw)
}

func parseCriteria(t Type, raw canon.Raw) ([]Criterion, error) {
	kind := kindOf(raw)
	switch {
	case (kind == 'n' || kind == 0) && t == Noul:
		return nil, nil
	case kind == 'n' || kind == 0:
		return nil, fmt.Errorf("missing; a %s needs its options", t)
	case kind == '[' && t != Noul:
		return listCriteria(t, raw)
	case kind == '{' && t == Score:
		return levelCriteria(raw)
	case kind == '{':
		return objectCriteria(raw)
	}
	return nil, fmt.Errorf("is %s, which a %s does not take", kindName(kind), t)
}

// listCriteria reads a list of labels or levels.
func listCriteria(t Type, raw canon.Raw) ([]Criterion, error) {
	values, err := array(raw)
	if err != nil {
		return nil, err
	}
	list := make([]Criterion, len(values))
	for i, v := range values {
		if k := kindOf(v); t == Choice && (k == '{' || k == '[' || k == 'n') {
			return nil, fmt.Errorf("option %d is %s; a label is a string", i+1, kindName(k))
		}
		if list[i].Label, err = rendered(v); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// objectCriteria reads an object from label to description.
func objectCriteria(raw canon.Raw) ([]Criterion, error) {
	members, err := object(raw)
	if err != nil {
		return nil, err
	}
	list := make([]Criterion, len(members))
	for i, m := range members {
		list[i].Label = m.Name
		if kindOf(m.Value) == 'n' {
			continue
		}
		if list[i].Description, err = rendered(m.Value); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// levelCriteria reads an object from level index to text. An object has no
// order of its own, and canonical JSON would sort "low" after "high", so its
// keys must be the indices.
func levelCriteria(raw canon.Raw) ([]Criterion, error) {
	members, err := object(raw)
	if err != nil {
		return nil, err
	}
	list := make([]Criterion, len(members))
	for _, m := range members {
		i, err := strconv.Atoi(m.Name)
		if err != nil || i < 0 || i >= len(list) || strconv.Itoa(i) != m.Name {
			return nil, fmt.Errorf("level %q is not one of 0 to %d; an object has no order, so give a list, lowest first", m.Name, len(list)-1)
		}
		if list[i].Label, err = rendered(m.Value); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Prompt is what the encoder reads before the state.
func (q Question) Prompt() string {
	return string(q.Type) + " question: " + q.Instructions
}

// Sorted returns the options' indices by their texts, compared as bytes.
func (q Question) Sorted() []int {
	order := make([]int, len(q.Options))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return strings.Compare(q.Options[a].Text, q.Options[b].Text)
	})
	return order
}

// Labels are the options' keys, in the caller's order.
func (q Question) Labels() []string {
	labels := make([]string, len(q.Options))
	for i, o := range q.Options {
		labels[i] = o.Key
	}
	return labels
}

// Hash names the question: the _hash of its type, instructions and options in
// sorted order. Two spellings that are answered alike have one hash: the order
// in which a choice lists its labels does not enter.
func (q Question) Hash() canon.Hash {
	type option struct {
		Key  string `json:"key"`
		Text string `json:"text"`
	}
	options := make([]option, 0, len(q.Options))
	for _, i := range q.Sorted() {
		options = append(options, option(q.Options[i]))
	}
	h, err := canon.Of(struct {
		Type         Type     `json:"type"`
		Instructions string   `json:"instructions"`
		Options      []option `json:"options"`
	}{q.Type, q.Instructions, options})
	if err != nil {
		panic("decision: hashing a parsed question: " + err.Error()) // strings read from valid JSON
	}
	return h
}

// Warnings lists pairs of options that a person may have meant to be one: their
// texts differ only in case, in Unicode normal form, or in how a number is
// written. They are different options all the same.
func (q Question) Warnings() []string {
	var list []string
	seen := make(map[string]int, len(q.Options))
	for i, o := range q.Options {
		name := o.Key
		if q.Type == Score {
			name = o.Text
		}
		folded := Folded(name)
		if first, ok := seen[folded]; ok {
			list = append(list, fmt.Sprintf("options %q and %q differ only in case, Unicode form or spelling of a number", q.Options[first].Key, o.Key))
			continue
		}
		seen[folded] = i
	}
	return list
}

// Folded is label without what people do not see: case, Unicode normal form,
// the spelling of a number. Two labels with one folding are likely one label.
func Folded(label string) string {
	label = strings.ToLower(norm.NFC.String(strings.TrimSpace(label)))
	if f, err := strconv.ParseFloat(label, 64); err == nil {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return label
}

// JSON writes q as canonical JSON that [ParseQuestion] reads back, and order:
// option i of what is read back is option order[i] of q. The orders differ
// where the criteria is an object, whose members canonical JSON sorts.
func (q Question) JSON() (raw canon.Raw, order []int) {
	order = make([]int, len(q.Options))
	for i := range order {
		order[i] = i
	}
	var criteria canon.Raw
	switch {
	case q.Type == Choice && !q.described():
		criteria = quote(q.Labels())
	case q.Type == Score:
		levels := make([]string, len(q.Options))
		for i, o := range q.Options {
			levels[i] = strings.TrimPrefix(o.Text, "level "+o.Key+": ")
		}
		criteria = quote(levels)
	default:
		slices.SortFunc(order, func(a, b int) int { return strings.Compare(q.Options[a].Key, q.Options[b].Key) })
		described := newObject()
		for _, i := range order {
			o := q.Options[i]
			described.add(o.Key, quote(strings.TrimPrefix(strings.TrimPrefix(o.Text, strings.TrimSpace(o.Key)), ": ")))
		}
		criteria = described.close()
	}
	whole := newObject()
	whole.add("criteria", criteria)
	whole.add("instructions", quote(q.Instructions))
	whole.add("type", quote(string(q.Type)))
	return whole.close(), order
}

// described reports whether any option has more to its text than its label.
func (q Question) described() bool {
	return slices.ContainsFunc(q.Options, func(o Option) bool {
		return o.Text != strings.TrimSpace(o.Key)
	})
}
