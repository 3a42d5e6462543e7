package kai

import "github.com/hanzoai/link/trainer/decision"

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
	Readout string    // the readout that answers this question, or "" for the base
}

// Encoder turns rows into inputs. One Encoder's inputs share its Texts.
type Encoder struct {
	Texts *Texts
	m     *Model
}

// Encoder returns an encoder with no texts yet.
func (m *Model) Encoder() *Encoder { panic("kai: unwritten") }

// Encode returns one input for each question of the row, in the row's order. It
// fails when the instructions alone exceed the limit.
func (e *Encoder) Encode(row decision.Row) ([]Input, error) { panic("kai: unwritten") }
