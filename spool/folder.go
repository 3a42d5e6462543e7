package spool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/spool/durable"
)

// What is taken from a spool that is attached, whose writer is not trusted. An
// honest run stays far below; together they bound what a spool costs its reader.
const (
	maxEntries  = 1 << 16 // names in one folder, ours or not
	maxNames    = 1 << 12 // records of one kind
	maxRecord   = 16 << 10
	maxArtifact = 64 << 30
)

// maxSmall bounds what is read whole, whoever wrote it.
const maxSmall = 16 << 20

// folder is the directory below which a spool lies, and the only way to what is in
// it: no access leaves it, through whatever links and however names change
// meanwhile; none waits, as opening a named pipe would; and only regular files are
// opened, and directories to be listed. It is a durable.FS. Names are paths that
// begin with dir, so that errors say where.
type folder struct {
	root *os.Root
	dir  string
}

var _ durable.FS = folder{}

// openFolder opens a directory that exists. Its path is trusted.
func openFolder(dir string) (folder, error) {
	root, err := os.OpenRoot(dir)
	return folder{root, dir}, err
}

// rel is the name of a path below the folder's own. Another path is a mistake of
// ours, and os.Root refuses it.
func (f folder) rel(path string) string {
	rel, err := filepath.Rel(f.dir, path)
	if err != nil {
		return path
	}
	return rel
}

// at makes an error say which path it is about.
func at(op, path string, err error) error {
	if err == nil {
		return nil
	}
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner // of a PathError or LinkError, what is in it
	}
	if _, ok := err.(unix.Errno); !ok && !errors.Is(err, fs.ErrClosed) && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", ErrCorrupt, err) // os.Root's own: it leads out of the folder
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// open opens a regular file, or makes one; with O_DIRECTORY, a directory. Anything
// else in its place is [ErrCorrupt].
func (f folder) open(path string, flag int, perm fs.FileMode) (*os.File, error) {
	var want fs.FileMode // a regular file's type
	if flag&unix.O_DIRECTORY != 0 {
		want = fs.ModeDir
	}
	rel := f.rel(path)
	file, err := f.root.OpenFile(rel, flag|unix.O_NONBLOCK|unix.O_NOCTTY, perm)
	if err != nil {
		if info, e := f.root.Lstat(rel); e == nil && info.Mode().Type() != want {
			return nil, irregular(path, info.Mode())
		}
		return nil, at("open", path, err)
	}
	info, err := file.Stat()
	if err == nil && info.Mode().Type() != want {
		err = irregular(path, info.Mode())
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func irregular(path string, mode fs.FileMode) error {
	return fmt.Errorf("%w: %s is not what should be there (%v); move it away", ErrCorrupt, path, mode)
}

// read returns a file's content, nil when there is none. More than limit bytes of it
// are [ErrCorrupt].
func (f folder) read(path string, limit int64) ([]byte, error) {
	file, err := f.open(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, at("read", path, err)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: %s is over %d bytes; move it away", ErrCorrupt, path, limit)
	}
	return b, nil
}

// exists reports whether there is something of that name.
func (f folder) exists(path string) (bool, error) {
	_, err := f.root.Lstat(f.rel(path))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, at("stat", path, err)
}

// each calls visit with the names in a directory, in no order. limit, when it is not
// 0, is how many there may be.
func (f folder) each(dir string, limit int, visit func(name string) error) error {
	d, err := f.open(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	for n := 0; ; {
		names, err := d.Readdirnames(1000)
		if n += len(names); limit > 0 && n > limit {
			return fmt.Errorf("%w: %s holds more than %d files", ErrCorrupt, dir, limit)
		}
		for _, name := range names {
			if err := visit(name); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return at("read", dir, err)
		}
	}
}

// OpenFile implements durable.FS, which reads nothing but opens directories to sync
// them.
func (f folder) OpenFile(path string, flag int, perm fs.FileMode) (durable.Handle, error) {
	if flag == os.O_RDONLY {
		flag |= unix.O_DIRECTORY
	}
	file, err := f.open(path, flag, perm)
	if err != nil {
		return nil, err // not file: a nil *os.File in an interface is not nil
	}
	return file, nil
}

// Rename implements durable.FS.
func (f folder) Rename(from, to string) error {
	return at("rename", to, f.root.Rename(f.rel(from), f.rel(to)))
}

// Remove implements durable.FS.
func (f folder) Remove(path string) error { return at("remove", path, f.root.Remove(f.rel(path))) }

// Mkdir implements durable.FS.
func (f folder) Mkdir(path string, perm fs.FileMode) error {
	return at("mkdir", path, f.root.Mkdir(f.rel(path), perm))
}

// Stat implements durable.FS.
func (f folder) Stat(path string) (fs.FileInfo, error) {
	info, err := f.root.Stat(f.rel(path))
	return info, at("stat", path, err)
}

// sweep deletes the temporary files in dir that were last written before the given
// time: their writers are dead or hung.
func (f folder) sweep(dir string, before time.Time) error {
	return f.each(dir, 0, func(name string) error {
		if !durable.IsTemp(name) {
			return nil
		}
		path := filepath.Join(dir, name)
		info, err := f.root.Lstat(f.rel(path))
		if err != nil || !info.Mode().IsRegular() || !info.ModTime().Before(before) {
			return nil // gone already, or in use
		}
		if err := f.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}
