//go:build linux

package sandboxcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/sandbox"
	"github.com/hanzoai/link/sandbox/attempt"
)

// The test's own binary is the program that tries to get out, as hanzo is.
func TestMain(m *testing.M) {
	if status, inside := Inside(os.Args[1:]); inside {
		os.Exit(status)
	}
	os.Exit(tests(m))
}

// program is hanzo, built once, in a folder that anyone may read and without
// hanzo-stage.
var program string

// tests builds hanzo, and puts hanzo-stage where the command looks for it: beside
// the executable, which is this test.
func tests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sandboxcmd")
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.Chmod(dir, 0o755)
	}
	self, selfErr := os.Executable()
	if err := errors.Join(err, selfErr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	program = filepath.Join(dir, "hanzo")
	for out, pkg := range map[string]string{program: "../../hanzo", filepath.Join(filepath.Dir(self), "hanzo-stage"): "../../hanzo-stage"} {
		build := exec.Command("go", "build", "-o", out, pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, b)
			return 1
		}
	}
	return m.Run()
}

// skip says why the sandbox cannot be built here.
func skip(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a sandbox is made by root")
	}
	g, err := newGround()
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	if g.group == "" {
		t.Skip("this host has no control groups v2 where one looks for them")
	}
}

// traces are what a check of this process could leave on this host.
func traces(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, dir := range append(tops, os.TempDir(), "/var/lib/hanzo/link") {
		found, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf(prefix+"%d-*", os.Getpid())))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

func TestNothingGetsOut(t *testing.T) {
	skip(t)
	var out, errs bytes.Buffer
	status := term.Program{Name: "hanzo", Commands: []term.Command{Check}}.Main(t.Context(), []string{"sandbox", "check", "--json"}, term.IO{Out: &out, Err: &errs})
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s%s", err, out.String(), errs.String())
	}
	if (status == term.OK) != (r.OK && r.Offers) {
		t.Errorf("status %d with ok %v, offers %v", status, r.OK, r.Offers)
	}
	if len(r.Host) == 0 || len(r.Kinds) == 0 || r.Kinds[0].Kind != policy.TrainFit || r.Held == 0 {
		t.Fatalf("%s", out.String())
	}
	for _, k := range r.Kinds {
		if k.Error != "" {
			t.Errorf("%s: %s", k.Kind, k.Error)
		}
		var made []int
		for _, a := range k.Results {
			made = append(made, a.Number)
			if !a.OK {
				t.Errorf("%s: %d %s: expected %s, got %s", k.Kind, a.Number, a.Name, a.Expected, a.Got)
			}
			if a.Skipped != "" {
				t.Logf("%s: %d %s: not run: %s", k.Kind, a.Number, a.Name, a.Skipped)
			}
		}
		for _, number := range []int{1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 18, 19, 21, 22, 24, 25, 26, 27, 29, 30, 31, 32, 34, 36, 37, 38,
			39, 40, 41, 42, 44, 45, 46, 47, 48, 50, 52, 54, 55, 57, 58, 60, 61, 62, 63, 64, 65, 68, 69, 70, 71, 72, 74, 77, 79} {
			if !slices.Contains(made, number) {
				t.Errorf("%s: attempt %d was not made", k.Kind, number)
			}
		}
	}
	if left := traces(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A check that cannot fail is no check: here are sandboxes with holes, and the
// attempts that must find each.
func TestHolesAreFound(t *testing.T) {
	skip(t)
	mount := func(b *built, source, target string, write bool) {
		f, err := b.open(source)
		if err != nil {
			t.Fatal(err)
		}
		b.Mounts = append(b.Mounts, sandbox.Mount{Source: f, Target: target, Write: write, Exec: true})
	}
	for _, hole := range []struct {
		name  string
		alter func(*built)
		found []int
	}{
		{"/usr writable", func(b *built) { mount(b, "/usr", "/usr", true) }, []int{27}},
		{"a workload that dies", func(b *built) { b.Args = []string{"hanzo", attempt.Argument, "no mode"} }, []int{46, 1, 39}},
		{"one of each", func(b *built) {
			b.Mounts[1].Write = true                            // the base
			b.Inet = true                                       // sockets that were not admitted
			b.Env = append(b.Env, "TOKEN=secret")               // a variable more
			b.Limits.Shm *= 4                                   // more memory than was said
			mount(b, "/etc", "/home", false)                    // a folder of the host's
			mount(b, "/sys/fs/cgroup", "/sys/fs/cgroup", false) // its control groups
			tty := sandbox.Device{Path: "/dev/tty", Major: 5}   // a node that was not admitted
			b.Devices = append(b.Devices, tty)
			b.WholeProc = true // what /proc says of the host
		}, []int{27, 31, 42, 55, 58, 62, 72, 74}},
		{"none, with all of /proc as beside a GPU, and internet sockets", func(b *built) {
			b.WholeProc, b.profile.WholeProc, b.Inet, b.profile.Inet = true, true, true, true
		}, nil},
	} {
		t.Run(hole.name, func(t *testing.T) {
			g, host := prepared(t)
			results, err := g.tryList(t.Context(), host, kind{name: policy.TrainFit}, hole.alter)
			if err != nil {
				t.Fatal(err)
			}
			var gave []int
			for _, r := range results {
				if !r.OK {
					gave = append(gave, r.Number)
				}
			}
			for _, number := range hole.found {
				if !slices.Contains(gave, number) {
					t.Errorf("attempt %d did not find it; %v gave way", number, gave)
				}
			}
			for _, r := range results {
				if len(hole.found) == 0 && !r.OK {
					t.Errorf("%d %s: %s", r.Number, r.Name, r.Got)
				}
			}
		})
	}
}

// prepared is a ground with a host on it, taken away when the test ends.
func prepared(t *testing.T) (*ground, *sandbox.Host) {
	t.Helper()
	g, err := newGround()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.close(); err != nil {
			t.Error(err)
		}
	})
	host, err := sandbox.New(g.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	return g, host
}

