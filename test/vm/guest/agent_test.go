//go:build linux

package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/test/vm/guest/control"
	"golang.org/x/sys/unix"
)

func isRefused(r control.Reply) bool { return r.Refused != nil }

// TestCompromisedAgent has the agent try what somebody who took it over would.
func TestCompromisedAgent(t *testing.T) {
	h := connected(t)
	w := h.start(fit(t, stage{Do: "sleep"}))
	w.says("running")
	launcher, err := strconv.Atoi(run(t, "systemctl", "show", "-P", "MainPID", launcherUnit))
	if err != nil {
		t.Fatal(err)
	}

	for _, attempt := range []struct {
		name string
		control.Attempt
		want string // the answer's errno; several, by spaces
	}{
		{"takes the memory limit from every workload", control.Attempt{Do: "write", Path: unitGroup + "/cgroup.subtree_control", To: "-memory"}, "EACCES"},
		{"takes it in the group of all work", control.Attempt{Do: "write", Path: filepath.Dir(w.group) + "/cgroup.subtree_control", To: "-memory"}, "EACCES"},
		{"raises a workload's memory", control.Attempt{Do: "write", Path: w.group + "/memory.max", To: "max"}, "EACCES"},
		{"raises a workload's processes", control.Attempt{Do: "write", Path: w.group + "/pids.max", To: "max"}, "EACCES"},
		{"raises a workload's processor", control.Attempt{Do: "write", Path: w.group + "/cpu.max", To: "max"}, "EACCES"},
		{"moves into a workload's group", control.Attempt{Do: "write", Path: w.group + "/cgroup.procs", To: "0"}, "EACCES"},
		{"moves out of its own", control.Attempt{Do: "write", Path: unitGroup + "/cgroup.procs", To: "0"}, "EACCES"},
		{"kills a workload's group", control.Attempt{Do: "write", Path: w.group + "/cgroup.kill", To: "1"}, "EACCES"},
		{"freezes a workload's group", control.Attempt{Do: "write", Path: w.group + "/cgroup.freeze", To: "1"}, "EACCES"},
		{"makes a group beside the workload's", control.Attempt{Do: "mkdir", Path: filepath.Dir(w.group) + "/mine"}, "EACCES"},
		{"makes a group beside its own", control.Attempt{Do: "mkdir", Path: unitGroup + "/mine"}, "EACCES"},
		{"removes a workload's group", control.Attempt{Do: "rmdir", Path: w.group}, "EACCES EPERM"},
		{"reads a run folder", control.Attempt{Do: "read", Path: filepath.Join(state, "run", w.activity)}, "EACCES ENOENT"},
		{"moves the run folders away", control.Attempt{Do: "rename", Path: state + "/run", To: state + "/run.old"}, "EACCES EBUSY EPERM"},
		{"writes the policy", control.Attempt{Do: "write", Path: "/etc/hanzo/link/policy.json", To: "{}"}, "EROFS EACCES"},
		{"moves the policy", control.Attempt{Do: "rename", Path: "/etc/hanzo/link/policy.json", To: state + "/policy.json"}, "EROFS EACCES EXDEV"},
		{"writes a binary", control.Attempt{Do: "write", Path: lib + "/train", To: "x"}, "EROFS EACCES ETXTBSY"},
		{"writes the manifest", control.Attempt{Do: "write", Path: lib + "/manifest.json", To: "{}"}, "EROFS EACCES"},
		{"replaces the launcher's socket", control.Attempt{Do: "rename", Path: "/run/hanzo-link/launcher.sock", To: "/run/hanzo-link/old"}, "EROFS EACCES"},
		{"signals the launcher", control.Attempt{Do: "kill", PID: launcher}, "EPERM"},
		{"traces the launcher", control.Attempt{Do: "ptrace", PID: launcher}, "EPERM"},
		{"signals the workload", control.Attempt{Do: "kill", PID: w.pid}, "EPERM"},
		{"traces the workload", control.Attempt{Do: "ptrace", PID: w.pid}, "EPERM"},
		{"reads who may log in", control.Attempt{Do: "read", Path: "/etc/shadow"}, "EACCES"},
	} {
		t.Run(attempt.name, func(t *testing.T) {
			if got := h.with(t).try(attempt.Attempt); !strings.Contains(" "+attempt.want+" ", " "+got+" ") {
				t.Errorf("the answer is %s, want %s", got, attempt.want)
			}
		})
	}

	for _, p := range []struct{ name, packet, want string }{
		{"another field", `{"stop":{"activity":"act_0","reason":"cancel","force":true}}`, "force"},
		{"a duplicate key", `{"stop":{"activity":"act_0","activity":"act_2","reason":"cancel"}}`, "activity"},
		{"a wrong type", `{"stop":{"activity":1,"reason":"cancel"}}`, "activity"},
		{"both requests at once", `{"stop":{"activity":"act_0","reason":"cancel"},"start":{}}`, ""},
		{"two messages in one packet", `{"stop":{"activity":"act_0","reason":"cancel"}}{}`, ""},
		{"half a message", `{"stop":{"activity":"act_0",`, ""},
		{"a NUL", "{\"stop\":{\"activity\":\"act_0\x00\",\"reason\":\"cancel\"}}", ""},
		{"no UTF-8", "{\"stop\":{\"activity\":\"act_\xff\",\"reason\":\"cancel\"}}", ""},
		{"a megabyte", strings.Repeat(" ", 150<<10) + `{}`, ""},
		{"a path for an activity", `{"stop":{"activity":"../../etc","reason":"cancel"}}`, "activity"},
	} {
		t.Run("sends "+p.name, func(t *testing.T) {
			h := h.with(t)
			n := h.send([]byte(p.packet))
			r := h.await(n, "refused", isRefused).Refused
			if r.Code != activity.Schema || !strings.Contains(r.Message, p.want) {
				t.Errorf("refused with %+v", *r)
			}
		})
	}

	for _, p := range []struct {
		name   string
		change func(*activity.Envelope, map[string]any)
		code   activity.Code
	}{
		{"with a command", func(_ *activity.Envelope, in map[string]any) { in["args"] = []string{"sh"} }, activity.Schema},
		{"with an environment", func(_ *activity.Envelope, in map[string]any) { in["env"] = map[string]string{"LD_PRELOAD": "x"} }, activity.Schema},
		{"of a path", func(_ *activity.Envelope, in map[string]any) { in["stage"] = "/etc" }, activity.Schema},
		{"of a path upwards", func(_ *activity.Envelope, in map[string]any) { in["base"] = strings.Repeat("../", 21) + "e" }, activity.Schema},
		{"of an upper-case hash", func(_ *activity.Envelope, in map[string]any) { in["base"] = strings.ToUpper(fmt.Sprint(in["base"])) }, activity.Schema},
		{"of a tree that is not there", func(_ *activity.Envelope, in map[string]any) { in["base"] = strings.Repeat("0", 64) }, activity.Pull},
		{"of another kind", func(s *activity.Envelope, _ map[string]any) { s.Kind = "engine.serve" }, activity.Unsupported},
		{"for another org", func(s *activity.Envelope, _ map[string]any) { s.Org = "evil" }, activity.Denied},
		{"above the caps", func(_ *activity.Envelope, in map[string]any) { in["memory"] = 1 << 40 }, activity.Denied},
		{"with more processors than it may", func(_ *activity.Envelope, in map[string]any) { in["cpus"] = 17 }, activity.Denied},
		{"with a GPU", func(_ *activity.Envelope, in map[string]any) { in["vram"], in["gpus"] = 1, []int{0} }, activity.Denied},
		{"after its deadline", func(s *activity.Envelope, _ map[string]any) { s.Deadline = "2020-01-01T00:00:00Z" }, activity.TooLate},
	} {
		t.Run("asks for a start "+p.name, func(t *testing.T) {
			h := h.with(t)
			input := fit(t, stage{Do: "sleep"})
			start := envelope(t, input)
			p.change(start, input)
			start.Input = envelope(t, input).Input
			if r := h.refusal(start); r.Code != p.code {
				t.Errorf("refused with %+v, want %s", r, p.code)
			}
		})
	}

	t.Run("starts more than the policy lets run at once", func(t *testing.T) {
		h := h.with(t)
		var more []*workload
		for range 3 { // beside the one that runs
			more = append(more, h.start(fit(t, stage{Do: "sleep"})))
		}
		if r := h.refusal(envelope(t, fit(t, stage{Do: "sleep"}))); !strings.Contains(r.Message, "concurrency") {
			t.Errorf("refused with %+v", r)
		}
		for _, w := range more {
			w.stop(activity.Cancel)
		}
	})

	t.Run("puts a link where a tree should be", func(t *testing.T) {
		h := h.with(t)
		input := fit(t, stage{Do: "sleep"})
		hash := strings.Repeat("a", 64)
		if got := h.try(control.Attempt{Do: "symlink", Path: filepath.Join(state, "store/trees", hash), To: "/etc"}); got != "done" {
			t.Fatalf("making the link: %s", got)
		}
		input["base"] = hash
		if r := h.refusal(envelope(t, input)); r.Code != activity.Pull {
			t.Errorf("refused with %+v", r)
		}
	})

	if got := run(t, "systemctl", "show", "-P", "MainPID", launcherUnit); got != strconv.Itoa(launcher) {
		t.Errorf("the launcher was process %d and is %s", launcher, got)
	}
	if got := w.number("memory.max"); got != 128<<20 {
		t.Errorf("after all this, memory.max is %d", got)
	}
	w.stop(activity.Cancel)
	checkNothingLeft(t)
}

