package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control/db"
)

var tokenCommand = term.Command{
	Name:  "token",
	Short: "make a token for another org",
	Long: `
Writes the token to a new file that only its owner can read, and prints the
file's name. It may run while the server does: the token works at once.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		data := flags.String("data", "", "`folder` of the control plane (default ~/.hanzo/cloud)")
		org := flags.String("org", "", "`name` of the org")
		out := flags.String("out", "", "`file` to write (default token-<org> in the folder)")
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) > 0 || *org == "" {
				return term.Usagef("token wants --org NAME and no arguments")
			}
			if !db.ValidOrg(*org) {
				return term.Usagef("--org %q: want up to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit", *org)
			}
			folder, err := dataFolder(*data)
			if err != nil {
				return err
			}
			// Opening would make a plane that nobody serves.
			if _, err := os.Stat(filepath.Join(folder, "control.db")); errors.Is(err, fs.ErrNotExist) {
				return term.Usagef("%s holds no control plane: hanzo-cloud serve --data %s makes one, or name another with --data", folder, folder)
			}
			file := *out
			if file == "" {
				file = filepath.Join(folder, "token-"+*org)
			}
			if _, err := os.Lstat(file); err == nil {
				return fmt.Errorf("%s exists; remove it, or use --out", file)
			} else if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			tokens, err := db.OpenTokens(folder)
			if err != nil {
				return err
			}
			defer tokens.Close()
			if _, err := makeToken(ctx, tokens, file, *org); err != nil {
				return err
			}
			if *asJSON {
				return term.PrintJSON(streams.Out, map[string]string{"org": *org, "file": file})
			}
			fmt.Fprintf(streams.Out, "token of org %s in %s\n", *org, file)
			return nil
		}
	},
}
