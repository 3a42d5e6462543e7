//go:build linux

package sandbox

import (
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

	"golang.org/x/sys/unix"
)

// Some hosts are made here by running this test's binary in one: as another user,
// under a limit, with masks. What it shall do is in its environment, and it does it
// before TestMain builds anything.
func init() {
	step, rest, _ := strings.Cut(os.Getenv("SANDBOX_TEST_PROBE"), " ")
	if step == "" {
		return
	}
	if err := elsewhere(step, rest); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func elsewhere(step, rest string) error {
	switch step {
	case "mask": // what container engines do to /proc; locked for who starts from here
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", "/proc/irq", "tmpfs", unix.MS_RDONLY, ""); err != nil {
			return err
		}
		c := probeIn(rest, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUSER, UidMappings: root, GidMappings: root})
		c.Stdout = os.Stdout
		return c.Run()
	case "twenty":
		f := strings.Fields(rest)
		return twenty(f[0], f[1], f[2])
	case "none": // no namespace of the kind that rest names
		kind, group, _ := strings.Cut(rest, " ")
		if err := os.WriteFile("/proc/sys/user/max_"+kind+"_namespaces", []byte("0"), 0); err != nil {
			return err
		}
		rest = group
	}
	return json.NewEncoder(os.Stdout).Encode(Probe(context.Background(), Config{Group: rest, Run: os.TempDir()}))
}

var root = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}

// probeIn is the command that probes in another kind of host.
func probeIn(steps string, attr *syscall.SysProcAttr) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), "SANDBOX_TEST_PROBE="+steps)
	c.SysProcAttr = attr
	c.Stderr = os.Stderr
	return c
}

func probeElsewhere(t *testing.T, steps string, attr *syscall.SysProcAttr) []Check {
	t.Helper()
	asRoot(t)
	out, err := probeIn(steps, attr).Output()
	if err != nil {
		t.Fatal(err)
	}
	var checks []Check
	if err := json.Unmarshal(out, &checks); err != nil {
		t.Fatal(err)
	}
	return checks
}

func asRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can make this host")
	}
}

// named returns the check with this name.
func named(t *testing.T, checks []Check, name string) Check {
	t.Helper()
	i := slices.IndexFunc(checks, func(c Check) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no check %q", name)
	}
	return checks[i]
}

func wantOK(t *testing.T, c Check) {
	t.Helper()
	if !c.OK {
		t.Errorf("%s: %s; want it to hold", c.Name, c.Detail)
	}
}

func wantNot(t *testing.T, c Check, detail string) {
	t.Helper()
	if c.OK || !strings.Contains(c.Detail, detail) {
		t.Errorf("%s: OK %v, %q; want it not to hold, with %q", c.Name, c.OK, c.Detail, detail)
	}
}

// testGroup is an empty control group, removed after the test with nothing in it.
func testGroup(t *testing.T) string {
	t.Helper()
	asRoot(t)
	dir, err := os.MkdirTemp(unified(t), "sandbox-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("something is left in the control group: %v", err)
		}
	})
	return dir
}

// On every host that runs these tests the kernel has what a sandbox is made of,
// whatever its control groups are like.
func TestProbeFindsWhatThisKernelHas(t *testing.T) {
	checks := Probe(t.Context(), Config{Group: testGroup(t), Run: t.TempDir()})
	for _, name := range []string{"root", "kernel", "birth in a control group", "cgroup.kill", "device program",
		"mount namespace", "pid namespace", "network namespace", "ipc namespace", "uts namespace", "cgroup namespace",
		"proc of a pid namespace", "detached mounts", "openat2", "pidfd", "close_range", "seccomp filter"} {
		c := named(t, checks, name)
		wantOK(t, c)
		if !c.Need {
			t.Errorf("%s is not needed; nothing works without it", name)
		}
	}
	for _, name := range []string{"Landlock", "security modules", "GPUs", "disk"} {
		if named(t, checks, name).Need {
			t.Errorf("%s is needed; a sandbox is whole without it", name)
		}
	}
}

func TestHybridHostOffersNothing(t *testing.T) {
	if !isCgroup2("/sys/fs/cgroup/unified") {
		t.Skip("this host's control groups are not hybrid")
	}
	ok, reason := Offers(Probe(t.Context(), Config{Group: testGroup(t), Run: t.TempDir()}))
	want := "cgroup v2: control groups are hybrid (v1 with v2 at /sys/fs/cgroup/unified): boot with systemd.unified_cgroup_hierarchy=1"
	if ok || reason != want {
		t.Errorf("got %v, %q; want %q", ok, reason, want)
	}
}

