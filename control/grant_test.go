package control_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// granted registers the artifact of content for an upload.
func (c *client) granted(content []byte) (record.Artifact, api.Grant) {
	c.t.Helper()
	a := artifact(record.KindCheckpoint, record.Train)
	a.SHA256, a.Size = canon.Sum(content), uint64(len(content))
	got, err := c.RegisterArtifact(c.t.Context(), a, nil)
	c.must(err)
	if got.Stored || got.Grant == nil {
		c.t.Fatalf("registered without bytes: %+v", got)
	}
	return a, *got.Grant
}

func (c *client) bytes(sha canon.SHA256) []byte {
	c.t.Helper()
	r, err := c.Artifact(c.t.Context(), sha)
	c.must(err)
	defer r.Close()
	b, err := io.ReadAll(r)
	c.must(err)
	return b
}

func TestGrant(t *testing.T) {
	s := start(t)
	c := s.client("acme")
	ctx := t.Context()
	content := []byte("the tar of a checkpoint")
	a, g := c.granted(content)
	if g.Upload == nil || len(g.Parts) != 0 || g.Upload.Size != a.Size || g.Expires != "2026-09-29T08:12:00Z" {
		t.Fatalf("grant %+v, want one PUT that lives 30 minutes", g)
	}
	notStored := func(what string) {
		t.Helper()
		_, err := c.Artifact(ctx, a.SHA256)
		refused(t, "after "+what+", the bytes", err, api.NotFound)
	}

	refused(t, "wrong bytes", c.Upload(ctx, g, strings.NewReader("THE TAR OF A CHECKPOINT")), api.AddressMismatch)
	notStored("wrong bytes")

	for _, n := range []int{len(content) - 1, len(content) + 1} {
		short := g
		u := *g.Upload
		u.Size = uint64(n)
		short.Upload = &u
		refused(t, "another length", c.Upload(ctx, short, bytes.NewReader(make([]byte, n))), api.LengthMismatch)
	}
	status, _, body := c.raw("PUT", g.Upload.URL, struct{ io.Reader }{bytes.NewReader(content)}) // chunked: no length
	if status != 422 {
		t.Errorf("without a length: %d %s", status, body)
	}
	notStored("wrong lengths")

	for _, elsewhere := range []api.Upload{
		{Method: "PUT", URL: "http://192.0.2.1/v1"}, {Method: "POST", URL: g.Upload.URL}, {Method: "PUT", URL: "file:///etc/passwd"},
	} {
		elsewhere.Size = uint64(len(content))
		if err := c.Upload(ctx, api.Grant{Upload: &elsewhere}, bytes.NewReader(content)); err == nil || !strings.Contains(err.Error(), "the grant asks for") {
			t.Errorf("%s %s: %v", elsewhere.Method, elsewhere.URL, err)
		}
	}

	address, err := url.Parse(g.Upload.URL)
	c.must(err)
	tampered := func(change func(path *string, q url.Values)) api.Grant {
		u, q, path := *g.Upload, address.Query(), address.Path
		change(&path, q)
		u.URL = path + "?" + q.Encode()
		return api.Grant{Upload: &u}
	}
	claim, err := base64.RawURLEncoding.DecodeString(address.Query().Get("grant"))
	c.must(err)
	forge := func(old, now string) func(*string, url.Values) {
		return func(_ *string, q url.Values) {
			if !bytes.Contains(claim, []byte(old)) {
				t.Fatalf("%s is not in the claim %s", old, claim)
			}
			q.Set("grant", base64.RawURLEncoding.EncodeToString(bytes.Replace(claim, []byte(old), []byte(now), 1)))
		}
	}
	for name, change := range map[string]func(*string, url.Values){
		"no signature": func(_ *string, q url.Values) { q.Del("signature") },
		"no grant":     func(_ *string, q url.Values) { q.Del("grant") },
		"another bit":  func(_ *string, q url.Values) { q.Set("signature", strings.Repeat("A", 43)) },
		"another address": func(path *string, _ url.Values) {
			*path = strings.Replace(*path, string(a.SHA256), string(canon.Sum(nil)), 1)
		},
		"another org":   forge(`"org":"acme"`, `"org":"evil"`),
		"a longer life": forge(`"expires":1`, `"expires":2`),
	} {
		refused(t, name, c.Upload(ctx, tampered(change), bytes.NewReader(content)), api.GrantInvalid)
	}

	s.wait(api.GrantLife)
	refused(t, "too late", c.Upload(ctx, g, bytes.NewReader(content)), api.GrantExpired)
	notStored("a grant that expired")

	_, g = c.granted(content)
	c.must(c.Upload(ctx, g, bytes.NewReader(content)))
	if got := c.bytes(a.SHA256); !bytes.Equal(got, content) {
		t.Errorf("stored %q, want %q", got, content)
	}
	refused(t, "used again", c.Upload(ctx, g, bytes.NewReader(content)), api.GrantUsed)
	again, err := c.RegisterArtifact(ctx, a, nil)
	if err != nil || !again.Stored || again.Grant != nil {
		t.Errorf("registered when stored: %+v, %v", again, err)
	}
}

