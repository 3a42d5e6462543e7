//go:build !linux && !darwin

package facts

import (
	"context"
	"os"

	"github.com/hanzoai/link/control/api"
)

// parts is what Go's runtime knows.
func parts(_, _, _ string) []part {
	return []part{{"host", func(context.Context) func(*api.WorkerFacts) {
		hostname, _ := os.Hostname()
		return func(w *api.WorkerFacts) { w.Hostname = clean(hostname) }
	}}}
}

func uname() string { return "" }
