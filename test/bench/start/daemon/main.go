//go:build linux

// Command daemon is the launcher in a process of its own, as hanzo-launcher is,
// but with the places and the users that the benchmark made instead of those of an
// installed machine, and with as many starts as it is asked for. The listening
// socket is descriptor 3.
//
//	daemon FOLDER GROUP AGENT WORKER [CONTROLLER…]
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/hanzoai/link/launcher"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "daemon:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 4 {
		return errors.New("usage: daemon FOLDER GROUP AGENT WORKER [CONTROLLER…]")
	}
	dir := args[0]
	listener, err := net.FileListener(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	socket, ok := listener.(*net.UnixListener)
	if !ok {
		return errors.New("descriptor 3 is not a Unix socket")
	}
	agent, err := user(args[2])
	if err != nil {
		return err
	}
	work, err := user(args[3])
	if err != nil {
		return err
	}
	return launcher.Run(ctx, launcher.Config{
		Listener: socket, Agent: agent, Work: work, Group: args[1],
		Run: filepath.Join(dir, "run"), Spool: filepath.Join(dir, "spool"), Store: filepath.Join(dir, "store"),
		Lib: filepath.Join(dir, "lib"), Policy: filepath.Join(dir, "policy.json"),
		Controllers: append([]string{}, args[4:]...), // never nil: that would ask for all three
		Starts:      launcher.Rate{Burst: 1000, Every: time.Millisecond},
		Log:         slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
}

// user is one whose group has the same number.
func user(number string) (launcher.User, error) {
	n, err := strconv.ParseUint(number, 10, 32)
	return launcher.User{UID: uint32(n), GID: uint32(n)}, err
}
