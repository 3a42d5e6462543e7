package eval

import (
	"maps"
	"slices"

	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
)

// Common is what always giving the most frequent gold answer comes to: what a
// model has to beat to be of use. Each question, by its key, has its own; most
// suites ask one.
type Common struct {
	Answer string // the key of its option; of the first question where there are several
	Right  int    // questions that it answers
	Of     int    // questions that have a target

	Questions int // distinct questions among those
	Golds     int // distinct gold answers, over all questions
	Options   int // distinct options, over all questions
}

// Accuracy is Right of Of. There must be some.
func (c Common) Accuracy() float64 { return float64(c.Right) / float64(c.Of) }

// MostCommon counts the gold answers of rows. Equally frequent ones go to the
// smaller key.
func MostCommon(rows []decision.Row) Common {
	var c Common
	golds := map[string]map[string]int{} // by question, then by option; 0 where it is no row's gold
	for _, row := range rows {
		for _, a := range row.Asked {
			if a.Target == nil {
				continue
			}
			counts := golds[a.Key]
			if counts == nil {
				counts = map[string]int{}
				golds[a.Key] = counts
			}
			for _, o := range a.Question.Options {
				counts[o.Key] += 0
			}
			counts[Gold(a)]++
			c.Of++
		}
	}
	c.Questions = len(golds)
	for i, key := range slices.Sorted(maps.Keys(golds)) {
		counts, top := golds[key], ""
		for _, option := range slices.Sorted(maps.Keys(counts)) {
			if top == "" || counts[option] > counts[top] {
				top = option
			}
			if counts[option] > 0 {
				c.Golds++
			}
			c.Options++
		}
		c.Right += counts[top]
		if i == 0 {
			c.Answer = top
		}
	}
	return c
}

// Chance is the accuracy of answering at random: the mean over questions that have
// a target of 1/options; NaN where none has.
func Chance(rows []decision.Row) float64 {
	sum, n := 0.0, 0
	for _, row := range rows {
		for _, a := range row.Asked {
			if a.Target != nil {
				sum += 1 / float64(len(a.Question.Options))
				n++
			}
		}
	}
	return sum / float64(n)
}

// Gold is the key of the option that a question's target gives most; see
// [Evaluate] on ties.
func Gold(a decision.Asked) string {
	return a.Question.Options[kai.Top(a.Question.Sorted(), a.Target)].Key
}
