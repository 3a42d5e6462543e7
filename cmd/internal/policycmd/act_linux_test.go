package policycmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hanzoai/link/cmd/internal/offer"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/policy"
)

// owner is root on a host with a policy.
type owner struct {
	t    *testing.T
	host host
}

func newOwner(t *testing.T, src string) *owner {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a policy is root's")
	}
	o := &owner{t: t}
	o.host = host{filepath.Join(t.TempDir(), "policy.json"), func(context.Context) ([]offer.Verdict, error) {
		p, _, err := policy.Load(o.host.path)
		if err != nil {
			return nil, err
		}
		return []offer.Verdict{{Kind: policy.TrainFit, Why: "kinds are now " + strings.Join(p.Kinds, " ")}}, nil
	}, func() string { return "" }}
	o.write(src)
	return o
}

func (o *owner) write(src string) {
	o.t.Helper()
	if err := os.WriteFile(o.host.path, []byte(src), 0o644); err != nil {
		o.t.Fatal(err)
	}
}

func (o *owner) text() string {
	o.t.Helper()
	b, err := os.ReadFile(o.host.path)
	if err != nil {
		o.t.Fatal(err)
	}
	return string(b)
}

func (o *owner) hanzo(args ...string) (status term.Status, out, errs string) {
	var stdout, stderr bytes.Buffer
	status = term.Program{Name: "hanzo", Commands: o.host.commands()}.Main(o.t.Context(), append([]string{"policy"}, args...), term.IO{Out: &stdout, Err: &stderr})
	return status, stdout.String(), stderr.String()
}

func (o *owner) must(args ...string) string {
	o.t.Helper()
	status, out, errs := o.hanzo(args...)
	if status != term.OK || errs != "" {
		o.t.Fatalf("%v: status %d: %s", args, status, errs)
	}
	return out
}

func mustSay(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
}

