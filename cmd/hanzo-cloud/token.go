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
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
)

var tokenCommand = term.Command{
	Name:  "token",
	Short: "make a token for a person of an org",
	Long: `
Writes the token to a new file that only its owner can read, and prints the
file's name. It may run while the server does: the token works at once.

--name is who asks for work with it: it stands in the machines' audit logs. --admin
makes it an admin's, who may publish models and remove other people's machines.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		data := flags.String("data", "", "`folder` of the control plane (default ~/.hanzo/cloud)")
		org := flags.String("org", "", "`name` of the org")
		name := flags.String("name", serverName, "`name` of the person")
		admin := flags.Bool("admin", false, "make the person an admin of the org")
		out := flags.String("out", "", "`file` to write (default token-<org>, or token-<org>-<name> for a --name, in the folder)")
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) > 0 || *org == "" {
				return term.Usagef("token wants --org NAME and no arguments")
			}
			id := api.Identity{Owner: *org, Name: *name, Project: project, Admin: *admin}
			if err := db.CheckIdentity(id); err != nil {
				return term.Usagef("%v", err)
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
				if *name != serverName {
					file += "-" + *name
				}
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
			if err := makeToken(ctx, tokens, file, id); err != nil {
				return err
			}
			if *asJSON {
				return term.PrintJSON(streams.Out, map[string]any{"org": *org, "name": *name, "admin": *admin, "file": file})
			}
			fmt.Fprintf(streams.Out, "token of %s/%s in %s\n", *org, *name, file)
			return nil
		}
	},
}
