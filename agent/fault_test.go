//go:build linux

package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/durable/durabletest"
)

// drop lets a call reach the control plane and loses the answer.
func drop(w http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// record lets a call through and answers what the control plane did.
func record(w http.ResponseWriter, r *http.Request, next http.Handler) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	next.ServeHTTP(rec, r)
	return rec
}

// pass sends a recorded answer on.
func pass(w http.ResponseWriter, rec *httptest.ResponseRecorder) {
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(rec.Code)
	w.Write(rec.Body.Bytes())
}

// TestLostClaimAnswer: the answer that brings a start is lost, three times.
func TestLostClaimAnswer(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.quick = true
	var lost atomic.Int32
	c.on("/claim", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		rec := record(w, r, next)
		if strings.Contains(rec.Body.String(), "act_") && lost.Add(1) <= 3 {
			panic(http.ErrAbortHandler)
		}
		pass(w, rec)
	})
	m.start().online()
	act := c.enqueue("evo")
	c.ended(act, "done")
	if n := m.launcher.startsOf(act); n != 1 || lost.Load() < 3 {
		t.Errorf("%d starts, and %d answers were lost", n, lost.Load())
	}
}

// TestLostReportAnswers: the first answer to every report is lost. Each is sent again
// before the next one, and taken once.
func TestLostReportAnswers(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.quick = true
	var mu sync.Mutex
	var sent []string
	c.on("/state", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		var report api.StateReport
		json.Unmarshal(body, &report)
		mu.Lock()
		first := !slices.Contains(sent, string(report.State))
		sent = append(sent, string(report.State))
		mu.Unlock()
		if first {
			drop(w, r, next)
		}
		next.ServeHTTP(w, r)
	})
	m.start().online()
	act := c.enqueue("evo")
	c.ended(act, "done")
	m.clean()
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(sent, " "); got != "pulling pulling starting starting ready ready stopped stopped" {
		t.Errorf("reported %s", got)
	}
	if n := m.launcher.startsOf(act); n != 1 {
		t.Errorf("%d starts", n)
	}
}

// TestDuplicateEnvelope: every claim is answered with the same envelope, twice, also
// one that was asked before its end was acknowledged and is answered after.
func TestDuplicateEnvelope(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.quick = true
	var mu sync.Mutex
	var answer []byte                       // the one that started it
	held, let := 0, make(chan struct{}, 10) // a claim that is answered late
	c.on("/claim", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		mu.Lock()
		late := answer != nil && held == 0
		if late {
			held++
		}
		again := answer
		mu.Unlock()
		if late {
			<-let // as if it had been answered before the end
			w.Header().Set("Content-Type", "application/json")
			w.Write(again)
			return
		}
		rec := record(w, r, next)
		var claimed api.Claimed
		if json.Unmarshal(rec.Body.Bytes(), &claimed) == nil && len(claimed.Start) == 1 {
			claimed.Start = append(claimed.Start, claimed.Start[0])
			src, _ := canon.Marshal(claimed)
			mu.Lock()
			answer = src
			mu.Unlock()
			w.Header().Set("Content-Type", "application/json")
			w.Write(src)
			return
		}
		pass(w, rec)
	})
	m.start().online()
	act := c.enqueue("evo")
	c.ended(act, "done")
	m.clean()
	mu.Lock()
	if held != 1 {
		t.Error("no claim was on its way")
	}
	mu.Unlock()
	claims := c.count("/claim")
	let <- struct{}{}
	until(t, "the next claim", func() bool { return c.count("/claim") > claims })
	if n := m.launcher.startsOf(act); n != 1 {
		t.Errorf("%d starts", n)
	}
	if left := m.journaled(); len(left) > 0 {
		t.Errorf("the journal holds %v", left)
	}
}

