package main

import (
	"os/exec"
	"syscall"
)

// peak is the most memory a finished command held, in bytes; 0 where the system
// does not say.
func peak(c *exec.Cmd) int64 {
	usage, ok := c.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return usage.Maxrss << 10 // Linux counts KiB
}
