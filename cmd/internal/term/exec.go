package term

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Exec is main: it runs p on the process's arguments and streams and exits.
// SIGINT and SIGTERM cancel the context; a second one ends the process at once.
func Exec(p Program) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	status := p.Main(ctx, os.Args[1:], IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	stop()
	os.Exit(int(status))
}
