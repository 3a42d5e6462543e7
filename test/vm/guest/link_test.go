//go:build linux

package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/systemd"
)

const (
	bin   = payload + "/bin"
	cloud = "http://127.0.0.1:8334"
	data  = "/root/cloud" // the control plane's folder
)

// person is the environment of who links the machine and gives it work.
var person = append(os.Environ(), "HANZO_API="+cloud, "HANZO_TOKEN_FILE="+data+"/token")

// A linked machine and the control plane beside it. The parts of TestLink share one.
type linked struct {
	*testing.T
	org *api.Client // as the person who linked it, an admin of acme
	id  string      // the node's
}

// TestLink is the product's sentence, on a fresh host with systemd: a machine is
// linked, offers nothing, is allowed one kind, is given work, trains in the sandbox
// and is recorded as it trains; and then everything that ends work. Its parts follow
// one another, and each is named after what hip-1172 accepts by it.
func TestLink(t *testing.T) {
	l := &linked{T: t, org: &api.Client{Base: cloud, Token: api.TokenFile(data + "/token")}}
	l.serve()
	for _, part := range []struct {
		name string
		run  func(*linked)
	}{
		{"hanzo link with any argument exits non-zero, and so does hanzo link without root", (*linked).refusals},
		{"sudo hanzo link writes the default policy, and the record shows offers none", (*linked).link},
		{"agent, launcher and units are root's, and nothing new listens but the launcher's socket", (*linked).installed},
		{"linking again reinstalls nothing and prints the kinds the host would offer", (*linked).again},
		{"with kinds none, an enqueue of each kind answers 403 denied", (*linked).denied},
		{"policy allow offers the kind to the cloud", (*linked).allow},
		{"a run trains in the sandbox, its events arrive while it runs, a cloud that goes away gets the rest, and the weights are those of the same stage outside", (*linked).train},
		{"cancel reaches a running workload", (*linked).cancel},
		{"an agent killed in mid-run loses its workload and comes back", (*linked).killed},
		{"removing a running workload's kind stops it with reason policy", (*linked).policyStops},
		{"the events on the feed name every start, stop, denial and failure", (*linked).feed},
		{"sudo hanzo unlink stops every workload and leaves policy, audit log and store", (*linked).unlink},
		{"unlinking twice is no error, and the machine can be linked again", (*linked).relink},
	} {
		if !t.Run(part.name, func(t *testing.T) {
			shown := *l
			shown.T = t
			part.run(&shown)
			l.id = shown.id
		}) {
			t.Log(journalTail())
			return
		}
	}
}

// serve starts the control plane as a service of its own.
func (l *linked) serve() {
	l.Helper()
	const unit = "[Service]\nExecStart=" + bin + "/hanzo-cloud serve --data " + data + " --org acme\nRestart=always\nRestartSec=100ms\n"
	if err := replaceFile("/run/systemd/system/cloud.service", []byte(unit), 0o644); err != nil {
		l.Fatal(err)
	}
	run(l, "systemctl", "daemon-reload")
	run(l, "systemctl", "start", "cloud.service")
	l.cloudAnswers()
}

