package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
)

const (
	maxFiles = 10_000    // of a tree
	piece    = 256 << 10 // bytes read at once

	firstWait = time.Second // after a try that failed; it doubles
	lastWait  = time.Minute
)

// A pull is a tree on its way.
type pull struct {
	done chan struct{} // closed when it is over, well or not

	// Guarded by the store's mutex.
	total int64 // bytes claimed
	left  int64 // of them, not on the disk yet
}

// Pull sees to it that a tree is here. It fetches, verifies and keeps it, unless it
// is here already, and evicts what is needed for that: see the package's contract.
// limit is the most bytes that all trees together may have, the policy's caps.disk;
// held is how much of the file system is promised to work that is running. A tree
// that somebody else is pulling is waited for, and that pull's progress is not told.
//
// progress, which may be nil, is called after each piece with the bytes done and due.
//
// The error wraps an [*Error], or is the one of ctx.
func (s *Store) Pull(ctx context.Context, src Source, hash string, limit, held int64, progress func(done, total int64)) error {
	if !canon.SHA256(hash).Valid() {
		return fail(activity.Integrity, "%.80q is not the name of a tree: 64 lower-case hex digits", hash)
	}
	if progress == nil {
		progress = func(int64, int64) {}
	}
	p := &pull{done: make(chan struct{})}
	for {
		s.mu.Lock()
		_, here := s.size[hash]
		other := s.pulls[hash]
		if here {
			s.touch(hash)
		} else if other == nil {
			s.pulls[hash] = p
		}
		s.mu.Unlock()
		if here {
			return nil
		}
		if other == nil {
			break
		}
		select {
		case <-other.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	total, err := s.pull(ctx, p, src, hash, limit, held, progress)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pulls, hash)
	close(p.done)
	if err == nil {
		s.size[hash] = total
	} else if ctx.Err() != nil {
		err = ctx.Err()
	}
	return err
}

// pull makes the tree in the temporary folder and moves it to its place.
func (s *Store) pull(ctx context.Context, p *pull, src Source, hash string, limit, held int64, progress func(done, total int64)) (total int64, err error) {
	files, total, err := s.listing(ctx, src, hash)
	if err != nil {
		return 0, err
	}
	if err := s.room(p, hash, total, limit, held); err != nil {
		return 0, err
	}
	tmp := s.tmp(hash)
	defer func() {
		if e := os.RemoveAll(tmp); err == nil && e != nil {
			err = s.diskError(e) // cannot be: it was renamed
		}
	}()
	done := int64(0)
	progress(done, total)
	wrote := func(n int) {
		s.mu.Lock()
		p.left -= int64(n)
		s.mu.Unlock()
		done += int64(n)
		progress(done, total)
	}
	dirs, err := folders(files)
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		if err := s.mkdir(filepath.Join(tmp, dir)); err != nil {
			return 0, s.diskError(err)
		}
	}
	for _, f := range files {
		if err := s.fetch(ctx, src, hash, f, filepath.Join(tmp, f.Path), wrote); err != nil {
			return 0, err
		}
	}
	for _, dir := range slices.Backward(dirs) {
		if err := s.disk.SyncDir(filepath.Join(tmp, dir)); err != nil {
			return 0, s.diskError(err)
		}
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	err = s.fs.Rename(tmp, s.tree(hash))
	if err == nil {
		err = s.disk.SyncDir(s.tree(""))
	}
	if err != nil {
		s.remove(hash) // what was renamed all the same, or stood in the way
		return 0, s.diskError(err)
	}
	return total, nil
}

// folders lists the folders of a tree, each after the one that it is in.
func folders(files []policy.TreeFile) ([]string, error) {
	known := make(map[string]bool)
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "." && !known[dir]; dir = path.Dir(dir) {
			if known[dir] = true; len(known) > maxFiles {
				return nil, fail(activity.Integrity, "the tree has more than %d folders", maxFiles)
			}
		}
	}
	return slices.Concat([]string{"."}, slices.Sorted(maps.Keys(known))), nil
}

