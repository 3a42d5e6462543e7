package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hanzoai/link/agent"
	"github.com/hanzoai/link/agent/facts"
	"github.com/hanzoai/link/control/api"
)

// Where hanzo link installs things. No flag and no variable moves them, as the
// launcher's.
const (
	lib    = "/usr/local/lib/hanzo/link"
	state  = "/var/lib/hanzo/link"
	status = "/run/hanzo-link/agent/status.json"
	socket = "/run/hanzo-link/launcher.sock"
)

// run returns the process's exit status: 0 also when the node was removed, for there
// is nothing to be started again then.
func run(args []string) int {
	flags := flag.NewFlagSet("hanzo-link", flag.ContinueOnError)
	presence := flags.Bool("presence", false, "only say that this machine is there: it has no launcher")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if flags.NArg() > 0 {
		log.Error("hanzo-link takes no arguments")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cfg, err := config(*presence, log)
	if err == nil {
		err = agent.Run(ctx, cfg)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, agent.ErrUnlinked):
		log.Warn(err.Error())
		return 0
	}
	log.Error(err.Error())
	return 1
}

func config(presence bool, log *slog.Logger) (agent.Config, error) {
	if os.Geteuid() == 0 {
		return agent.Config{}, errors.New("hanzo-link needs no privilege and takes none: systemctl start hanzo-link starts it as its own user")
	}
	cfg := agent.Config{
		Log: log,
		Notify: func(state string) {
			if _, err := daemon.SdNotify(false, state); err != nil {
				log.Warn("the service manager could not be told", "state", state, "err", err)
			}
		},
	}
	var err error
	if cfg.Watchdog, err = daemon.SdWatchdogEnabled(false); err != nil {
		return agent.Config{}, err
	}
	if presence {
		home, err := os.UserHomeDir()
		if err != nil {
			return agent.Config{}, fmt.Errorf("where this machine's link lies: %w: set HOME", err)
		}
		cfg.Dir = filepath.Join(home, ".hanzo", "link")
		cfg.Store = cfg.Dir
		cfg.Status = filepath.Join(cfg.Dir, "status.json")
	} else if err := system(&cfg); err != nil {
		return agent.Config{}, err
	}
	cfg.Facts = func(ctx context.Context) (api.WorkerFacts, error) {
		return facts.Read(ctx, "/", filepath.Join(lib, "hanzo-gpu"), cfg.Store)
	}
	return cfg, nil
}
