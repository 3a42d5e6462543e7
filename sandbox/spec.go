//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Spec is everything a workload may see and use. What it does not name is not
// there.
type Spec struct {
	ID      string   // names the run directory: 1 to 64 of letters, digits, _ and -
	Program *os.File // the executable, open for reading; seen read-only as /app/<Args[0]>
	Args    []string // Args[0] is a file name
	Env     []string // the whole environment

	Mounts  []Mount
	Files   []File
	Devices []Device // besides null, zero, full, random and urandom
	Groups  []uint32 // supplementary groups, exactly; those that own the devices
	Limits  Limits

	Inet      bool          // IPv4 and IPv6 sockets, for a loopback that nothing else is on
	WholeProc bool          // /proc as GPU libraries need it; otherwise only processes
	ExecRun   bool          // files in the run directory may be executed; a workload can execute its own memory (memfd) in any case
	Socket    string        // the unix socket that the workload makes in its run directory
	Umask     int           // the workload's; its run directory is made 0700 whatever this is
	Grace     time.Duration // between SIGTERM and the kill; 0 means 10 s (HIP-1172 A8)
}

// Mount is a file or directory that the workload sees at Target. It is never
// searched by path again: Source is what is mounted, read-only unless Write, and
// nothing in it can be executed unless Exec, be a device or change an identity.
type Mount struct {
	Source *os.File
	Target string // absolute, clean and in no other Mount
	Write  bool
	Exec   bool
}

// File is a read-only file with given contents, over whatever stands at Target.
type File struct {
	Target string
	Data   []byte
}

// Device is a character device that the workload may open for reading and writing.
// Start refuses one whose Path has another number.
type Device struct {
	Path         string
	Major, Minor uint32
}

// Limits bound a workload. 0 is no limit, except for Output.
type Limits struct {
	Memory int64   // bytes, page cache and tmpfs included; swap is none
	CPUs   float64 // processors' worth of time in every 100 ms
	Pids   int     // processes and threads, with half a dozen of the sandbox's own
	Disk   int64   // bytes of the run directory and of writable mounts; also the largest file
	Free   int64   // bytes of the run directory's file system that must stay free
	Shm    int64   // bytes of /dev/shm, charged to Memory; 0 means a quarter of Memory, or 64 MiB
	Output int64   // bytes kept of each of stdout and stderr, the first ones; 0 means 1 MiB
}

// Cause says what ended a workload.
type Cause string

const (
	Exited  Cause = "exited"        // its main process ended by itself
	Stopped Cause = "stopped"       // Stop or Kill
	OOM     Cause = "out of memory" // over Limits.Memory, or the host had none left
	Disk    Cause = "out of disk"   // over Limits.Disk, or Limits.Free was not kept
)

// Exit is how a workload ended.
type Exit struct {
	Cause          Cause
	Code           int            // its main process's status, -1 when a signal ended it
	Signal         syscall.Signal // that signal, or 0
	Stdout, Stderr []byte         // the first Limits.Output bytes of each
	Truncated      bool           // whether there were more
	Reason         string         // for Disk, what was exceeded
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// check refuses a Spec that no caller could mean.
func (s *Spec) check() error {
	switch {
	case !idPattern.MatchString(s.ID):
		return fmt.Errorf("sandbox: id %q: want 1 to 64 of letters, digits, _ and -", s.ID)
	case s.Program == nil:
		return errors.New("sandbox: a spec without a program")
	case len(s.Args) == 0 || s.Args[0] == "" || filepath.Base(s.Args[0]) != s.Args[0] || s.Args[0] == "..":
		return fmt.Errorf("sandbox: the first argument must be the program's file name, not %q", s.Args)
	case s.Socket != "" && (filepath.Base(s.Socket) != s.Socket || s.Socket == ".."):
		return fmt.Errorf("sandbox: socket %q is no file name", s.Socket)
	case min(s.Limits.Memory, s.Limits.Disk, s.Limits.Free, s.Limits.Shm, s.Limits.Output) < 0 || s.Limits.CPUs < 0 || s.Limits.Pids < 0:
		return fmt.Errorf("sandbox: a limit is negative: %+v", s.Limits)
	}
	var targets []string
	for _, m := range s.Mounts {
		if m.Source == nil || !absolute(m.Target) {
			return fmt.Errorf("sandbox: mount at %q: want an open source and an absolute, clean path", m.Target)
		}
		targets = append(targets, m.Target)
	}
	for _, f := range s.Files {
		if !absolute(f.Target) {
			return fmt.Errorf("sandbox: file at %q: want an absolute, clean path", f.Target)
		}
		targets = append(targets, f.Target)
	}
	for _, d := range s.Devices {
		if !absolute(d.Path) || !strings.HasPrefix(d.Path, "/dev/") {
			return fmt.Errorf("sandbox: device %q is not beneath /dev", d.Path)
		}
		targets = append(targets, d.Path)
	}
	// What is in a mount is whoever's it is: a link there would lead the next one
	// elsewhere.
	for _, m := range s.Mounts {
		for _, target := range targets {
			if strings.HasPrefix(target, m.Target+"/") {
				return fmt.Errorf("sandbox: %s lies in the mount at %s", target, m.Target)
			}
		}
	}
	return nil
}

// absolute reports whether path is clean and names something below the root.
func absolute(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && path != "/" && !strings.ContainsRune(path, 0)
}
