//go:build linux

package guest

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMachine checks that the machine has what the other tests are for.
func TestMachine(t *testing.T) {
	t.Run("systemd is pid 1", func(t *testing.T) {
		if got := read(t, "/proc/1/comm"); got != "systemd" {
			t.Fatalf("pid 1 is %s", got)
		}
		t.Log(strings.SplitN(run(t, "systemctl", "--version"), "\n", 2)[0], "on kernel", read(t, "/proc/sys/kernel/osrelease"))
	})
	t.Run("control groups are v2 and have the controllers", func(t *testing.T) {
		var fs unix.Statfs_t
		if err := unix.Statfs("/sys/fs/cgroup", &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			t.Fatalf("/sys/fs/cgroup has type %x, %v", fs.Type, err)
		}
		have := strings.Fields(read(t, "/sys/fs/cgroup/cgroup.controllers"))
		for _, c := range []string{"cpu", "memory", "pids", "io"} {
			if !slices.Contains(have, c) {
				t.Errorf("no %s controller in %v", c, have)
			}
		}
	})
	t.Run("Landlock is there", func(t *testing.T) {
		abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
		if errno != 0 {
			t.Fatal(errno)
		}
		t.Logf("Landlock ABI %d", abi)
	})
	t.Run("the system is running and no unit failed", func(t *testing.T) {
		if _, err := output("systemctl", "is-system-running", "--wait"); err != nil {
			t.Errorf("%v\n%s", err, run(t, "systemctl", "--failed", "--no-pager"))
		}
	})
}
