//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/hanzoai/link/sandbox"
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
	program := filepath.Join(dir, "stubborn")
	if err := build(program, module+"/stubborn", false); err != nil {
		return stopped{}, err
	}
	work := o.work
	work.program = program
	work.limits = sandbox.Limits{} // so many Go programs need more than the one
	w, release, err := o.start(ctx, work, strconv.Itoa(stubborns))
	if err != nil {
		return stopped{}, err
	}
	defer release()
	if err := ignoring(ctx, w, stubborns); err != nil {
		return stopped{}, errors.Join(err, w.Kill())
	}
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
	return stopped{Processes: stubborns, Took: ms(took), Grace: ms(10 * time.Second)}, nil
}

// ignoring waits until so many processes of a workload ignore SIGTERM, by the
// kernel's own word.
func ignoring(ctx context.Context, w *sandbox.Workload, want int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		pids, err := members(w.Group())
		if err != nil {
			return err
		}
		ignore := 0
		for _, pid := range pids {
			mask, err := strconv.ParseUint(status(pid, "SigIgn"), 16, 64)
			if err == nil && mask>>(syscall.SIGTERM-1)&1 == 1 {
				ignore++
			}
		}
		if ignore >= want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d processes ignore SIGTERM: %w", ignore, want, ctx.Err())
		case <-w.Done():
			return fmt.Errorf("the workload ended: %s", w.Exit().Stderr)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
