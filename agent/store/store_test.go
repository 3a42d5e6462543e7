package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/durable/durabletest"
)

// A source is a Source that can be broken.
type source struct {
	content map[string][]byte // by path
	listing []policy.TreeFile // nil: of content

	// open, when it is set, stands in for the bytes of a file from offset on.
	open func(ctx context.Context, b []byte, offset int64) (io.ReadCloser, error)
	tree func() error // when it is set, called before a listing is answered

	mu     sync.Mutex
	trees  int   // listings asked for
	opens  int   // files asked for
	served int64 // bytes given
}

func (s *source) files() []policy.TreeFile {
	if s.listing != nil {
		return s.listing
	}
	var files []policy.TreeFile
	for path, b := range s.content {
		files = append(files, policy.TreeFile{Path: path, SHA256: address(b), Size: int64(len(b))})
	}
	return files
}

func (s *source) hash() string { return policy.TreeHash(s.files()) }

func (s *source) total() (n int64) {
	for _, b := range s.content {
		n += int64(len(b))
	}
	return n
}

func (s *source) Tree(ctx context.Context, hash string) ([]policy.TreeFile, error) {
	s.mu.Lock()
	s.trees++
	s.mu.Unlock()
	if s.tree != nil {
		if err := s.tree(); err != nil {
			return nil, err
		}
	}
	return s.files(), ctx.Err()
}

func (s *source) Open(ctx context.Context, hash, sha string, offset int64) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opens++
	for _, b := range s.content {
		if address(b) != sha {
			continue
		}
		if s.open != nil {
			return s.open(ctx, b, offset)
		}
		return counted{s, bytes.NewReader(b[offset:])}, nil
	}
	return nil, fmt.Errorf("%w: no such file", ErrRefused)
}

type counted struct {
	s *source
	r io.Reader
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.s.served += int64(n)
	return n, err
}
func (c counted) Close() error { return nil }

func address(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// tree is a source with a stage's files, of some size, that differ by name.
func tree(name string, size int) *source {
	return &source{content: map[string][]byte{
		"stage.json":      []byte(`{"name":"` + name + `"}`),
		"data/train.json": bytes.Repeat([]byte(name), size/len(name)+1)[:size],
		"data/a/b/empty":  {},
		"-x/y":            []byte("a folder that sorts before a dot"),
	}}
}

const plenty = 1 << 40

// newStore opens a store on a disk that has room and no sync, and does not wait.
func newStore(t testing.TB, dir string, fsys durable.FS) *Store {
	t.Helper()
	s, err := open(dir, fsys)
	if err != nil {
		t.Fatal(err)
	}
	s.space = func(string) (policy.Free, error) { return policy.Free{Disk: plenty, DiskTotal: plenty}, nil }
	s.sleep = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	return s
}

func quick(t testing.TB) *Store { return newStore(t, t.TempDir(), new(durabletest.FS)) }

// pullAll is Pull where there is room.
func (s *Store) pullAll(ctx context.Context, src *source) error {
	return s.Pull(ctx, src, src.hash(), plenty, 0, nil)
}

// codeOf is the code of a pull's error.
func codeOf(err error) activity.Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code()
	}
	return ""
}

// clean fails the test when the temporary folder is not empty.
func clean(t *testing.T, s *Store) {
	t.Helper()
	entries, err := os.ReadDir(s.tmp(""))
	if err != nil || len(entries) > 0 {
		t.Errorf("the temporary folder holds %v, %v", entries, err)
	}
}

// holds fails the test when a tree is not there as its source has it, for all to read
// and nobody to write.
func holds(t *testing.T, s *Store, src *source) {
	t.Helper()
	for path, mode := range same(t, s, src) {
		if mode != 0o444 && mode != fs.ModeDir|0o755 {
			t.Errorf("%s is %v", path, mode)
		}
	}
}

// same fails the test when a tree has not its source's bytes, and returns the modes of
// what it has.
func same(t *testing.T, s *Store, src *source) map[string]fs.FileMode {
	t.Helper()
	if !s.Has(src.hash()) {
		t.Errorf("tree %s is not here", src.hash())
		return nil
	}
	got, modes := make(map[string]string), make(map[string]fs.FileMode)
	root := s.tree(src.hash())
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		modes[path] = info.Mode()
		if entry.IsDir() {
			return nil
		}
		rel, _ := filepath.Rel(root, path)
		b, err := os.ReadFile(path)
		got[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]string)
	for path, b := range src.content {
		want[path] = string(b)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the tree differs:\n%s", diff)
	}
	return modes
}

