//go:build linux

// Command stage is hanzo-stage, and hangs instead while a file stands beside it.
package main

import (
	"os"
	"syscall"

	"github.com/hanzoai/link/sandbox/stage"
)

func main() {
	self, _ := os.Readlink("/proc/self/exe")
	if _, err := os.Stat(self + ".hang"); err == nil {
		for {
			syscall.Pause()
		}
	}
	stage.Main()
}
