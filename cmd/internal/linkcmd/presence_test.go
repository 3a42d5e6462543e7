//go:build linux

package linkcmd

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hanzoai/link/agent"
	"github.com/hanzoai/link/cmd/internal/logincmd"
	"github.com/hanzoai/link/control/api"
)

// A person is somebody on a host that cannot run work, with a service manager that
// runs the real agent.
type person struct {
	*testing.T
	presence
	cloud *cloud
	calls []string

	agent func()
}

func newPerson(t *testing.T) *person {
	t.Helper()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	home, c := t.TempDir(), newCloud(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(c.token), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	t.Setenv("HANZO_API", c.URL)
	t.Setenv("HANZO_TOKEN_FILE", token)
	p := &person{T: t, cloud: c}
	p.presence = presence{
		place: place{
			dir: filepath.Join(home, ".hanzo", "link"), again: "hanzo link",
			session:    func() (logincmd.Saved, error) { return logincmd.Session("") },
			credential: ownCredential(filepath.Join(home, ".hanzo", "link")),
			facts: func(context.Context) (api.WorkerFacts, error) {
				return api.WorkerFacts{Hostname: "laptop", OS: "linux", Arch: "x86_64", CPUs: 2, Memory: 1 << 30, Disk: 1 << 30,
					GPUs: []api.GPU{}, Lanes: []string{}, Offers: []string{}, Version: "(devel)"}, nil
			},
		},
		why: "a test", uid: 1000, bin: bin,
	}
	p.manager = userUnit{filepath.Join(home, ".config", "systemd", "user"), p.run}
	t.Cleanup(p.stop)
	return p
}

func (p *person) run(_ context.Context, name string, args ...string) error {
	p.calls = append(p.calls, strings.Join(append([]string{name}, args...), " "))
	switch {
	case slices.Contains(args, "stop"):
		p.stop()
	case slices.Contains(args, "restart"):
		p.stop()
		p.start()
	case slices.Contains(args, "start"):
		p.start()
	}
	return nil
}

func (p *person) start() {
	if p.agent != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := agent.Run(ctx, agent.Config{Dir: p.dir, Store: p.dir, Status: p.status(), Facts: p.facts, Wait: time.Second})
		if err != nil && !errors.Is(err, agent.ErrUnlinked) {
			p.Errorf("the agent: %v", err)
		}
	}()
	p.agent = func() { cancel(); <-done }
}

func (p *person) stop() {
	if p.agent != nil {
		p.agent()
		p.agent = nil
	}
}

