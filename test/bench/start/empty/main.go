//go:build linux

// Command empty is the workload whose start is timed: the first line of main
// prints the nanoseconds of CLOCK_MONOTONIC, the clock that whoever asked for the
// start read just before. Then it ends, or where there is a file /in/stage/wait it
// is idle until a signal ends it. It imports nothing more, so that started plainly
// it is the floor of what any static Go program can reach.
package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

func main() {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	if err != nil {
		os.Exit(1)
	}
	os.Stdout.WriteString(strconv.FormatInt(now.Nano(), 10) + "\n")
	if unix.Access("/in/stage/wait", unix.F_OK) == nil {
		unix.Pause()
	}
}
