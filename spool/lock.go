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
	// O_NONBLOCK: opening a named pipe in place of the log must not hang.
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK|flag, s.mode)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, s.noRun(run)
	}
	if err != nil {
		return nil, fmt.Errorf("opening run %s: %w", run, err)
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%w: %s is not a regular file; move it away", ErrCorrupt, path)
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
	os.WriteFile(s.path(runs, run+".pid"), []byte(strconv.Itoa(os.Getpid())+"\n"), s.mode)
	return f, nil
}

// noRun says that a run is not here.
func (s *Spool) noRun(run string) error { return absent("no run " + run + " in " + s.dir) }

// unlock ends what lock began.
func (s *Spool) unlock(run string, f *os.File) error {
	os.Remove(s.path(runs, run+".pid")) // while it is still ours
	return f.Close()
}

// writer names who holds a run's lock.
func (s *Spool) writer(run string) string {
	b, err := os.ReadFile(s.path(runs, run+".pid"))
	if err != nil {
		return "another process"
	}
	pid := strings.TrimSpace(string(b))
	if pid == strconv.Itoa(os.Getpid()) {
		return "this process (" + filepath.Base(os.Args[0]) + ", pid " + pid + ")"
	}
	return "process " + pid
}
