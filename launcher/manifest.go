//go:build linux

package launcher

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
	"golang.org/x/sys/unix"
)

// ManifestName is the manifest's file name, in the directory of the binaries.
const ManifestName = "manifest.json"

// Manifest pins binaries. hanzo link writes it, as root, beside what it installs:
//
//	{"binaries":{"hanzo-stage":"<64 hex>","train":"<64 hex>"}}
//
// Names are of files in the same directory, sums their SHA-256. The launcher
// executes nothing that it does not name, and nothing that is not what it says.
type Manifest struct {
	Binaries map[string]string `json:"binaries"`
}

// settled is for how long a file must not have changed for its times to tell of the
// next change: more than the longest tick, which is 10 ms.
const settled = time.Second

// maxManifest bounds the file in bytes; a release has a handful of binaries.
const maxManifest = 64 << 10

// ReadManifest reads the manifest of a directory of binaries. One that somebody
// else than root can have written, or that is not of its form, is an error.
func ReadManifest(dir string) (Manifest, error) {
	path := filepath.Join(dir, ManifestName)
	src, err := policy.ReadTrusted(path, maxManifest)
	if err != nil {
		return Manifest{}, err
	}
	var m Manifest
	if err := canon.Unmarshal(src, &m); err != nil {
		return Manifest{}, fmt.Errorf("%s: %w", path, err)
	}
	for name, sum := range m.Binaries {
		if name == "" || filepath.Base(name) != name || name == ".." {
			return Manifest{}, fmt.Errorf("%s: %q is no file name", path, name)
		}
		if !canon.SHA256(sum).Valid() {
			return Manifest{}, fmt.Errorf("%s: %s: want the binary's SHA-256 as 64 lower-case hex digits", path, name)
		}
	}
	return m, nil
}

// errIntegrity marks a binary that is not the pinned one.
var errIntegrity = errors.New("not the pinned binary")

// binaries opens what the manifest pins. It keeps the sum of each file that it
// hashed, so that a start does not read a binary of many megabytes: the file is
// known by its inode, size and times, as the kernel tells them of the open
// descriptor. Only root can write it, and no write leaves its change time, but for
// two within one tick of the kernel's clock; so a file that has just changed is
// hashed at every look.
type binaries struct {
	dir string

	mu   sync.Mutex
	sums map[string]hashed // by name, so as many as the manifest has
}

type hashed struct {
	file identity
	sum  string
}

// identity is what changes when a file's bytes may have.
type identity struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// open opens a pinned binary for reading and executing. What is executed through
// the descriptor is what was hashed through it. Its errors name what to do;
// a binary that is there and is another one is errIntegrity.
func (b *binaries) open(name string) (*os.File, error) {
	m, err := ReadManifest(b.dir)
	if err != nil {
		return nil, err
	}
	pin, ok := m.Binaries[name]
	if !ok {
		return nil, fmt.Errorf("%s pins no %s: run hanzo link again to install it", filepath.Join(b.dir, ManifestName), name)
	}
	path := filepath.Join(b.dir, name)
	dir, err := openDir(b.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := openBeneath(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	sum, err := b.sum(name, path, f)
	if err == nil && sum != pin {
		err = fmt.Errorf("%s: %w: its SHA-256 is %s, and the manifest says %s; run hanzo link again", path, errIntegrity, sum, pin)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// sum is the SHA-256 of an open binary that only root can have written.
func (b *binaries) sum(name, path string, f *os.File) (string, error) {
	before, err := identify(path, f)
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if have, ok := b.sums[name]; ok && have.file == before {
		return have.sum, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	after, err := identify(path, f)
	if err != nil {
		return "", err
	}
	if after != before {
		return "", fmt.Errorf("%s changed while it was read: an installation is under way; start again after it", path)
	}
	sum := hex.EncodeToString(h.Sum(nil))
	if time.Since(time.Unix(before.ctime.Unix())) > settled {
		if b.sums == nil {
			b.sums = make(map[string]hashed)
		}
		b.sums[name] = hashed{before, sum}
	}
	return sum, nil
}

// identify refuses what is not a regular file of root's that nobody else can write.
func identify(path string, f *os.File) (identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return identity{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return identity{}, fmt.Errorf("%s: %w: not a regular file", path, errIntegrity)
	case st.Uid != 0 || st.Mode&0o022 != 0:
		return identity{}, fmt.Errorf("%s: %w: not root's alone (user %d, mode %04o)", path, errIntegrity, st.Uid, st.Mode&0o7777)
	}
	return identity{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}, nil
}
