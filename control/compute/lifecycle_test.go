package compute_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
)

// TestLifecycle is one activity from its enqueue to its end, each report sent twice.
func TestLifecycle(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 1)
	if got := alice.worker("evo"); got.Status != api.Offline || got.LinkedBy != "acme/alice" || got.LastClaim != "" {
		t.Errorf("a node that never claimed is %+v", got)
	}
	n.online(alice)
	if got := alice.worker("evo"); got.Status != api.Online || len(got.Workloads) != 0 {
		t.Errorf("a node that claimed is %+v", got)
	}

	input := alice.input()
	a, err := alice.Enqueue(t.Context(), api.Enqueue{Node: "evo", Kind: policy.TrainFit, Input: input})
	if err != nil {
		t.Fatal(err)
	}
	now := w.clock()
	want := api.Activity{
		Envelope: activity.Envelope{
			Activity: a.Activity, Kind: policy.TrainFit, Org: "acme", Project: "default", Requester: "acme/alice",
			Issued: now.Format(time.RFC3339), Deadline: now.Add(20 * time.Minute).Format(time.RFC3339), Input: a.Input,
		},
		Node: "evo", State: activity.Requested, Updated: now.Format(time.RFC3339),
	}
	if d := cmp.Diff(want, a); d != "" || !activity.ValidID(a.Activity) {
		t.Errorf("enqueued (-want +got):\n%s", d)
	}
	if in, err := canon.Canonicalize(input); err != nil || string(in) != string(a.Input) {
		t.Errorf("the input became %s, %v", a.Input, err)
	}
	if d := cmp.Diff([]activity.Envelope{a.Envelope}, n.claim().Start); d != "" {
		t.Errorf("claimed (-want +got):\n%s", d)
	}

	for _, s := range []activity.State{activity.Pulling, activity.Starting, activity.Ready, activity.Idle, activity.Ready} {
		w.pass(time.Second)
		n.say(a.Activity, s)
		w.pass(time.Second)
		n.say(a.Activity, s)
		got := alice.activity(a.Activity)
		if got.State != s || got.Updated != w.clock().Add(-time.Second).Format(time.RFC3339) {
			t.Errorf("after %s it is %s since %s", s, got.State, got.Updated)
		}
		if d := cmp.Diff([]api.Workload{{Activity: a.Activity, Kind: policy.TrainFit, State: s}}, alice.worker("evo").Workloads); d != "" {
			t.Errorf("workloads (-want +got):\n%s", d)
		}
	}
	n.idle(running(activity.Ready, a.Activity)...)

	end := api.StateReport{
		Key: n.key, State: activity.Stopped, Reason: activity.Done,
		Output: &api.Output{Exit: 3, Stdout: "a\x01line\n", Stderr: "", Truncated: true},
	}
	for range 2 {
		if err := n.Report(t.Context(), "evo", a.Activity, end); err != nil {
			t.Fatal(err)
		}
	}
	got := alice.activity(a.Activity)
	if d := cmp.Diff(end.Output, got.Output); got.State != activity.Stopped || got.Reason != activity.Done || d != "" {
		t.Errorf("ended as %+v, output (-want +got):\n%s", got, d)
	}
	refused(t, "another end", n.report(a.Activity, activity.Failed), api.IllegalTransition)
	refused(t, "a state after the end", n.report(a.Activity, activity.Ready), api.IllegalTransition)
	if d := cmp.Diff([]string{"started ", "stopped done"}, alice.feed()); d != "" {
		t.Errorf("feed (-want +got):\n%s", d)
	}
	if got := alice.worker("evo").Workloads; len(got) != 0 {
		t.Errorf("still working: %+v", got)
	}
}

