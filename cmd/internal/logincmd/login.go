package logincmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control/api"
)

const (
	clientID    = "hanzo-cli"
	callTimeout = 30 * time.Second
	maxAnswer   = 1 << 20
)

// Login is hanzo login.
var Login = term.Command{
	Name: "login", Args: "[URL]",
	Short: "log in to a control plane",
	Long: `
URL is the control plane's address; without it, the one at $HANZO_API, or else the
one that you are logged in to.

A control plane of an organisation says who its people sign in with. hanzo login then
prints a link and a code: open the link on any device, enter the code, approve. A
control plane on one machine (hanzo-cloud serve) has a token file instead, which
--token-file names; it is read at each call and never copied.

The login is kept in ~/.hanzo/login.json, which only you can read. sudo hanzo link uses
the login of the person who types it, so do not log in by sudo.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		tokenFile := flags.String("token-file", "", "the token is in this `file`, as hanzo-cloud serve prints it")
		issuer := flags.String("issuer", "", "sign in with the OpenID Connect issuer at this `address`, and not with the one that the control plane names")
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) > 1 {
				return term.Usagef("expected one address and got %d", len(args))
			}
			if *tokenFile != "" && *issuer != "" {
				return term.Usagef("a token file needs no issuer: give one of them")
			}
			if user := Person(); user != "" {
				return term.Usagef("this is root, for %s: run hanzo login without sudo, and sudo hanzo link will use it", user)
			}
			base, err := which(args)
			if err != nil {
				return term.Exit(term.Usage, err)
			}
			p, err := find("")
			if err != nil {
				return err
			}
			if err := p.login(ctx, streams, base, *tokenFile, *issuer); err != nil {
				if ctx.Err() != nil {
					return term.Exit(term.Interrupted, errors.New("stopped before you approved: run hanzo login again"))
				}
				return err
			}
			return nil
		}
	},
}

// which is the control plane that is meant.
func which(args []string) (string, error) {
	if len(args) == 1 {
		return address(args[0])
	}
	if base := os.Getenv("HANZO_API"); base != "" {
		base, err := address(base)
		if err != nil {
			return "", fmt.Errorf("HANZO_API: %w", err)
		}
		return base, nil
	}
	s, err := saved("")
	if errors.Is(err, ErrNoLogin) {
		return "", errors.New("which control plane? give its address: hanzo login https://HOST, or http://127.0.0.1:PORT as hanzo-cloud serve prints it")
	}
	return s.API, err
}

func (p person) login(ctx context.Context, streams term.IO, base, tokenFile, issuer string) error {
	if err := api.Private("the control plane", base); err != nil {
		return err
	}
	l := login{API: base}
	if tokenFile != "" {
		full, err := filepath.Abs(tokenFile)
		if err != nil {
			return err
		}
		l.TokenFile = full
	} else {
		if issuer == "" {
			var err error
			if issuer, err = issuerOf(ctx, base); err != nil {
				return err
			}
		}
		var err error
		if l, err = grant(ctx, streams, base, issuer); err != nil {
			return err
		}
	}
	token := func() (string, error) { return l.AccessToken, nil }
	if l.TokenFile != "" {
		token = api.TokenFile(l.TokenFile)
	}
	who, err := (&api.Client{Base: base, Token: token}).Whoami(ctx)
	if err != nil {
		if refused, ok := errors.AsType[*api.Problem](err); ok && refused.Status == http.StatusUnauthorized {
			return fmt.Errorf("the control plane at %s does not take this token: %w", base, err)
		}
		return fmt.Errorf("asking the control plane at %s who you are: %w", base, err)
	}
	if l.Org, l.Name = who.Owner, who.Name; l.Org == "" {
		return fmt.Errorf("the control plane at %s does not say which organisation you are of: ask its operator for an account in one", base)
	}
	if err := p.save(l); err != nil {
		return fmt.Errorf("you are logged in, and it could not be kept: %w", err)
	}
	as := ""
	if who.Admin {
		as = ", an admin of it"
	}
	fmt.Fprintf(streams.Out, "logged in to %s as %s of %s%s; the login is in %s\n", base, cmp.Or(term.Plain(who.Name), "nobody"), term.Plain(who.Owner), as, p.path())
	return nil
}

// save keeps a new login, after whoever is renewing the old one.
func (p person) save(l login) error {
	if err := p.write(l); err != nil { // makes the folder
		return err
	}
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return p.write(l)
}

// caller makes the HTTP client of calls to an issuer, which end with ctx. No
// redirect is followed: a refresh token must not travel to where an answer points.
func caller(ctx context.Context) *http.Client {
	return &http.Client{
		Timeout:       callTimeout,
		Transport:     bound{ctx},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// bound makes the requests of a library that forgets its context end with it.
type bound struct{ ctx context.Context }

func (b bound) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(b.ctx, cancel)
	resp, err := http.DefaultTransport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	resp.Body = &ending{resp.Body, func() { stop(); cancel() }}
	return resp, nil
}

type ending struct {
	io.ReadCloser
	end func()
}

func (e *ending) Close() error {
	defer e.end()
	return e.ReadCloser.Close()
}

// discovery is what is read of an OpenID Connect discovery document.
type discovery struct {
	Issuer   string `json:"issuer"`
	TokenURL string `json:"token_endpoint"`
	Device   string `json:"device_authorization_endpoint"`
}

const wellKnown = "/.well-known/openid-configuration"

// silence says of a server that did not answer in time what to look at.
func silence(err error, base string) error {
	if late, ok := errors.AsType[*url.Error](err); ok && late.Timeout() {
		return fmt.Errorf("no answer from %s within %d s: is it running and reachable, and is that its address?", base, callTimeout/time.Second)
	}
	return err
}

// discover reads the discovery document below an address.
func discover(ctx context.Context, base string) (discovery, int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+wellKnown, nil)
	if err != nil {
		return discovery{}, 0, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := caller(ctx).Do(req)
	if err != nil {
		return discovery{}, 0, silence(err, base)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return discovery{}, 0, fmt.Errorf("%s: %w", req.URL, err)
	}
	if resp.StatusCode != http.StatusOK {
		return discovery{}, resp.StatusCode, fmt.Errorf("%s was answered %s", req.URL, resp.Status)
	}
	var d discovery // of many more members, which are others' to read
	if err := json.Unmarshal(b, &d); err != nil || d.Issuer == "" {
		return discovery{}, resp.StatusCode, fmt.Errorf("%s was answered something that names no issuer", req.URL)
	}
	return d, resp.StatusCode, nil
}

// issuerOf asks a control plane whom its people sign in with.
func issuerOf(ctx context.Context, base string) (string, error) {
	d, status, err := discover(ctx, base)
	if status == http.StatusNotFound {
		return "", fmt.Errorf("the control plane at %s has no issuer to sign in with: give --token-file FILE, the token that hanzo-cloud serve or hanzo-cloud token made", base)
	}
	if err != nil {
		return "", fmt.Errorf("asking the control plane whom to sign in with: %w; give --issuer, or --token-file", err)
	}
	return d.Issuer, nil
}

// grant is the device flow.
func grant(ctx context.Context, streams term.IO, base, issuer string) (login, error) {
	if err := api.Private("the issuer", issuer); err != nil {
		return login{}, err
	}
	d, _, err := discover(ctx, issuer)
	if err != nil {
		return login{}, fmt.Errorf("the issuer of %s: %w", base, err)
	}
	if d.Issuer != issuer {
		return login{}, fmt.Errorf("the issuer at %s calls itself %.200q: give --issuer with the right address", issuer, d.Issuer)
	}
	if d.Device == "" || d.TokenURL == "" {
		return login{}, fmt.Errorf("the issuer at %s has no device flow; sign in elsewhere and give --token-file", issuer)
	}
	for what, at := range map[string]string{"the issuer's device_authorization_endpoint": d.Device, "the issuer's token_endpoint": d.TokenURL} {
		if err := api.Private(what, at); err != nil {
			return login{}, err
		}
	}
	config := configOf(d.TokenURL)
	config.Endpoint.DeviceAuthURL = d.Device
	config.Scopes = []string{"openid", "profile", "email", "offline_access"}
	ctx = context.WithValue(ctx, oauth2.HTTPClient, caller(ctx))
	code, err := config.DeviceAuth(ctx)
	if err != nil {
		return login{}, fmt.Errorf("asking the issuer at %s for a code: %w", issuer, plain(err))
	}
	show(streams.Out, code)
	token, err := await(ctx, config, code)
	if err != nil {
		return login{}, fmt.Errorf("signing in at %s: %w", issuer, err)
	}
	return login{API: base, Issuer: issuer, TokenURL: d.TokenURL}.with(token), nil
}

// configOf is a public client. It says who it is in the body: to try the header first
// would spend a refresh token twice.
func configOf(tokenURL string) oauth2.Config {
	return oauth2.Config{ClientID: clientID, Endpoint: oauth2.Endpoint{TokenURL: tokenURL, AuthStyle: oauth2.AuthStyleInParams}}
}

// show says what to do in a browser.
func show(w io.Writer, code *oauth2.DeviceAuthResponse) {
	fmt.Fprintf(w, "open %s\nand enter the code %s\n", term.Plain(code.VerificationURI), term.Plain(code.UserCode))
	if code.VerificationURIComplete != "" {
		fmt.Fprintf(w, "or open %s, and see that it shows that code\n", term.Plain(code.VerificationURIComplete))
	}
	if !code.Expiry.IsZero() {
		fmt.Fprintf(w, "the code is good for %s; waiting\n", time.Until(code.Expiry).Round(time.Minute))
	}
}

// await waits until the person has decided. A call that failed for a reason that
// passes is made again, after the issuer's interval.
func await(ctx context.Context, config oauth2.Config, code *oauth2.DeviceAuthResponse) (*oauth2.Token, error) {
	for {
		token, err := config.DeviceAccessToken(ctx, code)
		if err == nil {
			return token, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		expired := !code.Expiry.IsZero() && time.Now().After(code.Expiry)
		refused, answered := errors.AsType[*oauth2.RetrieveError](err)
		switch {
		case expired, answered && refused.ErrorCode == "expired_token":
			return nil, errors.New("the code has expired before it was approved: run hanzo login again")
		case answered && refused.ErrorCode == "access_denied":
			return nil, errors.New("it was refused in the browser, so you are not logged in")
		case answered && refused.Response.StatusCode < 500:
			return nil, plain(err)
		}
	}
}

// with is the login with a token that the issuer answered. An issuer that answers no
// new refresh token lets the old one stand.
func (l login) with(t *oauth2.Token) login {
	l.AccessToken, l.Expiry = t.AccessToken, ""
	if t.RefreshToken != "" {
		l.RefreshToken = t.RefreshToken
	}
	if !t.Expiry.IsZero() {
		l.Expiry = t.Expiry.UTC().Format(time.RFC3339)
	}
	return l
}

// refresh spends the refresh token.
func refresh(ctx context.Context, l login) (login, error) {
	config := configOf(l.TokenURL)
	ctx = context.WithValue(ctx, oauth2.HTTPClient, caller(ctx))
	token, err := config.TokenSource(ctx, &oauth2.Token{RefreshToken: l.RefreshToken}).Token()
	if err != nil {
		return l, plain(err)
	}
	return l.with(token), nil
}

// spent reports whether an issuer does not know the refresh token.
func spent(err error) bool {
	refused, ok := errors.AsType[*refusal](err)
	return ok && refused.code == "invalid_grant"
}

// refusal is what an issuer answered, on one line.
type refusal struct{ code, text string }

func (r *refusal) Error() string { return r.text }

// plain says what an issuer's answer was, and leaves out its body: it may be a page.
func plain(err error) error {
	e, ok := errors.AsType[*oauth2.RetrieveError](err)
	if !ok {
		return err
	}
	text := "it answered " + e.Response.Status
	if e.ErrorCode != "" {
		text += ": " + term.Plain(e.ErrorCode)
	}
	if e.ErrorDescription != "" {
		text += " (" + term.Plain(e.ErrorDescription) + ")"
	}
	return &refusal{e.ErrorCode, text}
}
