//go:build linux

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A workload can make its run directory as unpleasant as the file system allows:
// links out of it, pipes, a million files, directories nested far beyond what a path
// can name. Nothing here follows a link, leaves the file system, builds a path or, in
// removing, recurses.

// Empty removes everything in dir, which stays, in the way in which run directories
// are removed: whatever a workload has left there, of any depth, without following a
// link and without leaving the file system. It goes on until dir is empty, an error
// stands in the way, or ctx ends; called again it continues.
func Empty(ctx context.Context, dir *os.File) error {
	return empty(ctx, dir, func(name string) error { return removeTree(ctx, int(dir.Fd()), name) })
}

// Usage is the bytes on disk of what is in dir, as they are counted against a limit of
// disk. A tree of more directories or files than are counted is an error, with what
// was counted so far.
func Usage(ctx context.Context, dir *os.File) (int64, error) { return usage(ctx, dir) }

// removeTree removes name in the directory parent, whatever it is. A directory found
// in a directory is moved up to the top of the tree before it is emptied, so that two
// descriptors are enough for any depth.
func removeTree(ctx context.Context, parent int, name string) error {
	isDir, err := unlink(parent, name)
	if err != nil || !isDir {
		return err
	}
	top, err := openDir(parent, name)
	if err != nil {
		return err
	}
	defer top.Close()
	moved := 0
	lift := func(dir *os.File, name string) error {
		for {
			moved++
			err := unix.Renameat(int(dir.Fd()), name, int(top.Fd()), "moved-"+strconv.Itoa(moved))
			// An empty directory of that name gives way, and anything else does not.
			// There is a flag for that, which not every file system knows.
			switch err {
			case nil:
				return nil
			case unix.ENOTEMPTY, unix.EEXIST, unix.ENOTDIR:
			default:
				return &os.PathError{Op: "move", Path: name, Err: err}
			}
		}
	}
	err = empty(ctx, top, func(name string) error {
		dir, err := openDir(int(top.Fd()), name)
		if err != nil {
			return err
		}
		defer dir.Close()
		if err := empty(ctx, dir, func(name string) error { return lift(dir, name) }); err != nil {
			return err
		}
		return rmdir(int(top.Fd()), name)
	})
	if err != nil {
		return err
	}
	return rmdir(parent, name)
}

// empty unlinks everything in dir and gives each directory to sub, which takes it
// away. It goes over dir until it finds nothing: what sub moves to dir may or may not
// be seen in the same pass.
func empty(ctx context.Context, dir *os.File, sub func(name string) error) error {
	for {
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		found := false
		for {
			names, err := dir.Readdirnames(1024)
			if len(names) == 0 {
				if err != nil && err != io.EOF {
					return err
				}
				break
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			found = true
			for _, name := range names {
				isDir, err := unlink(int(dir.Fd()), name)
				if err == nil && isDir {
					err = sub(name)
				}
				if err != nil {
					return err
				}
			}
		}
		if !found {
			return nil
		}
	}
}

// unlink removes name unless it is a directory.
func unlink(parent int, name string) (isDir bool, err error) {
	switch err := unix.Unlinkat(parent, name, 0); err {
	case nil, unix.ENOENT:
		return false, nil
	case unix.EISDIR:
		return true, nil
	default:
		return false, &os.PathError{Op: "remove", Path: name, Err: err}
	}
}

func rmdir(parent int, name string) error {
	if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		return &os.PathError{Op: "remove", Path: name, Err: err}
	}
	return nil
}

// openDir opens a directory to be read, unless another file system is mounted on it.
func openDir(parent int, name string) (*os.File, error) {
	fd, err := unix.Openat2(parent, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Bounds of what is counted. Past them a tree counts as over its limit: no honest
// workload comes near, and counting must not cost the launcher more than the
// workload spent on making it.
const (
	maxDepth   = 64
	maxEntries = 1 << 20
	inode      = 4096 // bytes charged for a file or directory as such
)

var errTooMuch = errors.New("more directories or files than are counted")

// usage is the bytes on disk of what is in dir: blocks and not lengths, so that a
// sparse file counts for what it takes.
func usage(ctx context.Context, dir *os.File) (int64, error) {
	entries := 0
	return count(ctx, dir, maxDepth, &entries)
}

func count(ctx context.Context, dir *os.File, depth int, entries *int) (int64, error) {
	if depth == 0 {
		return 0, errTooMuch
	}
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	var total int64
	for {
		if err := ctx.Err(); err != nil {
			return total, err
		}
		names, _ := dir.Readdirnames(1024)
		if len(names) == 0 {
			return total, nil // at the end, or as far as can be read
		}
		for _, name := range names {
			if *entries++; *entries > maxEntries {
				return total, errTooMuch
			}
			var st unix.Stat_t
			if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue // removed meanwhile
			}
			total += st.Blocks*512 + inode
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				continue
			}
			sub, err := openDir(int(dir.Fd()), name)
			if err != nil {
				continue
			}
			n, err := count(ctx, sub, depth-1, entries)
			sub.Close()
			total += n
			if err != nil {
				return total, err
			}
		}
	}
}

// watchDisk kills the workload when it holds more disk than its limit, or when its
// file system has less left than must stay free. A count that takes long is made less
// often, so that it costs at most a tenth of a processor; to ask what is free costs
// nothing.
func (w *Workload) watchDisk(ctx context.Context) {
	l := w.spec.Limits
	if l.Disk == 0 && l.Free == 0 {
		return
	}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var next time.Time // not to count before
	for {
		over := overFree(w.run.dir, l.Free)
		if began := time.Now(); over == "" && l.Disk > 0 && began.After(next) {
			over = overDisk(ctx, append([]*os.File{w.run.dir}, w.counted...), l.Disk)
			next = time.Now().Add(9 * time.Since(began))
		}
		if over != "" {
			w.end(Disk, over)
			w.kill()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// overFree says that the file system of dir has less than limit left, or nothing.
func overFree(dir *os.File, limit int64) string {
	var fs unix.Statfs_t
	if unix.Fstatfs(int(dir.Fd()), &fs) != nil {
		return ""
	}
	if left := int64(fs.Bavail) * fs.Bsize; left < limit {
		return fmt.Sprintf("the file system has %d bytes left where %d must stay free", left, limit)
	}
	return ""
}

// overDisk says that dirs hold more than limit, or nothing.
func overDisk(ctx context.Context, dirs []*os.File, limit int64) string {
	var total int64
	for _, d := range dirs {
		n, err := usage(ctx, d)
		if ctx.Err() != nil {
			return ""
		}
		total += n
		if err != nil {
			return err.Error()
		}
	}
	if total > limit {
		return fmt.Sprintf("%d bytes of disk, limit %d", total, limit)
	}
	return ""
}
