package data

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/decision"
)

// An importer turns lines into items.
type importer struct {
	cfg    *ImportConfig
	report *Report
	asker  *asker // nil: rows are decisions
	reader decision.Reader
	tally  *tally
	out    *suiteWriter   // nil: a dry run
	leaves []string       // of the asker's questions
	ids    map[string]int // line by id, when a column gives ids
	buf    []byte
}

// A decided is a row that has been understood.
type decided struct {
	state     canon.Raw // canonical
	questions canon.Raw
	gold      canon.Raw
	lang      string
	asked     []decision.Asked
	leaves    []string // of questions
}

// row keeps a line, or says why it cannot be kept. Its second result is a failure
// to write.
func (im *importer) row(l *line) (reason, failure error) {
	if l.err != nil {
		return l.err, nil
	}
	d, err := im.decide(l)
	if err != nil {
		return err, nil
	}
	state, err := decision.State(d.state)
	if err != nil {
		return err, nil
	}
	purpose, err := im.purpose(l)
	if err != nil {
		return err, nil
	}
	id, err := im.id(l)
	if err != nil {
		return err, nil
	}
	stateLeaves, err := record.Leaves(d.state)
	if err != nil {
		return err, nil
	}
	unit := strings.Join(words(stateLeaves), " ")
	if unit == "" && d.state.Kind() != '"' {
		// Only numbers. Contamination is matched by strings, so that all such rows
		// would be one; the text that the encoder reads of the state tells them
		// apart, and it reads the same from it.
		if d.state, err = canon.Marshal(state); err != nil {
			return err, nil
		}
		if stateLeaves, err = record.Leaves(d.state); err != nil {
			return err, nil
		}
		unit = strings.Join(words(stateLeaves), " ")
	}
	example, err := im.example(l, unit, d.state)
	if err != nil {
		return err, nil
	}
	source, err := l.source()
	if err != nil {
		return err, nil
	}
	identity := short(d.state)
	if d.state.Kind() == '"' && unit != "" {
		identity = short([]byte(unit))
	}
	if purpose != "" {
		im.report.Purposes[purpose]++
	}
	im.tally.add(l.n, state, identity, d.asked, d.gold)
	if im.out == nil {
		return nil, nil
	}

	// The leaves of the whole input, in canonical order: lang, questions, state.
	leaves := slices.Concat(d.leaves, stateLeaves)
	if d.lang != "" {
		leaves = slices.Insert(leaves, 0, record.Normal(d.lang))
	}
	contamination := canon.HashOf([]byte(strings.Join(leaves, "\x1f")))
	input := decision.Input(d.state, d.questions, d.lang)
	im.buf, err = appendOpen(im.buf[:0], example, string(contamination), id, input, d.gold, purpose, canon.HashOf(source))
	if err != nil {
		return err, nil
	}
	return nil, im.out.add(im.buf)
}

// decide reads a line's state, questions and answers.
func (im *importer) decide(l *line) (decided, error) {
	if im.asker == nil {
		return im.decision(l)
	}
	cfg := im.cfg
	d := decided{questions: im.asker.questions, leaves: im.leaves}
	var err error
	if d.state, err = im.state(l); err != nil {
		return decided{}, err
	}
	column := cfg.Label + cfg.Target // one of them is empty
	c, ok, err := l.cell(column)
	if err != nil {
		return decided{}, err
	}
	if !ok {
		return decided{}, fmt.Errorf("%s is missing", column)
	}
	target, gold, err := im.asker.answer(c)
	if err != nil {
		return decided{}, err
	}
	d.gold, d.asked = gold, im.asker.asked(target)
	d.lang, err = im.optional(l, cfg.Lang)
	return d, err
}

// state is the row's state as canonical JSON.
func (im *importer) state(l *line) (canon.Raw, error) {
	columns := im.cfg.State
	if len(columns) == 1 {
		c, ok, err := l.cell(columns[0])
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("%s is missing", columns[0])
		}
		return c.asJSON()
	}
	members := make(map[string]canon.Raw, len(columns))
	empty := true
	for _, column := range columns {
		c, ok, err := l.cell(column)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("%s is missing", column)
		}
		if members[column], err = c.asJSON(); err != nil {
			return nil, fmt.Errorf("%s: %w", column, err)
		}
		if _, err := c.label(); err == nil || c.json.Kind() == '{' || c.json.Kind() == '[' {
			empty = false
		}
	}
	if empty {
		return nil, errors.New("state is empty: " + strings.Join(columns, ", ") + " all are")
	}
	return canon.Marshal(members)
}

