//go:build linux

package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/sandbox"
	"golang.org/x/sys/unix"
)

// What a workload is given is what policy.TrainFitInput says, to the word.
func TestTrainFitIsGivenWhatItsKindSays(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	s := a.start("look", 0)
	if len(a.files) != 1 {
		t.Errorf("%d descriptors came with started, want the pidfd", len(a.files))
	}
	e := a.ended(s)
	if e.State != activity.Stopped || e.Reason != activity.Done || e.Exit != 0 || e.Stdout == 0 || e.Stderr != 0 || len(a.files) != 1 {
		t.Fatalf("ended as %+v with %d files", e, len(a.files))
	}
	out, err := io.ReadAll(a.files[0])
	if err != nil || len(out) != e.Stdout {
		t.Fatalf("read %d bytes of output (%v), want %d", len(out), err, e.Stdout)
	}
	if _, err := a.files[0].WriteAt([]byte("x"), 0); err == nil {
		t.Error("the output's memory file can be written")
	}
	var got struct {
		Args, Env     []string
		FDs, UID, GID int
		Dir           string
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(a.Run, s.Activity)
	args := []string{"train", "fit", "/in/stage/stage.json", "--run", s.Activity, "--spool", "/spool",
		"--data", run + "/data", "--builds", run + "/builds", "--runs", run + "/runs", "--threads", "1", "--json"}
	env := []string{"PATH=/usr/bin:/bin", "HOME=" + run, "TMPDIR=" + run, "LANG=C.UTF-8"}
	if !slices.Equal(got.Args, args) {
		t.Errorf("arguments\n%q, want\n%q", got.Args, args)
	}
	if !slices.Equal(got.Env, env) {
		t.Errorf("environment\n%q, want\n%q", got.Env, env)
	}
	if got.UID != int(workUser.UID) || got.GID != int(workUser.GID) || got.Dir != run {
		t.Errorf("it ran as %d:%d in %s", got.UID, got.GID, got.Dir)
	}
	// The spool is kept and the agent's group can read all of it, nobody else any.
	for name, want := range map[string]uint32{
		"": unix.S_IFDIR | unix.S_ISGID | 0o770, "sub": unix.S_IFDIR | unix.S_ISGID | 0o770, "log": unix.S_IFREG | 0o660,
	} {
		var st unix.Stat_t
		a.must(unix.Lstat(filepath.Join(a.Spool, s.Activity, name), &st))
		if st.Mode != want || st.Uid != workUser.UID || st.Gid != agentUser.GID {
			t.Errorf("spool/%s has mode %o and owner %d:%d, want %o and %d:%d", name, st.Mode, st.Uid, st.Gid, want, workUser.UID, agentUser.GID)
		}
	}
	if got := a.try("read", filepath.Join(a.Spool, s.Activity, "log"), ""); got != "done" {
		t.Errorf("the agent cannot read the spool: %s", got)
	}
	if _, err := os.Stat(run); err == nil {
		t.Errorf("the run directory is left")
	}
}

// The spool directory of the next activity waits where the agent cannot look in.
func TestSpoolDirectoryIsMadeAheadOfNeed(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	for range 2 {
		var ahead, given unix.Stat_t
		a.until("the next one is there", func() bool { return unix.Lstat(filepath.Join(a.Spool, spare), &ahead) == nil })
		if ahead.Uid != 0 || ahead.Mode != unix.S_IFDIR|0o700 {
			t.Errorf("the next one has owner %d and mode %o", ahead.Uid, ahead.Mode)
		}
		s := a.start("exit", 0)
		a.must(unix.Lstat(filepath.Join(a.Spool, s.Activity), &given))
		if given.Ino != ahead.Ino || given.Uid != workUser.UID || given.Mode != unix.S_IFDIR|unix.S_ISGID|0o770 {
			t.Errorf("%s was given %+v, want the one that was ahead, %+v", s.Activity, given, ahead)
		}
		a.ended(s)
	}
}

func TestEndings(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	s := a.start("exit", 4)
	e := a.ended(s)
	if e.State != activity.Failed || e.Code != activity.Crash || e.Exit != 4 || !strings.Contains(e.Message, "status 4") || !strings.Contains(e.Message, "that did not go well") {
		t.Errorf("exit 4 ended as %+v", e)
	}

	s = a.start("exit", 3)
	if e = a.ended(s); e.State != activity.Stopped || e.Reason != activity.Done || e.Exit != 3 {
		t.Errorf("a run whose gate failed ended as %+v", e)
	}

	s = a.start("talk", 3<<20)
	e = a.ended(s)
	if e.State != activity.Stopped || e.Reason != activity.Done || e.Stdout != 1<<20 || !e.Truncated {
		t.Errorf("3 MiB of output ended as %+v", e)
	}

	s = a.start("sleep", 0)
	a.running(s)
	a.stop(s, activity.Unlink)
	a.stop(s, activity.Cancel) // a second reason changes nothing
	e = a.ended(s)
	if e.State != activity.Stopped || e.Reason != activity.Unlink {
		t.Errorf("stop ended as %+v", e)
	}
}

// Three stops take their ten seconds, side by side, and the agent is served meanwhile.
func TestAgentIsServedWhileWorkIsStopped(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the ten seconds that a stop may")
	}
	a := newRig(t).serve().connect().offered()
	var stubborn []*activity.Envelope
	for range 3 {
		stubborn = append(stubborn, a.start("stubborn", 0))
	}
	for _, s := range stubborn {
		a.running(s)
		a.stop(s, activity.Cancel)
	}
	first := stubborn[0]
	a.stop(first, activity.Unlink) // a second reason changes nothing
	a.started(a.ask(first), first)
	a.ended(a.start("exit", 0)) // beside those that are being stopped, which still count
	next := a.start("sleep", 0)
	a.refused(a.ask(a.envelope(a.input("exit", 0))), activity.Denied, "concurrency")
	left := map[string]bool{}
	for _, s := range stubborn {
		left[s.Activity] = true
	}
	for range stubborn {
		e := a.reply().Ended
		if e == nil || !left[e.Activity] || e.State != activity.Stopped || e.Reason != activity.Cancel || e.Signal != 9 {
			t.Fatalf("ended as %+v", e)
		}
		delete(left, e.Activity)
	}
	a.stop(next, activity.Idled)
	a.ended(next)
}

