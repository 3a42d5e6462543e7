package linkcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hanzoai/link/agent"
	"github.com/hanzoai/link/cmd/internal/term"
)

// shown is what systemctl show prints of a machine that works.
const shown = `Id=hanzo-link.service
LoadState=loaded
ActiveState=active
SubState=running
Result=success
Environment=
DropInPaths=
Delegate=yes
DeviceAllow=
DevicePolicy=auto
MemoryMax=infinity
PrivateDevices=no
ProtectClock=no
TasksMax=infinity

Id=hanzo-link-launcher.service
LoadState=loaded
ActiveState=active
SubState=running
Result=success

Id=hanzo-link-launcher.socket
LoadState=loaded
ActiveState=active
SubState=running
Result=success
`

// machine is one that is linked to api and works, as far as its files say.
func machine(t *testing.T, api string) looker {
	t.Helper()
	dir := t.TempDir()
	l := looker{
		dir: filepath.Join(dir, "link"), status: filepath.Join(dir, "status.json"), presence: filepath.Join(dir, "personal"),
		again: "sudo hanzo link",
		show: func(context.Context, string, ...string) (map[string]map[string]string, error) {
			return parseShow(shown), nil
		},
		admits: func() *admits { return &admits{Kinds: []string{"train.fit"}, Room: "1 GiB of memory"} },
	}
	l.link(t, l.dir, api)
	l.says(t, agent.Status{
		ID: "evo", Org: "acme", API: api, Version: "1.0", Since: "2026-11-30T22:00:00Z", Connected: true, LastClaim: "2026-11-30T22:00:30Z",
		Offers: []string{"train.fit"}, Reasons: []string{},
		Activities: []agent.StatusActivity{{Activity: "act_1", Kind: "train.fit", State: "pulling", Since: "2026-11-30T22:00:10.123456789Z", Done: 1 << 30, Total: 2 << 30}},
	})
	return l
}

func (l looker) link(t *testing.T, dir, api string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := (agent.Link{API: api, Org: "acme", ID: "evo", LinkedBy: "acme/alice", Project: "default"}).Write(dir, "credential", -1, -1); err != nil {
		t.Fatal(err)
	}
}

