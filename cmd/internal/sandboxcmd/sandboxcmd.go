// Package sandboxcmd is hanzo sandbox: it builds the sandbox that work of other
// people would run in on this machine, and tries to break out of it, before
// anybody trusts it. It needs no daemon, asks nobody and leaves nothing behind.
//
// It judges nothing about sandboxes itself: what a host must have is package
// sandbox's to say, and what an attempt must meet package attempt's.
package sandboxcmd

import (
	"context"
	"flag"

	"github.com/hanzoai/link/cmd/internal/term"
)

// Check is hanzo sandbox check.
var Check = term.Command{
	Name:  "sandbox check",
	Short: "build the sandbox of this machine and try to break out of it",
	Long: `
It runs as root, as the launcher would, and needs nothing to be installed or
running but this program and hanzo-stage, which it looks for beside itself and in
` + lib + `.

First it finds out what this host can build. Then it builds the sandbox as for
real work, once for each kind, and in place of the work it runs a program without
rights that tries to get out: to other processes, files, devices, the network, the
kernel, another workload. Each attempt is one line, with what must come of it and
what came.

It exits 0 only when nothing gave way, nothing failed beforehand and nothing that
this machine needs is missing. Whatever it makes (a control group; a folder where
real work lies, in /var/lib) it takes away again, when it is interrupted as well.
What a check leaves that was killed (kill -9) the next one takes away.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) > 0 {
				return term.Usagef("sandbox check: takes no arguments, and got %d", len(args))
			}
			return check(ctx, streams, *asJSON)
		}
	},
}

// lib is where an installed host has its binaries.
const lib = "/usr/local/lib/hanzo/link"
