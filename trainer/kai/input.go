package kai

import (
	"fmt"

	"github.com/hanzoai/link/trainer/decision"
)

// Texts interns option texts: equal texts share one index and one tokenisation.
type Texts struct {
	text  []string
	ids   [][]int32
	index map[string]int
}

// Len is how many distinct texts there are.
func (t *Texts) Len() int { return len(t.text) }

// Tokens is how many tokens text i has.
func (t *Texts) Tokens(i int) int { return len(t.ids[i]) }

// Input is one question of one row, as the model reads it.
type Input struct {
	ID      string // the row's id
	Key     string // the question's key in its row
	Type    decision.Type
	Context []int32   // token ids
	Cut     int       // how many tokens of the state did not fit
	Options []int     // indices into the Encoder's Texts, in the order of their text
	Order   []int     // Order[i] is the caller's index of Options[i]; a score's level
	Target  []float64 // by Options; nil where the row has no target
	Weight  float64   // the question's weight in the loss; Encode gives 1
	Group   int       // which questions the terms of an Objective compare; 0: with none
	Teacher *Teacher  // the answers to keep: a row of preservation, whose Target is not read; else nil
	Readout string    // the readout that answers this question, or "" for the base
}

// Encoder turns rows into inputs. One Encoder's inputs share its Texts.
type Encoder struct {
	Texts *Texts
	m     *Model
	state string  // the last state
	ids   []int32 // and its tokens: a row's questions share them
}

// Encoder returns an encoder with no texts yet.
func (m *Model) Encoder() *Encoder {
	return &Encoder{Texts: &Texts{index: make(map[string]int)}, m: m}
}

// Encode returns one input for each question of the row, in the row's order. It
// fails when the instructions alone exceed the limit.
func (e *Encoder) Encode(row decision.Row) ([]Input, error) {
	inputs := make([]Input, len(row.Asked))
	for i, asked := range row.Asked {
		in, err := e.input(row, asked)
		if err != nil {
			return nil, fmt.Errorf("question %q: %w", asked.Key, err)
		}
		inputs[i] = in
	}
	return inputs, nil
}

func (e *Encoder) input(row decision.Row, asked decision.Asked) (Input, error) {
	m, q := e.m, asked.Question
	in := Input{ID: row.ID, Key: asked.Key, Type: q.Type, Weight: 1, Order: q.Sorted(), Readout: m.readoutFor(q)}
	prompt := m.tokenizer.Encode(nil, q.Prompt())
	room := m.Config.MaxLen - 3 - len(prompt)
	if room < 0 {
		return Input{}, fmt.Errorf("the instructions are %d tokens; this model reads %d, %d of them beside the state", len(prompt), m.Config.MaxLen, m.Config.MaxLen-3)
	}
	if e.ids == nil || e.state != row.State {
		e.state, e.ids = row.State, m.tokenizer.Encode([]int32{}, row.State)
	}
	state := e.ids[:min(room, len(e.ids))]
	in.Cut = len(e.ids) - len(state)
	in.Context = make([]int32, 0, len(prompt)+len(state)+3)
	in.Context = append(in.Context, m.cls)
	in.Context = append(in.Context, prompt...)
	in.Context = append(in.Context, m.sep)
	in.Context = append(in.Context, state...)
	in.Context = append(in.Context, m.sep)
	for _, o := range in.Order {
		in.Options = append(in.Options, e.intern(q.Options[o].Text))
		if asked.Target != nil {
			in.Target = append(in.Target, asked.Target[o])
		}
	}
	return in, nil
}

// intern returns the index of an option text.
func (e *Encoder) intern(text string) int {
	t := e.Texts
	if i, ok := t.index[text]; ok {
		return i
	}
	ids := e.m.tokenizer.Encode([]int32{e.m.cls}, text)
	ids = append(ids[:min(len(ids), e.m.Config.OptionLen-1)], e.m.sep)
	i := len(t.text)
	t.text, t.ids, t.index[text] = append(t.text, text), append(t.ids, ids), i
	return i
}
