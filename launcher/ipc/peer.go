//go:build linux

package ipc

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// A Peer is the process that connected, as the kernel knew it then. What it says
// of itself since plays no part.
type Peer struct {
	PID      int // in the caller's pid namespace
	UID, GID uint32
	// PidFD holds the process: while it reports it alive, PID is its and nobody
	// else's. The caller closes it.
	PidFD *os.File
}

// PeerOf asks the kernel who connected. A peer that this pid namespace cannot see,
// or that is gone, is an error.
func PeerOf(conn *net.UnixConn) (Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var p Peer
	var asked error
	if err := raw.Control(func(fd uintptr) { p, asked = peerOf(int(fd)) }); err != nil {
		return Peer{}, err
	}
	return p, asked
}

func peerOf(socket int) (Peer, error) {
	cred, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	if cred.Pid <= 0 {
		return Peer{}, errors.New("the peer is not in this pid namespace")
	}
	// Linux 6.5 pins the process that connected. Before that its number has to do:
	// should it have died since, the number may be another process's, which then
	// has to pass the same checks.
	fd, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		fd, err = unix.PidfdOpen(int(cred.Pid), 0)
	}
	if err != nil {
		return Peer{}, fmt.Errorf("the peer, process %d, is gone: %w", cred.Pid, err)
	}
	unix.CloseOnExec(fd)
	// Non-blocking, so that the runtime's poller waits for its end.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return Peer{}, fmt.Errorf("pidfd of process %d: %w", cred.Pid, err)
	}
	return Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid, PidFD: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// Alive reports whether the peer's process has not ended.
func (p Peer) Alive() bool {
	raw, err := p.PidFD.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	raw.Control(func(fd uintptr) { alive = !ended(fd) })
	return alive
}

// Wait returns when the peer's process has ended, or with an error when PidFD is
// closed first.
func (p Peer) Wait() error {
	raw, err := p.PidFD.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(ended)
}

// ended reports whether a pidfd's process has ended: it is then readable.
func ended(fd uintptr) bool {
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(ready, 0)
	return err == nil && n == 1
}