// TestTransitions is the table of package activity, over the wire.
func TestTransitions(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 100)
	n.online(alice)
	states := []activity.State{activity.Pulling, activity.Starting, activity.Ready, activity.Idle, activity.Stopped, activity.Failed}
	for _, from := range append([]activity.State{activity.Requested}, states...) {
		for _, to := range states {
			act := alice.enqueue("evo")
			if from != activity.Requested {
				n.say(act, from)
			}
			err := n.report(act, to)
			switch {
			case from == to || from.Next(to):
				if err != nil {
					t.Errorf("%s to %s: %v", from, to, err)
				}
				if got := alice.activity(act).State; got != to {
					t.Errorf("%s to %s is %s", from, to, got)
				}
			default:
				refused(t, fmt.Sprintf("%s to %s", from, to), err, api.IllegalTransition)
				if got := alice.activity(act).State; got != from {
					t.Errorf("%s became %s by a refused %s", from, got, to)
				}
			}
			if !alice.activity(act).State.Ended() {
				n.say(act, activity.Stopped)
			}
		}
	}
}

// TestProgress: the progress of a state is kept until the next.
func TestProgress(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 1)
	n.online(alice)
	act := alice.enqueue("evo")
	for done := range int64(3) {
		w.pass(time.Second)
		p := &api.Progress{Done: done, Total: 2}
		if err := n.Report(t.Context(), "evo", act, api.StateReport{Key: n.key, State: activity.Pulling, Progress: p}); err != nil {
			t.Fatal(err)
		}
		if got := alice.activity(act); got.Progress == nil || *got.Progress != *p {
			t.Errorf("progress is %+v, want %+v", got.Progress, p)
		}
	}
	if got := alice.activity(act).Updated; got != w.clock().Add(-2*time.Second).Format(time.RFC3339) {
		t.Errorf("progress moved the instant of the state to %s", got)
	}
	n.say(act, activity.Starting)
	if got := alice.activity(act).Progress; got != nil {
		t.Errorf("starting has pulling's progress %+v", got)
	}
}

// TestLostAnswer: an envelope comes again until a state is reported, and not when the
// node names it; so neither an answer lost nor one that came twice matters.
func TestLostAnswer(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 1)
	n.online(alice)
	act := alice.enqueue("evo")
	for range 3 {
		if got := n.claim(); len(got.Start) != 1 || got.Start[0].Activity != act {
			t.Fatalf("claimed %+v", got)
		}
	}
	n.idle(running(activity.Requested, act)...)
	if got := n.claim(); len(got.Start) != 1 || got.Start[0].Activity != act {
		t.Fatalf("a node that forgot it claimed %+v", got)
	}
	n.say(act, activity.Pulling)
	n.idle(running(activity.Pulling, act)...)
	n.idle() // an old claim, sent before the report: it is not offered, and not lost
	alice.expect(act, activity.Pulling, "")
}

// TestHeldClaims: what a node waits for answers every claim that it holds, at once.
func TestHeldClaims(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 2)
	dead, alive := n.hold(alice), n.hold(alice)
	act := alice.enqueue("evo")
	for _, c := range []<-chan held{dead, alive} {
		got := within(t, "a start", c)
		if got.err != nil || len(got.got.Start) != 1 || got.got.Start[0].Activity != act {
			t.Errorf("a held claim was answered %+v, %v", got.got, got.err)
		}
	}

	// Its own report that it ended is no news to the node; what else it may start is.
	n.say(act, activity.Ready)
	wait := n.hold(alice, running(activity.Ready, act)...)
	n.say(act, activity.Stopped)
	next := alice.enqueue("evo")
	if got := within(t, "the next start", wait); got.err != nil || len(got.got.Stop) != 0 || len(got.got.Start) != 1 || got.got.Start[0].Activity != next {
		t.Errorf("answered %+v, %v", got.got, got.err)
	}

	// Cancelled before a word of it came, and the node has it.
	wait = n.hold(alice, running(activity.Requested, next)...)
	if _, err := alice.Cancel(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if got := within(t, "the stop", wait); got.err != nil || !slices.Equal(got.got.Stop, []api.Stop{{Activity: next, Reason: activity.Cancel}}) {
		t.Errorf("answered %+v, %v", got.got, got.err)
	}

	// Cancelled while it ran.
	third := alice.enqueue("evo")
	n.say(third, activity.Ready)
	wait = n.hold(alice, running(activity.Ready, third)...)
	if _, err := alice.Cancel(t.Context(), third); err != nil {
		t.Fatal(err)
	}
	if got := within(t, "the stop", wait); got.err != nil || !slices.Equal(got.got.Stop, []api.Stop{{Activity: third, Reason: activity.Cancel}}) {
		t.Errorf("answered %+v, %v", got.got, got.err)
	}
	n.say(third, activity.Stopped)

	// A policy that lets in what it did not.
	n.online(alice)
	fourth := alice.enqueue("evo")
	n.refresh(facts([]string{policy.TrainFit}, generous("", 2)))
	wait = n.hold(alice)
	n.refresh(facts([]string{policy.TrainFit}, generous(`"train.fit"`, 2)))
	if got := within(t, "a start", wait); got.err != nil || len(got.got.Start) != 1 || got.got.Start[0].Activity != fourth {
		t.Errorf("answered %+v, %v", got.got, got.err)
	}
}

