package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScript runs every script of script/: what a person types, and what they
// see.
func TestScript(t *testing.T) {
	if testing.Short() {
		t.Skip("scripts train models")
	}
	packages(t) // opens every source file, so that a cached result is a current one
	bin := t.TempDir()
	build := exec.Command("go", "build", "-o", bin, "../cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the commands: %v\n%s", err, out)
	}
	testscript.Run(t, testscript.Params{
		Dir: "script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(filepath.ListSeparator)+env.Getenv("PATH"))
			env.Setenv("HANZO_SPOOL", filepath.Join(env.WorkDir, "spool"))
			env.Setenv("HANZO_TOKEN_FILE", filepath.Join(env.WorkDir, "cloud", "token"))
			env.Setenv("HOME", env.WorkDir)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"waitfile":  waitfile,
			"waitsteps": waitsteps,
			"envfile":   envfile,
			"status":    status,
			"spoil":     spoil,
		},
	})
}

// waitfile FILE waits until FILE exists and is not empty.
func waitfile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfile FILE")
	}
	until(ts, args[0]+" appears", func() bool {
		info, err := os.Stat(ts.MkAbs(args[0]))
		return err == nil && info.Size() > 0
	})
}

// waitsteps RUN N waits until N steps of RUN are recorded.
func waitsteps(ts *testscript.TestScript, neg bool, args []string) {
	n, err := strconv.Atoi(args[len(args)-1])
	if neg || len(args) != 2 || err != nil {
		ts.Fatalf("usage: waitsteps RUN N")
	}
	log := filepath.Join(ts.Getenv("HANZO_SPOOL"), "local", "default", "runs", args[0]+".log")
	until(ts, fmt.Sprintf("%d steps of %s are recorded", n, args[0]), func() bool {
		b, err := os.ReadFile(log)
		return err == nil && bytes.Count(b, []byte("STEP_RECORDED")) >= n
	})
}

// until waits for a condition that another process brings about.
func until(ts *testscript.TestScript, what string, met func() bool) {
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if met() {
			return
		}
	}
	ts.Fatalf("waited two minutes until %s", what)
}

// spoil BUILDS changes the purpose of one row of a training shard to eval_only.
func spoil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: spoil BUILDS")
	}
	shards, err := filepath.Glob(filepath.Join(ts.MkAbs(args[0]), "*", "*.train.*.ndjson"))
	ts.Check(err)
	if len(shards) != 1 {
		ts.Fatalf("found %d training shards, want 1", len(shards))
	}
	b, err := os.ReadFile(shards[0])
	ts.Check(err)
	spoiled := bytes.Replace(b, []byte(`"purpose":"train"`), []byte(`"purpose":"eval_only"`), 1)
	if bytes.Equal(b, spoiled) {
		ts.Fatalf("%s has no row of purpose train", shards[0])
	}
	ts.Check(os.WriteFile(shards[0], spoiled, 0o644))
}

// envfile NAME FILE sets a variable to a file's text.
func envfile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: envfile NAME FILE")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
}

// status N COMMAND... runs a command that must exit with status N.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND ARGS...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if err != nil {
		exit, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("running %s: %v", args[1], err)
		}
		got = exit.ExitCode()
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("%s exited with status %d, want %s", args[1], got, args[0])
	}
}
