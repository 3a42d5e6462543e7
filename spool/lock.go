package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lock opens a run's log and takes the exclusive lock on it. The lock is on the
// log itself, so that no deleted or forgotten lock file can undo or outlive it;
// the kernel drops it when the process ends. flag has O_CREATE or not.
func (s *Spool) lock(run string, flag int) (*os.File, error) {
	path := s.path(runs, run+".log")
	f, err := s.files.open(path, os.O_RDWR|flag, s.mode)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, s.noRun(run)
	}
	if err != nil {
		return nil, fmt.Errorf("opening run %s: %w", run, err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EINTR {
			break
		}
	}
	if err == unix.EWOULDBLOCK {
		f.Close()
		return nil, fmt.Errorf("run %s is %w by %s; wait for it to end, or stop it", run, ErrLocked, s.writer(run))
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	// The pid is for the message above and for nothing else: a stale or missing
	// one harms nobody, so its write is neither synced nor checked.
	if pid, err := s.files.open(s.path(runs, run+".pid"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, s.mode); err == nil {
		fmt.Fprintln(pid, os.Getpid())
		pid.Close()
	}
	return f, nil
}

// noRun says that a run is not here.
func (s *Spool) noRun(run string) error { return absent("no run " + run + " in " + s.dir) }

// unlock ends what lock began.
func (s *Spool) unlock(run string, f *os.File) error {
	s.files.Remove(s.path(runs, run+".pid")) // while it is still ours
	return f.Close()
}

// writer names who holds a run's lock.
func (s *Spool) writer(run string) string {
	b, err := s.files.read(s.path(runs, run+".pid"), maxSmall)
	pid := strings.TrimSpace(string(b))
	if n, e := strconv.Atoi(pid); err != nil || e != nil || strconv.Itoa(n) != pid {
		return "another process"
	}
	if pid == strconv.Itoa(os.Getpid()) {
		return "this process (" + filepath.Base(os.Args[0]) + ", pid " + pid + ")"
	}
	return "process " + pid
}
