package linkcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/agent"
	"github.com/hanzoai/link/cmd/internal/logincmd"
	"github.com/hanzoai/link/cmd/internal/offer"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/systemd"
)

// built is a folder of programs that bear the names of a release's: what is installed
// is not run here.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "release-*")
	if err != nil {
		return "", err
	}
	err = os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module github.com/hanzoai/link\n\ngo 1.26\n"), 0o644)
	for _, name := range []string{"hanzo-link", "hanzo-launcher", "hanzo-stage", "train"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, "cmd", name), 0o755),
			os.WriteFile(filepath.Join(dir, "cmd", name, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o644))
	}
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir, "./cmd/...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	status := m.Run()
	if dir, err := built(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(status)
}

// A cloud is a real control plane, and what may stand before it.
type cloud struct {
	*httptest.Server
	person *api.Client
	token  string

	mu     sync.Mutex
	before http.HandlerFunc // answers instead, unless nil
	calls  []string         // method, path and whose token
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	dir := t.TempDir()
	store, err := db.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := db.OpenTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := new(cloud)
	c.token, err = tokens.Mint(t.Context(), api.Identity{Owner: "acme", Name: "alice", Project: "default", Admin: true})
	if err != nil {
		t.Fatal(err)
	}
	plane := control.New(control.Config{Store: store})
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		whose := "node"
		if r.Header.Get("Authorization") == "Bearer "+c.token {
			whose = "person"
		}
		c.mu.Lock()
		before := c.before
		c.calls = append(c.calls, r.Method+" "+r.URL.Path+" "+whose)
		c.mu.Unlock()
		if before != nil {
			before(w, r)
			return
		}
		plane.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		plane.Drain()
		c.CloseClientConnections()
		c.Close()
		tokens.Close()
		store.Close()
	})
	c.person = &api.Client{Base: c.URL, Token: func() (string, error) { return c.token, nil }}
	return c
}

// answer puts something before the control plane; nil takes it away.
func (c *cloud) answer(before http.HandlerFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = before
}

// as is how often a call was made with a person's session.
func (c *cloud) asPerson(call string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, made := range c.calls {
		if strings.HasPrefix(made, call) && strings.HasSuffix(made, " person") {
			n++
		}
	}
	return n
}

func (c *cloud) workers(t *testing.T) []api.Worker {
	t.Helper()
	all, err := c.person.Workers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A host is a machine below a folder, with a stand-in for systemd that runs the real
// agent, without a launcher.
type host struct {
	*testing.T
	system
	cloud *cloud
	calls []string
	fail  int // the command of systemd that fails, from 1

	agent func()        // stops it; nil: it was not started
	ended chan struct{} // it has, by itself or not
}

func newHost(t *testing.T, c *cloud) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a host's files are root's")
	}
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, dir := range []string{"run/systemd/system", "etc/systemd/system", "usr/local/lib", "var/lib"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("SUDO_USER", "")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(c.token), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HANZO_API", c.URL)
	t.Setenv("HANZO_TOKEN_FILE", token)
	h := &host{T: t, cloud: c}
	dir := filepath.Join(root, systemd.State)
	h.system = system{
		place: place{
			dir: dir, again: "sudo hanzo link",
			session: func() (logincmd.Saved, error) { return logincmd.Session("") },
			facts: func(context.Context) (api.WorkerFacts, error) {
				return api.WorkerFacts{Hostname: "Evo", OS: "linux", Arch: "x86_64", CPUs: 2, Memory: 1 << 30, Disk: 1 << 30,
					GPUs: []api.GPU{}, Lanes: []string{}, Offers: []string{}, Version: "(devel)"}, nil
			},
		},
		Host: systemd.Host{Root: root, Run: h.systemd},
		bin:  bin,
		offers: func(context.Context) ([]offer.Verdict, error) {
			return []offer.Verdict{{Kind: policy.TrainFit, Why: "the policy does not admit it"}}, nil
		},
		lookup: func() (int, int, error) { return 0, 0, nil },
	}
	h.credential = h.readCredential
	t.Cleanup(func() { h.stop() })
	return h
}

