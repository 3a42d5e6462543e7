//go:build !linux

package offer

import (
	"context"
	"fmt"
	"runtime"
)

// Host judges every kind: none is offered, for the sandbox is made of Linux.
func Host(context.Context) ([]Verdict, error) {
	var all []Verdict
	for _, kind := range Kinds {
		all = append(all, Verdict{kind, false, fmt.Sprintf("this is %s, and the sandbox is made of Linux's control groups and namespaces: linking is presence only", runtime.GOOS)})
	}
	return all, nil
}

// Unfit says why this host can be linked for presence only.
func Unfit() string { return "it is " + runtime.GOOS + ", and the sandbox is made of Linux" }