// TestGrantCompressed sends JSON compressed, and then in another form than the
// newest registration says.
func TestGrantCompressed(t *testing.T) {
	c := start(t).client("acme")
	ctx := t.Context()
	const form = `{"a":[1.5,100],"b":1}`
	packed := zstded(t, form)
	a := artifact(record.KindPlan, record.Train)
	a.SHA256, a.Size = canon.Sum([]byte(form)), uint64(len(form))
	plain, err := c.RegisterArtifact(ctx, a, nil)
	c.must(err)
	how, n := record.Zstd, uint64(len(packed))
	a.Compression, a.CompressedSize = &how, &n
	got, err := c.RegisterArtifact(ctx, a, nil)
	c.must(err)
	refused(t, "the older grant", c.Upload(ctx, *plain.Grant, strings.NewReader(form)), api.GrantInvalid)
	c.must(c.Upload(ctx, *got.Grant, bytes.NewReader(packed)))
	if got := c.bytes(a.SHA256); string(got) != form {
		t.Errorf("stored %q, want %q", got, form)
	}
}

// TestParts uploads 64 MiB and a little in two parts: the second first, then a
// wrong first, which drops both, then all anew.
func TestParts(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 64 MiB several times")
	}
	c := start(t).client("acme")
	ctx := t.Context()
	content := bytes.Repeat([]byte("0123456789abcdef"), api.PartSize/16+1)
	a, g := c.granted(content)
	if g.Upload != nil || len(g.Parts) != 2 || g.Parts[1].Offset != api.PartSize || g.Parts[1].Size != 16 {
		t.Fatalf("grant %+v, want two parts", g)
	}
	c.must(c.Upload(ctx, api.Grant{Parts: g.Parts[1:]}, bytes.NewReader(content)))
	refused(t, "the second part again", c.Upload(ctx, api.Grant{Parts: g.Parts[1:]}, bytes.NewReader(content)), api.GrantUsed)

	resumed, err := c.RegisterArtifact(ctx, a, nil)
	c.must(err)
	if resumed.Stored || len(resumed.Grant.Parts) != 1 || resumed.Grant.Parts[0].Number != 1 {
		t.Fatalf("registered again with one part held: %+v", resumed.Grant)
	}
	wrong := bytes.Clone(content)
	wrong[7] ^= 1
	refused(t, "a wrong first part", c.Upload(ctx, *resumed.Grant, bytes.NewReader(wrong)), api.AddressMismatch)

	_, g = c.granted(content)
	if len(g.Parts) != 2 {
		t.Fatalf("after wrong bytes %d parts are missing, want both", len(g.Parts))
	}
	c.must(c.Upload(ctx, g, bytes.NewReader(content)))
	if got := c.bytes(a.SHA256); !bytes.Equal(got, content) {
		t.Errorf("stored %d bytes that are not what was sent", len(got))
	}
}

