package policy

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Load reads the policy at path: [ReadTrusted], then [Parse]. The sum is the
// SHA-256 of the file's bytes, policySha256 of HIP-1172 A2. On an error both are
// zero, and the zero Policy admits nothing.
func Load(path string) (Policy, [32]byte, error) {
	src, err := ReadTrusted(path, MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return Policy{}, [32]byte{}, fmt.Errorf("%w: without a policy nothing is offered; sudo hanzo link writes one, which admits nothing", err)
	}
	if err != nil {
		return Policy{}, [32]byte{}, err
	}
	p, err := Parse(src)
	if err != nil {
		return Policy{}, [32]byte{}, fmt.Errorf("%s: %w; %s", path, err, Mend)
	}
	return p, sha256.Sum256(src), nil
}

// ReadTrusted reads a file that nobody but root can have written. An error says
// what about it could be somebody else's, and [errors.Is] knows fs.ErrNotExist.
//
// The path is absolute and clean and is walked from / one directory at a time,
// each opened within the one before, so that what was checked is what is walked
// through. No segment may be a symbolic link, not even one that root made: a path
// with one is two paths to keep safe.
//
// Every directory belongs to root and is writable by neither its group nor others.
// A sticky one such as /tmp may be, but not the one that holds the file: there
// others can neither replace nor move what is root's, so what lies further on is
// safe as long as it is root's, which is checked; but they can give an old file
// of root's a new name by a hard link, and so choose among the policies of the
// past. An access control list that lets others write shows as the group's bit.
//
// The file is regular, belongs to root, is writable by nobody else, has one name
// and at most limit bytes. All that is asked of the descriptor which is then
// read, so nothing can be put in its place in between. What root itself writes
// into it meanwhile shows in its times, as finely as the kernel keeps them, and is
// an error too.
func ReadTrusted(path string, limit int64) ([]byte, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	fd, err := openTrusted(path)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()

	var before, after unix.Stat_t
	if err := fstat(fd, path, &before); err != nil {
		return nil, err
	}
	if fault := fileFault(&before, limit); fault != "" {
		return nil, fmt.Errorf("%s %s", path, fault)
	}
	// One byte more than is allowed, for a file that grew.
	src, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err // an *os.PathError
	}
	if err := fstat(fd, path, &after); err != nil {
		return nil, err
	}
	if after.Size != before.Size || after.Mtim != before.Mtim || after.Ctim != before.Ctim || int64(len(src)) != after.Size {
		return nil, fmt.Errorf("%s changed while it was read; read it again", path)
	}
	return src, nil
}

func checkPath(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return fmt.Errorf("%q is not an absolute and clean path of a file", path)
	}
	return nil
}

// openTrusted walks to a file through directories that are only root's to change.
func openTrusted(path string) (int, error) {
	const directory = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	dir, err := open(unix.AT_FDCWD, "/", "/", directory)
	if err != nil {
		return -1, err
	}
	defer func() { unix.Close(dir) }()
	segments := strings.Split(path[1:], "/")
	for i, segment := range segments {
		last := i == len(segments)-1
		at := "/" + strings.Join(segments[:i], "/")
		var st unix.Stat_t
		if err := fstat(dir, at, &st); err != nil {
			return -1, err
		}
		if fault := directoryFault(&st, last); fault != "" {
			return -1, fmt.Errorf("%s is not safe: %s %s", path, at, fault)
		}
		name := filepath.Join(at, segment)
		if last {
			// O_NONBLOCK: a named pipe here must not hang the reader.
			return open(dir, segment, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC)
		}
		next, err := open(dir, segment, name, directory)
		if err != nil {
			return -1, err
		}
		unix.Close(dir)
		dir = next
	}
	panic("policy: a path of no segments")
}

// open opens one segment, which O_NOFOLLOW keeps from being a link.
func open(dir int, segment, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, segment, flags, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err == nil:
			return fd, nil
		case err == unix.ELOOP, err == unix.ENOTDIR && isLink(dir, segment):
			return -1, fmt.Errorf("%s is a symbolic link; put what it names in its place", name)
		}
		return -1, &os.PathError{Op: "open", Path: name, Err: err}
	}
}

// isLink words an error; nothing is decided by it.
func isLink(dir int, segment string) bool {
	var st unix.Stat_t
	return unix.Fstatat(dir, segment, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

func fstat(fd int, path string, st *unix.Stat_t) error {
	for {
		err := unix.Fstat(fd, st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "stat", Path: path, Err: err}
		}
		return nil
	}
}

// directoryFault says what lets others than root change a directory.
func directoryFault(st *unix.Stat_t, holdsFile bool) string {
	switch sticky := st.Mode&unix.S_ISVTX != 0; {
	case st.Uid != 0:
		return fmt.Sprintf("belongs to uid %d; chown it to root", st.Uid)
	case st.Mode&0o022 == 0, sticky && !holdsFile:
		return ""
	}
	return fmt.Sprintf("has mode %#o; take the right to write from its group and others (chmod go-w)", st.Mode&0o7777)
}

// fileFault says what lets a file be another's, or no file to read.
func fileFault(st *unix.Stat_t, limit int64) string {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return "is not a regular file"
	case st.Uid != 0:
		return fmt.Sprintf("belongs to uid %d; chown it to root", st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Sprintf("has mode %#o; take the right to write from its group and others (chmod go-w)", st.Mode&0o7777)
	case st.Nlink == 0:
		return "was deleted"
	case st.Nlink > 1:
		return fmt.Sprintf("has %d names; remove the other hard links", st.Nlink)
	case st.Size > limit:
		return fmt.Sprintf("has %d bytes, which is more than %d", st.Size, limit)
	}
	return ""
}