func TestAHoleIsTheCommandsFailure(t *testing.T) {
	r := &Report{OK: true, Offers: true, Held: 3}
	if err := r.verdict(); err != nil {
		t.Error(err)
	}
	for _, r := range []*Report{
		{Offers: true, Gave: 1},
		{Offers: true, OK: true, Gave: 1},
		{OK: true, Reason: "no control groups"},
		{Offers: true},
	} {
		if err := r.verdict(); term.StatusOf(err) != term.Failed {
			t.Errorf("%+v ends with %v", r, err)
		}
	}
}

// Something that the host's listeners hear is a hole, whatever the workload says.
func TestAConnectionToTheHostIsSeen(t *testing.T) {
	skip(t)
	g, host := prepared(t)
	g.reached.Add(1)
	results, err := g.tryList(t.Context(), host, kind{name: policy.TrainFit}, func(b *built) { b.Args = []string{"hanzo", attempt.Argument, "no mode"} })
	if err != nil {
		t.Fatal(err)
	}
	if last := results[len(results)-1]; last.Number != 68 || last.OK {
		t.Errorf("%+v", last)
	}
}

func TestInterruptedItLeavesNothing(t *testing.T) {
	skip(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := examine(ctx, nil, func(doing string) {
		if strings.HasSuffix(doing, "trying to get out") {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || term.StatusOf(err) != term.Interrupted {
		t.Errorf("it ended with %v", err)
	}
	if left := traces(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWhatAKilledCheckLeftIsTakenAway(t *testing.T) {
	skip(t)
	killed := exec.Command(program, "help")
	if err := killed.Run(); err != nil {
		t.Fatal(err)
	}
	g, _ := prepared(t) // of a process that lives
	for _, dir := range []string{g.dir, g.group} {
		left := filepath.Join(filepath.Dir(dir), fmt.Sprintf(prefix+"%d-1", killed.Process.Pid))
		if err := os.MkdirAll(filepath.Join(left, "work-1"), 0o755); err != nil {
			t.Fatal(err)
		}
		sweep(filepath.Dir(dir))
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s is left", left)
		}
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("what another check uses is gone: %v", err)
		}
	}
}

// hanzo runs the command as a process of its own.
func hanzo(t *testing.T, uid uint32, args ...string) (out, errs string, status int) {
	t.Helper()
	command := exec.Command(program, args...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	command.Dir = "/"
	if os.Getuid() == 0 {
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	} else if uid == 0 {
		t.Skip("only root can be root")
	}
	err := command.Run()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), command.ProcessState.ExitCode()
}

func TestWithoutRootItSaysSo(t *testing.T) {
	_, errs, status := hanzo(t, 64001, "sandbox", "check")
	if status != int(term.Failed) || !strings.Contains(errs, "sudo hanzo sandbox check") {
		t.Errorf("status %d, %q", status, errs)
	}
}

func TestTheInsideIsNoCommand(t *testing.T) {
	out, _, status := hanzo(t, 64001, "help")
	if status != 0 || !strings.Contains(out, "sandbox check") || strings.Contains(out, "inside") {
		t.Errorf("status %d, help says %q", status, out)
	}
	// And root is not made to attack the host by typing it.
	_, errs, status := hanzo(t, 0, attempt.Argument, "list")
	if status == 0 || !strings.Contains(errs, "hanzo sandbox check") {
		t.Errorf("status %d, %q", status, errs)
	}
}

func TestWithoutAStageItSaysWhere(t *testing.T) {
	if _, err := os.Stat(lib); err == nil {
		t.Skip("this host has one installed")
	}
	_, errs, status := hanzo(t, 0, "sandbox", "check")
	if status != int(term.Failed) || !strings.Contains(errs, lib) {
		t.Errorf("status %d, %q", status, errs)
	}
}
