package runcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/spool/upload"
)

// cloud is a real control plane, which the environment names, with a front that can
// misbehave.
type cloud struct {
	t      *testing.T
	base   string
	person *api.Client

	mu    sync.Mutex
	front func(w http.ResponseWriter, r *http.Request) bool // true: it has answered
	blobs int                                               // files that were sent
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	usual := every
	every = 20 * time.Millisecond
	t.Cleanup(func() { every = usual })
	store, err := db.Open(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{t: t}
	plane := control.New(control.Config{Store: store})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		front := c.front
		if strings.Contains(r.URL.Path, "/blobs/") {
			c.blobs++
		}
		c.mu.Unlock()
		if front == nil || !front(w, r) {
			plane.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		server.Close()
		store.Close()
	})
	c.base = server.URL
	token, err := store.Mint(t.Context(), api.Identity{Owner: "acme", Name: "alice", Project: "default", Admin: true})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HANZO_API", c.base)
	t.Setenv("HANZO_TOKEN_FILE", file)
	c.person = &api.Client{Base: c.base, Token: api.TokenFile(file)}
	return c
}

func (c *cloud) between(front func(w http.ResponseWriter, r *http.Request) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.front = front
}

func (c *cloud) hanzo(args ...string) (status term.Status, out, errs string) {
	return c.hanzoUntil(c.t.Context(), args...)
}

func (c *cloud) hanzoUntil(ctx context.Context, args ...string) (status term.Status, out, errs string) {
	var stdout, stderr bytes.Buffer
	status = term.Program{Name: "hanzo", Commands: Commands}.Main(ctx, args, term.IO{Out: &stdout, Err: &stderr})
	return status, stdout.String(), stderr.String()
}

// node is a linked machine, as far as the control plane sees one.
type node struct {
	*cloud
	id     string
	key    string
	client *api.Client
}

const admitting = `{"kinds":["train.fit"],"orgs":["acme"],"caps":{"memory":8589934592,"cpus":8,"disk":8589934592},"concurrency":9}`

func (c *cloud) link(id, admits string, offers ...string) *node {
	c.t.Helper()
	n := c.register(id, admits, offers...)
	n.claim() // a heartbeat: it is online
	return n
}

// register is link of a machine that has not been heard of since. One for presence
// only admits "".
func (c *cloud) register(id, admits string, offers ...string) *node {
	c.t.Helper()
	n := &node{cloud: c, id: id, key: strings.Repeat("a", 32)}
	facts := api.WorkerFacts{
		Hostname: id, OS: "linux", Arch: "x86_64", CPUs: 8, CPUModel: "test", Memory: 16 << 30, Disk: 1 << 40, GPUs: []api.GPU{},
		Version: "1", Lanes: []string{}, Offers: append([]string{}, offers...),
	}
	if admits != "" {
		facts.Policy, facts.PolicySHA256 = canon.Raw(admits), string(canon.Sum([]byte(admits)))
	}
	stored, err := c.person.PutWorker(c.t.Context(), id, api.WorkerPut{Key: n.key, WorkerFacts: facts})
	if err != nil {
		c.t.Fatal(err)
	}
	n.client = &api.Client{Base: c.base, Token: func() (string, error) { return stored.Credential, nil }}
	return n
}

func (n *node) claim() api.Claimed {
	n.t.Helper()
	claimed, err := n.client.Claim(n.t.Context(), n.id, api.Claim{Key: n.key, Wait: 1, Running: []api.Running{}})
	if err != nil {
		n.t.Fatal(err)
	}
	return claimed
}

func (n *node) report(act string, r api.StateReport) {
	n.t.Helper()
	r.Key = n.key
	if err := n.client.Report(n.t.Context(), n.id, act, r); err != nil {
		n.t.Error(err)
	}
}

