//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hanzoai/link/sandbox/attempt"
)

const stubborns = 200

// stopped is how long stopping a workload took that ignores SIGTERM.
type stopped struct {
	Processes int     `json:"processes"`
	Took      float64 `json:"ms"` // from Stop until the group and the run directory were gone
	Grace     float64 `json:"grace_ms"`
}

// stop starts processes that all ignore SIGTERM and stops them.
func (o *ours) stop(ctx context.Context, dir string) (stopped, error) {
	work := o.work
	work.program = filepath.Join(dir, "hanzo")
	if err := build(work.program, "github.com/hanzoai/link/cmd/hanzo", false); err != nil {
		return stopped{}, err
	}
	spec, release, err := work.spec("stop", attempt.Argument, "ignore-term", strconv.Itoa(stubborns))
	if err != nil {
		return stopped{}, err
	}
	defer release()
	spec.Socket, spec.Grace = attempt.Ready, 10*time.Second
	w, err := o.host.Start(ctx, spec)
	if err != nil {
		return stopped{}, err
	}
	defer w.Kill()
	ready, err := w.Socket(ctx)
	if err != nil {
		return stopped{}, err
	}
	ready.Close()
	asked := monotonic()
	if err := w.Stop(ctx); err != nil {
		return stopped{}, err
	}
	took := monotonic() - asked
	for _, path := range []string{w.Group(), w.Run()} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			return stopped{}, fmt.Errorf("%s is still there after Stop: %v", path, err)
		}
	}
	return stopped{Processes: stubborns, Took: ms(took), Grace: ms(spec.Grace)}, nil
}
