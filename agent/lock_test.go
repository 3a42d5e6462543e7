package agent

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOneAgentOnALink: a second one ends and names the first, whose end lets it go.
func TestOneAgentOnALink(t *testing.T) {
	dir := t.TempDir()
	if _, runs, err := Running(dir); runs || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before any: %v, %v", runs, err)
	}
	l := Link{API: "http://127.0.0.1:1", Org: "acme", ID: "evo", LinkedBy: "acme/alice", Project: "default"}
	if err := errors.Join(l.Write(dir, "credential", -1, -1), os.WriteFile(filepath.Join(dir, keyName), []byte(NewKey()), 0o600)); err != nil {
		t.Fatal(err)
	}
	first, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if pid, runs, err := Running(dir); pid != os.Getpid() || !runs || err != nil {
		t.Errorf("while it runs: %d, %v, %v", pid, runs, err)
	}
	if !(Status{}).Lives(dir) {
		t.Error("it does not live")
	}
	if err := Run(t.Context(), Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "another agent (process ") || !strings.Contains(err.Error(), "runs on this link") {
		t.Errorf("a second one: %v", err)
	}
	if info, err := os.Lstat(filepath.Join(dir, lockName)); err != nil || info.Mode() != 0o600 {
		t.Errorf("the lock is %v, %v", info, err)
	}
	first.Close()
	if _, runs, err := Running(dir); runs || err != nil {
		t.Errorf("after it: %v, %v", runs, err)
	}
	if (Status{PID: os.Getpid()}).Lives(dir) {
		t.Error("it lives on without its lock")
	}
	again, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestALockIsNoLink(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(dir, "other"), filepath.Join(dir, lockName)); err != nil {
		t.Fatal(err)
	}
	if f, err := lock(dir); err == nil {
		f.Close()
		t.Error("it follows one")
	}
	if _, err := os.Lstat(filepath.Join(dir, "other")); err == nil {
		t.Error("it made what a link names")
	}
}

// TestAStatusOutlivesItsAgent, where nobody may look at a lock.
func TestAStatusOutlivesItsAgent(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if (Status{PID: cmd.Process.Pid}).Lives(dir) || (Status{}).Lives(dir) {
		t.Error("a process that has ended lives")
	}
	if !(Status{PID: os.Getpid()}).Lives(dir) || !(Status{PID: 1}).Lives(dir) {
		t.Error("one that runs does not")
	}
}
