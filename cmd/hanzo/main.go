// Command hanzo is what the owner of a machine types, and who gives it work; hanzo
// help says more.
package main

import (
	"os"
	"slices"

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
		),
		Statuses: []term.Status{term.OK, term.Failed, term.Usage, term.Rejected, term.Interrupted},
	})
}
