package data

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hanzoai/link/trainer/decision"
)

// A survey is what a first reading of the file finds.
type survey struct {
	columns   map[string]bool
	labels    map[string]int
	decisions bool // its rows are decisions as in HIP-1333 §4
	rows      int
}

// maxColumns bounds how many members' names a survey remembers.
const maxColumns = 4096

// read surveys the file and settles which columns are read.
func (s *survey) read(t table, cfg *ImportConfig) error {
	named := cfg.Label != "" || cfg.Target != ""
	var fault *Refusal
	for l, err := range t.lines() {
		if err != nil {
			return err
		}
		if l.err != nil {
			if fault == nil {
				fault = &Refusal{l.n, l.err.Error()}
			}
			continue
		}
		if s.rows == 0 {
			if err := checkHeader(l.header); err != nil {
				return err
			}
		}
		s.rows++
		if l.header == nil || s.rows == 1 {
			for _, name := range l.names() {
				if len(s.columns) < maxColumns {
					s.columns[name] = true
				}
			}
		}
		if !named && s.rows == 1 {
			s.decisions = l.header == nil && s.columns["questions"] && s.columns["state"]
			if !s.decisions {
				cfg.Label = "label"
			}
		}
		if s.decisions {
			continue
		}
		column := cfg.Label
		if cfg.Target != "" {
			column = cfg.Target
		}
		if c, ok, err := l.cell(column); ok && err == nil && (cfg.Criteria == nil || cfg.Positive != "") {
			labelsIn(cfg, c, s.labels)
			if len(s.labels) > decision.MaxOptions {
				return fmt.Errorf("%s has more than %d different values; is it the label?", column, decision.MaxOptions)
			}
		}
	}
	if s.rows == 0 {
		if fault != nil {
			return fmt.Errorf("no row can be read; the first fault is in line %d: %s", fault.Line, fault.Reason)
		}
		return errors.New("the file has no rows")
	}
	return s.settle(cfg)
}

// checkHeader refuses a header that gives two columns one name.
func checkHeader(header []string) error {
	seen := make(map[string]int)
	for i, name := range header {
		if first, ok := seen[name]; ok && name != "" {
			return fmt.Errorf("the header has %q twice, in fields %d and %d", name, first, i+1)
		}
		seen[name] = i + 1
	}
	return nil
}

// settle checks the named columns and fills in the defaults that follow from
// those there are.
func (s *survey) settle(cfg *ImportConfig) error {
	known := slices.Sorted(maps.Keys(s.columns))
	if len(cfg.State) == 0 && !s.decisions {
		cfg.State = []string{"text"}
		if s.columns["state"] {
			cfg.State[0] = "state"
		}
	}
	named := slices.Concat(cfg.State, []string{cfg.Label, cfg.Target, cfg.ID, cfg.Group, cfg.Lang, cfg.Split})
	for _, name := range named {
		if name == "" || s.columns[name] {
			continue
		}
		err := unknown("column", name, known)
		if cfg.Format == "csv" && len(known) == 1 && strings.ContainsAny(known[0], ";\t|") {
			err = fmt.Errorf("%w (the header has no comma: name the delimiter, as --delimiter ';' or a take's delimiter)", err)
		}
		return err
	}
	if s.decisions {
		return nil
	}
	if cfg.Positive != "" && s.labels[cfg.Positive] == 0 {
		return unknown("label", cfg.Positive, slices.Sorted(maps.Keys(s.labels)))
	}
	if cfg.Key == "" {
		cfg.Key = cfg.Label + cfg.Target // one of them is empty
	}
	if err := decision.CheckKey(cfg.Key); err != nil {
		return err
	}
	if cfg.Instructions == "" {
		cfg.Instructions = map[decision.Type]string{
			decision.Choice: "which " + cfg.Key,
			decision.Score:  "how much " + cfg.Key,
			decision.Noul:   "is it " + cfg.Key,
		}[cfg.Type]
	}
	return nil
}