func TestPull(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	dir := t.TempDir()
	s := newStore(t, dir, durable.OS)
	src := tree("a", 1<<20)
	last, calls := int64(-1), 0
	err := s.Pull(t.Context(), src, src.hash(), plenty, 0, func(done, total int64) {
		calls++
		if done <= last && calls > 1 || total != src.total() {
			t.Errorf("progress from %d to %d of %d", last, done, total)
		}
		last = done
	})
	if err != nil {
		t.Fatal(err)
	}
	if last != src.total() || calls < 4 {
		t.Errorf("the progress ended at %d of %d after %d calls", last, src.total(), calls)
	}
	holds(t, s, src)
	clean(t, s)
	if s.used() != src.total() {
		t.Errorf("%d bytes are here, want %d", s.used(), src.total())
	}
	// A tree that is here is not asked for, in this life and the next.
	for _, s := range []*Store{s, newStore(t, dir, durable.OS)} {
		if err := s.pullAll(t.Context(), src); err != nil {
			t.Error(err)
		}
		holds(t, s, src)
		if s.used() != src.total() {
			t.Errorf("%d bytes are here, want %d", s.used(), src.total())
		}
	}
	if src.trees != 1 || src.opens != 3 {
		t.Errorf("%d listings and %d files were asked for, want 1 and 3: one is empty", src.trees, src.opens)
	}
}

