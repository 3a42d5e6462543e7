//go:build linux

package launcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"os/user"
	"strconv"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hanzoai/link/policy"
)

// Where hanzo link installs things. No flag and no variable moves them: who could
// set one could choose what root runs.
const (
	Lib   = "/usr/local/lib/hanzo/link"
	State = "/var/lib/hanzo/link"
	Group = "/sys/fs/cgroup/system.slice/hanzo-link.service"
	Agent = "hanzo-link"
	Work  = "hanzo-work"
)

// Main is hanzo-launcher: it returns the process's exit status.
func Main() int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := serve(ctx, log); err != nil {
		log.Error(err.Error())
		return 1
	}
	return 0
}

func serve(ctx context.Context, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("hanzo-launcher starts work as another user, and so is root's to run: systemctl start hanzo-link-launcher.socket")
	}
	listener, err := activated()
	if err != nil {
		return err
	}
	cfg := Config{
		Listener: listener,
		Group:    Group,
		Run:      State + "/run",
		Spool:    State + "/spool",
		Store:    State + "/store",
		Lib:      Lib,
		Policy:   policy.Path,
		Log:      log,
		Notify: func(state string) {
			if _, err := daemon.SdNotify(false, state); err != nil {
				log.Warn("the service manager could not be told", "state", state, "err", err)
			}
		},
	}
	if cfg.Watchdog, err = daemon.SdWatchdogEnabled(false); err != nil {
		return err
	}
	if cfg.Agent, err = lookup(Agent); err != nil {
		return err
	}
	if cfg.Work, err = lookup(Work); err != nil {
		return err
	}
	return Run(ctx, cfg)
}

// activated is the socket that systemd made and listens on, as sd_listen_fds(3)
// says: descriptor 3, where LISTEN_PID is this process and LISTEN_FDS is 1. The
// package activation of go-systemd does the same and links crypto/tls to do it,
// which is a tenth of this binary.
func activated() (*net.UnixListener, error) {
	const first = 3
	pid, n := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	if pid != strconv.Itoa(os.Getpid()) || n != "1" {
		return nil, errors.New("hanzo-launcher takes its one socket from the service manager: systemctl start hanzo-link-launcher.socket")
	}
	f := os.NewFile(first, "socket")
	defer f.Close() // FileListener's is a copy, closed on exec
	listener, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("the socket from the service manager: %w", err)
	}
	l, ok := listener.(*net.UnixListener)
	if !ok {
		listener.Close()
		return nil, fmt.Errorf("the socket from the service manager is not a Unix socket: %s", listener.Addr())
	}
	return l, nil
}

// lookup finds a user in /etc/passwd.
func lookup(name string) (User, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return User{}, fmt.Errorf("user %s: %w: sudo hanzo link makes it", name, err)
	}
	uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(uerr, gerr); err != nil {
		return User{}, fmt.Errorf("user %s: %w", name, err)
	}
	return User{UID: uint32(uid), GID: uint32(gid)}, nil
}
