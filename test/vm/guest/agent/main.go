//go:build linux

// Command agent plays the agent's part in the test machine, as hanzo-link and in
// the agent's own unit: it holds the connection to the launcher, passes on what
// the tests ask, and tries what a compromised agent would.
package main

import (
	"fmt"
	"log"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/test/vm/guest/control"
	"golang.org/x/sys/unix"
)

const launcher = "/run/hanzo-link/launcher.sock"

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	if len(os.Args) > 1 && os.Args[1] == "-connect" { // an impostor
		return connect()
	}
	if err := moveToLeaf(); err != nil {
		return err
	}
	raw, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: launcher, Net: "unixpacket"})
	if err != nil {
		return err
	}
	a := &Agent{raw: raw, conn: ipc.NewConn(raw)}
	a.said = sync.NewCond(&a.mu)
	ended := make(chan error, 2)
	go func() { ended <- a.listen() }()

	os.Remove(control.Socket)
	tests, err := net.Listen("unix", control.Socket)
	if err != nil {
		return err
	}
	server := rpc.NewServer()
	if err := server.Register(a); err != nil {
		return err
	}
	go func() { server.Accept(tests); ended <- fmt.Errorf("the tests' socket closed") }()
	return <-ended
}

// connect connects to the launcher and answers what it says to that.
func connect() error {
	conn, err := ipc.Dial(launcher)
	if err != nil {
		return err
	}
	reply, _, err := conn.ReadReply()
	if err != nil {
		return err
	}
	if reply.Refused != nil {
		return fmt.Errorf("%s: %s", reply.Refused.Code, reply.Refused.Message)
	}
	fmt.Printf("%+v\n", reply)
	return nil
}

// moveToLeaf moves this process into agent/, where systemd 254 and later start it.
func moveToLeaf() error {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	group := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(strings.TrimSpace(string(text)), "0::"))
	if filepath.Base(group) == "agent" {
		return nil
	}
	leaf := filepath.Join(group, "agent")
	if err := os.Mkdir(leaf, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	return os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0)
}

// Agent is what the tests can call.
type Agent struct {
	raw  *net.UnixConn
	conn *ipc.Conn

	mu      sync.Mutex
	said    *sync.Cond
	replies []control.Reply
	pidfds  []*os.File // kept open: what they refer to cannot be mistaken for another process
}

// listen keeps what the launcher says, until it says no more.
func (a *Agent) listen() error {
	for {
		r, files, err := a.conn.ReadReply()
		if err != nil {
			return fmt.Errorf("the launcher: %w", err)
		}
		reply := control.Reply{Reply: r}
		switch {
		case r.Started != nil && r.Started.PidFD: // else it was over at once
			reply.PID = pidOf(files[len(files)-1])
			a.pidfds = append(a.pidfds, files...)
		case r.Ended != nil:
			if r.Ended.Stdout > 0 {
				reply.Stdout, files = contents(files[0], r.Ended.Stdout), files[1:]
			}
			if r.Ended.Stderr > 0 {
				reply.Stderr = contents(files[0], r.Ended.Stderr)
			}
		}
		a.mu.Lock()
		a.replies = append(a.replies, reply)
		a.mu.Unlock()
		a.said.Broadcast()
	}
}

// pidOf reads a pidfd's process number, which is 0 once it is reaped.
func pidOf(pidfd *os.File) (pid int) {
	info, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd.Fd()))
	for line := range strings.Lines(string(info)) {
		fmt.Sscanf(line, "Pid: %d", &pid)
	}
	return pid
}

// contents reads a stream's memory file and closes it.
func contents(f *os.File, n int) string {
	defer f.Close()
	text := make([]byte, n)
	if _, err := f.ReadAt(text, 0); err != nil {
		return err.Error()
	}
	return string(text)
}

// Replies answers what was said after the first n replies, and waits a while for
// something to be.
func (a *Agent) Replies(n int, replies *[]control.Reply) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	wake := time.AfterFunc(10*time.Second, a.said.Broadcast)
	defer wake.Stop()
	if len(a.replies) <= n {
		a.said.Wait()
	}
	if len(a.replies) > n {
		*replies = a.replies[n:]
	}
	return nil
}

// Send sends a packet as it is, and answers how many replies there were before.
func (a *Agent) Send(packet []byte, before *int) error {
	a.mu.Lock()
	*before = len(a.replies)
	a.mu.Unlock()
	_, err := a.raw.Write(packet)
	return err
}

// PID answers this process's number.
func (a *Agent) PID(_ int, pid *int) error {
	*pid = os.Getpid()
	return nil
}

// Try makes an attempt.
func (a *Agent) Try(try control.Attempt, answer *string) error {
	*answer = "done"
	if err := attempt(try); err != nil {
		*answer = err.Error()
	}
	return nil
}

func attempt(try control.Attempt) error {
	switch try.Do {
	case "write":
		fd, err := unix.Open(try.Path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return name(err)
		}
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte(try.To))
		return name(err)
	case "read":
		fd, err := unix.Open(try.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return name(err)
	case "mkdir":
		return name(unix.Mkdir(try.Path, 0o755))
	case "rmdir":
		return name(unix.Rmdir(try.Path))
	case "rename":
		return name(unix.Rename(try.Path, try.To))
	case "symlink":
		return name(unix.Symlink(try.To, try.Path))
	case "kill":
		return name(unix.Kill(try.PID, unix.SIGKILL))
	case "ptrace":
		return name(unix.PtraceAttach(try.PID))
	}
	return fmt.Errorf("no such attempt: %q", try.Do)
}

// name is an error by its errno's name, as the manual pages have it.
func name(err error) error {
	if errno, ok := err.(unix.Errno); ok {
		return fmt.Errorf("%s", unix.ErrnoName(errno))
	}
	return err
}
