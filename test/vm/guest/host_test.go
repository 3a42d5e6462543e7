//go:build linux

package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/rpc"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/systemd"
	"github.com/hanzoai/link/test/vm/guest/control"
)

// Where an installed host has what.
const (
	lib       = "/usr/local/lib/hanzo/link"
	state     = "/var/lib/hanzo/link"
	unitGroup = "/sys/fs/cgroup/system.slice/hanzo-link.service"

	launcherUnit = "hanzo-link-launcher.service"
	agentUnit    = "hanzo-link.service"
)

// patience is how long anything may take in an emulated machine whose host is
// busy. What takes longer never ends.
const patience = 2 * time.Minute

// install makes this machine an installed host, once: users, folders, binaries,
// manifest, policy, units. The test agent stands for the agent.
var install = sync.OnceValue(func() error {
	for _, name := range systemd.Units {
		if err := place(name, filepath.Join(systemd.UnitDir, name)); err != nil {
			return err
		}
	}
	err := errors.Join(
		place(systemd.Sysusers, filepath.Join(systemd.SysusersDir, "hanzo-link.conf")),
		place(systemd.Tmpfiles, filepath.Join(systemd.TmpfilesDir, "hanzo-link.conf")),
		command("systemd-sysusers"),
		command("systemd-tmpfiles", "--create", "hanzo-link.conf"),
		copyFile("hanzo-launcher", filepath.Join(lib, "hanzo-launcher")),
		copyFile("hanzo-stage", filepath.Join(lib, "hanzo-stage")),
		copyFile("agent", filepath.Join(lib, "hanzo-link")),
		copyFile("work", filepath.Join(lib, "train")),
		writeManifest(),
		writePolicy(defaultPolicy),
		replaceFile(filepath.Join(systemd.UnitDir, agentUnit+".d/test.conf"), []byte(testAgent), 0o644),
		command("systemctl", "daemon-reload"),
		command("systemctl", "enable", "--quiet", "hanzo-link-launcher.socket", agentUnit),
	)
	if err != nil {
		return err
	}
	// The agent's part of the store.
	trees := filepath.Join(state, "store/trees")
	if err := errors.Join(os.Mkdir(trees, 0o755), chown(trees, "hanzo-link")); err != nil {
		return err
	}
	return command("systemctl", "start", "hanzo-link-launcher.socket", agentUnit)
})

// testAgent is what the agent's unit lacks for the agent of these tests, which is linked
// to nothing and tells systemd nothing.
const testAgent = "[Unit]\nConditionPathExists=\n[Service]\nType=exec\nWatchdogSec=0\n"

func place(name, to string) error {
	text, err := systemd.Files.ReadFile(name)
	if err != nil {
		return err
	}
	return replaceFile(to, text, 0o644)
}

func copyFile(name, to string) error {
	text, err := os.ReadFile(filepath.Join(payload, name))
	if err != nil {
		return err
	}
	return replaceFile(to, text, 0o755)
}

// replaceFile writes a file beside and renames it, as an installation does: what
// runs from the old one goes on.
func replaceFile(name string, text []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	temporary := name + ".new"
	return errors.Join(os.WriteFile(temporary, text, mode), os.Chmod(temporary, mode), os.Rename(temporary, name))
}

func chown(name, owner string) error {
	u, err := user.Lookup(owner)
	if err != nil {
		return err
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return os.Chown(name, uid, gid)
}

// writeManifest pins the binaries that stand in lib.
func writeManifest() error {
	pins := make(map[string]string)
	for _, name := range []string{"hanzo-stage", "train"} {
		text, err := os.ReadFile(filepath.Join(lib, name))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		pins[name] = hex.EncodeToString(sum[:])
	}
	text, err := json.Marshal(map[string]any{"binaries": pins})
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(lib, "manifest.json"), text, 0o644)
}

// defaultPolicy admits what the tests start.
var defaultPolicy = map[string]any{
	"kinds": []string{policy.TrainFit}, "orgs": []string{"acme"}, "concurrency": 4, "maxSec": 86400,
	"caps": map[string]any{"vram": 0, "memory": 2 << 30, "cpus": 16, "disk": 512 << 20},
}

func writePolicy(p map[string]any) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return replaceFile(policy.Path, text, 0o644)
}

// A host is this machine with everything installed and the agent connected.
type host struct {
	testing.TB
	agent *rpc.Client
}

