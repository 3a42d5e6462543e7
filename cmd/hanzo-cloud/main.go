// Command hanzo-cloud is the embedded control plane: one process, one folder,
// nothing else to install.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/hanzoai/link/cmd/internal/term"
)

// program is the table of commands, in help's order.
var program = term.Program{
	Name:     "hanzo-cloud",
	About:    "the control plane of training runs, on this machine",
	Commands: []term.Command{serveCommand, tokenCommand, demoCommand},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(int(program.Main(ctx, os.Args[1:], term.IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})))
}
