//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
)

// The test's binary is also the program's processes.
func TestMain(m *testing.M) {
	if os.Getenv(life) != "" {
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

const act = "act_01JB7Q8ZK3M2N4P5R6S7T8V9W0"

// well is the ledger of one activity that went as it should, on one node.
func well() ledger {
	a := api.Activity{Node: "node-0000", State: activity.Stopped, Reason: activity.Done}
	a.Activity, a.Updated = act, time.Unix(100, 0).UTC().Format(time.RFC3339)
	var l ledger
	for i, e := range []entry{
		{What: began}, {What: asked}, {What: enqueued}, {What: offered},
		{What: delivered, State: activity.Starting, Status: 204}, {What: started},
		{What: delivered, State: activity.Ready, Status: 204}, {What: delivered, State: activity.Ready, Status: 204},
		{What: finished, State: activity.Stopped, End: "done"},
		{What: delivered, State: activity.Stopped, Status: 204}, {What: delivered, State: activity.Ready, Status: 409}, {What: ended},
	} {
		e.At, e.Node = int64(i+1)*10*int64(time.Second), "node-0000"
		e.Sent = e.At - 1
		if e.What != began && e.What != ended {
			e.Activity = act
		}
		l.history = append(l.history, e)
	}
	l.activities = []api.Activity{a}
	l.events = []api.WorkloadEvent{
		{Seq: 1, Name: api.WorkloadStarted, Activity: act, State: activity.Ready},
		{Seq: 2, Name: api.WorkloadStopped, Activity: act, State: activity.Stopped, Reason: "done"},
	}
	l.most = 1
	return l
}

// add puts an entry of the one node into the history, at a second.
func (l *ledger) add(second int64, e entry) {
	at := second * int64(time.Second)
	e.At, e.Sent = at, at-1
	if e.Node == "" {
		e.Node = "node-0000"
	}
	i := slices.IndexFunc(l.history, func(have entry) bool { return have.At > at })
	if i < 0 {
		i = len(l.history)
	}
	l.history = slices.Insert(l.history, i, e)
}

func (l *ledger) remove(what string) {
	l.history = slices.DeleteFunc(l.history, func(e entry) bool { return e.What == what })
}

// lose makes the cloud say that it is lost.
func (l *ledger) lose() {
	l.activities[0].State, l.activities[0].Reason = activity.Failed, ""
	l.activities[0].Error = &activity.Failure{Code: activity.Lost}
	l.events[1] = api.WorkloadEvent{Seq: 2, Name: api.WorkloadFailed, Activity: act, State: activity.Failed, Reason: "lost"}
}

func TestAHistoryThatHolds(t *testing.T) {
	for _, disturbed := range []bool{false, true} {
		l := well()
		l.disturbed = disturbed
		if wrong := l.check(); len(wrong) > 0 {
			t.Errorf("disturbed %v: %q", disturbed, wrong)
		}
	}
}

// Every way to break the promise is one that the check finds.
func TestHistoriesThatDoNotHold(t *testing.T) {
	for _, c := range []struct {
		name      string
		disturbed bool
		spoil     func(*ledger)
		want      string
	}{
		{"started twice", true, func(l *ledger) {
			l.add(75, entry{What: finished, Activity: act, End: "done"})
			l.add(76, entry{What: started, Activity: act})
		}, "started twice"},
		{"started elsewhere", true, func(l *ledger) {
			l.remove(started)
			l.add(55, entry{What: started, Activity: act, Node: "node-0001"})
		}, "is node-0000's and was started on node-0001"},
		{"never started", false, func(l *ledger) { l.remove(started); l.remove(finished); l.lose() }, "never ran"},
		{"never started, and done", true, func(l *ledger) { l.remove(started); l.remove(finished) }, "it never finished"},
		{"forgotten by the cloud", true, func(l *ledger) { l.activities = nil }, "the cloud does not hold it"},
		{"listed twice", true, func(l *ledger) { l.activities = append(l.activities, l.activities[0]) }, "listed twice"},
		{"without an end", true, func(l *ledger) { l.activities[0].State = activity.Ready }, "has not ended"},
		{"two events of its end", true, func(l *ledger) { l.events = append(l.events, l.events[1]) }, "2 events"},
		{"no event of its end", true, func(l *ledger) { l.events = l.events[:1] }, "0 events"},
		{"another end in its event", true, func(l *ledger) { l.events[1].Reason = "cancel" }, "its event says stopped cancel"},
		{"lost while its agent lived", true, func(l *ledger) { l.lose() }, "is lost although its agent lived on"},
		{"lost while it ran", true, func(l *ledger) { l.remove(finished); l.remove(ended); l.lose() }, "although its agent lived on"},
		{"lost before it ran", true, func(l *ledger) { l.remove(started); l.remove(finished); l.remove(ended); l.lose() }, "although its agent lived on"},
		{"cancelled by nobody", true, func(l *ledger) {
			l.activities[0].Reason, l.events[1].Reason = activity.Cancel, "cancel"
		}, "nobody asked for that"},
		{"a report after the end", true, func(l *ledger) {
			l.add(105, entry{What: delivered, Activity: act, State: activity.Failed, Status: 204})
		}, "accepted failed after stopped"},
		{"a report backwards", false, func(l *ledger) {
			l.add(85, entry{What: delivered, Activity: act, State: activity.Starting, Status: 204})
		}, "accepted starting after ready"},
		{"too many at once", true, func(l *ledger) { l.most = 0 }, "1 at once"},
		{"started after its end", true, func(l *ledger) {
			l.remove(started)
			l.add(105, entry{What: started, Activity: act})
		}, "started after its end"},
		{"an end without a cause", true, func(l *ledger) {
			l.lose()
			l.activities[0].Error.Code, l.events[1].Reason = activity.Pull, "pull"
		}, "ended as pull"},
		{"started and silent", true, func(l *ledger) {
			l.remove(finished)
			l.remove(ended)
			l.activities[0].Reason, l.events[1].Reason = activity.Cancel, "cancel"
			l.add(55, entry{What: cancelled, Activity: act})
		}, "says no more of it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := well()
			l.disturbed = c.disturbed
			c.spoil(&l)
			wrong := l.check()
			if !slices.ContainsFunc(wrong, func(s string) bool { return strings.Contains(s, c.want) }) {
				t.Errorf("the check says %q, and not %q", wrong, c.want)
			}
		})
	}
}

// What faults may do to an activity is not held against anybody.
func TestDisturbedHistoriesThatHold(t *testing.T) {
	for name, change := range map[string]func(*ledger){
		"killed before it could say that it finished": func(l *ledger) { l.remove(ended); l.add(91, entry{What: killed}); l.lose() },
		"killed while it ran":                         func(l *ledger) { l.remove(finished); l.add(71, entry{What: killed}); l.lose() },
		"killed before it was started": func(l *ledger) {
			l.remove(started)
			l.remove(finished)
			l.add(41, entry{What: killed})
			l.lose()
		},
		"its launcher was restarted": func(l *ledger) {
			l.remove(finished)
			l.remove(ended)
			l.add(71, entry{What: torn, Activity: act})
			l.lose()
		},
		"its launcher was restarted before it could start it": func(l *ledger) {
			l.remove(started)
			l.remove(finished)
			l.remove(ended)
			l.add(51, entry{What: dropped})
			l.lose()
		},
		"a report that was under way when the end came": func(l *ledger) {
			l.add(105, entry{What: delivered, Activity: act, State: activity.Ready, Status: 204})
			for i := range l.history {
				if l.history[i].At == 105*int64(time.Second) {
					l.history[i].Sent = 85 * int64(time.Second)
				}
			}
		},
		"cancelled before it was offered": func(l *ledger) {
			for _, what := range []string{started, finished, offered, delivered} {
				l.remove(what)
			}
			l.add(35, entry{What: cancelled, Activity: act})
			l.activities[0].Reason, l.events[1].Reason = activity.Cancel, "cancel"
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := well()
			l.disturbed = true
			change(&l)
			if wrong := l.check(); len(wrong) > 0 {
				t.Errorf("%q", wrong)
			}
		})
	}
}

