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

import "embed"

// The folders that the files belong in. A unit of the owner's own goes before
// them, in /etc/systemd/system.
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
