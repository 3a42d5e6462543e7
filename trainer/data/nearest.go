package data

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hanzoai/link/trainer/nearest"
)

// unknown says that a name is not among those known, and which it may have
// meant.
func unknown(what, name string, known []string) error {
	if near := nearest.Name(name, known); near != "" {
		return fmt.Errorf("there is no %s %q; did you mean %q?", what, name, near)
	}
	return fmt.Errorf("there is no %s %q; there are %s", what, name, listed(known))
}

// listed names up to twenty things for a person.
func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	names = slices.Clone(names)
	if len(names) > 20 {
		names = append(names[:20], fmt.Sprintf("and %d more", len(names)-20))
	}
	return strings.Join(names, ", ")
}
