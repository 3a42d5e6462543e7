package db

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/durable/durabletest"
)

func openTestOrg(t *testing.T) *Org {
	t.Helper()
	s, err := Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	o, err := s.Org("acme")
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// treeOf names files by their content.
func treeOf(files map[string]string) (hash string, t api.Tree) {
	var list []policy.TreeFile
	for path, content := range files {
		f := policy.TreeFile{Path: path, SHA256: string(canon.Sum([]byte(content))), Size: int64(len(content))}
		list = append(list, f)
		t.Files = append(t.Files, api.TreeFile(f))
	}
	return policy.TreeHash(list), t
}

func refusedWith(t *testing.T, what string, err error, code api.Code) {
	t.Helper()
	if p, ok := errors.AsType[*api.Problem](err); !ok || p.Code != code {
		t.Errorf("%s: %v, want %s", what, err, code)
	}
}

// onlyNamed fails the test when a folder of trees or blobs holds anything whose name
// is not that of what it holds.
func (o *Org) onlyNamed(t *testing.T) {
	t.Helper()
	blobs, err := os.ReadDir(o.blobs())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range blobs {
		b, err := os.ReadFile(o.blobPath(e.Name()))
		if err != nil || string(canon.Sum(b)) != e.Name() {
			t.Errorf("blobs/ holds %s, %v", e.Name(), err)
		}
	}
	trees, err := os.ReadDir(o.trees())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range trees {
		if !canon.SHA256(e.Name()).Valid() {
			t.Errorf("trees/ holds %s", e.Name())
		}
	}
}

func TestTree(t *testing.T) {
	o := openTestOrg(t)
	hash, tree := treeOf(map[string]string{"stage.json": "{}", "data/a": "rows", "data/b": "rows", "empty": ""})
	rows, stage, empty := string(canon.Sum([]byte("rows"))), string(canon.Sum([]byte("{}"))), string(canon.Sum(nil))
	all := []string{rows, stage, empty}
	slices.Sort(all)

	_, err := o.TreeMissing(hash)
	refusedWith(t, "a tree that nobody put", err, api.NotFound)
	for range 2 {
		missing, err := o.PutTree(hash, tree)
		if err != nil || !slices.Equal(missing, all) {
			t.Fatalf("PutTree = %v, %v, want %v", missing, err, all)
		}
	}
	for sha, content := range map[string]string{rows: "rows", empty: ""} {
		if err := o.PutBlob(sha, int64(len(content)), strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	if missing, err := o.TreeMissing(hash); err != nil || !slices.Equal(missing, []string{stage}) {
		t.Errorf("with two of three: missing %v, %v", missing, err)
	}
	if err := o.PutBlob(stage, 2, strings.NewReader("{}")); err != nil {
		t.Fatal(err)
	}
	if missing, err := o.TreeMissing(hash); err != nil || missing == nil || len(missing) != 0 {
		t.Errorf("with all: missing %v, %v", missing, err)
	}
	got, err := o.Tree(hash)
	if err != nil || len(got.Files) != 4 || !slices.IsSortedFunc(got.Files, func(a, b api.TreeFile) int { return strings.Compare(a.Path, b.Path) }) {
		t.Errorf("Tree = %+v, %v", got, err)
	}
	f, err := o.OpenBlob(rows)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != "rows" {
		t.Errorf("the blob is %q, %v", b, err)
	}
	// Held bytes are not read again.
	if err := o.PutBlob(rows, 4, unreadable{t}); err != nil {
		t.Errorf("a blob that is held: %v", err)
	}
	o.onlyNamed(t)
}

type unreadable struct{ t *testing.T }

func (u unreadable) Read([]byte) (int, error) {
	u.t.Error("bytes were read that are held")
	return 0, io.EOF
}

// TestBadBlob: what is not what its name says leaves nothing behind.
func TestBadBlob(t *testing.T) {
	o := openTestOrg(t)
	const content = "the bytes of a file"
	sha, n := string(canon.Sum([]byte(content))), int64(len(content))
	broken := errors.New("connection reset")
	for name, tt := range map[string]struct {
		sha  string
		size int64
		r    io.Reader
		code api.Code
	}{
		"other bytes":     {sha, n, strings.NewReader(strings.ToUpper(content)), api.AddressMismatch},
		"short":           {sha, n, strings.NewReader(content[1:]), api.LengthMismatch},
		"none":            {sha, n, strings.NewReader(""), api.LengthMismatch},
		"declared short":  {sha, n - 1, strings.NewReader(content), api.AddressMismatch},
		"undeclared":      {sha, -1, strings.NewReader(content), api.LengthMismatch},
		"cut":             {sha, n, io.MultiReader(strings.NewReader(content[:5]), failing{broken}), api.LengthMismatch},
		"too slow":        {sha, n, io.MultiReader(strings.NewReader(content[:5]), failing{os.ErrDeadlineExceeded}), api.Timeout},
		"too large":       {sha, maxArtifact + 1, unreadable{t}, api.TooLarge},
		"a path":          {"../" + sha[3:], n, unreadable{t}, api.Invalid},
		"a path of 64":    {strings.Repeat("../", 21) + "a", n, unreadable{t}, api.Invalid},
		"no name":         {"", n, unreadable{t}, api.Invalid},
		"an upper name":   {strings.ToUpper(sha), n, unreadable{t}, api.Invalid},
		"a name with NUL": {sha[:63] + "\x00", n, unreadable{t}, api.Invalid},
	} {
		refusedWith(t, name, o.PutBlob(tt.sha, tt.size, tt.r), tt.code)
	}
	left, err := os.ReadDir(o.blobs())
	if err != nil || len(left) != 0 {
		t.Errorf("blobs/ holds %v, %v", left, err)
	}
	for _, name := range []string{"", ".", "..", "../research.db", "received", strings.ToUpper(sha), sha} {
		_, err := o.OpenBlob(name)
		refusedWith(t, "OpenBlob "+name, err, api.NotFound)
		_, err = o.Tree(name)
		refusedWith(t, "Tree "+name, err, api.NotFound)
	}
	if err := o.PutBlob(sha, n, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	refusedWith(t, "another size of what is held", o.PutBlob(sha, n+1, unreadable{t}), api.LengthMismatch)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestTreeThatCannotBeWhole declares sizes that one file cannot have.
func TestTreeThatCannotBeWhole(t *testing.T) {
	o := openTestOrg(t)
	sha := string(canon.Sum([]byte("rows")))
	name := strings.Repeat("0", 64)
	put := func(files ...api.TreeFile) error {
		_, err := o.PutTree(name, api.Tree{Files: files})
		return err
	}
	refusedWith(t, "two sizes", put(api.TreeFile{Path: "a", SHA256: sha, Size: 4}, api.TreeFile{Path: "b", SHA256: sha, Size: 5}), api.LengthMismatch)
	refusedWith(t, "too large", put(api.TreeFile{Path: "a", SHA256: sha, Size: maxArtifact + 1}), api.TooLarge)
	if err := o.PutBlob(sha, 4, strings.NewReader("rows")); err != nil {
		t.Fatal(err)
	}
	refusedWith(t, "not the size of what is held", put(api.TreeFile{Path: "a", SHA256: sha, Size: 5}), api.LengthMismatch)
	_, err := o.PutTree("../evil", api.Tree{})
	refusedWith(t, "a path", err, api.Invalid)
	_, err = o.Tree(name)
	refusedWith(t, "what was refused", err, api.NotFound)
}

// TestFullDiskOfBlobs breaks every call that storing a blob and a tree makes, one
// after the other: it fails as a full disk, nothing is there that is not whole, and
// with room again the same call succeeds.
func TestFullDiskOfBlobs(t *testing.T) {
	o := openTestOrg(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), 8<<10)
	sha := string(canon.Sum(content))
	hash, tree := treeOf(map[string]string{"a": string(content)})
	store := func() error {
		if _, err := o.PutTree(hash, tree); err != nil {
			return err
		}
		return o.PutBlob(sha, int64(len(content)), bytes.NewReader(content))
	}
	for n := 1; ; n++ {
		broken := false
		disk := &durabletest.FS{Plan: func(c durabletest.Call) durabletest.Fault {
			if c.N != n || c.Op == durabletest.Remove {
				return durabletest.Fault{}
			}
			broken = true
			return durabletest.Fault{Err: syscall.ENOSPC, Lands: c.Size / 2}
		}}
		o.disk = durable.On(disk)
		err := store()
		if !broken {
			if err != nil {
				t.Fatal(err)
			}
			if n < 5 {
				t.Fatalf("only %d calls were broken", n-1)
			}
			return
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("with call %d broken: %v", n, err)
		}
		o.onlyNamed(t)
		o.disk = durable.On(durable.OS)
		if err := store(); err != nil {
			t.Fatalf("with room again: %v", err)
		}
		if f, err := o.OpenBlob(sha); err != nil {
			t.Fatal(err)
		} else {
			f.Close()
		}
		for _, path := range []string{o.blobPath(sha), o.treePath(hash)} {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestConcurrentBlobs puts one blob many times at once.
func TestConcurrentBlobs(t *testing.T) {
	o := openTestOrg(t)
	content := bytes.Repeat([]byte("x"), 1<<20)
	sha := string(canon.Sum(content))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := o.PutBlob(sha, int64(len(content)), bytes.NewReader(content)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	o.onlyNamed(t)
	if left, err := filepath.Glob(o.blobPath("*")); err != nil || len(left) != 1 {
		t.Errorf("blobs/ holds %v, %v", left, err)
	}
}