// TestResume breaks the connection everywhere: each byte is still sent once.
func TestResume(t *testing.T) {
	s := quick(t)
	src := tree("a", 100_000)
	breaks := 0
	src.open = func(ctx context.Context, b []byte, offset int64) (io.ReadCloser, error) {
		if breaks++; breaks%3 == 0 {
			return nil, syscall.ECONNREFUSED
		}
		n := min(1+rand.Int64N(10_000), int64(len(b))-offset)
		end := io.ErrUnexpectedEOF
		if breaks%2 == 0 {
			end = syscall.ECONNRESET
		}
		return counted{src, io.MultiReader(bytes.NewReader(b[offset:offset+n]), broken{end})}, nil
	}
	if err := s.pullAll(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	holds(t, s, src)
	if breaks < 20 || src.served != src.total() {
		t.Errorf("after %d tries %d bytes were sent, want each of %d once", breaks, src.served, src.total())
	}
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

// TestSilence: a source that says nothing is asked again.
func TestSilence(t *testing.T) {
	s := quick(t)
	s.stall = time.Millisecond
	src := tree("a", 10)
	tries := 0
	src.open = func(ctx context.Context, b []byte, offset int64) (io.ReadCloser, error) {
		if tries++; tries == 1 {
			<-ctx.Done()
			return nil, ctx.Err()
		} else if tries == 2 {
			return counted{src, silent{ctx}}, nil
		}
		s.stall = time.Hour
		return counted{src, bytes.NewReader(b[offset:])}, nil
	}
	if err := s.pullAll(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	holds(t, s, src)
}

type silent struct{ ctx context.Context }

func (s silent) Read([]byte) (int, error) { <-s.ctx.Done(); return 0, s.ctx.Err() }

// TestWrong gives everything that a source can do wrong.
func TestWrong(t *testing.T) {
	whole := func(b []byte) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	other := tree("b", 100)
	many := make([]policy.TreeFile, maxFiles+1)
	for i := range many {
		many[i] = policy.TreeFile{Path: fmt.Sprint(i), SHA256: address(nil)}
	}
	var deep []policy.TreeFile
	for i := range 100 {
		deep = append(deep, policy.TreeFile{Path: fmt.Sprintf("%d/%sf", i, strings.Repeat("d/", 400)), SHA256: address(nil)})
	}
	huge := []policy.TreeFile{{Path: "a", SHA256: address(nil), Size: 1 << 62}, {Path: "b", SHA256: address(nil), Size: 1 << 62}}
	for _, tt := range []struct {
		name  string
		code  activity.Code
		hash  string // asked for, when it is not the source's own
		wrong func(*source)
	}{
		{"other bytes", activity.Integrity, "", func(s *source) {
			s.open = func(_ context.Context, b []byte, _ int64) (io.ReadCloser, error) { return whole(bytes.ToUpper(b)) }
		}},
		{"other bytes after a break", activity.Integrity, "", func(s *source) {
			s.open = func(_ context.Context, b []byte, offset int64) (io.ReadCloser, error) { return whole(b) } // ignores the offset
		}},
		{"too few bytes", activity.Integrity, "", func(s *source) {
			s.open = func(_ context.Context, b []byte, offset int64) (io.ReadCloser, error) {
				return whole(b[min(offset, int64(len(b)-1)) : len(b)-1])
			}
		}},
		{"refused bytes", activity.Pull, "", func(s *source) {
			s.open = func(context.Context, []byte, int64) (io.ReadCloser, error) {
				return nil, fmt.Errorf("%w: not yours", ErrRefused)
			}
		}},
		{"refused listing", activity.Pull, "", func(s *source) { s.tree = func() error { return ErrRefused } }},
		{"another tree", activity.Integrity, other.hash(), func(*source) {}},
		{"no listing", activity.Integrity, other.hash(), func(s *source) { s.listing = []policy.TreeFile{} }},
		{"a way out", activity.Integrity, other.hash(), func(s *source) {
			s.listing = []policy.TreeFile{{Path: "../../../etc/cron.d/x", SHA256: address(nil)}}
		}},
		{"too many files", activity.Integrity, policy.TreeHash(many), func(s *source) { s.listing = many }},
		{"too many folders", activity.Integrity, policy.TreeHash(deep), func(s *source) { s.listing = deep }},
		{"more bytes than can be counted", activity.Capacity, policy.TreeHash(huge), func(s *source) { s.listing = huge }},
		{"no name of a tree", activity.Integrity, "../../outside", func(*source) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, src := quick(t), tree("a", 100)
			hash := src.hash()
			if tt.hash != "" {
				hash = tt.hash
			}
			tt.wrong(src)
			if tt.name == "other bytes after a break" {
				inner := src.open
				src.open = func(ctx context.Context, b []byte, offset int64) (io.ReadCloser, error) {
					if offset == 0 {
						return io.NopCloser(io.MultiReader(bytes.NewReader(b[:len(b)/2]), broken{io.ErrUnexpectedEOF})), nil
					}
					return inner(ctx, b, offset)
				}
			}
			err := s.Pull(t.Context(), src, hash, plenty, 0, nil)
			if codeOf(err) != tt.code {
				t.Errorf("Pull = %v of code %q, want %q", err, codeOf(err), tt.code)
			}
			if s.Has(hash) || s.used() != 0 {
				t.Errorf("it is here, with %d bytes", s.used())
			}
			clean(t, s)
			if entries, _ := os.ReadDir(s.tree("")); len(entries) != 0 {
				t.Errorf("trees holds %v", entries)
			}
		})
	}
}

// TestCapacity: what does not fit is refused before a byte of it is asked for, and
// nothing is evicted in vain.
func TestCapacity(t *testing.T) {
	src, old, needed := tree("a", 1000), tree("old", 1000), tree("needed", 1000)
	size := src.total()
	for _, tt := range []struct {
		name        string
		limit, held int64
		free        policy.Free
		want        string // in the error
	}{
		{"the cap", needed.total() + size - 1, 0, policy.Free{Disk: plenty, DiskTotal: plenty}, "caps.disk"},
		{"a cap of nothing", 0, 0, policy.Free{Disk: plenty, DiskTotal: plenty}, "caps.disk"},
		{"the free tenth", plenty, 0, policy.Free{Disk: 10_000 + size - old.total() - 1, DiskTotal: 100_000}, "a tenth"},
		{"what running work holds", plenty, 95_000, policy.Free{Disk: 100_000, DiskTotal: 100_000}, "running work"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := quick(t)
			for _, other := range []*source{old, needed} {
				if err := s.pullAll(t.Context(), other); err != nil {
					t.Fatal(err)
				}
			}
			s.Pin(needed.hash())
			s.space = func(string) (policy.Free, error) { return tt.free, nil }
			src := tree("a", 1000)
			err := s.Pull(t.Context(), src, src.hash(), tt.limit, tt.held, nil)
			if codeOf(err) != activity.Capacity || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("Pull = %v, want capacity, naming %s", err, tt.want)
			}
			if src.opens != 0 {
				t.Errorf("%d files were asked for", src.opens)
			}
			if !s.Has(old.hash()) || !s.Has(needed.hash()) {
				t.Errorf("a tree was evicted in vain")
			}
			clean(t, s)
		})
	}
	t.Run("a disk that cannot be measured", func(t *testing.T) {
		s := quick(t)
		s.space = func(string) (policy.Free, error) { return policy.Free{}, syscall.EIO }
		if err := s.pullAll(t.Context(), tree("a", 10)); codeOf(err) != activity.Pull {
			t.Errorf("Pull = %v", err)
		}
	})
}

