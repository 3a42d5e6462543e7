//go:build linux

package launcher

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/policy"
)

// rows are what the real train binary learns here: which of two queues a text is for.
const rows = `{"text": "I was charged twice for the kettle", "queue": "billing"}
{"text": "the invoice shows too much", "queue": "billing"}
{"text": "my refund has not reached my bank", "queue": "billing"}
{"text": "please send a receipt for the lamp", "queue": "billing"}
{"text": "why is there a fee on my invoice", "queue": "billing"}
{"text": "I was charged a fee for the refund", "queue": "billing"}
{"text": "the parcel has not arrived", "queue": "delivery"}
{"text": "the courier left the parcel in the rain", "queue": "delivery"}
{"text": "my parcel came to the wrong street", "queue": "delivery"}
{"text": "tracking says the parcel was delivered", "queue": "delivery"}
{"text": "when will the courier arrive", "queue": "delivery"}
{"text": "the courier did not ring the bell", "queue": "delivery"}
`

const stage = `{"stage": "desk", "init": {"dir": "../base"},
 "takes": [{"suite": "desk", "file": "desk.jsonl", "state": ["text"], "label": "queue"}],
 "fractions": {"train": 60, "dev": 0, "test": 40}, "frozen": [], "epochs": 2, "batch_tokens": 128}`

// The real binary runs in the sandbox to its end, and what it recorded is kept.
func TestTrainFitsInTheSandbox(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs train")
	}
	compiler, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no compiler here to build train with")
	}
	r := newRig(t)
	r.Starts = Rate{Every: 1, Burst: 1}
	made := filepath.Join(r.dir, "made")
	r.must(os.Mkdir(made, 0o755))
	train := filepath.Join(r.Lib, "train")
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "HANZO_SPOOL="+filepath.Join(made, "spool"), "HANZO_API=")
		if name == train {
			cmd.Dir = made
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	r.must(os.Remove(train))
	run(compiler, "build", "-o", train, "../cmd/train")
	r.must(os.Mkdir(filepath.Join(made, "stage"), 0o755),
		os.WriteFile(filepath.Join(made, "stage/desk.jsonl"), []byte(rows), 0o644),
		os.WriteFile(filepath.Join(made, "stage/stage.json"), []byte(stage), 0o644))
	run(train, "data", "import", "stage/desk.jsonl", "--label", "queue")
	run(train, "init", "base", "--size", "nano", "--data", "data/desk")
	r.pin()

	a := r.serve().connect().offered()
	input := a.input("", 0)
	input["stage"], input["base"] = r.put(filepath.Join(made, "stage")), r.put(filepath.Join(made, "base"))
	input["memory"], input["disk"] = 512<<20, 64<<20
	s := a.envelope(input)
	a.started(a.ask(s), s)
	e := a.ended(s)
	var stdout []byte
	if len(a.files) > 0 {
		stdout, err = io.ReadAll(a.files[0])
		a.must(err)
	}
	var result struct {
		Run, Status string
		Steps       int
	}
	if e.State != activity.Stopped || e.Reason != activity.Done || json.Unmarshal(stdout[:e.Stdout], &result) != nil {
		t.Fatalf("ended as %+v with %s", e, stdout)
	}
	if result.Run != s.Activity || result.Status != "completed" || result.Steps == 0 {
		t.Errorf("train says %+v", result)
	}
	log := filepath.Join(a.Spool, s.Activity, "local/default/runs", s.Activity+".log")
	record, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(record), "RUN_COMPLETED") {
		t.Errorf("the record: %d bytes, %v", len(record), err)
	}
	if got := a.try("read", log, ""); got != "done" {
		t.Errorf("the agent cannot read the record: %s", got)
	}
}

// put copies a folder into the store as a tree.
func (r *rig) put(dir string) string {
	r.Helper()
	var files []policy.TreeFile
	r.must(filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		src, err := os.ReadFile(path)
		sum := sha256.Sum256(src)
		name, _ := filepath.Rel(dir, path)
		files = append(files, policy.TreeFile{Path: name, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(src))})
		return err
	}))
	hash := policy.TreeHash(files)
	r.must(os.CopyFS(filepath.Join(r.Store, "trees", hash), os.DirFS(dir)))
	return hash
}
