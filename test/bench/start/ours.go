//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hanzoai/link/sandbox"
)

// ours is our sandbox as the launcher would have it.
type ours struct {
	host   *sandbox.Host
	config sandbox.Config
	work   workload
	starts int
}

// newOurs builds the stage and a host in dir.
func newOurs(dir, group string, w workload) (*ours, error) {
	binary := filepath.Join(dir, "hanzo-stage")
	if err := build(binary, "github.com/hanzoai/link/cmd/hanzo-stage", false); err != nil {
		return nil, err
	}
	stage, err := os.Open(binary)
	if err != nil {
		return nil, err
	}
	o := &ours{work: w, config: sandbox.Config{
		Group: filepath.Join(group, "hanzo"), Run: filepath.Join(dir, "run"), Stage: stage, User: worker,
	}}
	if err := errors.Join(os.Mkdir(o.config.Group, 0o755), os.Mkdir(o.config.Run, 0o711)); err != nil {
		return nil, err
	}
	if err := enable(o.config.Group, w.controllers()); err != nil {
		return nil, err
	}
	o.host, err = sandbox.New(o.config)
	return o, err
}

func (o *ours) close() error { return errors.Join(o.host.Close(), o.config.Stage.Close()) }

// contenders are a start with a stage parked ahead of the request, as the
// launcher keeps one, and a start that has to make its stage.
func (o *ours) contenders(ctx context.Context) []contender {
	const note = "seccomp filter, Landlock, control group with a device program"
	start := func() (time.Duration, error) { return o.time(ctx) }
	park := func() error { return o.host.Park(ctx) }
	return []contender{
		{name: "hanzo, parked", build: "sandbox.Host.Start", note: note + "; its stage waited", ready: park, start: start},
		{name: "hanzo", build: "sandbox.Host.Start", note: note, start: start},
	}
}

// time is one start for the race. It opens the workload's files, as a launcher does
// on each request, and waits until all of the workload is gone.
func (o *ours) time(ctx context.Context) (time.Duration, error) {
	asked := monotonic()
	o.starts++
	spec, release, err := o.work.spec(fmt.Sprintf("bench-%d", o.starts))
	if err != nil {
		return 0, err
	}
	defer release()
	w, err := o.host.Start(ctx, spec)
	if err != nil {
		return 0, err
	}
	select {
	case <-w.Done():
	case <-ctx.Done():
		return 0, errors.Join(ctx.Err(), w.Kill())
	}
	exit := w.Exit()
	if exit.Cause != sandbox.Exited || exit.Code != 0 {
		return 0, fmt.Errorf("the workload ended with %d, %s: %s %s", exit.Code, exit.Cause, exit.Reason, last(string(exit.Stderr)))
	}
	main, err := printed(exit.Stdout)
	return main - asked, err
}