// TestKilledAnywhere kills the agent after each call to its disk in turn, and lets
// another life go on. Whatever is killed where: each activity is started at most once,
// comes to an end that the cloud has, and leaves nothing in the journal.
func TestKilledAnywhere(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.quick = true
	calls := 0
	for n := 1; ; n++ {
		// A life that dies at its n-th call.
		fs := &durabletest.FS{Plan: func(call durabletest.Call) durabletest.Fault {
			if call.N == n {
				return durabletest.Fault{Applied: true, Err: io.ErrUnexpectedEOF, Then: runtime.Goexit}
			}
			return durabletest.Fault{}
		}}
		m.parts.disk = durable.On(fs)
		m.shelf.mu.Lock()
		clear(m.shelf.has) // so that it pulls
		clear(m.shelf.pins)
		m.shelf.mu.Unlock()
		act := ""
		died := func() bool {
			select {
			case err := <-m.ended:
				m.ended <- err
				return err == errKilled
			default:
				return false
			}
		}
		m.start()
		over := func() bool {
			if act == "" {
				if m.worker().Status != api.Online || len(m.worker().Offers) == 0 {
					return false
				}
				act = c.enqueue("evo")
			}
			a, err := c.person.Activity(t.Context(), act)
			return err == nil && a.State.Ended() && len(m.journaled()) == 0
		}
		until(t, fmt.Sprintf("the agent is killed at call %d, or done", n), func() bool { return died() || over() })
		if !died() {
			m.stop()
			calls = n
			break
		}
		// And the one after it.
		m.parts.disk = durable.On(durable.OS)
		m.start()
		until(t, fmt.Sprintf("what was killed at call %d comes to its end", n), over)
		m.stop()
		a, err := c.person.Activity(t.Context(), act)
		if err != nil {
			t.Fatal(err)
		}
		starts := m.launcher.startsOf(act)
		switch {
		case starts > 1:
			t.Errorf("killed at call %d: started %d times", n, starts)
		case a.Reason == activity.Done && starts == 1:
		case a.Error != nil && a.Error.Code == activity.Lost:
		default:
			t.Errorf("killed at call %d: %d starts, and it is %s (%s %+v)", n, starts, a.State, a.Reason, a.Error)
		}
	}
	if calls < 40 {
		t.Errorf("only %d calls were broken", calls)
	}
	t.Logf("killed at each of %d calls", calls-1)
}

// TestUnwell: whatever a control plane or a proxy answers that is not the removal of
// this node is waited out and named, and the work goes on after it.
func TestUnwell(t *testing.T) {
	problem := func(status int, code string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"type":"about:blank","title":"t","status":%d,"code":%q,"detail":"d"}`, status, code)
		}
	}
	page := func(status int) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			io.WriteString(w, "<html>gone</html>")
		}
	}
	for _, tt := range []struct {
		name   string
		answer func(http.ResponseWriter)
		says   string
	}{
		{"500", problem(500, "internal"), "500 internal"},
		{"503 that asks to wait", func(w http.ResponseWriter) { w.Header().Set("Retry-After", "1"); problem(503, "unavailable")(w) }, "503"},
		{"HTML with 200", page(200), "not application/json"},
		{"HTML with 410", page(410), "410"},
		{"HTML with 409", page(409), "409"},
		{"410 of another code", problem(410, "not_found"), "410"},
		{"gone with another status", problem(404, "gone"), "404"},
		{"404", problem(404, "not_found"), "404"},
		{"401", problem(401, "unauthorized"), "sudo hanzo link"},
		{"403", problem(403, "forbidden"), "does not let this machine ask"},
		{"409 on the key", problem(409, "conflict"), "another install"},
		{"a redirect", func(w http.ResponseWriter) { w.Header().Set("Location", "http://127.0.0.1:1/"); w.WriteHeader(302) }, "302"},
		{"half an answer", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{"start": [`)
		}, "claim"},
		{"no JSON", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"start": [`)
		}, "decoding"},
		{"another shape", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"start": [], "stop": [], "reboot": true}`)
		}, "reboot"},
		{"100 MB", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			for range 100 {
				w.Write(make([]byte, 1<<20))
			}
		}, "over 1048576 bytes"},
		{"no connection", func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, "claim"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCloud(t)
			m := newMachine(t, c)
			m.launcher.quick = true
			c.on("/claim", func(w http.ResponseWriter, r *http.Request, _ http.Handler) { tt.answer(w) })
			m.start()
			m.says(tt.says)
			if s := m.now(); s.Connected {
				t.Error("the status says that it is connected")
			}
			c.between(nil)
			m.online()
			c.ended(c.enqueue("evo"), "done")
			until(t, "the status names no problem", func() bool { s := m.now(); return s.Connected && s.Problem == "" })
			if err := m.stop(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(m.Dir, "credential")); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSilence: a connection that says nothing is replaced within the wait and 15 s.
func TestSilence(t *testing.T) {
	if testing.Short() {
		t.Skip("waits 16 s for an answer")
	}
	t.Parallel()
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.quick = true
	var mu sync.Mutex
	from := map[string]int{}
	silent := true
	c.on("/claim", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		from[r.RemoteAddr]++
		quiet := silent
		silent = false
		mu.Unlock()
		if quiet {
			io.Copy(io.Discard, r.Body)
			<-r.Context().Done() // until the agent gives up
			return
		}
		next.ServeHTTP(w, r)
	})
	began := time.Now()
	m.start().online()
	c.ended(c.enqueue("evo"), "done")
	if took := time.Since(began); took < 16*time.Second || took > 16*time.Second+patience/2 {
		t.Errorf("the connection was replaced after %v", took)
	}
	mu.Lock()
	defer mu.Unlock()
	for addr, n := range from {
		if n == 1 {
			return
		}
		_ = addr
	}
	t.Errorf("no connection was replaced: %v", from)
}

