package control_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/test/issuer"
)

// startWith is a control plane whose persons come from an issuer.
func startWith(t *testing.T, address string) *cloud {
	t.Helper()
	c := &cloud{t: t, dir: t.TempDir()}
	var err error
	if c.store, err = db.Open(c.dir, nil); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(control.New(control.Config{Store: c.store, Issuer: address, Audience: issuer.Audience}))
	t.Cleanup(func() {
		server.Close()
		c.store.Close()
	})
	c.base = server.URL
	return c
}

// TestIssuer asks a real issuer's tokens whom they speak for.
func TestIssuer(t *testing.T) {
	i := issuer.Start(t)
	s := startWith(t, i.URL)
	for _, p := range []issuer.Person{
		{Owner: "acme", Name: "alice", Project: "triage", Admin: true},
		{Owner: "acme", Name: "bob@acme.example"},
	} {
		want := api.Identity{Owner: p.Owner, Name: p.Name, Project: p.Project, Admin: p.Admin, Server: s.store.ID()}
		if p.Project == "" {
			want.Project = "default"
		}
		if got, err := s.with(i.Token(t, p)).Whoami(t.Context()); err != nil || got != want {
			t.Errorf("Whoami = %+v, %v, want %+v", got, err, want)
		}
	}
	// What was made here goes on working.
	if got, err := s.client("acme").Whoami(t.Context()); err != nil || got.Name != "test" {
		t.Errorf("a token of the server's own: %+v, %v", got, err)
	}
	_, _, body := s.with("").raw("GET", "/.well-known/openid-configuration", nil)
	if want := `{"issuer":"` + i.URL + `"}`; string(body) != want {
		t.Errorf("the issuer's address is answered as %s, want %s", body, want)
	}
	status, _, p := start(t).with("").send("GET", "/.well-known/openid-configuration", "")
	if status != 404 || p.Code != api.NotFound {
		t.Errorf("without an issuer: %d %s", status, p.Code)
	}
	refused(t, "an issuer's token where there is none", func() error {
		_, err := start(t).with(i.Token(t, issuer.Person{Owner: "acme", Name: "alice"})).Whoami(t.Context())
		return err
	}(), api.Unauthorized)
}

