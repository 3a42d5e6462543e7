//go:build linux

package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// openDir opens a directory by its absolute path, through no symbolic link.
func openDir(path string) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openOwn opens a directory that is root's, and that nobody else can write to.
func openOwn(path string) (*os.File, error) {
	dir, err := openDir(path)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(dir.Fd()), &st)
	if err == nil && (st.Uid != 0 || st.Mode&0o022 != 0) {
		err = fmt.Errorf("not root's alone (user %d, mode %04o): move it away and run hanzo link again", st.Uid, st.Mode&0o7777)
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return dir, nil
}

// ensureOwn makes a directory that is root's, for a group to read, where there is
// none. Each directory above it must be root's, and sticky where others may write
// to it (systemd/hanzo-link.tmpfiles): else they could put a link in its place, and
// root would make and remove what they choose by this path.
func ensureOwn(path string, gid int, mode os.FileMode) error {
	for i := range path {
		if path[i] != '/' {
			continue
		}
		var st unix.Stat_t
		above := path[:max(i, 1)]
		if err := unix.Lstat(above, &st); err != nil {
			return &os.PathError{Op: "stat", Path: above, Err: err}
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 || st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
			return fmt.Errorf("%s is not safe: others than root can replace what is in %s (user %d, mode %04o); run hanzo link again", path, above, st.Uid, st.Mode&0o7777)
		}
	}
	err := os.Mkdir(path, 0o700)
	if err == nil {
		return errors.Join(os.Chown(path, 0, gid), os.Chmod(path, mode))
	}
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	dir, err := openOwn(path)
	if err != nil {
		return err
	}
	return dir.Close()
}

// openBeneath opens what a relative path means inside dir, through no symbolic
// link and not out of dir, whatever others rename meanwhile.
func openBeneath(dir *os.File, path string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if flags&unix.O_PATH == 0 {
		how.Flags |= unix.O_NONBLOCK // a FIFO must not hold the launcher up
	}
	var fd int
	var err error
	// The kernel gives up with EAGAIN when a rename races with the walk; whoever
	// keeps renaming does not get to keep us trying.
	for range 16 {
		if fd, err = unix.Openat2(int(dir.Fd()), path, &how); !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	name := filepath.Join(dir.Name(), path)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	if flags&unix.O_PATH == 0 {
		if err := unix.SetNonblock(fd, false); err != nil {
			unix.Close(fd)
			return nil, &os.PathError{Op: "open", Path: name, Err: err}
		}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openTree opens a tree of the store by its hash. The store is the agent's: the
// descriptor, and not the path, is what the workload is given.
func openTree(store, hash string) (*os.File, error) {
	dir, err := openDir(store)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return openBeneath(dir, "trees/"+hash, unix.O_PATH|unix.O_DIRECTORY)
}

// spare is a directory in the one of spool directories that is made ahead of need:
// to rename it takes a tenth of the time. No activity has its name, and one that an
// earlier life left is as good.
const spare = ".next"

// makeSpare makes the spare, where there is none. Without it a start makes its own.
func makeSpare(spool string) { os.Mkdir(filepath.Join(spool, spare), 0o700) }

// makeSpool makes an activity's spool directory: the workload's own, readable and
// writable by the agent's group, which what is made in it inherits. It is kept,
// and keeps the activity from being started again. Its parent is one of ensureOwn's.
func makeSpool(spool, activity string, work, agent User) (*os.File, error) {
	path := filepath.Join(spool, activity)
	err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(spool, spare), unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if err != nil {
		err = os.Mkdir(path, 0o700)
	}
	switch {
	case errors.Is(err, os.ErrExist):
		return nil, fmt.Errorf("%s is there: the activity has run before, and an id is used once", path)
	case err != nil:
		return nil, err
	}
	dir, err := os.Open(path)
	if err == nil {
		err = dir.Chown(int(work.UID), int(agent.GID))
	}
	if err == nil {
		err = dir.Chmod(os.ModeSetgid | 0o770)
	}
	if err != nil {
		dir.Close()
		unix.Rmdir(path)
		return nil, err
	}
	return dir, nil
}
