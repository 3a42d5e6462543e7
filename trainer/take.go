package trainer

import (
	"errors"
	"fmt"
)

// Take is one suite's part of a stage: where its rows are, how a file of them
// is read, and how many are trained on.
type Take struct {
	Suite string `json:"suite"`

	// A data file to import, with the columns that hold what a row needs; File
	// is relative to the stage file. "" takes the sealed or open datasets of
	// this suite that the build already finds.
	File         string            `json:"file"`
	State        []string          `json:"state"`
	Label        string            `json:"label"`
	Target       string            `json:"target"`
	Key          string            `json:"key"`
	Type         string            `json:"type"`
	Instructions string            `json:"instructions"`
	Criteria     map[string]string `json:"criteria"`
	Group        string            `json:"group"`
	Lang         string            `json:"lang"`
	Split        string            `json:"split"`
	License      string            `json:"license"`
	Origin       string            `json:"origin"`

	Rows         *int `json:"rows"`  // rows trained on; null: all; 0: none, the suite is only evaluated
	Times        int  `json:"times"` // how often each is read in an epoch
	BalanceClass bool `json:"balance_class"`
	BalanceLang  bool `json:"balance_lang"`
}

func (t Take) check() error {
	if !stageName.MatchString(t.Suite) {
		return fmt.Errorf("suite: %q is not a name: lower-case letters, digits, '.', '_' and '-', at most 64", t.Suite)
	}
	if t.Rows != nil && *t.Rows < 0 {
		return fmt.Errorf("rows: %d is negative: leave it out for all rows", *t.Rows)
	}
	if t.Times < 1 || t.Times > 1000 {
		return fmt.Errorf("times: %d is outside [1, 1000]", t.Times)
	}
	if t.Label != "" && t.Target != "" {
		return errors.New("label: and target are both named: a row has one or the other")
	}
	return nil
}
