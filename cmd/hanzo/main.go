// Command hanzo is what the owner of a machine types, and who gives it work; hanzo
// help says more.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"

	"github.com/hanzoai/link/agent/facts"
	"github.com/hanzoai/link/cmd/internal/linkcmd"
	"github.com/hanzoai/link/cmd/internal/logincmd"
	"github.com/hanzoai/link/cmd/internal/policycmd"
	"github.com/hanzoai/link/cmd/internal/runcmd"
	"github.com/hanzoai/link/cmd/internal/sandboxcmd"
	"github.com/hanzoai/link/cmd/internal/term"
)

func main() {
	if status, inside := sandboxcmd.Inside(os.Args[1:]); inside {
		os.Exit(status)
	}
	term.Exec(term.Program{
		Name:  "hanzo",
		About: "see and decide what this machine does for Hanzo, and give linked machines work",
		Commands: slices.Concat(
			[]term.Command{linkcmd.Link, linkcmd.Unlink, linkcmd.Status, linkcmd.Doctor},
			policycmd.Commands,
			[]term.Command{sandboxcmd.Check, logincmd.Login},
			runcmd.Commands,
			[]term.Command{version},
		),
		Statuses: []term.Status{term.OK, term.Failed, term.Usage, term.Rejected, term.Interrupted},
	})
}

var version = term.Command{
	Name:  "version",
	Short: "print the version of this program",
	Setup: func(*flag.FlagSet) func(context.Context, term.IO, []string) error {
		return func(_ context.Context, streams term.IO, args []string) error {
			if len(args) > 0 {
				return term.Usagef("version takes no arguments")
			}
			_, err := fmt.Fprintln(streams.Out, "hanzo", facts.Version())
			return err
		}
	},
}
