//go:build linux

package agent

import (
	"fmt"
	"path/filepath"
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

// TestLongStatus: a status of as many activities as there may be can be read.
func TestLongStatus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.json")
	want := Status{ID: "evo", Org: "acme", Connected: true}
	for i := range maxWorks {
		want.Activities = append(want.Activities, StatusActivity{
			Activity: fmt.Sprintf("act_%032d", i), Kind: "train.fit", State: activity.Pulling, Since: now(), Done: 1 << 40, Total: 1 << 40,
		})
	}
	if err := want.write(path); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadStatus(path); err != nil || len(got.Activities) != maxWorks {
		t.Errorf("%d activities, %v", len(got.Activities), err)
	}
}
