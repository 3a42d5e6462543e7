package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A File is a file in the making. It is under a temporary name beside its
// target until [File.Commit]; a crash before that leaves the target as it was.
// A File is used by one goroutine.
type File struct {
	disk Disk
	path string // the target
	tmp  string // where the bytes are now
	h    Handle
	done bool  // committed or aborted
	err  error // the first failed write: the temporary file is worthless
}

// Create is the function of that name, on this disk.
func (d Disk) Create(path string) (*File, error) { return d.create(path, 0o644) }

func (d Disk) create(path string, perm fs.FileMode) (*File, error) {
	dir, name := filepath.Split(path)
	for try := 0; ; try++ {
		tmp := filepath.Join(dir, fmt.Sprintf(".%s.%016x%s", name, rand.Uint64(), tempSuffix))
		h, err := d.fs.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
		if errors.Is(err, fs.ErrExist) && try < 10 {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("writing %s: %w", path, err)
		}
		return &File{disk: d, path: path, tmp: tmp, h: h}, nil
	}
}

// Write adds p. After a failed Write, only [File.Abort] is of use.
func (f *File) Write(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	n, err := f.h.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		f.err = fmt.Errorf("writing %s: %w", f.path, err)
	}
	return n, f.err
}

// CommitAs is Commit under another name in the same directory, for a file whose
// name is only known when it is whole.
func (f *File) CommitAs(name string) error {
	f.path = filepath.Join(filepath.Dir(f.path), name)
	return f.Commit()
}

// Commit makes the file appear at its path. On return its bytes and its name
// are on stable storage. After an error the file is gone, or, when the error
// came from the last steps, it is at its path whole but may not survive a power
// cut; write it again.
func (f *File) Commit() error {
	if f.done {
		panic("durable: Commit of a file that was already committed or aborted")
	}
	if f.err != nil {
		f.Abort()
		return f.err
	}
	if err := f.h.Sync(); err != nil {
		f.Abort()
		return fmt.Errorf("writing %s: %w", f.path, err)
	}
	f.done = true
	if err := f.h.Close(); err != nil {
		f.disk.fs.Remove(f.tmp)
		return fmt.Errorf("writing %s: %w", f.path, err)
	}
	if err := f.disk.fs.Rename(f.tmp, f.path); err != nil {
		f.disk.fs.Remove(f.tmp)
		return fmt.Errorf("writing %s: %w", f.path, err)
	}
	return f.disk.SyncDir(filepath.Dir(f.path))
}

// Abort drops the file. After Commit it does nothing, so it can be deferred.
func (f *File) Abort() {
	if f.done {
		return
	}
	f.done = true
	f.h.Close()
	f.disk.fs.Remove(f.tmp)
}

const tempSuffix = ".tmp"

// IsTemp reports whether name, without its directory, is that of a file in the
// making.
func IsTemp(name string) bool {
	return strings.HasPrefix(name, ".") && strings.HasSuffix(name, tempSuffix)
}

// RemoveStale deletes the temporary files in dir that were last written before
// the given time. Their writers are dead or hung: a living one writes.
func RemoveStale(dir string, before time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !IsTemp(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.ModTime().Before(before) {
			continue // gone already, or in use
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