// TestUnlinked: the control plane says that the node was removed.
func TestUnlinked(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c).start().online()
	act := c.enqueue("evo")
	c.becomes(act, activity.Ready)
	if err := c.person.DeleteWorker(t.Context(), "evo"); err != nil {
		t.Fatal(err)
	}
	if err := m.end(); err != ErrUnlinked {
		t.Fatalf("Run returned %v", err)
	}
	c.ended(act, "unlink")
	m.launcher.set(func() {
		if got := strings.Join(m.launcher.asked, ", "); got != "start, stop unlink" {
			t.Errorf("the launcher was asked for %s", got)
		}
	})
	if _, err := os.Stat(filepath.Join(m.Dir, "credential")); !os.IsNotExist(err) {
		t.Errorf("the credential: %v", err)
	}
	if got := strings.Join(m.audited(), ", "); got != "link, policy, start, unlink, stop unlink" {
		t.Errorf("audited %s", got)
	}
	if left := m.journaled(); len(left) > 0 {
		t.Errorf("the journal holds %v", left)
	}
	// And again: the machine is not linked any more, and says so.
	m.start()
	if err := m.end(); err == nil || !strings.Contains(err.Error(), "sudo hanzo link") {
		t.Errorf("Run without a credential: %v", err)
	}
}

// TestGoneReport: a 410 on a report is the end of that activity alone.
func TestGoneReport(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	c.on("/state", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"state":"ready"`) {
			api.Refuse(api.Gone, "cancelled").Write(w)
			return
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		next.ServeHTTP(w, r)
	})
	m.start().online()
	act := c.enqueue("evo")
	c.ended(act, "cancel")
	m.clean()
	m.launcher.quick = true
	c.between(nil)
	c.ended(c.enqueue("evo"), "done")
}

// TestIllegalTransition: a report that the control plane refuses for good is dropped,
// and named in the log.
func TestIllegalTransition(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.quick = true
	c.on("/state", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"state":"starting"`) {
			api.Refuse(api.IllegalTransition, "no").Write(w)
			return
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		next.ServeHTTP(w, r)
	})
	m.start().online()
	c.ended(c.enqueue("evo"), "done")
	m.clean()
	if !strings.Contains(m.log.String(), "the report is dropped") {
		t.Error("the log does not name it")
	}
}