// TestImpostor has others than the agent connect to the launcher.
func TestImpostor(t *testing.T) {
	connected(t)
	agent := run(t, "id", "-u", "hanzo-link")
	for _, other := range []struct {
		name string
		args []string // before the program that connects
		want string
	}{
		{"root", nil, "not the agent"},
		{"a workload's user", []string{"setpriv", "--reuid=hanzo-work", "--regid=hanzo-work", "--clear-groups"}, "permission denied"},
		{"a workload's user in the agent's group", []string{"setpriv", "--reuid=hanzo-work", "--regid=hanzo-link", "--clear-groups"}, "not the agent"},
		{"nobody", []string{"setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"}, "permission denied"},
		{"the agent's user outside of its unit", []string{"setpriv", "--reuid=hanzo-link", "--regid=hanzo-link", "--clear-groups"}, "not the agent"},
		{"the agent's user by name of another user namespace", []string{"setpriv", "--reuid=hanzo-link", "--regid=hanzo-link", "--clear-groups",
			"unshare", "--user", "--map-user=" + agent}, "not the agent"},
		{"the agent's user in another pid namespace", []string{"unshare", "--pid", "--fork", "--mount-proc",
			"setpriv", "--reuid=hanzo-link", "--regid=hanzo-link", "--clear-groups"}, "not the agent"},
	} {
		t.Run(other.name, func(t *testing.T) {
			args := append(other.args, filepath.Join(payload, "agent"), "-connect")
			out, err := output(args[0], args[1:]...)
			if err == nil || !strings.Contains(err.Error(), other.want) {
				t.Errorf("connecting ended with %q, %v; want %q", out, err, other.want)
			}
		})
	}
}

