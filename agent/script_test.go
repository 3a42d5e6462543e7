//go:build linux

package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
	"golang.org/x/sys/unix"
)

// A script is a cloud that says what a test has it say, and believes every report.
type script struct {
	mu      sync.Mutex
	answers []string                     // to claims, one each; then 204
	reports map[string][]api.StateReport // of each activity
}

// script comes between the agent and the control plane.
func (c *cloud) script(envelopes ...canon.Raw) *script {
	s := &script{reports: map[string][]api.StateReport{}}
	for _, e := range envelopes {
		s.answers = append(s.answers, fmt.Sprintf(`{"start":[%s],"stop":[]}`, e))
	}
	c.between(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/claim"):
			s.mu.Lock()
			var answer string
			if len(s.answers) > 0 {
				answer, s.answers = s.answers[0], s.answers[1:]
			}
			s.mu.Unlock()
			if answer == "" {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, answer)
		case strings.HasSuffix(r.URL.Path, "/state"):
			var report api.StateReport
			body, _ := io.ReadAll(r.Body)
			if err := canon.Unmarshal(body, &report); err != nil {
				c.Errorf("a report: %v", err)
			} else if err := report.Check(); err != nil {
				c.Errorf("a report: %v", err)
			}
			act := strings.Split(r.URL.Path, "/")[7]
			s.mu.Lock()
			s.reports[act] = append(s.reports[act], report)
			s.mu.Unlock()
			w.WriteHeader(http.StatusNoContent)
		default:
			next.ServeHTTP(w, r)
		}
	})
	return s
}

// end waits for an activity's end.
func (s *script) end(t testing.TB, act string) api.StateReport {
	t.Helper()
	var last api.StateReport
	until(t, act+" has ended", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.reports[act]); n > 0 {
			last = s.reports[act][n-1]
		}
		return last.State.Ended()
	})
	return last
}

// idOf is an envelope's activity.
func idOf(t testing.TB, e canon.Raw) string {
	t.Helper()
	var named struct{ Activity string }
	if err := json.Unmarshal(e, &named); err != nil {
		t.Fatal(err)
	}
	return named.Activity
}

// TestEnvelopes: what is not of its form, not of this machine, too late or too much
// fails with its code, reaches neither the launcher nor the store, and keeps nobody
// from the right one after it.
func TestEnvelopes(t *testing.T) {
	c := newCloud(t)
	input := func(change map[string]any) map[string]any {
		in := c.input()
		for k, v := range change {
			if v == nil {
				delete(in, k)
				continue
			}
			in[k] = v
		}
		return in
	}
	ago := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	for _, tt := range []struct {
		name   string
		change map[string]any
		want   activity.Code
	}{
		{"a field too many", map[string]any{"command": "rm"}, activity.Schema},
		{"a field too few", map[string]any{"org": nil}, activity.Schema},
		{"a wrong type", map[string]any{"kind": 7}, activity.Schema},
		{"a control character", map[string]any{"requester": "acme/\x1b[2J"}, activity.Schema},
		{"no input", map[string]any{"input": nil}, activity.Schema},
		{"no time", map[string]any{"deadline": "tomorrow"}, activity.Schema},
		{"an input of another shape", map[string]any{"input": input(map[string]any{"argv": []string{"sh"}})}, activity.Schema},
		{"an input without a member", map[string]any{"input": input(map[string]any{"base": nil})}, activity.Schema},
		{"a number out of range", map[string]any{"input": input(map[string]any{"memory": -1})}, activity.Schema},
		{"a path for a tree", map[string]any{"input": input(map[string]any{"base": "../../etc"})}, activity.Schema},
		{"larger than a packet", map[string]any{"issued": strings.Repeat("x", 70<<10)}, activity.Schema},
		{"a kind that nobody knows", map[string]any{"kind": "sh.run"}, activity.Unsupported},
		{"a kind that is not admitted", map[string]any{"kind": "fn.run"}, activity.Denied},
		{"another org's", map[string]any{"org": "evil"}, activity.Denied},
		{"more memory than the cap", map[string]any{"input": input(map[string]any{"memory": 2 << 30})}, activity.Denied},
		{"after its deadline", map[string]any{"deadline": ago}, activity.TooLate},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCloud(t)
			m := newMachine(t, c)
			m.launcher.quick = true
			bad, good := c.envelope(tt.change), c.envelope(nil)
			s := c.script(canon.Raw(string(bad)+","+string(good)), bad)
			m.start()
			r := s.end(t, idOf(t, bad))
			if r.Error == nil || r.Error.Code != tt.want {
				t.Errorf("it ended %s %s %+v, want %s", r.State, r.Reason, r.Error, tt.want)
			}
			if r := s.end(t, idOf(t, good)); r.Reason != activity.Done {
				t.Errorf("the right one ended %s %s %+v", r.State, r.Reason, r.Error)
			}
			if n := m.launcher.startsOf(idOf(t, bad)); n != 0 {
				t.Errorf("started %d times", n)
			}
			m.clean()
		})
	}
}

