package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
)

// A Source is where trees come from. An error of its methods that wraps [ErrRefused]
// is final; after any other the call is made again.
type Source interface {
	// Tree lists the files of a tree.
	Tree(ctx context.Context, hash string) ([]policy.TreeFile, error)

	// Open gives the bytes of one of its files from offset on. ctx bounds the
	// reading too.
	Open(ctx context.Context, hash, sha256 string, offset int64) (io.ReadCloser, error)
}

// ErrRefused is what a Source answers when asking again would not help.
var ErrRefused = errors.New("the source refuses")

// An Error is why a tree is not here.
type Error struct {
	code activity.Code
	err  error
}

// Code is Pull, Integrity or Capacity.
func (e *Error) Code() activity.Code { return e.code }
func (e *Error) Error() string       { return e.err.Error() }
func (e *Error) Unwrap() error       { return e.err }

func fail(code activity.Code, format string, args ...any) error {
	return &Error{code, fmt.Errorf(format, args...)}
}

// A Store is a folder of trees. Its methods may be called concurrently.
type Store struct {
	// Immutable.
	dir   string
	fs    durable.FS
	disk  durable.Disk
	space func(dir string) (policy.Free, error)
	stall time.Duration                                    // how long a source may be silent
	sleep func(ctx context.Context, d time.Duration) error // between two tries

	mu    sync.Mutex
	size  map[string]int64 // bytes of each tree that is here
	pins  map[string]int
	pulls map[string]*pull // under way, by tree
}

// Open returns the store in dir, and makes its folders where they are missing. What
// an earlier life did not finish is removed.
func Open(dir string) (*Store, error) { return open(dir, durable.OS) }

func open(dir string, fsys durable.FS) (*Store, error) {
	s := &Store{
		dir: dir, fs: fsys, disk: durable.On(fsys), space: policy.HostFree, stall: time.Minute, sleep: sleep,
		size: make(map[string]int64), pins: make(map[string]int), pulls: make(map[string]*pull),
	}
	for _, sub := range []string{"trees", "tmp"} {
		if err := s.disk.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("opening the store: %w", err)
		}
	}
	left, err := os.ReadDir(s.tmp(""))
	if err != nil {
		return nil, fmt.Errorf("opening the store: %w", err)
	}
	for _, entry := range left {
		if err := os.RemoveAll(s.tmp(entry.Name())); err != nil {
			return nil, fmt.Errorf("opening the store: removing what was left unfinished: %w", err)
		}
	}
	trees, err := os.ReadDir(s.tree(""))
	if err != nil {
		return nil, fmt.Errorf("opening the store: %w", err)
	}
	for _, entry := range trees {
		if !entry.IsDir() || !canon.SHA256(entry.Name()).Valid() {
			continue // nobody's but who put it there
		}
		if s.size[entry.Name()], err = weigh(s.tree(entry.Name())); err != nil {
			return nil, fmt.Errorf("opening the store: %w", err)
		}
	}
	return s, nil
}

func (s *Store) tree(hash string) string { return filepath.Join(s.dir, "trees", hash) }
func (s *Store) tmp(name string) string  { return filepath.Join(s.dir, "tmp", name) }

// weigh is how many bytes the files below dir have.
func weigh(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	return bytes, err
}

// Has reports whether a tree is here, whole.
func (s *Store) Has(hash string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, here := s.size[hash]
	return here
}

// used is how many bytes the trees have together, with those that are on their way.
func (s *Store) used() (bytes int64) {
	for _, n := range s.size {
		bytes += n
	}
	for _, p := range s.pulls {
		bytes += p.total
	}
	return bytes
}

// Pin keeps a tree, which need not be here yet, from being evicted until Unpin was
// called as often. It is not durable: it is done again after a restart. A tree counts
// as used until its last Unpin.
func (s *Store) Pin(hash string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pins[hash]++
}

