// Package issuer is an OpenID Connect issuer for tests: zitadel's, over a storage
// of people that lives as long as the test. It has discovery, keys, the device
// grant of a public client, refresh tokens that rotate, and access tokens that are
// JWTs with the claims this repository reads (owner, name, isAdmin, project).
//
// What a person would do in a browser is a call here: [Issuer.Approve]. What only a
// test wants, a token without any flow or with claims that nobody would issue, is
// [Issuer.Token] and [Issuer.Sign].
//
// An Issuer may be used concurrently. It remembers everything and expires nothing by
// itself but what carries a time.
package issuer

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/pkg/crypto"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// ClientID is the one client, a public one, and Audience what every access token is
// for besides it.
const (
	ClientID = "hanzo-cli"
	Audience = "hanzo-cloud"
)

// A Person is who can approve a code. An empty Owner or Project leaves its claim out.
type Person struct {
	Owner   string // the org
	Name    string
	Project string
	Admin   bool
}

func (p Person) subject() string { return p.Owner + "/" + p.Name }

func (p Person) claims() map[string]any {
	claims := map[string]any{"name": p.Name, "isAdmin": p.Admin}
	if p.Owner != "" {
		claims["owner"] = p.Owner
	}
	if p.Project != "" {
		claims["project"] = p.Project
	}
	return claims
}

// An Issuer is a running issuer.
type Issuer struct {
	URL string // the issuer's identifier, and where it listens

	provider *op.Provider
	storage  *storage
}

// Start starts an issuer on a loopback address until the test ends.
func Start(t testing.TB) *Issuer {
	t.Helper()
	s := &storage{
		life: time.Hour, key: newKey(),
		devices: make(map[string]*device), people: make(map[string]Person), refresh: make(map[string]grant),
	}
	var handler http.Handler
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	t.Cleanup(server.Close)
	config := &op.Config{
		GrantTypeRefreshToken: true,
		DeviceAuthorization: op.DeviceAuthorizationConfig{
			Lifetime: 10 * time.Minute, PollInterval: time.Second, UserFormPath: "/device", UserCode: op.UserCodeBase20,
		},
	}
	provider, err := op.NewProvider(config, s, op.StaticIssuer(server.URL), op.WithAllowInsecure())
	if err != nil {
		t.Fatal(err)
	}
	handler = provider
	return &Issuer{URL: server.URL, provider: provider, storage: s}
}

// Approve is p signing in and approving a user code.
func (i *Issuer) Approve(userCode string, p Person) error {
	return i.storage.decide(userCode, func(d *device) { d.person, d.state.Done, d.state.AuthTime = p, true, time.Now() })
}

// Deny is a person refusing a user code.
func (i *Issuer) Deny(userCode string) error {
	return i.storage.decide(userCode, func(d *device) { d.state.Denied = true })
}

// SetLife says how long access tokens made from now on are good for; an hour
// otherwise.
func (i *Issuer) SetLife(life time.Duration) {
	i.storage.mu.Lock()
	defer i.storage.mu.Unlock()
	i.storage.life = life
}

// Rotate replaces the signing key: what was signed before is no longer verified.
func (i *Issuer) Rotate() {
	key := newKey()
	i.storage.mu.Lock()
	defer i.storage.mu.Unlock()
	i.storage.key = key
}

// Refreshed counts the refresh tokens that were spent, those that were refused for
// being spent already among them.
func (i *Issuer) Refreshed() (spent, refused int) {
	i.storage.mu.Lock()
	defer i.storage.mu.Unlock()
	return i.storage.spent, i.storage.refused
}

// Token is an access token of p, as the device grant would have answered it.
func (i *Issuer) Token(t testing.TB, p Person) string {
	t.Helper()
	i.storage.mu.Lock()
	life := i.storage.life
	i.storage.mu.Unlock()
	claims := p.claims()
	now := time.Now()
	claims["iss"], claims["sub"], claims["aud"] = i.URL, p.subject(), []string{Audience, ClientID}
	claims["iat"], claims["exp"] = now.Unix(), now.Add(life).Unix()
	return i.Sign(t, claims)
}