func (l *linked) cloudAnswers() {
	l.Helper()
	until(l, "the control plane answers", func() bool {
		resp, err := http.Get(cloud + "/healthz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// hanzo runs the person's command and answers what it printed and its exit status.
func (l *linked) hanzo(args ...string) (string, int) {
	l.Helper()
	return l.command(exec.Command(bin+"/hanzo", args...))
}

func (l *linked) command(cmd *exec.Cmd) (string, int) {
	l.Helper()
	cmd.Env = person
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = nil
		return string(out), exit.ExitCode()
	}
	if err != nil {
		l.Fatal(err)
	}
	return string(out), 0
}

// succeeds is hanzo where nothing but success will do.
func (l *linked) succeeds(args ...string) string {
	l.Helper()
	out, status := l.hanzo(args...)
	if status != 0 {
		l.Fatalf("hanzo %s exited with status %d:\n%s\n%s", strings.Join(args, " "), status, out, journalTail())
	}
	return out
}

// worker is the node's record.
func (l *linked) worker() api.Worker {
	l.Helper()
	all, err := l.org.Workers(l.Context())
	if err != nil {
		l.Fatal(err)
	}
	i := slices.IndexFunc(all, func(w api.Worker) bool { return w.ID == l.id })
	if i < 0 {
		l.Fatalf("the cloud does not list %q: %+v", l.id, all)
	}
	return all[i]
}

func (l *linked) activity(id string) api.Activity {
	l.Helper()
	a, err := l.org.Activity(l.Context(), id)
	if err != nil {
		l.Fatal(err)
	}
	return a
}

// becomes waits for an activity's state.
func (l *linked) becomes(id string, state activity.State) api.Activity {
	l.Helper()
	var last any
	var a api.Activity
	until(l, id+" is "+string(state), func() bool {
		a = l.activity(id)
		last = a
		return a.State == state || a.State.Ended()
	}, &last)
	if a.State != state {
		l.Fatalf("%s is %s: %+v %+v\n%s", id, a.State, a.Error, a.Output, journalTail())
	}
	return a
}

// arrives waits until the cloud holds events of an activity that runs.
func (l *linked) arrives(id string) {
	l.Helper()
	var last any
	until(l, "events of "+id+" are on the cloud", func() bool {
		if a := l.activity(id); a.State.Ended() {
			l.Fatalf("before its first event arrived it ended as %+v", a)
		}
		runs, err := l.org.Runs(l.Context(), api.RunQuery{})
		last = fmt.Sprintf("%+v, %v", runs, err)
		return err == nil && slices.ContainsFunc(runs, func(r api.Run) bool { return activity.Records(id, r.ID) && r.Seq > 0 })
	}, &last)
}

// job writes an input of kind train.fit over a stage, and answers its file.
func (l *linked) job(stage string) string {
	l.Helper()
	lesson := filepath.Join(payload, "lesson")
	input := map[string]any{
		"stage": stage, "base": filepath.Join(lesson, "base"),
		"memory": 512 << 20, "cpus": 2, "disk": 64 << 20, "vram": 0, "gpus": []int{}, "maxSec": 3600,
	}
	text, err := json.Marshal(input)
	if err != nil {
		l.Fatal(err)
	}
	name := filepath.Join(l.TempDir(), "job.json")
	if err := os.WriteFile(name, text, 0o644); err != nil {
		l.Fatal(err)
	}
	return name
}

// long enqueues work that does not end by itself, and answers it once it runs.
func (l *linked) long() string {
	l.Helper()
	stage := l.TempDir()
	if err := os.CopyFS(stage, os.DirFS(filepath.Join(payload, "lesson/stage"))); err != nil {
		l.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(stage, "stage.json"))
	if err != nil {
		l.Fatal(err)
	}
	endless := bytes.Replace(text, []byte(`"epochs": 1,`), []byte(`"epochs": 1000,`), 1)
	if bytes.Equal(text, endless) {
		l.Fatalf("the stage does not say how many epochs: %s", text)
	}
	if err := os.WriteFile(filepath.Join(stage, "stage.json"), endless, 0o644); err != nil {
		l.Fatal(err)
	}
	cmd := exec.Command(bin+"/hanzo", "run", l.id, "--kind", policy.TrainFit, "--input", l.job(stage), "--json")
	cmd.Env = person
	out, err := cmd.Output()
	var a api.Activity
	if err != nil || json.Unmarshal(out, &a) != nil || !activity.ValidID(a.Activity) {
		l.Fatalf("hanzo run --json: %v, %s", err, out)
	}
	l.becomes(a.Activity, activity.Ready)
	return a.Activity
}

func (l *linked) refusals() {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"with an argument": {[]string{bin + "/hanzo", "link", "now"}, "no arguments"},
		"with a flag":      {[]string{bin + "/hanzo", "link", "--serve-engine"}, ""},
		"without root":     {[]string{"setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", bin + "/hanzo", "link"}, "sudo hanzo link"},
	} {
		out, status := l.command(exec.Command(c.args[0], c.args[1:]...))
		if status == 0 || !strings.Contains(out, c.want) {
			l.Errorf("%s: status %d, %s", name, status, out)
		}
	}
	if out, status := l.hanzo("link", "--help"); status != 0 || !strings.Contains(out, "link") {
		l.Errorf("--help: status %d, %s", status, out)
	}
	for _, name := range []string{policy.Path, lib, systemd.UnitDir + "/" + agentUnit} {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			l.Errorf("%s: %v", name, err)
		}
	}
}

// listening is what listens on this host, on a network or a Unix socket.
func (l *linked) listening() []string {
	l.Helper()
	var all []string
	for line := range strings.Lines(run(l, "ss", "-H", "-l", "-n", "-t", "-u", "-x")) {
		if f := strings.Fields(line); len(f) > 4 {
			all = append(all, f[0]+" "+f[4])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// before is what listened before the machine was linked.
var before []string

func (l *linked) link() {
	before = l.listening()
	began := time.Now()
	out := l.succeeds("link")
	l.Logf("in %.1f s:\n%s", time.Since(began).Seconds(), out)
	for _, want := range []string{"become root", policy.TrainFit, policy.Path} {
		if !strings.Contains(out, want) {
			l.Errorf("hanzo link does not say %q", want)
		}
	}
	host, err := os.Hostname()
	if err != nil {
		l.Fatal(err)
	}
	l.id = strings.ToLower(host)
	text := read(l, policy.Path)
	var p map[string]any
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		l.Fatal(err)
	}
	if kinds := p["kinds"].([]any); len(kinds) != 0 || fmt.Sprint(p["orgs"]) != "[acme]" || p["concurrency"] != 1.0 {
		l.Errorf("the policy is %s", text)
	}
	var w api.Worker
	until(l, "the node is online", func() bool { w = l.worker(); return w.Status == api.Online })
	if len(w.Offers) != 0 || w.Offers == nil {
		l.Errorf("it offers %v", w.Offers)
	}
	if w.OS != "linux" || w.Arch != "x86_64" || w.CPUs != 2 || w.Memory < 2<<30 || w.LinkedBy == "" || w.Hostname != host {
		l.Errorf("the record is %+v", w)
	}
}

func (l *linked) installed() {
	for name, mode := range map[string]fs.FileMode{
		policy.Path: 0o644, lib: 0o755, lib + "/hanzo-link": 0o755, lib + "/hanzo-launcher": 0o755, lib + "/hanzo-stage": 0o755,
		lib + "/train": 0o755, lib + "/manifest.json": 0o644,
		systemd.UnitDir + "/" + agentUnit: 0o644, systemd.UnitDir + "/" + launcherUnit: 0o644,
	} {
		info, err := os.Lstat(name)
		if err != nil {
			l.Error(err)
			continue
		}
		if ownerOf(info) != 0 || info.Mode().Perm() != mode {
			l.Errorf("%s is user %d's, %v", name, ownerOf(info), info.Mode())
		}
	}
	for name, mode := range map[string]fs.FileMode{"key": 0o600, "credential": 0o600, "audit.jsonl": 0o644} {
		info, err := os.Lstat(filepath.Join(state, name))
		if err != nil {
			l.Error(err)
			continue
		}
		if uid := run(l, "id", "-u", "hanzo-link"); fmt.Sprint(ownerOf(info)) != uid || info.Mode().Perm() != mode {
			l.Errorf("%s is user %d's, %v", name, ownerOf(info), info.Mode())
		}
	}
	pid := run(l, "systemctl", "show", "-P", "MainPID", agentUnit)
	if user := run(l, "ps", "-o", "user=", "-p", pid); user != "hanzo-link" {
		l.Errorf("the agent runs as %s", user)
	}
	// No session of a person's is anywhere that the agent could have it from.
	token := read(l, data+"/token")
	for _, name := range []string{filepath.Join(state, "link.json"), filepath.Join(state, "credential"), "/proc/" + pid + "/environ", "/proc/" + pid + "/cmdline"} {
		if strings.Contains(read(l, name), token) {
			l.Errorf("%s holds the person's token", name)
		}
	}
	var fresh []string
	for _, s := range l.listening() {
		if !slices.Contains(before, s) {
			fresh = append(fresh, s)
		}
	}
	if len(fresh) != 1 || !strings.HasSuffix(fresh[0], " /run/hanzo-link/launcher.sock") {
		l.Errorf("new sockets listen: %v", fresh)
	}
	for _, user := range []string{"hanzo-link", "hanzo-work", "nobody"} {
		if out, err := output("setpriv", "--reuid="+user, "--regid="+run(l, "id", "-g", user), "--clear-groups", "sh", "-c", "echo x >> "+policy.Path); err == nil {
			l.Errorf("%s writes the policy: %s", user, out)
		}
	}
	// The credential opens this node's routes and nothing else.
	node := &api.Client{Base: cloud, Token: func() (string, error) { return read(l, filepath.Join(state, "credential")), nil }}
	for name, call := range map[string]func() error{
		"lists the nodes": func() error { _, err := node.Workers(l.Context()); return err },
		"lists the runs":  func() error { _, err := node.Runs(l.Context(), api.RunQuery{}); return err },
		"enqueues": func() error {
			_, err := node.Enqueue(l.Context(), api.Enqueue{Node: l.id, Kind: policy.TrainFit, Input: canon.Raw(`{}`)})
			return err
		},
		"claims for another": func() error {
			_, err := node.Claim(l.Context(), "another", api.Claim{Key: read(l, filepath.Join(state, "key")), Wait: 1, Running: []api.Running{}})
			return err
		},
	} {
		if p, ok := errors.AsType[*api.Problem](call()); !ok || p.Status != http.StatusForbidden {
			l.Errorf("the node's credential %s: %v", name, p)
		}
	}
}

func (l *linked) again() {
	installed := func() (all []string) {
		for _, dir := range []string{lib, systemd.UnitDir, filepath.Dir(policy.Path), systemd.SysusersDir, systemd.TmpfilesDir} {
			entries, err := os.ReadDir(dir)
			if err != nil {
				l.Fatal(err)
			}
			for _, e := range entries {
				info, err := e.Info()
				if err != nil {
					l.Fatal(err)
				}
				all = append(all, fmt.Sprint(dir, "/", e.Name(), info.ModTime(), info.Sys().(*syscall.Stat_t).Ino))
			}
		}
		return all
	}
	files, pid := installed(), run(l, "systemctl", "show", "-P", "MainPID", launcherUnit)
	began := time.Now()
	out := l.succeeds("link")
	l.Logf("in %.2f s, emulated:\n%s", time.Since(began).Seconds(), out)
	if now := installed(); !slices.Equal(now, files) {
		l.Errorf("files changed:\n%v\n%v", files, now)
	}
	if now := run(l, "systemctl", "show", "-P", "MainPID", launcherUnit); now != pid {
		l.Errorf("the launcher was restarted")
	}
	if !strings.Contains(out, policy.TrainFit) {
		l.Errorf("it does not say what of %s", policy.TrainFit)
	}
	until(l, "the node is online", func() bool { return l.worker().Status == api.Online })
}

func (l *linked) denied() {
	for _, kind := range []string{policy.TrainFit, policy.EngineServe, policy.StudioRender, policy.FnRun} {
		input := canon.Raw(`{}`)
		if kind == policy.TrainFit {
			hash := strings.Repeat("0", 64)
			input = canon.Raw(fmt.Sprintf(`{"stage":%q,"base":%q,"memory":67108864,"cpus":1,"disk":1048576,"vram":0,"gpus":[],"maxSec":60}`, hash, hash))
		}
		_, err := l.org.Enqueue(l.Context(), api.Enqueue{Node: l.id, Kind: kind, Input: input})
		if p, ok := errors.AsType[*api.Problem](err); !ok || p.Status != http.StatusForbidden || p.Code != api.Denied || p.Rule != "kind" {
			l.Errorf("%s: %v", kind, err)
		}
	}
	out, status := l.hanzo("run", l.id, "--kind", policy.TrainFit, "--input", l.job(filepath.Join(payload, "lesson/stage")))
	if status == 0 || !strings.Contains(out, "kind") {
		l.Errorf("hanzo run: status %d, %s", status, out)
	}
}

func (l *linked) allow() {
	if out, status := l.command(exec.Command("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", bin+"/hanzo", "policy", "allow", policy.TrainFit)); status == 0 {
		l.Errorf("anybody changes the policy: %s", out)
	}
	l.Log(l.succeeds("policy", "allow", policy.TrainFit, "--memory", "1GiB", "--cpus", "2", "--disk", "256MiB"))
	l.Log(l.succeeds("policy", "show"))
	l.Log(l.succeeds("status"))
	out, status := l.hanzo("doctor")
	l.Logf("doctor: status %d\n%s", status, out)
	if status != 0 {
		l.Errorf("a doctor finds fault with a machine that works")
	}
	var last any
	until(l, "the cloud is offered train.fit", func() bool {
		w := l.worker()
		last = w
		return slices.Equal(w.Offers, []string{policy.TrainFit})
	}, &last)
}

func (l *linked) train() {
	ctx, end := context.WithCancel(l.Context())
	defer end()
	cmd := exec.CommandContext(ctx, bin+"/hanzo", "run", l.id, "--kind", policy.TrainFit, "--input", l.job(filepath.Join(payload, "lesson/stage")), "--follow")
	cmd.Env = person
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		l.Fatal(err)
	}
	var id string
	until(l, "the activity is listed", func() bool {
		all, err := l.org.Activities(l.Context(), api.ActivityQuery{Node: l.id})
		if err != nil {
			l.Fatal(err)
		}
		if len(all) == 0 {
			return false
		}
		id = all[0].Activity
		return true
	})
	l.becomes(id, activity.Ready)
	sandboxed(l)
	l.arrives(id)

	// The cloud goes away. The run neither waits for it nor ends by it.
	run(l, "systemctl", "stop", "cloud.service")
	dir := filepath.Join(state, "run", id)
	for deadline := time.Now().Add(5 * patience); ; time.Sleep(100 * time.Millisecond) { // floating point is slow here
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			break
		}
		if time.Now().After(deadline) {
			l.Fatalf("it never ends\n%s", journalTail())
		}
	}
	kept := l.TempDir() // what it recorded, before the cloud has all of it
	run(l, "cp", "-a", filepath.Join(state, "spool", id)+"/.", kept)
	run(l, "systemctl", "start", "cloud.service")
	l.cloudAnswers()

	err := cmd.Wait()
	l.Logf("hanzo run --follow ended with %v:\n%s", err, out.String())
	if err != nil {
		l.Errorf("hanzo run --follow: %v", err)
	}
	a := l.becomes(id, activity.Stopped)
	if a.Reason != activity.Done || a.Output == nil || a.Output.Exit != 0 {
		l.Fatalf("it ended as %+v", a)
	}
	l.forgets(id)

	// The cloud's log is the machine's byte for byte, and its view the fold of it.
	s, err := spool.Attach(kept, "", "")
	if err != nil {
		l.Fatal(err)
	}
	runs, err := s.Runs()
	if err != nil || len(runs) != 2 {
		l.Fatalf("it recorded the runs %q, %v", runs, err)
	}
	for _, r := range runs {
		log, err := l.org.Events(l.Context(), r, 0, 0)
		if err != nil {
			l.Fatal(err)
		}
		i := 0
		for e, err := range s.Events(r) {
			if err != nil {
				l.Fatal(err)
			}
			if i >= len(log) || !bytes.Equal(log[i], e.JSON()) {
				l.Fatalf("event %d of %s is %s on the machine", i+1, r, e.JSON())
			}
			i++
		}
		if i != len(log) {
			l.Errorf("the cloud holds %d events of %s, the machine %d", len(log), r, i)
		}
		fold, err := s.Fold(r)
		if err != nil {
			l.Fatal(err)
		}
		there, err := l.org.Run(l.Context(), r)
		if err != nil {
			l.Fatal(err)
		}
		here := fold.View()
		here.Project, here.Reference, here.Visibility = there.Project, there.Reference, there.Visibility // the cloud's to fill
		if local, remote := marshal(l, here), marshal(l, there); local != remote {
			l.Errorf("the view of %s is\n%s on the cloud, and the fold\n%s", r, remote, local)
		}
	}
	inside, outside := weights(l, s, id), weights(l, lessonSpool(l), "outside")
	if inside != outside || inside == "" {
		l.Errorf("the weights are %s inside and %s outside", inside, outside)
	}
	if audit := read(l, filepath.Join(state, "audit.jsonl")); !strings.Contains(audit, id) || strings.Contains(audit, "sha256") {
		l.Errorf("the audit log is %s", audit)
	}
}

func marshal(l *linked, v any) string {
	l.Helper()
	text, err := canon.Marshal(v)
	if err != nil {
		l.Fatal(err)
	}
	return string(text)
}

// forgets waits until a record is sent whole and what was kept of it is gone.
func (l *linked) forgets(id string) {
	l.Helper()
	until(l, "the record of "+id+" is sent and forgotten", func() bool {
		left, err := os.ReadDir(filepath.Join(state, "spool", id))
		return err == nil && len(left) == 0
	})
}

// sandboxed looks at what runs as hanzo-work: with no network but a loopback.
func sandboxed(l *linked) {
	l.Helper()
	pids, _ := output("pgrep", "-u", "hanzo-work")
	for pid := range strings.FieldsSeq(pids) {
		if dev, err := os.ReadFile("/proc/" + pid + "/net/dev"); err == nil && strings.Contains(string(dev), ":") && strings.Count(string(dev), ":") != 1 {
			l.Errorf("a workload has these interfaces:\n%s", dev)
		}
	}
}

// lessonSpool is the record of the same stage, trained outside of this machine.
func lessonSpool(l *linked) *spool.Spool {
	l.Helper()
	dir := filepath.Join(l.TempDir(), "spool") // the payload is read-only
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(payload, "lesson/spool"))); err != nil {
		l.Fatal(err)
	}
	s, err := spool.Open(dir, "", "")
	if err != nil {
		l.Fatal(err)
	}
	return s
}