// TestEvict: the least recently used go first, also by a later life's count; pinned
// ones stay.
func TestEvict(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, dir, new(durabletest.FS))
	var trees []*source
	for i, name := range []string{"a", "b", "c", "d"} {
		src := tree(name, 1000)
		trees = append(trees, src)
		if err := s.pullAll(t.Context(), src); err != nil {
			t.Fatal(err)
		}
		long := time.Now().Add(time.Duration(i-10) * time.Hour)
		if err := os.Chtimes(s.tree(src.hash()), long, long); err != nil {
			t.Fatal(err)
		}
	}
	size := trees[0].total()
	here := func(s *Store) (names string) {
		for i, src := range trees {
			if s.Has(src.hash()) {
				names += string("abcd"[i])
			}
		}
		return names
	}
	s = newStore(t, dir, new(durabletest.FS))
	s.Pin(trees[0].hash())
	s.Pin(trees[1].hash())
	s.Unpin(trees[1].hash()) // used just now
	next := tree("e", 1000)
	if err := s.Pull(t.Context(), next, next.hash(), 4*size, 0, nil); err != nil {
		t.Fatal(err)
	}
	if got := here(s); got != "abd" || !s.Has(next.hash()) {
		t.Errorf("after one more, %q and the new one (%t) are here, want abd: c was used the longest ago", got, s.Has(next.hash()))
	}
	if _, err := os.Lstat(s.tree(trees[2].hash())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the evicted one: %v", err)
	}
	clean(t, s)
	crowd := func(name string, limit int64) {
		t.Helper()
		src := tree(name, 1000)
		if err := s.Pull(t.Context(), src, src.hash(), limit, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	if crowd("f", 2*size); here(s) != "a" {
		t.Errorf("where only two have room, %q are here, want a, which is pinned", here(s))
	}
	s.Pin(trees[0].hash())
	s.Unpin(trees[0].hash())
	if crowd("g", 2*size); here(s) != "a" {
		t.Errorf("a tree pinned twice and unpinned once was evicted")
	}
	s.Unpin(trees[0].hash())
	if crowd("h", size); here(s) != "" || s.used() != size {
		t.Errorf("%q of %d bytes are here, want the one that came last", here(s), s.used())
	}
}

// TestOnePull: a tree is pulled once, whoever asks meanwhile, and again when that
// failed.
func TestOnePull(t *testing.T) {
	s := quick(t)
	src := tree("a", 1000)
	begun, release := make(chan struct{}), make(chan struct{})
	first := true
	src.tree = func() error {
		if !first {
			return nil
		}
		first = false
		close(begun)
		<-release
		return ErrRefused
	}
	failed := make(chan error)
	go func() { failed <- s.pullAll(t.Context(), src) }()
	<-begun
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.pullAll(gone, src); err != context.Canceled {
		t.Errorf("whoever waits and gives up gets %v", err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := s.pullAll(t.Context(), src); err != nil {
				t.Error(err)
			}
		})
	}
	close(release)
	if err := <-failed; codeOf(err) != activity.Pull {
		t.Errorf("the first = %v", err)
	}
	wg.Wait()
	holds(t, s, src)
	if src.trees != 2 || src.served != src.total() {
		t.Errorf("%d listings were asked for and %d bytes sent, want 2 and %d", src.trees, src.served, src.total())
	}
}

