//go:build linux

package guest

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/test/vm/guest/control"
)

// TestTrain has the real train binary teach a small model in its sandbox, and
// looks at the record that it leaves.
func TestTrain(t *testing.T) {
	h := connected(t)
	pin(t, "train")
	t.Cleanup(func() { pin(t, "work") })
	input := fit(t, stage{})
	input["stage"] = tree(t, folder(t, filepath.Join(payload, "lesson/stage")))
	input["base"] = tree(t, folder(t, filepath.Join(payload, "lesson/base")))
	input["memory"], input["cpus"] = 512<<20, 2
	w := h.start(input)
	e := h.awaitFor(5*time.Minute, w.started, w.activity+" ended", func(r control.Reply) bool { return r.Ended != nil }) // floating point is slow here
	if e.Ended.State != activity.Stopped || e.Ended.Reason != activity.Done {
		t.Fatalf("it ended as %+v\n%s%s", *e.Ended, e.Stdout, e.Stderr)
	}
	var said struct {
		Run, Status string
		Steps       int
	}
	if err := json.Unmarshal([]byte(e.Stdout), &said); err != nil || said.Run != w.activity || said.Status != "completed" || said.Steps == 0 {
		t.Errorf("train said %+v, %v: %s", said, err, e.Stdout)
	}
	log := filepath.Join(state, "spool", w.activity, "local/default/runs", w.activity+".log")
	record := read(t, log)
	lines := strings.Split(record, "\n")
	if !strings.Contains(lines[0], "RUN_CREATED") || !strings.Contains(lines[len(lines)-1], "RUN_COMPLETED") {
		t.Errorf("the record begins with %.200s and ends with %.200s", lines[0], lines[len(lines)-1])
	}
	t.Logf("%d steps, %d events", said.Steps, len(lines))
	// What the agent cannot read it cannot send.
	err := filepath.WalkDir(filepath.Join(state, "spool", w.activity), func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			if got := h.try(control.Attempt{Do: "read", Path: path}); got != "done" {
				t.Errorf("the agent reads %s: %s", path, got)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t)
}

// pin makes a program of the payload the train binary of this host.
func pin(t testing.TB, name string) {
	t.Helper()
	if err := copyFile(name, filepath.Join(lib, "train")); err != nil {
		t.Fatal(err)
	}
	if err := writeManifest(); err != nil {
		t.Fatal(err)
	}
}

// folder reads every file below a folder.
func folder(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		files[name], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