// decision reads a whole row of HIP-1333 §4. Columns that the configuration names
// for something else are not part of it.
func (im *importer) decision(l *line) (decided, error) {
	cfg := im.cfg
	body := make([]byte, 0, len(l.object))
	var state canon.Raw
	for _, m := range l.member {
		if m.Name == "state" {
			state = m.Value
		}
		if m.Name != "lang" && slices.Contains([]string{cfg.ID, cfg.Group, cfg.Split, cfg.Lang}, m.Name) {
			continue
		}
		name, err := canon.Marshal(m.Name)
		if err != nil {
			return decided{}, err
		}
		body = append(append(append(append(body, ','), name...), ':'), m.Value...)
	}
	if len(body) == 0 {
		return decided{}, errors.New("the row is empty")
	}
	body[0] = '{'
	row, err := im.reader.ParseDecision(append(body, '}'))
	if err != nil {
		return decided{}, err
	}
	d := decided{asked: row.Asked, lang: row.Lang}
	for _, a := range row.Asked {
		if a.Target == nil {
			return decided{}, fmt.Errorf("target: %s has none", a.Key)
		}
	}
	if d.lang == "" {
		if d.lang, err = im.optional(l, cfg.Lang); err != nil {
			return decided{}, err
		}
	}
	if d.state, err = canon.Canonicalize(state); err != nil {
		return decided{}, err
	}
	if d.questions, d.gold, err = decision.Questions(row.Asked); err != nil {
		return decided{}, err
	}
	d.leaves, err = record.Leaves(d.questions)
	return d, err
}

// optional is the text of a column that a row may lack.
func (im *importer) optional(l *line, column string) (string, error) {
	if column == "" {
		return "", nil
	}
	c, ok, err := l.cell(column)
	if err != nil || !ok {
		return "", err
	}
	if c.json.Kind() == 'n' || c.json == nil && strings.TrimSpace(c.text) == "" {
		return "", nil
	}
	s, err := c.label()
	if err != nil {
		return "", fmt.Errorf("%s %w", column, err)
	}
	return s, nil
}

// purpose is what the file or the configuration says of the row.
func (im *importer) purpose(l *line) (record.Purpose, error) {
	if im.cfg.Split == "" {
		return im.cfg.Purpose, nil
	}
	s, err := im.optional(l, im.cfg.Split)
	if err != nil {
		return "", err
	}
	p, ok := splits[strings.ToLower(s)]
	if !ok {
		return "", fmt.Errorf("%s is %q; it must be train, validation or test", im.cfg.Split, s)
	}
	return p, nil
}

// id is the item's id: the suite and the row's own id, or its line.
func (im *importer) id(l *line) (string, error) {
	if im.cfg.ID == "" {
		return fmt.Sprintf("%s:%d", im.cfg.Suite, l.n), nil
	}
	c, ok, err := l.cell(im.cfg.ID)
	if err != nil {
		return "", err
	}
	if !ok {
		return "", fmt.Errorf("%s is missing", im.cfg.ID)
	}
	own, err := c.label()
	if err != nil {
		return "", fmt.Errorf("%s %w", im.cfg.ID, err)
	}
	id := im.cfg.Suite + ":" + own
	if !record.ValidItem(id) {
		return "", fmt.Errorf("%s %q cannot be an id: letters, digits, '.', '_', ':' and '-', with the suite at most 128", im.cfg.ID, own)
	}
	if first, ok := im.ids[id]; ok {
		return "", fmt.Errorf("%s %q is also line %d's", im.cfg.ID, own, first)
	}
	im.ids[id] = l.n
	return id, nil
}

// example is the row's canonical_example_id: its group, or the state itself, so
// that one state is one example in every suite.
func (im *importer) example(l *line, unit string, state canon.Raw) (string, error) {
	group, err := im.optional(l, im.cfg.Group)
	if err != nil {
		return "", err
	}
	if group != "" {
		return im.cfg.Source + ":" + group, nil
	}
	sum := short([]byte(unit))
	if unit == "" {
		sum = short(state)
	}
	return "state:" + hex.EncodeToString(sum[:]), nil
}

// words are the leaves that hold any.
func words(leaves []string) []string {
	return slices.DeleteFunc(slices.Clone(leaves), func(l string) bool { return l == "" })
}