// systemd does what systemd does, as far as it matters here.
func (h *host) systemd(_ context.Context, name string, args ...string) error {
	h.calls = append(h.calls, strings.Join(append([]string{name}, args...), " "))
	if len(h.calls) == h.fail {
		return errors.New("killed")
	}
	switch args[0] {
	case "--create":
		return os.MkdirAll(filepath.Join(h.dir, "store"), 0o755)
	case "start":
		return h.start()
	case "stop":
		h.stop()
	}
	return nil
}

func (h *host) statusFile() string { return h.path("/run/hanzo-link/agent/status.json") }

func (h *host) start() error {
	select {
	case <-h.ended:
		h.agent = nil
	default:
	}
	if _, err := os.Lstat(filepath.Join(h.dir, credentialFile)); h.agent != nil || err != nil {
		return nil // as the unit's condition has it
	}
	if err := os.MkdirAll(filepath.Dir(h.statusFile()), 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := agent.Run(ctx, agent.Config{
			Dir: h.dir, Store: filepath.Join(h.dir, "store"), Spool: filepath.Join(h.dir, "spool"),
			Status: h.statusFile(), Facts: h.facts, Wait: time.Second,
		})
		if err != nil && !errors.Is(err, agent.ErrUnlinked) {
			h.Errorf("the agent: %v", err)
		}
		os.RemoveAll(filepath.Dir(h.statusFile())) // its runtime directory
	}()
	h.agent, h.ended = func() { cancel(); <-done }, done
	return nil
}

func (h *host) stop() {
	if h.agent != nil {
		h.agent()
		h.agent = nil
	}
}

// links runs hanzo link, which must succeed.
func (h *host) links() string {
	h.Helper()
	var out bytes.Buffer
	if err := h.link(h.Context(), &out); err != nil {
		h.Fatalf("%v\n%s", err, &out)
	}
	return out.String()
}

func (h *host) unlinks() string {
	h.Helper()
	var out bytes.Buffer
	if err := h.unlink(h.Context(), &out); err != nil {
		h.Fatalf("%v\n%s", err, &out)
	}
	return out.String()
}

// files are the paths of all files below the root, but the lock.
func (h *host) files() (all []string) {
	h.Helper()
	err := filepath.WalkDir(h.Root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && path != h.path(lockFile) { // which the next boot removes
			all = append(all, strings.TrimPrefix(path, h.Root))
		}
		return err
	})
	if err != nil {
		h.Fatal(err)
	}
	return all
}

func (h *host) read(path string) string {
	h.Helper()
	text, err := os.ReadFile(h.path(path))
	if err != nil {
		h.Fatal(err)
	}
	return string(text)
}

