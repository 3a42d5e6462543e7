package compute_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/compute"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
)

// TestMirror: an enqueue that the node's owner would refuse is refused here, by the
// same rule, and is an event.
func TestMirror(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", true)
	n := w.link(alice, "evo", 1)
	n.online(alice)
	whole := string(generous(allKinds, 1))
	for _, tt := range []struct {
		name, kind, rule string
		offers           []string
		policy           string
		input            []string
	}{
		{"no policy", policy.TrainFit, "kind", []string{policy.TrainFit}, "null", nil},
		{"a policy that we cannot read", policy.TrainFit, "kind", []string{policy.TrainFit}, `{"kinds":["train.fit"],"a new field":1}`, nil},
		{"kinds: [], train.fit", policy.TrainFit, "kind", []string{policy.TrainFit}, `{"kinds":[]}`, nil},
		{"kinds: [], engine.serve", policy.EngineServe, "kind", nil, `{"kinds":[]}`, nil},
		{"kinds: [], studio.render", policy.StudioRender, "kind", nil, `{"kinds":[]}`, nil},
		{"kinds: [], fn.run", policy.FnRun, "kind", nil, `{"kinds":[]}`, nil},
		{"another org", policy.TrainFit, "org", []string{policy.TrainFit}, strings.Replace(whole, "acme", "zen", 1), nil},
		{"a cap of 0, memory", policy.TrainFit, "caps.memory", nil, strings.Replace(whole, `"memory":1073741824`, `"memory":0`, 1), nil},
		{"a cap of 0, cpus", policy.TrainFit, "caps.cpus", nil, strings.Replace(whole, `"cpus":4`, `"cpus":0`, 1), nil},
		{"a cap of 0, disk", policy.TrainFit, "caps.disk", nil, strings.Replace(whole, `"disk":1073741824`, `"disk":0`, 1), nil},
		{"vram", policy.TrainFit, "caps.vram", nil, whole, []string{`"vram":0,"gpus":[]`, `"vram":1,"gpus":[0]`}},
		{"memory", policy.TrainFit, "caps.memory", nil, whole, []string{`67108864`, `1073741825`}},
		{"cpus", policy.TrainFit, "caps.cpus", nil, whole, []string{`"cpus":1`, `"cpus":5`}},
		{"disk", policy.TrainFit, "caps.disk", nil, whole, []string{`1048576`, `1073741825`}},
		{"maxSec", policy.TrainFit, "maxSec", nil, whole, []string{`"maxSec":60`, `"maxSec":3601`}},
		{"concurrency", policy.TrainFit, "concurrency", nil, strings.Replace(whole, `"concurrency":1`, `"concurrency":0`, 1), nil},
		{"a kind that it cannot run now", policy.TrainFit, "offers", []string{policy.EngineServe}, whole, nil},
	} {
		n.refresh(facts(tt.offers, canon.Raw(tt.policy)))
		before := alice.feed()
		_, err := alice.Enqueue(t.Context(), api.Enqueue{Node: "evo", Kind: tt.kind, Input: alice.input(tt.input...)})
		if p := refused(t, tt.name, err, api.Denied); p.Rule != tt.rule {
			t.Errorf("%s: by rule %q, want %q", tt.name, p.Rule, tt.rule)
		}
		if d := cmp.Diff(append(before, "denied "+tt.rule), alice.feed()); d != "" {
			t.Errorf("%s: feed (-want +got):\n%s", tt.name, d)
		}
	}
	events, err := alice.WorkloadEvents(t.Context(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := api.WorkloadEvent{
		Seq: 1, Name: api.WorkloadDenied, Org: "acme", Node: "evo", Kind: policy.TrainFit, Requester: "acme/alice",
		Reason: "kind", Time: w.clock().Format(time.RFC3339),
	}
	if d := cmp.Diff(want, events[0]); d != "" {
		t.Errorf("the first event (-want +got):\n%s", d)
	}
	if all, err := alice.Activities(t.Context(), api.ActivityQuery{}); err != nil || len(all) != 0 {
		t.Errorf("activities were made: %+v, %v", all, err)
	}
	if status, body := alice.raw(t, "GET", "/v1/compute/fleet/workers", "", ""); status != 200 || bytes.Contains(body, []byte(n.key)) || !bytes.Contains(body, []byte(`"policy":{`)) {
		t.Errorf("the workers are %s", body)
	}
}

// TestDeniedByNode: what the node itself denies is a denied event too.
func TestDeniedByNode(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 1)
	n.online(alice)
	for message, rule := range map[string]string{
		policy.Denied{Rule: "caps.memory", Reason: "asked for 2, allowed are 1"}.Error(): "caps.memory",
		"the owner does not feel like it":                                                "denied",
	} {
		act := alice.enqueue("evo")
		r := api.StateReport{Key: n.key, State: activity.Failed, Error: &activity.Failure{Code: activity.Denied, Message: message}}
		if err := n.Report(t.Context(), "evo", act, r); err != nil {
			t.Fatal(err)
		}
		events, err := alice.WorkloadEvents(t.Context(), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		last := events[len(events)-1]
		if last.Name != api.WorkloadDenied || last.Reason != rule || last.Activity != act || last.State != activity.Failed {
			t.Errorf("%q: %+v", message, last)
		}
	}
}

// TestWhoMayAsk: engine.serve takes an admin, and fn.run an admin or who linked the
// node; what this control plane does not run yet is refused only after the policy.
func TestWhoMayAsk(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	bob := w.person("acme", "bob", false)
	root := w.person("acme", "root", true)
	n := w.link(alice, "evo", 1)
	n.refresh(facts([]string{policy.TrainFit, policy.EngineServe, policy.StudioRender, policy.FnRun}, generous(allKinds, 1)))
	n.online(alice)
	ask := func(p *person, kind string) error {
		_, err := p.Enqueue(t.Context(), api.Enqueue{Node: "evo", Kind: kind, Input: canon.Raw("{}")})
		return err
	}
	for _, tt := range []struct {
		who  *person
		kind string
		code api.Code
		rule string
	}{
		{alice, policy.EngineServe, api.Forbidden, ""},
		{root, policy.EngineServe, api.Denied, "source"}, // it names no model
		{bob, policy.FnRun, api.Forbidden, ""},
		{alice, policy.FnRun, api.Invalid, ""},
		{root, policy.FnRun, api.Invalid, ""},
		{bob, policy.StudioRender, api.Invalid, ""},
		{root, "shell.run", api.Invalid, ""},
		{root, "", api.Invalid, ""},
	} {
		p := refused(t, tt.kind, ask(tt.who, tt.kind), tt.code)
		if p.Rule != tt.rule {
			t.Errorf("%s: rule %q", tt.kind, p.Rule)
		}
	}
}

// TestTrees: what an input names is held whole, or is not asked of a node.
func TestTrees(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 1)
	n.online(alice)
	stage := alice.tree("a stage")
	for name, change := range map[string][]string{
		"stage": {stage, strings.Repeat("0", 64)},
		"base":  {alice.tree("a base"), strings.Repeat("0", 64)},
	} {
		_, err := alice.Enqueue(t.Context(), api.Enqueue{Node: "evo", Kind: policy.TrainFit, Input: alice.input(change...)})
		if p := refused(t, name, err, api.Invalid); !strings.Contains(p.Detail, name+" 000") {
			t.Errorf("%s: %s", name, p.Detail)
		}
	}
	file := api.TreeFile{Path: "file", SHA256: strings.Repeat("1", 64), Size: 1}
	half := policy.TreeHash([]policy.TreeFile{{Path: file.Path, SHA256: file.SHA256, Size: file.Size}})
	if _, err := alice.PutTree(t.Context(), half, api.Tree{Files: []api.TreeFile{file}}); err != nil {
		t.Fatal(err)
	}
	_, err := alice.Enqueue(t.Context(), api.Enqueue{Node: "evo", Kind: policy.TrainFit, Input: alice.input(stage, half)})
	refused(t, "a tree of which a file has not come", err, api.Invalid)
}

// TestRate: a requester's enqueues are counted, and nobody else's with them.
func TestRate(t *testing.T) {
	w := newWorld(t)
	w.stop()
	w.rate = compute.Rate{Burst: 2, PerSecond: 0.5}
	w.start()
	alice := w.person("acme", "alice", false)
	ask := func(p *person) error {
		_, err := p.Enqueue(t.Context(), api.Enqueue{Node: "evo", Kind: policy.TrainFit, Input: canon.Raw("{}")})
		return err
	}
	for range 2 {
		refused(t, "an enqueue", ask(alice), api.NotFound)
	}
	if p := refused(t, "one too many", ask(alice), api.RateLimited); p.RetryAfter != 2*time.Second {
		t.Errorf("come again in %v, want 2 s", p.RetryAfter)
	}
	refused(t, "another's", ask(w.person("acme", "bob", false)), api.NotFound)
	refused(t, "the same name of another org", ask(w.person("zen", "alice", false)), api.NotFound)
	w.pass(2 * time.Second)
	refused(t, "two seconds later", ask(alice), api.NotFound)
	refused(t, "and at once again", ask(alice), api.RateLimited)
}

// TestRemoval: who may remove a node, and what is left of it.
func TestRemoval(t *testing.T) {
	w := newWorld(t)
	alice, bob := w.person("acme", "alice", false), w.person("acme", "bob", false)
	n := w.link(alice, "evo", 2)
	n.online(alice)
	live, asked := alice.enqueue("evo"), alice.enqueue("evo")
	n.say(live, activity.Ready)
	refused(t, "a member", bob.DeleteWorker(t.Context(), "evo"), api.Forbidden)
	refused(t, "another org's admin", w.person("zen", "root", true).DeleteWorker(t.Context(), "evo"), api.NotFound)
	claim := n.hold(alice, running(activity.Ready, live, asked)...)
	if err := alice.DeleteWorker(t.Context(), "evo"); err != nil { // who linked it
		t.Fatal(err)
	}
	refused(t, "the held claim", within(t, "its end", claim).err, api.Gone)
	alice.expect(live, activity.Stopped, "unlink")
	alice.expect(asked, activity.Stopped, "unlink")
	if got := alice.worker("evo"); got.ID != "" {
		t.Errorf("it is still there: %+v", got)
	}
	refused(t, "removing it again", alice.DeleteWorker(t.Context(), "evo"), api.NotFound)
	if d := cmp.Diff([]string{"started ", "stopped unlink", "stopped unlink"}, alice.feed()); d != "" {
		t.Errorf("feed (-want +got):\n%s", d)
	}
	gone := func(n *node) {
		t.Helper()
		_, err := n.Claim(t.Context(), "evo", api.Claim{Key: n.key, Wait: 1, Running: []api.Running{}})
		refused(t, "its claim", err, api.Gone)
		refused(t, "its report", n.report(live, activity.Idle), api.Gone)
		_, err = n.PutWorker(t.Context(), "evo", api.WorkerPut{Key: n.key, WorkerFacts: facts(nil, nil)})
		refused(t, "its refresh", err, api.Gone)
	}
	gone(n)

	// The id is free, for another install too; the one before stays removed.
	stored, err := bob.PutWorker(t.Context(), "evo", api.WorkerPut{Key: keyOf("another"), WorkerFacts: facts(nil, nil)})
	if err != nil || stored.Worker.LinkedBy != "acme/bob" {
		t.Fatalf("%+v, %v", stored, err)
	}
	other := &node{t, w, "evo", keyOf("another"), w.client(stored.Credential)}
	gone(n)
	other.online(bob)
	if err := other.DeleteWorker(t.Context(), "evo"); err != nil { // the node itself
		t.Fatal(err)
	}
	gone(other)
	if w.link(alice, "evo", 1); w.person("acme", "root", true).DeleteWorker(t.Context(), "evo") != nil {
		t.Error("an admin may not remove it")
	}
}

// TestRelink: the same install linked again gets another credential, which ends the
// one before; another install does not get the id.
func TestRelink(t *testing.T) {
	w := newWorld(t)
	alice, bob := w.person("acme", "alice", false), w.person("acme", "bob", false)
	n := w.link(alice, "evo", 1)
	n.online(alice)
	act := alice.enqueue("evo")
	_, err := bob.PutWorker(t.Context(), "evo", api.WorkerPut{Key: keyOf("another"), WorkerFacts: facts(nil, nil)})
	refused(t, "another install", err, api.Conflict)
	_, err = n.PutWorker(t.Context(), "evo", api.WorkerPut{Key: keyOf("another"), WorkerFacts: facts(nil, nil)})
	refused(t, "another key on the node's own credential", err, api.Conflict)
	_, err = n.Claim(t.Context(), "evo", api.Claim{Key: keyOf("another"), Wait: 1, Running: []api.Running{}})
	refused(t, "a claim of another key", err, api.Conflict)
	r := api.StateReport{Key: keyOf("another"), State: activity.Ready}
	refused(t, "a report of another key", n.Report(t.Context(), "evo", act, r), api.Conflict)

	w.pass(time.Minute)
	first := alice.worker("evo").FirstSeen
	again := w.link(bob, "evo", 1)
	if got := alice.worker("evo"); got.LinkedBy != "acme/bob" || got.FirstSeen != first {
		t.Errorf("linked again it is %+v", got)
	}
	if got := again.claim(); len(got.Start) != 1 || got.Start[0].Activity != act {
		t.Errorf("claimed %+v", got)
	}
	refused(t, "the first credential, once the second was used", n.report(act, activity.Pulling), api.Unauthorized)
}

// TestForeign: what is another org's is answered as what does not exist, byte for
// byte.
func TestForeign(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", true)
	eve := w.person("zen", "eve", true)
	n := w.link(alice, "evo", 2)
	n.online(alice)
	act := alice.enqueue("evo")
	own := w.link(eve, "own", 1)
	two := w.link(alice, "two", 1)
	input := string(alice.input())
	const unheard = "act_01JB7Q8ZK3M2N4P5R6S7T8V9W0"
	for _, tt := range []struct{ method, path, body string }{
		{"GET", "/v1/compute/fleet/activities/", ""},
		{"DELETE", "/v1/compute/fleet/activities/", ""},
	} {
		s1, foreign := eve.raw(t, tt.method, tt.path+act, "", "")
		s2, unknown := eve.raw(t, tt.method, tt.path+unheard, "", "")
		if s1 != 404 || s2 != 404 || string(foreign) != strings.ReplaceAll(string(unknown), unheard, act) {
			t.Errorf("%s: foreign %d %s, unknown %d %s", tt.method, s1, foreign, s2, unknown)
		}
	}
	s1, foreign := eve.raw(t, "POST", "/v1/compute/fleet/activities", "", `{"node":"evo","kind":"train.fit","input":`+input+`}`)
	s2, unknown := eve.raw(t, "POST", "/v1/compute/fleet/activities", "", `{"node":"ove","kind":"train.fit","input":`+input+`}`)
	if s1 != 404 || s2 != 404 || string(foreign) != strings.ReplaceAll(string(unknown), "ove", "evo") {
		t.Errorf("enqueue: foreign %d %s, unknown %d %s", s1, foreign, s2, unknown)
	}
	if all, err := eve.Activities(t.Context(), api.ActivityQuery{}); err != nil || len(all) != 0 {
		t.Errorf("she sees %+v, %v", all, err)
	}
	if got := eve.feed(); len(got) != 0 {
		t.Errorf("she sees %v", got)
	}
	refused(t, "a foreign node's report", own.Report(t.Context(), "own", act, api.StateReport{Key: own.key, State: activity.Ready}), api.NotFound)
	refused(t, "another node's report", two.Report(t.Context(), "two", act, api.StateReport{Key: two.key, State: activity.Ready}), api.NotFound)
	if got := two.claim(running(activity.Ready, act)...); len(got.Start) != 0 || len(got.Stop) != 1 || got.Stop[0].Reason != activity.Cancel {
		t.Errorf("a node that names another's activity is told %+v", got)
	}
	alice.expect(act, activity.Requested, "")

	// Routes of the other kind of caller.
	_, err := n.Enqueue(t.Context(), api.Enqueue{Node: "evo", Kind: policy.TrainFit, Input: canon.Raw(input)})
	refused(t, "a node that enqueues", err, api.Forbidden)
	_, err = n.Activity(t.Context(), act)
	refused(t, "a node that reads", err, api.Forbidden)
	_, err = n.WorkloadEvents(t.Context(), 0, 0)
	refused(t, "a node at the feed", err, api.Forbidden)
	_, err = n.Workers(t.Context())
	refused(t, "a node at the list", err, api.Forbidden)
	_, err = n.Claim(t.Context(), "two", api.Claim{Key: two.key, Wait: 1, Running: []api.Running{}})
	refused(t, "a node at another's claim", err, api.Forbidden)
	refused(t, "a node that removes another", n.DeleteWorker(t.Context(), "two"), api.Forbidden)
	_, err = alice.Claim(t.Context(), "evo", api.Claim{Key: n.key, Wait: 1, Running: []api.Running{}})
	refused(t, "a person at a claim", err, api.Forbidden)
	refused(t, "a person who reports", alice.Report(t.Context(), "evo", act, api.StateReport{Key: n.key, State: activity.Ready}), api.Forbidden)
}

// TestFeed: events come in order, after a seq, and a poll waits for the first.
func TestFeed(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	n := w.link(alice, "evo", 1)
	n.online(alice)
	if got, err := alice.WorkloadEvents(t.Context(), 0, 1); err != nil || len(got) != 0 {
		t.Errorf("nothing yet, and it answers %+v, %v", got, err)
	}
	type answer struct {
		events []api.WorkloadEvent
		err    error
	}
	var after uint64
	act := alice.enqueue("evo")
	for _, step := range []struct {
		state activity.State
		name  string
	}{{activity.Ready, api.WorkloadStarted}, {activity.Stopped, api.WorkloadStopped}} {
		polled := make(chan answer, 1)
		go func() {
			events, err := alice.WorkloadEvents(context.WithoutCancel(t.Context()), after, 30)
			polled <- answer{events, err}
		}()
		n.say(act, step.state)
		got := within(t, "the event", polled)
		if got.err != nil || len(got.events) != 1 || got.events[0].Name != step.name || got.events[0].Seq <= after || got.events[0].Activity != act {
			t.Fatalf("after %d: %+v, %v", after, got.events, got.err)
		}
		after = got.events[0].Seq
	}
	if got, err := alice.WorkloadEvents(t.Context(), after, 0); err != nil || len(got) != 0 {
		t.Errorf("after the last: %+v, %v", got, err)
	}
}

// TestList: the newest first, by node and state, page by page.
func TestList(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	a, b := w.link(alice, "a", 50), w.link(alice, "b", 50)
	a.online(alice)
	b.online(alice)
	var acts []string
	for i := range 6 {
		acts = append(acts, alice.enqueue([]string{"a", "b"}[i%2]))
	}
	a.say(acts[0], activity.Ready)
	a.say(acts[2], activity.Stopped)
	b.say(acts[1], activity.Ready)
	for _, tt := range []struct {
		q    api.ActivityQuery
		want []int
	}{
		{api.ActivityQuery{}, []int{5, 4, 3, 2, 1, 0}},
		{api.ActivityQuery{Node: "a"}, []int{4, 2, 0}},
		{api.ActivityQuery{State: activity.Ready}, []int{1, 0}},
		{api.ActivityQuery{Node: "b", State: activity.Requested}, []int{5, 3}},
		{api.ActivityQuery{Limit: 2}, []int{5, 4}},
		{api.ActivityQuery{Limit: 2, After: acts[4]}, []int{3, 2}},
		{api.ActivityQuery{Node: "a", After: acts[4]}, []int{2, 0}},
		{api.ActivityQuery{Node: "c"}, nil},
	} {
		got, err := alice.Activities(t.Context(), tt.q)
		if err != nil {
			t.Fatal(err)
		}
		var ids, want []string
		for _, g := range got {
			ids = append(ids, g.Activity)
		}
		for _, i := range tt.want {
			want = append(want, acts[i])
		}
		if d := cmp.Diff(want, ids); d != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.q, d)
		}
	}
	_, err := alice.Activities(t.Context(), api.ActivityQuery{After: "act_nothing"})
	refused(t, "after nothing", err, api.Invalid)
	_, err = alice.Activities(t.Context(), api.ActivityQuery{State: "paused"})
	refused(t, "no state", err, api.Invalid)
}

