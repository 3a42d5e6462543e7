package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lockName is locked for as long as an agent runs on the link, and holds its process's
// number. The lock ends with the process, however that ends.
const lockName = "running"

// lockTime is how long an agent that starts waits for another to end: for whoever only
// looks, and for the one before it.
const lockTime = time.Second

// lock keeps a second agent off the link in dir. Closing the file ends that.
func lock(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("what keeps two agents off one link: %w", err)
	}
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Since(began) > lockTime {
			break
		}
	}
	if err == nil {
		err = errors.Join(f.Truncate(0), func() error { _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); return err }())
		if errors.Is(err, syscall.ENOSPC) {
			err = nil // its number is for people; the lock holds
		}
	}
	if err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another agent (process %d) runs on this link: stop it before this one is started", holder(f))
		}
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return f, nil
}

// holder is the process that a lock's file names; 0 is none.
func holder(f *os.File) int {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 32))
	pid, bad := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || bad != nil || pid <= 0 {
		return 0
	}
	return pid
}

// Running reports whether an agent runs on the link in dir, and as which process, as far
// as that is known: 0 is not. Only the agent's own user and root can know it; others are
// answered fs.ErrPermission, and where no agent ever ran it is fs.ErrNotExist.
func Running(dir string) (pid int, runs bool, err error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	// Shared, so that two who look do not see each other.
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	switch {
	case err == nil:
		return 0, false, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		return holder(f), true, nil
	}
	return 0, false, &os.PathError{Op: "lock", Path: path, Err: err}
}

// Lives reports whether the agent that wrote s, of the link in dir, still runs. Who may
// not look at its lock is told whether a process of its number runs.
func (s Status) Lives(dir string) bool {
	_, runs, err := Running(dir)
	switch {
	case err == nil:
		return runs
	case !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist):
		return true // not known, and its own word is that it does
	case s.PID <= 0:
		return false
	}
	err = syscall.Kill(s.PID, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
