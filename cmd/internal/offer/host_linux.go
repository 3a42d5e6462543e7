package offer

import (
	"context"
	"errors"
)

// Host judges every kind, in the order of [Kinds]. It takes tens of milliseconds, for
// it builds a sandbox. Who is not root is told what can be known without.
func Host(ctx context.Context) ([]Verdict, error) { return nil, errors.New("unfinished") }
