//go:build !linux

package policycmd

import (
	"context"
	"fmt"
	"runtime"

	"github.com/hanzoai/link/cmd/internal/term"
)

func none() error {
	return fmt.Errorf("this is %s, where linking is presence only: no work runs here, so there is no policy", runtime.GOOS)
}

func (host) check(term.IO, bool) error                                  { return none() }
func (host) show(context.Context, term.IO, bool) error                  { return none() }
func (host) allow(_ context.Context, _ term.IO, _ string, _ caps) error { return none() }
func (host) deny(context.Context, term.IO, string) error                { return none() }