// Unpin ends what Pin began.
func (s *Store) Unpin(hash string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pins[hash]--; s.pins[hash] > 0 {
		return
	}
	delete(s.pins, hash)
	if _, here := s.size[hash]; here {
		s.touch(hash)
	}
}

// touch notes that a tree was used now. That it cannot be noted harms nobody: the tree
// goes earlier.
func (s *Store) touch(hash string) {
	now := time.Now()
	os.Chtimes(s.tree(hash), now, now)
}

// idle lists the trees that may be evicted, the least recently used first.
func (s *Store) idle() []string {
	used := make(map[string]time.Time)
	var hashes []string
	for hash := range s.size {
		if s.pins[hash] > 0 {
			continue
		}
		if info, err := os.Lstat(s.tree(hash)); err == nil {
			used[hash] = info.ModTime()
		}
		hashes = append(hashes, hash)
	}
	slices.SortFunc(hashes, func(a, b string) int { return used[a].Compare(used[b]) })
	return hashes
}

// evict removes a tree. It is gone from its place at once, or not at all.
func (s *Store) evict(hash string) error {
	if err := s.remove(hash); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("evicting tree %s: %w", hash, err)
	}
	delete(s.size, hash)
	return nil
}

// remove takes what has a tree's name out of its place, in one step, and removes it.
func (s *Store) remove(hash string) error {
	gone := s.tmp(fmt.Sprintf("%s.%016x", hash, rand.Uint64()))
	if err := s.fs.Rename(s.tree(hash), gone); err != nil {
		return err
	}
	return os.RemoveAll(gone)
}

// room claims the bytes of p, and evicts for them what it must. Where they would not
// fit it evicts nothing.
func (s *Store) room(p *pull, hash string, bytes, limit, held int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	idle := s.idle()
	var evictable int64
	for _, h := range idle {
		evictable += s.size[h]
	}
	for gone := int64(0); ; {
		free, err := s.space(s.dir)
		if err != nil {
			return fail(activity.Pull, "measuring the disk of the store: %w", err)
		}
		err = s.fits(bytes, limit, held, free, 0)
		if err == nil {
			break
		}
		if len(idle) == 0 || s.fits(bytes, limit, held, free, evictable-gone) != nil {
			return fail(activity.Capacity, "tree %s does not fit: %w", hash, err)
		}
		gone += s.size[idle[0]]
		if err := s.evict(idle[0]); err != nil {
			return s.diskError(err)
		}
		idle = idle[1:]
	}
	p.total, p.left = bytes, bytes
	return nil
}

// fits says why so many bytes more would not fit, after others were removed.
func (s *Store) fits(bytes, limit, held int64, free policy.Free, removed int64) error {
	used := s.used() - removed
	if bytes > limit-used {
		return fmt.Errorf("it has %d bytes and the trees here %d, of caps.disk %d; raise it in the policy, or ask for less", bytes, used, limit)
	}
	reserve := free.DiskTotal/10 + min(free.DiskTotal%10, 1) // a tenth, rounded up
	left := free.Disk + removed
	for _, p := range s.pulls {
		left -= p.left
	}
	if left-bytes < reserve {
		return fmt.Errorf("it has %d bytes, %d are free, and a tenth of %d must stay free: make room on the disk of %s", bytes, max(left, 0), free.DiskTotal, s.dir)
	}
	if free.DiskTotal-held-used-bytes < reserve {
		return fmt.Errorf("it has %d bytes beside %d that running work holds and %d of other trees, and a tenth of %d must stay free", bytes, held, used, free.DiskTotal)
	}
	return nil
}

// diskError gives a failure of the store's disk its code, and says what to do.
func (s *Store) diskError(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fail(activity.Capacity, "the disk of the store is full: make room on the disk of %s: %w", s.dir, err)
	case errors.Is(err, syscall.EROFS):
		return fail(activity.Pull, "the store is on a read-only file system: mount the one of %s writable again: %w", s.dir, err)
	}
	return fail(activity.Pull, "the disk of the store failed: %w", err)
}