// Sign is a JWT of any claims, signed with the issuer's key.
func (i *Issuer) Sign(t testing.TB, claims map[string]any) string {
	t.Helper()
	key, err := i.storage.SigningKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	signer, err := op.SignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	token, err := crypto.Sign(claims, signer)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// client is the public client of the command line.
type client struct{}

var grants = []oidc.GrantType{oidc.GrantTypeDeviceCode, oidc.GrantTypeRefreshToken}

func (client) GetID() string                                                   { return ClientID }
func (client) RedirectURIs() []string                                          { return nil }
func (client) PostLogoutRedirectURIs() []string                                { return nil }
func (client) ApplicationType() op.ApplicationType                             { return op.ApplicationTypeNative }
func (client) AuthMethod() oidc.AuthMethod                                     { return oidc.AuthMethodNone }
func (client) ResponseTypes() []oidc.ResponseType                              { return nil }
func (client) GrantTypes() []oidc.GrantType                                    { return grants }
func (client) LoginURL(string) string                                          { return "" }
func (client) AccessTokenType() op.AccessTokenType                             { return op.AccessTokenTypeJWT }
func (client) IDTokenLifetime() time.Duration                                  { return time.Hour }
func (client) DevMode() bool                                                   { return false }
func (client) RestrictAdditionalIdTokenScopes() func(scopes []string) []string { return slices.Clone }
func (client) RestrictAdditionalAccessTokenScopes() func(scopes []string) []string {
	return slices.Clone
}
func (client) IsScopeAllowed(string) bool           { return true }
func (client) IDTokenUserinfoClaimsAssertion() bool { return false }
func (client) ClockSkew() time.Duration             { return 0 }

// key is one RSA key, in the three shapes that the provider asks for.
type key struct {
	id      string
	private *rsa.PrivateKey
}

type public struct{ key }

func newKey() key {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key{rand.Text(), private}
}

func (k key) ID() string                                  { return k.id }
func (k key) SignatureAlgorithm() jose.SignatureAlgorithm { return jose.RS256 }
func (k key) Key() any                                    { return k.private }
func (p public) Algorithm() jose.SignatureAlgorithm       { return jose.RS256 }
func (p public) Use() string                              { return "sig" }
func (p public) Key() any                                 { return p.private.Public() }

// A device is one device grant.
type device struct {
	userCode string
	state    op.DeviceAuthorizationState
	person   Person
}

// A grant is what a refresh token stands for.
type grant struct {
	subject string
	scopes  []string
	at      time.Time
}

func (g *grant) GetAMR() []string                 { return nil }
func (g *grant) GetAudience() []string            { return []string{Audience, ClientID} }
func (g *grant) GetAuthTime() time.Time           { return g.at }
func (g *grant) GetClientID() string              { return ClientID }
func (g *grant) GetScopes() []string              { return g.scopes }
func (g *grant) GetSubject() string               { return g.subject }
func (g *grant) SetCurrentScopes(scopes []string) { g.scopes = scopes }

// storage is what the provider keeps its state in.
type storage struct {
	mu      sync.Mutex
	life    time.Duration
	key     key
	devices map[string]*device // by device code
	people  map[string]Person  // by subject
	refresh map[string]grant   // by refresh token, until it is spent
	spent   int
	refused int
}

func (s *storage) decide(userCode string, do func(*device)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.devices {
		if d.userCode == userCode {
			do(d)
			d.state.Subject = d.person.subject()
			s.people[d.state.Subject] = d.person
			return nil
		}
	}
	return fmt.Errorf("no user code %s", userCode)
}

func (s *storage) StoreDeviceAuthorization(_ context.Context, clientID, deviceCode, userCode string, expires time.Time, scopes []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.devices[deviceCode] = &device{userCode: userCode, state: op.DeviceAuthorizationState{
		ClientID: clientID, Audience: []string{Audience}, Scopes: scopes, Expires: expires,
	}}
	return nil
}

func (s *storage) GetDeviceAuthorizatonState(_ context.Context, clientID, deviceCode string) (*op.DeviceAuthorizationState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.devices[deviceCode]
	if d == nil || d.state.ClientID != clientID {
		return nil, fmt.Errorf("no such device code")
	}
	if d.state.Done {
		delete(s.devices, deviceCode)
	}
	state := d.state
	return &state, nil
}

func (s *storage) CreateAccessToken(context.Context, op.TokenRequest) (string, time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return rand.Text(), time.Now().Add(s.life), nil
}

// CreateAccessAndRefreshTokens spends the current refresh token.
func (s *storage) CreateAccessAndRefreshTokens(_ context.Context, request op.TokenRequest, current string) (string, string, time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if current != "" {
		if _, known := s.refresh[current]; !known {
			s.refused++
			return "", "", time.Time{}, oidc.ErrInvalidGrant()
		}
		delete(s.refresh, current)
		s.spent++
	}
	fresh := rand.Text()
	s.refresh[fresh] = grant{request.GetSubject(), request.GetScopes(), time.Now()}
	return rand.Text(), fresh, time.Now().Add(s.life), nil
}

func (s *storage) TokenRequestByRefreshToken(_ context.Context, token string) (op.RefreshTokenRequest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, known := s.refresh[token]
	if !known {
		s.refused++
		return nil, op.ErrInvalidRefreshToken
	}
	return &g, nil
}

func (s *storage) claimsOf(subject string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.people[subject].claims()
}

func (s *storage) GetPrivateClaimsFromScopes(_ context.Context, subject, _ string, _ []string) (map[string]any, error) {
	return s.claimsOf(subject), nil
}

func (s *storage) SetUserinfoFromToken(_ context.Context, info *oidc.UserInfo, _, subject, _ string) error {
	info.Subject, info.Claims = subject, s.claimsOf(subject)
	return nil
}

func (s *storage) SigningKey(context.Context) (op.SigningKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key, nil
}

func (s *storage) KeySet(context.Context) ([]op.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []op.Key{public{s.key}}, nil
}

func (s *storage) SignatureAlgorithms(context.Context) ([]jose.SignatureAlgorithm, error) {
	return []jose.SignatureAlgorithm{jose.RS256}, nil
}

func (s *storage) GetClientByClientID(_ context.Context, id string) (op.Client, error) {
	if id != ClientID {
		return nil, oidc.ErrInvalidClient()
	}
	return client{}, nil
}

func (s *storage) GetRefreshTokenInfo(context.Context, string, string) (string, string, error) {
	return "", "", op.ErrInvalidRefreshToken
}

func (s *storage) Health(context.Context) error { return nil }

// What follows serves flows that this issuer does not have.

func none() error { return oidc.ErrUnsupportedGrantType() }

func (s *storage) CreateAuthRequest(context.Context, *oidc.AuthRequest, string) (op.AuthRequest, error) {
	return nil, none()
}

func (s *storage) AuthRequestByID(context.Context, string) (op.AuthRequest, error) {
	return nil, none()
}

func (s *storage) AuthRequestByCode(context.Context, string) (op.AuthRequest, error) {
	return nil, none()
}
func (s *storage) SaveAuthCode(context.Context, string, string) error            { return none() }
func (s *storage) DeleteAuthRequest(context.Context, string) error               { return none() }
func (s *storage) TerminateSession(context.Context, string, string) error        { return none() }
func (s *storage) AuthorizeClientIDSecret(context.Context, string, string) error { return none() }
func (s *storage) RevokeToken(_ context.Context, _, _, _ string) *oidc.Error {
	return oidc.ErrServerError()
}
func (s *storage) ValidateJWTProfileScopes(context.Context, string, []string) ([]string, error) {
	return nil, none()
}

func (s *storage) SetUserinfoFromScopes(context.Context, *oidc.UserInfo, string, string, []string) error {
	return nil
}

func (s *storage) SetIntrospectionFromToken(context.Context, *oidc.IntrospectionResponse, string, string, string) error {
	return none()
}

func (s *storage) GetKeyByIDAndClientID(context.Context, string, string) (*jose.JSONWebKey, error) {
	return nil, none()
}
