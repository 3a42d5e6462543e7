//go:build linux

package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanzoai/link/launcher"
	"golang.org/x/sys/unix"
)

// asInstaller makes the test binary one call of hanzo link on a root, to be killed.
const asInstaller = "SYSTEMD_TEST_INSTALL"

func TestMain(m *testing.M) {
	if where := os.Getenv(asInstaller); where != "" {
		root, bin, _ := strings.Cut(where, ":")
		d := &daemon{root: root}
		if err := d.link(context.Background(), bin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// releases are two builds of programs that bear the names of ours: small ones, for
// what an installer sees of a binary is its form and what Go wrote into it.
var releases = sync.OnceValues(func() (folders [2]string, err error) {
	src, err := os.MkdirTemp("", "release-*")
	if err != nil {
		return folders, err
	}
	run := func(env []string, args ...string) error {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = src
		cmd.Env = append(os.Environ(), append(env, "GOWORK=off", "GOFLAGS=", "GIT_CONFIG_GLOBAL=/dev/null",
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", args, err, out)
		}
		return nil
	}
	err = errors.Join(os.WriteFile(filepath.Join(src, "go.mod"), []byte("module "+module+"\n\ngo 1.26\n"), 0o644), run(nil, "git", "init", "-q"))
	for i := range folders {
		folders[i] = filepath.Join(src, fmt.Sprint("bin", i))
		err = errors.Join(err, os.Mkdir(folders[i], 0o755))
		for _, b := range binaries {
			dir := filepath.Join(src, "cmd", b.name)
			err = errors.Join(err, os.MkdirAll(dir, 0o755),
				os.WriteFile(filepath.Join(dir, "main.go"), fmt.Appendf(nil, "package main\n\nfunc main() { println(%d) }\n", i), 0o644))
		}
		err = errors.Join(err, run(nil, "git", "add", "go.mod", "cmd"), run(nil, "git", "commit", "-qm", "x"),
			run([]string{"CGO_ENABLED=0"}, "go", "build", "-buildvcs=true", "-o", folders[i], "./cmd/..."))
		if err != nil {
			return folders, err
		}
	}
	dynamic := []string{"go", "build", "-buildvcs=true", "-buildmode=pie", "-o", filepath.Join(src, "dynamic"), "./cmd/train"}
	return folders, run([]string{"CGO_ENABLED=0"}, dynamic...)
})

// release is one of the two.
func release(t *testing.T, i int) string {
	t.Helper()
	folders, err := releases()
	if err != nil {
		t.Fatal(err)
	}
	return folders[i]
}

// copyOf is a folder with the same binaries, which the test may change.
func copyOf(t *testing.T, bin string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(bin)); err != nil {
		t.Fatal(err)
	}
	return to
}

// A daemon stands for systemd on a root: what it does shows in files there, so that it
// outlives an installer. What it has loaded is in loaded/, and what the processes of
// its services were started from in running/.
type daemon struct {
	root  string
	calls []string
	fail  int // the call to fail, from 1; 0 is none
}

func (d *daemon) run(_ context.Context, name string, args ...string) error {
	d.calls = append(d.calls, strings.Join(append([]string{filepath.Base(name)}, args...), " "))
	if len(d.calls) == d.fail {
		return errors.New("killed")
	}
	at := func(parts ...string) string { return filepath.Join(append([]string{d.root}, parts...)...) }
	switch args[0] {
	case filepath.Join(SysusersDir, "hanzo-link.conf"):
		return os.WriteFile(at("etc/passwd"), []byte("root:x:0:0\nhanzo-link:x:990:990\nhanzo-work:x:989:989\n"), 0o644)
	case "--create":
		for _, dir := range []string{"run", "spool", "store"} {
			if err := os.MkdirAll(at(State, dir), 0o755); err != nil {
				return err
			}
		}
	case "daemon-reload":
		if err := os.RemoveAll(at("loaded")); err != nil {
			return err
		}
		units, err := filepath.Glob(at(UnitDir, "hanzo-*"))
		if err != nil {
			return err
		}
		for _, unit := range units {
			if err := d.copy(unit, at("loaded", filepath.Base(unit))); err != nil {
				return err
			}
		}
	case "enable":
		for _, link := range []string{"sockets.target.wants/" + socketUnit, "multi-user.target.wants/" + agentUnit} {
			link = at(UnitDir, link)
			err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink("../"+filepath.Base(link), link))
			if err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	case "disable":
		return errors.Join(os.RemoveAll(at(UnitDir, "sockets.target.wants")), os.RemoveAll(at(UnitDir, "multi-user.target.wants")))
	case "start":
		for _, unit := range []string{socketUnit, launcherUnit, agentUnit} {
			if err := d.start(at, unit); err != nil {
				return err
			}
		}
	case "stop":
		for _, unit := range args[1:] {
			if err := os.RemoveAll(at("running", unit)); err != nil {
				return err
			}
		}
	}
	return nil
}

// start starts a service, unless it runs: from the unit that is loaded and the
// binaries that stand there now.
func (d *daemon) start(at func(...string) string, unit string) error {
	if exists(at("running", unit)) {
		return nil
	}
	from := map[string][]string{launcherUnit: {"hanzo-launcher", "hanzo-stage"}, agentUnit: {"hanzo-link"}}[unit]
	if err := os.MkdirAll(at("running"), 0o755); err != nil {
		return err
	}
	making := at("running", "."+unit)
	err := errors.Join(os.RemoveAll(making), d.copy(at("loaded", unit), filepath.Join(making, unit)))
	for _, name := range from {
		err = errors.Join(err, d.copy(at(Lib, name), filepath.Join(making, name)))
	}
	return errors.Join(err, os.Rename(making, at("running", unit)))
}

func (d *daemon) copy(from, to string) error {
	text, err := os.ReadFile(from)
	return errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o755))
}

func (d *daemon) host() Host { return Host{Root: d.root, Run: d.run} }

func (d *daemon) link(ctx context.Context, bin string) error {
	h := d.host()
	if err := h.Check(bin); err != nil {
		return err
	}
	if _, err := h.Place(ctx, bin); err != nil {
		return err
	}
	_, err := h.Start(ctx)
	return err
}

// host is a root with systemd and nothing of ours.
func host(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{root: t.TempDir()}
	for _, dir := range []string{"run/systemd/system", "etc/systemd/system", "usr/local/lib", "var/lib"} {
		if err := os.MkdirAll(filepath.Join(d.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(d.root, "etc/passwd"), []byte("root:x:0:0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return d
}

// tree is every file below a root, with its mode and what it holds.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		var text []byte
		if info.Mode().IsRegular() {
			if text, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		all[strings.TrimPrefix(path, root)] = info.Mode().String() + string(text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// differ names what two trees do not have alike.
func differ(a, b map[string]string) (names []string) {
	for name := range a {
		if a[name] != b[name] {
			names = append(names, name)
		}
	}
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func TestInstall(t *testing.T) {
	d := host(t)
	defer unix.Umask(unix.Umask(0o077)) // a careful person's
	if err := d.link(t.Context(), release(t, 0)); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]fs.FileMode{
		Lib: fs.ModeDir | 0o755, Lib + "/hanzo-launcher": 0o755, Lib + "/hanzo-gpu": 0o755, Lib + "/" + manifest: 0o644,
		UnitDir + "/" + agentUnit: 0o644, SysusersDir + "/hanzo-link.conf": 0o644, TmpfilesDir + "/hanzo-link.conf": 0o644,
	} {
		info, err := os.Lstat(filepath.Join(d.root, path))
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	if os.Geteuid() == 0 {
		m, err := launcher.ReadManifest(filepath.Join(d.root, Lib))
		if err != nil || len(m.Binaries) != len(binaries) || m.Binaries["train"] == "" {
			t.Errorf("the launcher reads the manifest as %v, %v", m, err)
		}
	}
	want := []string{
		"systemd-sysusers /etc/sysusers.d/hanzo-link.conf", "systemd-tmpfiles --create /etc/tmpfiles.d/hanzo-link.conf",
		"systemctl daemon-reload", "systemctl enable --quiet " + socketUnit + " " + agentUnit,
		"systemctl stop " + agentUnit + " " + launcherUnit + " " + socketUnit, "systemctl start " + socketUnit + " " + agentUnit,
	}
	if !slices.Equal(d.calls, want) {
		t.Errorf("it ran\n%s", strings.Join(d.calls, "\n"))
	}
}

func TestInstallAgainLeavesAlone(t *testing.T) {
	d := host(t)
	bin := release(t, 0)
	if err := d.link(t.Context(), bin); err != nil {
		t.Fatal(err)
	}
	before := make(map[string]fs.FileInfo)
	for name := range tree(t, d.root) {
		info, err := os.Lstat(d.root + name)
		if err != nil {
			t.Fatal(err)
		}
		before[name] = info
	}
	d.calls = nil
	steps, err := d.host().Place(t.Context(), bin)
	if err != nil {
		t.Fatal(err)
	}
	more, err := d.host().Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range append(steps, more...) {
		if s.Did != Current && s.Did != Ran {
			t.Errorf("%s %s", s.Did, s.What)
		}
	}
	for name, was := range before {
		if info, err := os.Lstat(d.root + name); err != nil || !info.ModTime().Equal(was.ModTime()) || !os.SameFile(info, was) {
			t.Errorf("%s was written", name)
		}
	}
	if want := []string{"systemd-tmpfiles --create /etc/tmpfiles.d/hanzo-link.conf", "systemctl start " + socketUnit + " " + agentUnit}; !slices.Equal(d.calls, want) {
		t.Errorf("it ran\n%s", strings.Join(d.calls, "\n"))
	}
}

// running checks that every service runs what is installed.
func (d *daemon) running(t *testing.T) {
	t.Helper()
	for unit, names := range map[string][]string{launcherUnit: {"hanzo-launcher", "hanzo-stage"}, agentUnit: {"hanzo-link"}, socketUnit: nil} {
		pairs := map[string]string{filepath.Join(UnitDir, unit): unit}
		for _, name := range names {
			pairs[filepath.Join(Lib, name)] = name
		}
		for path, name := range pairs {
			is, err := os.ReadFile(filepath.Join(d.root, path))
			ran, err2 := os.ReadFile(filepath.Join(d.root, "running", unit, name))
			if err != nil || err2 != nil || string(is) != string(ran) {
				t.Errorf("%s does not run the %s that is installed: %v %v", unit, name, err, err2)
			}
		}
	}
}

func TestUpgrade(t *testing.T) {
	d := host(t)
	if err := d.link(t.Context(), release(t, 0)); err != nil {
		t.Fatal(err)
	}
	d.calls = nil
	next := copyOf(t, release(t, 1))
	if err := os.Remove(filepath.Join(next, "hanzo-gpu")); err != nil {
		t.Fatal(err)
	}
	if err := d.link(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	d.running(t)
	if exists(filepath.Join(d.root, Lib, "hanzo-gpu")) {
		t.Error("a binary of the last build is left")
	}
	if slices.Contains(d.calls, "systemctl daemon-reload") {
		t.Error("no unit has changed, and systemd was told to read them")
	}
}

// TestKilledAtEveryCommand has every command of an upgrade fail in turn, as it does when the
// installer is killed, and links again.
func TestKilledAtEveryCommand(t *testing.T) {
	whole := host(t)
	if err := whole.link(t.Context(), release(t, 1)); err != nil {
		t.Fatal(err)
	}
	want := tree(t, whole.root)
	for n := 1; ; n++ {
		d := host(t)
		if err := d.link(t.Context(), release(t, 0)); err != nil {
			t.Fatal(err)
		}
		d.calls, d.fail = nil, n
		err := d.link(t.Context(), release(t, 1))
		died := err != nil
		d.fail = 0
		if err := d.link(t.Context(), release(t, 1)); err != nil {
			t.Fatal(err)
		}
		d.running(t)
		if names := differ(tree(t, d.root), want); len(names) > 0 {
			t.Errorf("killed at command %d and linked again, these differ: %v", n, names)
		}
		if !died {
			return
		}
	}
}

// TestKilledAnytime kills a real installer at moments all over its life.
func TestKilledAnytime(t *testing.T) {
	whole := host(t)
	bins := []string{release(t, 0), release(t, 1)}
	if err := whole.link(t.Context(), bins[1]); err != nil {
		t.Fatal(err)
	}
	want := tree(t, whole.root)
	installer := func(d *daemon, bin string) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), asInstaller+"="+d.root+":"+bin)
		return cmd
	}
	began := time.Now()
	if out, err := installer(host(t), bins[0]).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	life := time.Since(began)
	killed := 0
	const rounds = 30
	for i := range rounds {
		d := host(t)
		if i%2 == 1 { // an upgrade
			if err := d.link(t.Context(), bins[0]); err != nil {
				t.Fatal(err)
			}
		}
		cmd := installer(d, bins[1])
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(life*time.Duration(i)/rounds, func() { cmd.Process.Kill() })
		cmd.Wait()
		timer.Stop()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			killed++
		}
		if err := d.link(t.Context(), bins[1]); err != nil {
			t.Fatal(err)
		}
		d.running(t)
		if names := differ(tree(t, d.root), want); len(names) > 0 {
			t.Errorf("round %d: these differ: %v", i, names)
		}
	}
	if killed == 0 {
		t.Errorf("none of %d installers was killed", rounds)
	}
	t.Logf("%d of %d killed in a life of %v", killed, rounds, life)
}

func TestRemove(t *testing.T) {
	d := host(t)
	before := tree(t, d.root)
	if err := d.link(t.Context(), release(t, 0)); err != nil {
		t.Fatal(err)
	}
	keep := filepath.Join(d.root, State, "audit.jsonl")
	if err := os.WriteFile(keep, []byte("{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds nothing and is no error
		d.calls = nil
		if _, err := d.host().Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := d.host().Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.calls) != 0 {
		t.Errorf("with nothing installed it ran %v", d.calls)
	}
	for _, name := range differ(tree(t, d.root), before) {
		switch {
		case strings.HasPrefix(name, "/var/lib/hanzo"), name == "/etc/passwd", name == SysusersDir, name == TmpfilesDir:
		case name == "/loaded", name == "/running": // the stand-in's own
		default:
			t.Errorf("%s is left or gone", name)
		}
	}
	if !exists(keep) {
		t.Error("the audit log is gone")
	}
}

// TestRemoveKilledAtEveryCommand removes again after each failure.
func TestRemoveKilledAtEveryCommand(t *testing.T) {
	for n := 1; ; n++ {
		d := host(t)
		if err := d.link(t.Context(), release(t, 0)); err != nil {
			t.Fatal(err)
		}
		unlink := func() error {
			_, err := d.host().Stop(t.Context())
			if err == nil {
				_, err = d.host().Remove(t.Context())
			}
			return err
		}
		d.calls, d.fail = nil, n
		died := unlink() != nil
		d.fail = 0
		if err := unlink(); err != nil {
			t.Fatal(err)
		}
		for _, left := range []string{"loaded/" + agentUnit, "running/" + agentUnit, Lib, UnitDir + "/" + agentUnit} {
			if exists(filepath.Join(d.root, left)) {
				t.Errorf("killed at command %d: %s is left", n, left)
			}
		}
		if !died && n > 3 { // one failure is let pass: that of forgetting failures
			return
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	dynamic := filepath.Join(filepath.Dir(release(t, 0)), "dynamic")
	tests := []struct {
		name  string
		spoil func(root, bin string) error
		want  string
	}{
		{"no systemd", func(root, _ string) error { return os.RemoveAll(filepath.Join(root, "run/systemd")) }, "not run by systemd"},
		{"missing", func(_, bin string) error { return os.Remove(filepath.Join(bin, "hanzo-stage")) }, "hanzo-stage is not there"},
		{"another build", func(_, bin string) error {
			return replaceWith(filepath.Join(bin, "train"), filepath.Join(release(t, 1), "train"))
		}, "another build"},
		{"another program", func(_, bin string) error {
			return replaceWith(filepath.Join(bin, "train"), filepath.Join(bin, "hanzo-stage"))
		}, "another program"},
		{"no program", func(_, bin string) error {
			return os.WriteFile(filepath.Join(bin, "train"), []byte("#!/bin/sh\n"), 0o755)
		}, "no program of Go's"},
		{"no file", func(_, bin string) error {
			return errors.Join(os.Remove(filepath.Join(bin, "train")), unix.Mkfifo(filepath.Join(bin, "train"), 0o644))
		}, "is no file"},
		{"not static", func(_, bin string) error { return replaceWith(filepath.Join(bin, "train"), dynamic) }, "CGO_ENABLED=0"},
		{"another machine", func(_, bin string) error {
			text, err := os.ReadFile(filepath.Join(bin, "train"))
			text[18], text[19] = 8, 0 // e_machine: MIPS
			return errors.Join(err, os.WriteFile(filepath.Join(bin, "train"), text, 0o755))
		}, "is a program for EM_MIPS"},
		{"masked", func(root, _ string) error { return os.Symlink("/dev/null", filepath.Join(root, UnitDir, agentUnit)) }, "systemctl unmask hanzo-link.service"},
		{"written by others", func(root, _ string) error { return os.Chmod(filepath.Join(root, "usr/local/lib"), 0o2775) }, "chmod go-w /usr/local/lib"},
		{"a link", func(root, _ string) error {
			return errors.Join(os.Remove(filepath.Join(root, "usr/local/lib")), os.Symlink("/var", filepath.Join(root, "usr/local/lib")))
		}, "/usr/local/lib is no folder"},
		{"a folder of another's", func(root, _ string) error { return os.Chown(filepath.Join(root, "usr/local"), 12345, 0) }, "user 12345's"},
		{"read-only /var", readOnly("var/lib"), "/var/lib cannot be written: its file system is read-only"},
		{"read-only /etc", readOnly("etc"), "/etc/systemd/system cannot be written: its file system is read-only"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, bin := host(t), copyOf(t, release(t, 0))
			if err := tt.spoil(d.root, bin); err != nil {
				if errors.Is(err, fs.ErrPermission) {
					t.Skipf("needs root: %v", err)
				}
				t.Fatal(err)
			}
			t.Cleanup(func() {
				unix.Unmount(filepath.Join(d.root, "var/lib"), 0)
				unix.Unmount(filepath.Join(d.root, "etc"), 0)
			})
			before := tree(t, d.root)
			err := d.host().Check(bin)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if names := differ(tree(t, d.root), before); len(names) > 0 || len(d.calls) > 0 {
				t.Errorf("it wrote %v and ran %v", names, d.calls)
			}
		})
	}
}

func replaceWith(path, with string) error {
	text, err := os.ReadFile(with)
	return errors.Join(err, os.WriteFile(path, text, 0o755))
}

// readOnly mounts what is there over itself, read-only.
func readOnly(path string) func(root, _ string) error {
	return func(root, _ string) error {
		path := filepath.Join(root, path)
		if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "mount", Path: path, Err: err}
		}
		return unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
}

// TestReplacedAfterTheCheck has the folder's owner put another build there after the
// check.
func TestReplacedAfterTheCheck(t *testing.T) {
	d, bin := host(t), copyOf(t, release(t, 0))
	if err := d.host().Check(bin); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "hanzo-launcher"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := d.host().Place(t.Context(), bin); err == nil {
		t.Fatal("it was installed")
	}
	if exists(filepath.Join(d.root, Lib, "hanzo-launcher")) || exists(filepath.Join(d.root, Lib, manifest)) {
		t.Error("it stands there")
	}
}

func TestLabelsAreRestoredWhereSELinuxIsOn(t *testing.T) {
	d := host(t)
	for _, name := range []string{"sys/fs/selinux/enforce", "usr/sbin/restorecon"} {
		path := filepath.Join(d.root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.link(t.Context(), release(t, 0)); err != nil {
		t.Fatal(err)
	}
	var labelled string
	started := slices.IndexFunc(d.calls, func(c string) bool { return strings.HasPrefix(c, "systemctl") })
	for _, c := range d.calls[:started] {
		if strings.HasPrefix(c, "restorecon ") {
			labelled += c + " "
		}
	}
	for _, path := range []string{"/usr/local/lib/hanzo ", UnitDir + "/" + agentUnit, State + "/store"} {
		if !strings.Contains(labelled, path) {
			t.Errorf("before anything starts, %s has not its label: %s", path, labelled)
		}
	}
}

// TestChangedByHand has somebody change what is installed and start the services with
// it: linking again puts it back and starts them from it.
func TestChangedByHand(t *testing.T) {
	for _, path := range []string{filepath.Join(UnitDir, launcherUnit), filepath.Join(UnitDir, agentUnit), filepath.Join(Lib, "hanzo-launcher"), filepath.Join(Lib, "hanzo-link")} {
		d := host(t)
		if err := d.link(t.Context(), release(t, 0)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.root, path), []byte("another"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"daemon-reload"}, {"stop", agentUnit, launcherUnit}, {"start"}} {
			if err := d.run(t.Context(), "systemctl", args...); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.link(t.Context(), release(t, 0)); err != nil {
			t.Fatal(err)
		}
		d.running(t)
	}
}