func TestControlGroupLayouts(t *testing.T) {
	wantOK(t, checkHierarchy(unified(t)))
	old := t.TempDir()
	for _, dir := range []string{"memory", "systemd"} {
		if err := os.Mkdir(old+"/"+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	wantNot(t, checkHierarchy(old), "control groups are version 1 at "+old+": boot with systemd.unified_cgroup_hierarchy=1")
	none := t.TempDir()
	wantNot(t, checkHierarchy(none), "no control groups of version 2 at "+none)
	wantNot(t, checkControllers(none), none+" is not in version 2 of control groups")
}

func TestMissingControllerIsNamedWithItsPlace(t *testing.T) {
	const unit = "/system.slice/hanzo-link.service"
	all := map[string]string{
		"/cgroup.controllers":                  "cpuset cpu io memory hugetlb pids rdma misc\n",
		"/cgroup.subtree_control":              "cpuset cpu io memory pids\n",
		"/system.slice/cgroup.subtree_control": "cpu memory pids\n",
		unit + "/cgroup.subtree_control":       "\n", // the launcher turns them on here
	}
	const restart = ": restart the unit with Delegate=yes, and remove DisableControllers= there"
	for _, c := range []struct {
		name, file, text string
		want             []string // ROOT is the top of the tree
	}{
		{"nothing", "/cgroup.controllers", all["/cgroup.controllers"], nil},
		{"off in the slice", "/system.slice/cgroup.subtree_control", "cpu pids\n",
			[]string{"memory is off in ROOT/system.slice/cgroup.subtree_control" + restart}},
		{"off at the top", "/cgroup.subtree_control", "memory pids\n",
			[]string{"cpu is off in ROOT/cgroup.subtree_control" + restart}},
		{"two off", "/system.slice/cgroup.subtree_control", "memory\n",
			[]string{"cpu, pids are off in ROOT/system.slice/cgroup.subtree_control" + restart}},
		// A controller's name within another's is not it.
		{"only cpuset", "/system.slice/cgroup.subtree_control", "cpuset memory pids\n",
			[]string{"cpu is off in ROOT/system.slice/cgroup.subtree_control" + restart}},
		{"not in the kernel", "/cgroup.controllers", "cpu io pids\n",
			[]string{"memory is missing in ROOT/cgroup.controllers: boot with"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			top := t.TempDir()
			for name, text := range all {
				if name == c.file {
					text = c.text
				}
				if err := os.MkdirAll(filepath.Dir(top+name), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(top+name, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got := missingControllers(top, top+unit)
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for i, want := range c.want {
				if want = strings.ReplaceAll(want, "ROOT", top); !strings.HasPrefix(got[i], want) {
					t.Errorf("got %q, want %q", got[i], want)
				}
			}
			// A unit that is not there yet makes systemd turn them on.
			if c.file != "/cgroup.controllers" {
				if got := missingControllers(top, top+"/system.slice/other.service"); len(got) != 0 {
					t.Errorf("before the unit is there: got %q, want nothing", got)
				}
			}
		})
	}
}

func TestKernelFloor(t *testing.T) {
	for release, want := range map[string]bool{
		"5.13.19": false, "5.10.0-32-amd64": false, "4.18.0-553.el8": false, "": false, "unknown": false,
		"5.14.0-503.el9": true, "6.1.0-25-amd64": true, "7.0-rc1": true, "10.0": true,
	} {
		c := kernelFloor(release)
		if c.OK != want || !strings.Contains(c.Detail, release) {
			t.Errorf("%q: got %v, %q; want %v and the release named", release, c.OK, c.Detail, want)
		}
	}
}

func TestProbeWithoutRootSaysSo(t *testing.T) {
	checks := probeElsewhere(t, "probe "+unified(t)+"/x", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
	ok, reason := Offers(checks)
	if want := "root: this runs as uid 65534: run it as root"; ok || !strings.HasPrefix(reason, want) {
		t.Errorf("got %v, %q; want %q", ok, reason, want)
	}
	for _, name := range []string{"birth in a control group", "device program", "mount namespace", "network namespace",
		"proc of a pid namespace", "detached mounts"} {
		wantNot(t, named(t, checks, name), "root")
	}
	for _, name := range []string{"openat2", "pidfd", "close_range", "seccomp filter"} {
		wantOK(t, named(t, checks, name))
	}
}

// Limits on namespaces are a user namespace's own, so one of the test's has them.
func TestNoNamespacesOfOneKind(t *testing.T) {
	asRoot(t)
	for _, n := range namespaces {
		checks := probeElsewhere(t, "none "+n.limit+" "+unified(t)+"/x",
			&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: root, GidMappings: root})
		wantNot(t, named(t, checks, n.name), "user.max_"+n.limit+"_namespaces is 0, which leaves none: raise it with sysctl")
		for _, other := range namespaces {
			if other != n {
				wantOK(t, named(t, checks, other.name))
			}
		}
	}
}

// In an unprivileged container root is not the host's: it has namespaces, and no
// right to programs.
func TestUnprivilegedContainer(t *testing.T) {
	checks := probeElsewhere(t, "probe "+unified(t)+"/x",
		&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: root, GidMappings: root})
	wantOK(t, named(t, checks, "mount namespace"))
	c := named(t, checks, "device program")
	wantNot(t, c, "device filter cannot be attached")
	wantNot(t, c, "operation not permitted")
}

func TestMaskedProc(t *testing.T) {
	asRoot(t)
	steps := "mask probe " + unified(t) + "/x"
	checks := probeElsewhere(t, steps, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS})
	wantOK(t, named(t, checks, "pid namespace"))
	wantNot(t, named(t, checks, "proc of a pid namespace"), "parts of /proc are masked")
}

// PrivateDevices= of the agent's unit is a device program on its group, and programs
// are all asked.
func TestDeviceProgramOfTheUnitIsFound(t *testing.T) {
	outer := testGroup(t)
	inner := outer + "/unit"
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(inner)
	wantOK(t, checkOtherPrograms(inner))
	program, err := deviceProgram(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if err := (group{outer}).attach(program); err != nil {
		t.Fatal(err)
	}
	c := checkOtherPrograms(inner)
	wantNot(t, c, "one above "+inner)
	if c.Need {
		t.Error("a program above the unit is needed to be away; a container has one and may work")
	}
	c = checkOtherPrograms(outer)
	wantNot(t, c, "remove PrivateDevices=")
	if !c.Need {
		t.Error("a program of the unit may stay; it would deny the GPUs")
	}
}

func TestSecurityModulesAreSaid(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"/none", "", "no SELinux, no AppArmor"},
		{"/sys/fs/selinux/enforce", "1", "SELinux enforces"},
		{"/sys/fs/selinux/enforce", "0", "SELinux is permissive"},
		{"/sys/module/apparmor/parameters/enabled", "Y\n", "AppArmor is on"},
		{"/sys/module/apparmor/parameters/enabled", "N\n", "no SELinux, no AppArmor"},
	} {
		h := newTree(t, "")
		h.file(c.file, c.text)
		got := checkModules(host{h.root})
		if !got.OK || got.Need || !strings.HasPrefix(got.Detail, c.want) {
			t.Errorf("%s %q: got %+v, want %q", c.file, c.text, got, c.want)
		}
		// Root makes the sandbox, so nothing is gained by weakening the host.
		if strings.Contains(got.Detail, "unprivileged") {
			t.Errorf("%q advises on unprivileged user namespaces", got.Detail)
		}
	}
}

func TestFullDiskIsSaid(t *testing.T) {
	dir := t.TempDir()
	asRoot(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("this host lets no tmpfs be mounted: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	wantOK(t, checkDisk(dir+"/run/not/yet"))
	if err := os.WriteFile(dir+"/full", make([]byte, 1<<20-1<<15), 0o600); err != nil {
		t.Fatal(err)
	}
	wantNot(t, checkDisk(dir), "nothing starts until there is more")
}

func TestProbeWithNothingToTryItOn(t *testing.T) {
	checks := Probe(t.Context(), Config{})
	wantNot(t, named(t, checks, "a sandbox starts"), "not tried")
	if ok, _ := Offers(checks); ok {
		t.Error("a host without a group, a directory or a stage offers something")
	}
}

func TestProbeStartsASandbox(t *testing.T) {
	asRoot(t)
	stage := open(t, built.stage)
	cfg := Config{Group: testGroup(t), Run: t.TempDir(), Stage: stage, User: user}
	c := named(t, Probe(t.Context(), cfg), "a sandbox starts")
	wantOK(t, c)
	t.Log(c.Detail)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wantNot(t, named(t, Probe(ended, cfg), "a sandbox starts"), "context canceled")
}

// Nothing stays of any number of probes: no group, mount, descriptor, process, file
// or thread with another namespace. It is looked at in a mount namespace of its own,
// where nobody else mounts anything.
func TestProbeLeavesNothing(t *testing.T) {
	group, dir := testGroup(t), t.TempDir()
	c := probeIn("twenty "+group+" "+dir+" "+built.stage, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS})
	if out, err := c.Output(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left in the run directory: %v", left)
	}
}

// twenty probes twenty times and compares what this process has.
func twenty(group, dir, stage string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	f, err := os.Open(stage)
	if err != nil {
		return err
	}
	defer f.Close()
	probe := func() error {
		for _, c := range Probe(context.Background(), Config{Group: group, Run: dir, Stage: f, User: user}) {
			if c.Name == "a sandbox starts" && !c.OK {
				return errors.New(c.Detail)
			}
		}
		return nil
	}
	if err := probe(); err != nil { // opens what is opened once, such as the poller
		return err
	}
	before := holds()
	for range 20 {
		if err := probe(); err != nil {
			return err
		}
	}
	if after := holds(); after != before {
		return fmt.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	return nil
}

// holds describes what this process has: descriptors, namespaces of its threads,
// children, mounts.
func holds() string {
	fds, _ := filepath.Glob("/proc/self/fd/*")
	namespaces := map[string]bool{}
	threads, _ := filepath.Glob("/proc/self/task/*/ns/pid_for_children")
	for _, thread := range threads {
		if to, err := os.Readlink(thread); err == nil {
			namespaces[to] = true
		}
	}
	var children []byte
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		b, _ := os.ReadFile(list)
		children = append(children, b...)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	return fmt.Sprintf("%d descriptors, %d pid namespaces, children %q, mounts\n%s", len(fds), len(namespaces), children, mounts)
}

func BenchmarkProbe(b *testing.B) {
	asRoot(b)
	for b.Loop() {
		Probe(b.Context(), Config{Group: unified(b) + "/x", Run: b.TempDir()})
	}
}