// TestShutdown stops a server in the middle of an upload and of nothing else: the
// upload is answered, and later connections are refused.
// TestPartsWithoutAssembly is a server that was killed after it stored the last
// part of an upload and before it put the parts together: whichever request comes
// next does that.
func TestPartsWithoutAssembly(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 64 MiB several times")
	}
	s := start(t)
	c := s.client("acme")
	ctx := t.Context()
	size := int64(api.PartSize + 16)
	// parts leaves the files of two parts of zeros as the dead server did.
	parts := func(a record.Artifact) {
		t.Helper()
		for i, size := range []int64{api.PartSize, 16} {
			name := filepath.Join(s.dir, "orgs", "acme", "parts", fmt.Sprintf("%s.%d", a.SHA256, i+1))
			c.must(os.WriteFile(name, nil, 0o600))
			c.must(os.Truncate(name, size))
		}
	}
	left := func() int {
		t.Helper()
		list, err := filepath.Glob(filepath.Join(s.dir, "orgs", "acme", "parts", "*"))
		c.must(err)
		return len(list)
	}

	zeros := make([]byte, size)
	a, _ := c.granted(zeros)
	parts(a)
	got, err := c.RegisterArtifact(ctx, a, nil)
	if err != nil || !got.Stored || got.Grant != nil || left() != 0 {
		t.Errorf("registered with every part held: stored %t, grant %+v, %v, %d parts left", got.Stored, got.Grant, err, left())
	}
	if got := c.bytes(a.SHA256); !bytes.Equal(got, zeros) {
		t.Error("the parts were put together to other bytes")
	}

	// The same by the last PUT made again, of bytes whose sum is wrong.
	ones := bytes.Repeat([]byte{1}, int(size))
	a, g := c.granted(ones)
	parts(a)
	last := api.Grant{Parts: g.Parts[1:]}
	refused(t, "the last PUT again, wrong parts", c.Upload(ctx, last, bytes.NewReader(ones)), api.AddressMismatch)
	if left() != 0 {
		t.Errorf("%d wrong parts are left", left())
	}
	parts(a)
	_, err = c.RegisterArtifact(ctx, a, nil)
	refused(t, "registered, wrong parts", err, api.AddressMismatch)
	if _, g = c.granted(ones); len(g.Parts) != 2 {
		t.Fatalf("the grant after it %+v, want two parts", g)
	}
	c.must(c.Upload(ctx, g, bytes.NewReader(ones)))
	if got := c.bytes(a.SHA256); !bytes.Equal(got, ones) {
		t.Error("uploaded anew, the bytes differ")
	}

	// The PUT made again of parts that are right is answered as the first was
	// to be.
	twos := bytes.Repeat([]byte{2}, int(size))
	a, g = c.granted(twos)
	parts(a)
	for i, name := range []string{".1", ".2"} {
		b := twos[:api.PartSize]
		if i == 1 {
			b = twos[api.PartSize:]
		}
		c.must(os.WriteFile(filepath.Join(s.dir, "orgs", "acme", "parts", string(a.SHA256)+name), b, 0o600))
	}
	c.must(c.Upload(ctx, api.Grant{Parts: g.Parts[1:]}, bytes.NewReader(twos)))
	if got := c.bytes(a.SHA256); !bytes.Equal(got, twos) {
		t.Error("the last PUT again did not store the bytes")
	}
}

func TestShutdown(t *testing.T) {
	store, err := db.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- control.New(control.Config{Store: store, Grace: time.Minute}).Serve(ctx, l) }()
	s := &cloud{t: t, base: "http://" + l.Addr().String(), store: store}
	c := s.client("acme")
	content := []byte("half now, half later")
	a, g := c.granted(content)

	r, w := io.Pipe()
	uploaded := make(chan error, 1)
	go func() { uploaded <- c.Upload(context.Background(), g, r) }()
	if _, err := w.Write(content[:4]); err != nil { // returns once the transport has read it
		t.Fatal(err)
	}
	stop()
	for dialed := net.Conn(nil); ; dialed.Close() { // the listener closes first
		if dialed, err = net.Dial("tcp", l.Addr().String()); err != nil {
			break
		}
	}
	go func() {
		w.Write(content[4:])
		w.Close()
	}()
	if err := <-uploaded; err != nil {
		t.Errorf("the upload under way: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	o, err := store.Org("acme")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := o.Artifact(t.Context(), a.SHA256); err != nil || got.State != record.Stored {
		t.Errorf("the artifact is %+v, %v", got, err)
	}
}