// connected returns the host once the launcher has told the agent that it may
// start work.
func connected(t testing.TB) *host {
	t.Helper()
	if err := install(); err != nil {
		t.Fatal(err)
	}
	h := &host{TB: t}
	h.dial()
	t.Cleanup(func() { h.agent.Close() })
	return h
}

// dial connects to the agent, which may be starting again, and waits until the
// launcher is ready for it.
func (h *host) dial() {
	h.Helper()
	if h.agent != nil {
		h.agent.Close()
	}
	var last any
	until(h, "the agent is connected to the launcher", func() bool {
		agent, err := rpc.Dial("unix", control.Socket)
		if last = err; err != nil {
			return false
		}
		var replies []control.Reply
		if err := agent.Call("Agent.Replies", 0, &replies); err != nil || len(replies) == 0 || replies[0].Ready == nil {
			last = fmt.Sprintf("%v, %+v", err, replies)
			agent.Close()
			return false
		}
		h.agent, last = agent, replies[0].Ready
		return true
	}, &last)
}

// until waits for a condition. What show points to is shown when it does not come
// about.
func until(t testing.TB, what string, is func() bool, show ...*any) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			for _, s := range show {
				t.Log(*s)
			}
			t.Fatalf("never: %s\n%s", what, journalTail())
		}
	}
}

// call calls the agent.
func (h *host) call(method string, args, reply any) {
	h.Helper()
	if err := h.agent.Call("Agent."+method, args, reply); err != nil {
		h.Fatalf("the agent's %s: %v\n%s", method, err, journalTail())
	}
}

// try has the agent attempt something and returns the errno's name, or "done".
func (h *host) try(a control.Attempt) string {
	h.Helper()
	var answer string
	h.call("Try", a, &answer)
	return answer
}

// send has the agent send a packet, and returns how many replies came before.
func (h *host) send(packet []byte) int {
	h.Helper()
	var before int
	h.call("Send", packet, &before)
	return before
}

// await returns the first reply after the first n that is what is looked for.
func (h *host) await(n int, what string, is func(control.Reply) bool) control.Reply {
	h.Helper()
	return h.awaitFor(patience, n, what, is)
}

func (h *host) awaitFor(limit time.Duration, n int, what string, is func(control.Reply) bool) control.Reply {
	h.Helper()
	var seen []control.Reply
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		var replies []control.Reply
		h.call("Replies", n, &replies)
		if i := slices.IndexFunc(replies, is); i >= 0 {
			return replies[i]
		}
		seen = append(seen, replies...)
		n += len(replies)
	}
	text, _ := json.Marshal(seen)
	h.Fatalf("the launcher never said %s, but %s\n%s", what, text, journalTail())
	panic("unreachable")
}

// A stage is what work is told to do.
type stage struct {
	Do   string `json:"do"`
	N    int    `json:"n,omitempty"`
	Path string `json:"path,omitempty"`
}

// tree puts files into the agent's store and returns their tree's name.
func tree(t testing.TB, files map[string][]byte) string {
	t.Helper()
	var listing []policy.TreeFile
	for path, text := range files {
		sum := sha256.Sum256(text)
		listing = append(listing, policy.TreeFile{Path: path, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(text))})
	}
	hash := policy.TreeHash(listing)
	if hash == "" {
		t.Fatal(policy.CheckTree(listing))
	}
	root := filepath.Join(state, "store/trees", hash)
	for path, text := range files {
		name := filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, text, 0o444)); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
	return hash
}

// A workload is one that was started.
type workload struct {
	h        *host
	activity string
	started  int    // how many replies came before it was asked for
	pid      int    // of its first process, as the machine counts
	group    string // its control group's folder
}

var activities int

// fit is an input of train.fit that the tests change.
func fit(t testing.TB, s stage) map[string]any {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{
		"stage": tree(t, map[string][]byte{"stage.json": text}), "base": tree(t, map[string][]byte{"empty": nil}),
		"memory": 128 << 20, "cpus": 1, "disk": 64 << 20, "vram": 0, "gpus": []int{}, "maxSec": 3600,
	}
}

// envelope is a start as the cloud would ask for it.
func envelope(t testing.TB, input map[string]any) *activity.Envelope {
	t.Helper()
	activities++
	text, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC()
	return &activity.Envelope{
		Activity: fmt.Sprintf("act_%d", activities), Kind: policy.TrainFit, Org: "acme", Project: "default", Requester: "acme/alice",
		Issued: now.Format(time.RFC3339), Deadline: now.Add(time.Hour).Format(time.RFC3339), Input: canon.Raw(text),
	}
}