// TestDisk: a disk that takes nothing fails what is offered, and nothing is started;
// claims go on; and when there is room again, so does work.
func TestDisk(t *testing.T) {
	for _, tt := range []struct {
		name  string
		err   error
		after int64 // writes to the journal that succeed
	}{
		{"full", syscall.ENOSPC, 0},
		{"full before the start", syscall.ENOSPC, 2}, // taken and pulling
		{"read-only", syscall.EROFS, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCloud(t)
			m := newMachine(t, c)
			m.launcher.quick = true
			var broken atomic.Bool
			var done atomic.Int64
			broken.Store(true)
			m.parts.disk = durable.On(&durabletest.FS{Plan: func(call durabletest.Call) durabletest.Fault {
				if !broken.Load() || !strings.Contains(call.Path, "/activities/") || call.Op != durabletest.Open || !strings.HasSuffix(call.Path, ".tmp") {
					return durabletest.Fault{}
				}
				if done.Add(1) <= tt.after {
					return durabletest.Fault{}
				}
				return durabletest.Fault{Err: tt.err}
			}})
			m.start().online()
			act := c.enqueue("evo")
			a := c.ended(act, "capacity")
			if !strings.Contains(a.Error.Message, tt.err.Error()) {
				t.Errorf("its message is %q", a.Error.Message)
			}
			if n := m.launcher.startsOf(act); n != 0 {
				t.Errorf("started %d times", n)
			}
			m.says("journal cannot be written")
			broken.Store(false)
			c.ended(c.enqueue("evo"), "done")
			m.clean()
			until(t, "the status names no problem", func() bool { return m.now().Problem == "" })
		})
	}
}

// TestCancel: a cancel reaches an activity wherever it is.
func TestCancel(t *testing.T) {
	for _, state := range []activity.State{activity.Pulling, activity.Starting, activity.Ready} {
		t.Run(string(state), func(t *testing.T) {
			c := newCloud(t)
			m := newMachine(t, c)
			if state == activity.Pulling {
				m.shelf.gate = make(chan error)
			}
			m.launcher.hold = state == activity.Starting
			m.start().online()
			act := c.enqueue("evo")
			c.becomes(act, state)
			if _, err := c.person.Cancel(t.Context(), act); err != nil {
				t.Fatal(err)
			}
			c.ended(act, "cancel")
			m.clean()
			if n := m.shelf.pinned() + m.shelf.waiting(); n != 0 {
				t.Errorf("%d pins and pulls are left", n)
			}
			if m.launcher.runs(act) {
				t.Error("it still runs")
			}
			if got := m.audited(); got[len(got)-1] != "stop cancel" {
				t.Errorf("audited %v", got)
			}
		})
	}
}

// TestPolicyChange: what is not the launcher's yet is stopped by the agent, the cloud
// is told, and what comes after is refused by the rule.
func TestPolicyChange(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.shelf.gate = make(chan error)
	m.start().online()
	act := c.enqueue("evo")
	c.becomes(act, activity.Pulling)
	m.policy(map[string]any{"kinds": []string{}})
	c.ended(act, "policy")
	until(t, "the cloud knows the policy", func() bool {
		w := m.worker()
		return len(w.Offers) == 0 && strings.Contains(string(w.Policy), `"kinds":[]`)
	})
	src, err := json.Marshal(c.input())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.person.Enqueue(t.Context(), api.Enqueue{Node: "evo", Kind: "train.fit", Input: src}); !api.Is(err, api.Denied) {
		t.Errorf("an enqueue after it: %v", err)
	}
	if got := strings.Join(m.audited(), ", "); got != "link, policy, policy, stop policy" {
		t.Errorf("audited %s", got)
	}
	m.policy(nil)
	m.online()
}

// TestLauncherLost: work ends with the launcher's connection, and another connection
// takes the next.
func TestLauncherLost(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c).start().online()
	act := c.enqueue("evo")
	c.becomes(act, activity.Ready)
	m.launcher.die()
	c.ended(act, "lost")
	m.launcher.set(func() { m.launcher.quick = true })
	// The cloud may still have the offers from before, or already none: what it
	// refuses meanwhile is asked again.
	src, err := json.Marshal(c.input())
	if err != nil {
		t.Fatal(err)
	}
	var next api.Activity
	until(t, "the node takes work again", func() bool {
		next, err = c.person.Enqueue(t.Context(), api.Enqueue{Node: "evo", Kind: policy.TrainFit, Input: src})
		if err != nil && !api.Is(err, api.Denied) {
			t.Fatal(err)
		}
		return err == nil
	})
	c.ended(next.Activity, "done")
	m.clean()
}