// TestEnvelopeOfNobody: an envelope whose activity is no id is left alone, and so is
// one that is not JSON of an object.
func TestEnvelopeOfNobody(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.quick = true
	good := c.envelope(nil)
	s := c.script(
		c.envelope(map[string]any{"activity": "../../etc/passwd"}), c.envelope(map[string]any{"activity": nil}),
		canon.Raw(`7`), canon.Raw(`[[]]`), canon.Raw(`null`), good)
	m.start()
	if r := s.end(t, idOf(t, good)); r.Reason != activity.Done {
		t.Errorf("the right one ended %s %s %+v", r.State, r.Reason, r.Error)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reports) != 1 {
		t.Errorf("reports of %d activities", len(s.reports))
	}
}

// TestConcurrency: a start above the policy's concurrency is refused, and the first
// one runs on.
func TestConcurrency(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.policy(map[string]any{"concurrency": 1})
	one, two := c.envelope(nil), c.envelope(nil)
	s := c.script(one, two)
	m.start()
	r := s.end(t, idOf(t, two))
	if r.Error == nil || r.Error.Code != activity.Denied || !strings.Contains(r.Error.Message, "concurrency") {
		t.Errorf("the second ended %s %s %+v", r.State, r.Reason, r.Error)
	}
	until(t, "the first runs", func() bool { return m.launcher.runs(idOf(t, one)) })
}

// TestDeadline: what is not ready by then is stopped, wherever it is.
func TestDeadline(t *testing.T) {
	for _, state := range []activity.State{activity.Requested, activity.Pulling, activity.Starting} {
		t.Run(string(state), func(t *testing.T) {
			c := newCloud(t)
			m := newMachine(t, c)
			switch state {
			case activity.Requested:
				m.launcher.gone = true // nobody to start it
				m.shelf.has[c.input()["stage"].(string)] = true
				m.shelf.has[c.input()["base"].(string)] = true
			case activity.Pulling:
				m.shelf.gate = make(chan error)
			case activity.Starting:
				m.launcher.hold = true
			}
			e := c.envelope(map[string]any{"deadline": time.Now().Add(2 * time.Second).UTC().Format(time.RFC3339)})
			s := c.script(e)
			m.start()
			if r := s.end(t, idOf(t, e)); r.Reason != activity.Deadline {
				t.Errorf("it ended %s %s %+v", r.State, r.Reason, r.Error)
			}
			m.clean()
		})
	}
}

// TestPullFails: the store's code is the activity's.
func TestPullFails(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.shelf.gate = make(chan error, 1)
	m.shelf.gate <- refusal{activity.Integrity, io.ErrUnexpectedEOF}
	m.start().online()
	act := c.enqueue("evo")
	c.ended(act, "integrity")
	m.clean()
	if n := m.shelf.pinned(); n != 0 {
		t.Errorf("%d pins are left", n)
	}
}

// TestProgress: a pull's progress reaches the cloud.
func TestProgress(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.shelf.gate = make(chan error)
	m.start().online()
	act := c.enqueue("evo")
	until(t, "the cloud knows how far it is", func() bool {
		a, err := c.person.Activity(t.Context(), act)
		return err == nil && a.Progress != nil && *a.Progress == (api.Progress{Done: 1, Total: 2})
	})
	if s := m.now().Activities; len(s) != 1 || s[0].Done != 1 || s[0].Total != 2 {
		t.Errorf("the status is %+v", s)
	}
}

// TestOutput: of each stream 64 KiB are reported, as text, with a word of the rest.
func TestOutput(t *testing.T) {
	long := strings.Repeat("é", api.MaxOutput)
	out, errs := memory(t, long), memory(t, "a\xffb")
	got := outputOf(ipc.Reply{Ended: &ipc.Ended{Exit: 3, Stdout: len(long), Stderr: 3}}, []*os.File{out, errs})
	if got.Exit != 3 || got.Stdout != long[:api.MaxOutput] || got.Stderr != "a\ufffdb" || !got.Truncated {
		t.Errorf("exit %d, %d bytes, %q, truncated %v", got.Exit, len(got.Stdout), got.Stderr, got.Truncated)
	}
	for _, f := range []*os.File{out, errs} {
		if f.Close() == nil {
			t.Error("a memory file was left open")
		}
	}
}

