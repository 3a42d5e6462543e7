//go:build linux

package launcher

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/hanzoai/link/launcher/ipc"
	"golang.org/x/sys/unix"
)

// admit decides whether who connected is the agent: its user, in this machine's
// user and pid namespaces, within the agent's control group. A process that
// somebody made look like hanzo-link in namespaces of his own is none of the
// second, and one that runs as hanzo-link elsewhere on the host none of the third.
// The caller closes the peer's PidFD.
func (l *launcher) admit(conn *net.UnixConn) (ipc.Peer, error) {
	peer, err := ipc.PeerOf(conn)
	if err != nil {
		return ipc.Peer{}, err
	}
	if err := l.check(peer); err != nil {
		peer.PidFD.Close()
		return ipc.Peer{}, fmt.Errorf("process %d of user %d is not the agent: %w", peer.PID, peer.UID, err)
	}
	return peer, nil
}

func (l *launcher) check(peer ipc.Peer) error {
	if peer.UID != l.Agent.UID {
		return fmt.Errorf("its user is not %d", l.Agent.UID)
	}
	for _, ns := range []string{"user", "pid"} {
		same, err := sameNamespace(peer.PID, ns)
		if err != nil {
			return err
		}
		if !same {
			return fmt.Errorf("it is in another %s namespace", ns)
		}
	}
	group, err := groupOf(peer.PID)
	if err != nil {
		return err
	}
	want, err := hierarchyPath(l.Group)
	if err != nil {
		return err
	}
	if group != want && !strings.HasPrefix(group, want+"/") {
		return fmt.Errorf("its control group is %q, not within %q", group, want)
	}
	// All that was read above was read of a number. It was the peer's the whole
	// time if the peer is still alive.
	if !peer.Alive() {
		return errors.New("it is gone")
	}
	return nil
}

// sameNamespace compares a process's namespace with ours. Another user's can be
// looked at with CAP_SYS_PTRACE, which the launcher's unit therefore leaves it.
func sameNamespace(pid int, name string) (bool, error) {
	var theirs, ours unix.Stat_t
	path := fmt.Sprintf("/proc/%d/ns/%s", pid, name)
	if err := unix.Stat(path, &theirs); err != nil {
		return false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	path = "/proc/self/ns/" + name
	if err := unix.Stat(path, &ours); err != nil {
		return false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return theirs.Dev == ours.Dev && theirs.Ino == ours.Ino, nil
}

// groupOf returns a process's control group in the v2 hierarchy.
func groupOf(pid int) (string, error) {
	path := fmt.Sprintf("/proc/%d/cgroup", pid)
	src, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(src)) {
		if group, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSuffix(group, "\n"), nil
		}
	}
	return "", fmt.Errorf("%s names no group of control groups v2", path)
}

// hierarchyPath turns a control group's directory into the path by which
// /proc/PID/cgroup names it: what of it lies below the mount point.
func hierarchyPath(dir string) (string, error) {
	var here unix.Stat_t
	if err := unix.Stat(dir, &here); err != nil {
		return "", &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	mount := dir
	for mount != "/" {
		var up unix.Stat_t
		if err := unix.Stat(filepath.Dir(mount), &up); err != nil {
			return "", &os.PathError{Op: "stat", Path: filepath.Dir(mount), Err: err}
		}
		if up.Dev != here.Dev {
			break
		}
		mount = filepath.Dir(mount)
	}
	return "/" + strings.TrimPrefix(strings.TrimPrefix(dir, mount), "/"), nil
}