// TestIssuerRefusals signs what does not count. Nothing of a token is in the answer.
func TestIssuerRefusals(t *testing.T) {
	i, stranger := issuer.Start(t), issuer.Start(t)
	s := startWith(t, i.URL)
	now := time.Now()
	claims := func(change map[string]any) map[string]any {
		c := map[string]any{
			"iss": i.URL, "sub": "acme/alice", "aud": []string{issuer.Audience}, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
			"owner": "acme", "name": "alice", "project": "default", "isAdmin": false,
		}
		maps.Copy(c, change)
		for name, v := range c {
			if v == nil {
				delete(c, name)
			}
		}
		return c
	}
	if _, err := s.with(i.Sign(t, claims(nil))).Whoami(t.Context()); err != nil {
		t.Fatalf("the token that all others are changed from: %v", err)
	}
	good := i.Sign(t, claims(nil))
	parts := strings.Split(good, ".")
	enc := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	forged := enc(claims(map[string]any{"owner": "globex", "isAdmin": true}))
	mac := func(key []byte) string {
		signed := enc(map[string]any{"alg": "HS256", "typ": "JWT"}) + "." + forged
		h := hmac.New(sha256.New, key)
		io.WriteString(h, signed)
		return signed + "." + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
	}
	for name, token := range map[string]string{
		"no owner":               i.Sign(t, claims(map[string]any{"owner": nil})),
		"an empty owner":         i.Sign(t, claims(map[string]any{"owner": ""})),
		"an owner in upper case": i.Sign(t, claims(map[string]any{"owner": "ACME"})),
		"a path for an owner":    i.Sign(t, claims(map[string]any{"owner": "../acme"})),
		"a list of owners":       i.Sign(t, claims(map[string]any{"owner": []string{"acme"}})),
		"a number for an owner":  i.Sign(t, claims(map[string]any{"owner": 1})),
		"another spelling":       i.Sign(t, claims(map[string]any{"owner": nil, "Owner": "acme", "OWNER": "acme"})),
		"no name":                i.Sign(t, claims(map[string]any{"name": nil})),
		"a name of two lines":    i.Sign(t, claims(map[string]any{"name": "alice\nroot"})),
		"a word for isAdmin":     i.Sign(t, claims(map[string]any{"isAdmin": "true"})),
		"a path for a project":   i.Sign(t, claims(map[string]any{"project": "a/b"})),
		"an empty project":       i.Sign(t, claims(map[string]any{"project": ""})),
		"another audience":       i.Sign(t, claims(map[string]any{"aud": []string{"other"}})),
		"no audience":            i.Sign(t, claims(map[string]any{"aud": nil})),
		"another issuer":         i.Sign(t, claims(map[string]any{"iss": stranger.URL})),
		"no issuer":              i.Sign(t, claims(map[string]any{"iss": nil})),
		"expired":                i.Sign(t, claims(map[string]any{"exp": now.Add(-time.Minute).Unix()})),
		"without an end":         i.Sign(t, claims(map[string]any{"exp": nil})),
		"not yet":                i.Sign(t, claims(map[string]any{"nbf": now.Add(time.Hour).Unix()})),
		"another issuer's key":   stranger.Sign(t, claims(nil)),
		"no signature":           enc(map[string]any{"alg": "none"}) + "." + parts[1] + ".",
		"an empty signature":     parts[0] + "." + parts[1] + ".",
		"other claims":           parts[0] + "." + forged + "." + parts[2],
		"a key that is public":   mac([]byte(i.URL)),
		"an empty key":           mac(nil),
		"two signatures":         `{"payload":"` + parts[1] + `","signatures":[{"protected":"` + parts[0] + `","signature":"` + parts[2] + `"}]}.`,
		"dots":                   "...",
		"one dot":                ".",
		"a long nothing":         strings.Repeat("a.", 10_000),
	} {
		_, err := s.with(token).Whoami(t.Context())
		p := refused(t, name, err, api.Unauthorized)
		if len(token) > 10 && strings.Contains(fmt.Sprint(p), token) {
			t.Errorf("%s: the answer holds the token: %v", name, p)
		}
	}
	_, err := s.with(i.Sign(t, claims(map[string]any{"exp": now.Add(-time.Minute).Unix()}))).Whoami(t.Context())
	if !strings.Contains(fmt.Sprint(err), "hanzo login") {
		t.Errorf("an expired token is told %v", err)
	}
}

// A front stands before an issuer's keys, with an address of its own, and can
// misbehave.
type front struct {
	*httptest.Server
	keys string // the real ones' address

	mu      sync.Mutex
	asked   map[string]int // by path
	instead http.HandlerFunc
}