// raw sends one request of any shape.
func (p *person) raw(t *testing.T, method, path, token, body string) (int, []byte) {
	t.Helper()
	if token == "" {
		token, _ = p.Token()
	}
	req, err := http.NewRequestWithContext(t.Context(), method, p.Base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, out
}

// TestBadInput sends each route what it does not take. Every answer is a problem, and
// nothing changes.
func TestBadInput(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", true)
	n := w.link(alice, "evo", 1)
	n.online(alice)
	act := alice.enqueue("evo")
	credential, _ := n.Token()

	marshal := func(v any) string {
		b, err := canon.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	put := marshal(api.WorkerPut{Key: n.key, WorkerFacts: facts([]string{"train.fit"}, generous(`"train.fit"`, 1))})
	claim := marshal(api.Claim{Key: n.key, Wait: 1, Running: running(activity.Requested, act)})
	report := marshal(api.StateReport{
		Key: n.key, State: activity.Stopped, Reason: activity.Done, Progress: &api.Progress{Done: 1, Total: 2}, Output: &api.Output{Stdout: "out"},
	})
	failed := marshal(api.StateReport{Key: n.key, State: activity.Failed, Error: &activity.Failure{Code: activity.Crash, Message: "x"}})
	order := marshal(api.Enqueue{Node: "evo", Kind: policy.TrainFit, Input: alice.input()})

	const base = "/v1/compute/fleet/"
	routes := map[string]struct{ method, path, token string }{
		"put":      {"PUT", base + "workers/evo", credential},
		"register": {"PUT", base + "workers/another", ""},
		"claim":    {"POST", base + "workers/evo/claim", credential},
		"report":   {"POST", base + "workers/evo/activities/" + act + "/state", credential},
		"enqueue":  {"POST", base + "activities", ""},
	}
	many := running(activity.Ready)
	for i := range 1025 {
		many = append(many, api.Running{Activity: fmt.Sprintf("act_%d", i), State: activity.Ready})
	}
	for _, tt := range []struct {
		route, name, body, old, new string
		code                        api.Code
	}{
		{"put", "nothing", "", "", "", api.Invalid},
		{"put", "no JSON", "<html>", "", "", api.Invalid},
		{"put", "an array", "[]", "", "", api.Invalid},
		{"put", "two values", put + put, "", "", api.Invalid},
		{"put", "half", put[:len(put)/2], "", "", api.Invalid},
		{"put", "an unknown field", put, `"arch":`, `"admin":true,"arch":`, api.Invalid},
		{"put", "a field twice", put, `"arch":`, `"arch":"x","arch":`, api.Invalid},
		{"put", "a field left out", put, `"arch":"x86_64",`, ``, api.Invalid},
		{"put", "a wrong type", put, `"cpus":8`, `"cpus":"8"`, api.Invalid},
		{"put", "a fraction", put, `"cpus":8`, `"cpus":8.5`, api.Invalid},
		{"put", "negative cores", put, `"cpus":8`, `"cpus":-1`, api.Invalid},
		{"put", "past an int64", put, `"memory":17179869184`, `"memory":9223372036854775808`, api.Invalid},
		{"put", "more memory than there is", put, `"memory":17179869184`, `"memory":9007199254740993`, api.Invalid},
		{"put", "negative disk", put, `"disk":1099511627776`, `"disk":-1`, api.Invalid},
		{"put", "a control character", put, `"hostname":"evo"`, `"hostname":"e\u001b[2Jvo"`, api.Invalid},
		{"put", "a long text", put, `"cpuModel":"a cpu"`, `"cpuModel":"` + strings.Repeat("x", 300) + `"`, api.Invalid},
		{"put", "no key", put, n.key, "", api.Invalid},
		{"put", "an upper-case key", put, n.key, strings.Repeat("A", 32), api.Invalid},
		{"put", "no hash", put, `"offers":`, `"policySha256":"xyz","offers":`, api.Invalid},
		{"put", "another engine", put, `"offers":`, `"engine":"http://localhost","offers":`, api.Invalid},
		{"put", "invalid UTF-8", put, `"evo"`, "\"\xff\"", api.Invalid},
		{"put", "2 MB", put, `"hostname":"evo"`, `"hostname":"` + strings.Repeat("x", 2<<20) + `"`, api.TooLarge},
		{"register", "a wrong type", put, `"cpus":8`, `"cpus":null`, api.Invalid},

		{"claim", "an unknown field", claim, `"wait"`, `"x":1,"wait"`, api.Invalid},
		{"claim", "a wrong type", claim, `"wait":1`, `"wait":"1"`, api.Invalid},
		{"claim", "no wait", claim, `"wait":1`, `"wait":0`, api.Invalid},
		{"claim", "a long wait", claim, `"wait":1`, `"wait":31`, api.Invalid},
		{"claim", "no state", claim, `"requested"`, `"paused"`, api.Invalid},
		{"claim", "no id", claim, act, `../../etc`, api.Invalid},
		{"claim", "an activity twice", claim, `"running":[`, `"running":[{"activity":"` + act + `","state":"ready"},`, api.Invalid},
		{"claim", "no list", claim, `"running":[`, `"running":null,"was":[`, api.Invalid},
		{"claim", "too many", marshal(api.Claim{Key: n.key, Wait: 1, Running: many}), "", "", api.Invalid},
		{"claim", "1 MB", claim, `"wait"`, `"x":"` + strings.Repeat("x", 1<<20) + `","wait"`, api.TooLarge},

		{"report", "an unknown field", report, `"state"`, `"x":1,"state"`, api.Invalid},
		{"report", "requested", report, `"stopped"`, `"requested"`, api.Invalid},
		{"report", "no state", report, `"stopped"`, `"paused"`, api.Invalid},
		{"report", "no reason", report, `"reason":"done",`, ``, api.Invalid},
		{"report", "another reason", report, `"done"`, `"tired"`, api.Invalid},
		{"report", "a reason without its state", report, `"stopped"`, `"ready"`, api.Invalid},
		{"report", "no error", failed, `"error":{"code":"crash","message":"x"},`, ``, api.Invalid},
		{"report", "another code", failed, `"crash"`, `"oops"`, api.Invalid},
		{"report", "a long message", failed, `"message":"x"`, `"message":"` + strings.Repeat("x", 5000) + `"`, api.Invalid},
		{"report", "negative progress", report, `"done":1`, `"done":-1`, api.Invalid},
		{"report", "more than all", report, `"done":1`, `"done":3`, api.Invalid},
		{"report", "a wrong type", report, `"exit":0`, `"exit":"0"`, api.Invalid},
		{"report", "much output", report, `"out"`, `"` + strings.Repeat("x", 65537) + `"`, api.Invalid},
		{"report", "2 MB", report, `"out"`, `"` + strings.Repeat("x", 2<<20) + `"`, api.TooLarge},

		{"enqueue", "an unknown field", order, `"kind"`, `"command":"sh","kind"`, api.Invalid},
		{"enqueue", "an unknown field of the input", order, `"cpus"`, `"args":[],"cpus"`, api.Invalid},
		{"enqueue", "a wrong type", order, `"cpus":1`, `"cpus":"1"`, api.Invalid},
		{"enqueue", "out of range", order, `"cpus":1`, `"cpus":0`, api.Invalid},
		{"enqueue", "a short life", order, `"maxSec":60`, `"maxSec":59`, api.Invalid},
		{"enqueue", "accelerators without memory", order, `"gpus":[]`, `"gpus":[0]`, api.Invalid},
		{"enqueue", "no input", order, `"input":{`, `"input":null,"was":{`, api.Invalid},
		{"enqueue", "an unknown kind", order, `train.fit`, `shell.run`, api.Invalid},
		{"enqueue", "a kind in upper case", order, `train.fit`, `Train.Fit`, api.Invalid},
		{"enqueue", "no node", order, `"evo"`, `"EVO/../x"`, api.NotFound},
		{"enqueue", "2 MB", order, `"kind"`, `"x":"` + strings.Repeat("x", 2<<20) + `","kind"`, api.TooLarge},
	} {
		body := tt.body
		if tt.old != "" {
			if body = strings.Replace(body, tt.old, tt.new, 1); body == tt.body {
				t.Fatalf("%s, %s: %s has no %s", tt.route, tt.name, tt.body, tt.old)
			}
		}
		r := routes[tt.route]
		status, answer := alice.raw(t, r.method, r.path, r.token, body)
		var p api.Problem
		if err := json.Unmarshal(answer, &p); err != nil || status != tt.code.Status() || p.Code != tt.code || p.Detail == "" {
			t.Errorf("%s, %s: %d %s", tt.route, tt.name, status, answer)
		}
	}
	for _, id := range []string{"EVO", "a.b", strings.Repeat("x", 64), "%2e%2e", "a%2fb", "é"} {
		if status, answer := alice.raw(t, "PUT", base+"workers/"+id, "", put); status != 400 && status != 404 {
			t.Errorf("a node called %s: %d %s", id, status, answer)
		}
	}
	for _, query := range []string{"after=-1", "after=x", "wait=31", "wait=-1", "wait=x", "limit=0", "limit=1001", "x=1"} {
		if status, answer := alice.raw(t, "GET", base+"events?"+query, "", ""); status != 400 {
			t.Errorf("events?%s: %d %s", query, status, answer)
		}
	}
	// As it was.
	alice.expect(act, activity.Requested, "")
	if got := alice.worker("evo"); got.Hostname != "evo" || got.Status != api.Online {
		t.Errorf("the node is %+v", got)
	}
	if all, err := alice.Workers(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("there are nodes %+v, %v", all, err)
	}
	if got := alice.feed(); len(got) != 0 {
		t.Errorf("there are events %v", got)
	}
	for _, body := range []struct{ route, text string }{{"put", put}, {"claim", claim}, {"report", report}} {
		r := routes[body.route]
		if status, answer := alice.raw(t, r.method, r.path, r.token, body.text); status/100 != 2 {
			t.Errorf("%s, unspoilt: %d %s", body.route, status, answer)
		}
	}
}

// TestFlood sends 100 MB where little is taken, with its length and without.
func TestFlood(t *testing.T) {
	w := newWorld(t)
	alice := w.person("acme", "alice", false)
	token, _ := alice.Token()
	for _, length := range []int64{100 << 20, -1} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", alice.Base+"/v1/compute/fleet/activities", io.LimitReader(zeros{}, 100<<20))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			// The server hung up while we were still sending, which is as good.
			if errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			continue
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("length %d: %s", length, resp.Status)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
