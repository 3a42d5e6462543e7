//go:build linux

package guest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
)

func TestStop(t *testing.T) {
	h := connected(t)

	t.Run("200 processes that ignore SIGTERM are dead after ten seconds and one", func(t *testing.T) {
		input := fit(t, stage{Do: "stubborn", N: 200})
		input["memory"] = 512 << 20
		w := h.with(t).start(input)
		w.says("running")
		if n := w.number("pids.current"); n < 200 {
			t.Fatalf("%d processes", n)
		}
		began := time.Now()
		e := w.stop(activity.Cancel).Ended
		took := time.Since(began)
		t.Logf("stopped in %.1f s", took.Seconds())
		// One second, times ten for the emulated processor, on top of the ten.
		if took < 10*time.Second || took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
		if e.State != activity.Stopped || e.Reason != activity.Cancel {
			t.Errorf("it ended as %+v", *e)
		}
		checkNothingLeft(t)
	})

	t.Run("a daemon, twice forked and in a session of its own, is gone", func(t *testing.T) {
		w := h.with(t).start(fit(t, stage{Do: "daemon"}))
		w.says("running")
		if n := len(strings.Fields(read(t, filepath.Join(w.group, "cgroup.procs")))); n != 3 { // stage, workload, daemon
			t.Fatalf("%d processes", n)
		}
		w.stop(activity.Cancel)
		checkNothingLeft(t)
	})

	t.Run("a frozen control group is killed", func(t *testing.T) {
		w := h.with(t).start(fit(t, stage{Do: "stubborn", N: 3}))
		w.says("running")
		if err := os.WriteFile(filepath.Join(w.group, "cgroup.freeze"), []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		until(t, "it is frozen", func() bool { return w.field("cgroup.events", "frozen") == 1 })
		w.stop(activity.Cancel)
		checkNothingLeft(t)
	})

	t.Run("the same activity started twice is one", func(t *testing.T) {
		h := h.with(t)
		start := envelope(t, fit(t, stage{Do: "sleep"}))
		first, n := h.ask(start)
		second, _ := h.ask(start)
		if first.Started == nil || second.Started == nil || first.PID != second.PID {
			t.Errorf("started %+v as %d, then %+v as %d", first.Started, first.PID, second.Started, second.PID)
		}
		w := &workload{h: h, activity: start.Activity, started: n}
		w.stop(activity.Cancel)
		checkNothingLeft(t)
		// And once over it is not started again: its record is kept.
		if r := h.refusal(start); !strings.Contains(r.Message, "has run before") {
			t.Errorf("refused with %+v", r)
		}
	})

	t.Run("the end of an activity that does not run changes nothing", func(t *testing.T) {
		h := h.with(t)
		n := h.send(packet(t, ipc.Request{Stop: &ipc.Stop{Activity: "act_never", Reason: activity.Cancel}}))
		r := h.await(n, "refused", isRefused)
		if r.Refused.Code != activity.Lost {
			t.Errorf("refused with %+v", *r.Refused)
		}
	})

	t.Run("what the policy no longer admits is stopped within 5 s", func(t *testing.T) {
		h := h.with(t)
		w := h.start(fit(t, stage{Do: "sleep"}))
		w.says("running")
		none := maps.Clone(defaultPolicy)
		none["kinds"] = []string{}
		began := time.Now()
		if err := writePolicy(none); err != nil {
			t.Fatal(err)
		}
		e := w.ended().Ended
		took := time.Since(began)
		if e.State != activity.Stopped || e.Reason != activity.Policy {
			t.Errorf("it ended as %+v", *e)
		}
		t.Logf("stopped %.1f s after the policy changed", took.Seconds())
		if took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		if r := h.refusal(envelope(t, fit(t, stage{Do: "sleep"}))); r.Code != activity.Denied || !strings.Contains(r.Message, "kind") {
			t.Errorf("a start under it is refused with %+v", r)
		}
		if err := writePolicy(defaultPolicy); err != nil {
			t.Fatal(err)
		}
		// Each start reads the policy itself.
		h.start(fit(t, stage{Do: "sleep"})).stop(activity.Cancel)
	})

	t.Run("a hundred starts and stops leave nothing", func(t *testing.T) {
		h := h.with(t)
		before := h.inventory()
		for range 100 {
			start := envelope(t, fit(t, stage{Do: "exit"}))
			for {
				reply, n := h.ask(start)
				if reply.Started != nil {
					(&workload{h: h, activity: start.Activity, started: n}).ended()
					break
				}
				if reply.Refused.Code != activity.Capacity { // the launcher paces what is started
					t.Fatalf("refused: %+v", *reply.Refused)
				}
				time.Sleep(200 * time.Millisecond)
			}
		}
		checkNothingLeft(t)
		var after map[string]int
		var diff any
		until(t, "the host is as it was", func() bool {
			after = h.inventory()
			diff = fmt.Sprintf("before %v, after %v", before, after)
			for k, n := range after {
				if n > before[k] {
					return false
				}
			}
			return true
		}, &diff)
		t.Log(diff)
	})
}

// inventory counts what a start could leave behind.
func (h *host) inventory() map[string]int {
	h.Helper()
	launcher := run(h, "systemctl", "show", "-P", "MainPID", launcherUnit)
	count := func(pattern string) int {
		found, err := filepath.Glob(pattern)
		if err != nil {
			h.Fatal(err)
		}
		return len(found)
	}
	groups := 0
	filepath.WalkDir(unitGroup, func(_ string, entry os.DirEntry, _ error) error {
		if entry.IsDir() {
			groups++
		}
		return nil
	})
	return map[string]int{
		"launcher's files":  count("/proc/" + launcher + "/fd/*"),
		"launcher's mounts": len(strings.Split(read(h, "/proc/"+launcher+"/mountinfo"), "\n")),
		"host's mounts":     len(strings.Split(read(h, "/proc/self/mountinfo"), "\n")),
		"control groups":    groups,
		"processes":         processes(),
		"run folders":       count(filepath.Join(state, "run/*")),
		"files in /tmp":     count("/tmp/*"),
	}
}

// processes counts those that are not the kernel's own, which have no command line.
func processes() (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		if line, _ := os.ReadFile(name); len(line) > 0 {
			n++
		}
	}
	return n
}
