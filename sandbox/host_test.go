//go:build linux

package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// user is what workloads of these tests run as: a number that no account has.
const user = 64001

// The programs the tests run, built once.
var built struct{ stage, workload string }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sandbox")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	built.stage, built.workload = filepath.Join(dir, "hanzo-stage"), filepath.Join(dir, "workload")
	for out, pkg := range map[string]string{built.stage: "../cmd/hanzo-stage", built.workload: "./testdata/workload"} {
		build := exec.Command("go", "build", "-o", out, pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, b)
			return 1
		}
	}
	return m.Run()
}

// unified is where this host has cgroup v2, all of it or beside v1.
func unified(t testing.TB) string {
	t.Helper()
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return path
		}
	}
	t.Skip("this host has no control groups v2 where one looks for them")
	return ""
}

// newHost is a Host in a control group and a directory of its own. When the test
// ends nothing may be left in either.
func newHost(t testing.TB) *Host {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a sandbox is made by root")
	}
	group, err := os.MkdirTemp(unified(t), "sandbox-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(group); err != nil {
			t.Errorf("something is left in the control group: %v", err)
		}
	})
	dir := t.TempDir()
	t.Cleanup(func() {
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("left in the directory of run directories: %v", left)
		}
	})
	h, err := New(Config{Group: group, Run: dir, Stage: open(t, built.stage), User: user})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func open(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// spec runs the test's workload with these arguments.
func spec(t testing.TB, args ...string) Spec {
	t.Helper()
	return Spec{
		ID: strings.NewReplacer("/", "_", "#", "_").Replace(t.Name()), Program: open(t, built.workload),
		Args: append([]string{"workload"}, args...), Env: []string{"LANG=C.UTF-8"}, Umask: 0o077,
	}
}

// start starts it and kills it when the test ends.
func start(t testing.TB, h *Host, s Spec) *Workload {
	t.Helper()
	w, err := h.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Kill(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// output runs the workload to its end and returns what it printed.
func output(t *testing.T, h *Host, s Spec) string {
	t.Helper()
	e := start(t, h, s).Exit()
	if e.Cause != Exited || e.Code != 0 {
		t.Fatalf("%v ended with %+v, stderr %q", s.Args, e, e.Stderr)
	}
	return string(e.Stdout)
}

func TestAWorkloadRunsAndLeavesNothing(t *testing.T) {
	h := newHost(t)
	if got := output(t, h, spec(t, "echo", "hello")); got != "hello\n" {
		t.Errorf("it printed %q", got)
	}
}

// Starts that overlap open each other's descriptors between a fork and its exec.
func TestStartsAtOnce(t *testing.T) {
	h := newHost(t)
	var starts sync.WaitGroup
	for i := range 8 {
		s := spec(t, "descriptors")
		s.ID += strconv.Itoa(i)
		starts.Go(func() {
			w, err := h.Start(t.Context(), s)
			if err != nil {
				t.Error(err)
				return
			}
			if e := w.Exit(); string(e.Stdout) != "0\n1\n2\n" {
				t.Errorf("%s: %+v, stdout %q", s.ID, e, e.Stdout)
			}
			if err := h.Park(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	starts.Wait()
}