// A workload that lives for maxSec is stopped by the launcher's own clock.
func TestAttempt79OutliveMaxSec(t *testing.T) {
	long := second
	t.Cleanup(func() { second = long }) // after the launcher has ended
	second = 1e6                        // a millisecond
	a := newRig(t).serve().connect().offered()
	input := a.input("sleep", 0)
	input["maxSec"] = 60
	s := a.envelope(input)
	a.started(a.ask(s), s)
	if e := a.ended(s); e.State != activity.Stopped || e.Reason != activity.Max {
		t.Errorf("ended as %+v", e)
	}
}

// The stage for the next start is made beside the work, and holds up nothing of it.
func TestStageThatHangsKeepsNoWorkFromItsStop(t *testing.T) {
	compiler, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no compiler here to build a stage that hangs")
	}
	r := newRig(t)
	stage := filepath.Join(r.Lib, "hanzo-stage")
	r.must(os.Remove(stage))
	build := exec.Command(compiler, "build", "-o", stage, "./testdata/stage")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r.pin()
	a := r.serve().connect().offered()
	hang := stage + ".hang"
	a.must(os.WriteFile(hang, nil, 0o644))
	s := a.start("sleep", 0)
	a.running(s)
	groups := func() int {
		all, _ := filepath.Glob(filepath.Join(a.Group, workName, "*/cgroup.procs"))
		return len(all)
	}
	a.until("the next stage is begun", func() bool { return groups() == 2 })
	a.stop(s, activity.Cancel)
	if e := a.ended(s); e.Reason != activity.Cancel {
		t.Errorf("ended as %+v", e)
	}
	if groups() != 1 {
		t.Error("the work was stopped only when the stage had been given up")
	}
}

