//go:build linux

package vm

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A guest is what one machine is given: programs, by the name they have there, and
// which of the tests of guest/ it runs. All programs are static: the machine has no
// more than a minimal Debian.
type guest struct {
	programs  map[string]string
	run, skip string // as go test's -run and -skip; $LINK_VM_RUN goes before run
	prepare   func(t *testing.T, dir string)
}

// TestVM tries the launcher and the sandbox in a machine on which a test agent
// plays the agent's part.
func TestVM(t *testing.T) {
	boot(t, guest{
		programs: map[string]string{
			"hanzo-launcher": "../../cmd/hanzo-launcher",
			"hanzo-stage":    "../../cmd/hanzo-stage",
			"hanzo":          "../../cmd/hanzo",
			"train":          "../../cmd/train",
			"agent":          "./guest/agent",
			"work":           "./guest/work",

			// What the launcher's own tests would build, if there were a compiler.
			"launcher/hanzo-stage": "../../cmd/hanzo-stage",
			"launcher/train":       "../../launcher/testdata/train",
		},
		skip: "^TestLink",
		prepare: func(t *testing.T, dir string) {
			goBuild(t, "test", "-c", "-o", filepath.Join(dir, "launcher/launcher.test"), "../../launcher")
			makeLesson(t, filepath.Join(dir, "train"), filepath.Join(dir, "lesson"))
		},
	})
}

// TestLink links a fresh machine to a control plane of its own, as an owner would,
// and follows work from the enqueue to the record.
func TestLink(t *testing.T) {
	boot(t, guest{
		programs: map[string]string{
			"bin/hanzo":          "../../cmd/hanzo",
			"bin/hanzo-link":     "../../cmd/hanzo-link",
			"bin/hanzo-launcher": "../../cmd/hanzo-launcher",
			"bin/hanzo-stage":    "../../cmd/hanzo-stage",
			"bin/train":          "../../cmd/train",
			"bin/hanzo-cloud":    "../../cmd/hanzo-cloud",
		},
		run: "^TestLink",
		prepare: func(t *testing.T, dir string) {
			train, lesson := filepath.Join(dir, "bin/train"), filepath.Join(dir, "lesson")
			makeLesson(t, train, lesson)
			// The same stage, trained here and outside of any sandbox.
			fit := exec.CommandContext(t.Context(), train, "fit", "stage/stage.json", "--run", "outside", "--json")
			fit.Dir = lesson
			fit.Env = append(os.Environ(), "HANZO_API=", "HANZO_SPOOL="+filepath.Join(lesson, "spool"))
			if out, err := fit.CombinedOutput(); err != nil {
				t.Fatalf("train fit: %v\n%s", err, out)
			}
		},
	})
}

// boot boots one machine, runs tests of guest/ in it, and reports each under its
// own name. Where no machine can be had it skips and says why; with
// LINK_REQUIRE_VM=1 that is a failure.
func boot(t *testing.T, g guest) {
	if testing.Short() {
		t.Skip("boots a machine under emulation, which takes minutes")
	}
	readSources(t)
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok { // time to say what was running when it is hit
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, deadline.Add(-15*time.Second), errors.New("the test's time is up: go test -timeout 30m gives more"))
		defer cancel()
	}
	dir, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	image, err := Build(ctx, dir, t.Output())
	if unavailable, ok := errors.AsType[Unavailable](err); ok && os.Getenv("LINK_REQUIRE_VM") != "1" {
		t.Skip(unavailable)
	}
	if err != nil {
		t.Fatal(err)
	}
	results := t.ArtifactDir() // kept with go test -artifacts
	var output bytes.Buffer
	live, err := os.Create(filepath.Join(results, "output")) // to look at while it goes on
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	status, bootErr := image.Boot(ctx, Boot{Payload: g.make(t), Results: results, Output: io.MultiWriter(live, &output), Memory: 3072})
	root := tree(t, output.Bytes())
	for _, sub := range root.children {
		sub.report(t)
	}
	if bootErr != nil {
		t.Fatalf("%v\nthe machine's output ends:\n%s", bootErr, tail(output.Bytes(), 4096))
	}
	if len(root.children) == 0 || status != 0 && !t.Failed() {
		t.Errorf("the guest ended with status %d:\n%s", status, tail(output.Bytes(), 8192))
	}
	if t.Failed() {
		t.Logf("the machine's journal:\n%s", journal(results))
	}
}

