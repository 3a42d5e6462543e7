package data

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/decision"
)

// An asker turns a row's label or target into the question it answers and the
// distribution that is right.
type asker struct {
	cfg       *ImportConfig
	question  decision.Question
	option    map[string]int // a label, trimmed, to its option
	questions canon.Raw      // canonical {key: question}
	oneHot    []canon.Raw    // canonical gold, by option; nil until used
}

// newAsker makes the question that every row answers. labels are those that
// occur in the file, with their rows; they are the criteria where none are given.
func newAsker(cfg *ImportConfig, labels map[string]int) (*asker, error) {
	a := &asker{cfg: cfg, option: make(map[string]int)}
	criteria, err := a.criteria(labels)
	if err != nil {
		return nil, err
	}
	if a.question, err = decision.New(cfg.Type, cfg.Instructions, criteria); err != nil {
		return nil, err
	}
	for i, c := range criteria {
		if cfg.Type != decision.Noul {
			a.option[strings.TrimSpace(c.Label)] = i
		}
	}
	if cfg.Type == decision.Noul && cfg.Positive == "" {
		for i, words := range [][]string{{"false", "no", "0"}, {"true", "yes", "1"}} {
			for _, w := range words {
				a.option[w] = i
			}
		}
	}
	a.questions, _, err = decision.Questions(a.asked(nil))
	a.oneHot = make([]canon.Raw, len(a.question.Options))
	return a, err
}

// criteria are the given ones, or the labels that occur.
func (a *asker) criteria(labels map[string]int) ([]decision.Criterion, error) {
	cfg := a.cfg
	if cfg.Criteria != nil {
		return decision.ParseCriteria(cfg.Type, cfg.Criteria)
	}
	names := slices.Sorted(maps.Keys(labels))
	switch cfg.Type {
	case decision.Noul:
		return nil, nil
	case decision.Score:
		var err error
		if names, err = numeric(names); err != nil {
			return nil, err
		}
	}
	switch {
	case len(names) == 0 && cfg.Target != "":
		return nil, fmt.Errorf("%s names no labels; list its options as criteria, in its order", cfg.Target)
	case len(names) == 0:
		return nil, fmt.Errorf("no row has a label in %s", cfg.Label)
	case len(names) == 1:
		return nil, fmt.Errorf("every labelled row (%d) says %q; a question needs rows of two answers or more", labels[names[0]], names[0])
	}
	list := make([]decision.Criterion, len(names))
	for i, n := range names {
		list[i].Label = n
	}
	return list, nil
}

// numeric sorts levels that are numbers by their value.
func numeric(names []string) ([]string, error) {
	value := make(map[string]float64, len(names))
	for _, n := range names {
		f, err := strconv.ParseFloat(n, 64)
		if err != nil || math.IsNaN(f) {
			return nil, fmt.Errorf("a score's levels have an order, which %q does not say; list them as criteria, lowest first", n)
		}
		value[n] = f
	}
	slices.SortStableFunc(names, func(x, y string) int {
		switch {
		case value[x] < value[y]:
			return -1
		case value[x] > value[y]:
			return 1
		}
		return 0
	})
	for i := 1; i < len(names); i++ {
		if value[names[i-1]] == value[names[i]] {
			return nil, fmt.Errorf("levels %q and %q are one number; write it one way, or list the levels as criteria", names[i-1], names[i])
		}
	}
	return names, nil
}

func (a *asker) asked(target []float64) []decision.Asked {
	return []decision.Asked{{Key: a.cfg.Key, Question: a.question, Target: target}}
}

// answer reads a row's label or target column: the distribution, and the same as
// canonical gold.
func (a *asker) answer(c cell) (target []float64, gold canon.Raw, err error) {
	if a.cfg.Target != "" {
		if target, err = a.distribution(c); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", a.cfg.Target, err)
		}
		_, gold, err = decision.Questions(a.asked(target))
		return target, gold, err
	}
	label, err := c.label()
	if err != nil {
		return nil, nil, fmt.Errorf("%s %w", a.cfg.Label, err)
	}
	i, err := a.find(label)
	if err != nil {
		return nil, nil, err
	}
	target = make([]float64, len(a.question.Options))
	target[i] = 1
	if a.oneHot[i] == nil {
		if _, a.oneHot[i], err = decision.Questions(a.asked(target)); err != nil {
			return nil, nil, err
		}
	}
	return target, a.oneHot[i], nil
}

// find is the option that a label means. A level may also be given by its index,
// unless a level is called so.
func (a *asker) find(label string) (int, error) {
	if a.cfg.Type == decision.Noul {
		if a.cfg.Positive != "" {
			if label == a.cfg.Positive {
				return 1, nil
			}
			return 0, nil
		}
		label = strings.ToLower(label)
	}
	if i, ok := a.option[label]; ok {
		return i, nil
	}
	if a.cfg.Type == decision.Score {
		if i, err := strconv.Atoi(label); err == nil && i >= 0 && i < len(a.question.Options) {
			return i, nil
		}
	}
	return 0, unknown("label", label, slices.Sorted(maps.Keys(a.option)))
}

// distribution reads a target: a list in the order of the options, an object by
// label, or for a noul the probability of true.
func (a *asker) distribution(c cell) ([]float64, error) {
	raw := c.json
	if raw == nil {
		raw = canon.Raw(strings.TrimSpace(c.text))
	}
	n := len(a.question.Options)
	target := make([]float64, n)
	switch kind := raw.Kind(); {
	case kind == '[':
		if err := canon.Unmarshal(raw, &target); err != nil {
			return nil, err
		}
	case kind == '{':
		weights := make(map[string]float64)
		if err := canon.Unmarshal(raw, &weights); err != nil {
			return nil, err
		}
		for _, label := range slices.Sorted(maps.Keys(weights)) {
			i, err := a.find(strings.TrimSpace(label))
			if err != nil {
				return nil, err
			}
			target[i] += weights[label]
		}
	case kind == '0' && a.cfg.Type == decision.Noul:
		var p float64
		if err := canon.Unmarshal(raw, &p); err != nil {
			return nil, err
		}
		target[0], target[1] = 1-p, p
	default:
		return nil, errors.New("is not a list of numbers or an object from label to number")
	}
	if a.cfg.Counts {
		sum := 0.0
		for _, w := range target {
			sum += w
		}
		if !(sum > 0) {
			return nil, fmt.Errorf("counts sum to %v", sum)
		}
		for i := range target {
			target[i] /= sum
		}
	}
	if err := decision.CheckTarget(target, n); err != nil {
		return nil, err
	}
	return target, nil
}

// labelsIn adds a row's labels to those that occur in a file.
func labelsIn(cfg *ImportConfig, c cell, labels map[string]int) {
	if cfg.Target == "" {
		if l, err := c.label(); err == nil {
			labels[l]++
		}
		return
	}
	raw := c.json
	if raw == nil {
		raw = canon.Raw(strings.TrimSpace(c.text))
	}
	if raw.Kind() != '{' {
		return
	}
	members, err := canon.Members(raw)
	if err != nil {
		return
	}
	for _, m := range members {
		if l := strings.TrimSpace(m.Name); l != "" {
			labels[l]++
		}
	}
}
