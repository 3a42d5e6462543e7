//go:build linux

// Command stubborn is a workload that will not stop when it is asked: it starts
// copies of itself until there are as many processes as its argument says, and
// all of them ignore SIGTERM and are idle.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
)

func main() {
	signal.Ignore(syscall.SIGTERM)
	if err := multiply(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "stubborn:", err)
		os.Exit(1)
	}
	for {
		syscall.Pause()
	}
}

// multiply starts the copies, which have no argument. This process counts.
func multiply(arguments []string) error {
	if len(arguments) == 0 {
		return nil
	}
	processes, err := strconv.Atoi(arguments[0])
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for range processes - 1 {
		if err := exec.Command(self).Start(); err != nil {
			return err
		}
	}
	return nil
}