func (l looker) says(t *testing.T, s agent.Status) {
	t.Helper()
	if s.PID == 0 {
		s.PID = os.Getpid() // it runs
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.status, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func printed(t *testing.T, l looker) string {
	t.Helper()
	var out bytes.Buffer
	now, err := time.Parse(time.RFC3339, "2026-11-30T22:00:33Z")
	if err != nil {
		t.Fatal(err)
	}
	l.look(t.Context()).print(&out, now)
	return out.String()
}

func mustHave(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
}

func TestStatusOfAMachineThatWorks(t *testing.T) {
	const want = `machine  evo of acme at https://cloud.example, linked by acme/alice
agent    connected, and asked for work 3s ago; version 1.0, since 2026-11-30T22:00:00Z
offers   train.fit
work     act_1: train.fit, pulling 1 GiB of 2 GiB, since 2026-11-30T22:00:10Z
service  hanzo-link.service: active (running)
service  hanzo-link-launcher.service: active (running)
service  hanzo-link-launcher.socket: active (running)
policy   admits train.fit, with 1 GiB of memory
`
	l := machine(t, "https://cloud.example")
	if got := printed(t, l); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	var out bytes.Buffer
	var back struct {
		Linked bool
		ID     string
		Agent  agent.Status
	}
	if err := term.PrintJSON(&out, l.look(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || !back.Linked || back.ID != "evo" || len(back.Agent.Activities) != 1 {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestStatusOfAMachineInTrouble(t *testing.T) {
	l := machine(t, "https://cloud.example")
	l.says(t, agent.Status{Problem: "the disk\nis \x1b[31mfull", Offers: []string{}, Reasons: []string{"cgroup v2: hybrid"}, Unsent: 2})
	l.show = func(context.Context, string, ...string) (map[string]map[string]string, error) {
		return parseShow(strings.NewReplacer("ActiveState=active\nSubState=running\nResult=success\nEnvironment", "ActiveState=failed\nSubState=failed\nResult=exit-code\nEnvironment").Replace(shown)), nil
	}
	l.admits = func() *admits { return &admits{Error: "/kinds/0: no kind", Kinds: []string{}} }
	got := printed(t, l)
	mustHave(t, got, "not connected", "problem  the disk is [31mfull", "offers   nothing", "cgroup v2: hybrid", "records of 2 that ended", "hanzo-link.service: failed (exit-code)", "policy   /kinds/0: no kind")
	if strings.Contains(got, "\x1b") {
		t.Error("what the agent says reaches the terminal as it is")
	}
	if err := os.Remove(l.status); err != nil {
		t.Fatal(err)
	}
	mustHave(t, printed(t, l), "the agent does not run: sudo systemctl start hanzo-link")
	if err := os.WriteFile(l.status, []byte("{half"), 0o644); err != nil {
		t.Fatal(err)
	}
	mustHave(t, printed(t, l), "cannot be read")
}

func TestStatusOfAPresence(t *testing.T) {
	l := machine(t, "https://cloud.example")
	if err := os.RemoveAll(l.dir); err != nil {
		t.Fatal(err)
	}
	l.link(t, l.presence, "https://cloud.example")
	r := l.look(t.Context())
	if !r.Linked || !r.Presence || r.Policy != nil || len(r.Services) > 0 || r.again != "hanzo link" || r.Silent == "" {
		t.Errorf("%+v", r)
	}
	mustHave(t, printed(t, l), "for presence only", "the agent does not run: hanzo link installs and starts it")
	if err := os.MkdirAll(filepath.Join(l.presence, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(l.presence, "bin", program)
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", "")
	mustHave(t, printed(t, l), path+" --presence")
}

// TestStatusOfAnAgentThatWasKilled: its status is its last word, and it says connected.
func TestStatusOfAnAgentThatWasKilled(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	l := machine(t, server.URL)
	if l.look(t.Context()).Agent == nil {
		t.Fatal("it does not live")
	}
	if err := os.WriteFile(filepath.Join(l.dir, lockedFile), nil, 0o600); err != nil { // locked by nobody
		t.Fatal(err)
	}
	got := printed(t, l)
	mustHave(t, got, "the agent does not run: sudo systemctl start hanzo-link")
	if strings.Contains(got, "connected") || strings.Contains(got, "act_1") {
		t.Errorf("it says what the agent last said:\n%s", got)
	}
	if f := ill(t, l, nil)["agent"]; f.OK || !f.Need || !strings.Contains(f.Detail, "sudo systemctl start hanzo-link") {
		t.Errorf("%+v", f)
	}
}

// TestStatusOfWhatRuns: what was fetched for it is over.
func TestStatusOfWhatRuns(t *testing.T) {
	l := machine(t, "https://cloud.example")
	l.says(t, agent.Status{Connected: true, Since: "soon\n", Activities: []agent.StatusActivity{{Activity: "act_1", Kind: "train.fit", State: "ready", Since: "2026-11-30T22:00:10.5Z", Done: 1 << 30, Total: 2 << 30}}})
	got := printed(t, l)
	mustHave(t, got, "act_1: train.fit, ready, since 2026-11-30T22:00:10Z")
}

func TestStatusOfAMachineThatIsNotLinked(t *testing.T) {
	l := machine(t, "https://cloud.example")
	if err := errors.Join(os.RemoveAll(l.dir), os.Remove(l.status)); err != nil {
		t.Fatal(err)
	}
	l.show = func(context.Context, string, ...string) (map[string]map[string]string, error) {
		return nil, errors.New("no systemd here")
	}
	l.admits = func() *admits { return &admits{Error: "none", Kinds: []string{}} }
	if r := l.look(t.Context()); r.Linked || len(r.Services) > 0 {
		t.Errorf("%+v", r)
	}
	if got := printed(t, l); got != "" {
		t.Errorf("it says %q", got)
	}
	t.Setenv("HOME", t.TempDir())
	for _, args := range [][]string{{"status"}, {"status", "--json"}} {
		var out, errs bytes.Buffer
		status := term.Program{Name: "hanzo", Commands: []term.Command{Status}}.Main(t.Context(), args, term.IO{Out: &out, Err: &errs})
		if status != term.Failed || !strings.Contains(errs.String(), "not linked: run ") || !strings.Contains(errs.String(), "hanzo link") {
			t.Errorf("status %d: %s", status, errs.String())
		}
		if len(args) == 2 && !json.Valid(out.Bytes()) {
			t.Error(out.String())
		}
	}
}

// ill examines a machine, and answers the findings by their names.
func ill(t *testing.T, l looker, alter func(*patient)) map[string]finding {
	t.Helper()
	p := patient{
		looker: l, environ: func() []string { return nil }, http: http.DefaultClient, now: time.Now,
		host: func(context.Context, patient, standing) []finding { return nil },
	}
	if alter != nil {
		alter(&p)
	}
	found := make(map[string]finding)
	for _, f := range p.examine(t.Context()) {
		found[f.Name] = f
	}
	return found
}

func TestDoctor(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	off := func(by time.Duration) func(*patient) {
		return func(p *patient) { p.now = func() time.Time { return time.Now().Add(by) } }
	}
	for _, c := range []struct {
		what   string
		make   func(*testing.T, *looker)
		alter  func(*patient)
		name   string
		ok     bool
		need   bool
		detail string
	}{
		{"link", nil, nil, "link", true, true, "evo of acme at " + server.URL},
		{"agent", nil, nil, "agent", true, true, "connected"},
		{"service", nil, nil, "hanzo-link.service", true, true, "active (running)"},
		{"cloud", nil, nil, "control plane", true, true, "answers"},
		{"clock", nil, nil, "clock", true, true, "within"},
		{"proxies", nil, nil, "proxy variables", true, true, "none"},
		{"a clock that is a minute behind", nil, off(-time.Minute), "clock", false, false, "1m0s behind"},
		{"a clock that is an hour ahead", nil, off(time.Hour), "clock", false, true, "1h0m0s ahead of"},
		{"a proxy of the shell alone", nil, func(p *patient) {
			p.environ = func() []string { return []string{"https_proxy=http://user:secret@proxy"} }
		}, "proxy variables", false, false, "HTTPS_PROXY set here and not in hanzo-link.service"},
		{"no cloud", nil, func(p *patient) {
			p.http = &http.Client{Transport: refusing{}}
		}, "control plane", false, true, "does not answer"},
		{"not connected", func(t *testing.T, l *looker) { l.says(t, agent.Status{Problem: "no route"}) }, nil, "agent", false, true, "no route"},
		{"connected with a problem", func(t *testing.T, l *looker) { l.says(t, agent.Status{Connected: true, Problem: "disk full"}) }, nil, "agent", false, false, "disk full"},
		{"no agent", func(t *testing.T, l *looker) { os.Remove(l.status) }, nil, "agent", false, true, "does not run"},
		{"not linked", func(t *testing.T, l *looker) { os.RemoveAll(l.dir) }, nil, "link", false, false, "run sudo hanzo link"},
		{"not installed", func(_ *testing.T, l *looker) {
			l.show = func(context.Context, string, ...string) (map[string]map[string]string, error) {
				return parseShow(strings.Replace(shown, "loaded", "not-found", 1)), nil
			}
		}, nil, "hanzo-link.service", true, true, ""},
		{"failed", func(_ *testing.T, l *looker) {
			l.show = func(context.Context, string, ...string) (map[string]map[string]string, error) {
				return parseShow(strings.ReplaceAll(shown, "ActiveState=active", "ActiveState=failed")), nil
			}
		}, nil, "hanzo-link-launcher.service", false, true, "journalctl -u hanzo-link-launcher.service"},
	} {
		l := machine(t, server.URL)
		if c.make != nil {
			c.make(t, &l)
		}
		f, there := ill(t, l, c.alter)[c.name]
		if !there || f.OK != c.ok || f.Need != c.need || !strings.Contains(f.Detail, c.detail) {
			t.Errorf("%s: %+v", c.what, f)
		}
		if strings.Contains(f.Detail, "secret") {
			t.Errorf("%s: it tells a password: %s", c.what, f.Detail)
		}
	}
}

type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("connection refused")
}

func TestDoctorsReport(t *testing.T) {
	var out bytes.Buffer
	if err := report(&out, []finding{well("a", "fine"), note("b", "so so\x1b")}, false); err != nil || out.String() != "ok    a  fine\nnote  b  so so\n" {
		t.Errorf("%v: %s", err, out.String())
	}
	err := report(&out, []finding{well("a", "fine"), missing("b", "gone")}, false)
	if term.StatusOf(err) != term.Failed || !strings.Contains(out.String(), "MISSING  b  gone") {
		t.Errorf("%v: %s", err, out.String())
	}
	out.Reset()
	err = report(&out, []finding{missing("a", "gone"), missing("b", "gone")}, true)
	if term.StatusOf(err) != term.Failed || !strings.HasPrefix(err.Error(), "2 things are missing") || !strings.Contains(out.String(), `"ok":false`) {
		t.Errorf("%v: %s", err, out.String())
	}
}
