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
		err = fmt.Errorf("not root's alone (user %d, mode %04o): move it away and start the launcher again", st.Uid, st.Mode&0o7777)
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return dir, nil
}

// ensureOwn makes a directory that is root's, for a group to read, where there is
// none. Its parent may be the agent's, who can put something else in its place;
// what is there is therefore looked at.
func ensureOwn(path string, gid uint32, mode uint32) error {
	parent, err := openDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer parent.Close()
	err = unix.Mkdirat(int(parent.Fd()), filepath.Base(path), 0o700)
	made := err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	dir, err := openOwn(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if !made {
		return nil
	}
	// Through /proc, since the descriptor is for paths alone.
	name := fmt.Sprintf("/proc/self/fd/%d", dir.Fd())
	return errors.Join(os.Chown(name, 0, int(gid)), os.Chmod(name, os.FileMode(mode)))
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
	if !isHash(hash) { // a second time: it becomes a path here
		return nil, fmt.Errorf("%.80q is no tree's name", hash)
	}
	dir, err := openDir(store)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return openBeneath(dir, "trees/"+hash, unix.O_PATH|unix.O_DIRECTORY)
}

// errRan marks an activity whose spool directory is there already.
var errRan = errors.New("has run before, and an id is used once")

// makeSpool makes an activity's spool directory: the workload's own, readable and
// writable by the agent's group, which what is made in it inherits. It is kept,
// and keeps the activity from being started again. The agent can rename the parent,
// so what was made is looked at through its descriptor before it is given away.
func makeSpool(spool, activity string, work, agent User) (_ *os.File, err error) {
	parent, err := openOwn(spool)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	path := filepath.Join(spool, activity)
	switch err := unix.Mkdirat(int(parent.Fd()), activity, 0o700); {
	case errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("%s is there: the activity %w", path, errRan)
	case err != nil:
		return nil, &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	defer func() {
		if err != nil {
			unix.Unlinkat(int(parent.Fd()), activity, unix.AT_REMOVEDIR)
		}
	}()
	dir, err := openBeneath(parent, activity, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	fd := int(dir.Fd())
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Uid != 0 || st.Mode != unix.S_IFDIR|st.Mode&unix.S_ISGID|0o700 || st.Nlink > 2) {
		err = errors.New("is not the directory that was just made")
	}
	if err == nil {
		err = unix.Fchown(fd, int(work.UID), int(agent.GID))
	}
	if err == nil {
		err = unix.Fchmod(fd, unix.S_ISGID|0o770) // after chown, which clears the bit
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return dir, nil
}

// dropSpool removes the empty spool directory of an activity that did not start.
func dropSpool(spool, activity string) error {
	parent, err := openOwn(spool)
	if err != nil {
		return err
	}
	defer parent.Close()
	err = unix.Unlinkat(int(parent.Fd()), activity, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
