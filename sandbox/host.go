package sandbox

import (
	"context"
	"log/slog"
	"os"
)

// Config is where workloads are made.
type Config struct {
	Group string       // a control group's directory, root's own; each workload gets a child
	Run   string       // a directory of root's; each workload gets its run directory in it
	Stage *os.File     // the hanzo-stage binary, open for reading
	User  uint32       // uid and gid of every workload, never 0
	Log   *slog.Logger // nil discards
}

// Host makes workloads. It may be used by several goroutines.
type Host struct{ cfg Config }

func New(cfg Config) (*Host, error)                                     { return &Host{cfg}, nil }
func (h *Host) Sweep() error                                            { return nil }
func (h *Host) Park(ctx context.Context) error                          { return nil }
func (h *Host) Close() error                                            { return nil }
func (h *Host) Start(ctx context.Context, spec Spec) (*Workload, error) { panic("soon") }

// Workload is one running Spec.
type Workload struct{}

func (w *Workload) Stop(ctx context.Context) error               { panic("soon") }
func (w *Workload) Kill() error                                  { panic("soon") }
func (w *Workload) Done() <-chan struct{}                        { panic("soon") }
func (w *Workload) Exit() Exit                                   { panic("soon") }
func (w *Workload) Group() string                                { panic("soon") }
func (w *Workload) Run() string                                  { panic("soon") }
func (w *Workload) PidFD() *os.File                              { panic("soon") }
func (w *Workload) Socket(ctx context.Context) (*os.File, error) { panic("soon") }