// TestTogether: trees on their way count as being there.
func TestTogether(t *testing.T) {
	s := quick(t)
	a, b := tree("a", 1000), tree("b", 1000)
	a.open = func(ctx context.Context, content []byte, offset int64) (io.ReadCloser, error) {
		a.open = nil
		if err := s.Pull(ctx, b, b.hash(), a.total()+b.total()-1, 0, nil); codeOf(err) != activity.Capacity {
			t.Errorf("beside another that is on its way: %v, want capacity", err)
		}
		tight := policy.Free{Disk: 10_000 + a.total() + b.total() - 1, DiskTotal: 100_000}
		s.space = func(string) (policy.Free, error) { return tight, nil }
		if err := s.Pull(ctx, b, b.hash(), plenty, 0, nil); codeOf(err) != activity.Capacity {
			t.Errorf("on the room of another that is on its way: %v, want capacity", err)
		}
		return counted{a, bytes.NewReader(content[offset:])}, nil
	}
	if err := s.pullAll(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	holds(t, s, a)
}

// TestCancel: the end of the context is the error, whatever broke by it.
func TestCancel(t *testing.T) {
	s := quick(t)
	ctx, cancel := context.WithCancel(t.Context())
	src := tree("a", 1000)
	src.open = func(ctx context.Context, b []byte, offset int64) (io.ReadCloser, error) {
		cancel()
		return counted{src, io.MultiReader(bytes.NewReader(b[:3]), silent{ctx})}, nil
	}
	if err := s.pullAll(ctx, src); err != context.Canceled {
		t.Errorf("Pull = %v", err)
	}
	clean(t, s)
	if s.Has(src.hash()) {
		t.Errorf("it is here")
	}
	src.open = nil
	if err := s.pullAll(t.Context(), src); err != nil {
		t.Error(err)
	}
}

// TestEveryFault breaks each call to the disk in each way. The tree is not there, the
// room for it is given back, and another try succeeds; and at any moment, what a
// restarted agent would find is the whole tree or nothing.
func TestEveryFault(t *testing.T) {
	src := tree("a", 300_000)
	var calls []durabletest.Call
	counting := newStore(t, t.TempDir(), &durabletest.FS{Plan: func(c durabletest.Call) durabletest.Fault {
		calls = append(calls, c)
		return durabletest.Fault{}
	}})
	opened := len(calls)
	if err := counting.pullAll(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	if len(calls)-opened < 20 {
		t.Fatalf("a pull is %d calls", len(calls)-opened)
	}
	faults := map[string]struct {
		durabletest.Fault
		code activity.Code
		want string
	}{
		"full":          {durabletest.Fault{Err: syscall.ENOSPC}, activity.Capacity, "make room"},
		"quota":         {durabletest.Fault{Err: syscall.EDQUOT}, activity.Capacity, "make room"},
		"read-only":     {durabletest.Fault{Err: syscall.EROFS}, activity.Pull, "read-only"},
		"broken":        {durabletest.Fault{Err: syscall.EIO, Applied: true}, activity.Pull, "failed"},
		"full in parts": {durabletest.Fault{Err: syscall.ENOSPC, Lands: 10}, activity.Capacity, "make room"},
	}
	for _, c := range calls[opened:] {
		for name, f := range faults {
			if f.Lands > 0 && c.Op != durabletest.Write {
				continue
			}
			dir, crashed := t.TempDir(), t.TempDir()
			s := newStore(t, dir, &durabletest.FS{Plan: func(now durabletest.Call) durabletest.Fault {
				if now.N != c.N {
					return durabletest.Fault{}
				}
				if err := os.CopyFS(crashed, os.DirFS(dir)); err != nil {
					t.Error(err)
				}
				return f.Fault
			}})
			err := s.pullAll(t.Context(), src)
			if codeOf(err) != f.code || !strings.Contains(fmt.Sprint(err), f.want) || !errors.Is(err, f.Err) {
				t.Errorf("Pull = %v, want %s and %q", err, f.code, f.want)
			}
			if s.Has(src.hash()) || s.used() != 0 {
				t.Errorf("it is here, with %d bytes", s.used())
			}
			clean(t, s)
			if err := s.pullAll(t.Context(), src); err != nil {
				t.Errorf("the next pull: %v", err)
			}
			holds(t, s, src)

			s = newStore(t, crashed, new(durabletest.FS))
			clean(t, s)
			if s.Has(src.hash()) {
				same(t, s, src)
			}
			if t.Failed() {
				t.Fatalf("call %d, %s of %s, %s", c.N, c.Op, c.Path, name)
			}
		}
	}
}

// TestOpen: what stands in the store's place is said.
func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := newStore(t, dir, durable.OS)
	for _, name := range []string{"README", strings.Repeat("A", 64), strings.Repeat("a", 63)} {
		if err := os.Mkdir(s.tree(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if s = newStore(t, dir, durable.OS); len(s.size) != 0 {
		t.Errorf("taken for trees: %v", s.size)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file); err == nil || !strings.Contains(err.Error(), "file") {
		t.Errorf("Open of a file = %v", err)
	}
}
