package db

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
)

// A tree is the files of an input, and a blob the bytes of one of them. Both are
// files named by what they hold, so neither changes, an upload made twice is made
// once, and a name says nothing of another org's.

// PutTree says what files the tree named hash has, and answers whose bytes are not
// held, each once and in order. That hash is the name of those files, and that
// they are a tree, the caller has checked (policy.TreeHash).
func (o *Org) PutTree(hash string, t api.Tree) (missing []string, err error) {
	if !canon.SHA256(hash).Valid() {
		return nil, api.Refuse(api.Invalid, "%.80q is no tree's name: want 64 lower-case hex digits", hash)
	}
	if missing, err = o.missing(t); err != nil {
		return nil, err
	}
	held, err := exists(o.treePath(hash))
	if err != nil || held {
		return missing, err
	}
	t.Files = slices.SortedFunc(slices.Values(t.Files), func(a, b api.TreeFile) int { return cmp.Compare(a.Path, b.Path) })
	body, err := canon.Marshal(t)
	if err != nil {
		return nil, err
	}
	return missing, o.disk.WriteFile(o.treePath(hash), body, 0o600)
}

// Tree answers the files of a tree, in the order of their paths. The caller does
// not change them.
func (o *Org) Tree(hash string) (api.Tree, error) {
	var t api.Tree
	if !canon.SHA256(hash).Valid() {
		return t, unknown("tree", hash)
	}
	if t, ok := o.recent.get(hash); ok {
		return t, nil
	}
	body, err := os.ReadFile(o.treePath(hash))
	if errors.Is(err, fs.ErrNotExist) {
		return t, unknown("tree", hash)
	}
	if err != nil {
		return t, fmt.Errorf("reading a tree: %w", err)
	}
	if err := decode(body, &t); err != nil {
		return t, err
	}
	o.recent.put(hash, t)
	return t, nil
}

// A treeCache holds the trees read last, decoded: a node asks for each file of a
// tree by itself. The zero value is empty. It may be used concurrently.
type treeCache struct {
	mu   sync.Mutex
	held map[string]api.Tree
}

// maxHeld bounds the trees held, each of up to 10,000 files.
const maxHeld = 8

func (c *treeCache) get(hash string) (api.Tree, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.held[hash]
	return t, ok
}

func (c *treeCache) put(hash string, t api.Tree) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil || len(c.held) >= maxHeld {
		c.held = make(map[string]api.Tree)
	}
	c.held[hash] = t
}

// TreeMissing answers whose bytes of a tree are not held, each once and in order.
// A tree that nobody put is refused as unknown.
func (o *Org) TreeMissing(hash string) ([]string, error) {
	t, err := o.Tree(hash)
	if err != nil {
		return nil, err
	}
	return o.missing(t)
}

// missing refuses a tree that could never be held whole.
func (o *Org) missing(t api.Tree) ([]string, error) {
	sizes := make(map[string]int64)
	missing := []string{}
	for _, f := range t.Files {
		if f.Size > maxArtifact {
			return nil, api.Refuse(api.TooLarge, "file %s: %d bytes, over %d", f.Path, f.Size, int64(maxArtifact))
		}
		size, seen := sizes[f.SHA256]
		if !seen {
			held, is, err := o.blob(f.SHA256)
			if err != nil {
				return nil, err
			}
			if size = f.Size; held {
				size = is
			} else {
				missing = append(missing, f.SHA256)
			}
			sizes[f.SHA256] = size
		}
		if size != f.Size {
			return nil, api.Refuse(api.LengthMismatch, "file %s: %d bytes, but those of %s are %d", f.Path, f.Size, f.SHA256, size)
		}
	}
	slices.Sort(missing)
	return missing, nil
}

// PutBlob stores the size bytes of r, whose hash is sha. On return they are on
// stable storage under their name, or nothing changed. Bytes that are held are not
// read again.
func (o *Org) PutBlob(sha string, size int64, r io.Reader) error {
	switch {
	case !canon.SHA256(sha).Valid():
		return api.Refuse(api.Invalid, "%.80q is no blob's name: want 64 lower-case hex digits", sha)
	case size < 0:
		return api.Refuse(api.LengthMismatch, "how many bytes will come is not said: send Content-Length")
	case size > maxArtifact:
		return api.Refuse(api.TooLarge, "blob %s: %d bytes, over %d", sha, size, int64(maxArtifact))
	}
	held, is, err := o.blob(sha)
	if err != nil {
		return err
	}
	if held && is != size {
		return api.Refuse(api.LengthMismatch, "blob %s: %d bytes were declared, but it is held and has %d", sha, size, is)
	}
	if held {
		return nil
	}
	f, err := o.disk.Create(o.blobPath("received"))
	if err != nil {
		return err
	}
	defer f.Abort()
	sum := newSummer(f)
	if err := copyExactly(sum, r, uint64(size)); err != nil {
		return err
	}
	if got := string(sum.address()); got != sha {
		return api.Refuse(api.AddressMismatch, "blob %s: its bytes hash to %s", sha, got)
	}
	return f.CommitAs(sha)
}

// OpenBlob opens the bytes of a blob for reading.
func (o *Org) OpenBlob(sha string) (*os.File, error) {
	if !canon.SHA256(sha).Valid() {
		return nil, unknown("blob", sha)
	}
	f, err := os.Open(o.blobPath(sha))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, unknown("blob", sha)
	}
	return f, err
}

// blob reports whether the bytes of sha, a valid name, are held, and how many they
// are.
func (o *Org) blob(sha string) (held bool, size int64, err error) {
	info, err := os.Lstat(o.blobPath(sha))
	if errors.Is(err, fs.ErrNotExist) {
		return false, 0, nil
	}
	if err != nil {
		return false, 0, fmt.Errorf("looking for a blob: %w", err)
	}
	return true, info.Size(), nil
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (o *Org) trees() string { return filepath.Join(o.dir, "trees") }
func (o *Org) blobs() string { return filepath.Join(o.dir, "blobs") }

func (o *Org) treePath(hash string) string { return filepath.Join(o.trees(), hash) }
func (o *Org) blobPath(sha string) string  { return filepath.Join(o.blobs(), sha) }
