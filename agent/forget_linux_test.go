package agent

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/launcher/ipc"
)

// working is a machine with an activity that runs and has recorded three events.
func working(t *testing.T, c *cloud) (*machine, string) {
	t.Helper()
	m := newMachine(t, c)
	if err := os.Mkdir(m.Spool, 0o750); err != nil {
		t.Fatal(err)
	}
	m.start().online()
	return m, m.working()
}

// working has one more activity run, and record.
func (m *machine) working() string {
	m.Helper()
	act := m.cloud.enqueue("evo")
	m.cloud.becomes(act, activity.Ready)
	(&records{dir: m.Spool}).starts(m, act).begins(act)
	return act
}

// entry is what the journal has of an activity.
func (m *machine) entry(act string) (entry, error) {
	j := journal{filepath.Join(m.Dir, "activities"), m.parts.disk}
	return j.read(act)
}

func (m *machine) finishes(act string) {
	m.Helper()
	m.launcher.finish(&ipc.Ended{Activity: act, State: activity.Stopped, Reason: activity.Done})
	m.cloud.ended(act, "done")
}

// forgot reports whether the launcher was asked to empty a spool, and did.
func (l *launcher) hasForgotten(act string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.forgot, act)
}

// TestForget: the launcher is asked to empty the spool of an ended activity once the
// cloud has the whole record and not before, until it has; then nobody here knows the
// activity any more.
func TestForget(t *testing.T) {
	c := newCloud(t)
	var open atomic.Bool
	c.on("/events", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !open.Load() {
			api.Refuse(api.Unavailable, "not now").Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
	m, act := working(t, c)
	m.launcher.set(func() { m.launcher.unforgotten = 2 })
	m.finishes(act)
	until(t, "its record waits", func() bool { return m.now().Unsent == 1 })
	if m.launcher.hasForgotten(act) {
		t.Error("its spool was emptied before its record was sent")
	}
	open.Store(true)
	until(t, "its spool is emptied", func() bool { return m.launcher.hasForgotten(act) })
	c.arrives(act, 3)
	m.clean()
	if s := m.now(); s.Unsent != 0 || len(s.Kept) != 0 {
		t.Errorf("the status is %+v", s)
	}
}

// TestForgetAfterRestart: what was sent before the agent ended is not sent again, and
// its spool is emptied by the next life.
func TestForgetAfterRestart(t *testing.T) {
	c := newCloud(t)
	m, act := working(t, c)
	m.launcher.set(func() { m.launcher.unforgotten = 1 << 30 })
	m.finishes(act)
	until(t, "its record is sent", func() bool {
		e, err := m.entry(act)
		return err == nil && e.Sent
	})
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	// As after a removal that did not come to its end.
	if err := os.RemoveAll(filepath.Join(m.Spool, act, "local", "default", "runs")); err != nil {
		t.Fatal(err)
	}
	m.launcher.set(func() { m.launcher.unforgotten = 0 })
	m.start()
	until(t, "its spool is emptied", func() bool { return m.launcher.hasForgotten(act) })
	m.clean()
}

// TestKept: a record that the cloud refuses stays where it is, and the status names it,
// also after a restart, until the owner has seen to it.
func TestKept(t *testing.T) {
	c := newCloud(t)
	c.on("userinfo", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		api.Refuse(api.Forbidden, "never").Write(w)
	})
	m, act := working(t, c)
	m.finishes(act)
	kept := func() bool { return slices.Equal(m.now().Kept, []string{act}) }
	until(t, "it is kept", kept)
	m.clean()
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.start()
	until(t, "it is kept after a restart", kept)
	if m.launcher.hasForgotten(act) {
		t.Error("its spool was emptied")
	}
	if err := os.RemoveAll(filepath.Join(m.Spool, act, "local")); err != nil {
		t.Fatal(err)
	}
	until(t, "it is kept no more", func() bool { return len(m.now().Kept) == 0 })
}

// unlinking says that hanzo unlink is at work.
func (m *machine) unlinking() {
	m.Helper()
	if err := os.WriteFile(filepath.Join(m.Dir, "unlinking"), nil, 0o600); err != nil {
		m.Fatalf("%v", err)
	}
}

// TestUnlinkSendsRecords: an agent that is ended by hanzo unlink sends what its
// workloads have recorded before it goes, for afterwards nobody here can.
func TestUnlinkSendsRecords(t *testing.T) {
	c := newCloud(t)
	var open atomic.Bool
	c.on("/events", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !open.Load() {
			api.Refuse(api.Unavailable, "not now").Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
	m, earlier := working(t, c)
	m.finishes(earlier)
	act := m.working()
	until(t, "a record waits", func() bool { return m.now().Unsent == 1 })
	m.unlinking()
	m.cancel()
	c.ended(act, "unlink")
	open.Store(true)
	if err := m.end(); err != nil {
		t.Error(err)
	}
	for _, act := range []string{earlier, act} {
		c.arrives(act, 3)
		if !m.launcher.hasForgotten(act) {
			t.Errorf("the spool of %s was not emptied", act)
		}
	}
}

// TestUnlinkWithoutTheCloud: there is nothing to wait for where the cloud does not
// answer.
func TestUnlinkWithoutTheCloud(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c)
	if err := os.Mkdir(m.Spool, 0o750); err != nil {
		t.Fatal(err)
	}
	m.parts.pace.unlink = time.Hour
	m.start().online()
	act := m.working()
	c.between(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		api.Refuse(api.Unavailable, "not now").Write(w)
	})
	until(t, "it is not connected", func() bool { return !m.now().Connected })
	m.unlinking()
	if err := m.stop(); err != nil {
		t.Error(err)
	}
	if e, err := m.entry(act); err != nil || !e.State.Ended() || e.Sent {
		t.Errorf("the journal has %+v, %v", e, err)
	}
}

// TestUnlinkTakesNoLonger: a cloud that answers and does not take a record keeps
// nobody for ever.
func TestUnlinkTakesNoLonger(t *testing.T) {
	c := newCloud(t)
	c.on("/events", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		api.Refuse(api.Unavailable, "not now").Write(w)
	})
	m := newMachine(t, c)
	if err := os.Mkdir(m.Spool, 0o750); err != nil {
		t.Fatal(err)
	}
	m.parts.pace.unlink = 300 * time.Millisecond
	m.start().online()
	act := m.working()
	m.unlinking()
	if err := m.stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(m.Spool, act, "local")); err != nil || m.launcher.hasForgotten(act) {
		t.Errorf("its record is gone: %v", err)
	}
}
