package kai

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/decision"
)

// Size is how many values the model's parameters have, readouts left out.
func (m *Model) Size() int {
	n := 0
	for _, p := range m.Params() {
		n += p.size()
	}
	return n
}

// Calibration is the id of the calibration that chose the temperatures, "" for a
// model whose temperatures nobody fitted.
func (m *Model) Calibration() string {
	var c struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(m.Config.Provenance["calibration"], &c) != nil {
		return ""
	}
	return c.ID
}

// The member of the provenance that holds the questions a model was taught, by
// key, as POST /v1/decisions writes them.
const questions = "questions"

// Taught returns the questions that the model was taught, by key: its readouts'
// where it has some, else those its provenance names, which may be none.
func (m *Model) Taught() ([]decision.Asked, error) {
	if len(m.readouts) > 0 {
		return m.readoutsAsked(), nil
	}
	return m.noted()
}

// Questions returns every question that the model was taught: its readouts', then
// those that its provenance names beside them. A key and a question occur once.
func (m *Model) Questions() ([]decision.Asked, error) {
	noted, err := m.noted()
	if err != nil {
		return nil, err
	}
	all := m.readoutsAsked()
	keys, hashes := make(map[string]bool), make(map[canon.Hash]bool)
	for _, a := range all {
		keys[a.Key], hashes[a.Question.Hash()] = true, true
	}
	for _, a := range noted {
		if !keys[a.Key] && !hashes[a.Question.Hash()] {
			all = append(all, a)
		}
	}
	return all, nil
}

func (m *Model) readoutsAsked() []decision.Asked {
	var asked []decision.Asked
	for _, r := range m.Readouts() {
		asked = append(asked, decision.Asked{Key: r.Name, Question: r.Question})
	}
	return asked
}

// noted are the questions that the provenance names.
func (m *Model) noted() ([]decision.Asked, error) {
	var raw map[string]json.RawMessage
	if src := m.Config.Provenance[questions]; src != nil {
		if err := json.Unmarshal(src, &raw); err != nil {
			return nil, fmt.Errorf("kai.json: provenance: %s: %w", questions, err)
		}
	}
	var taught []decision.Asked
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		q, err := decision.ParseQuestion(canon.Raw(raw[key]))
		if err != nil {
			return nil, fmt.Errorf("kai.json: provenance: %s: %s: %w", questions, key, err)
		}
		taught = append(taught, decision.Asked{Key: key, Question: q})
	}
	return taught, nil
}

// Teach notes in the provenance that the model is taught these questions, beside
// those it was taught before.
func (m *Model) Teach(asked []decision.Asked) error {
	known := make(map[string]json.RawMessage)
	if src := m.Config.Provenance[questions]; src != nil {
		if err := json.Unmarshal(src, &known); err != nil {
			return fmt.Errorf("kai.json: provenance: %s: %w", questions, err)
		}
	}
	for _, a := range asked {
		raw, _ := a.Question.JSON()
		known[a.Key] = json.RawMessage(raw)
	}
	b, err := canon.Marshal(known)
	if err != nil {
		return err
	}
	if m.Config.Provenance == nil {
		m.Config.Provenance = make(map[string]json.RawMessage)
	}
	m.Config.Provenance[questions] = b
	return nil
}