func TestPresenceRegistersANodeThatOffersNothing(t *testing.T) {
	p := newPerson(t)
	var out bytes.Buffer
	if err := p.link(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{"presence only", "registered with acme", "connected", "train.fit"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, &out)
		}
	}
	all := p.cloud.workers(t)
	if len(all) != 1 || all[0].ID != "laptop" || all[0].Status != api.Online || len(all[0].Offers) != 0 {
		t.Errorf("the org has %+v", all)
	}
	home := filepath.Dir(filepath.Dir(p.dir))
	err := filepath.WalkDir(home, func(path string, e fs.DirEntry, err error) error {
		if rel := strings.TrimPrefix(path, home); err == nil && !e.IsDir() && !strings.HasPrefix(rel, "/.hanzo/link/") && rel != "/.config/systemd/user/hanzo-link.service" {
			t.Errorf("it wrote %s", rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	unit, err := os.ReadFile(p.manager.(userUnit).path())
	if err != nil || !strings.Contains(string(unit), fmt.Sprintf("ExecStart=%q --presence", p.program())) || strings.Contains(string(unit), "%!") {
		t.Errorf("the unit is %s, %v", unit, err)
	}
	for _, name := range []string{keyFile, credentialFile} {
		if info, err := os.Lstat(filepath.Join(p.dir, name)); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}

	// Again, without a session: nothing is restarted.
	t.Setenv("HANZO_API", "")
	p.calls = nil
	out.Reset()
	if err := p.link(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if strings.Contains(out.String(), "wrote") || slices.ContainsFunc(p.calls, func(c string) bool { return strings.Contains(c, "restart") }) {
		t.Errorf("it ran %v and says\n%s", p.calls, &out)
	}

	for i, want := range []string{"unlinked", "not linked"} {
		out.Reset()
		if err := p.unlink(t.Context(), &out); err != nil || !strings.Contains(out.String(), want) {
			t.Fatalf("time %d: %v\n%s", i+1, err, &out)
		}
	}
	if all := p.cloud.workers(t); len(all) != 0 {
		t.Errorf("the org has %+v", all)
	}
	left, err := os.ReadDir(p.dir)
	if err != nil || len(left) != 1 || left[0].Name() != "audit.jsonl" || p.manager.installed() {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestPresenceWithoutAServiceManagerSaysWhatToRun(t *testing.T) {
	p := newPerson(t)
	p.manager = nil
	var out bytes.Buffer
	if err := p.link(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), p.program()+" --presence") {
		t.Errorf("it says\n%s", &out)
	}
	if info, err := os.Stat(p.program()); err != nil || info.Mode()&0o100 == 0 {
		t.Errorf("which is %v, %v", info, err)
	}
	if err := p.unlink(t.Context(), io.Discard); err != nil {
		t.Error(err)
	}
}

func TestPresenceIsNotRoots(t *testing.T) {
	p := newPerson(t)
	p.uid = 0
	for _, command := range []func(context.Context, io.Writer) error{p.link, p.unlink} {
		if err := command(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "without sudo") || strings.Contains(err.Error(), "is linked") {
			t.Errorf("it says %v", err)
		}
	}
	if _, err := os.Lstat(p.dir); !errors.Is(err, fs.ErrNotExist) || len(p.cloud.workers(t)) > 0 {
		t.Errorf("something is linked: %v", err)
	}
}

func TestPresenceUnlinkWithoutTheCloud(t *testing.T) {
	p := newPerson(t)
	if err := p.link(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	p.cloud.answer(func(w http.ResponseWriter, _ *http.Request) { api.Refuse(api.Internal, "broken").Write(w) })
	if err := p.unlink(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "run hanzo unlink again") {
		t.Errorf("it says %v", err)
	}
	p.cloud.answer(nil)
	if err := p.unlink(t.Context(), io.Discard); err != nil {
		t.Error(err)
	}
	if all := p.cloud.workers(t); len(all) != 0 {
		t.Errorf("the org has %+v", all)
	}
}

func TestPresenceWithACredentialOfNoUse(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, p *person) *cloud{
		"a new cloud": func(t *testing.T, p *person) *cloud { return p.cloud.anew(t) },
		"empty": func(t *testing.T, p *person) *cloud {
			if err := os.Truncate(filepath.Join(p.dir, credentialFile), 0); err != nil {
				t.Fatal(err)
			}
			return p.cloud
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPerson(t)
			if err := p.link(t.Context(), io.Discard); err != nil {
				t.Fatal(err)
			}
			now := spoil(t, p)
			var out bytes.Buffer
			if err := p.link(t.Context(), &out); err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			mustHave(t, out.String(), "registering it anew", "connected")
			if all := now.workers(t); len(all) != 1 || all[0].Status != api.Online {
				t.Errorf("the org has %+v", all)
			}
		})
	}
}

// TestPresenceUnlinkBesideAnAgent that a person started: it is not said to be gone while
// it runs, and its program stays until then.
func TestPresenceUnlinkBesideAnAgent(t *testing.T) {
	p := newPerson(t)
	p.manager = nil
	if err := p.link(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	p.start()
	await(t, "the agent connects", func() bool { s, err := agent.ReadStatus(p.status()); return err == nil && s.Connected })
	p.cloud.answer(func(w http.ResponseWriter, _ *http.Request) { api.Refuse(api.Internal, "broken").Write(w) })
	err := p.unlink(t.Context(), io.Discard)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d: stop it", os.Getpid())) || strings.Contains(err.Error(), "gone") || !strings.Contains(err.Error(), "does not know yet") {
		t.Errorf("it says %v", err)
	}
	if _, err := os.Lstat(p.program()); err != nil {
		t.Error(err)
	}
	p.cloud.answer(nil)
	if err := p.unlink(t.Context(), io.Discard); err != nil { // the control plane ends it
		t.Error(err)
	}
	if _, err := os.Lstat(p.program()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its program: %v", err)
	}
}

// TestLaunchAgent checks what launchd is told; that it does it has not been seen.
func TestLaunchAgent(t *testing.T) {
	var calls []string
	loaded := false
	a := launchAgent{t.TempDir(), "gui/501", func(_ context.Context, name string, args ...string) error {
		calls = append(calls, args[0])
		switch args[0] {
		case "print":
			if !loaded {
				return errors.New("no such service")
			}
		case "bootstrap":
			loaded = true
		case "bootout":
			loaded = false
		}
		return nil
	}}
	const program = "/Users/a & b/.hanzo/link/bin/hanzo-link"
	for _, want := range []string{"print bootstrap", "print", "print bootout bootstrap"} {
		calls = nil
		fresh := strings.Contains(want, "bootout")
		if _, err := a.install(t.Context(), program, fresh); err != nil || strings.Join(calls, " ") != want {
			t.Errorf("it ran %v, %v, want %s", calls, err, want)
		}
	}
	text, err := os.ReadFile(a.path())
	if err != nil {
		t.Fatal(err)
	}
	decoder, strs := xml.NewDecoder(bytes.NewReader(text)), []string(nil)
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if data, ok := token.(xml.CharData); ok && len(bytes.TrimSpace(data)) > 0 {
			strs = append(strs, string(data))
		}
	}
	if !slices.Contains(strs, program) || !slices.Contains(strs, "--presence") {
		t.Errorf("it says %q", strs)
	}
	if _, err := a.remove(t.Context()); err != nil || loaded || a.installed() {
		t.Errorf("it is left: %v", err)
	}
}