// TestLauncherAbsent: without a launcher nothing is offered and the status says why;
// when it comes, everything is.
func TestLauncherAbsent(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.gone, m.launcher.quick = true, true
	m.start()
	until(t, "the status says why", func() bool { return strings.Contains(strings.Join(m.now().Reasons, " "), "nobody listens") })
	until(t, "the node is registered", func() bool { w := m.worker(); return w.Status == api.Online && w.PolicySHA256 != "" })
	if w := m.worker(); len(w.Offers) != 0 {
		t.Errorf("it offers %v", w.Offers)
	}
	// It is registered as that once, however often the launcher is looked for.
	registered := func() int { return c.count("/workers/evo") }
	before, tries := registered(), m.launcher.tried()
	until(t, "the launcher is looked for", func() bool { return m.launcher.tried() > tries+3 })
	if n := registered(); n != before {
		t.Errorf("it was registered %d times more", n-before)
	}
	m.launcher.set(func() { m.launcher.gone = false })
	m.online()
	c.ended(c.enqueue("evo"), "done")
}

// TestLauncherRefuses: a refusal is the activity's failure, with the launcher's code.
func TestLauncherRefuses(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.refuse = &ipc.Refused{Code: activity.Denied, Message: "policy refuses by rule org: no"}
	m.start().online()
	act := c.enqueue("evo")
	c.ended(act, "denied")
	m.clean()
	if got := m.audited(); got[len(got)-1] != "deny denied" {
		t.Errorf("audited %v", got)
	}
}

// TestLauncherOfAnotherVersion: the agent ends, for it is the one that was not
// restarted.
func TestLauncherOfAnotherVersion(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.version++
	m.start()
	if err := m.end(); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("Run returned %v", err)
	}
}

// TestRestart: what runs when the agent is stopped is lost, and what does not run yet
// goes on in the next life.
func TestRestart(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c).start().online()
	running := c.enqueue("evo")
	c.becomes(running, activity.Ready)
	m.shelf.mu.Lock()
	clear(m.shelf.has)
	m.shelf.gate = make(chan error)
	m.shelf.mu.Unlock()
	pulling := c.enqueue("evo")
	c.becomes(pulling, activity.Pulling)
	if err := m.stop(); err != nil {
		t.Error(err)
	}
	c.ended(running, "lost")
	c.becomes(pulling, activity.Pulling)
	if m.launcher.runs(running) {
		t.Error("it still runs")
	}
	m.shelf.mu.Lock()
	m.shelf.gate = nil
	m.shelf.mu.Unlock()
	m.launcher.set(func() { m.launcher.quick = true })
	m.start()
	c.ended(pulling, "done")
	m.clean()
}

// TestStopForUnlink: hanzo unlink is at work, and says so by a file.
func TestStopForUnlink(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c).start().online()
	act := c.enqueue("evo")
	c.becomes(act, activity.Ready)
	if err := os.WriteFile(filepath.Join(m.Dir, "unlinking"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.stop(); err != nil {
		t.Error(err)
	}
	c.ended(act, "unlink")
	if got := strings.Join(m.audited(), ", "); got != "link, policy, start, unlink, stop unlink" {
		t.Errorf("audited %s", got)
	}
}

// TestOffline: reports that cannot be sent wait, over a restart too, and come in their
// order.
func TestOffline(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	m.launcher.quick = true
	var mu sync.Mutex
	var sent []string
	away := true
	c.on("/state", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		gone := away
		mu.Unlock()
		if gone {
			panic(http.ErrAbortHandler)
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		var report api.StateReport
		json.Unmarshal(body, &report)
		mu.Lock()
		sent = append(sent, string(report.State))
		mu.Unlock()
		next.ServeHTTP(w, r)
	})
	m.start().online()
	act := c.enqueue("evo")
	until(t, "it has ended here", func() bool {
		s := m.now()
		return len(s.Activities) == 1 && s.Activities[0].State == activity.Stopped
	})
	if err := m.stop(); err != nil {
		t.Error(err)
	}
	m.start()
	until(t, "the next life knows of it", func() bool { return len(m.now().Activities) == 1 && m.now().Connected })
	mu.Lock()
	away = false
	mu.Unlock()
	c.ended(act, "done")
	m.clean()
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(sent, " "); got != "pulling starting ready stopped" {
		t.Errorf("reported %s", got)
	}
}
