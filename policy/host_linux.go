package policy

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// HostFree measures this host, and the file system that holds dir.
func HostFree(dir string) (Free, error) {
	const meminfo = "/proc/meminfo"
	src, err := os.ReadFile(meminfo)
	if err != nil {
		return Free{}, err
	}
	var free Free
	for name, n := range map[string]*int64{"MemAvailable": &free.Memory, "MemTotal": &free.MemoryTotal} {
		if *n, err = meminfoBytes(src, name); err != nil {
			return Free{}, fmt.Errorf("%s: %w", meminfo, err)
		}
	}
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return Free{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
		break
	}
	// Bavail, not Bfree: the difference is root's reserve, which no workload has.
	free.Disk = int64(st.Bavail) * st.Frsize
	free.DiskTotal = int64(st.Blocks) * st.Frsize
	return free, nil
}

// meminfoBytes is one line of /proc/meminfo, "MemTotal:       16316412 kB". The
// kernel's kB are 1024 bytes.
func meminfoBytes(meminfo []byte, name string) (int64, error) {
	lines := bufio.NewScanner(bytes.NewReader(meminfo))
	for lines.Scan() {
		value, ok := strings.CutPrefix(lines.Text(), name+":")
		if !ok {
			continue
		}
		kib, ok := strings.CutSuffix(strings.TrimSpace(value), " kB")
		n, err := strconv.ParseInt(kib, 10, 53)
		if !ok || err != nil || n < 0 {
			return 0, fmt.Errorf("%q is no amount of memory", lines.Text())
		}
		return n << 10, nil
	}
	return 0, fmt.Errorf("has no line %s; Linux 3.14 or later has one", name)
}