// TestConcurrentAppends has many clients send one log at once: every event is
// accepted once in all.
func TestConcurrentAppends(t *testing.T) {
	c := start(t).client("acme")
	events := trainingLog(c, "r")
	var wg sync.WaitGroup
	var mu sync.Mutex
	var total api.Appended
	for range 8 {
		wg.Go(func() {
			for i := range events {
				got, err := c.AppendEvents(context.Background(), "r", events[:i+1])
				if err != nil {
					t.Errorf("events up to %d: %v", i+1, err)
				}
				mu.Lock()
				total.Accepted += got.Accepted
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if total.Accepted != uint64(len(events)) {
		t.Errorf("%d events accepted, want %d", total.Accepted, len(events))
	}
	if log, err := c.Events(t.Context(), "r", 0, 0); err != nil || len(log) != len(events) {
		t.Errorf("the log has %d events, %v", len(log), err)
	}
}

// TestOpenTwice checks that a folder has one server.
func TestOpenTwice(t *testing.T) {
	dir := t.TempDir()
	store, err := db.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Open(dir, nil); err == nil || !strings.Contains(err.Error(), db.ErrInUse.Error()) {
		t.Errorf("opened twice: %v", err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	if store, err = db.Open(dir, nil); err != nil {
		t.Fatalf("opened after it was closed: %v", err)
	}
	store.Close()
}

// TestTokenFile checks what a client takes for a token.
// TestInstance: a control plane keeps its id over a restart, and no two have one.
func TestInstance(t *testing.T) {
	open := func(dir string) string {
		t.Helper()
		s, err := db.Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return s.ID()
	}
	one, other := t.TempDir(), t.TempDir()
	id := open(one)
	if len(id) != 32 || open(one) != id || open(other) == id {
		t.Errorf("ids %q, %q again, %q elsewhere", id, open(one), open(other))
	}
	s := start(t)
	who, err := s.client("acme").Whoami(t.Context())
	if want := (api.Identity{Owner: "acme", Name: "test", Project: "default", Server: s.store.ID()}); err != nil || who != want {
		t.Errorf("Whoami = %+v, %v, want %+v", who, err, want)
	}
}

func TestTokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	for _, tt := range []struct {
		content string
		mode    os.FileMode
		want    string // of the error; empty: none
	}{
		{"secret\n", 0o600, ""},
		{"secret\n", 0o400, ""},
		{"secret\n", 0o640, "chmod 600"},
		{" \n", 0o600, "is empty"},
	} {
		if err := os.WriteFile(file, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, tt.mode); err != nil {
			t.Fatal(err)
		}
		got, err := api.TokenFile(file)()
		switch {
		case tt.want == "" && (err != nil || got != "secret"):
			t.Errorf("mode %o: %q, %v", tt.mode, got, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%q, mode %o: %v, want %q", tt.content, tt.mode, err, tt.want)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("the error holds the token: %v", err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFromEnvironment names servers in ways that could never be called, which
// nobody should wait for.
func TestFromEnvironment(t *testing.T) {
	for _, tt := range []struct {
		base string
		want string // of the error; empty: none
	}{
		{"http://127.0.0.1:8334", ""},
		{"https://cloud.example/hanzo/", ""},
		{"", "set HANZO_API"},
		{"localhost:8334", "http://HOST:PORT"},
		{"127.0.0.1:8334", "http://HOST:PORT"},
		{"ftp://cloud.example", "http://HOST:PORT"},
		{"http://", "http://HOST:PORT"},
		{"http://192.0.2.1:8334", "not encrypted"},
	} {
		t.Setenv("HANZO_API", tt.base)
		c, err := api.FromEnvironment()
		switch {
		case tt.want == "" && (err != nil || c.Base != tt.base):
			t.Errorf("HANZO_API=%s: %+v, %v", tt.base, c, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("HANZO_API=%s: %v, want %q", tt.base, err, tt.want)
		}
	}
}

// TestRetryable meets servers that fail in every way a network allows.
func TestRetryable(t *testing.T) {
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		retry   bool
		after   time.Duration
	}{
		{"429 with a wait", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Retry-After", "7"); w.WriteHeader(429) }, true, 7 * time.Second},
		{"503", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, true, 0},
		{"a proxy's page", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502); io.WriteString(w, "<html>") }, true, 0},
		{"409", func(w http.ResponseWriter, _ *http.Request) { api.Refuse(api.SeqGap, "no").Write(w) }, false, 0},
		{"413", func(w http.ResponseWriter, _ *http.Request) { api.Refuse(api.TooLarge, "no").Write(w) }, false, 0},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, false, 0},
		{"HTML that says OK", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<html>")
		}, false, 0},
		{"an answer cut short", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "{")
		}, true, 0},
		{"no answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, true, 0},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		hs := &http.Server{Handler: tt.handler}
		done := make(chan struct{})
		go func() { hs.Serve(l); close(done) }()
		c := &api.Client{Base: "http://" + l.Addr().String(), Token: func() (string, error) { return "secret", nil }}
		_, err = c.Run(t.Context(), "r")
		retry, after := api.Retryable(err)
		if err == nil || retry != tt.retry || after != tt.after {
			t.Errorf("%s: %v: Retryable = %t, %s; want %t, %s", tt.name, err, retry, after, tt.retry, tt.after)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error holds the token: %v", tt.name, err)
		}
		hs.Close()
		<-done
	}

	gone := &api.Client{Base: "http://127.0.0.1:1", Token: func() (string, error) { return "secret", nil }}
	_, err := gone.Run(t.Context(), "r")
	if retry, _ := api.Retryable(err); !retry {
		t.Errorf("nobody listens: %v is not retryable", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = gone.Run(ctx, "r")
	if retry, _ := api.Retryable(err); retry {
		t.Errorf("cancelled: %v is retryable", err)
	}
	if retry, _ := api.Retryable(os.ErrNotExist); retry {
		t.Error("a missing token file is retryable")
	}
}