// weights is the address of the last checkpoint of a run.
func weights(l *linked, s *spool.Spool, run string) (sha canon.SHA256) {
	l.Helper()
	for e, err := range s.Events(run) {
		if err != nil {
			l.Fatal(err)
		}
		if c, ok := e.Body.(event.CheckpointCreated); ok {
			sha = c.ArtifactSHA256
		}
	}
	return sha
}

func (l *linked) cancel() {
	id := l.long()
	if _, err := l.org.Cancel(l.Context(), id); err != nil {
		l.Fatal(err)
	}
	if a := l.becomes(id, activity.Stopped); a.Reason != activity.Cancel {
		l.Errorf("it stopped as %s", a.Reason)
	}
	checkNothingLeft(l)
}

func (l *linked) killed() {
	id := l.long()
	l.arrives(id)
	pid := run(l, "systemctl", "show", "-P", "MainPID", agentUnit)
	n, err := strconv.Atoi(pid)
	if err != nil {
		l.Fatal(err)
	}
	if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
		l.Fatal(err)
	}
	if a := l.becomes(id, activity.Failed); a.Error.Code != activity.Lost {
		l.Errorf("it failed with %+v", a.Error)
	}
	checkNothingLeft(l)
	until(l, "the node is online and offers", func() bool {
		w := l.worker()
		return w.Status == api.Online && len(w.Offers) == 1 && len(w.Workloads) == 0
	})
	l.forgets(id) // what was recorded until then is not lost
}

