//go:build linux

// Package guest is what runs inside the test machine: ordinary tests, compiled
// by test/vm and started there as root. Outside of a machine they do not run.
//
// The machine is an installed host. The tests move a small agent, which holds the
// connection to the launcher as the real one does; the workload in place of train
// is a program that misbehaves as it is told.
package guest

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// payload is the folder that the machine was given, results the one it hands back.
const (
	payload = "/run/payload"
	results = "/run/results"
)

func TestMain(m *testing.M) {
	if os.Getenv("LINK_VM_GUEST") == "" {
		fmt.Println("guest tests run inside the machine that go test ./test/vm boots")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

func command(name string, args ...string) error {
	_, err := output(name, args...)
	return err
}

// run runs a command and returns its output; a failure ends the test.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := output(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// read returns a file without the space around it.
func read(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// workUser is the number of the user that workloads run as.
var workUser = sync.OnceValue(func() uint32 {
	u, err := user.Lookup("hanzo-work")
	if err != nil {
		return 0
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(uid)
})

func ownerOf(info os.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }
