package linkcmd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hanzoai/link/agent"
)

// leave puts something into an activity's spool.
func leave(t *testing.T, dir, act string) {
	t.Helper()
	path := filepath.Join(dir, "spool", act, "local")
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestKept(t *testing.T) {
	l := machine(t, "https://cloud.example")
	dir := l.dir
	if got := kept(dir); len(got) != 0 {
		t.Errorf("without a spool: %v", got)
	}
	leave(t, dir, "act_1")
	leave(t, dir, ".next")
	if err := os.Mkdir(filepath.Join(dir, "spool", "act_2"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := kept(dir); len(got) != 1 || got[0] != "act_1" {
		t.Errorf("kept: %v", got)
	}
}

// TestStatusNamesWhatIsKept: by the agent's word while it runs, for what it is sending
// is not kept, and else by what is there.
func TestStatusNamesWhatIsKept(t *testing.T) {
	l := machine(t, "https://cloud.example")
	leave(t, l.dir, "act_2")
	l.says(t, agent.Status{ID: "evo", Org: "acme", API: "https://cloud.example", Connected: true, Kept: []string{"act_1"}})
	mustHave(t, printed(t, l), "act_1", "HANZO_SPOOL="+l.dir+"/spool/ACTIVITY", "HANZO_API=https://cloud.example", "train sync", "yours to remove")
	if err := os.Remove(l.status); err != nil {
		t.Fatal(err)
	}
	mustHave(t, printed(t, l), "act_2", "train sync")
}
