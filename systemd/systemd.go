// Package systemd holds the files by which systemd runs hanzo link: its units,
// its users and its folders. A unit's reasons stand in the unit, which is what an owner reads.
//
// There are two services. hanzo-link-launcher.service is root, behind a socket
// that only the agent's group reaches; hanzo-link.service is the agent, without
// any privilege. The workloads are children of the first and live in the
// control group of the second: what binds them is the launcher's process
// (mount namespace, system call filters) and the agent's control group (limits,
// device rules, address filters), never the other two. Each unit says what it
// therefore leaves out.
//
// A [Host] is what they are installed on, with the binaries, and taken from.
//
// They are tested under a real systemd by test/vm. systemd 249 is the oldest they
// suit; what an older one does not know it logs and leaves aside.
package systemd

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"os/exec"
	"strings"
)

// Where an installed host has what.
const (
	Lib   = "/usr/local/lib/hanzo/link" // the binaries and their manifest
	State = "/var/lib/hanzo/link"       // what the tmpfiles make
	Etc   = "/etc/hanzo/link"           // the owner's policy, which is not installed here
)

// The folders that the files belong in. A unit is replaced when hanzo link is run
// again; what an owner changes belongs in a drop-in, UNIT.d/NAME.conf beside it.
const (
	UnitDir     = "/etc/systemd/system"
	SysusersDir = "/etc/sysusers.d"
	TmpfilesDir = "/etc/tmpfiles.d"
)

// Units are the names in Files of what belongs in UnitDir.
var Units = []string{
	"hanzo-link-launcher.socket",
	"hanzo-link-launcher.service",
	"hanzo-link-modules.service",
	"hanzo-link.service",
}

// What belongs in SysusersDir and in TmpfilesDir, as hanzo-link.conf.
const (
	Sysusers = "hanzo-link.sysusers"
	Tmpfiles = "hanzo-link.tmpfiles"
)

// Files has every file by its name, without a folder.
//
//go:embed *.socket *.service *.sysusers *.tmpfiles
var Files embed.FS

// What a [Step] did.
const (
	Wrote   = "wrote"
	Removed = "removed"
	Ran     = "ran"
	Current = "current" // left alone
)

// A Step is one thing that was done, or found to be done already.
type Step struct {
	Did  string // Wrote, Removed, Ran or Current
	What string // a path of the host, a command, a user
}

// Command runs a command of this host. Its error has the last line that it wrote.
func Command(ctx context.Context, name string, args ...string) error {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return fmt.Errorf("%s: %w: %s", line(name, args), err, lines[len(lines)-1])
	}
	return nil
}

func line(name string, args []string) string {
	return strings.Join(append([]string{name}, args...), " ")
}
