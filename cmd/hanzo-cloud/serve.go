package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/spool/durable"
)

var serveCommand = term.Command{
	Name:  "serve",
	Short: "serve the control plane from one folder",
	Long: `
The first start makes the folder and, in it, the file token: the bearer token of
one org's admin, readable by its owner alone. The token itself is never printed.
Clients find the server by HANZO_API and the token by HANZO_TOKEN_FILE.

With --issuer, people sign in elsewhere: the access tokens that an OpenID Connect
issuer signs for --audience speak for the org and the person that their claims
owner and name say, with isAdmin and project beside them. hanzo login finds the
issuer by this server's address. The tokens made here go on working.

It speaks plain HTTP, so it listens on loopback addresses only. Interrupt it to
stop: requests under way are answered first.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		addr := flags.String("addr", "127.0.0.1:8334", "`address` to listen on; port 0 takes a free one")
		data := flags.String("data", "", "`folder` that holds everything (default ~/.hanzo/cloud)")
		org := flags.String("org", "local", "`name` of the org whose token the first start makes")
		issuer := flags.String("issuer", "", "`address` of an OpenID Connect issuer whose tokens count here too")
		audience := flags.String("audience", "", "`name` of this server in the issuer's tokens")
		addrFile := flags.String("addr-file", "", "`file` to write the server's URL to once it listens")
		verbose := flags.Bool("verbose", false, "log every request to standard error")
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) > 0 {
				return term.Usagef("serve takes no arguments, and got %q", args[0])
			}
			if *issuer != "" || *audience != "" {
				if err := control.CheckIssuer(*issuer, *audience); err != nil {
					return term.Usagef("--issuer and --audience: %v", err)
				}
			}
			level := slog.LevelWarn
			if *verbose {
				level = slog.LevelInfo
			}
			log := slog.New(slog.NewTextHandler(streams.Err, &slog.HandlerOptions{Level: level}))
			named := false // --org
			flags.Visit(func(f *flag.Flag) { named = named || f.Name == "org" })
			p, err := openPlane(ctx, *data, *addr, *org, named)
			if err != nil {
				return err
			}
			defer p.close()
			if *addrFile != "" {
				if err := durable.WriteFile(*addrFile, []byte(p.url()+"\n"), 0o644); err != nil {
					return fmt.Errorf("writing the address file: %w", err)
				}
			}
			fmt.Fprintf(streams.Out, "serving %s\ntoken of org %s in %s\n\nexport HANZO_API=%s HANZO_TOKEN_FILE=%s\n",
				p.url(), p.identity.Owner, p.tokenFile, p.url(), p.tokenFile)
			return p.serve(ctx, control.Config{Log: log, Issuer: *issuer, Audience: *audience})
		}
	},
}

// A plane is an opened data folder and the listener of its server.
type plane struct {
	store     *db.Store
	listener  net.Listener
	tokenFile string
	identity  api.Identity // whom the token file's token speaks for
}

// openPlane listens, opens the data folder and makes its first token, so that clients
// may connect from now on; serve answers them. Where it cannot listen it makes nothing.
// An org that was named must be that of the folder's token.
func openPlane(ctx context.Context, data, addr, org string, named bool) (*plane, error) {
	if err := db.CheckIdentity(api.Identity{Owner: org, Name: serverName, Project: project}); err != nil {
		return nil, term.Usagef("--org: %v", err)
	}
	data, err := dataFolder(data)
	if err != nil {
		return nil, err
	}
	if err := term.Loopback("--addr", addr, "the token would cross the network in the clear; put a TLS proxy in front of 127.0.0.1"); err != nil {
		return nil, err
	}
	p := &plane{tokenFile: filepath.Join(data, "token")}
	if p.listener, err = net.Listen("tcp", addr); err != nil {
		return nil, fmt.Errorf("%w; --addr 127.0.0.1:0 takes a free port", err)
	}
	if p.store, err = db.Open(data, nil); err != nil {
		p.listener.Close()
		return nil, err
	}
	p.identity, err = firstToken(ctx, p.store.Tokens, p.tokenFile, org)
	if err == nil && named && p.identity.Owner != org {
		err = term.Usagef("the token in %s is of org %s: start without --org, and hanzo-cloud token --org %s makes one of %s", p.tokenFile, p.identity.Owner, org, org)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *plane) url() string { return "http://" + p.listener.Addr().String() }

// serve answers requests as cfg says until ctx is cancelled, and closes the listener.
func (p *plane) serve(ctx context.Context, cfg control.Config) error {
	cfg.Store = p.store
	return control.New(cfg).Serve(ctx, p.listener)
}

// close closes the folder, after serve.
func (p *plane) close() error {
	p.listener.Close() // a second close, unless serve never ran
	return p.store.Close()
}

// dataFolder is the folder of --data, absolute, so that what is printed can be
// used from anywhere.
func dataFolder(data string) (string, error) {
	if data == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("finding the data folder: %w; use --data", err)
		}
		data = filepath.Join(home, ".hanzo", "cloud")
	}
	return filepath.Abs(data)
}

// firstToken answers whom the token in file speaks for, and makes both when the
// file is missing.
func firstToken(ctx context.Context, tokens *db.Tokens, file, org string) (api.Identity, error) {
	token, err := api.TokenFile(file)()
	if errors.Is(err, fs.ErrNotExist) {
		id := api.Identity{Owner: org, Name: serverName, Project: project, Admin: true}
		return id, makeToken(ctx, tokens, file, id)
	}
	if err != nil {
		return api.Identity{}, err
	}
	id, ok, err := tokens.Identify(ctx, token)
	if err != nil {
		return api.Identity{}, err
	}
	if !ok {
		return api.Identity{}, fmt.Errorf("the token in %s is of another folder; remove the file, and the next start makes one", file)
	}
	return id, nil
}

// Who a token speaks for that was made for nobody by name, and where it writes.
const (
	serverName = "hanzo-cloud"
	project    = "default"
)

// makeToken makes a token of id and writes it to file, which only its owner can
// read. A crash in between leaves a hash that nothing matches.
func makeToken(ctx context.Context, tokens *db.Tokens, file string, id api.Identity) error {
	token, err := tokens.Mint(ctx, id)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		return fmt.Errorf("writing the token: %w", err)
	}
	return nil
}
