//go:build linux

package guest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"golang.org/x/sys/unix"
)

func TestLimits(t *testing.T) {
	h := connected(t)

	t.Run("are the kernel's", func(t *testing.T) {
		w := h.with(t).start(fit(t, stage{Do: "sleep"}))
		for name, want := range map[string]string{
			"memory.max": strconv.Itoa(128 << 20), "memory.swap.max": "0", "memory.oom.group": "1",
			"pids.max": strconv.Itoa(policy.TrainFitPids), "cpu.max": "100000 100000",
		} {
			if got := read(t, filepath.Join(w.group, name)); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
		w.says("running")
		if got := w.stop(activity.Cancel).Ended; got.State != activity.Stopped || got.Reason != activity.Cancel || got.Signal != int(unix.SIGTERM) {
			t.Errorf("it ended as %+v", *got)
		}
		checkNothingLeft(t)
	})

	t.Run("memory: the whole group dies, once, and says why", func(t *testing.T) {
		h := h.with(t)
		agent := h.agentPID()
		w := h.start(fit(t, stage{Do: "memory"}))
		e := w.ended().Ended
		if e.State != activity.Failed || e.Code != activity.Capacity || !strings.Contains(e.Message, "out of memory") {
			t.Errorf("it ended as %+v", *e)
		}
		if _, err := os.Stat(filepath.Join(state, "spool", w.activity, "survived")); err == nil {
			t.Error("the process beside the one that took the memory went on")
		}
		if got := run(t, "systemctl", "is-active", agentUnit); got != "active" || h.agentPID() != agent {
			t.Errorf("the agent's unit is %s, its process %d was %d", got, h.agentPID(), agent)
		}
		checkNothingLeft(t)
	})

	t.Run("processes: a fork bomb stops at pids.max and the agent answers", func(t *testing.T) {
		h := h.with(t)
		input := fit(t, stage{Do: "fork"})
		input["memory"] = 2 << 30 // so that it is not memory that stops it
		w := h.start(input)
		// Emulated, so many processes are minutes of forking.
		const limit = 512
		if err := os.WriteFile(filepath.Join(w.group, "pids.max"), []byte(strconv.Itoa(limit)), 0); err != nil {
			t.Fatal(err)
		}
		until(t, "the bomb reaches pids.max", func() bool { return w.field("pids.events", "max") > 0 })
		began := time.Now()
		h.agentPID()
		if took := time.Since(began); took > 10*time.Second { // one second on a machine that is not emulated
			t.Errorf("the agent answered after %v", took)
		}
		if n := w.number("pids.current"); n > limit {
			t.Errorf("%d processes", n)
		}
		w.stop(activity.Cancel)
		checkNothingLeft(t)
	})

	t.Run("threads: a thread bomb stops at pids.max", func(t *testing.T) {
		h := h.with(t)
		input := fit(t, stage{Do: "thread"})
		input["memory"] = 2 << 30
		e := h.start(input).ended()
		if e.Ended.Code != activity.Crash || !strings.Contains(e.Stderr, "failed to create new OS thread") {
			t.Errorf("it ended as %+v\n%.500s", *e.Ended, e.Stderr)
		}
		checkNothingLeft(t)
	})

	t.Run("cpu: three busy threads get one processor", func(t *testing.T) {
		w := h.with(t).start(fit(t, stage{Do: "spin", N: 3}))
		w.says("running")
		used, began := w.field("cpu.stat", "usage_usec"), time.Now()
		time.Sleep(5 * time.Second) // the measurement
		share := float64(w.field("cpu.stat", "usage_usec")-used) / float64(time.Since(began).Microseconds())
		throttled := w.field("cpu.stat", "nr_throttled")
		t.Logf("%.2f processors of 1, throttled %d times", share, throttled)
		if share > 1.1 || throttled == 0 {
			t.Errorf("it had %.2f processors and was throttled %d times", share, throttled)
		}
		w.stop(activity.Cancel)
	})

	t.Run("page cache is charged, and reclaimed", func(t *testing.T) {
		input := fit(t, stage{Do: "cache", N: 160 << 20}) // more than its memory
		input["disk"] = 256 << 20
		w := h.with(t).start(input)
		w.says("written")
		file, most := w.field("memory.stat", "file"), w.number("memory.peak")
		t.Logf("%d MiB of cache, %d MiB at most", file>>20, most>>20)
		if file < 16<<20 || most > 129<<20 { // the kernel charges in batches of pages
			t.Errorf("%d bytes of cache are charged, and %d at most", file, most)
		}
		w.stop(activity.Cancel)
	})

	t.Run("shared memory is charged, and bounded", func(t *testing.T) {
		w := h.with(t).start(fit(t, stage{Do: "shm"}))
		written, err := strconv.ParseInt(w.says("written"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if charged := w.field("memory.stat", "shmem"); charged < written || written < 1<<20 || written > 128<<20 {
			t.Errorf("%d bytes of /dev/shm, %d charged", written, charged)
		}
		w.stop(activity.Cancel)
	})

	t.Run("disk: more than was admitted ends it", func(t *testing.T) {
		input := fit(t, stage{Do: "disk"})
		input["disk"] = 16 << 20
		e := h.with(t).start(input).ended().Ended
		if e.State != activity.Failed || e.Code != activity.Capacity || !strings.Contains(e.Message, "disk") {
			t.Errorf("it ended as %+v", *e)
		}
		checkNothingLeft(t)
	})

	t.Run("output is kept up to 1 MiB a stream", func(t *testing.T) {
		e := h.with(t).start(fit(t, stage{Do: "talk", N: 3 << 20})).ended()
		if e.Ended.State != activity.Stopped || e.Ended.Reason != activity.Done || !e.Ended.Truncated || len(e.Stdout) != 1<<20 || len(e.Stderr) != 1<<20 {
			text, _ := json.Marshal(e.Ended)
			t.Errorf("%d and %d bytes, %s", len(e.Stdout), len(e.Stderr), text)
		}
	})
}

// with is the same host for a subtest.
func (h *host) with(t testing.TB) *host { return &host{TB: t, agent: h.agent} }

// agentPID asks the agent for its process, which shows that it answers.
func (h *host) agentPID() (pid int) {
	h.Helper()
	h.call("PID", 0, &pid)
	return pid
}

// refusal is the launcher's answer to a start that it does not admit.
func (h *host) refusal(start *activity.Envelope) ipc.Refused {
	h.Helper()
	reply, _ := h.ask(start)
	if reply.Refused == nil {
		h.Fatalf("it was started: %+v", reply)
	}
	return *reply.Refused
}
