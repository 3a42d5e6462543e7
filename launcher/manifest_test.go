//go:build linux

package launcher

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"golang.org/x/sys/unix"
)

// lib is a directory of one pinned binary.
func lib(t *testing.T) (dir, path string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("what is checked is that files are root's")
	}
	dir, err := os.MkdirTemp("", "launcher-lib-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "train")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, []byte("one"), 0o755), os.Chmod(path, 0o755)); err != nil {
		t.Fatal(err)
	}
	pin(t, dir, "one")
	return dir, path
}

func pin(t *testing.T, dir, content string) {
	t.Helper()
	sum := sha256.Sum256([]byte(content))
	manifest(t, dir, `{"binaries":{"train":"`+hex.EncodeToString(sum[:])+`"}}`)
}

func manifest(t *testing.T, dir, text string) {
	t.Helper()
	path := filepath.Join(dir, ManifestName)
	os.Remove(path)
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o644), os.Chmod(path, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// remember opens train until its sum is kept, which takes as long as a change of it
// could go unseen.
func remember(t *testing.T, b *binaries) {
	t.Helper()
	for deadline := time.Now().Add(patience); len(b.sums) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the sum is never kept")
		}
		opens(t, b)
	}
}

func opens(t *testing.T, b *binaries) {
	t.Helper()
	f, err := b.open("train")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(f)
	f.Close()
	if err != nil || string(got) != "one" {
		t.Errorf("opened %q, %v", got, err)
	}
}

func TestPinnedBinaryIsOpened(t *testing.T) {
	dir, path := lib(t)
	b := &binaries{dir: dir}
	opens(t, b)
	if len(b.sums) > 0 {
		t.Error("the sum is kept of a file that may change within the tick of its times")
	}
	remember(t, b)
	opens(t, b) // from memory
	// Another file, then another content of the same length, then new pins of it.
	for _, change := range []func() error{
		func() error { return errors.Join(os.Remove(path), os.WriteFile(path, []byte("two"), 0o755)) },
		func() error { return os.WriteFile(path, []byte("ten"), 0o755) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if f, err := b.open("train"); !errors.Is(err, errIntegrity) {
			if err == nil {
				f.Close()
			}
			t.Errorf("after a change: %v, want %v", err, errIntegrity)
		}
	}
	pin(t, dir, "ten")
	f, err := b.open("train")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if len(b.sums) != 1 {
		t.Errorf("%d sums are kept of one binary", len(b.sums))
	}
}

// The cache is by what a write changes, so a file with its old times is read again.
func TestPinnedBinaryWithItsTimesPutBack(t *testing.T) {
	dir, path := lib(t)
	b := &binaries{dir: dir}
	remember(t, b)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(path, []byte("eno"), 0o755), os.Chtimes(path, info.ModTime(), info.ModTime())); err != nil {
		t.Fatal(err)
	}
	if f, err := b.open("train"); !errors.Is(err, errIntegrity) {
		if err == nil {
			f.Close()
		}
		t.Errorf("%v, want %v", err, errIntegrity)
	}
}

func TestBinaryFaults(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, dir, path string) error
		words  string
	}{
		"absent":         {func(t *testing.T, dir, path string) error { return os.Remove(path) }, "no such file"},
		"another's":      {func(t *testing.T, dir, path string) error { return os.Chown(path, 64011, 0) }, "not root's alone"},
		"group-writable": {func(t *testing.T, dir, path string) error { return os.Chmod(path, 0o775) }, "not root's alone"},
		"world-writable": {func(t *testing.T, dir, path string) error { return os.Chmod(path, 0o757) }, "not root's alone"},
		"a link": {func(t *testing.T, dir, path string) error {
			return errors.Join(os.Rename(path, path+".real"), os.Symlink("train.real", path))
		}, "symbolic links"},
		"a directory": {func(t *testing.T, dir, path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) }, "not a regular file"},
		"a FIFO": {func(t *testing.T, dir, path string) error {
			return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o644))
		}, "not a regular file"},
		"not pinned":  {func(t *testing.T, dir, path string) error { manifest(t, dir, `{"binaries":{}}`); return nil }, "pins no train"},
		"empty":       {func(t *testing.T, dir, path string) error { return os.Truncate(path, 0) }, "not the pinned binary"},
		"no manifest": {func(t *testing.T, dir, path string) error { return os.Remove(filepath.Join(dir, ManifestName)) }, "no such file"},
		"extra field": {func(t *testing.T, dir, path string) error { manifest(t, dir, `{"binaries":{},"x":1}`); return nil }, "x"},
		"duplicate pin": {func(t *testing.T, dir, path string) error {
			manifest(t, dir, `{"binaries":{"a":"","a":""}}`)
			return nil
		}, "duplicate"},
		"short sum": {func(t *testing.T, dir, path string) error {
			manifest(t, dir, `{"binaries":{"train":"ab"}}`)
			return nil
		}, "64"},
		"upper-case sum": {func(t *testing.T, dir, path string) error {
			manifest(t, dir, `{"binaries":{"train":"`+strings.Repeat("A", 64)+`"}}`)
			return nil
		}, "64"},
		"a path as name": {func(t *testing.T, dir, path string) error {
			manifest(t, dir, `{"binaries":{"../train":"`+strings.Repeat("a", 64)+`"}}`)
			return nil
		}, "no file name"},
		"manifest another's": {func(t *testing.T, dir, path string) error {
			return os.Chown(filepath.Join(dir, ManifestName), 64011, 0)
		}, ManifestName},
		"manifest group-writable": {func(t *testing.T, dir, path string) error {
			return os.Chmod(filepath.Join(dir, ManifestName), 0o664)
		}, ManifestName},
		"directory another's": {func(t *testing.T, dir, path string) error { return os.Chown(dir, 64011, 0) }, dir0},
	} {
		t.Run(name, func(t *testing.T) {
			dir, path := lib(t)
			if err := c.change(t, dir, path); err != nil {
				t.Fatal(err)
			}
			f, err := (&binaries{dir: dir}).open("train")
			if err == nil {
				f.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v, want an error with %q", err, c.words)
			}
		})
	}
}

// dir0 is in the name of every lib.
const dir0 = "launcher-lib-"

// A binary that was exchanged since the agent connected is not executed.
func TestExchangedBinaryIsNotStarted(t *testing.T) {
	a := newRig(t).serve().connect().offered()
	path := filepath.Join(a.Lib, "train")
	a.must(os.Remove(path), os.WriteFile(path, []byte("no program"), 0o755))
	s := a.envelope(a.input("exit", 0))
	a.refused(a.ask(s), activity.Integrity, "not the pinned binary")
	a.pin() // the owner's own doing: it is the pinned one now, if no program
	a.refused(a.ask(a.envelope(a.input("exit", 0))), activity.StartFailed, "")
	a.must(os.Remove(path), os.Link(filepath.Join(built, "train"), path))
	a.pin()
	a.started(a.ask(s), s) // nothing was left of the refused start
}
