//go:build linux

package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
	"golang.org/x/sys/unix"
)

// forget asks for a spool to be emptied and returns what is answered to it.
func (a *agent) forget(id string) ipc.Reply {
	a.Helper()
	a.must(a.conn.WriteRequest(ipc.Request{Forget: &ipc.Forget{Activity: id}}))
	return a.reply()
}

// forgotten has a spool emptied.
func (a *agent) forgotten(id string) {
	a.Helper()
	if r := a.forget(id); r.Forgotten == nil || r.Forgotten.Activity != id {
		a.Fatalf("%s is not forgotten: %+v\n%s", id, r, a.log)
	}
}

// earlier makes a spool of an earlier life, with what make puts there.
func (r *rig) earlier(id string, make func(dir string)) {
	r.Helper()
	dir := filepath.Join(r.Spool, id)
	r.must(os.MkdirAll(dir, 0o700), os.Chown(r.Spool, 0, int(agentUser.GID)), os.Chmod(r.Spool, 0o750))
	r.must(os.Chown(dir, int(workUser.UID), int(agentUser.GID)), os.Chmod(dir, os.ModeSetgid|0o770))
	make(dir)
}

// roomFor asks for a start with so much disk, which the policy's cap would admit.
func (a *agent) roomFor(disk int) (*activity.Envelope, ipc.Reply) {
	a.Helper()
	in := a.input("exit", 0)
	in["disk"] = disk
	s := a.envelope(in)
	return s, a.ask(s)
}

func capDisk(bytes int) map[string]any {
	return map[string]any{"caps": map[string]any{"vram": 0, "memory": 1 << 30, "cpus": 16, "disk": bytes}}
}

