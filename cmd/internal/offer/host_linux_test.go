package offer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/sandbox"
	"github.com/hanzoai/link/spool/canon"
)

func TestBinaries(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a manifest is root's")
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	said := func(name string) string {
		if err := Binaries(dir)[name]; err != nil {
			return err.Error()
		}
		return ""
	}
	if got := said("train"); !strings.Contains(got, "nothing is installed") {
		t.Error(got)
	}
	write("manifest.json", `{"binaries":{"train":"`+string(canon.Sum([]byte("a program")))+`"}}`)
	if got := said("train"); !strings.Contains(got, "no such file") {
		t.Error(got)
	}
	write("train", "a program")
	if got := said("train"); got != "" {
		t.Error(got)
	}
	if got := said("hanzo-stage"); !strings.Contains(got, "names no hanzo-stage") {
		t.Error(got)
	}
	write("train", "another")
	if got := said("train"); !strings.Contains(got, "is not the binary that was installed") {
		t.Error(got)
	}
	write("train", "a program")
	if err := os.Chmod(filepath.Join(dir, "train"), 0o777); err != nil {
		t.Fatal(err)
	}
	if got := said("train"); !strings.Contains(got, "root's alone") {
		t.Error(got)
	}
	write("manifest.json", `{"binaries":`)
	if got := said("train"); !strings.Contains(got, "manifest.json") {
		t.Error(got)
	}
}

// This host has no agent, so the last check cannot be made; what comes before goes
// first.
func TestAble(t *testing.T) {
	start := sandbox.Check{Name: "a sandbox starts", Need: true, Detail: "not tried"}
	kernel := sandbox.Check{Name: "kernel", Need: true, Detail: "too old"}
	note := sandbox.Check{Name: "Landlock", Detail: "not in this kernel"}
	if unable, untried := able([]sandbox.Check{note, start}); unable != "" || !strings.Contains(untried, "systemctl start hanzo-link") {
		t.Errorf("%q, %q", unable, untried)
	}
	if unable, untried := able([]sandbox.Check{kernel, note, start}); unable != "kernel: too old" || untried != "" {
		t.Errorf("%q, %q", unable, untried)
	}
	start.OK = true
	if unable, untried := able([]sandbox.Check{note, start}); unable != "" || untried != "" {
		t.Errorf("%q, %q", unable, untried)
	}
}

func TestHostAnswersForEveryKind(t *testing.T) {
	all, err := Host(t.Context())
	if err != nil || len(all) != len(Kinds) {
		t.Fatalf("%v, %v", all, err)
	}
	for i, v := range all {
		if v.Kind != Kinds[i] || v.Why == "" {
			t.Errorf("%+v", v)
		}
	}
}
