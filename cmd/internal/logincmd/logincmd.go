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
// issuer's answer and the write loses the login; nothing else does.
//
// # Whose login
//
// Root, on behalf of the person who typed sudo, uses that person's login. What lies in
// a home directory is its owner's to arrange: so the file, and a token file that it
// names, must belong to that person alone and be regular, and are reached without
// leaving that home; what root writes there belongs to the person too.
package logincmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hanzoai/link/control/api"
)

// Saved is a login: a control plane, and who somebody is to it.
type Saved struct {
	API  string // the control plane's address
	Org  string // "" when $HANZO_API says the control plane: ask Whoami
	Name string // within Org; "" likewise

	TokenFile string    // where the token is; "" after the device flow
	Expiry    time.Time // of the access token, when this was read; zero for a token file

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
//
// $HANZO_API alone is the saved login, when that is one to the same control plane;
// else the token file is ~/.hanzo/token, as it is to train and bench.
//
// An address to which a token would go in clear is refused; see [Private].
func Session(user string) (Saved, error) {
	s, err := session(user)
	if err == nil {
		err = api.Private("the control plane", s.API)
	}
	if err != nil {
		return Saved{}, err
	}
	return s, nil
}

func session(user string) (Saved, error) {
	base := os.Getenv("HANZO_API")
	if base != "" && os.Getenv("HANZO_TOKEN_FILE") != "" {
		return environment()
	}
	s, err := saved(user)
	if base != "" && (err != nil || s.API != strings.TrimSuffix(base, "/")) {
		return environment()
	}
	return s, err
}

// environment is the login that the environment says.
func environment() (Saved, error) {
	c, err := api.FromEnvironment()
	if err != nil {
		return Saved{}, err
	}
	return Saved{API: c.Base, TokenFile: os.Getenv("HANZO_TOKEN_FILE"), token: c.Token}, nil
}

// saved is the login in a person's home.
func saved(user string) (Saved, error) {
	p, err := find(user)
	if err != nil {
		return Saved{}, err
	}
	l, err := p.read()
	if err != nil {
		return Saved{}, err
	}
	return p.session(l), nil
}

// session is a login that was read, ready to be used.
func (p person) session(l login) Saved {
	s := Saved{API: l.API, Org: l.Org, Name: l.Name, TokenFile: l.TokenFile}
	if l.TokenFile != "" {
		s.token = func() (string, error) { return p.tokenFile(l.TokenFile) }
		return s
	}
	s.Expiry = l.expiry()
	var mu sync.Mutex
	s.token = func() (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if !l.due(time.Now()) {
			return l.AccessToken, nil
		}
		fresh, err := p.renew(l)
		if err != nil {
			return "", err
		}
		l = fresh
		return l.AccessToken, nil
	}
	return s
}

// Client calls the control plane with this login. The token is read at each call, and
// renewed when it is about to expire.
func (s Saved) Client() *api.Client { return &api.Client{Base: s.API, Token: s.token} }

// Client is that of the login of whoever types this, for a command that calls the
// control plane and does nothing else.
func Client() (*api.Client, error) {
	s, err := Session(Person())
	if err != nil {
		return nil, err
	}
	return s.Client(), nil
}

// margin is how long before its end an access token is renewed: longer than a call
// takes to be judged, and than clocks disagree.
const margin = 30 * time.Second

// login is the file.
type login struct {
	API       string `json:"api"`
	Org       string `json:"org"`
	Name      string `json:"name"`
	TokenFile string `json:"tokenFile,omitzero"`

	// After the device flow, what renews the access token.
	Issuer       string `json:"issuer,omitzero"`
	TokenURL     string `json:"tokenUrl,omitzero"`
	AccessToken  string `json:"accessToken,omitzero"`
	RefreshToken string `json:"refreshToken,omitzero"`
	Expiry       string `json:"expiry,omitzero"` // RFC 3339; absent: it does not expire
}

func (l login) expiry() time.Time {
	t, _ := time.Parse(time.RFC3339, l.Expiry) // checked when it was read
	return t
}

// due reports whether the access token is to be renewed.
func (l login) due(now time.Time) bool {
	return l.Expiry != "" && now.Add(margin).After(l.expiry())
}

// over reports whether the access token is of no more use.
func (l login) over(now time.Time) bool { return l.Expiry != "" && now.After(l.expiry()) }

func (l login) check() error {
	if _, err := address(l.API); err != nil {
		return fmt.Errorf("api: %w", err)
	}
	if (l.TokenFile != "") == (l.AccessToken != "") {
		return errors.New("it has neither a token nor the name of a token file, or both")
	}
	if l.Expiry != "" {
		if _, err := time.Parse(time.RFC3339, l.Expiry); err != nil {
			return errors.New("expiry: want a time as RFC 3339 has it")
		}
	}
	if l.RefreshToken != "" {
		return api.Private("tokenUrl", l.TokenURL)
	}
	return nil
}

// address is a control plane's, without a slash at its end.
func address(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%.200q cannot be called: give http://HOST:PORT or https://HOST", s)
	}
	return strings.TrimSuffix(s, "/"), nil
}

// renew has the refresh token give a new access token, unless another process has
// done it meanwhile. It is not given up once it is asked for: what the issuer answers
// is the only thing that renews the next.
func (p person) renew(have login) (login, error) {
	unlock, err := p.lock()
	if err != nil {
		return have, err
	}
	defer unlock()
	now, err := p.read()
	if err != nil {
		return have, err
	}
	if now.API != have.API || now.Org != have.Org || now.Name != have.Name || now.AccessToken == "" {
		return have, fmt.Errorf("the login in %s has become another, to %s: start again", p.path(), now.API)
	}
	if !now.due(time.Now()) {
		return now, nil
	}
	if now.RefreshToken == "" {
		if now.over(time.Now()) {
			return have, fmt.Errorf("your login to %s has expired: run hanzo login %s", now.API, now.API)
		}
		return now, nil
	}
	// A token that could not be kept must not be spent.
	if err := p.write(now); err != nil {
		return have, fmt.Errorf("the login cannot be renewed: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	fresh, err := refresh(ctx, now)
	if err != nil {
		if spent(err) {
			return have, fmt.Errorf("your login to %s has ended (%w): run hanzo login %s", now.API, err, now.API)
		}
		if !now.over(time.Now()) {
			return now, nil // the one there is will do, and the next call tries again
		}
		return have, fmt.Errorf("your login to %s could not be renewed at %s: %w; try again", now.API, cmp.Or(now.Issuer, now.TokenURL), err)
	}
	if err := p.write(fresh); err != nil {
		return have, fmt.Errorf("your login was renewed and could not be kept: %w; then run hanzo login %s", err, now.API)
	}
	return fresh, nil
}
