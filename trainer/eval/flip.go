package eval

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
)

// Flipped counts questions that were asked again with their options in other
// orders.
type Flipped struct {
	Asked   int `json:"asked"`
	Changed int `json:"changed"` // whose answer or any bit of whose probabilities was another in some order
}

// Flips asks the first n of rows, in the order of the hash of what they hold, as
// they are and with their options reversed, rotated by one and in two fixed
// shuffles. A Kai model's answers do not depend on that order, nor a readout's:
// anything but 0 changed is a fault of the program, not of the model.
//
// Each order is asked as if by another caller: nothing that the model computed for
// one is there for the next. When ctx is cancelled it returns ctx's error.
func Flips(ctx context.Context, m *kai.Model, rows []decision.Row, n int) (Flipped, error) {
	return flips(ctx, rows, n, func() ask {
		p, enc := m.NewPredictor(), m.Encoder()
		return func(row decision.Row) ([]reply, error) {
			in, err := enc.Encode(row)
			if err != nil {
				return nil, err
			}
			list := make([]reply, len(in))
			for i, pr := range p.Predict(enc.Texts, in) {
				list[i] = reply{kai.Top(in[i].Order, pr.P), pr.P}
			}
			return list, nil
		}
	})
}

// A reply is the answer to one question: the place of an option and the
// probabilities of all, in the question's order.
type reply struct {
	option int
	p      []float64
}

// ask answers a row's questions.
type ask func(decision.Row) ([]reply, error)

// flips is [Flips] of whatever answers. It asks each order of a new caller.
func flips(ctx context.Context, rows []decision.Row, n int, caller func() ask) (Flipped, error) {
	if n = min(n, len(rows)); n < 1 {
		return Flipped{}, ctx.Err()
	}
	rows = byContent(rows)[:n]
	var first []reply         // to the rows as they are, by question
	changed := map[int]bool{} // by question
	for pass, order := range orders {
		ask, question := caller(), 0
		for _, row := range rows {
			if err := ctx.Err(); err != nil {
				return Flipped{}, err
			}
			permuted, places := reorder(row, order)
			replies, err := ask(permuted)
			if err != nil {
				return Flipped{}, fmt.Errorf("eval: item %s: %w", row.ID, err)
			}
			for j, r := range replies {
				got := reply{places[j][r.option], make([]float64, len(r.p))}
				for i, place := range places[j] {
					got.p[place] = r.p[i]
				}
				if pass == 0 {
					first = append(first, got)
				} else if was := first[question]; got.option != was.option || !slices.EqualFunc(got.p, was.p, sameBits) {
					changed[question] = true
				}
				question++
			}
		}
	}
	return Flipped{Asked: len(first), Changed: len(changed)}, nil
}

func sameBits(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }

// byContent is rows in the order of the SHA-256 of their states and questions,
// which says nothing about their answers and does not depend on how a file lists
// them.
func byContent(rows []decision.Row) []decision.Row {
	type hashed struct {
		sum [sha256.Size]byte
		row decision.Row
	}
	list := make([]hashed, len(rows))
	for i, row := range rows {
		h := sha256.New()
		h.Write([]byte(row.State))
		for _, a := range row.Asked {
			h.Write([]byte("\x00" + a.Key + "\x00" + string(a.Question.Hash())))
		}
		list[i].row = row
		h.Sum(list[i].sum[:0])
	}
	slices.SortStableFunc(list, func(a, b hashed) int { return bytes.Compare(a.sum[:], b.sum[:]) })
	sorted := make([]decision.Row, len(list))
	for i, h := range list {
		sorted[i] = h.row
	}
	return sorted
}

// orders are the orders that [Flips] asks in, the first as they are. Each returns
// the places, in the question's own list, of the options as they are listed now.
var orders = []func([]decision.Option) []int{
	inOrder,
	func(o []decision.Option) []int {
		places := inOrder(o)
		slices.Reverse(places)
		return places
	},
	func(o []decision.Option) []int {
		places := inOrder(o)
		return append(places[1:], places[0])
	},
	shuffled("1"),
	shuffled("2"),
}

func inOrder(o []decision.Option) []int {
	places := make([]int, len(o))
	for i := range places {
		places[i] = i
	}
	return places
}

// shuffled orders options by a hash of their texts, another for each salt.
func shuffled(salt string) func([]decision.Option) []int {
	return func(o []decision.Option) []int {
		keys := make([]string, len(o))
		for i := range o {
			sum := sha256.Sum256([]byte(salt + o[i].Text))
			keys[i] = string(sum[:])
		}
		places := inOrder(o)
		slices.SortFunc(places, func(a, b int) int { return strings.Compare(keys[a], keys[b]) })
		return places
	}
}

// reorder lists the options of a row's questions in another order and returns
// their places by question. The row it makes has no targets.
func reorder(row decision.Row, order func([]decision.Option) []int) (decision.Row, [][]int) {
	places := make([][]int, len(row.Asked))
	asked := make([]decision.Asked, len(row.Asked))
	for j, a := range row.Asked {
		places[j] = order(a.Question.Options)
		q := a.Question
		q.Options = make([]decision.Option, len(places[j]))
		for i, place := range places[j] {
			q.Options[i] = a.Question.Options[place]
		}
		asked[j] = decision.Asked{Key: a.Key, Question: q}
	}
	row.Asked = asked
	return row, places
}