// runScript is the payload's program. The compiled tests speak test2json, which
// is how their results keep their names on the way here.
const runScript = `#!/bin/sh
cd /run/payload
LINK_VM_GUEST=1 exec ./guest.test -test.v=test2json -test.timeout=30m -test.run="$(cat pattern)" -test.skip="$(cat skip)"
`

// readSources looks at every folder of the repository, so that go test takes a result
// for current only while nothing changes there: what is built below is no import of
// this test.
func readSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != "../.." && strings.HasPrefix(entry.Name(), ".") {
			return filepath.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// make builds the payload: the programs and the guest's tests.
func (g guest) make(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, source := range g.programs {
		goBuild(t, "build", "-o", filepath.Join(dir, name), source)
	}
	goBuild(t, "test", "-c", "-o", filepath.Join(dir, "guest.test"), "./guest")
	g.prepare(t, dir)
	write(t, filepath.Join(dir, "run"), runScript)
	write(t, filepath.Join(dir, "pattern"), cmp.Or(os.Getenv("LINK_VM_RUN"), g.run))
	write(t, filepath.Join(dir, "skip"), g.skip)
	return dir
}

// makeLesson makes what the train binary is given in the machine: a stage of a
// dozen rows, and a base that knows nothing. It is made here, for the machine
// computes slowly.
func makeLesson(t *testing.T, train, dir string) {
	t.Helper()
	if err := os.CopyFS(filepath.Join(dir, "stage"), os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"data", "import", "stage/desk.jsonl", "--label", "queue"},
		{"init", "base", "--size", "nano", "--data", "data/desk"},
	} {
		cmd := exec.CommandContext(t.Context(), train, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HANZO_API=", "HANZO_SPOOL="+filepath.Join(dir, "spool"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("train %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

func goBuild(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// journal is the end of what the machine's services logged, and of what the
// kernel said once they ran.
func journal(results string) string {
	text, err := os.ReadFile(filepath.Join(results, "journal"))
	if err != nil {
		return err.Error()
	}
	if i := bytes.Index(text, []byte("Started payload.service")); i >= 0 {
		text = text[i:]
	}
	return string(tail(text, 16<<10))
}

// tail is the last n bytes of a text, or all of it.
func tail(text []byte, n int) []byte { return text[max(0, len(text)-n):] }

// A result is what one test in the machine came to.
type result struct {
	name     string // its own part of the name
	action   string // pass, fail or skip; empty when it never ended
	output   []string
	elapsed  float64
	children []*result
}

// tree reads the machine's output into the tests it tells of.
func tree(t *testing.T, output []byte) *result {
	t.Helper()
	convert := exec.CommandContext(context.WithoutCancel(t.Context()), "go", "tool", "test2json", "-t")
	convert.Stdin = bytes.NewReader(output)
	events, err := convert.Output()
	if err != nil {
		t.Fatalf("go tool test2json: %v", err)
	}
	root := &result{}
	for lines := bufio.NewScanner(bytes.NewReader(events)); lines.Scan(); {
		var e struct {
			Action, Test, Output string
			Elapsed              float64
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if e.Test == "" {
			continue
		}
		r := root.find(strings.Split(e.Test, "/"))
		switch e.Action {
		case "output":
			r.output = append(r.output, e.Output)
		case "pass", "fail", "skip":
			r.action, r.elapsed = e.Action, e.Elapsed
		}
	}
	return root
}

// find is the test of that name below r, made when it is new.
func (r *result) find(name []string) *result {
	if len(name) == 0 {
		return r
	}
	i := slices.IndexFunc(r.children, func(c *result) bool { return c.name == name[0] })
	if i < 0 {
		i = len(r.children)
		r.children = append(r.children, &result{name: name[0]})
	}
	return r.children[i].find(name[1:])
}

// report repeats a test of the machine as a subtest of t.
func (r *result) report(t *testing.T) {
	t.Run(r.name, func(t *testing.T) {
		for _, c := range r.children {
			c.report(t)
		}
		var log strings.Builder
		for _, line := range r.output {
			if s := strings.TrimSpace(line); !strings.HasPrefix(s, "=== ") && !strings.HasPrefix(s, "--- ") {
				log.WriteString(line)
			}
		}
		if log.Len() > 0 || r.elapsed > 1 {
			t.Logf("%.1f s in the machine\n%s", r.elapsed, log.String())
		}
		switch r.action {
		case "fail":
			t.Fail()
		case "skip":
			t.Skip("skipped in the machine")
		case "":
			t.Error("it never ended")
		}
	})
}