// listing asks what files a tree has, and does not believe the answer: it must have
// the tree's name.
func (s *Store) listing(ctx context.Context, src Source, hash string) (files []policy.TreeFile, total int64, err error) {
	err = s.retry(ctx, func(ctx context.Context) (bool, error) {
		files, err = src.Tree(ctx, hash)
		return false, err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("listing tree %s: %w", hash, err)
	}
	if len(files) > maxFiles {
		return nil, 0, fail(activity.Integrity, "tree %s is listed with %d files; the most is %d", hash, len(files), maxFiles)
	}
	if err := policy.CheckTree(files); err != nil {
		return nil, 0, fail(activity.Integrity, "tree %s is listed wrongly: %w", hash, err)
	}
	if got := policy.TreeHash(files); got != hash {
		return nil, 0, fail(activity.Integrity, "tree %s is listed with the files of tree %s", hash, got)
	}
	for _, f := range files {
		if f.Size > math.MaxInt64-total {
			return nil, 0, fail(activity.Capacity, "tree %s has more bytes than can be counted", hash)
		}
		total += f.Size
	}
	return files, total, nil
}

// mkdir makes a folder that the workload can read, whatever the umask.
func (s *Store) mkdir(dir string) error {
	if err := s.fs.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// fetch writes one file and puts its bytes on stable storage; its name is its
// folder's to sync.
func (s *Store) fetch(ctx context.Context, src Source, hash string, f policy.TreeFile, name string, wrote func(int)) (err error) {
	out, err := s.fs.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return s.diskError(err)
	}
	defer func() {
		if e := out.Close(); err == nil && e != nil {
			err = s.diskError(e)
		}
	}()
	if err := os.Chmod(name, 0o444); err != nil { // whatever the umask
		return s.diskError(err)
	}
	sum := sha256.New()
	buf := make([]byte, min(piece, f.Size))
	short := 0 // tries that ended well and too early
	for offset := int64(0); offset < f.Size; {
		err := s.retry(ctx, func(ctx context.Context) (moved bool, err error) {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			watch := time.AfterFunc(s.stall, func() { cancel(errSilent) })
			defer watch.Stop()
			in, err := src.Open(ctx, hash, f.SHA256, offset)
			if err != nil {
				return false, cause(ctx, err)
			}
			defer in.Close()
			for offset < f.Size {
				watch.Reset(s.stall)
				n, err := in.Read(buf[:min(int64(len(buf)), f.Size-offset)])
				if n > 0 {
					if _, err := out.Write(buf[:n]); err != nil {
						return true, s.diskError(err)
					}
					sum.Write(buf[:n])
					offset += int64(n)
					moved, short = true, 0
					wrote(n)
				}
				if err == io.EOF && offset < f.Size {
					if short++; short > 1 {
						return moved, fail(activity.Integrity, "%s of tree %s has %d bytes at the source and %d in the listing", f.Path, hash, offset, f.Size)
					}
					err = io.ErrUnexpectedEOF
				}
				if err != nil && err != io.EOF {
					return moved, cause(ctx, err)
				}
			}
			return moved, nil
		})
		if err != nil {
			return fmt.Errorf("pulling %s of tree %s: %w", f.Path, hash, err)
		}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != f.SHA256 {
		os.Remove(name)
		return fail(activity.Integrity, "%s of tree %s has the SHA-256 %s, and the listing says %s", f.Path, hash, got, f.SHA256)
	}
	if err := out.Sync(); err != nil {
		return s.diskError(err)
	}
	return nil
}

var errSilent = errors.New("the source was silent for too long")

// cause is err, or why the try was given up.
func cause(ctx context.Context, err error) error {
	if context.Cause(ctx) == errSilent {
		return errSilent
	}
	return err
}

// retry makes a call until it succeeds or will not, with waits that grow as long as
// nothing moves.
func (s *Store) retry(ctx context.Context, call func(context.Context) (moved bool, err error)) error {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		moved, err := call(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, final := errors.AsType[*Error](err); final {
			return err
		}
		if errors.Is(err, ErrRefused) {
			return &Error{activity.Pull, err}
		}
		if moved {
			wait = firstWait
		}
		if s.sleep(ctx, wait+rand.N(wait/4)) != nil {
			return ctx.Err()
		}
	}
}

// sleep waits for d or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
