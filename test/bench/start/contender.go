//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// contender is one way to start the workload.
type contender struct {
	name  string
	build string // what it is built from or which version it is
	note  string // what its isolation has or lacks beside the others'
	why   string // why it cannot run here; empty where it can

	ready func() error // untimed work before a start; nil for none
	// start starts the workload once, waits until it has ended and everything
	// about it is gone, and returns how long after the request its main began.
	start func() (time.Duration, error)
}

// monotonic is the clock that the workload prints too.
func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // Linux always has it
	}
	return time.Duration(now.Nano())
}

// printed reads the time that the workload printed.
func printed(out []byte) (time.Duration, error) {
	main, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the workload printed %q instead of its time", out)
	}
	return time.Duration(main), nil
}

// command starts a command that runs the workload. Only what the request itself
// takes is timed: building the argument list is not.
func command(path string, args ...string) (time.Duration, error) {
	var out, complaint bytes.Buffer
	c := &exec.Cmd{
		Path: path, Args: append([]string{path}, args...),
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Stdout: &out, Stderr: &complaint,
	}
	asked := monotonic()
	if err := c.Run(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, last(complaint.String()))
	}
	main, err := printed(out.Bytes())
	return main - asked, err
}

// plain starts the program with nothing around it: the floor.
func plain(program string) contender {
	return contender{
		name: "empty program", build: "static Go, started plainly", note: "no isolation: the floor",
		start: func() (time.Duration, error) { return command(program) },
	}
}

// installed finds a peer's command, or says what to install.
func installed(name, pack string) (path, version, why string) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", "", fmt.Sprintf("%s is not installed: apt-get install %s", name, pack)
	}
	version, why = versionOf(path)
	return path, version, why
}

// versionOf is the first line that a command's --version prints.
func versionOf(path string) (version, why string) {
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return "", fmt.Sprintf("%s --version: %v", path, err)
	}
	version, _, _ = strings.Cut(string(out), "\n")
	return version, ""
}

// last is a complaint's last line, the one that says what happened.
func last(complaint string) string {
	lines := strings.Split(strings.TrimSpace(complaint), "\n")
	return lines[len(lines)-1]
}