func (l *linked) policyStops() {
	id := l.long()
	began := time.Now()
	l.succeeds("policy", "deny", policy.TrainFit)
	a := l.becomes(id, activity.Stopped)
	l.Logf("%.1f s from the command to the cloud's record of the stop, emulated", time.Since(began).Seconds())
	if a.Reason != activity.Policy {
		l.Errorf("it stopped as %s", a.Reason)
	}
	checkNothingLeft(l)
	until(l, "the cloud is offered nothing", func() bool { return len(l.worker().Offers) == 0 })
	l.succeeds("policy", "allow", policy.TrainFit)
	until(l, "the cloud is offered train.fit", func() bool { return len(l.worker().Offers) == 1 })
}

func (l *linked) feed() {
	events, err := l.org.WorkloadEvents(l.Context(), 0, 0)
	if err != nil {
		l.Fatal(err)
	}
	all, err := l.org.Activities(l.Context(), api.ActivityQuery{})
	if err != nil {
		l.Fatal(err)
	}
	for _, a := range all {
		var names []string
		for _, e := range events {
			if e.Activity == a.Activity {
				names = append(names, e.Name)
			}
		}
		want := []string{api.WorkloadStarted, api.WorkloadStopped}
		if a.State == activity.Failed {
			want[1] = api.WorkloadFailed
		}
		if !slices.Equal(names, want) {
			l.Errorf("%s, %s: %v", a.Activity, a.State, names)
		}
	}
	if n := len(slices.DeleteFunc(events, func(e api.WorkloadEvent) bool { return e.Name != api.WorkloadDenied })); n < 4 {
		l.Errorf("%d denials", n)
	}
}