func TestHistorySurvivesItsProcess(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.jsonl", "a.jsonl"} {
		h, err := newHistory(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		h.tell(entry{What: asked, Activity: name})
		h.tell(entry{At: 1, What: began, Activity: name})
		if err := h.close(); err != nil {
			t.Fatal(err)
		}
	}
	all, err := readHistories(dir)
	if err != nil || len(all) != 4 || all[0].What != began || all[3].Activity != "a.jsonl" {
		t.Errorf("%+v, %v", all, err)
	}
}

// agentOf is an agent's side of a simulated launcher.
func agentOf(t *testing.T, l *launcher) *ipc.Conn {
	t.Helper()
	c, err := l.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if r := reply(t, c); r.Ready == nil || !slices.Equal(r.Ready.Kinds, []string{policy.TrainFit}) {
		t.Fatalf("the first word is %+v", r)
	}
	return c
}

func reply(t *testing.T, c *ipc.Conn) ipc.Reply {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	r, files, err := c.ReadReply()
	if err != nil || len(files) > 0 {
		t.Fatalf("%+v, %d files, %v", r, len(files), err)
	}
	return r
}

func ask(t *testing.T, c *ipc.Conn, r ipc.Request) {
	t.Helper()
	if err := c.WriteRequest(r); err != nil {
		t.Fatal(err)
	}
}