// TestTooManyClaims: a node holds a few at once, and no more.
func TestTooManyClaims(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", true)
	n := w.link(alice, "evo", 1)
	var claims []<-chan held
	for range 8 {
		claims = append(claims, n.hold(alice))
	}
	_, err := n.Claim(t.Context(), n.id, api.Claim{Key: n.key, Wait: 1, Running: []api.Running{}})
	if p := refused(t, "one claim more", err, api.RateLimited); p.RetryAfter == 0 {
		t.Error("it does not say when to come again")
	}
	if err := alice.DeleteWorker(t.Context(), "evo"); err != nil {
		t.Fatal(err)
	}
	for _, c := range claims {
		refused(t, "a held claim of a removed node", within(t, "its end", c).err, api.Gone)
	}
}

// TestStopIsRepeated: a stop is said until the end is known, and not faster than
// every 2 s.
func TestStopIsRepeated(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 1)
	began := time.Now()
	for range 2 {
		got := n.claim(running(activity.Ready, "act_unheard_of")...)
		if !slices.Equal(got.Stop, []api.Stop{{Activity: "act_unheard_of", Reason: activity.Cancel}}) {
			t.Errorf("answered %+v", got)
		}
	}
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("the same stop came again after %v", took)
	}
}

// TestCancel cancels in every state.
func TestCancel(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 1)
	n.online(alice)
	cancel := func(act string) {
		t.Helper()
		for range 2 {
			got, err := alice.Cancel(t.Context(), act)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(alice.activity(act), got); d != "" {
				t.Errorf("the answer is not the activity:\n%s", d)
			}
		}
	}

	act := alice.enqueue("evo")
	cancel(act)
	alice.expect(act, activity.Stopped, "cancel")
	refused(t, "a first word of what was cancelled", n.report(act, activity.Pulling), api.Gone)
	n.say(act, activity.Stopped) // the node had it, and ended it
	alice.expect(act, activity.Stopped, "cancel")
	if got := n.claim(running(activity.Starting, act)...); !slices.Equal(got.Stop, []api.Stop{{Activity: act, Reason: activity.Cancel}}) {
		t.Errorf("a node that has it is told %+v", got)
	}

	for _, state := range []activity.State{activity.Pulling, activity.Starting, activity.Ready, activity.Idle} {
		act := alice.enqueue("evo")
		n.say(act, state)
		cancel(act)
		alice.expect(act, state, "cancel")
		refused(t, "the state again", n.report(act, state), api.Gone)
		refused(t, "going on", n.report(act, activity.Ready), api.Gone)
		if got := n.claim(running(state, act)...); !slices.Equal(got.Stop, []api.Stop{{Activity: act, Reason: activity.Cancel}}) {
			t.Errorf("a node where it is %s is told %+v", state, got)
		}
		r := api.StateReport{Key: n.key, State: activity.Stopped, Reason: activity.Cancel}
		for range 2 {
			if err := n.Report(t.Context(), "evo", act, r); err != nil {
				t.Errorf("its end: %v", err)
			}
		}
		alice.expect(act, activity.Stopped, "cancel")
	}

	act = alice.enqueue("evo")
	n.say(act, activity.Failed)
	cancel(act)
	alice.expect(act, activity.Failed, "crash")
	if d := cmp.Diff([]string{"stopped cancel", "stopped cancel", "stopped cancel", "stopped cancel", "stopped cancel", "failed crash"}, noStarts(alice.feed())); d != "" {
		t.Errorf("feed (-want +got):\n%s", d)
	}
}