// record writes a whole run of an activity, whose gate asks for an accuracy that it
// reaches or not, and sends it as the node does.
func (n *node) record(act string, floor float64) {
	n.t.Helper()
	s, err := spool.Open(n.t.TempDir(), "", "")
	if err != nil {
		n.t.Fatal(err)
	}
	put := func(kind record.Kind, purpose record.Purpose, b string, parents ...canon.SHA256) canon.SHA256 {
		a, err := s.Put(record.Artifact{
			Kind: kind, MediaType: kind.MediaType(), SchemaVersion: 1, Purpose: purpose,
			Producer: record.Producer{Tool: "test"}, Parents: append([]canon.SHA256{}, parents...),
		}, strings.NewReader(b))
		if err != nil {
			n.t.Fatal(err)
		}
		return a.SHA256
	}
	dataset := func(id string, purpose record.Purpose) record.Dataset {
		row := []byte(`{"text":"` + id + `"}`)
		it, err := record.NewItem(id, purpose, "i0", id+":i0", row, row, []byte(`{"q":[0,1]}`))
		if err != nil {
			n.t.Fatal(err)
		}
		b, sha, err := record.ItemsNDJSON([]record.DatasetItem{it})
		if err != nil {
			n.t.Fatal(err)
		}
		put(record.KindDataset, purpose, string(b))
		when := "2026-09-29T07:42:00Z"
		d := record.Dataset{
			ID: id, Purpose: purpose, Title: id, License: "unstated", Origin: "test", Parents: []string{},
			State: record.Sealed, Items: 1, SHA256: &sha, Created: when, Sealed: &when,
		}
		if err := s.PutDataset(d); err != nil {
			n.t.Fatal(err)
		}
		return d
	}
	environment, err := canon.Marshal(record.Environment{
		Dirty: true, LockfileHash: canon.HashOf(nil), KernelPlanHash: canon.HashOf(nil), Accelerator: record.Accelerator{API: record.CPU},
		Precision: record.Precision{Compute: "f32", Master: "f32", Accumulate: "f32"},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	rows, judge := dataset("rows", record.Train), dataset("judge", record.EvalOnly)
	g := gate.Gate{Name: "tiny", Version: 1, Rules: []gate.Rule{{
		Dataset: judge.ID, DatasetSHA256: *judge.SHA256, Category: gate.All, Metric: gate.Accuracy, Higher: true,
		Test: gate.Test{Kind: gate.Floor, Value: floor},
	}}}
	hash, err := s.PutGate(g)
	if err != nil {
		n.t.Fatal(err)
	}
	log, err := s.Create(act)
	if err != nil {
		n.t.Fatal(err)
	}
	config := put(record.KindConfig, record.Train, `{"stage":"tiny"}`)
	checkpoint := put(record.KindCapability, record.Train, "weights", config)
	lines := `{"brier":0.98,"confidence":0.7,"correct":false,"group":"i0","item":"i0","p_gold":0.3,"question":"q"}` + "\n"
	items, err := gate.ParseItems(strings.NewReader(lines))
	if err != nil {
		n.t.Fatal(err)
	}
	itemsSHA := put(record.KindItems, judge.Purpose, lines, checkpoint, *judge.SHA256)
	one := uint64(1)
	if g, err = s.LoadGate(hash); err != nil {
		n.t.Fatal(err)
	}
	verdict := g.Evaluate([]gate.Evaluation{{Dataset: judge.ID, DatasetSHA256: *judge.SHA256, Complete: true, Items: items, Measures: gate.Measures(items)}}, nil)
	const evaluation = "evl_0000000000000001"
	bodies := []event.Body{
		event.RunCreated{
			Kind: event.KindTrain, EnvironmentArtifactSHA256: put(record.KindEnvironment, record.Train, string(environment)),
			ConfigSHA256: config, Parents: []canon.SHA256{}, GateSpecHash: &hash, Tags: []string{}, By: "test",
		},
		event.DatasetAttached{Dataset: rows.ID, DatasetSHA256: *rows.SHA256, Purpose: rows.Purpose, Role: record.RoleTrain},
		event.DatasetAttached{Dataset: judge.ID, DatasetSHA256: *judge.SHA256, Purpose: judge.Purpose, Role: record.RoleEvaluate},
		event.TrainStarted{PlanSHA256: put(record.KindPlan, record.Train, `{"plan":1}`), Batches: 3, Tokens: 30},
	}
	for i := uint64(1); i <= 3; i++ {
		bodies = append(bodies, event.StepRecorded{Step: i, Tokens: 10 * i, Loss: 1 / float64(i), GradNorm: 1, LR: 1e-5, BatchIDsHash: canon.HashOf(fmt.Append(nil, i))})
	}
	bodies = append(bodies,
		event.CheckpointCreated{Step: 3, Tokens: 30, ArtifactSHA256: checkpoint},
		event.EvalStarted{
			Evaluation: evaluation, Subject: event.Subject{Kind: event.SubjectArtifact, SHA256: checkpoint}, Dataset: judge.ID, DatasetSHA256: *judge.SHA256,
			Evaluator: event.Evaluator{Kind: event.Harness, Name: "test", Version: "1", DefinitionHash: canon.HashOf(nil)},
		},
		event.EvalCompleted{Evaluation: evaluation, Questions: &one, Answered: &one, Measures: gate.Measures(items), ItemsSHA256: &itemsSHA},
		event.GateEvaluated(verdict),
		event.RunCompleted{Status: event.Completed, Steps: 3, Tokens: 30, Batches: 3})
	for _, b := range bodies {
		if _, err := log.Append(b); err != nil {
			n.t.Fatal(err)
		}
	}
	log.Close()
	report, err := upload.New(upload.Config{Spool: s, Client: n.client.RecordOf(n.id, act)}).Drain(n.t.Context())
	if err != nil || len(report.Refused) > 0 {
		n.t.Errorf("%+v, %v", report, err)
	}
}

// folders writes an input that names its trees as folders.
func (c *cloud) folders() (input, dir string) {
	c.t.Helper()
	dir = c.t.TempDir()
	for name, text := range map[string]string{
		"stage/stage.json": `{"stage":"tiny"}`, "stage/data/rows.ndjson": "{}\n", "base/kai.json": "{}", "base/weights": strings.Repeat("w", 1<<20), "base/empty": "",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			c.t.Fatal(err)
		}
	}
	return c.input(dir, nil), dir
}

func (c *cloud) input(dir string, change map[string]any) string {
	c.t.Helper()
	members := map[string]any{
		"stage": "stage", "base": "base", "memory": 1 << 30, "cpus": 2, "disk": 1 << 30, "vram": 0, "gpus": []int{}, "maxSec": 600,
	}
	for name, value := range change {
		members[name] = value
	}
	b, err := json.Marshal(members)
	if err != nil {
		c.t.Fatal(err)
	}
	name := filepath.Join(dir, "input.json")
	if err := os.WriteFile(name, b, 0o644); err != nil {
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

func TestFoldersAreSentOnce(t *testing.T) {
	c := newCloud(t)
	n := c.link("evo", admitting, policy.TrainFit)
	input, dir := c.folders()
	status, out, errs := c.hanzo("run", "evo", "--kind", "train.fit", "--input", input)
	if status != term.OK {
		t.Fatalf("status %d: %s", status, errs)
	}
	mustSay(t, out, " is requested of evo: hanzo follow act_")
	mustSay(t, errs, "stage: sent 2 of 2 files", "base: sent 3 of 3 files")
	claimed := n.claim()
	if len(claimed.Start) != 1 {
		t.Fatalf("%+v", claimed)
	}
	in, err := policy.ParseTrainFit(claimed.Start[0].Input)
	if err != nil {
		t.Fatal(err)
	}
	for hash, want := range map[string][]string{in.Stage: {"data/rows.ndjson", "stage.json"}, in.Base: {"empty", "kai.json", "weights"}} {
		tree, err := n.client.NodeTree(t.Context(), n.id, claimed.Start[0].Activity, hash)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		var files []policy.TreeFile
		for _, f := range tree.Files {
			got = append(got, f.Path)
			files = append(files, policy.TreeFile(f))
		}
		if strings.Join(got, " ") != strings.Join(want, " ") || policy.TreeHash(files) != hash {
			t.Errorf("%v", got)
		}
	}

	// Again: nothing is sent; one file more: that file.
	if c.blobs != 5 {
		t.Errorf("%d files were sent", c.blobs)
	}
	if err := os.WriteFile(filepath.Join(dir, "stage", "more"), []byte("more"), 0o644); err != nil {
		t.Fatal(err)
	}
	status, out, errs = c.hanzo("run", "--kind", "train.fit", "--json", "evo", "--input", input)
	var act api.Activity
	if err := json.Unmarshal([]byte(out), &act); status != term.OK || err != nil || act.State != activity.Requested {
		t.Errorf("status %d, %v: %s%s", status, err, out, errs)
	}
	if c.blobs != 6 {
		t.Errorf("%d files were sent", c.blobs)
	}

	// With hashes there is nothing to send.
	status, _, errs = c.hanzo("run", "evo", "--kind", "train.fit", "--input", c.input(t.TempDir(), map[string]any{"stage": in.Stage, "base": in.Base}))
	if status != term.OK || errs != "" || c.blobs != 6 {
		t.Errorf("status %d: %s", status, errs)
	}
}

// A control plane in trouble is sent the same file again.
func TestSendingGoesOn(t *testing.T) {
	c := newCloud(t)
	c.link("evo", admitting, policy.TrainFit)
	input, _ := c.folders()
	failed := 0
	c.between(func(w http.ResponseWriter, r *http.Request) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if failed > 0 || !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		failed++
		api.Refuse(api.Unavailable, "said the test").Write(w)
		return true
	})
	if status, _, errs := c.hanzo("run", "evo", "--kind", "train.fit", "--input", input); status != term.OK || failed != 1 {
		t.Errorf("status %d: %s", status, errs)
	}
}

func TestRefusals(t *testing.T) {
	c := newCloud(t)
	c.link("evo", admitting, policy.TrainFit)
	c.link("closed", `{"kinds":[],"orgs":["acme"]}`)
	c.link("unable", admitting)
	c.register("away", admitting, policy.TrainFit)
	c.register("present", "").claim()
	input, dir := c.folders()
	at := func(change map[string]any) string { return c.input(dir, change) }
	linked := filepath.Join(t.TempDir(), "linked")
	if err := errors.Join(os.Mkdir(linked, 0o755), os.Symlink("/etc/passwd", filepath.Join(linked, "passwd"))); err != nil {
		t.Fatal(err)
	}
	named := t.TempDir()
	if err := os.WriteFile(filepath.Join(named, "a file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "input.json")
	if err := os.WriteFile(broken, []byte(`{"stage":`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		what   string
		args   func() []string
		status term.Status
		says   string
	}{
		{"no node", func() []string { return []string{"other", "--kind", "train.fit", "--input", input} }, term.Usage, "no node \"other\"; your org's are away, closed, evo, present, unable"},
		{"no kind", func() []string { return []string{"evo", "--input", input} }, term.Usage, "needs --kind and --input"},
		{"no input", func() []string { return []string{"evo", "--kind", "train.fit"} }, term.Usage, "needs --kind and --input"},
		{"no such file", func() []string { return []string{"evo", "--kind", "train.fit", "--input", input + "x"} }, term.Usage, "no such file"},
		{"half a file", func() []string { return []string{"evo", "--kind", "train.fit", "--input", broken} }, term.Usage, "input.json"},
		{"unknown member", func() []string {
			return []string{"evo", "--kind", "train.fit", "--input", at(map[string]any{"argv": "sh"})}
		}, term.Usage, "argv"},
		{"too little memory", func() []string {
			return []string{"evo", "--kind", "train.fit", "--input", at(map[string]any{"memory": 1})}
		}, term.Usage, "/memory"},
		{"no such folder", func() []string {
			return []string{"evo", "--kind", "train.fit", "--input", at(map[string]any{"base": "elsewhere"})}
		}, term.Usage, "no such file or directory"},
		{"a file as a folder", func() []string {
			return []string{"evo", "--kind", "train.fit", "--input", at(map[string]any{"base": "input.json"})}
		}, term.Usage, "give the folder"},
		{"an empty folder", func() []string {
			return []string{"evo", "--kind", "train.fit", "--input", at(map[string]any{"base": t.TempDir()})}
		}, term.Usage, "it has no file"},
		{"a link", func() []string {
			return []string{"evo", "--kind", "train.fit", "--input", at(map[string]any{"base": linked})}
		}, term.Usage, "passwd is no regular file"},
		{"a name with a space", func() []string {
			return []string{"evo", "--kind", "train.fit", "--input", at(map[string]any{"base": named})}
		}, term.Usage, "\"a file\" is no path in a tree"},
		{"unknown trees", func() []string {
			return []string{"evo", "--kind", "train.fit", "--input", at(map[string]any{"base": strings.Repeat("1", 64)})}
		}, term.Failed, "1111"},
		{"too much memory", func() []string {
			return []string{"evo", "--kind", "train.fit", "--input", at(map[string]any{"memory": 1 << 40})}
		}, term.Failed, "by rule caps.memory: asked for 1 TiB, allowed are 8 GiB; "},
		{"not admitted", func() []string { return []string{"closed", "--kind", "train.fit", "--input", at(nil)} }, term.Failed, "closed refuses, by rule kind: asked for \"train.fit\", allowed are none; the owner of closed decides that: there, sudo hanzo policy allow train.fit"},
		{"not offered", func() []string { return []string{"unable", "--kind", "train.fit", "--input", at(nil)} }, term.Failed, "hanzo doctor says why, there"},
		{"no kind of work", func() []string { return []string{"evo", "--kind", "shell", "--input", at(nil)} }, term.Usage, "--kind \"shell\" is none: give one of train.fit, engine.serve, "},
		{"nearly a kind", func() []string { return []string{"evo", "--kind", "train.fitt", "--input", at(nil)} }, term.Usage, "did you mean train.fit?"},
		{"no stage", func() []string {
			return []string{"evo", "--kind", "train.fit", "--input", at(map[string]any{"stage": "base"})}
		}, term.Usage, "it has no stage.json"},
		{"no base", func() []string {
			return []string{"evo", "--kind", "train.fit", "--input", at(map[string]any{"base": "stage"})}
		}, term.Usage, "it has no kai.json"},
		{"presence", func() []string { return []string{"present", "--kind", "train.fit", "--input", at(nil)} }, term.Failed, "present takes no work: it is linked for presence only"},
		{"away", func() []string { return []string{"away", "--kind", "train.fit", "--input", at(nil)} }, term.Failed, "away is offline: hanzo status says why, there"},
	} {
		status, _, errs := c.hanzo(append([]string{"run"}, r.args()...)...)
		if status != r.status || !strings.Contains(errs, r.says) {
			t.Errorf("%s: status %d: %s", r.what, status, errs)
		}
		if lines := strings.Split(strings.TrimSpace(errs), "\n"); !strings.HasPrefix(lines[len(lines)-1], "hanzo: ") {
			t.Errorf("%s: the error is not one line: %s", r.what, errs)
		}
	}
	all, err := c.person.Activities(t.Context(), api.ActivityQuery{})
	if err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	if c.blobs != 2 { // the stage, beside a base that only the control plane could know
		t.Errorf("%d files were sent", c.blobs)
	}
}

// What is judged here before anything is sent, the control plane judges so too.
func TestJudgesAlike(t *testing.T) {
	c := newCloud(t)
	c.link("closed", `{"kinds":[],"orgs":["acme"]}`, policy.TrainFit)
	c.link("other", `{"kinds":["train.fit"],"orgs":["other"]}`, policy.TrainFit)
	c.link("small", `{"kinds":["train.fit"],"orgs":["acme"],"caps":{"memory":1,"cpus":8,"disk":1}}`, policy.TrainFit)
	c.link("unable", admitting)
	c.link("full", `{"kinds":["train.fit"],"orgs":["acme"],"caps":{"memory":8589934592,"cpus":8,"disk":8589934592},"concurrency":1}`, policy.TrainFit)
	c.register("away", admitting, policy.TrainFit)
	input, _ := c.folders()
	if status, _, errs := c.hanzo("run", "full", "--kind", "train.fit", "--input", input); status != term.OK {
		t.Fatal(errs)
	}
	w, err := prepare([]byte(`{"stage":"`+strings.Repeat("1", 64)+`","base":"`+strings.Repeat("2", 64)+`","memory":1073741824,"cpus":2,"disk":1073741824,"vram":0,"gpus":[],"maxSec":600}`), "x")
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := c.person.Workers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		here := judge(nodes, n.ID, policy.TrainFit, w.input)
		_, there := c.person.Enqueue(t.Context(), api.Enqueue{Node: n.ID, Kind: policy.TrainFit, Input: object(w.members)})
		a, _ := errors.AsType[*api.Problem](here)
		b, _ := errors.AsType[*api.Problem](there)
		if a == nil || b == nil || a.Code != b.Code || a.Rule != b.Rule || !strings.HasSuffix(b.Detail, a.Detail) {
			t.Errorf("%s: here %v, there %v", n.ID, here, there)
		}
	}
}

// ended runs an activity that the node ends so, while hanzo run follows it.
func ended(t *testing.T, end func(n *node, act string), args ...string) (term.Status, string, string) {
	t.Helper()
	c := newCloud(t)
	n := c.link("evo", admitting, policy.TrainFit)
	input, _ := c.folders()
	var both sync.WaitGroup
	both.Go(func() {
		for {
			claimed := n.claim()
			if t.Context().Err() != nil {
				return
			}
			if len(claimed.Start) > 0 {
				end(n, claimed.Start[0].Activity)
				return
			}
		}
	})
	defer both.Wait()
	return c.hanzo(append([]string{"run", "evo", "--kind", "train.fit", "--input", input, "--follow"}, args...)...)
}

func done(exit int) api.StateReport {
	return api.StateReport{State: activity.Stopped, Reason: activity.Done, Output: &api.Output{Exit: exit}}
}

func TestFollowToTheEnd(t *testing.T) {
	pass := func(n *node, act string) {
		n.report(act, api.StateReport{State: activity.Pulling, Progress: &api.Progress{Done: 1, Total: 2}})
		n.report(act, api.StateReport{State: activity.Ready})
		n.record(act, 0)
		n.report(act, done(0))
	}
	status, out, errs := ended(t, pass)
	if status != term.OK {
		t.Fatalf("status %d: %s%s", status, out, errs)
	}
	mustSay(t, out, ": stopped: done\n", "training: 3 steps, 30 tokens\n", "step 3 of 3  loss 0.3333\n", "judge: accuracy 0.0 %\n", "gate: pass\n", "run completed after 3 steps\n", ", 3 steps, 30 tokens\n")

	status, out, errs = ended(t, pass, "--json")
	if status != term.OK {
		t.Fatalf("status %d: %s%s", status, out, errs)
	}
	var events int
	var last api.Activity
	for line := range strings.Lines(out) {
		var v struct {
			Activity *api.Activity
			Event    json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if v.Activity != nil {
			last = *v.Activity
		} else {
			events++
		}
	}
	if events != 12 || last.Reason != activity.Done {
		t.Errorf("%d events, and last %+v", events, last)
	}
}

func TestFollowToAFailedGate(t *testing.T) {
	status, out, errs := ended(t, func(n *node, act string) {
		n.report(act, api.StateReport{State: activity.Ready})
		n.report(act, done(3))
		n.record(act, 0.9) // after its end, as a node catches up
	})
	if status != term.Rejected {
		t.Errorf("status %d", status)
	}
	mustSay(t, out, "gate: fail\n")
	mustSay(t, errs, "ended, and its gate failed")
}

func TestFollowToAFailure(t *testing.T) {
	status, out, errs := ended(t, func(n *node, act string) {
		n.report(act, api.StateReport{State: activity.Failed, Error: &activity.Failure{Code: activity.Crash, Message: "exited with status 1:\n\x1b[31mno stage.json"}})
	})
	if status != term.Failed {
		t.Errorf("status %d: %s", status, out)
	}
	mustSay(t, errs, "failed on evo (crash): exited with status 1: [31mno stage.json")
	if strings.Contains(errs, "\x1b") {
		t.Errorf("what a node says reaches the terminal as it is: %q", errs)
	}
}

func TestFollowToAStop(t *testing.T) {
	status, _, errs := ended(t, func(n *node, act string) {
		n.report(act, api.StateReport{State: activity.Ready})
		n.report(act, api.StateReport{State: activity.Stopped, Reason: activity.Policy})
	})
	if status != term.Failed {
		t.Errorf("status %d", status)
	}
	mustSay(t, errs, "was stopped on evo (policy): its owner's policy no longer admits it")
}

// A record that never comes whole does not keep anybody.
func TestARecordThatStaysOpen(t *testing.T) {
	c := newCloud(t)
	n := c.link("evo", admitting, policy.TrainFit)
	input, _ := c.folders()
	if status, _, errs := c.hanzo("run", "evo", "--kind", "train.fit", "--input", input); status != term.OK {
		t.Fatal(errs)
	}
	act := n.claim().Start[0].Activity
	n.report(act, api.StateReport{State: activity.Ready})
	n.report(act, done(0))
	a, err := c.person.Activity(t.Context(), act)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	f := newFollower(c.person, term.IO{Out: &out, Err: &errs}, false)
	f.every, f.late = time.Millisecond, 5*time.Millisecond
	if err := f.follow(t.Context(), a); err != nil {
		t.Error(err)
	}
	mustSay(t, errs.String(), "is not whole yet")
}

// Ctrl-C ends the following and not the run; so does a control plane that is away for a
// while.
func TestFollowingIsNotRunning(t *testing.T) {
	c := newCloud(t)
	n := c.link("evo", admitting, policy.TrainFit)
	input, _ := c.folders()
	ctx, interrupt := context.WithCancel(t.Context())
	looks := 0
	c.between(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/fleet/activities/act_") {
			return false
		}
		switch looks++; looks {
		case 1:
			api.Refuse(api.Unavailable, "said the test").Write(w)
			return true
		case 2:
			interrupt()
		}
		return false
	})
	status, _, errs := c.hanzoUntil(ctx, "run", "evo", "--kind", "train.fit", "--input", input, "--follow")
	if status != term.Interrupted {
		t.Errorf("status %d", status)
	}
	mustSay(t, errs, "waiting for the control plane: ", "which goes on: hanzo follow act_", "hanzo cancel act_")
	c.between(nil)
	if len(n.claim().Start) != 1 {
		t.Error("the run was taken back")
	}
}

func TestCancelAndLists(t *testing.T) {
	c := newCloud(t)
	status, out, errs := c.hanzo("nodes")
	if status != term.OK {
		t.Fatal(errs)
	}
	mustSay(t, out, "no linked machine: run hanzo link on one")
	n := c.link("evo", admitting, policy.TrainFit)
	input, _ := c.folders()
	run := func() string {
		t.Helper()
		status, out, errs := c.hanzo("run", "evo", "--kind", "train.fit", "--input", input, "--json")
		var act api.Activity
		if err := json.Unmarshal([]byte(out), &act); status != term.OK || err != nil {
			t.Fatal(err, errs)
		}
		return act.Activity
	}
	first := run()
	_, out, _ = c.hanzo("cancel", first)
	mustSay(t, out, "is cancelled; evo had not begun it")
	_, out, _ = c.hanzo("cancel", first)
	mustSay(t, out, "had ended already: stopped: cancel")
	second := run()
	if got := n.claim().Start[0].Activity; got != second {
		t.Fatalf("%s", got)
	}
	n.report(second, api.StateReport{State: activity.Ready})
	_, out, _ = c.hanzo("nodes")
	mustSay(t, out, "evo", "online", "train.fit", "16 GiB", second+" (ready)", "acme/alice")
	_, out, _ = c.hanzo("cancel", second)
	mustSay(t, out, "evo is told to end it")
	_, out, _ = c.hanzo("activities")
	mustSay(t, out, first, second, "stopped: cancel", "ready, to be stopped: cancel")
	if strings.Index(out, second) > strings.Index(out, first) {
		t.Error("the newest is not the first")
	}
	_, out, _ = c.hanzo("activities", "--state", "stopped")
	if strings.Contains(out, second) {
		t.Error(out)
	}
	for _, wrong := range [][2]string{{"--state=bogus", "requested, pulling, starting, ready"}, {"--state=stoped", "did you mean stopped?"}, {"--limit=100000", "1 to 1000"}, {"--limit=0", "1 to 1000"}, {"--node=other", "your org's are evo"}} {
		status, _, errs := c.hanzo("activities", wrong[0])
		if status != term.Usage || !strings.Contains(errs, wrong[1]) {
			t.Errorf("%s: status %d: %s", wrong[0], status, errs)
		}
	}
	for _, command := range []string{"cancel", "follow"} {
		status, _, errs := c.hanzo(command, "act_none")
		if status != term.Failed || !strings.Contains(errs, "hanzo activities lists them") {
			t.Errorf("status %d: %s", status, errs)
		}
	}
	for _, command := range []string{"nodes", "activities"} {
		status, out, errs := c.hanzo(command, "--json")
		if status != term.OK || !json.Valid([]byte(out)) {
			t.Errorf("status %d: %s%s", status, out, errs)
		}
	}
}

func TestRemove(t *testing.T) {
	c := newCloud(t)
	c.link("evo", admitting, policy.TrainFit)
	input, _ := c.folders()
	status, out, errs := c.hanzo("run", "evo", "--kind", "train.fit", "--input", input, "--json")
	var act api.Activity
	if err := json.Unmarshal([]byte(out), &act); status != term.OK || err != nil {
		t.Fatal(err, errs)
	}
	status, _, errs = c.hanzo("remove", "other")
	if status != term.Usage {
		t.Errorf("status %d", status)
	}
	mustSay(t, errs, "your org's are evo")
	c.between(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodDelete {
			api.Refuse(api.Forbidden, "said the test").Write(w)
		}
		return r.Method == http.MethodDelete
	})
	status, _, errs = c.hanzo("remove", "evo")
	if status != term.Failed {
		t.Errorf("status %d", status)
	}
	mustSay(t, errs, "evo was linked by acme/alice: only they or an admin of your org")
	c.between(nil)
	status, out, errs = c.hanzo("remove", "evo")
	if status != term.OK {
		t.Fatal(errs)
	}
	mustSay(t, out, "evo is removed", act.Activity+" is stopped (unlink)")
	if nodes, err := c.person.Workers(t.Context()); err != nil || len(nodes) != 0 {
		t.Errorf("%+v, %v", nodes, err)
	}
	if act, err := c.person.Activity(t.Context(), act.Activity); err != nil || act.Reason != activity.Unlink {
		t.Errorf("%+v, %v", act, err)
	}
}