func packet(t testing.TB, r ipc.Request) []byte {
	t.Helper()
	text, err := canon.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// ask asks for a start and returns the launcher's answer to it.
func (h *host) ask(start *activity.Envelope) (control.Reply, int) {
	h.Helper()
	n := h.send(packet(h, ipc.Request{Start: start}))
	return h.await(n, "started or refused", func(r control.Reply) bool {
		return r.Started != nil && r.Started.Activity == start.Activity || r.Refused != nil && r.Refused.Activity == start.Activity
	}), n
}

// start starts a workload, which must be admitted, and sees to it that it ends.
func (h *host) start(input map[string]any) *workload {
	h.Helper()
	start := envelope(h, input)
	reply, n := h.ask(start)
	if reply.Started == nil {
		h.Fatalf("refused: %+v\n%s", *reply.Refused, journalTail())
	}
	w := &workload{h: h, activity: start.Activity, started: n, pid: reply.PID}
	if reply.PID > 0 {
		w.group = groupOf(h, reply.PID)
	}
	h.Cleanup(func() {
		if h.Failed() { // the next test is to find the host as this one did
			os.WriteFile(filepath.Join(w.group, "cgroup.kill"), []byte("1"), 0)
			for deadline := time.Now().Add(patience); len(leftovers()) > 0 && time.Now().Before(deadline); {
				time.Sleep(100 * time.Millisecond)
			}
		}
	})
	return w
}

// groupOf is the control group of a process, "" when it is gone.
func groupOf(t testing.TB, pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	return filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(strings.TrimSpace(string(text)), "0::"))
}

// says waits until the workload has written that file of its spool.
func (w *workload) says(name string) string {
	w.h.Helper()
	path := filepath.Join(state, "spool", w.activity, name)
	until(w.h, w.activity+" says "+name, func() bool {
		_, err := os.Stat(path)
		return err == nil
	})
	return read(w.h, path)
}

// ended waits for the launcher to say that it is over.
func (w *workload) ended() control.Reply {
	w.h.Helper()
	return w.h.await(w.started, w.activity+" ended", func(r control.Reply) bool { return r.Ended != nil && r.Ended.Activity == w.activity })
}

// stop asks for its end and waits for it.
func (w *workload) stop(reason activity.Reason) control.Reply {
	w.h.Helper()
	w.h.send(packet(w.h, ipc.Request{Stop: &ipc.Stop{Activity: w.activity, Reason: reason}}))
	return w.ended()
}

// number reads a file of the workload's control group that holds one.
func (w *workload) number(name string) int64 {
	w.h.Helper()
	n, err := strconv.ParseInt(read(w.h, filepath.Join(w.group, name)), 10, 64)
	if err != nil {
		w.h.Fatal(err)
	}
	return n
}

// field reads one line of a file of the workload's control group by its key.
func (w *workload) field(name, key string) int64 {
	w.h.Helper()
	text := read(w.h, filepath.Join(w.group, name))
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+" "); ok {
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				w.h.Fatal(err)
			}
			return n
		}
	}
	w.h.Fatalf("no %s in %s:\n%s", key, name, text)
	panic("unreachable")
}

// checkNothingLeft checks that no process of hanzo-work runs, that no control
// group of a workload and no run folder is left but those of a parked stage.
func checkNothingLeft(t testing.TB) {
	t.Helper()
	var left any
	until(t, "nothing of a workload is left", func() bool {
		found := leftovers()
		left = strings.Join(found, "\n")
		return len(found) == 0
	}, &left)
}

func leftovers() (found []string) {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		if info, err := os.Stat(p); err == nil && ownerOf(info) == workUser() {
			line, _ := os.ReadFile(filepath.Join(p, "cmdline"))
			found = append(found, fmt.Sprintf("%s %q", p, line))
		}
	}
	runs, _ := os.ReadDir(filepath.Join(state, "run"))
	for _, r := range runs {
		if strings.HasPrefix(r.Name(), ".") {
			continue // the parked stage's, made ahead of an activity
		}
		found = append(found, "run/"+r.Name())
	}
	groups, _ := filepath.Glob(filepath.Join(unitGroup, "work/*/cgroup.procs"))
	if len(groups) > 1 {
		found = append(found, groups...)
	}
	return found
}

// journalTail is what the two units logged last.
func journalTail() string {
	out, err := output("journalctl", "-b", "--no-pager", "-o", "short-monotonic", "-n", "25", "-u", launcherUnit, "-u", agentUnit)
	if err != nil {
		return err.Error()
	}
	return out
}