func noStarts(feed []string) []string {
	return slices.DeleteFunc(feed, func(e string) bool { return e == "started " })
}

// TestRestart restarts the server between every two steps.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 2)
	n.online(alice)
	act := alice.enqueue("evo")
	w.restart()
	if got := alice.worker("evo"); got.Status != api.Online || got.LinkedBy != "acme/alice" {
		t.Errorf("after a restart the node is %+v", got)
	}
	if got := n.claim(); len(got.Start) != 1 || got.Start[0].Activity != act {
		t.Fatalf("claimed %+v", got)
	}
	for _, s := range []activity.State{activity.Pulling, activity.Ready, activity.Idle, activity.Ready} {
		n.say(act, s)
		w.restart()
		n.say(act, s)
	}
	if _, err := alice.Cancel(t.Context(), act); err != nil {
		t.Fatal(err)
	}
	w.restart()
	if got := n.claim(running(activity.Ready, act)...); !slices.Equal(got.Stop, []api.Stop{{Activity: act, Reason: activity.Cancel}}) {
		t.Errorf("told %+v", got)
	}
	n.say(act, activity.Stopped)
	w.restart()
	n.say(act, activity.Stopped)
	refused(t, "another end", n.report(act, activity.Failed), api.IllegalTransition)
	if d := cmp.Diff([]string{"started ", "stopped done"}, alice.feed()); d != "" {
		t.Errorf("feed (-want +got):\n%s", d)
	}
	w.stop()
	w.pass(api.OnlineFor * time.Second)
	w.pass(time.Second)
	w.start()
	if got := alice.worker("evo").Status; got != api.Offline {
		t.Errorf("%d s after its last claim the node is %s", api.OnlineFor+1, got)
	}
}

// TestStopping: a server that stops answers what it holds, with nothing to do.
func TestStopping(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 1)
	claim := n.hold(alice)
	poll := make(chan error, 1)
	go func() {
		events, err := alice.WorkloadEvents(context.WithoutCancel(t.Context()), 0, 30)
		if len(events) > 0 {
			err = fmt.Errorf("events %v", events)
		}
		poll <- err
	}()
	w.stop()
	if got := within(t, "the claim's answer", claim); got.err != nil || len(got.got.Start)+len(got.got.Stop) > 0 {
		t.Errorf("the claim: %+v, %v", got.got, got.err)
	}
	// The poll may have come too late to be held; it was refused a connection then.
	if err := within(t, "the poll's answer", poll); err != nil {
		if _, answered := errors.AsType[*api.Problem](err); answered {
			t.Errorf("the poll: %v", err)
		}
	}
}