func TestLinkWritesTheDefaultPolicyAndOffersNothing(t *testing.T) {
	h := newHost(t, newCloud(t))
	out := h.links()
	for _, want := range []string{"registered with acme at " + h.cloud.URL + " as evo, by acme/alice", "wrote    " + policy.Path,
		"connected", policy.TrainFit, "the policy does not admit it", "become root"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	const want = `{
  "kinds": [],
  "orgs": ["acme"],
  "sources": [{"prefix": "huggingface.co/zenlm/", "hosts": ["huggingface.co", "*.hf.co"]}],
  "models": [],
  "caps": {"vram": 0, "memory": 0, "cpus": 0, "disk": 0},
  "concurrency": 1,
  "idleSec": 600,
  "maxSec": 86400
}
`
	if got := h.read(policy.Path); got != want {
		t.Errorf("the policy is %s", got)
	}
	if info, err := os.Stat(h.path(policy.Path)); err != nil || info.Mode() != 0o644 {
		t.Errorf("the policy: %v, %v", info.Mode(), err)
	}
	all := h.cloud.workers(t)
	if len(all) != 1 || all[0].ID != "evo" || all[0].Status != api.Online || all[0].Offers == nil || len(all[0].Offers) > 0 {
		t.Errorf("the org has %+v", all)
	}
	for _, name := range []string{keyFile, credentialFile} {
		if info, err := os.Lstat(filepath.Join(h.dir, name)); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	for _, name := range h.files() {
		if strings.Contains(h.read(name), h.cloud.token) {
			t.Errorf("%s holds the person's token", name)
		}
	}
}

func TestLinkingAgainNeedsNoSessionAndChangesNothing(t *testing.T) {
	h := newHost(t, newCloud(t))
	h.links()
	before := make(map[string]fs.FileInfo)
	for _, name := range h.files() {
		info, err := os.Lstat(h.path(name))
		if err != nil {
			t.Fatal(err)
		}
		before[name] = info
	}
	t.Setenv("HANZO_API", "")
	h.calls = nil
	out := h.links()
	if !strings.Contains(out, "linked to acme") || !strings.Contains(out, policy.TrainFit) || strings.Contains(out, "wrote") {
		t.Errorf("it says\n%s", out)
	}
	if n := h.cloud.asPerson(http.MethodPut); n != 1 {
		t.Errorf("the session was used for %d registrations, want the first alone", n)
	}
	for name, was := range before {
		if strings.HasPrefix(name, "/run/") {
			continue
		}
		if info, err := os.Lstat(h.path(name)); err != nil || !os.SameFile(info, was) || !info.ModTime().Equal(was.ModTime()) {
			t.Errorf("%s was written", name)
		}
	}
	for _, c := range h.calls {
		if strings.Contains(c, "stop") || strings.Contains(c, "reload") {
			t.Errorf("it ran %s", c)
		}
	}
}

func TestAnOwnersPolicyIsLeftAlone(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"theirs":      {`{"kinds": ["train.fit"], "orgs": ["acme"]}`, ""},
		"broken":      {`{"kind": []}`, "of no use"},
		"another org": {`{"kinds": ["train.fit"], "orgs": ["beta"]}`, "linked to acme"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, newCloud(t))
			path := h.path(policy.Path)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(c.text), 0o644)); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			err := h.link(t.Context(), &out)
			if c.says == "" && err != nil {
				t.Fatal(err)
			}
			if c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || term.StatusOf(err) != term.Usage) {
				t.Errorf("it says %v", err)
			}
			if got := h.read(policy.Path); got != c.text {
				t.Errorf("the policy is %s", got)
			}
			if !strings.Contains(out.String(), "connected") || !strings.Contains(out.String(), "become root") {
				t.Errorf("the machine is not linked:\n%s", &out)
			}
		})
	}
}

