//go:build linux

package attempt

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Other is what the host tells one of two workloads about the other: all that
// could help to find it. It is sent as one line of JSON to the peer's [Ready]
// socket, which answers with a [Result]; the peer ends when the connection is
// closed.
type Other struct {
	Name string `json:"name"`
	Run  string `json:"run"`  // its run directory
	Pids []int  `json:"pids"` // its processes, by the host's numbers
}

// sharedKey names System V objects, the same in both workloads on purpose.
const sharedKey = 0x68616e7a

// peer makes everything of its own that another could share, and then looks for
// the other's.
func peer(words []string, _ int64, _ io.Writer) error {
	name, shared := words[0], words[1]
	if err := share(name); err != nil {
		return err
	}
	// Both lock a file that both may read.
	f, err := os.Open(shared)
	if err != nil {
		return err
	}
	defer f.Close()
	unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	_, end, err := bystander()
	if err != nil {
		return err
	}
	defer end()
	fd, err := listenUnix(Ready)
	if err != nil {
		return err
	}
	c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
	if err != nil {
		return err
	}
	conn := os.NewFile(uintptr(c), Ready)
	defer conn.Close()
	lines := bufio.NewReader(conn)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return err
	}
	var other Other
	if err := json.Unmarshal(line, &other); err != nil {
		return err
	}
	t := &trial{}
	t.between(name, other, shared)
	if err := json.NewEncoder(conn).Encode(t.result(effort{number: 77})); err != nil {
		return err
	}
	lines.ReadByte() // until the host has heard both
	return nil
}

// share makes what two processes of one user would share on an ordinary host.
func share(name string) error {
	id, err := unix.SysvShmGet(sharedKey, 4096, unix.IPC_CREAT|0o666)
	if err != nil {
		return fmt.Errorf("shmget: %w", err)
	}
	memory, err := unix.SysvShmAttach(id, 0, 0)
	if err != nil {
		return fmt.Errorf("shmat: %w", err)
	}
	copy(memory, name)
	if err := os.WriteFile("/dev/shm/peer-"+name, []byte(name), 0o666); err != nil {
		return err
	}
	if err := os.WriteFile("secret", []byte(name), 0o666); err != nil {
		return err
	}
	if _, err := listenUnix("\x00peer-" + name); err != nil {
		return err
	}
	attributes := [8]int64{1: 4, 2: 64} // struct mq_attr: flags, messages, size of one
	_, err = value(unix.SYS_MQ_OPEN, pointer("peer-"+name), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o666, address(&attributes))
	// Landlock refuses queues, for they lie in a file system that has no path.
	if err != nil && err != unix.ENOSYS && err != unix.EACCES {
		return fmt.Errorf("mq_open: %w", err)
	}
	return nil
}

// between looks for everything that share made in the other workload.
func (t *trial) between(own string, other Other, shared string) {
	if id, err := unix.SysvShmGet(sharedKey, 4096, 0); err == nil {
		if memory, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY); err == nil {
			if got := strings.TrimRight(string(memory), "\x00"); got != own {
				t.gaveWay("System V memory is %s's", got)
			}
		}
	}
	_, err := os.Stat("/dev/shm/peer-" + other.Name)
	t.refused("its POSIX memory", err, unix.ENOENT)
	_, err = value(unix.SYS_MQ_OPEN, pointer("peer-"+other.Name), unix.O_RDWR|unix.O_CLOEXEC, 0, 0)
	t.refused("its message queue", err, unix.ENOENT, unix.ENOSYS, unix.EACCES)
	t.refused("its abstract socket", dialUnix("\x00peer-"+other.Name), unix.ECONNREFUSED, unix.EPERM)
	t.refused("its socket", dialUnix(filepath.Join(other.Run, Ready)), unix.ENOENT, unix.EACCES)
	_, err = os.Stat(other.Run)
	t.refused("its run directory", err, unix.ENOENT, unix.EACCES)
	_, err = os.ReadFile(filepath.Join(other.Run, "secret"))
	t.refused("its files", err, unix.ENOENT, unix.EACCES)

	pids, err := processes()
	if err != nil || len(pids) > 8 {
		t.gaveWay("/proc lists %d processes (%v)", len(pids), err)
	}
	for _, pid := range other.Pids {
		if slices.Contains(pids, pid) {
			continue // a small number, which is one of its own here
		}
		if status, err := procStatus(fmt.Sprintf("/proc/%d/status", pid)); err == nil && status["Tgid"] != fmt.Sprint(os.Getpid()) {
			t.gaveWay("/proc/%d is there", pid)
			continue
		} else if err == nil {
			continue // a thread of this process
		}
		t.refused("signal it", unix.Kill(pid, 0), unix.ESRCH)
		t.refused("trace it", sys(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid)), unix.EPERM)
	}
	const readKey, user = 11, 1<<32 - 4
	t.refused("the user's keyring", sys(unix.SYS_KEYCTL, readKey, user, 0, 0), unix.EPERM)
	// A lock on a file that both may read is seen by both. It tells one bit to
	// those who agreed on it, and nothing about who did not.
	f, err := os.Open(shared)
	if err != nil {
		t.gaveWay("%v", err)
		return
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK {
		t.held("noted: locks on the host's read-only files are seen")
	}
}

func dialUnix(name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: name})
}