// TestOffline: what a node took is lost when it has not claimed for 90 s; what it did
// not take waits for it until its deadline; and what it has on return it is told to
// stop.
func TestOffline(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 2)
	n.online(alice)
	taken, waiting := alice.enqueue("evo"), alice.enqueue("evo")
	n.say(taken, activity.Ready)
	n.online(alice)
	w.pass(api.OnlineFor * time.Second)
	if got := alice.worker("evo").Status; got != api.Online {
		t.Errorf("after %d s the node is %s", api.OnlineFor, got)
	}
	w.pass(time.Second)
	if got := alice.worker("evo").Status; got != api.Offline {
		t.Errorf("after %d s the node is %s", api.OnlineFor+1, got)
	}
	w.until("what it took is lost", func() bool { return alice.activity(taken).State == activity.Failed })
	alice.expect(taken, activity.Failed, "lost")
	alice.expect(waiting, activity.Requested, "")
	_, err := alice.Enqueue(t.Context(), api.Enqueue{Node: "evo", Kind: policy.TrainFit, Input: alice.input()})
	refused(t, "an enqueue on a node that is offline", err, api.NodeOffline)

	got := n.claim(running(activity.Ready, taken)...)
	if !slices.Equal(got.Stop, []api.Stop{{Activity: taken, Reason: activity.Cancel}}) || len(got.Start) != 1 || got.Start[0].Activity != waiting {
		t.Errorf("on return it is told %+v", got)
	}
	refused(t, "a word of what is lost", n.report(taken, activity.Idle), api.IllegalTransition)

	w.pass(20 * time.Minute)
	w.until("what nobody took is late", func() bool { return alice.activity(waiting).State == activity.Failed })
	alice.expect(waiting, activity.Failed, "deadline")
	if d := cmp.Diff([]string{"started ", "failed lost", "failed deadline"}, alice.feed()); d != "" {
		t.Errorf("feed (-want +got):\n%s", d)
	}
}

// TestRestartedSilence: a server counts a node's silence from its own start.
func TestRestartedSilence(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 1)
	n.online(alice)
	act := alice.enqueue("evo")
	n.say(act, activity.Ready)
	w.stop()
	w.pass(time.Hour)
	w.start()
	n.idle() // an old claim, from before the server was gone
	alice.expect(act, activity.Ready, "")
	n.idle(running(activity.Ready, act)...)
	w.pass(api.OnlineFor*time.Second + time.Second)
	w.until("it is lost", func() bool { return alice.activity(act).State == activity.Failed })
}

// TestLost: what a node does not name is lost when nothing named it for 45 s.
func TestLost(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 2)
	n.online(alice)
	act, other := alice.enqueue("evo"), alice.enqueue("evo")
	n.say(act, activity.Ready)
	n.say(other, activity.Ready)
	w.pass(44 * time.Second)
	n.idle(running(activity.Ready, other)...)
	alice.expect(act, activity.Ready, "")
	n.say(act, activity.Idle)
	w.pass(44 * time.Second)
	n.idle(running(activity.Ready, other)...)
	alice.expect(act, activity.Idle, "")
	w.pass(time.Second)
	n.idle(running(activity.Ready, other)...)
	alice.expect(act, activity.Failed, "lost")
	alice.expect(other, activity.Ready, "")
}

// TestConcurrency: no more is asked of a node, and none offered, than its owner lets
// run at once.
func TestConcurrency(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 2)
	n.online(alice)
	first, second := alice.enqueue("evo"), alice.enqueue("evo")
	_, err := alice.Enqueue(t.Context(), api.Enqueue{Node: "evo", Kind: policy.TrainFit, Input: alice.input()})
	if p := refused(t, "a third", err, api.Denied); p.Rule != "concurrency" {
		t.Errorf("by rule %q", p.Rule)
	}
	if got := n.claim(); len(got.Start) != 2 || got.Start[0].Activity != first || got.Start[1].Activity != second {
		t.Errorf("claimed %+v", got)
	}
	n.refresh(facts([]string{policy.TrainFit}, generous(`"train.fit"`, 1)))
	if got := n.claim(); len(got.Start) != 1 || got.Start[0].Activity != first {
		t.Errorf("with room for one it claimed %+v", got)
	}
	n.idle(running(activity.Requested, first)...)
	n.say(first, activity.Ready)
	n.idle(running(activity.Ready, first)...)
	n.idle() // an older claim
	n.say(first, activity.Stopped)
	if got := n.claim(); len(got.Start) != 1 || got.Start[0].Activity != second {
		t.Errorf("with room again it claimed %+v", got)
	}
	n.refresh(facts([]string{}, generous(`"train.fit"`, 2)))
	n.idle() // it cannot run the kind any more
}

