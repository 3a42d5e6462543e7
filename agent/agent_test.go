//go:build linux

package agent

import (
	"strings"
	"testing"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
)

// TestRun is a life without faults: from an enqueue to the end that the cloud has.
func TestRun(t *testing.T) {
	c := newCloud(t)
	m := newMachine(t, c).start().online()
	act := c.enqueue("evo")
	c.becomes(act, activity.Ready)
	if s := m.now(); !s.Connected || len(s.Activities) != 1 || s.Activities[0].State != activity.Ready || s.Problem != "" {
		t.Errorf("the status is %+v", s)
	}
	m.launcher.finish(&ipc.Ended{Activity: act, State: activity.Stopped, Reason: activity.Done})
	a := c.ended(act, "done")
	if a.Output == nil || a.Output.Stdout != "bye\n" {
		t.Errorf("its output is %+v", a.Output)
	}
	m.clean()
	if n := m.launcher.startsOf(act); n != 1 {
		t.Errorf("started %d times", n)
	}
	if n := m.shelf.pinned(); n != 0 {
		t.Errorf("%d trees are still pinned", n)
	}
	if err := m.stop(); err != nil {
		t.Error(err)
	}
	want := "link, policy, start, stop done"
	if got := strings.Join(m.audited(), ", "); got != want {
		t.Errorf("audited %s, want %s", got, want)
	}
}