// Who asks too late for the end of what is over already is told how that ended.
func TestOutcomeOfAStopThatCameTooLate(t *testing.T) {
	for _, tt := range []struct {
		exit   sandbox.Exit
		state  activity.State
		reason activity.Reason
		code   activity.Code
	}{
		{sandbox.Exit{Cause: sandbox.Stopped, Code: 130}, activity.Stopped, activity.Cancel, ""},
		{sandbox.Exit{Cause: sandbox.Exited}, activity.Stopped, activity.Done, ""},
		{sandbox.Exit{Cause: sandbox.Exited, Code: 2}, activity.Failed, "", activity.Crash},
		{sandbox.Exit{Cause: sandbox.OOM, Code: -1}, activity.Failed, "", activity.Capacity},
	} {
		e := outcome("act_1", activity.Cancel, tt.exit)
		if e.State != tt.state || e.Reason != tt.reason || e.Code != tt.code {
			t.Errorf("%+v is %+v", tt.exit, e)
		}
	}
}

func TestStartPastItsDeadlineIsRefused(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	s := a.envelope(a.input("sleep", 0))
	s.Deadline = "2026-01-01T00:00:00Z"
	a.refused(a.ask(s), activity.TooLate, "2026-01-01")
	s = a.envelope(a.input("sleep", 0))
	s.Deadline = "2126-01-01T00:00:00+01:00"
	a.refused(a.ask(s), activity.Schema, "UTC")
	s.Deadline = "tomorrow"
	a.refused(a.ask(s), activity.Schema, "UTC")
}

// Every change of the file that no longer admits what runs stops it.
func TestPolicyChangeStopsWork(t *testing.T) {
	for name, change := range map[string]map[string]any{
		"kinds":  {"kinds": []string{}},
		"orgs":   {"orgs": []string{"other"}},
		"caps":   {"caps": map[string]any{"memory": 1 << 20, "cpus": 16, "disk": 64 << 20}},
		"maxSec": {"maxSec": 60},
	} {
		t.Run(name, func(t *testing.T) {
			a := newRig(t).serve().connect().offered()
			s := a.start("sleep", 0)
			a.policy(change)
			if e := a.ended(s); e.State != activity.Stopped || e.Reason != activity.Policy {
				t.Errorf("ended as %+v", e)
			}
		})
	}
	t.Run("broken", func(t *testing.T) {
		a := newRig(t).serve().connect().offered()
		s := a.start("sleep", 0)
		a.write(a.Policy, map[string]any{"kinds": []string{policy.TrainFit}, "surprise": 1})
		if e := a.ended(s); e.Reason != activity.Policy {
			t.Errorf("ended as %+v", e)
		}
		a.refused(a.ask(a.envelope(a.input("sleep", 0))), activity.Denied, "surprise")
		if n := strings.Count(a.log.String(), "the policy admits nothing"); n != 1 {
			t.Errorf("the reason was logged %d times, want once", n)
		}
	})
	t.Run("removed", func(t *testing.T) {
		a := newRig(t).serve().connect().offered()
		s := a.start("sleep", 0)
		a.must(os.Remove(a.Policy))
		if e := a.ended(s); e.Reason != activity.Policy {
			t.Errorf("ended as %+v", e)
		}
	})
}

// A start or a look while the owner's editor writes finds half a file. It is the
// watch that says when that is what the owner means.
// TestPolicyChangeIsTold: what may be started is told again when the policy changes.
func TestPolicyChangeIsTold(t *testing.T) {
	r := newRig(t).serve()
	a := r.connect()
	if ready := a.ready(); len(ready.Kinds) != 1 {
		t.Fatalf("ready with %+v", ready)
	}
	r.policy(map[string]any{"kinds": []string{}})
	for ready := a.ready(); len(ready.Kinds) > 0 || len(ready.Reasons) != 1; {
		ready = a.ready()
	}
	r.policy(nil)
	for ready := a.ready(); len(ready.Kinds) != 1 || len(ready.Reasons) > 0; {
		ready = a.ready()
	}
}

func TestPolicyHalfWrittenStopsNothing(t *testing.T) {
	r := newRig(t)
	_, sum, err := policy.Load(r.Policy)
	r.must(err, os.WriteFile(r.Policy, []byte(`{"kinds":`), 0o644))
	j := &job{stop: make(chan activity.Reason, 1)} // which an earlier policy admitted
	l := &launcher{Config: r.Config, told: sum, jobs: []*job{j}}
	l.recheck()
	if j.ending {
		t.Error("work was stopped")
	}
	l.apply(reading{err: errors.New("half a file")})
	if !j.ending || <-j.stop != activity.Policy {
		t.Error("work goes on under a policy that stays broken")
	}
}