// TestManyStarts: an answer has no more than some envelopes; the next claim has the
// rest, and not those that it names.
func TestManyStarts(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", true)
	n := w.link(alice, "evo", api.MaxStarts+2)
	n.online(alice)
	for range api.MaxStarts + 1 {
		alice.enqueue("evo")
		w.pass(time.Second) // the requester's pace
	}
	first := n.claim()
	if len(first.Start) != api.MaxStarts {
		t.Fatalf("the first answer has %d envelopes", len(first.Start))
	}
	var names []string
	for _, e := range first.Start {
		names = append(names, e.Activity)
	}
	if second := n.claim(running(activity.Requested, names...)...); len(second.Start) != 1 || slices.Contains(names, second.Start[0].Activity) {
		t.Errorf("the second answer is %+v", second)
	}
}

// TestLongAnswer: whatever answers a claim at length is cut off.
func TestLongAnswer(t *testing.T) {
	flood := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"start":[],"stop":[]`)
		for blank := bytes.Repeat([]byte(" "), 64<<10); ; {
			if _, err := w.Write(blank); err != nil {
				return
			}
		}
	}))
	defer flood.Close()
	c := &api.Client{Base: flood.URL, Token: func() (string, error) { return "t", nil }}
	if _, err := c.Offers(t.Context(), "evo", api.Claim{Wait: 1}); err == nil || !strings.Contains(err.Error(), "over 1048576 bytes") {
		t.Errorf("Offers = %v", err)
	}
}

// TestOnce has many nodes run many activities, with claims cut off, answers dropped
// and reports doubled: every activity is started by its own node, and ends once.
func TestOnce(t *testing.T) {
	const nodes, each = 4, 5
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	input := alice.input()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex // guards starts
	starts := make(map[string]string)
	for i := range nodes {
		n := w.link(alice, fmt.Sprintf("n%d", i), 2)
		wg.Go(func() {
			have := map[string]bool{}
			for round := 0; ctx.Err() == nil; round++ {
				list := []api.Running{}
				for act := range have {
					list = append(list, api.Running{Activity: act, State: activity.Ready})
				}
				cut, done := context.WithTimeout(ctx, time.Duration(1+round%5*50)*time.Millisecond)
				got, err := n.Claim(cut, n.id, api.Claim{Key: n.key, Wait: 30, Running: list})
				done()
				if err != nil || round%3 == 0 {
					continue // cut off, or its answer is lost
				}
				for _, e := range got.Start {
					mu.Lock()
					starts[e.Activity] = n.id
					mu.Unlock()
					have[e.Activity] = true
					n.report(e.Activity, activity.Starting)
					n.report(e.Activity, activity.Ready)
				}
				for act := range have {
					if err := errors.Join(n.report(act, activity.Stopped), n.report(act, activity.Stopped)); err != nil && ctx.Err() == nil {
						t.Errorf("ending %s: %v", act, err)
					}
					delete(have, act)
				}
			}
		})
	}
	want := make(map[string]string)
	for i := range nodes * each {
		id := fmt.Sprintf("n%d", i%nodes)
		w.until("there is room", func() bool {
			if len(alice.worker(id).Workloads) == 2 {
				return false
			}
			a, err := alice.Enqueue(ctx, api.Enqueue{Node: id, Kind: policy.TrainFit, Input: input})
			if err == nil {
				want[a.Activity] = id
			}
			return err == nil
		})
	}
	w.until("all have ended", func() bool {
		all, err := alice.Activities(ctx, api.ActivityQuery{State: activity.Stopped})
		return err == nil && len(all) == nodes*each
	})
	cancel()
	wg.Wait()
	if d := cmp.Diff(want, starts); d != "" {
		t.Errorf("who started what (-want +got):\n%s", d)
	}
	ends := 0
	for _, e := range alice.feed() {
		if e == "stopped done" {
			ends++
		}
	}
	for _, e := range alice.feed() {
		if e != "stopped done" && e != "started " && e != "denied concurrency" && e != "denied offers" {
			t.Errorf("the feed has %q", e)
		}
	}
	if ends != nodes*each {
		t.Errorf("%d ends of %d", ends, nodes*each)
	}
}