// TestWatchdog: it is fed by claims that were answered and by the steps of a wait, and
// by nothing else.
func TestWatchdog(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	fed := make(chan string, 1000)
	m.Notify = func(s string) { fed <- s }
	m.Watchdog = time.Minute
	m.pace.first, m.pace.most = time.Hour, time.Hour // one failure is waited out for ever
	hang := make(chan struct{})
	c.on("/claim", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		io.Copy(io.Discard, r.Body)
		select {
		case <-hang:
		case <-r.Context().Done():
		}
		w.WriteHeader(500)
	})
	m.start()
	if s := <-fed; s != "READY=1" {
		t.Errorf("told %s first", s)
	}
	until(t, "it is registered", func() bool { return len(m.worker().Offers) > 0 })
	select {
	case s := <-fed:
		t.Errorf("told %s while the claim hung", s)
	default:
	}
	close(hang)
	for range 5 { // the answer, and then the steps of the wait
		if s := <-fed; s != "WATCHDOG=1" {
			t.Errorf("told %s", s)
		}
	}
	m.cancel()
	for s := range fed {
		if s == "STOPPING=1" {
			return
		}
	}
}

// TestClock: a clock that differs is named, in the status and once in the log, and
// nothing else comes of it.
func TestClock(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.quick = true
	c.between(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		w.Header().Set("Date", time.Now().Add(2*time.Hour).UTC().Format(http.TimeFormat))
		next.ServeHTTP(w, r)
	})
	m.start().online()
	c.ended(c.enqueue("evo"), "done")
	m.says("clock is about 2h0m0s behind the cloud's")
	if n := strings.Count(m.log.String(), `msg="the clock"`); n != 1 {
		t.Errorf("the log names it %d times", n)
	}
	c.between(nil)
	until(t, "the status names no problem", func() bool { return m.now().Problem == "" })
}

