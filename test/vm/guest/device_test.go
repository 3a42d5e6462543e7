//go:build linux

package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanzoai/link/activity"
)

// TestDevices puts a device node where the workload sees it, so that nothing but
// the device program stands in the way, and has systemd renew its own programs.
func TestDevices(t *testing.T) {
	h := connected(t)
	const node = "/dev/forbidden" // as /dev/kmsg, the kernel's log
	w := h.start(fit(t, stage{Do: "open", Path: node}))
	w.says("opened")
	run(t, "nsenter", "--mount", "--root", fmt.Sprintf("--target=%d", firstChild(t, w.pid)), "/usr/bin/dash", "-c",
		"mount -o remount,rw /dev && umask 0 && mknod "+node+" c 1 11")

	// opens waits for the workload's next tries and checks how they went.
	opens := func(t *testing.T, when string) {
		t.Helper()
		file := filepath.Join(state, "spool", w.activity, "opened")
		var first, now int
		var null, denied string
		if _, err := fmt.Sscan(read(t, file), &first, &null, &denied); err != nil {
			t.Fatal(err)
		}
		until(t, "the workload tries again", func() bool {
			fmt.Sscan(read(t, file), &now, &null, &denied)
			return now >= first+2
		})
		if null != "opened" || denied != "EPERM" {
			t.Errorf("%s: /dev/null %s, the forbidden node %s", when, null, denied)
		}
	}
	opens(t, "at first")
	run(t, "systemctl", "daemon-reload")
	opens(t, "after a daemon-reload")
	run(t, "systemctl", "set-property", "--runtime", agentUnit, "CPUWeight=50")
	opens(t, "after set-property")
	run(t, "systemctl", "set-property", "--runtime", launcherUnit, "CPUWeight=50")
	run(t, "systemctl", "daemon-reload")
	opens(t, "after both again")
	if got := w.number("memory.max"); got != 128<<20 {
		t.Errorf("memory.max is %d after daemon-reload and set-property", got)
	}
	w.stop(activity.Cancel)
	checkNothingLeft(t)
	os.RemoveAll("/run/systemd/system.control")
	run(t, "systemctl", "daemon-reload")
}

// firstChild is the process that pid started first: the workload below its stage.
func firstChild(t testing.TB, pid int) int {
	t.Helper()
	var child int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		if text, _ := os.ReadFile(task); len(strings.TrimSpace(string(text))) > 0 {
			fmt.Sscan(string(text), &child)
		}
	}
	if child == 0 {
		t.Fatalf("process %d has no child", pid)
	}
	return child
}
