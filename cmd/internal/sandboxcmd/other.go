//go:build !linux

package sandboxcmd

import (
	"context"
	"fmt"
	"runtime"

	"github.com/hanzoai/link/cmd/internal/term"
)

// Inside is Linux's alone.
func Inside([]string) (status int, inside bool) { return 0, false }

func check(context.Context, term.IO, bool) error {
	return fmt.Errorf("this is %s: the sandbox is made of Linux's control groups, namespaces and filters, and on other systems no work of others is run, so there is nothing to check", runtime.GOOS)
}
