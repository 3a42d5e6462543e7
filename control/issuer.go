package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/spool/canon"
)

// An issuer is an OpenID Connect issuer outside: the access tokens that it signs
// for this server speak for persons. Its address is all that is configured; the
// rest is asked of it when the first of its tokens comes, and again as long as it
// does not answer.
//
// A token counts when the issuer's own key signed it, by one of algorithms, for
// our audience, and it has not expired. Its claims say who: owner is the org, name
// the person, isAdmin whether an admin of the org, project where they write; the
// names that Hanzo IAM gives them. One without an owner belongs to no org and opens
// nothing. That the issuer cannot be asked is no refusal of a token, and makes none
// good.
type issuer struct {
	url, audience string
	now           func() time.Time
	client        *http.Client

	mu   sync.Mutex  // guards keys, and lets one at a time discover them
	keys oidc.KeySet // nil until discovered
}

// algorithms are what a token may be signed with. All need the issuer's private
// key: what is public can sign nothing.
var algorithms = []string{oidc.RS256, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.EdDSA}

// defaultProject is that of a token without the claim.
const defaultProject = "default"

// CheckIssuer says why no issuer can be at an address or sign for an audience.
func CheckIssuer(address, audience string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("the issuer %.200q is no address: give https://HOST, as its tokens name it", address)
	case u.Scheme != "https" && !(u.Scheme == "http" && loopback(u.Hostname())):
		return fmt.Errorf("the issuer %s would be asked for its keys in the clear: want https://", address)
	case audience == "":
		return errors.New("an issuer signs for many servers: want the audience that its tokens for this one name")
	}
	return nil
}

func loopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

func newIssuer(url, audience string, now func() time.Time) *issuer {
	return &issuer{
		url: url, audience: audience, now: now,
		client: &http.Client{
			Timeout:       5 * time.Second,
			Transport:     &sparing{next: http.DefaultTransport, held: make(map[string]asked)},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// identify answers which person a token speaks for. An error that is no
// [*api.Problem] says nothing of the token.
func (i *issuer) identify(ctx context.Context, token string) (api.Identity, error) {
	keys, err := i.discovered(ctx)
	if err != nil {
		return api.Identity{}, fmt.Errorf("asking the issuer %s: %w", i.url, err)
	}
	watched := &watchedKeys{KeySet: keys}
	verified, err := oidc.NewVerifier(i.url, watched, &oidc.Config{
		ClientID: i.audience, SupportedSigningAlgs: algorithms, Now: i.now,
	}).Verify(ctx, token)
	if watched.err != nil {
		return api.Identity{}, fmt.Errorf("asking the issuer %s for its keys: %w", i.url, watched.err)
	}
	if expired, ok := errors.AsType[*oidc.TokenExpiredError](err); ok {
		return api.Identity{}, api.Refuse(api.Unauthorized, "the token expired at %s; hanzo login gets another", expired.Expiry.UTC().Format(time.RFC3339))
	}
	if err != nil {
		return api.Identity{}, api.Refuse(api.Unauthorized, "that is no token that %s signed for %s; hanzo login gets one", i.url, i.audience)
	}
	id, err := identityOf(verified)
	if err != nil {
		return api.Identity{}, api.Refuse(api.Unauthorized, "the token of %s: %v", i.url, err)
	}
	return id, nil
}

// identityOf reads the claims of a verified token. Their names are compared as they
// are: a second spelling of a claim is another claim.
func identityOf(token *oidc.IDToken) (api.Identity, error) {
	var claims map[string]json.RawMessage
	if err := token.Claims(&claims); err != nil {
		return api.Identity{}, fmt.Errorf("its claims do not read: %w", err)
	}
	id := api.Identity{Project: defaultProject}
	for name, dest := range map[string]any{"owner": &id.Owner, "name": &id.Name, "isAdmin": &id.Admin, "project": &id.Project} {
		if raw, there := claims[name]; there {
			if err := canon.Unmarshal(raw, dest); err != nil {
				return api.Identity{}, fmt.Errorf("its claim %s: %w", name, err)
			}
		}
	}
	if id.Owner == "" {
		return api.Identity{}, errors.New("it has no claim owner, so it belongs to no org")
	}
	return id, db.CheckIdentity(id)
}

// discovered answers the issuer's keys, which it asks for as long as it has none.
func (i *issuer) discovered(ctx context.Context) (oidc.KeySet, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.keys != nil {
		return i.keys, nil
	}
	// One caller asks for all who wait, and its leaving does not fail them.
	ctx = oidc.ClientContext(context.WithoutCancel(ctx), i.client)
	provider, err := oidc.NewProvider(ctx, i.url)
	if err != nil {
		return nil, err
	}
	var says struct {
		Keys string `json:"jwks_uri"`
	}
	if err := provider.Claims(&says); err != nil {
		return nil, err
	}
	if says.Keys == "" {
		return nil, errors.New("its discovery document names no jwks_uri")
	}
	i.keys = oidc.NewRemoteKeySet(ctx, says.Keys)
	return i.keys, nil
}

// watchedKeys is one verification's view of the keys. It remembers that they could
// not be had, which the verifier's own error does not tell from a wrong signature.
type watchedKeys struct {
	oidc.KeySet
	err error
}

func (w *watchedKeys) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := w.KeySet.VerifySignature(ctx, token)
	if errors.Unwrap(err) != nil {
		w.err = err // a signature that does not verify wraps nothing
	}
	return payload, err
}

// sparing is a transport for a handful of addresses of small documents, each of
// which is asked at most once in spared: every token that names an unknown key asks
// for the keys anew, and anybody can send such a token.
type sparing struct {
	next http.RoundTripper

	mu   sync.Mutex // held while asking
	held map[string]asked
}

const (
	spared      = time.Second
	maxDocument = 1 << 20 // bytes
)

// asked is how an address answered.
type asked struct {
	at   time.Time
	resp http.Response // without a body
	body []byte
	err  error
}

func (s *sparing) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	address := r.URL.String()
	last, ok := s.held[address]
	if !ok || time.Since(last.at) >= spared {
		last = s.ask(r)
		s.held[address] = last
	}
	if last.err != nil {
		return nil, last.err
	}
	resp := last.resp
	resp.Request, resp.Body = r, io.NopCloser(bytes.NewReader(last.body))
	return &resp, nil
}

func (s *sparing) ask(r *http.Request) asked {
	resp, err := s.next.RoundTrip(r)
	if err != nil {
		return asked{at: time.Now(), err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err == nil && len(body) > maxDocument {
		err = fmt.Errorf("%s answered over %d bytes", r.URL, maxDocument)
	}
	return asked{time.Now(), *resp, body, err}
}

// issuerAddress is GET /.well-known/openid-configuration: not the issuer's
// document, but where it is, so that a client needs to be told one address.
func (s *Server) issuerAddress(w http.ResponseWriter, r *http.Request) {
	if s.issuer == nil {
		api.Refuse(api.NotFound, "this control plane has no issuer; hanzo-cloud token makes its tokens").Write(w)
		return
	}
	s.answer(w, map[string]string{"issuer": s.issuer.url})
}
