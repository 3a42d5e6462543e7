// Package durable writes files that survive a crash and a power cut.
//
// It knows three shapes of writing and nothing of what is written:
//
//   - a whole file that appears at once or not at all: [WriteFile], or [Create]
//     followed by [File.Commit];
//   - a whole directory that appears at once: [RenameDir];
//   - a file that only grows, a record at a time: [OpenAppend].
//
// # System calls
//
// A whole file is made by
//
//	open(dir/.name.R.tmp, O_WRONLY|O_CREAT|O_EXCL)   R is random
//	write …
//	fsync(file)                                      its bytes
//	close(file)
//	rename(dir/.name.R.tmp, dir/name)
//	open(dir); fsync(dir); close(dir)                its name
//
// a directory by fsync(tmp), rename(tmp, dst), fsync(parent), and a record by
//
//	write(file, record)                              O_APPEND, one call
//	fsync(file)
//
// The Go runtime repeats a call that a signal interrupted (EINTR) and continues
// a write that the kernel cut short, so that a record is one write(2) unless
// the disk fills in the middle of it.
//
// # Failures
//
// When a call here fails before its rename, the target is what it was. When it
// fails at the rename or after it, the target is the old content or the new,
// whole either way, and which of them is there after a power cut is unknown.
// In both cases the way out is to do the whole call again: a failed fsync must
// not be repeated on its own, because Linux reports a lost page once and then
// takes it for clean.
//
// A crash can leave a temporary file behind. [IsTemp] knows its name and
// [RemoveStale] deletes old ones.
//
// # Assumptions
//
// A rename is atomic within a directory. Appending does not damage what was
// synced before. A write may reach the disk in part, in any order of its pages.
//
// Nothing here locks: two writers of one file each leave it whole, and the last
// rename wins. Functions may be called concurrently.
package durable

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// FS is the calls through which everything here is written. [OS] is the
// machine's own; package durabletest has one that fails on demand, and package spool
// one that does not leave its folder.
type FS interface {
	OpenFile(name string, flag int, perm fs.FileMode) (Handle, error)
	Rename(from, to string) error
	Remove(name string) error
	Mkdir(name string, perm fs.FileMode) error
	Stat(name string) (fs.FileInfo, error)
}

// Handle is an open file, or a directory opened to be synced.
type Handle interface {
	io.WriteCloser
	Sync() error
	Truncate(size int64) error
}

// OS is the machine's file system.
var OS FS = osFS{}

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (Handle, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err // not f: a nil *os.File in an interface is not nil
	}
	return f, nil
}
func (osFS) Rename(from, to string) error              { return os.Rename(from, to) }
func (osFS) Remove(name string) error                  { return os.Remove(name) }
func (osFS) Mkdir(name string, perm fs.FileMode) error { return os.Mkdir(name, perm) }
func (osFS) Stat(name string) (fs.FileInfo, error)     { return os.Stat(name) }

// A Disk writes through one FS. The functions of this package are its methods
// on the machine's own.
type Disk struct{ fs FS }

// On returns the Disk that writes through fs.
func On(fs FS) Disk { return Disk{fs} }

var local = On(OS)

// WriteFile makes path hold data. On return the content and the name are on
// stable storage; a reader sees the old file or the new, never a part.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	return local.WriteFile(path, data, perm)
}

// Create starts a file that will be at path once it is committed.
func Create(path string) (*File, error) { return local.Create(path) }

// RenameDir gives the finished directory tmp the name dst, in one step. The
// files in tmp must already be durable; their names are made so here. dst must
// not exist, or be an empty directory, and must have the same parent as tmp.
func RenameDir(tmp, dst string) error { return local.RenameDir(tmp, dst) }

// SyncDir puts the names in dir on stable storage.
func SyncDir(dir string) error { return local.SyncDir(dir) }

// MkdirAll makes dir and its missing parents, and returns when their names are
// on stable storage. A directory that exists is left as it is.
func MkdirAll(dir string, perm fs.FileMode) error { return local.MkdirAll(dir, perm) }

// WriteFile is the function of that name, on this disk.
func (d Disk) WriteFile(path string, data []byte, perm fs.FileMode) error {
	f, err := d.create(path, perm)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		f.Abort()
		return err
	}
	return f.Commit()
}

// SyncDir is the function of that name, on this disk.
func (d Disk) SyncDir(dir string) error {
	h, err := d.fs.OpenFile(dir, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("syncing directory: %w", err)
	}
	err = h.Sync()
	h.Close() // opened for reading: nothing of ours is lost if it fails
	if err != nil {
		return fmt.Errorf("syncing directory %s: %w", dir, err)
	}
	return nil
}

// RenameDir is the function of that name, on this disk.
func (d Disk) RenameDir(tmp, dst string) error {
	if filepath.Dir(tmp) != filepath.Dir(dst) {
		return fmt.Errorf("renaming %s to %s: not in one directory, so the rename would not be one step", tmp, dst)
	}
	if err := d.SyncDir(tmp); err != nil {
		return err
	}
	if err := d.fs.Rename(tmp, dst); err != nil {
		return err
	}
	return d.SyncDir(filepath.Dir(dst))
}

// MkdirAll is the function of that name, on this disk.
func (d Disk) MkdirAll(dir string, perm fs.FileMode) error {
	switch info, err := d.fs.Stat(dir); {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return fmt.Errorf("making directory %s: a file of that name is in the way", dir)
	case !os.IsNotExist(err):
		return fmt.Errorf("making directory: %w", err)
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := d.MkdirAll(parent, perm); err != nil {
			return err
		}
	}
	// Another process may have made it since: then its name still has to be
	// synced, because that process may not have got so far.
	if err := d.fs.Mkdir(dir, perm); err != nil && !os.IsExist(err) {
		return err
	}
	return d.SyncDir(parent)
}