// TestForget: whatever a workload leaves in its spool is gone once the agent says that
// it may go; the directory stays, empty and root's, and its activity runs no second
// time.
func TestForget(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	outside := filepath.Join(a.dir, "outside")
	a.must(os.WriteFile(outside, []byte("stays"), 0o600))
	s := a.start("litter", 64)
	a.ended(s)
	dir := filepath.Join(a.Spool, s.Activity)
	a.must(os.Symlink(a.dir, filepath.Join(dir, "out")))
	if left, err := os.ReadDir(dir); err != nil || len(left) < 6 {
		t.Fatalf("it left %v, %v", left, err)
	}
	a.forgotten(s.Activity)
	var st unix.Stat_t
	left, err := os.ReadDir(dir)
	a.must(err, unix.Lstat(dir, &st))
	if len(left) > 0 || st.Uid != 0 || st.Gid != agentUser.GID || st.Mode&0o777 != 0o750 {
		t.Errorf("%s holds %v, of user %d, group %d and mode %o", dir, left, st.Uid, st.Gid, st.Mode)
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "stays" {
		t.Errorf("what a link pointed to: %q, %v", text, err)
	}
	a.refused(a.ask(s), activity.StartFailed, "has run before")
	a.forgotten(s.Activity)
	a.forgotten("act_that_never_was")
	for _, path := range []string{s.Activity, "act_that_never_was"} {
		if _, err := os.Lstat(filepath.Join(a.Spool, path)); (err == nil) != (path == s.Activity) {
			t.Errorf("%s afterwards: %v", path, err)
		}
	}
}

// TestForgetWhatRuns: the spool of work that runs stays as it is.
func TestForgetWhatRuns(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	s := a.start("sleep", 0)
	a.running(s)
	a.refused(a.forget(s.Activity), activity.Denied, "runs")
	if _, err := os.Lstat(filepath.Join(a.Spool, s.Activity, "running")); err != nil {
		t.Error(err)
	}
	a.stop(s, activity.Cancel)
	a.ended(s)
	a.forgotten(s.Activity)
}

// TestForgetNothingElse: what is no activity's is not even looked at.
func TestForgetNothingElse(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	for _, id := range []string{"", ".", "..", ".next", "../run", "/etc", "a/b", strings.Repeat("a", 300)} {
		if err := a.conn.WriteRequest(ipc.Request{Forget: &ipc.Forget{Activity: id}}); err == nil {
			t.Errorf("%q was written", id)
		}
		_, err := a.raw.Write([]byte(`{"forget":{"activity":"` + id + `"}}`))
		a.must(err)
		a.refused(a.reply(), activity.Schema, "activity")
	}
}

// TestKeptSpoolsCount: what ended work has left counts against the owner's cap, until
// it is forgotten.
func TestKeptSpoolsCount(t *testing.T) {
	r := newRig(t)
	r.policy(capDisk(8 << 20))
	a := r.serve().connect().offered()
	s := a.start("litter", 3<<10) // 3 MiB, of 4 that it may
	a.ended(s)
	_, refused := a.roomFor(6 << 20)
	a.refused(refused, activity.Capacity, "hanzo status")
	if second, reply := a.roomFor(4 << 20); true {
		a.started(reply, second)
		a.ended(second)
	}
	a.forgotten(s.Activity)
	third, reply := a.roomFor(6 << 20)
	a.started(reply, third)
	a.ended(third)
}

// TestKeptOfAnEarlierLife: what was there before the launcher counts as well.
func TestKeptOfAnEarlierLife(t *testing.T) {
	r := newRig(t)
	r.policy(capDisk(8 << 20))
	r.earlier("act_old", func(dir string) {
		r.must(os.WriteFile(filepath.Join(dir, "big"), make([]byte, 3<<20), 0o600))
	})
	r.earlier("act_empty", func(string) {})
	a := r.serve().connect().offered()
	_, refused := a.roomFor(6 << 20)
	a.refused(refused, activity.Capacity, "hanzo status")
	a.forgotten("act_old")
	s, reply := a.roomFor(6 << 20)
	a.started(reply, s)
	a.ended(s)
}

// TestKeptRemovedByTheOwner: what the owner has removed counts no more, once it kept a
// start from being admitted.
func TestKeptRemovedByTheOwner(t *testing.T) {
	r := newRig(t)
	r.policy(capDisk(8 << 20))
	var big string
	r.earlier("act_old", func(dir string) {
		big = filepath.Join(dir, "big")
		r.must(os.WriteFile(big, make([]byte, 3<<20), 0o600))
	})
	a := r.serve().connect().offered()
	_, refused := a.roomFor(6 << 20)
	a.refused(refused, activity.Capacity, "hanzo status")
	r.must(os.Remove(big))
	a.until("a start is admitted", func() bool {
		s, reply := a.roomFor(6 << 20)
		if reply.Refused != nil {
			a.refused(reply, activity.Capacity, "")
			return t.Failed()
		}
		a.started(reply, s)
		a.ended(s)
		return true
	})
}

// TestKeptUncountable: one that is nested deeper than is counted keeps everything from
// starting, for nobody knows what it holds; it can be forgotten all the same.
func TestKeptUncountable(t *testing.T) {
	r := newRig(t)
	r.earlier("act_deep", func(dir string) {
		here, err := os.Open(dir)
		r.must(err)
		for range 3000 { // its path is longer than a path may be
			r.must(unix.Mkdirat(int(here.Fd()), "deeper-and-deeper", 0))
			next, err := unix.Openat(int(here.Fd()), "deeper-and-deeper", unix.O_RDONLY|unix.O_DIRECTORY, 0)
			r.must(err, here.Close())
			here = os.NewFile(uintptr(next), "deeper")
		}
		r.must(here.Close())
	})
	a := r.serve().connect().offered()
	_, refused := a.roomFor(4 << 20)
	a.refused(refused, activity.Capacity, "hanzo status")
	a.forgotten("act_deep")
	s, reply := a.roomFor(4 << 20)
	a.started(reply, s)
	a.ended(s)
}

// TestKeptOfAKilledSession: what is left by work that was killed with its agent counts.
func TestKeptOfAKilledSession(t *testing.T) {
	r := newRig(t)
	r.policy(capDisk(8 << 20))
	r.serve()
	a := r.connect().offered()
	s := a.start("sleep", 0)
	a.running(s)
	r.must(os.WriteFile(filepath.Join(r.Spool, s.Activity, "big"), make([]byte, 3<<20), 0o600))
	a.end()
	b := r.connect().offered()
	_, refused := b.roomFor(6 << 20)
	b.refused(refused, activity.Capacity, "hanzo status")
	b.forgotten(s.Activity)
	next, reply := b.roomFor(6 << 20)
	b.started(reply, next)
	b.ended(next)
}
