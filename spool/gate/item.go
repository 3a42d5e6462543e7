package gate

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/hanzoai/link/spool/canon"
)

// An Item is one question of one row of an evaluated dataset, scored (HIP-1334
// §8.2). What the evaluator did not produce is nil and not written.
type Item struct {
	Item       string   `json:"item"`
	Question   string   `json:"question"`
	Group      string   `json:"group,omitzero"` // the bootstrap's unit; the item when empty
	Correct    *bool    `json:"correct,omitzero"`
	PGold      *float64 `json:"p_gold,omitzero"`     // the probability given to the gold answer
	Confidence *float64 `json:"confidence,omitzero"` // the probability of the answer given
	Brier      *float64 `json:"brier,omitzero"`      // Σ over options of (p − y)²
	Score      *float64 `json:"score,omitzero"`      // a judge's or person's verdict, or a measurement
	Label      *string  `json:"label,omitzero"`      // a categorical verdict
	Trace      *string  `json:"trace,omitzero"`      // the model call graded
}

// A Prediction is a model's answer to one question of one row.
type Prediction struct {
	Item          string    `json:"item"`
	Question      string    `json:"question"`
	Answer        string    `json:"answer"`        // the key of the option answered
	Probabilities []float64 `json:"probabilities"` // of the options, in the question's order
}

// A Measure is one number of an evaluation.
type Measure struct {
	Category string   `json:"category"` // All, or a slice
	Metric   string   `json:"metric"`
	Value    float64  `json:"value"`
	Lo       *float64 `json:"lo"`
	Hi       *float64 `json:"hi"`
	N        *uint64  `json:"n"`  // rows counted
	Of       *uint64  `json:"of"` // rows there are
}

func (it Item) key() key      { return key{it.Item, it.Question} }
func (p Prediction) key() key { return key{p.Item, p.Question} }

func (it Item) unit(u Unit) string {
	if u == UnitGroup && it.Group != "" {
		return it.Group
	}
	return it.Item
}

// A key is what rows pair on and are ordered by.
type key struct{ item, question string }

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.item, o.item), cmp.Compare(k.question, o.question))
}

// ItemsNDJSON returns an items artifact and its address: canonical lines, by item
// and then question. It refuses two rows for one question. items keeps its order.
func ItemsNDJSON(items []Item) ([]byte, canon.SHA256, error) { return writeRows(items) }

// PredictionsNDJSON returns a predictions artifact and its address, in the order
// of [ItemsNDJSON].
func PredictionsNDJSON(predictions []Prediction) ([]byte, canon.SHA256, error) {
	return writeRows(predictions)
}

// ParseItems reads an items artifact, and ParsePredictions a predictions artifact.
// Lines must be ordered as they are written; errors name the line.
func ParseItems(r io.Reader) ([]Item, error) { return readRows[Item](r) }

// ParsePredictions reads a predictions artifact; see [ParseItems].
func ParsePredictions(r io.Reader) ([]Prediction, error) { return readRows[Prediction](r) }

// maxLine bounds one line, in bytes: a prediction over some hundred thousand options.
const maxLine = 4 << 20

type row interface {
	Item | Prediction
	key() key
}

func writeRows[R row](rows []R) ([]byte, canon.SHA256, error) {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b R) int { return a.key().compare(b.key()) })
	var out bytes.Buffer
	for i, r := range rows {
		if i > 0 && r.key() == rows[i-1].key() {
			return nil, "", fmt.Errorf("item %s, question %s: two rows", r.key().item, r.key().question)
		}
		line, err := canon.Marshal(r)
		if err != nil {
			return nil, "", fmt.Errorf("item %s, question %s: %w", r.key().item, r.key().question, err)
		}
		out.Write(line)
		out.WriteByte('\n')
	}
	return out.Bytes(), canon.Sum(out.Bytes()), nil
}

func readRows[R row](in io.Reader) ([]R, error) {
	rows := []R{}
	for line, err := range canon.Lines(in, maxLine) {
		if err != nil {
			return nil, err
		}
		var r R
		if err := canon.Unmarshal(line.Bytes, &r); err != nil {
			return nil, fmt.Errorf("line %d: %w", line.N, err)
		}
		if n := len(rows); n > 0 && rows[n-1].key().compare(r.key()) >= 0 {
			return nil, fmt.Errorf("line %d: item %s, question %s is not after the line before it", line.N, r.key().item, r.key().question)
		}
		rows = append(rows, r)
	}
	return rows, nil
}
