//go:build linux

// Package guest is what runs inside the test machine: ordinary tests, compiled
// by test/vm and started there as root. Outside of a machine they all skip.
package guest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
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

// run runs a command and returns its output; a failure ends the test.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// read returns a file without its last newline.
func read(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