func startFront(t *testing.T, i *issuer.Issuer) *front {
	t.Helper()
	resp, err := http.Get(i.URL + "/.well-known/openid-configuration")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var says struct {
		Keys string `json:"jwks_uri"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&says); err != nil {
		t.Fatal(err)
	}
	f := &front{keys: says.Keys, asked: make(map[string]int)}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.asked[r.URL.Path]++
	instead := f.instead
	f.mu.Unlock()
	switch {
	case instead != nil:
		instead(w, r)
	case r.URL.Path == "/.well-known/openid-configuration":
		fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, f.URL, f.URL+"/keys")
	default:
		resp, err := http.Get(f.keys)
		if err != nil {
			panic(err)
		}
		defer resp.Body.Close()
		io.Copy(w, resp.Body)
	}
}

// misbehave sets what is answered to all requests from now on; nil is as it should be.
func (f *front) misbehave(instead http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.instead = instead
}

// token is one that f's issuer signs.
func (f *front) token(t *testing.T, i *issuer.Issuer) string {
	t.Helper()
	return i.Sign(t, map[string]any{
		"iss": f.URL, "aud": issuer.Audience, "exp": time.Now().Add(time.Hour).Unix(), "owner": "acme", "name": "alice",
	})
}

// eventually asks until the answer is want, an empty one being success.
func eventually(t *testing.T, what string, c *client, want api.Code) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := c.Whoami(t.Context())
		var got api.Code
		if p, ok := errors.AsType[*api.Problem](err); ok {
			got = p.Code
		} else if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v, want %q", what, err, want)
		}
	}
}

// TestIssuerUnreachable: as long as the issuer cannot be asked, its tokens are
// neither good nor bad, and a client that comes again later is heard.
func TestIssuerUnreachable(t *testing.T) {
	i := issuer.Start(t)
	f := startFront(t, i)
	unavailable := func(what string, c *client) {
		t.Helper()
		_, err := c.Whoami(t.Context())
		p := refused(t, what, err, api.Unavailable)
		if retry, _ := api.Retryable(p); !retry {
			t.Errorf("%s: not worth another try: %v", what, p)
		}
	}
	var s *cloud // asks anew: what a server was answered, it takes for a second
	var alice *client
	for name, instead := range map[string]http.HandlerFunc{
		"500":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"a page":  func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>sign in</html>") },
		"nothing": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"half": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "{")
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, i.URL+r.URL.Path, http.StatusFound) },
		"too much":   func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, strings.Repeat(" ", 2<<20)) },
		"another's document": func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, i.URL, f.keys)
		},
		"no keys' address": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"issuer":%q}`, f.URL) },
	} {
		s = startWith(t, f.URL)
		alice = s.with(f.token(t, i))
		f.misbehave(instead)
		unavailable("the issuer answers "+name, alice)

		s = startWith(t, f.URL)
		alice = s.with(f.token(t, i))
		f.misbehave(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/keys" {
				instead(w, r)
				return
			}
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, f.URL, f.URL+"/keys")
		})
		if name != "another's document" && name != "no keys' address" { // those are sets without a key
			unavailable("asked for its keys, the issuer answers "+name, alice)
		}
	}
	if _, err := s.client("acme").Whoami(t.Context()); err != nil {
		t.Errorf("meanwhile a token of the server's own: %v", err)
	}
	f.misbehave(nil)
	eventually(t, "the issuer is back", alice, "")

	// What is known of its keys is enough for the tokens that they signed.
	f.misbehave(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	if _, err := alice.Whoami(t.Context()); err != nil {
		t.Errorf("the issuer is away, and its keys are known: %v", err)
	}
	i.Rotate()
	rotated := s.with(f.token(t, i))
	eventually(t, "the issuer is away, and the key is new", rotated, api.Unavailable)
	f.misbehave(nil)
	eventually(t, "the new key can be had", rotated, "")
}

// TestIssuerIsSpared sends many tokens whose key nobody knows: each is refused, and
// the issuer is not asked for its keys as often.
func TestIssuerIsSpared(t *testing.T) {
	i, stranger := issuer.Start(t), issuer.Start(t)
	f := startFront(t, i)
	s := startWith(t, f.URL)
	began := time.Now()
	token := f.token(t, stranger)
	for range 100 {
		_, err := s.with(token).Whoami(t.Context())
		refused(t, "a token of an unknown key", err, api.Unauthorized)
	}
	seconds := int(time.Since(began)/time.Second) + 2
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.asked["/keys"]; n > seconds || n == 0 {
		t.Errorf("the keys were asked for %d times in %d s", n, seconds)
	}
	if n := f.asked["/.well-known/openid-configuration"]; n != 1 {
		t.Errorf("the issuer was discovered %d times", n)
	}
}

func TestCheckIssuer(t *testing.T) {
	for address, ok := range map[string]bool{
		"https://iam.example": true, "https://iam.example/realm": true, "http://127.0.0.1:9000": true, "http://localhost:9000": true, "http://[::1]:9000": true,
		"": false, "iam.example": false, "http://iam.example": false, "http://192.0.2.1": false, "ftp://iam.example": false,
		"https://": false, "https://u:p@iam.example": false, "https://iam.example?x=1": false, "https://iam.example#x": false, "http://127.0.0.1.evil.example": false,
	} {
		if err := control.CheckIssuer(address, "a"); (err == nil) != ok {
			t.Errorf("CheckIssuer(%q) = %v", address, err)
		}
	}
	if control.CheckIssuer("https://iam.example", "") == nil {
		t.Error("an issuer without an audience is taken")
	}
}