func envelope(id string) *activity.Envelope {
	return &activity.Envelope{Activity: id, Kind: policy.TrainFit, Org: org, Project: "default", Requester: "acme/alice",
		Issued: "2026-10-22T17:04:05Z", Deadline: "2026-10-22T17:24:05Z", Input: canon.Raw(`{}`)}
}

func newLauncher(t *testing.T, longest time.Duration) (*launcher, func() []entry) {
	t.Helper()
	dir := t.TempDir()
	h, err := newHistory(filepath.Join(dir, "l.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return &launcher{node: "node-0000", most: 1, longest: longest, history: h}, func() []entry {
		all, err := readHistories(dir)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
}

func TestSimulatedLauncher(t *testing.T) {
	l, told := newLauncher(t, 0)
	c := agentOf(t, l)
	ask(t, c, ipc.Request{Start: envelope("act_1")})
	if r := reply(t, c); r.Started == nil || r.Started.Activity != "act_1" {
		t.Errorf("started: %+v", r)
	}
	if r := reply(t, c); r.Ended == nil || r.Ended.Reason != activity.Done {
		t.Errorf("done: %+v", r)
	}
	ask(t, c, ipc.Request{Stop: &ipc.Stop{Activity: "act_1", Reason: activity.Cancel}})
	if r := reply(t, c); r.Refused == nil || r.Refused.Code != activity.Lost {
		t.Errorf("a stop of what is over: %+v", r)
	}
	if all := told(); len(all) != 2 || all[0].What != started || all[1].What != finished || all[1].End != "done" {
		t.Errorf("the history: %+v", all)
	}
}

func TestSimulatedLauncherStopsAndTears(t *testing.T) {
	l, told := newLauncher(t, 24*time.Hour)
	c := agentOf(t, l)
	for range 2 { // the second changes nothing
		ask(t, c, ipc.Request{Start: envelope("act_1")})
		if r := reply(t, c); r.Started == nil {
			t.Errorf("started: %+v", r)
		}
	}
	ask(t, c, ipc.Request{Start: envelope("act_2")})
	if r := reply(t, c); r.Refused == nil || r.Refused.Activity != "act_2" {
		t.Errorf("one too many: %+v", r)
	}
	ask(t, c, ipc.Request{Stop: &ipc.Stop{Activity: "act_1", Reason: activity.Cancel}})
	if r := reply(t, c); r.Ended == nil || r.Ended.Reason != activity.Cancel {
		t.Errorf("stopped: %+v", r)
	}
	ask(t, c, ipc.Request{Start: envelope("act_3")})
	reply(t, c)
	c.Close()
	agentOf(t, l) // which is served after the first is over
	var what []string
	for _, e := range told() {
		what = append(what, e.What+" "+e.Activity)
	}
	if want := []string{"started act_1", "finished act_1", "started act_3", "torn act_3"}; !slices.Equal(what, want) {
		t.Errorf("the history: %q, want %q", what, want)
	}
}

// proxied is a cloud that counts behind a proxy that does one thing to every request.
func proxied(t *testing.T, f fault) (get func() (int, string, error), reached func() int64, told func() []entry) {
	t.Helper()
	var n atomic.Int64
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		n.Add(1)
		w.Write(body)
	}))
	t.Cleanup(cloud.Close)
	dir := t.TempDir()
	h, err := newHistory(filepath.Join(dir, "p.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	rate := 1.0
	if f == none {
		rate = 0
	}
	p := newProxy(t.Context(), cloud.URL, rate, 1, h)
	p.slowest = time.Millisecond
	if f == impatient {
		p.slowest = time.Hour // the cloud answers before
	}
	p.only = f
	front := httptest.NewServer(p)
	t.Cleanup(front.Close)
	get = func() (int, string, error) {
		body := `{"key":"k","state":"ready","pad":"` + strings.Repeat("x", 1000) + `"}`
		resp, err := front.Client().Post(front.URL+"/v1/compute/fleet/workers/node-0000/activities/act_1/state", "application/json", strings.NewReader(body))
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b), err
	}
	return get, func() int64 { p.strays.Wait(); return n.Load() }, func() []entry {
		all, err := readHistories(dir)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
}

func TestProxyDoesWhatItSays(t *testing.T) {
	for f, want := range map[fault]struct {
		reached int64 // requests that reached the cloud
		status  int   // 0: no answer, or not a whole one
	}{
		none: {1, 200}, unsent: {0, 0}, unheard: {1, 0}, half: {1, 0}, twice: {2, 200}, late: {2, 200},
		slow: {1, 200}, impatient: {1, 200}, page: {0, 502}, lie: {1, 503}, gone: {0, 410},
	} {
		t.Run(string(f), func(t *testing.T) {
			get, reached, told := proxied(t, f)
			status, body, err := get()
			if (err == nil) != (want.status != 0) || err == nil && status != want.status {
				t.Errorf("answered %d, %v", status, err)
			}
			if status == 200 && err == nil && !strings.Contains(body, `"state":"ready"`) {
				t.Errorf("answered %q", body)
			}
			if got := reached(); got != want.reached {
				t.Errorf("%d requests reached the cloud, want %d", got, want.reached)
			}
			all := told()
			if len(all) != int(want.reached) {
				t.Errorf("the history: %+v", all)
			}
			for _, e := range all {
				if e.What != delivered || e.Node != "node-0000" || e.Activity != "act_1" || e.State != activity.Ready || e.Status != 200 {
					t.Errorf("the history: %+v", e)
				}
			}
		})
	}
}

func TestQuantiles(t *testing.T) {
	var all []time.Duration
	for i := range 200 {
		all = append(all, time.Duration(200-i)*time.Millisecond)
	}
	if got, want := quantiles(all), (times{200, 100, 198, 200}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := quantiles(nil); got != (times{}) {
		t.Errorf("of none: %+v", got)
	}
}

// TestClaims is the benchmark in small, disturbed: 20 nodes, 400 activities.
func TestClaims(t *testing.T) {
	if testing.Short() {
		t.Skip("takes about a minute")
	}
	if os.Geteuid() != 0 {
		t.Skip("the nodes' policy file must be root's")
	}
	p := plan{
		Nodes: 20, Pens: 3, Activities: 400, Rate: 20, Requesters: 20, Most: 4, Longest: time.Second,
		Faults: true, FaultRate: .05, Kill: 2 * time.Second, Restart: time.Second, Seed: uint64(time.Now().UnixNano()),
	}
	t.Logf("seed %d", p.Seed)
	var said bytes.Buffer
	r, err := p.run(t.Context(), &said)
	if err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	var table, object bytes.Buffer
	if err := errors.Join(r.table(&table), r.json(&object)); err != nil || !json.Valid(object.Bytes()) {
		t.Errorf("%v: %s", err, object.String())
	}
	t.Log("\n" + table.String())
	if len(r.Wrong) > 0 || r.Enqueued < p.Activities || r.Starts == 0 || r.CloudKills == 0 || r.NodeKills == 0 || r.Lives <= p.Nodes || r.Disturbed[unheard] == 0 {
		t.Errorf("%s", said.String())
	}
}
