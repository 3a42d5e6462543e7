package logincmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/test/issuer"
)

var alice = issuer.Person{Owner: "acme", Name: "alice", Project: "kai", Admin: true}

// cloud is a real control plane, with an issuer or without, and the home of somebody
// who is not logged in yet.
type cloud struct {
	t     *testing.T
	base  string
	home  string
	store *db.Store
}

func start(t *testing.T, address string) *cloud {
	t.Helper()
	store, err := db.Open(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	cfg := control.Config{Store: store, Issuer: address}
	if address != "" {
		cfg.Audience = issuer.Audience
	}
	server := httptest.NewServer(control.New(cfg))
	t.Cleanup(server.Close)
	c := &cloud{t: t, base: server.URL, home: t.TempDir(), store: store}
	t.Setenv("HOME", c.home)
	for _, name := range []string{"HANZO_API", "HANZO_TOKEN_FILE", "SUDO_USER"} {
		t.Setenv(name, "")
	}
	return c
}

// login runs hanzo login; decide is what its person does with the code.
func (c *cloud) login(decide func(code string) error, args ...string) (status term.Status, out, errs string) {
	c.t.Helper()
	var stdout, stderr bytes.Buffer
	w := &reader{out: &stdout, decide: decide}
	status = term.Program{Name: "hanzo", Commands: []term.Command{Login}}.Main(c.t.Context(), append([]string{"login"}, args...), term.IO{Out: w, Err: &stderr})
	if w.err != nil {
		c.t.Error(w.err)
	}
	return status, stdout.String(), stderr.String()
}

// reader is a person who reads what is printed and acts on the code.
type reader struct {
	out    *bytes.Buffer
	decide func(string) error
	err    error
}

var codeShown = regexp.MustCompile(`and enter the code (\S+)\n`)

func (r *reader) Write(p []byte) (int, error) {
	if m := codeShown.FindSubmatch(p); m != nil && r.decide != nil {
		r.err = r.decide(string(m[1]))
	}
	return r.out.Write(p)
}

func (c *cloud) tokenFile(mode os.FileMode) string {
	c.t.Helper()
	token, err := c.store.Tokens.Mint(c.t.Context(), api.Identity{Owner: "acme", Name: "alice", Project: "kai"})
	if err != nil {
		c.t.Fatal(err)
	}
	name := filepath.Join(c.t.TempDir(), "token")
	if err := errors.Join(os.WriteFile(name, []byte(token+"\n"), 0o600), os.Chmod(name, mode)); err != nil {
		c.t.Fatal(err)
	}
	return name
}

func mustSay(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
}

func TestDeviceFlow(t *testing.T) {
	i := issuer.Start(t)
	c := start(t, i.URL)
	status, out, errs := c.login(func(code string) error { return i.Approve(code, alice) }, c.base)
	if status != term.OK {
		t.Fatalf("status %d: %s", status, errs)
	}
	mustSay(t, out, "open "+i.URL+"/device", "logged in to "+c.base+" as alice of acme, an admin of it")

	info, err := os.Stat(filepath.Join(c.home, ".hanzo", "login.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(c.home, ".hanzo")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	s, err := Session("")
	if err != nil {
		t.Fatal(err)
	}
	if s.API != c.base || s.Org != "acme" || s.Name != "alice" || s.TokenFile != "" || s.Expiry.IsZero() {
		t.Errorf("%+v", s)
	}
	who, err := s.Client().Whoami(t.Context())
	if err != nil || who.Owner != "acme" || !who.Admin || who.Project != "kai" {
		t.Errorf("%+v, %v", who, err)
	}

	// The next one needs no address.
	if status, out, errs := c.login(func(code string) error { return i.Approve(code, alice) }); status != term.OK {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
}

func TestRefusedInTheBrowser(t *testing.T) {
	i := issuer.Start(t)
	c := start(t, i.URL)
	status, _, errs := c.login(i.Deny, c.base)
	if status != term.Failed {
		t.Errorf("status %d", status)
	}
	mustSay(t, errs, "refused in the browser")
	if _, err := Session(""); !errors.Is(err, ErrNoLogin) {
		t.Errorf("%v", err)
	}
}

// A person of no organisation has a token that opens nothing.
func TestOfNoOrganisation(t *testing.T) {
	i := issuer.Start(t)
	c := start(t, i.URL)
	status, _, errs := c.login(func(code string) error { return i.Approve(code, issuer.Person{Name: "eve"}) }, c.base)
	if status != term.Failed {
		t.Errorf("status %d", status)
	}
	mustSay(t, errs, "does not take this token", "owner")
	if _, err := Session(""); !errors.Is(err, ErrNoLogin) {
		t.Errorf("%v", err)
	}
}

// Eight processes find the token about to expire; the refresh token rotates, so that
// a second use of it would end the login.
func TestOneOfManyRenews(t *testing.T) {
	i := issuer.Start(t)
	i.SetLife(margin / 2)
	c := start(t, i.URL)
	if status, _, errs := c.login(func(code string) error { return i.Approve(code, alice) }, c.base); status != term.OK {
		t.Fatal(errs)
	}
	i.SetLife(time.Hour)
	var all sync.WaitGroup
	for range 8 {
		s, err := Session("")
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			if _, err := s.Client().Whoami(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if spent, refused := i.Refreshed(); spent != 1 || refused != 0 {
		t.Errorf("%d refresh tokens were spent, and %d refused", spent, refused)
	}

	// And what was kept renews again.
	i.SetLife(margin / 2)
	p, l := c.kept()
	l.Expiry = time.Now().UTC().Format(time.RFC3339)
	if err := p.write(l); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s, err := Session("")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Client().Whoami(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if spent, refused := i.Refreshed(); spent != 4 || refused != 0 {
		t.Errorf("%d refresh tokens were spent, and %d refused", spent, refused)
	}
}

func (c *cloud) kept() (person, login) {
	c.t.Helper()
	p, err := find("")
	if err != nil {
		c.t.Fatal(err)
	}
	l, err := p.read()
	if err != nil {
		c.t.Fatal(err)
	}
	return p, l
}

// A refresh token that somebody else has spent ends the login, and says so.
func TestSpentElsewhere(t *testing.T) {
	i := issuer.Start(t)
	i.SetLife(margin / 2)
	c := start(t, i.URL)
	if status, _, errs := c.login(func(code string) error { return i.Approve(code, alice) }, c.base); status != term.OK {
		t.Fatal(errs)
	}
	p, l := c.kept()
	if _, err := refresh(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	_, err := p.renew(l)
	if err == nil {
		t.Fatal("renewed")
	}
	mustSay(t, err.Error(), "has ended", "run hanzo login "+c.base)
	for _, secret := range []string{l.AccessToken, l.RefreshToken} {
		if strings.Contains(err.Error(), secret) {
			t.Error("the error holds a token")
		}
	}
}

// While the issuer does not answer, a token that is still good is used.
func TestIssuerAway(t *testing.T) {
	i := issuer.Start(t)
	i.SetLife(margin / 2)
	c := start(t, i.URL)
	if status, _, errs := c.login(func(code string) error { return i.Approve(code, alice) }, c.base); status != term.OK {
		t.Fatal(errs)
	}
	p, l := c.kept()
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	l.TokenURL = away.URL
	if err := p.write(l); err != nil {
		t.Fatal(err)
	}
	if got, err := p.renew(l); err != nil || got.AccessToken != l.AccessToken {
		t.Errorf("%v", err)
	}
	l.Expiry = time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	if err := p.write(l); err != nil {
		t.Fatal(err)
	}
	if _, err := p.renew(l); err == nil {
		t.Error("an expired token was used")
	} else {
		mustSay(t, err.Error(), "could not be renewed", "try again")
	}
}

// What cannot be kept is not spent.
func TestNothingIsSpentThatCannotBeKept(t *testing.T) {
	i := issuer.Start(t)
	i.SetLife(margin / 2)
	c := start(t, i.URL)
	if status, _, errs := c.login(func(code string) error { return i.Approve(code, alice) }, c.base); status != term.OK {
		t.Fatal(errs)
	}
	p, l := c.kept()
	dir := filepath.Dir(p.path())
	if os.Geteuid() != 0 {
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Chmod(dir, 0o700) })
	} else { // whom no mode keeps from writing; but nothing is renamed over a mount
		if out, err := exec.Command("mount", "--bind", p.path(), p.path()).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Cleanup(func() { exec.Command("umount", p.path()).Run() })
	}
	if _, err := p.renew(l); err == nil {
		t.Error("renewed")
	}
	if spent, refused := i.Refreshed(); spent+refused != 0 {
		t.Errorf("%d were spent", spent)
	}
}

// An issuer in trouble is asked again; so is one behind a proxy that answers a page.
func TestIssuerInTrouble(t *testing.T) {
	c := start(t, "")
	var polls int
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("GET "+wellKnown, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, discovery{server.URL, server.URL + "/token", server.URL + "/device"})
	})
	mux.HandleFunc("POST /device", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("client_id") != "hanzo-cli" || r.FormValue("scope") != "openid profile email offline_access" {
			t.Errorf("asked with %v", r.Form)
		}
		answer(w, map[string]any{"device_code": "d", "user_code": "CODE\x1b[2J", "verification_uri": "http://127.0.0.1/", "expires_in": 600, "interval": 1})
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		switch polls++; polls {
		case 1:
			w.WriteHeader(http.StatusBadGateway)
			fmt.Fprint(w, "<html>bad gateway</html>")
		case 2:
			hijacked, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			hijacked.Close()
		default:
			token, err := c.store.Tokens.Mint(r.Context(), api.Identity{Owner: "acme", Name: "alice", Project: "kai"})
			if err != nil {
				t.Error(err)
			}
			answer(w, map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": 60})
		}
	})
	status, out, errs := c.login(nil, c.base, "--issuer", server.URL)
	if status != term.OK {
		t.Fatalf("status %d: %s", status, errs)
	}
	if strings.Contains(out, "\x1b") {
		t.Errorf("what an issuer says reaches the terminal as it is: %q", out)
	}
	if polls != 3 {
		t.Errorf("it asked %d times", polls)
	}
}

func TestTokenFile(t *testing.T) {
	c := start(t, "")
	name := c.tokenFile(0o600)
	status, out, errs := c.login(nil, c.base+"/", "--token-file", name)
	if status != term.OK {
		t.Fatalf("status %d: %s", status, errs)
	}
	mustSay(t, out, "logged in to "+c.base+" as alice of acme;")
	s, err := Session("")
	if err != nil || s.TokenFile != name || s.Org != "acme" {
		t.Fatalf("%+v, %v", s, err)
	}
	kept, err := os.ReadFile(filepath.Join(c.home, ".hanzo", "login.json"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(kept, bytes.TrimSpace(token)) {
		t.Error("the token was copied")
	}
	if _, err := s.Client().Whoami(t.Context()); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(name, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client().Whoami(t.Context()); err == nil {
		t.Error("the file is not read at each call")
	}
}

func TestRefusals(t *testing.T) {
	c := start(t, "")
	open := c.tokenFile(0o644)
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte("not a token"), 0o600); err != nil {
		t.Fatal(err)
	}
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	t.Cleanup(page.Close)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"issuer":"https://evil.example"}`)
	}))
	t.Cleanup(other.Close)
	for _, refused := range []struct {
		args   []string
		status term.Status
		says   string
	}{
		{nil, term.Usage, "which control plane? give its address"},
		{[]string{c.base}, term.Failed, "has no issuer to sign in with: give --token-file FILE"},
		{[]string{c.base, "--token-file", open}, term.Failed, "chmod 600"},
		{[]string{c.base, "--token-file", wrong}, term.Failed, "does not take this token"},
		{[]string{c.base, "--token-file", wrong + "er"}, term.Failed, "no such file"},
		{[]string{"ftp://x"}, term.Usage, "cannot be called: give http://HOST:PORT or https://HOST"},
		{[]string{"https://user:secret@host"}, term.Usage, "cannot be called"},
		{[]string{c.base, "more"}, term.Usage, "expected one address"},
		{[]string{c.base, "--token-file", open, "--issuer", "https://x"}, term.Usage, "give one of them"},
		{[]string{c.base, "--issuer", "http://issuer.example"}, term.Failed, "it must be https"},
		{[]string{"http://control.example"}, term.Failed, "it must be https"},
		{[]string{page.URL}, term.Failed, "names no issuer"},
		{[]string{c.base, "--issuer", page.URL}, term.Failed, "names no issuer"},
		{[]string{c.base, "--issuer", other.URL}, term.Failed, "calls itself \"https://evil.example\""},
	} {
		status, _, errs := c.login(nil, refused.args...)
		if status != refused.status || !strings.Contains(errs, refused.says) {
			t.Errorf("%v: status %d, and it says: %s", refused.args, status, errs)
		}
	}
	if _, err := Session(""); !errors.Is(err, ErrNoLogin) {
		t.Errorf("%v", err)
	}
	if os.Geteuid() == 0 {
		t.Setenv("SUDO_USER", "alice")
		status, _, errs := c.login(nil, c.base, "--token-file", c.tokenFile(0o600))
		if status != term.Usage || !strings.Contains(errs, "without sudo") {
			t.Errorf("status %d: %s", status, errs)
		}
	}
}

// The environment goes before what was saved, as it does for train.
func TestPrecedence(t *testing.T) {
	c := start(t, "")
	name := c.tokenFile(0o600)
	if status, _, errs := c.login(nil, c.base, "--token-file", name); status != term.OK {
		t.Fatal(errs)
	}
	for _, env := range []struct{ api, file, wantAPI, wantFile string }{
		{"", "", c.base, name},
		{"", "/elsewhere", c.base, name},
		{c.base, "", c.base, name},
		{c.base + "/", "", c.base, name},
		{c.base, "/elsewhere", c.base, "/elsewhere"},
		{"http://127.0.0.1:1", "", "http://127.0.0.1:1", ""},
		{"http://127.0.0.1:1", "/elsewhere", "http://127.0.0.1:1", "/elsewhere"},
	} {
		t.Setenv("HANZO_API", env.api)
		t.Setenv("HANZO_TOKEN_FILE", env.file)
		s, err := Session("")
		if err != nil || s.API != env.wantAPI || s.TokenFile != env.wantFile {
			t.Errorf("%+v: %+v, %v", env, s, err)
		}
	}
	t.Setenv("HANZO_API", "not an address")
	if _, err := Session(""); err == nil {
		t.Error("an address that cannot be called was taken")
	}
}

func TestAFileThatIsNotTheirs(t *testing.T) {
	c := start(t, "")
	name := c.tokenFile(0o600)
	good, err := canon.Marshal(login{API: c.base, Org: "acme", Name: "alice", TokenFile: name})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.home, ".hanzo")
	path := filepath.Join(dir, "login.json")
	for _, file := range []struct {
		what string
		make func() error
		says string // "" is taken
	}{
		{"good", func() error { return os.WriteFile(path, good, 0o600) }, ""},
		{"open to all", func() error { return errors.Join(os.WriteFile(path, good, 0o600), os.Chmod(path, 0o644)) }, "chmod 600"},
		{"a folder", func() error { return os.Mkdir(path, 0o700) }, "is not what it should be"},
		{"a page", func() error { return os.WriteFile(path, []byte("<html>"), 0o600) }, "run hanzo login again"},
		{"empty", func() error { return os.WriteFile(path, nil, 0o600) }, "run hanzo login again"},
		{"half", func() error { return os.WriteFile(path, good[:len(good)/2], 0o600) }, "run hanzo login again"},
		{"unknown member", func() error {
			return os.WriteFile(path, bytes.Replace(good, []byte("{"), []byte(`{"x":1,`), 1), 0o600)
		}, "run hanzo login again"},
		{"neither", func() error { return os.WriteFile(path, []byte(`{"api":"http://x","org":"o","name":"n"}`), 0o600) }, "neither a token"},
		{"a folder that all may write", func() error {
			return errors.Join(os.WriteFile(path, good, 0o600), os.Chmod(dir, 0o777))
		}, "chmod go-w"},
	} {
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700), file.make()); err != nil {
			t.Fatal(err)
		}
		_, err := Session("")
		if file.says == "" && err != nil {
			t.Errorf("%s: %v", file.what, err)
		}
		if file.says != "" && (err == nil || !strings.Contains(err.Error(), file.says)) {
			t.Errorf("%s: %v", file.what, err)
		}
	}
}

// What root does for somebody else stays in their home, and is theirs.
func TestForSomebodyElse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root acts for others")
	}
	const nobody = 65534
	i := issuer.Start(t)
	i.SetLife(margin / 2)
	c := start(t, i.URL)
	if status, _, errs := c.login(func(code string) error { return i.Approve(code, alice) }, c.base); status != term.OK {
		t.Fatal(errs)
	}
	dir := filepath.Join(c.home, ".hanzo")
	path := filepath.Join(dir, "login.json")
	p := person{name: "bob", home: c.home, uid: nobody, gid: nobody, other: true}
	refused := func(says string) {
		t.Helper()
		l, err := p.read()
		if err == nil && l.TokenFile != "" {
			_, err = p.tokenFile(l.TokenFile)
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v", err)
		}
	}
	refused("belongs to user 0") // root's own login
	own := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.Lchown(name, nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
	}
	own(dir)
	refused("belongs to user 0")
	own(path)
	l, err := p.read()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, lockName)); err != nil {
		t.Fatal(err)
	}
	i.SetLife(time.Hour)
	if l, err = p.renew(l); err != nil || l.due(time.Now()) {
		t.Fatal(err)
	}
	for _, name := range []string{fileName, lockName} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.owns(f, 0, 0o077, "read it"); err != nil {
			t.Errorf("%s %v", name, err)
		}
		f.Close()
	}

	// A link out of the home: to root's own login, and to root's folder.
	roots := t.TempDir()
	secret := filepath.Join(roots, "login.json")
	if err := errors.Join(os.Rename(path, secret), os.Symlink(secret, path)); err != nil {
		t.Fatal(err)
	}
	own(path)
	refused("escapes")
	if err := errors.Join(os.RemoveAll(dir), os.Symlink(roots, dir)); err != nil {
		t.Fatal(err)
	}
	own(dir)
	refused("escapes")
	if err := p.write(l); err == nil {
		t.Error("root wrote outside of the home")
	}

	// A token file of root's, which would be sent to the control plane of a login that
	// its person wrote.
	if err := errors.Join(os.Remove(dir), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	own(dir)
	name := c.tokenFile(0o600)
	if err := p.write(login{API: c.base, Org: "acme", Name: "alice", TokenFile: name}); err != nil {
		t.Fatal(err)
	}
	refused("belongs to user 0")
	linked := filepath.Join(c.home, "token")
	if err := os.Symlink(name, linked); err != nil {
		t.Fatal(err)
	}
	own(linked)
	if err := p.write(login{API: c.base, Org: "acme", Name: "alice", TokenFile: linked}); err != nil {
		t.Fatal(err)
	}
	refused("not a regular file")
	own(name)
	if err := p.write(login{API: c.base, Org: "acme", Name: "alice", TokenFile: name}); err != nil {
		t.Fatal(err)
	}
	l, err = p.read()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.session(l).Client().Whoami(t.Context()); err != nil {
		t.Error(err)
	}

	// Nobody is logged in.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := p.read(); !errors.Is(err, ErrNoLogin) || !strings.Contains(err.Error(), "without sudo") {
		t.Errorf("%v", err)
	}
}