// TestNothingIsHalfLinked has the control plane fail in every way that it can.
func TestNothingIsHalfLinked(t *testing.T) {
	html := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			fmt.Fprint(w, "<html><h1>Welcome</h1></html>")
		}
	}
	for name, c := range map[string]struct {
		before http.HandlerFunc
		want   string
	}{
		"token refused": {func(w http.ResponseWriter, _ *http.Request) {
			api.Refuse(api.Unauthorized, "no such token").Write(w)
		}, "does not know the token: run hanzo login"},
		"forbidden": {func(w http.ResponseWriter, _ *http.Request) { api.Refuse(api.Forbidden, "not yours").Write(w) }, "refuses"},
		"500": {func(w http.ResponseWriter, _ *http.Request) { api.Refuse(api.Internal, "broken").Write(w) },
			"cannot answer now: try again later"},
		"HTML":           {html(http.StatusOK), "not application/json"},
		"HTML and 502":   {html(http.StatusBadGateway), "may be no control plane"},
		"somewhere else": {html(http.StatusMovedPermanently), "may be no control plane"},
		"half": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, `{"worker": {`)
		}, "reading the answer"},
		"empty object": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{}`)
		}, "decoding the answer"},
		"nothing": {func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body) // only then is the server told that the client has gone
			<-r.Context().Done()
		}, "did not answer in time"},
		"cut": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
		"hostname taken twice": {func(w http.ResponseWriter, _ *http.Request) {
			api.Refuse(api.Conflict, "another install is linked by this id").Write(w)
		}, "another hostname"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, newCloud(t))
			h.wait = time.Second
			h.cloud.answer(c.before)
			var out bytes.Buffer
			err := h.link(t.Context(), &out)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), filepath.Join(h.dir, keyFile)) {
				t.Errorf("it says %v, want %q and what is written", err, c.want)
			}
			if err != nil && (strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), h.cloud.token)) {
				t.Errorf("its error is no sentence to show: %q", err)
			}
			if files := h.files(); !slices.Equal(files, []string{systemd.State + "/" + keyFile}) || len(h.calls) > 0 {
				t.Errorf("it wrote %v and ran %v", files, h.calls)
			}
			key := h.read(systemd.State + "/" + keyFile)
			h.cloud.answer(nil)
			h.links()
			if h.read(systemd.State+"/"+keyFile) != key {
				t.Error("the second try is another install")
			}
		})
	}
}

func TestNobodyListens(t *testing.T) {
	h := newHost(t, newCloud(t))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	t.Setenv("HANZO_API", "http://"+l.Addr().String())
	if err := h.link(t.Context(), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("it says %v", err)
	}
}

func TestBeforeAnythingIsWritten(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, h *host)
		want  string
	}{
		"without root":     {func(_ *testing.T, h *host) { h.uid = 1000 }, "run sudo hanzo link"},
		"no login":         {func(t *testing.T, _ *host) { t.Setenv("HANZO_API", "") }, "run hanzo login"},
		"http to a host":   {func(t *testing.T, _ *host) { t.Setenv("HANZO_API", "http://cloud.example:80") }, "is not encrypted"},
		"no systemd":       {func(_ *testing.T, h *host) { os.RemoveAll(h.path("/run/systemd")) }, "not run by systemd"},
		"half a release":   {func(t *testing.T, h *host) { h.bin = t.TempDir() }, "install every binary of the release"},
		"read-only /var":   {readOnly("/var/lib"), "/var/lib cannot be written: its file system is read-only"},
		"read-only /etc":   {readOnly("/etc"), "cannot be written: its file system is read-only"},
		"others' programs": {func(_ *testing.T, h *host) { os.Chmod(h.path("/usr/local/lib"), 0o777) }, "chmod go-w /usr/local/lib"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, newCloud(t))
			c.spoil(t, h)
			err := h.link(t.Context(), new(bytes.Buffer))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it says %v, want %q", err, c.want)
			}
			if files := h.files(); len(files) > 0 || len(h.calls) > 0 {
				t.Errorf("it wrote %v and ran %v", files, h.calls)
			}
			if n := h.cloud.asPerson(http.MethodPut); n > 0 {
				t.Error("the machine is registered")
			}
		})
	}
}

func readOnly(path string) func(*testing.T, *host) {
	return func(t *testing.T, h *host) {
		path := h.path(path)
		if err := syscall.Mount(path, path, "", syscall.MS_BIND, ""); err != nil {
			t.Skipf("mounting: %v", err)
		}
		t.Cleanup(func() { syscall.Unmount(path, 0) })
		if err := syscall.Mount("", path, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAHostnameThatIsTakenGetsFourDigits(t *testing.T) {
	c := newCloud(t)
	newHost(t, c).links()
	h := newHost(t, c)
	out := h.links()
	id := "evo-" + h.read(systemd.State + "/" + keyFile)[:4]
	if !strings.Contains(out, " as "+id+",") {
		t.Errorf("it says\n%s", out)
	}
	if all := c.workers(t); len(all) != 2 {
		t.Errorf("the org has %+v", all)
	}
}

// TestInterrupted has every command fail in turn, as it does when link is killed. Then
// linking again links one machine, and unlinking leaves none.
func TestInterrupted(t *testing.T) {
	for _, mend := range []string{"link", "unlink"} {
		for n := 1; ; n++ {
			h := newHost(t, newCloud(t))
			h.fail = n
			if h.link(t.Context(), new(bytes.Buffer)) == nil {
				if n < 4 {
					t.Errorf("link ran %d commands: %v", n-1, h.calls)
				}
				break
			}
			h.fail = 0
			if mend == "link" {
				if out := h.links(); !strings.Contains(out, "connected") {
					t.Errorf("after command %d: %s", n, out)
				}
				if all := h.cloud.workers(t); len(all) != 1 || all[0].Status != api.Online {
					t.Errorf("after command %d the org has %+v", n, all)
				}
				continue
			}
			h.unlinks()
			h.bare()
		}
	}
}

// bare checks that nothing is left but what is the owner's, and the key of a machine
// whose registration may not have been answered.
func (h *host) bare() {
	h.Helper()
	kept := []string{policy.Path, systemd.State + "/audit.jsonl", systemd.State + "/" + keyFile}
	for _, name := range h.files() {
		if !slices.Contains(kept, name) {
			h.Errorf("%s is left", name)
		}
	}
}

func TestUnlinkTwice(t *testing.T) {
	h := newHost(t, newCloud(t))
	h.links()
	store := filepath.Join(h.dir, "store", "tree")
	if err := os.WriteFile(store, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	out := h.unlinks()
	if !strings.Contains(out, "unlinked") {
		t.Errorf("it says\n%s", out)
	}
	if all := h.cloud.workers(t); len(all) != 0 {
		t.Errorf("the org has %+v", all)
	}
	if h.agent != nil {
		t.Error("the agent runs")
	}
	if _, err := os.Lstat(store); err != nil {
		t.Error(err)
	}
	os.Remove(store)
	if _, err := os.Lstat(filepath.Join(h.dir, keyFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the key: %v", err)
	}
	h.bare()
	if audit := h.read(systemd.State + "/audit.jsonl"); !strings.Contains(audit, `"link"`) || !strings.Contains(audit, `"unlink"`) {
		t.Errorf("the audit log is %s", audit)
	}
	if out := h.unlinks(); !strings.Contains(out, "not linked") {
		t.Errorf("the second time it says\n%s", out)
	}
	h.links()
}

// TestUnlinkSaysWhatIsKept: it says that it waits, what it could not send, and how a
// person can.
func TestUnlinkSaysWhatIsKept(t *testing.T) {
	h := newHost(t, newCloud(t))
	h.links()
	leave(t, h.dir, "act_1")
	out := h.unlinks()
	mustHave(t, out, "a minute and a half", "act_1", "train sync", "HANZO_API=http")
	if _, err := os.Lstat(filepath.Join(h.dir, "spool", "act_1", "local")); err != nil {
		t.Errorf("what is kept: %v", err)
	}
}

func TestUnlinkWithoutTheCloud(t *testing.T) {
	h := newHost(t, newCloud(t))
	h.links()
	h.wait = time.Second
	h.cloud.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	for range 2 {
		err := h.unlink(t.Context(), new(bytes.Buffer))
		if err == nil || !strings.Contains(err.Error(), "run sudo hanzo unlink again") || term.StatusOf(err) != term.Failed {
			t.Fatalf("it says %v", err)
		}
		for _, name := range []string{systemd.UnitDir + "/hanzo-link.service", systemd.Lib, systemd.State + "/" + markerFile} {
			if _, err := os.Lstat(h.path(name)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, name := range []string{credentialFile, keyFile, linkFile} {
			if _, err := os.Lstat(filepath.Join(h.dir, name)); err != nil {
				t.Error(err)
			}
		}
	}
	h.cloud.answer(nil)
	h.unlinks()
	h.bare()
	if all := h.cloud.workers(t); len(all) != 0 {
		t.Errorf("the org has %+v", all)
	}
}

// TestUnlinkInterrupted has every command of unlink fail in turn.
func TestUnlinkInterrupted(t *testing.T) {
	h := newHost(t, newCloud(t))
	h.links()
	for n := 1; n < 4; n++ {
		h.calls, h.fail = nil, n
		h.unlink(t.Context(), new(bytes.Buffer))
	}
	h.fail = 0
	h.unlinks()
	h.bare()
	if all := h.cloud.workers(t); len(all) != 0 {
		t.Errorf("the org has %+v", all)
	}
}

func TestLinkAfterTheCloudRemovedTheMachine(t *testing.T) {
	for _, runs := range []bool{true, false} {
		h := newHost(t, newCloud(t))
		h.links()
		if !runs { // the machine is off, and the credential stays until it is on again
			h.stop()
		}
		if err := h.cloud.person.DeleteWorker(t.Context(), "evo"); err != nil {
			t.Fatal(err)
		}
		if runs {
			await(t, "the agent deletes its credential", func() bool {
				_, err := os.Lstat(filepath.Join(h.dir, credentialFile))
				return errors.Is(err, fs.ErrNotExist)
			})
			h.stop()
		}
		h.links()
		if all := h.cloud.workers(t); len(all) != 1 || all[0].Status != api.Online {
			t.Errorf("with an agent that runs %v, the org has %+v", runs, all)
		}
	}
}

// anew has a control plane without data answer at c's address.
func (c *cloud) anew(t *testing.T) *cloud {
	t.Helper()
	next := newCloud(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(next.token), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HANZO_TOKEN_FILE", token)
	c.answer(next.Config.Handler.ServeHTTP)
	return next
}

// TestLinkWithACredentialOfNoUse registers the machine anew, whether its agent runs.
func TestLinkWithACredentialOfNoUse(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, h *host) *cloud{
		"a new cloud": func(t *testing.T, h *host) *cloud { return h.cloud.anew(t) },
		"a new cloud, and the agent does not run": func(t *testing.T, h *host) *cloud {
			h.stop()
			return h.cloud.anew(t)
		},
		"empty": func(t *testing.T, h *host) *cloud {
			if err := os.Truncate(filepath.Join(h.dir, credentialFile), 0); err != nil {
				t.Fatal(err)
			}
			return h.cloud
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, newCloud(t))
			h.links()
			now := spoil(t, h)
			out := h.links()
			mustHave(t, out, "registering it anew", "connected")
			if all := now.workers(t); len(all) != 1 || all[0].ID != "evo" || all[0].Status != api.Online {
				t.Errorf("the org has %+v", all)
			}
		})
	}
}

// TestLinkWithoutTheCloudKeepsTheLink: a cloud that cannot answer refuses nothing.
func TestLinkWithoutTheCloudKeepsTheLink(t *testing.T) {
	h := newHost(t, newCloud(t))
	h.links()
	credential := h.read(systemd.State + "/" + credentialFile)
	h.cloud.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	if err := h.refused(t.Context(), must(agent.ReadLink(h.dir))); err != nil {
		t.Error(err)
	}
	if n := h.cloud.asPerson(http.MethodPut); n != 1 || h.read(systemd.State+"/"+credentialFile) != credential {
		t.Errorf("it was registered %d times", n)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestUnlinkWhereNothingCanBeWritten stops the services and tells the cloud.
func TestUnlinkWhereNothingCanBeWritten(t *testing.T) {
	h := newHost(t, newCloud(t))
	h.links()
	readOnly(systemd.State)(t, h)
	var out bytes.Buffer
	err := h.unlink(t.Context(), &out)
	if err == nil || !strings.Contains(err.Error(), credentialFile) || !strings.Contains(err.Error(), "run sudo hanzo unlink again") || strings.Contains(err.Error(), "\n") {
		t.Errorf("it says %v", err)
	}
	mustHave(t, out.String(), markerFile, "read-only", "has removed evo")
	if all := h.cloud.workers(t); len(all) != 0 || h.agent != nil {
		t.Errorf("the org has %+v, and the agent runs: %v", all, h.agent != nil)
	}
	if err := syscall.Unmount(h.dir, 0); err != nil {
		t.Fatal(err)
	}
	h.unlinks()
	h.bare()
}

// TestUnlinkSaysThatItKeepsWhatIsThere, and no more.
func TestUnlinkSaysThatItKeepsWhatIsThere(t *testing.T) {
	for _, there := range []bool{true, false} {
		h := newHost(t, newCloud(t))
		h.links()
		if !there {
			if err := os.Remove(h.path(policy.Path)); err != nil {
				t.Fatal(err)
			}
		}
		if out := h.unlinks(); strings.Contains(out, policy.Path) != there {
			t.Errorf("with a policy %v it says\n%s", there, out)
		}
	}
}

func TestUnlinkAfterTheCloudForgotTheMachine(t *testing.T) {
	for name, refuse := range map[string]*api.Problem{
		"gone":        api.Refuse(api.Gone, "removed"),
		"not found":   api.Refuse(api.NotFound, "no such node"),
		"a new cloud": api.Refuse(api.Unauthorized, "no such token"),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, newCloud(t))
			h.links()
			h.stop()
			h.cloud.answer(func(w http.ResponseWriter, _ *http.Request) { refuse.Write(w) })
			h.unlinks()
			h.bare()
		})
	}
}

func TestLinkedElsewhere(t *testing.T) {
	h := newHost(t, newCloud(t))
	h.links()
	t.Setenv("HANZO_API", newCloud(t).URL)
	if err := h.link(t.Context(), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "run sudo hanzo unlink first") {
		t.Errorf("it says %v", err)
	}
}

// TestUnlinkReadsNoFileOfAnothers has the agent put a link where its credential was.
func TestUnlinkReadsNoFileOfAnothers(t *testing.T) {
	h := newHost(t, newCloud(t))
	h.links()
	h.stop()
	secret := filepath.Join(t.TempDir(), "secret")
	path := filepath.Join(h.dir, credentialFile)
	if err := errors.Join(os.WriteFile(secret, []byte("of root's"), 0o600), os.Remove(path), os.Symlink(secret, path)); err != nil {
		t.Fatal(err)
	}
	sent := make(chan string, 10)
	h.cloud.answer(func(w http.ResponseWriter, r *http.Request) { sent <- r.Header.Get("Authorization") })
	if err := h.unlink(t.Context(), new(bytes.Buffer)); err == nil {
		t.Error("it succeeded")
	}
	select {
	case token := <-sent:
		t.Errorf("it sent %q", token)
	default:
	}
}

func TestOneAtATime(t *testing.T) {
	h := newHost(t, newCloud(t))
	h.links()
	unlock, err := h.lock()
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []func(context.Context, *bytes.Buffer) error{
		func(ctx context.Context, out *bytes.Buffer) error { return h.link(ctx, out) },
		func(ctx context.Context, out *bytes.Buffer) error { return h.unlink(ctx, out) },
	} {
		if err := command(t.Context(), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "is at work") {
			t.Errorf("beside another it says %v", err)
		}
	}
	unlock()
	h.unlinks()
}

// TestLinkedAnewBesideAnAgent: an agent that runs holds the link that it was started
// with, which a new one has replaced, and so it is started anew.
func TestLinkedAnewBesideAnAgent(t *testing.T) {
	h := newHost(t, newCloud(t))
	h.links()
	if err := os.Remove(filepath.Join(h.dir, linkFile)); err != nil {
		t.Fatal(err)
	}
	h.calls = nil
	h.links()
	if !slices.Contains(h.calls, "systemctl stop hanzo-link.service") {
		t.Errorf("it ran %q", h.calls)
	}
	h.calls = nil
	h.links()
	if slices.Contains(h.calls, "systemctl stop hanzo-link.service") {
		t.Errorf("where all is current it ran %q", h.calls)
	}
}

// TestLockedByAgent: the state directory is one that the agent can open, and so lock.
// That keeps nobody from unlinking.
func TestLockedByAgent(t *testing.T) {
	h := newHost(t, newCloud(t))
	h.links()
	dir, err := os.Open(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	h.unlinks()
	if info, err := os.Stat(h.path(lockFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("what is locked instead: %v, %v; others can open it", info, err)
	}
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}
