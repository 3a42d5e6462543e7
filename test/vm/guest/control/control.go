//go:build linux

// Package control is how the guest's tests move the test agent: calls of
// net/rpc over a Unix socket in the agent's folder.
package control

import "github.com/hanzoai/link/launcher/ipc"

// Socket is where the agent listens to the tests.
const Socket = "/var/lib/hanzo/link/test-agent.sock"

// Reply is what the launcher said, and what of the descriptors that came along
// can be told.
type Reply struct {
	ipc.Reply
	PID            int // of a started workload's first process, from its pidfd
	Stdout, Stderr string
}

// Attempt is one system call of a compromised agent: do names it, and the
// answer is its errno's name, or "done".
type Attempt struct {
	Do   string // write, read, mkdir, rmdir, rename, symlink, kill, ptrace
	Path string
	To   string // rename's and symlink's second path; what is written
	PID  int
}
