//go:build !linux

package linkcmd

import (
	"context"
	"runtime"
)

// readPolicy is nil: no work runs here, so there is nothing to admit.
func readPolicy() *admits { return nil }

// examineHost says that this one runs no work.
func examineHost(context.Context, patient, standing) []finding {
	return []finding{note("sandbox", "this is %s, and the sandbox is made of Linux: this machine can be linked for presence only", runtime.GOOS)}
}

// onlyPresence is so on every system but Linux.
func onlyPresence() bool { return true }
