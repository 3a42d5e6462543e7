//go:build darwin

package facts

import (
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/control/api"
)

// parts is what the kernel says; root and the helper are Linux's.
func parts(_, _, storeDir string) []part {
	return []part{{"host", func(context.Context) func(*api.WorkerFacts) {
		hostname, _ := os.Hostname()
		model, _ := unix.Sysctl("machdep.cpu.brand_string")
		memory, _ := unix.SysctlUint64("hw.memsize")
		return func(w *api.WorkerFacts) {
			w.Hostname, w.CPUModel, w.Memory = clean(hostname), clean(model), int64(memory)
		}
	}}, {"disk " + storeDir, func(context.Context) func(*api.WorkerFacts) {
		var st unix.Statfs_t
		dir := storeDir
		err := unix.Statfs(dir, &st)
		for err != nil && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
			err = unix.Statfs(dir, &st)
		}
		free := int64(0)
		if err == nil {
			free = int64(st.Bavail) * int64(st.Bsize)
		}
		return func(w *api.WorkerFacts) { w.Disk = max(free, 0) }
	}}}
}

func uname() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Machine[:])
}
