package eval

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/trainer/decision"
)

// askingRows are n rows of one question with as many options as texts.
func askingRows(n int, texts ...string) []decision.Row {
	rows := make([]decision.Row, n)
	for i := range rows {
		q := decision.Question{Type: decision.Choice, Instructions: "which"}
		for _, text := range texts {
			q.Options = append(q.Options, decision.Option{Key: text, Text: text})
		}
		rows[i] = decision.Row{ID: fmt.Sprint("i", i), State: fmt.Sprint("state ", i), Asked: []decision.Asked{{Key: "q", Question: q, Target: make([]float64, len(texts))}}}
	}
	return rows
}

// TestFlips: who answers by what the options are is never seen to flip, and who
// looks at their places, or moves one bit by them, always.
func TestFlips(t *testing.T) {
	const bit = 0x1p-53
	tests := []struct {
		name    string
		answer  func(texts []string) reply
		changed int
	}{
		{"by the text", func(texts []string) reply {
			p := make([]float64, len(texts))
			for i, text := range texts {
				p[i] = 1 / float64(len(text))
			}
			return reply{slices.Index(texts, slices.Min(texts)), p}
		}, 0},
		{"the first listed", func(texts []string) reply { return reply{0, make([]float64, len(texts))} }, 8},
		{"one bit of the first", func(texts []string) reply {
			p := slices.Repeat([]float64{.5}, len(texts))
			p[0] += bit
			return reply{slices.Index(texts, "a"), p}
		}, 8},
		{"the sign of a zero", func(texts []string) reply {
			p := make([]float64, len(texts))
			p[0] = math.Copysign(0, -1)
			return reply{slices.Index(texts, "a"), p}
		}, 8},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := flips(t.Context(), askingRows(20, "a", "bb", "ccc", "dddd"), 8, func() ask {
				return func(row decision.Row) ([]reply, error) {
					var texts []string
					for _, o := range row.Asked[0].Question.Options {
						texts = append(texts, o.Text)
					}
					if row.Asked[0].Target != nil {
						t.Error("the row that is asked tells its gold answer")
					}
					return []reply{tt.answer(texts)}, nil
				}
			})
			if want := (Flipped{Asked: 8, Changed: tt.changed}); err != nil || got != want {
				t.Errorf("flips = %+v, %v, want %+v", got, err, want)
			}
		})
	}
}

// TestFlipsAsks: each order is another caller's, which is asked the same rows.
// They are chosen by what they hold, so that the order of the file has no part.
func TestFlipsAsks(t *testing.T) {
	rows := askingRows(9, "a", "b", "c")
	seen := func() (ids []string, lists []string) {
		_, err := flips(t.Context(), rows, 4, func() ask {
			var mine []string
			return func(row decision.Row) ([]reply, error) {
				if mine = append(mine, row.ID); len(mine) == 4 {
					ids = append(ids, strings.Join(mine, " "))
				}
				if len(mine) == 1 {
					list := ""
					for _, o := range row.Asked[0].Question.Options {
						list += o.Key
					}
					lists = append(lists, list)
				}
				return []reply{{0, []float64{1, 0, 0}}}, nil
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return ids, lists
	}
	ids, lists := seen()
	if len(ids) != len(orders) || len(slices.Compact(slices.Clone(ids))) != 1 {
		t.Errorf("the callers were asked %q, want the same of each", ids)
	}
	if want := []string{"abc", "cba", "bca"}; !slices.Equal(lists[:3], want) {
		t.Errorf("options are listed %q first, want %q", lists[:3], want)
	}
	slices.Reverse(rows)
	if again, _ := seen(); again[0] != ids[0] {
		t.Errorf("of the file read backwards %q was asked, was %q", again[0], ids[0])
	}
	if s := strings.Fields(ids[0]); slices.IsSorted(s) {
		t.Errorf("the rows asked are the first of the file: %q", s)
	}
}

// TestFlipsEnds: no rows, more than there are, an error, and a cancelled context.
func TestFlipsEnds(t *testing.T) {
	one := func() ask {
		return func(decision.Row) ([]reply, error) { return []reply{{0, []float64{.5, .5}}}, nil }
	}
	for n, want := range map[int]int{-1: 0, 0: 0, 2: 2, 3: 3, 100: 3} {
		if got, err := flips(t.Context(), askingRows(3, "a", "b"), n, one); err != nil || got.Asked != want {
			t.Errorf("of 3 rows %d: asked %d, %v, want %d", n, got.Asked, err, want)
		}
	}
	broken := errors.New("broken")
	_, err := flips(t.Context(), askingRows(1, "a", "b"), 1, func() ask {
		return func(decision.Row) ([]reply, error) { return nil, broken }
	})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "i0") {
		t.Errorf("flips = %v, want the error and its row", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := flips(ctx, askingRows(1, "a", "b"), 1, one); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestOrders: every order lists each option once, whatever their number.
func TestOrders(t *testing.T) {
	for n := 1; n <= 9; n++ {
		options := make([]decision.Option, n)
		for i := range options {
			options[i].Text = fmt.Sprint("option ", i)
		}
		for i, order := range orders {
			places := order(options)
			if slices.Sort(places); !slices.Equal(places, inOrder(options)) {
				t.Errorf("order %d of %d options has the places %v", i, n, places)
			}
		}
	}
}
