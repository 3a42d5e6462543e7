//go:build linux

package sandboxcmd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

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

// Built once, in folders that anyone may read: hanzo without hanzo-stage, and hanzo
// beside it.
var program, whole string

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
	program, whole = filepath.Join(dir, "hanzo"), filepath.Join(dir, "whole", "hanzo")
	stage := filepath.Join(filepath.Dir(whole), stageName)
	for out, pkg := range map[string]string{whole: "../../hanzo", stage: "../../hanzo-stage"} {
		build := exec.Command("go", "build", "-o", out, pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, b)
			return 1
		}
	}
	if err := errors.Join(os.Link(whole, program), copyFile(stage, filepath.Join(filepath.Dir(self), stageName))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

// skip says why the sandbox cannot be built here.
func skip(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a sandbox is made by root")
	}
	g, err := newGround()
	defer g.close()
	if err != nil {
		t.Fatal(err)
	}
	if g.group == "" {
		t.Skip("this host has no control groups v2 where one looks for them")
	}
}

// traces are what a check of this process could leave on this host.
func traces(t *testing.T) []string { return tracesOf(t, os.Getpid()) }

func tracesOf(t *testing.T, pid int) []string {
	t.Helper()
	var all []string
	for _, dir := range slices.Concat(tops, places) {
		found, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf(prefix+"%d-*", pid)))
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
			switch a.State {
			case attempt.Held:
			case attempt.NotRun:
				t.Logf("%s: %d %s: not run: %s", k.Kind, a.Number, a.Name, a.Got)
			default:
				t.Errorf("%s: %d %s: expected %s, got %s (%s)", k.Kind, a.Number, a.Name, a.Expected, a.Got, a.State)
			}
		}
		for _, number := range []int{1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 18, 19, 21, 22, 24, 25, 26, 27, 29, 30, 31, 32, 34, 36, 37, 38,
			39, 40, 41, 42, 44, 45, 46, 47, 48, 50, 52, 54, 55, 57, 58, 60, 61, 62, 63, 64, 65, 68, 69, 70, 71, 72, 74, 77, 79,
			101, 102, 103, 104, 105, 106, 107, 108} {
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
		// Not /usr, for what it takes would count as the workload's use.
		{"/etc writable", func(b *built) { mount(b, t.TempDir(), "/etc", true) }, []int{27}},
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
				if r.State == attempt.GaveWay {
					gave = append(gave, r.Number)
				}
			}
			for _, number := range hole.found {
				if !slices.Contains(gave, number) {
					t.Errorf("attempt %d did not find it; %v gave way", number, gave)
				}
			}
			for _, r := range results {
				if len(hole.found) == 0 && r.State != attempt.Held {
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
	t.Cleanup(func() {
		if err := g.close(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
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
		{Offers: true, Held: 3, Failed: 1},
		{Offers: true, OK: true, Error: "no room"},
		{Offers: true},
	} {
		if err := r.verdict(); term.StatusOf(err) != term.Failed {
			t.Errorf("%+v ends with %v", r, err)
		}
	}
}

// A workload that never began has not tried anything.
func TestWhatCouldNotBeTriedIsNoHole(t *testing.T) {
	skip(t)
	broken := func(b *built) { b.Args = []string{"hanzo", attempt.Argument, "no mode"} }
	g, host := prepared(t)
	results, err := g.tryAll(t.Context(), host, kind{name: policy.TrainFit}, broken, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for _, r := range results {
		if r.State == attempt.GaveWay {
			t.Errorf("%+v", r)
		}
		if r.State == attempt.Failed {
			failed++
		}
	}
	if listed := len(attempt.Listed()); failed < listed+5 {
		t.Errorf("only %d failed, of %d in the list alone", failed, listed)
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
	if last := results[len(results)-1]; last.Number != 68 || last.State != attempt.GaveWay {
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

// Root writes below a folder that no other user can pass, at any time of a check.
func TestNobodyElseComesToWhatACheckMakes(t *testing.T) {
	skip(t)
	const nobody = 65534
	find := func(args ...string) string {
		command := exec.Command("find", args...)
		command.Dir = "/"
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := command.Output()
		if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
			t.Fatal(err)
		}
		return string(out)
	}
	looked := 0
	_, err := examine(t.Context(), nil, func(string) {
		for _, path := range traces(t) {
			looked++
			if found := find(path, "-writable"); found != "" {
				t.Errorf("written to by others: %s", found)
			}
			if found := find(path, "-mindepth", "1"); found != "" && !strings.HasPrefix(path, tops[0]) {
				t.Errorf("seen by others: %s", found)
			}
		}
	})
	if err != nil || looked < 2 {
		t.Errorf("looked %d times: %v", looked, err)
	}
}

func TestWhatIsWrittenIsNew(t *testing.T) {
	skip(t)
	g, _ := prepared(t)
	other := filepath.Join(t.TempDir(), "other")
	if err := errors.Join(os.WriteFile(other, []byte("of the owner"), 0o600), os.Symlink(other, filepath.Join(g.dir, "planted"))); err != nil {
		t.Fatal(err)
	}
	if err := g.write("planted", 0o666); err == nil {
		t.Error("it wrote through a link")
	}
	if b, err := os.ReadFile(other); string(b) != "of the owner" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestRootWritesOnlyWhereNobodyCanPutAnythingElse(t *testing.T) {
	skip(t)
	dir := filepath.Join(t.TempDir(), "dir")
	below := filepath.Join(dir, "below")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uid  int
		mode os.FileMode
		safe bool
	}{{0, 0o755, true}, {0, 0o777, false}, {0, 0o775, false}, {0, 0o777 | os.ModeSticky, true}, {64001, 0o755, false}} {
		if err := errors.Join(os.Chown(dir, c.uid, 0), os.Chmod(dir, c.mode)); err != nil {
			t.Fatal(err)
		}
		if err := owned(below); (err == nil) != c.safe {
			t.Errorf("user %d, mode %s: %v", c.uid, c.mode, err)
		}
	}
}

func TestASweepTakesOnlyWhatIsRoots(t *testing.T) {
	skip(t)
	ended := exec.Command(program, "help")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	name := func(s string) string { return filepath.Join(dir, fmt.Sprintf(prefix+"%d-%s", ended.Process.Pid, s)) }
	kept := filepath.Join(dir, "kept")
	err := errors.Join(os.Mkdir(kept, 0o755), os.Mkdir(name("other"), 0o755), os.Chown(name("other"), 64001, 64001),
		os.Symlink(kept, name("link")), os.Mkdir(name("ours"), 0o700), os.Symlink(kept, filepath.Join(name("ours"), "link")))
	if err != nil {
		t.Fatal(err)
	}
	sweep(dir)
	for _, path := range []string{kept, name("other"), name("link")} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(name("ours")); err == nil {
		t.Error("what was left of a check is still there")
	}
}

// However often it is asked to end, it takes everything away first.
func TestSignalsLeaveNothing(t *testing.T) {
	skip(t)
	for _, signals := range [][]os.Signal{
		{syscall.SIGHUP}, {syscall.SIGQUIT}, {syscall.SIGINT, syscall.SIGINT}, {syscall.SIGTERM, syscall.SIGTERM, syscall.SIGINT},
	} {
		command := exec.Command(whole, "sandbox", "check")
		stderr, err := command.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		said := bufio.NewReader(stderr)
		first, err := said.ReadString('\n') // everything is made by then
		if left := tracesOf(t, command.Process.Pid); err != nil || len(left) == 0 {
			t.Errorf("nothing was made at %q (%v)", first, err)
		}
		for _, signal := range signals {
			command.Process.Signal(signal)
		}
		rest, _ := io.ReadAll(said)
		command.Wait()
		if status := command.ProcessState.ExitCode(); status != int(term.Interrupted) {
			t.Errorf("%v: %v, %s", signals, command.ProcessState, rest)
		}
		if left := tracesOf(t, command.Process.Pid); len(left) > 0 {
			t.Errorf("%v: left behind: %v", signals, left)
		}
	}
}

// What SIGKILL left, a later check takes away.
func TestAfterAKillTheNextCheckTidies(t *testing.T) {
	skip(t)
	command := exec.Command(whole, "sandbox", "check")
	stderr, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	bufio.NewReader(stderr).ReadString('\n')
	command.Process.Kill()
	command.Wait()
	if left := tracesOf(t, command.Process.Pid); len(left) == 0 {
		t.Fatal("nothing was left to take away")
	}
	for deadline := time.Now().Add(time.Minute); ; { // while the kernel ends its processes
		for _, dir := range slices.Concat(places, tops) {
			sweep(dir)
		}
		left := tracesOf(t, command.Process.Pid)
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v", left)
		}
	}
}

// A controller that was turned on for a check goes off with what is left of it.
func TestTheRecordOfControllersLiesWithTheGroup(t *testing.T) {
	skip(t)
	g, _ := prepared(t)
	top := filepath.Dir(g.group)
	available, err := os.ReadFile(filepath.Join(top, "cgroup.controllers"))
	if err != nil {
		t.Fatal(err)
	}
	on, err := os.ReadFile(filepath.Join(top, "cgroup.subtree_control"))
	if err != nil {
		t.Fatal(err)
	}
	var free string
	for _, c := range strings.Fields(string(available)) {
		if !slices.Contains(strings.Fields(string(on)), c) {
			free = c
		}
	}
	if free == "" {
		t.Skip("this host has no controller that is off at the top of cgroup v2")
	}
	ended := exec.Command(program, "help")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	dead := &ground{group: filepath.Join(top, fmt.Sprintf(prefix+"%d-1", ended.Process.Pid))}
	if err := os.Mkdir(dead.group, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(dead.turnOn(top, free), dead.turnOn(dead.group, free)); err != nil {
		t.Error(err)
	}
	sweep(top)
	if now, _ := os.ReadFile(filepath.Join(top, "cgroup.subtree_control")); string(now) != string(on) {
		t.Errorf("%q is on, and was %q", now, on)
	}
}

// A check that cannot build says why, and takes apart what it had.
func TestWhatCannotBeBuiltSaysWhy(t *testing.T) {
	skip(t)
	g, _ := prepared(t)
	if err := g.root.Mkdir("spool-taken", 0o700); err != nil {
		t.Fatal(err)
	}
	if b, err := g.build(kind{name: policy.TrainFit}, "taken"); b != nil || !errors.Is(err, os.ErrExist) {
		t.Errorf("%v, %v", b, err)
	}
	if b, err := g.build(kind{name: policy.TrainFit, grant: sandbox.Grant{Mounts: []string{"/is/not"}}}, "other"); b != nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, %v", b, err)
	}
}

// Here the file system of real work is too small.
func TestWithoutRoomItSaysSo(t *testing.T) {
	skip(t)
	for options, want := range map[string]string{"size=4m": "192 MiB needed", "size=1g,nr_inodes=12": "4096 are needed"} {
		script := "mount -t tmpfs -o mode=755," + options + " none /var/lib && exec " + whole + " sandbox check"
		command := exec.Command("sh", "-c", script)
		command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		out, err := command.CombinedOutput()
		if command.ProcessState.ExitCode() != int(term.Failed) || !strings.Contains(string(out), "not enough room in /var/lib") || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %s", options, err, out)
		}
		if !strings.Contains(string(out), "What this host can build") {
			t.Errorf("%s: no table in %s", options, out)
		}
	}
}

// Root with CAP_SYS_RESOURCE lifts it; else it is said before anything is tried.
func TestALimitOnFilesIsLiftedOrNamed(t *testing.T) {
	skip(t)
	command := exec.Command("sh", "-c", "ulimit -f 1; exec "+whole+" sandbox check --json")
	out, _ := command.Output()
	var r Report
	if err := json.Unmarshal(out, &r); err != nil || r.Gave > 0 || r.Failed > 0 || r.Held == 0 && !strings.Contains(r.Error, "ulimit -f") {
		t.Errorf("%v in %.2000s", err, out)
	}
}

func TestAStageThatIsNoneIsNamed(t *testing.T) {
	skip(t)
	for want, make := range map[string]func(path string) error{
		"is not executable":              func(path string) error { return os.WriteFile(path, nil, 0o644) },
		"is a folder":                    func(path string) error { return os.Mkdir(path, 0o755) },
		"is no file":                     func(path string) error { return syscall.Mkfifo(path, 0o755) },
		"is another program or none":     func(path string) error { return os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755) },
		"is another program, github.com": func(path string) error { return copyFile(program, path) },
	} {
		dir := t.TempDir()
		hanzo, path := filepath.Join(dir, "hanzo"), filepath.Join(dir, stageName)
		if err := errors.Join(os.Link(program, hanzo), make(path)); err != nil {
			t.Fatal(err)
		}
		out, _ := exec.Command(hanzo, "sandbox", "check").CombinedOutput()
		if !strings.Contains(string(out), path+" "+want) || !strings.Contains(string(out), "What this host can build") {
			t.Errorf("%s: %s", want, out)
		}
	}
}

func TestAUserWhoIsRootOnlyInANamespaceSeesWhy(t *testing.T) {
	skip(t)
	command := exec.Command(whole, "sandbox", "check")
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, Credential: &syscall.Credential{NoSetGroups: true},
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 64001, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 64001, Size: 1}}}
	out, err := command.CombinedOutput()
	if !command.ProcessState.Exited() {
		t.Skipf("this host lets nobody make user namespaces: %v", err)
	}
	if !strings.Contains(string(out), "What this host can build") || !strings.Contains(string(out), "nothing could be tried") {
		t.Errorf("%s", out)
	}
}

func TestNothingTriedIsNotSaidToHold(t *testing.T) {
	var out bytes.Buffer
	r := Report{Offers: true, Kinds: []Tried{{Kind: policy.TrainFit, Error: "no space"}}}
	r.print(&out)
	if s := out.String(); strings.Contains(s, "held.") || !strings.Contains(s, "Nothing could be tried") {
		t.Error(s)
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