// TestAgentDies kills the agent, over and over, with work running.
func TestAgentDies(t *testing.T) {
	h := connected(t)
	for i := range 20 {
		w := h.start(fit(t, stage{Do: "daemon"}))
		w.says("running")
		group := w.group
		pid := h.agentPID()
		if err := syscall.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		until(t, "the workload's control group is gone", func() bool {
			_, err := os.Stat(group)
			return os.IsNotExist(err)
		})
		h.dial() // the unit is active again and may start work
		if got := run(t, "systemctl", "is-active", agentUnit); got != "active" {
			t.Fatalf("after kill %d the unit is %s", i+1, got)
		}
		if again := h.agentPID(); again == pid {
			t.Fatalf("the agent was not killed")
		}
		checkNothingLeft(t)
	}
	// What systemd gave to the agent again was taken back again.
	if got := h.try(control.Attempt{Do: "write", Path: unitGroup + "/cgroup.subtree_control", To: "-memory"}); got != "EACCES" {
		t.Errorf("the restarted agent takes the memory limits away: %s", got)
	}
}

// TestLauncherDies kills the launcher with work running, in the ways it can end.
func TestLauncherDies(t *testing.T) {
	h := connected(t)
	for _, way := range []struct {
		name string
		end  func(t *testing.T)
	}{
		{"by SIGKILL", func(t *testing.T) {
			run(t, "systemctl", "kill", "--signal=KILL", launcherUnit)
		}},
		{"by a restart", func(t *testing.T) { run(t, "systemctl", "restart", launcherUnit) }},
	} {
		t.Run(way.name, func(t *testing.T) {
			h.TB = t
			w := h.start(fit(t, stage{Do: "daemon"}))
			w.says("running")
			way.end(t)
			until(t, "the workload's control group is gone", func() bool {
				_, err := os.Stat(w.group)
				return os.IsNotExist(err)
			})
			h.dial()
			checkNothingLeft(t)
			h.start(fit(t, stage{Do: "sleep"})).stop(activity.Cancel)
		})
	}
	h.TB = t
}

// TestAgentStops has the owner stop the agent's unit, with work running.
func TestAgentStops(t *testing.T) {
	h := connected(t)
	w := h.start(fit(t, stage{Do: "stubborn", N: 20}))
	w.says("running")
	run(t, "systemctl", "stop", agentUnit)
	checkNothingLeft(t)
	// Nothing starts it again behind the owner's back, and the launcher waits.
	if agent, launcher := unitState(t, agentUnit), unitState(t, launcherUnit); agent != "inactive" || launcher != "active" {
		t.Errorf("the agent's unit is %s, the launcher's %s", agent, launcher)
	}
	run(t, "systemctl", "start", agentUnit)
	h.dial()
	h.start(fit(t, stage{Do: "sleep"})).stop(activity.Cancel)
}

// unitState is a unit's state, in a word.
func unitState(t testing.TB, unit string) string {
	t.Helper()
	return run(t, "systemctl", "show", "-P", "ActiveState", unit)
}