// TestKeyOfAnother: a machine re-imaged under the same name has another key. It is
// named, and nothing is thrown away.
func TestKeyOfAnother(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	if err := os.WriteFile(filepath.Join(m.Dir, "key"), []byte(NewKey()), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start()
	m.says("another install")
	if err := m.stop(); err != nil {
		t.Error(err)
	}
}

// TestRegister: the key is on disk before the call, a lost answer costs nothing, a
// name that is taken gets four digits of the key, once.
func TestRegister(t *testing.T) {
	c := newCloud(t)
	dir := t.TempDir()
	c.between(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if _, err := readKey(dir); err != nil {
			t.Errorf("at the call the key is not there: %v", err)
		}
		drop(w, r, next)
	})
	if _, _, err := Register(t.Context(), c.person, dir, hostFacts(), -1, -1); err == nil {
		t.Error("a lost answer was no error")
	}
	c.between(nil)
	link, credential, err := Register(t.Context(), c.person, dir, hostFacts(), -1, -1)
	if err != nil || link.ID != "evo" || link.Org != "acme" || link.LinkedBy != "acme/alice" || credential == "" {
		t.Fatalf("Register = %+v, %v", link, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v %v", info.Mode(), err)
	}
	if err := link.Write(dir, credential, -1, -1); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadLink(dir); err != nil || got != link {
		t.Errorf("ReadLink = %+v, %v; want %+v", got, err, link)
	}
	for name, mode := range map[string]os.FileMode{"credential": 0o600, "link.json": 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}

	other := t.TempDir()
	second, _, err := Register(t.Context(), c.person, other, hostFacts(), -1, -1)
	key, _ := readKey(other)
	if err != nil || second.ID != "evo-"+key[:4] {
		t.Fatalf("the second of the name is %+v, %v", second, err)
	}
	// A third one whose key begins alike finds both taken.
	third := t.TempDir()
	if err := os.WriteFile(filepath.Join(third, "key"), []byte(key[:4]+NewKey()[4:]), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Register(t.Context(), c.person, third, hostFacts(), -1, -1); !api.Is(err, api.Conflict) || !strings.Contains(err.Error(), second.ID) {
		t.Errorf("the third of the name: %v", err)
	}
}

// TestPlanted: what somebody puts in the place of the key is not followed, waited for
// or quoted.
func TestPlanted(t *testing.T) {
	c := newCloud(t)
	for name, plant := range map[string]func(path string) error{
		"a link": func(path string) error { return os.Symlink("/etc/passwd", path) },
		"a pipe": func(path string) error { return unix.Mkfifo(path, 0o600) },
		"words":  func(path string) error { return os.WriteFile(path, []byte("root:secret"), 0o600) },
	} {
		dir := t.TempDir()
		if err := plant(filepath.Join(dir, "key")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Register(t.Context(), c.person, dir, hostFacts(), -1, -1); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPlantedLink: what the agent's user writes into link.json is no command to the
// terminal of root, who prints it.
func TestPlantedLink(t *testing.T) {
	for _, field := range []string{"org", "linkedBy", "project", "linked"} {
		dir := t.TempDir()
		link := map[string]string{"api": "https://cloud", "org": "acme", "id": "evo", "linkedBy": "acme/alice", "project": "default", "linked": "now"}
		link[field] += "\x1b[2Jok"
		src, err := json.Marshal(link)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "link.json"), src, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadLink(dir); err == nil || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestPresence: a machine without a launcher is there, offers nothing and takes
// nothing.
func TestPresence(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.Dial, m.Policy, m.parts.keeper = nil, "", nil
	e := c.envelope(nil)
	m.start()
	until(t, "the node is registered", func() bool { return m.worker().Version == "test" && m.worker().Status == api.Online })
	if w := m.worker(); len(w.Offers) != 0 || w.PolicySHA256 != "" {
		t.Errorf("it says %+v", w)
	}
	s := c.script(e)
	if r := s.end(t, idOf(t, e)); r.Error == nil || r.Error.Code != activity.Denied {
		t.Errorf("an envelope ended %s %+v", r.State, r.Error)
	}
}

// TestSecrets: the credential and the key are nowhere but in their files.
func TestSecrets(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.quick = true
	m.start().online()
	c.ended(c.enqueue("evo"), "done")
	c.on("/claim", func(w http.ResponseWriter, r *http.Request, _ http.Handler) { w.WriteHeader(401) })
	m.says("sudo hanzo link")
	m.stop()
	credential, err := os.ReadFile(filepath.Join(m.Dir, "credential"))
	if err != nil {
		t.Fatal(err)
	}
	key, _ := readKey(m.Dir)
	for what, text := range map[string]string{"log": m.log.String(), "audit": read(t, filepath.Join(m.Dir, "audit.jsonl")), "status": read(t, m.Status)} {
		for _, secret := range []string{strings.TrimSpace(string(credential)), key} {
			if strings.Contains(text, secret) {
				t.Errorf("the %s holds a secret", what)
			}
		}
	}
	if info, err := os.Stat(filepath.Join(m.Dir, "audit.jsonl")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the audit log: %v %v", info.Mode(), err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(src)
}

// TestAudit: a line after a torn one begins on its own, and lines that a disk did not
// take come later, in their order.
func TestAudit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, []byte(`{"time":"`), 0o600); err != nil {
		t.Fatal(err)
	}
	a := audit{path: path}
	if err := a.add(line{Event: auditStart}); err != nil {
		t.Fatal(err)
	}
	// A folder in the file's place takes no line.
	if err := os.Rename(path, path+".kept"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, event := range []string{auditStop, auditFail} {
		if err := a.add(line{Event: event}); err == nil {
			t.Error("a folder took a line")
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".kept", path); err != nil {
		t.Fatal(err)
	}
	if err := a.add(line{Event: auditDeny}); err != nil {
		t.Fatal(err)
	}
	got := regexp.MustCompile(`"time":"[^"]*Z"`).ReplaceAllString(read(t, path), "")
	want := "{\"time\":\"\n{,\"event\":\"start\"}\n{,\"event\":\"stop\"}\n{,\"event\":\"fail\"}\n{,\"event\":\"deny\"}\n"
	if got != want {
		t.Errorf("the log is %q, want %q", got, want)
	}
}

// TestBrokenJournal: what cannot be read is put aside and named, and the rest goes on.
func TestBrokenJournal(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.quick = true
	dir := filepath.Join(m.Dir, "activities")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"act_1.json": `{"envelope":`, "act_2.json": `{"envelope":{"activity":"act_3"},"state":"ready"}`, ".act_4.json.0.tmp": "x",
		"act_5.json": `{"node":"elsewhere","envelope":{"activity":"act_5"},"state":"ready","reports":[]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.start().online()
	c.ended(c.enqueue("evo"), "done")
	until(t, "only what is broken is left", func() bool {
		return strings.Join(m.journaled(), " ") == "act_1.json.broken act_2.json.broken"
	})
}

// TestRest: with nothing to do there is one claim after another, and no other call.
func TestRest(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c).start().online()
	claims := c.count("/claim")
	c.mu.Lock()
	before := len(c.calls)
	c.mu.Unlock()
	until(t, "three more claims", func() bool { return c.count("/claim") >= claims+3 })
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls[before:] {
		if !strings.HasSuffix(call, "/claim") && !strings.HasSuffix(call, "/workers") { // the latter is the test's
			t.Errorf("at rest it calls %s", call)
		}
	}
	_ = m
}

func TestFoldHostname(t *testing.T) {
	for hostname, want := range map[string]string{
		"evo": "evo", "Evo.Local": "evo-local", "a_b": "a-b", "": "node", "...": "node", "ünï": "n",
		strings.Repeat("x", 70): strings.Repeat("x", 63), strings.Repeat("x", 62) + ".y": strings.Repeat("x", 62),
	} {
		got := FoldHostname(hostname)
		if got != want || !api.ValidWorker(got) {
			t.Errorf("FoldHostname(%q) = %q, want %q", hostname, got, want)
		}
		if s := suffixed(got, "9b1c0e6f2a4d4e0b8c7f3a5d1e2b6c90"); !api.ValidWorker(s) || !strings.HasSuffix(s, "-9b1c") {
			t.Errorf("with a suffix it is %q", s)
		}
	}
}

// TestBackoff: 1 s, doubling to 60 s, up to a quarter more, and never less than what
// the server asked for, within ten minutes.
func TestBackoff(t *testing.T) {
	var b backoff
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		want *= time.Second
		if got := b.next(usual, false, 0); got < want || got > want+want/4 {
			t.Errorf("waited %v, want %v and up to a quarter more", got, want)
		}
	}
	for _, tt := range []struct {
		slow        bool
		asked, want time.Duration
	}{{false, 0, time.Second}, {true, 0, time.Minute}, {false, 90 * time.Second, 90 * time.Second}, {false, 1000 * time.Hour, 10 * time.Minute}} {
		var b backoff
		if got := b.next(usual, tt.slow, tt.asked); got < tt.want || got > tt.want+tt.want/4 {
			t.Errorf("slow %v, asked for %v: waited %v, want %v", tt.slow, tt.asked, got, tt.want)
		}
	}
}

// TestFutile: a cloud that goes on offering at once what this machine can neither list
// nor refuse is asked ever more seldom, up to as often as one that has nothing to say.
func TestFutile(t *testing.T) {
	a := &agent{Config: Config{Wait: 25 * time.Second, Log: slog.New(slog.DiscardHandler)}, parts: parts{pace: usual}}
	offered := api.Offered{Start: []canon.Raw{canon.Raw(`{"activity":"../etc"}`)}}
	var waits []int
	for range 7 {
		a.claimed(1, time.Now(), offered, nil)
		waits = append(waits, int(time.Until(a.claimAt).Round(time.Second)/time.Second))
	}
	for i, want := range []int{1, 2, 4, 8, 16, 25, 25} {
		if waits[i] < want || waits[i] > min(want+want/4+1, 25) {
			t.Errorf("waits of %v s", waits)
		}
	}
	a.claimed(1, time.Now().Add(-time.Minute), api.Offered{}, nil)
	a.claimed(1, time.Now(), offered, nil)
	if wait := time.Until(a.claimAt); wait > 2*time.Second {
		t.Errorf("after an answer that was waited for it waits %v", wait)
	}
}

// TestHeld: what is held is what has not ended.
func TestHeld(t *testing.T) {
	a := &agent{}
	for _, s := range []activity.State{activity.Pulling, activity.Ready, activity.Failed} {
		a.order = append(a.order, &work{entry: entry{State: s}, ask: policy.Ask{Memory: 1, CPUs: 2, Disk: 3, VRAM: 4}})
	}
	if got, want := a.held(), (policy.Held{Count: 2, Memory: 2, CPUs: 4, Disk: 6, VRAM: 8}); got != want {
		t.Errorf("held is %+v, want %+v", got, want)
	}
}
