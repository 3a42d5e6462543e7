// Command hanzo is what the owner of a machine types; hanzo help says more.
package main

import (
	"os"

	"github.com/hanzoai/link/cmd/internal/sandboxcmd"
	"github.com/hanzoai/link/cmd/internal/term"
)

func main() {
	if status, inside := sandboxcmd.Inside(os.Args[1:]); inside {
		os.Exit(status)
	}
	term.Exec(term.Program{
		Name:     "hanzo",
		About:    "see and decide what this machine does for Hanzo",
		Commands: []term.Command{sandboxcmd.Check},
		Statuses: []term.Status{term.OK, term.Failed, term.Usage, term.Interrupted},
	})
}