func TestAllowAndDeny(t *testing.T) {
	o := newOwner(t, written)
	out := o.must("allow", "train.fit", "--memory", "4GiB", "--cpus", "2", "--disk", "10GiB")
	mustSay(t, out, "train.fit is admitted, for acme", "4 GiB of memory, 2 cores, 10 GiB of disk and no accelerator", "kinds are now train.fit")
	want := strings.NewReplacer(`"kinds": []`, `"kinds": ["train.fit"]`,
		`"memory": 0, "cpus": 0, "disk": 0`, `"memory": 4294967296, "cpus": 2, "disk": 10737418240`).Replace(written)
	if got := o.text(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	mustSay(t, o.must("allow", "train.fit"), "was admitted already")
	mustSay(t, o.must("deny", "fn.run"), "fn.run was not admitted")
	if got := o.text(); got != want {
		t.Errorf("changed for nothing:\n%s", got)
	}
	mustSay(t, o.must("deny", "train.fit"), "no longer admitted", "kinds are now ")
	if got, want := o.text(), strings.Replace(want, `["train.fit"]`, `[]`, 1); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	mustSay(t, o.must("allow", "train.fit", "--cpus", "0"), "caps.cpus is 0")
}

// The file is for all to read, whatever the umask of root's shell.
func TestModeAndLeavings(t *testing.T) {
	o := newOwner(t, written)
	if err := os.Chmod(o.host.path, 0o600); err != nil {
		t.Fatal(err)
	}
	old := syscall.Umask(0o077)
	o.must("allow", "train.fit")
	syscall.Umask(old)
	info, err := os.Stat(o.host.path)
	if err != nil || info.Mode() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	left, err := os.ReadDir(filepath.Dir(o.host.path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if e.Name() != "policy.json" && e.Name() != "policy.json.lock" {
			t.Errorf("%s is left", e.Name())
		}
	}
}

// Admitting a kind gives it nothing by itself, and says what would.
func TestCapsAreTheOwners(t *testing.T) {
	o := newOwner(t, written)
	out := o.must("allow", "train.fit")
	mustSay(t, out, "it can run nothing yet, for caps.memory is 0, caps.cpus is 0, caps.disk is 0; this host has ", `"caps": {"vram": 0, "memory": `, "sudo hanzo policy allow train.fit --memory ")
	p, _, err := policy.Load(o.host.path)
	if err != nil || p.Caps != (policy.Caps{}) {
		t.Errorf("%+v, %v", p.Caps, err)
	}

	// What it says to do is enough.
	_, command, found := strings.Cut(out, "which is what this does: sudo hanzo policy ")
	command, _, _ = strings.Cut(command, "\n")
	if !found {
		t.Fatal(out)
	}
	out = o.must(strings.Fields(command)...)
	if strings.Contains(out, "nothing yet") {
		t.Error(out)
	}
	line, _, _ := strings.Cut(o.text()[strings.Index(o.text(), `"caps"`):], "\n")
	if !strings.Contains(out, "work may have") || strings.Contains(line, `"memory": 0`) {
		t.Errorf("%s\n%s", out, line)
	}
}

func TestSuggest(t *testing.T) {
	for _, c := range []struct {
		have policy.Caps
		free policy.Free
		cpus int
		want policy.Caps
	}{
		{policy.Caps{}, policy.Free{MemoryTotal: 67<<30 + 5, Disk: 110 << 30, DiskTotal: 100 << 30}, 16, policy.Caps{Memory: 33 << 30, CPUs: 8, Disk: 50 << 30}},
		{policy.Caps{Memory: 1 << 30, VRAM: 7}, policy.Free{MemoryTotal: 8 << 30, Disk: 1 << 30, DiskTotal: 1 << 30}, 1, policy.Caps{VRAM: 7, Memory: 1 << 30, CPUs: 1, Disk: 448 << 20}},
		{policy.Caps{}, policy.Free{MemoryTotal: 200 << 20, Disk: 0, DiskTotal: 1 << 40}, 2, policy.Caps{Memory: 100 << 20, CPUs: 1, Disk: 1 << 20}},
	} {
		if got := suggest(c.have, c.free, c.cpus); got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}

func TestShow(t *testing.T) {
	o := newOwner(t, written)
	mustSay(t, o.must("show"), "none, so nothing runs here", "acme", "at most 86400 s, idle at most 600 s", "and this host, now:", "kinds are now ")
	var shown struct {
		Path, SHA256 string
		Policy       struct {
			Kinds []string
			Caps  map[string]int64
		}
		Offers []offer.Verdict
	}
	o.must("allow", "train.fit", "--memory", "1GiB", "--cpus", "1", "--disk", "1GiB", "--vram", "2GiB")
	if err := json.Unmarshal([]byte(o.must("show", "--json")), &shown); err != nil {
		t.Fatal(err)
	}
	if len(shown.Policy.Kinds) != 1 || shown.Policy.Caps["vram"] != 2<<30 || len(shown.Offers) != 1 || len(shown.SHA256) != 64 {
		t.Errorf("%+v", shown)
	}
	mustSay(t, o.must("show"), "2 GiB together")
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		what   string
		make   func(*owner) error
		status term.Status
		says   string
	}{
		{"good", func(*owner) error { return nil }, term.OK, ""},
		{"absent", func(o *owner) error { return os.Remove(o.host.path) }, term.Failed, "sudo hanzo link writes one"},
		{"no folder", func(o *owner) error { return os.RemoveAll(filepath.Dir(o.host.path)) }, term.Failed, "sudo hanzo link writes one"},
		{"all may write", func(o *owner) error { return os.Chmod(o.host.path, 0o666) }, term.Failed, "chmod go-w"},
		{"another's", func(o *owner) error { return os.Chown(o.host.path, 65534, 0) }, term.Failed, "chown it to root"},
		{"a folder that all may write", func(o *owner) error { return os.Chmod(filepath.Dir(o.host.path), 0o777) }, term.Failed, "not safe"},
		{"a link", func(o *owner) error {
			return errors.Join(os.Rename(o.host.path, o.host.path+"1"), os.Symlink(o.host.path+"1", o.host.path))
		}, term.Failed, "symbolic link"},
		{"empty", func(o *owner) error { o.write(""); return nil }, term.Usage, "the file is empty"},
		{"not JSON", func(o *owner) error { o.write("kinds: []"); return nil }, term.Usage, "not valid"},
		{"a member that is not known", func(o *owner) error { o.write(`{"kinds": [], "enabled": true}`); return nil }, term.Usage, "enabled"},
		{"a kind that is none", func(o *owner) error { o.write(`{"kinds": ["shell"]}`); return nil }, term.Usage, "is no kind"},
		{"twice", func(o *owner) error { o.write(`{"kinds": [], "kinds": ["fn.run"]}`); return nil }, term.Usage, "kinds"},
		{"half", func(o *owner) error { o.write(written[:40]); return nil }, term.Usage, "not valid"},
	} {
		o := newOwner(t, written)
		if err := c.make(o); err != nil {
			t.Fatal(err)
		}
		before, _ := os.ReadFile(o.host.path)
		status, out, errs := o.hanzo("check")
		if status != c.status || !strings.Contains(errs, c.says) {
			t.Errorf("%s: status %d: %s", c.what, status, errs)
		}
		if strings.Count(errs, "\n") > 1 {
			t.Errorf("%s: more than a line: %s", c.what, errs)
		}
		if status == term.OK {
			mustSay(t, out, "root's alone and valid")
			continue
		}
		if status, out, _ := o.hanzo("check", "--json"); status != c.status || !strings.Contains(out, `"ok":false`) {
			t.Errorf("%s: status %d: %s", c.what, status, out)
		}
		for _, command := range []string{"allow", "deny"} {
			if got, _, errs := o.hanzo(command, "train.fit"); got != c.status || !strings.Contains(errs, c.says) {
				t.Errorf("%s: %s: status %d: %s", c.what, command, got, errs)
			}
		}
		if after, _ := os.ReadFile(o.host.path); !bytes.Equal(after, before) {
			t.Errorf("%s: it was changed to %s", c.what, after)
		}
	}
}

func TestUsage(t *testing.T) {
	o := newOwner(t, written)
	for _, args := range [][]string{
		{"allow"}, {"allow", "train.fit", "fn.run"}, {"allow", "train"}, {"deny", ""}, {"show", "x"}, {"check", "x"},
		{"allow", "train.fit", "--memory", "8"}, {"allow", "train.fit", "--cpus", "-1"}, {"allow", "train.fit", "--memory", "9000TiB"},
		{"allow", "train.fit", "--cpus", "2000"},
	} {
		if status, _, errs := o.hanzo(args...); status != term.Usage {
			t.Errorf("%v: status %d: %s", args, status, errs)
		}
	}
	if o.text() != written {
		t.Errorf("it was changed:\n%s", o.text())
	}
}

// Whoever changes it at the same time loses nothing.
func TestChangesAtOnce(t *testing.T) {
	o := newOwner(t, written)
	var all sync.WaitGroup
	for _, args := range [][]string{
		{"allow", "train.fit"}, {"allow", "fn.run"}, {"allow", "engine.serve"}, {"allow", "studio.render", "--cpus", "3"}, {"allow", "fn.run", "--disk", "1GiB"},
	} {
		all.Go(func() {
			if status, _, errs := o.hanzo(args...); status != term.OK {
				t.Errorf("%v: %s", args, errs)
			}
		})
	}
	all.Wait()
	p, _, err := policy.Load(o.host.path)
	if err != nil || len(p.Kinds) != 4 || p.Caps.CPUs != 3 || p.Caps.Disk != 1<<30 {
		t.Errorf("%+v, %v", p, err)
	}
}

// Caps above what the host has are told, and may stand.
func TestExcess(t *testing.T) {
	free := policy.Free{MemoryTotal: 8 << 30, DiskTotal: 100 << 30}
	for _, e := range []struct {
		caps policy.Caps
		want string
	}{
		{policy.Caps{Memory: 8 << 30, CPUs: 4, Disk: 100 << 30}, ""},
		{policy.Caps{Memory: 9 << 30, CPUs: 4, Disk: 1}, "than this host has, 8 GiB of memory: work"},
		{policy.Caps{Memory: 9 << 30, CPUs: 5, Disk: 1 << 40}, "than this host has, 8 GiB of memory, 4 cores, 100 GiB of disk: work"},
	} {
		var out bytes.Buffer
		excess(&out, e.caps, free, 4)
		if (out.Len() == 0) != (e.want == "") || !strings.Contains(out.String(), e.want) {
			t.Errorf("%+v: %s", e.caps, out.String())
		}
	}
	o := newOwner(t, `{"orgs":["acme"]}`)
	mustSay(t, o.must("allow", "train.fit", "--cpus", "1000"), "note: that is more than this host has")
}

func TestShowSaysWhatIsWrong(t *testing.T) {
	o := newOwner(t, "{\n\"kinds\": [\"train.fit\n]}")
	status, out, errs := o.hanzo("show", "--json")
	if status != term.Usage || !json.Valid([]byte(out)) {
		t.Errorf("status %d: %s", status, out)
	}
	mustSay(t, errs, "line 2, byte 21 of it", "a string does not end", "move it away and run sudo hanzo link")
	mustSay(t, out, "a string does not end")
	o.write("{}")
	mustSay(t, o.must("allow", "train.fit"), `as "orgs": ["NAME"]`)
}

// On a host for presence only nobody is sent to a command that is refused there.
func TestNoPolicyOnAHostForPresence(t *testing.T) {
	o := newOwner(t, "{}")
	if err := os.Remove(o.host.path); err != nil {
		t.Fatal(err)
	}
	_, _, errs := o.hanzo("check")
	mustSay(t, errs, "sudo hanzo link writes one")
	o.host.unfit = func() string { return "a reason" }
	for _, args := range [][]string{{"check"}, {"show"}, {"allow", "train.fit"}, {"deny", "train.fit"}} {
		status, _, errs := o.hanzo(args...)
		if status != term.Failed || strings.Contains(errs, "hanzo link") {
			t.Errorf("%v: status %d: %s", args, status, errs)
		}
		mustSay(t, errs, "it would admit nothing: this host cannot build the sandbox, for a reason; hanzo doctor")
	}
}