// An agent that asks without end does not keep the owner waiting.
func TestPolicyGoesBeforeTheAgent(t *testing.T) {
	for range 10 { // the order of a select is random
		r := newRig(t)
		r.must(os.Remove(r.Policy))
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		r.must(err)
		defer unix.Close(pair[1])
		f := os.NewFile(uintptr(pair[0]), "connection")
		conn, err := net.FileConn(f)
		r.must(err, f.Close())
		peer, err := ipc.PeerOf(conn.(*net.UnixConn))
		r.must(err)
		ctx, cancel := context.WithCancel(t.Context())
		asked := make(chan incoming)
		s := &session{conn: ipc.NewConn(conn.(*net.UnixConn)), peer: peer, ctx: ctx, cancel: cancel, requests: asked}
		l := &launcher{
			Config: r.Config, quiet: newQuiet(r.Config.Log), session: s,
			conns: make(chan *net.UnixConn), policies: make(chan reading, 1), events: make(chan event),
		}
		l.Notify = func(string) {}
		l.policies <- reading{err: errors.New("the owner's word")}
		run, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.run(run) }()
		asked <- incoming{request: ipc.Request{Stop: &ipc.Stop{Activity: "act_1", Reason: activity.Cancel}}}
		stop()
		r.must(<-ended)
		log := r.log.String()
		if word, answer := strings.Index(log, "the owner's word"), strings.Index(log, "no such activity"); word < 0 || word > answer {
			t.Errorf("the agent's packet went first:\n%s", log)
		}
	}
}

// When there is room for fewer, the newest go.
func TestPolicyChangeStopsTheNewest(t *testing.T) {
	for name, change := range map[string]map[string]any{
		"concurrency": {"concurrency": 1},
		"caps":        {"caps": map[string]any{"memory": 200 << 20, "cpus": 16, "disk": 64 << 20}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newRig(t).serve().connect().offered()
			first, second := a.start("sleep", 0), a.start("sleep", 0)
			a.running(first)
			a.policy(change)
			if e := a.ended(second); e.Reason != activity.Policy {
				t.Errorf("ended as %+v", e)
			}
			a.stop(first, activity.Cancel)
			if e := a.ended(first); e.Reason != activity.Cancel {
				t.Errorf("the older one ended as %+v", e)
			}
		})
	}
}

func TestClosingTheConnectionKillsAllWork(t *testing.T) {
	r := newRig(t).serve()
	a := r.connect().offered()
	for range 3 {
		a.running(a.start("daemon", 0)) // with a process in another session
	}
	a.raw.Close()
	r.nothingRuns()
	// The next agent is served once nothing of the last one's is left.
	b := r.connect().offered()
	// The one that has no activity's name is the parked stage's.
	if left, _ := filepath.Glob(filepath.Join(r.Run, "act_*")); len(left) > 0 {
		t.Errorf("run directories are left: %v", left)
	}
	b.start("sleep", 0)
}

func TestDeathOfTheAgentKillsAllWork(t *testing.T) {
	r := newRig(t).serve()
	a := r.connect().offered()
	a.running(a.start("daemon", 0))
	a.must(a.cmd.Process.Kill())
	a.cmd.Wait()
	// This test still holds a copy of its connection: that does not keep the work.
	r.nothingRuns()
	a.closed()
	r.connect().offered()
}

func TestOneAgentAtATime(t *testing.T) {
	r := newRig(t).serve()
	a := r.connect().offered()
	b := r.connect()
	b.refused(b.reply(), activity.Denied, fmt.Sprintf("process %d is connected", a.cmd.Process.Pid))
	b.closed()
	a.start("sleep", 0) // the first goes on
}

