// Package linkcmd is hanzo link and hanzo unlink: it makes a machine one that a
// cloud can ask for work, as far as its owner's policy admits, and takes that back.
package linkcmd

import (
	"context"
	"errors"
	"flag"

	"github.com/hanzoai/link/cmd/internal/term"
)

// Link is hanzo link.
var Link = term.Command{
	Name:  "link",
	Short: "link this machine to your org, offering nothing until its policy says so",
	Setup: func(*flag.FlagSet) func(context.Context, term.IO, []string) error {
		return func(context.Context, term.IO, []string) error { return errors.New("not built yet") }
	},
}

// Unlink is hanzo unlink.
var Unlink = term.Command{
	Name:  "unlink",
	Short: "end this machine's work and take it out of your org",
	Setup: func(*flag.FlagSet) func(context.Context, term.IO, []string) error {
		return func(context.Context, term.IO, []string) error { return errors.New("not built yet") }
	},
}
