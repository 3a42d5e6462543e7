//go:build linux

package attempt

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// user is an ordinary user's number that no account has.
const user = 64001

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Argument {
		os.Exit(Main(os.Args[2:], os.Stdout))
	}
	os.Exit(m.Run())
}

func TestArgumentsSayTheProfile(t *testing.T) {
	for _, p := range []Profile{
		{},
		{Inet: true, WholeProc: true, Run: "/run/a b", Shm: 1 << 40, Port: 8080, Abstract: "name"},
		{Read: []string{"/in/stage", "/in/base"}, Write: []string{"/spool"}, Devices: []string{"/dev/kfd"},
			Env: []string{"A=", "B=-x", "C=a=b"}, Hidden: []string{"-"}},
	} {
		args := p.Arguments()
		if args[0] != Argument || args[1] != "list" {
			t.Fatalf("%v does not run the list", args)
		}
		var got Profile
		err := json.Unmarshal([]byte(args[2]), &got)
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("%+v came back as %+v, %v", p, got, err)
		}
	}
}

func TestEveryLineIsListedOnce(t *testing.T) {
	seen := make(map[int]bool)
	for _, r := range Listed() {
		if r.Name == "" || r.Expected == "" || seen[r.Number] {
			t.Errorf("%+v is unnamed, expects nothing or comes twice", r)
		}
		seen[r.Number] = true
	}
}

func TestResultsEndWhereTheLinesDo(t *testing.T) {
	output := `{"number":1,"name":"a","expected":"b","got":"c","state":"held"}` + "\nfatal error: out of memory\n" + `{"number":2,"state":"held"}` + "\n"
	if got := Results([]byte(output)); len(got) != 1 || got[0].Number != 1 || got[0].State != Held {
		t.Errorf("%+v", got)
	}
}

func TestPathsOfMountsAreDecoded(t *testing.T) {
	for escaped, path := range map[string]string{`/a\040b\011c\012d\134e`: "/a b\tc\nd\\e", `/a\134040b`: `/a\040b`, "/ü": "/ü"} {
		if got := unescape(escaped); got != path {
			t.Errorf("%s became %q", escaped, got)
		}
	}
}

// What could not be tried is neither a hole nor a wall.
func TestAnAttemptThatFailsIsNoHole(t *testing.T) {
	for _, c := range []struct {
		note func(*trial)
		want State
	}{
		{func(t *trial) {}, Failed},
		{func(t *trial) { t.held("EPERM") }, Held},
		{func(t *trial) { t.held("EPERM"); t.failed("no child") }, Failed},
		{func(t *trial) { t.failed("no child"); t.gaveWay("root") }, GaveWay},
	} {
		tried := new(trial)
		c.note(tried)
		if got := tried.result(effort{}); got.State != c.want || got.Got == "" {
			t.Errorf("%+v, not %s", got, c.want)
		}
	}
}

// An attempt that cannot fail is none. Here an ordinary user makes them, in
// namespaces (for the sake of this host) but in no sandbox.
func TestWithoutASandboxAttemptsSucceed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("takes root to become another user in namespaces of its own")
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("there is no setpriv here to become another user with")
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, user, user); err != nil {
		t.Fatal(err)
	}
	// The test's binary lies where another user may not look.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	p := Profile{Run: dir, Shm: 1 << 20, Env: []string{"ONLY=this"}}
	// A shell is pid 1 and root, so that there is one to reach for.
	const script = `mount -t proc proc /proc && setpriv --reuid 64001 --regid 64001 --clear-groups /proc/self/fd/3 "$@"; exit 0`
	command := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, p.Arguments()...)...)
	command.Dir = dir
	command.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	command.ExtraFiles = []*os.File{program}
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET,
		Unshareflags: unix.CLONE_NEWNS, // which also makes the mounts private
		Pdeathsig:    unix.SIGKILL,
	}
	var output, errors bytes.Buffer
	command.Stdout, command.Stderr = &output, &errors
	if err := command.Run(); err != nil {
		t.Fatalf("%v: %s", err, errors.String())
	}
	results := Results(output.Bytes())
	if len(results) != len(Listed()) {
		t.Fatalf("%d lines of %d: %s\n%s", len(results), len(Listed()), output.String(), errors.String())
	}
	var gave []int
	for _, r := range results {
		if r.State == GaveWay {
			gave = append(gave, r.Number)
		}
	}
	t.Logf("gave way: %v", gave)
	// Those of which the kernel lets any user have a part.
	for _, number := range []int{2, 7, 9, 11, 22, 27, 29, 30, 31, 34, 39, 42, 55, 58, 68, 72, 74, 101, 102, 103, 104, 105} {
		if !slices.Contains(gave, number) {
			t.Errorf("attempt %d held where there is no sandbox: %+v", number, results[slices.IndexFunc(results, func(r Result) bool { return r.Number == number })])
		}
	}
}
