package logincmd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
)

const (
	folder   = ".hanzo"
	fileName = "login.json"
	lockName = "login.lock"

	maxFile = 64 << 10 // bytes of a login, or of a token file
)

// person is whose login it is.
type person struct {
	name  string // "" is who runs this
	home  string
	uid   int
	gid   int
	other bool // this is root, for somebody else
}

// find finds a person's home. "" is who runs this.
func find(name string) (person, error) {
	if name == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return person{}, fmt.Errorf("finding your login: %w; set HOME, or HANZO_API and HANZO_TOKEN_FILE", err)
		}
		return person{home: home, uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return person{}, fmt.Errorf("finding the login of %s: %w; set HANZO_API and HANZO_TOKEN_FILE instead", name, err)
	}
	uid, uerr := strconv.Atoi(u.Uid)
	gid, gerr := strconv.Atoi(u.Gid)
	if err := errors.Join(uerr, gerr); err != nil {
		return person{}, fmt.Errorf("finding the login of %s: %w", name, err)
	}
	return person{name: name, home: u.HomeDir, uid: uid, gid: gid, other: uid != os.Geteuid()}, nil
}

// path is the login's, for a person to read.
func (p person) path() string { return filepath.Join(p.home, folder, fileName) }

// open opens the folder of the login. For somebody else nothing on the way to it, or
// below it, leads out of their home; one's own may lie elsewhere by a link.
func (p person) open() (*os.Root, error) {
	var dir *os.Root
	var err error
	if p.other {
		var home *os.Root
		if home, err = os.OpenRoot(p.home); err == nil {
			dir, err = home.OpenRoot(folder)
			home.Close()
		}
	} else {
		dir, err = os.OpenRoot(filepath.Join(p.home, folder))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", filepath.Join(p.home, folder), err)
	}
	at, err := dir.Open(".")
	if err != nil {
		dir.Close()
		return nil, err
	}
	defer at.Close()
	if err := p.owns(at, fs.ModeDir, 0o022, "write to it; chmod go-w it"); err != nil {
		dir.Close()
		return nil, fmt.Errorf("%s %w", filepath.Join(p.home, folder), err)
	}
	return dir, nil
}

// owns refuses what is not of a type, or not the person's, or has one of the bits.
func (p person) owns(f *os.File, kind fs.FileMode, bits uint32, why string) error {
	var st unix.Stat_t
	info, err := f.Stat()
	if err == nil {
		err = unix.Fstat(int(f.Fd()), &st)
	}
	mode := uint32(st.Mode) & 0o7777
	switch {
	case err != nil:
		return err
	case info.Mode().Type() != kind:
		return errors.New("is not what it should be (" + info.Mode().Type().String() + "): move it away")
	case int(st.Uid) != p.uid:
		return fmt.Errorf("belongs to user %d and not to %s: move it away and run hanzo login again", st.Uid, p.who())
	case mode&bits != 0:
		return fmt.Errorf("has mode %04o: others can %s", mode, why)
	}
	return nil
}

func (p person) who() string {
	if p.name != "" {
		return p.name
	}
	return fmt.Sprintf("user %d", p.uid)
}

const readable = "read it; chmod 600 it"

// read reads the login. ErrNoLogin: there is none.
func (p person) read() (login, error) {
	dir, err := p.open()
	if err == nil {
		defer dir.Close()
		var f *os.File
		if f, err = dir.OpenFile(fileName, os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
			defer f.Close()
			return p.readFrom(f)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		if p.other {
			return login{}, fmt.Errorf("%s is not logged in here: run hanzo login URL, without sudo, with the address of your control plane: %w", p.name, errAbsent)
		}
		return login{}, ErrNoLogin
	}
	return login{}, fmt.Errorf("reading the login: %w", err)
}

// errAbsent is ErrNoLogin, without its advice.
var errAbsent = absent{}

type absent struct{}

func (absent) Error() string        { return "there is no login" }
func (absent) Is(target error) bool { return target == ErrNoLogin }

func (p person) readFrom(f *os.File) (login, error) {
	if err := p.owns(f, 0, 0o077, readable); err != nil {
		return login{}, fmt.Errorf("%s %w", p.path(), err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return login{}, fmt.Errorf("reading the login: %w", err)
	}
	var l login
	if err := canon.Unmarshal(b, &l); err != nil {
		return login{}, fmt.Errorf("%s: %w; run hanzo login again", p.path(), err)
	}
	if err := l.check(); err != nil {
		return login{}, fmt.Errorf("%s: %w; run hanzo login again", p.path(), err)
	}
	return l, nil
}

// write replaces the login, durably.
func (p person) write(l login) error {
	b, err := canon.Marshal(l)
	if err != nil {
		return err
	}
	if !p.other {
		if err := durable.MkdirAll(filepath.Join(p.home, folder), 0o700); err != nil {
			return err
		}
	}
	dir, err := p.open()
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := durable.On(within{dir, p}).WriteFile(fileName, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(p.home, folder), err)
	}
	return nil
}

// lock waits for the lock on the login. It is a file of its own, for the login's is
// replaced; the kernel drops it when its process ends.
func (p person) lock() (unlock func(), err error) {
	dir, err := p.open()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := within{dir, p}.open(lockName, os.O_RDWR|os.O_CREATE|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the login: %w", err)
	}
	if err := p.owns(f, 0, 0o022, "write to it; chmod 600 it"); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s %w", filepath.Join(p.home, folder, lockName), err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking the login: %w", err)
	}
	return func() { f.Close() }, nil
}

// within is the file system of one folder, in which what is made belongs to a person.
type within struct {
	dir *os.Root
	p   person
}

func (w within) open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	f, err := w.dir.OpenFile(name, flag|os.O_EXCL, perm)
	if flag&os.O_CREATE == 0 || errors.Is(err, fs.ErrExist) && flag&os.O_EXCL == 0 {
		return w.dir.OpenFile(name, flag, perm)
	}
	if err == nil && w.p.other {
		if err = f.Chown(w.p.uid, w.p.gid); err != nil {
			f.Close()
		}
	}
	return f, err
}

func (w within) OpenFile(name string, flag int, perm fs.FileMode) (durable.Handle, error) {
	if name == "" {
		name = "." // the folder itself, to be synced
	}
	f, err := w.open(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return f, nil
}
func (w within) Stat(name string) (fs.FileInfo, error)     { return w.dir.Stat(name) }
func (w within) Rename(from, to string) error              { return w.dir.Rename(from, to) }
func (w within) Remove(name string) error                  { return w.dir.Remove(name) }
func (w within) Mkdir(name string, perm fs.FileMode) error { return w.dir.Mkdir(name, perm) }

// tokenFile reads the token of a one-machine control plane. Root reads for somebody
// else only what is theirs: else they could have it send a secret of root's to a
// control plane of theirs.
func (p person) tokenFile(name string) (string, error) {
	if !p.other {
		return api.TokenFile(name)()
	}
	if info, err := os.Lstat(name); err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	} else if !info.Mode().IsRegular() {
		return "", fmt.Errorf("token file %s is not a regular file", name)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	defer f.Close()
	if err := p.owns(f, 0, 0o077, readable); err != nil {
		return "", fmt.Errorf("token file %s %w", name, err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", fmt.Errorf("token file %s is empty", name)
	}
	return token, nil
}