func (l *linked) unlink() {
	id := l.long()
	l.Log(l.succeeds("unlink"))
	if a := l.activity(id); a.State != activity.Stopped || a.Reason != activity.Unlink {
		l.Errorf("its workload is %s, %s, %+v", a.State, a.Reason, a.Error)
	}
	checkNothingLeft(l)
	all, err := l.org.Workers(l.Context())
	if err != nil || len(all) != 0 {
		l.Errorf("the cloud lists %+v, %v", all, err)
	}
	for _, name := range append(slices.Clone(systemd.Units), "hanzo-link.service") {
		if _, err := os.Lstat(filepath.Join(systemd.UnitDir, name)); !errors.Is(err, fs.ErrNotExist) {
			l.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{filepath.Join(state, "credential"), "/run/hanzo-link/launcher.sock", lib + "/hanzo-launcher"} {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			l.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{policy.Path, filepath.Join(state, "audit.jsonl"), filepath.Join(state, "store/trees")} {
		if _, err := os.Lstat(name); err != nil {
			l.Error(err)
		}
	}
	if audit := read(l, filepath.Join(state, "audit.jsonl")); !strings.Contains(audit, `"unlink"`) {
		l.Errorf("the audit log does not say so: %s", audit)
	}
	if failed := run(l, "systemctl", "list-units", "--failed", "--no-legend", "--plain"); strings.Contains(failed, "hanzo") {
		l.Errorf("units failed: %s", failed)
	}
}

func (l *linked) relink() {
	l.Log(l.succeeds("unlink"))
	l.Log(l.succeeds("link"))
	until(l, "the node is online and offers what the policy has admitted all along", func() bool {
		w := l.worker()
		return w.Status == api.Online && slices.Equal(w.Offers, []string{policy.TrainFit})
	})
	l.succeeds("unlink")
}
