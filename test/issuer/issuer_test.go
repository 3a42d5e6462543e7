package issuer

import (
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

var alice = Person{Owner: "acme", Name: "alice", Project: "default", Admin: true}

// TestDeviceGrant is a whole login by a client that is not of this repository.
func TestDeviceGrant(t *testing.T) {
	i := Start(t)
	provider, err := oidc.NewProvider(t.Context(), i.URL)
	if err != nil {
		t.Fatal(err)
	}
	config := oauth2.Config{ClientID: ClientID, Endpoint: provider.Endpoint(), Scopes: []string{"openid", "profile", "offline_access"}}
	code, err := config.DeviceAuth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Approve(code.UserCode, alice); err != nil {
		t.Fatal(err)
	}
	token, err := config.DeviceAccessToken(t.Context(), code)
	if err != nil {
		t.Fatal(err)
	}
	verifier := provider.Verifier(&oidc.Config{ClientID: Audience})
	check := func(access string) {
		t.Helper()
		verified, err := verifier.Verify(t.Context(), access)
		if err != nil {
			t.Fatal(err)
		}
		var claims struct {
			Owner, Name, Project string
			Admin                bool `json:"isAdmin"`
		}
		if err := verified.Claims(&claims); err != nil {
			t.Fatal(err)
		}
		if got := (Person{claims.Owner, claims.Name, claims.Project, claims.Admin}); got != alice {
			t.Errorf("the token is of %+v", got)
		}
	}
	check(token.AccessToken)
	check(i.Token(t, alice))

	old := token.RefreshToken
	token.Expiry = time.Now().Add(-time.Hour)
	fresh, err := config.TokenSource(t.Context(), token).Token()
	if err != nil {
		t.Fatal(err)
	}
	check(fresh.AccessToken)
	if fresh.RefreshToken == old || fresh.RefreshToken == "" {
		t.Error("the refresh token did not rotate")
	}
	if _, err := config.TokenSource(t.Context(), &oauth2.Token{RefreshToken: old}).Token(); err == nil {
		t.Error("a spent refresh token was taken again")
	}
	if spent, refused := i.Refreshed(); spent != 1 || refused != 1 {
		t.Errorf("%d spent, %d refused", spent, refused)
	}

	i.Rotate() // a verifier that has the old key may believe it for longer
	other, err := oidc.NewProvider(t.Context(), i.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Verifier(&oidc.Config{ClientID: Audience}).Verify(t.Context(), fresh.AccessToken); err == nil {
		t.Error("what the old key signed is still verified")
	}
}

func TestDeny(t *testing.T) {
	i := Start(t)
	provider, err := oidc.NewProvider(t.Context(), i.URL)
	if err != nil {
		t.Fatal(err)
	}
	config := oauth2.Config{ClientID: ClientID, Endpoint: provider.Endpoint()}
	code, err := config.DeviceAuth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Deny(code.UserCode); err != nil {
		t.Fatal(err)
	}
	if _, err := config.DeviceAccessToken(t.Context(), code); err == nil {
		t.Error("a token in spite of the refusal")
	}
	if err := i.Approve("AAAA-AAAA", alice); err == nil {
		t.Error("a code that nobody asked for was approved")
	}
}