func TestStopOfTheLauncherStopsAllWork(t *testing.T) {
	r := newRig(t).serve()
	a := r.connect().offered()
	s := a.start("sleep", 0)
	a.running(s)
	r.cancel()
	if e := a.ended(s); e.State != activity.Stopped || e.Reason != activity.Cancel {
		t.Errorf("ended as %+v", e)
	}
	a.closed()
	r.nothingRuns()
}

func TestLeftoversAreEnded(t *testing.T) {
	r := newRig(t)
	left := filepath.Join(r.Group, workName, "work-7")
	r.must(os.MkdirAll(left, 0o755), os.MkdirAll(filepath.Join(r.Run, "act_old/deep"), 0o700))
	old := r.puppet(stranger{workUser, workName + "/work-7", 0})
	r.serve()
	if err := old.cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process of an earlier life: %v", err)
	}
	r.connect().offered()
	for _, path := range []string{left, filepath.Join(r.Run, "act_old")} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
}

// What keeps work from being started is said when the agent connects, and again
// when it asks all the same.
func TestNothingIsOfferedWithout(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*rig)
		words  string
		code   activity.Code
	}{
		"policy":      {func(r *rig) { r.must(os.Remove(r.Policy)) }, "policy.json", activity.Denied},
		"kinds":       {func(r *rig) { r.policy(map[string]any{"kinds": []string{}}) }, "admits no kind", activity.Denied},
		"manifest":    {func(r *rig) { r.must(os.Remove(filepath.Join(r.Lib, ManifestName))) }, "manifest.json", activity.StartFailed},
		"stage":       {func(r *rig) { r.must(os.Remove(filepath.Join(r.Lib, "hanzo-stage"))) }, "hanzo-stage", activity.StartFailed},
		"binary":      {func(r *rig) { r.must(os.Remove(filepath.Join(r.Lib, "train"))) }, "train", activity.StartFailed},
		"controllers": {func(r *rig) { r.Controllers = []string{"cpu", "unheard"} }, "no controller", activity.StartFailed},
		"group":       {func(r *rig) { r.puppet(stranger{agentUser, "", 0}) }, "must move to its child agent", activity.StartFailed},
		"forged": {func(r *rig) {
			path := filepath.Join(r.Group, workName)
			r.must(os.Mkdir(path, 0o755), os.Chown(path, int(agentUser.UID), -1))
		}, "not root's alone", activity.StartFailed},
		"spool": {func(r *rig) {
			r.must(os.Mkdir(r.Spool, 0o755), os.Chown(r.Spool, int(agentUser.UID), -1))
		}, "not root's alone", activity.StartFailed},
		"run directory a link": {func(r *rig) { r.must(os.Symlink("/etc", r.Run)) }, "run", activity.StartFailed},
		// Who owns it could put a link in the run directory's place while it is swept.
		"state the agent's": {func(r *rig) { r.must(os.Chown(filepath.Dir(r.Run), int(agentUser.UID), -1)) }, "can replace", activity.StartFailed},
		"state not sticky":  {func(r *rig) { r.must(os.Chmod(filepath.Dir(r.Run), 0o771)) }, "can replace", activity.StartFailed},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c.change(r)
			a := r.serve().connect()
			ready := a.ready()
			if len(ready.Kinds) > 0 || !strings.Contains(strings.Join(ready.Reasons, "\n"), c.words) {
				t.Errorf("offers %q because %q, want nothing because of %q", ready.Kinds, ready.Reasons, c.words)
			}
			s := a.envelope(a.input("sleep", 0))
			if r := a.ask(s); r.Refused == nil || r.Refused.Code != c.code {
				t.Errorf("asked all the same: %+v %+v", r.Started, r.Refused)
			}
			if _, err := os.Stat(filepath.Join(r.Spool, s.Activity)); err == nil {
				t.Errorf("a spool directory is left of a start that was refused")
			}
			if name == "run directory a link" {
				os.Remove(r.Run)
			}
		})
	}
}

func TestFloodOfStartsIsPaced(t *testing.T) {
	a := newRig(t, func(c *Config) { c.Starts = Rate{Every: 1e12, Burst: 2} }).serve().connect().offered()
	for range 2 {
		a.ended(a.start("exit", 0))
	}
	a.refused(a.ask(a.envelope(a.input("exit", 0))), activity.Capacity, "more starts than 2")
}
