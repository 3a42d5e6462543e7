package durable_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/durable/durabletest"
)

// TestWriteFileFault breaks every call of replacing a file, failed and not
// applied and failed but applied, and checks that the file is the old one or
// the new one, and that doing it again works.
func TestWriteFileFault(t *testing.T) {
	const (
		before = "the old content"
		after  = "the new content, longer"
	)
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO, io.ErrShortWrite} {
		for _, tt := range []struct {
			op    durabletest.Op
			fault durabletest.Fault
			want  string
		}{
			{durabletest.Open, durabletest.Fault{}, before},
			{durabletest.Write, durabletest.Fault{}, before},
			{durabletest.Write, durabletest.Fault{Lands: 7}, before},
			{durabletest.Write, durabletest.Fault{Applied: true}, before},
			{durabletest.Sync, durabletest.Fault{}, before},
			{durabletest.Sync, durabletest.Fault{Applied: true}, before},
			{durabletest.Rename, durabletest.Fault{}, before},
			{durabletest.Rename, durabletest.Fault{Applied: true}, after},
		} {
			if tt.fault.Err = cause; cause == io.ErrShortWrite {
				if tt.fault.Lands == 0 {
					continue
				}
				tt.fault.Err = nil // fewer bytes, and no error of the kernel's
			}
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, []byte(before), 0o644); err != nil {
				t.Fatal(err)
			}
			fired := false
			disk := durable.On(&durabletest.FS{Plan: func(c durabletest.Call) durabletest.Fault {
				if c.Op != tt.op || fired {
					return durabletest.Fault{}
				}
				fired = true
				return tt.fault
			}})
			err := disk.WriteFile(path, []byte(after), 0o644)
			if !errors.Is(err, cause) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s %+v: WriteFile = %v, want %v naming %s", tt.op, tt.fault, err, cause, path)
			}
			if got := read(t, path); got != tt.want {
				t.Errorf("%s %+v: the file holds %q, want %q", tt.op, tt.fault, got, tt.want)
			}
			if err := disk.WriteFile(path, []byte(after), 0o644); err != nil {
				t.Errorf("%s %+v: again: %v", tt.op, tt.fault, err)
			}
			if got := names(t, filepath.Dir(path)); len(got) != 1 {
				t.Errorf("%s %+v: the directory holds %q, want only the file", tt.op, tt.fault, got)
			}
		}
	}
}

// TestDirSyncFault checks that a name that may not last is not reported as one
// that does.
func TestDirSyncFault(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	syncs := 0
	disk := durable.On(&durabletest.FS{Plan: func(c durabletest.Call) durabletest.Fault {
		if c.Op == durabletest.Sync {
			if syncs++; syncs == 2 {
				return durabletest.Fault{Err: syscall.EIO}
			}
		}
		return durabletest.Fault{}
	}})
	if err := disk.WriteFile(path, []byte("x"), 0o600); !errors.Is(err, syscall.EIO) {
		t.Errorf("WriteFile = %v, want EIO", err)
	}
	if got := read(t, path); got != "x" {
		t.Errorf("the file holds %q, want it whole", got)
	}
}

func TestCreate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	f, err := durable.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(f, "one ")
	io.WriteString(f, "two")
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("before Commit, Stat = %v, want no file", err)
	}
	if got := names(t, dir); len(got) != 1 || !durable.IsTemp(got[0]) {
		t.Errorf("before Commit the directory holds %q, want one temporary file", got)
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	f.Abort() // nothing, after Commit
	if got := read(t, path); got != "one two" {
		t.Errorf("the file holds %q", got)
	}

	f, err = durable.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(f, "three")
	f.Abort()
	if got := read(t, path); got != "one two" {
		t.Errorf("after Abort the file holds %q, want it unchanged", got)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("after Abort the directory holds %q", got)
	}
}

func TestRenameDir(t *testing.T) {
	root := t.TempDir()
	tmp, dst := filepath.Join(root, ".step-4.tmp"), filepath.Join(root, "step-4")
	if err := durable.MkdirAll(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(filepath.Join(tmp, "weights"), []byte("w"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := durable.RenameDir(tmp, dst); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(dst, "weights")); got != "w" {
		t.Errorf("weights = %q", got)
	}
	if err := durable.MkdirAll(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := durable.RenameDir(tmp, dst); err == nil {
		t.Errorf("RenameDir over a directory that holds files succeeded")
	}
	if err := durable.RenameDir(tmp, filepath.Join(root, "a", "b")); err == nil {
		t.Errorf("RenameDir to another parent succeeded")
	}
}

func TestMkdirAll(t *testing.T) {
	root := t.TempDir()
	deep := filepath.Join(root, "a", "b", "c")
	for range 2 {
		if err := durable.MkdirAll(deep, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := durable.MkdirAll(filepath.Join(file, "x"), 0o700); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("MkdirAll below a file = %v, want an error naming it", err)
	}
}

// TestAppendFault breaks the second record and checks that nothing follows it.
func TestAppendFault(t *testing.T) {
	for _, tt := range []struct {
		name  string
		op    durabletest.Op
		fault durabletest.Fault
		want  string
	}{
		{"write fails, nothing lands", durabletest.Write, durabletest.Fault{Err: syscall.ENOSPC}, "one\n"},
		{"write fails, part lands", durabletest.Write, durabletest.Fault{Err: syscall.ENOSPC, Lands: 2}, "one\ntw"},
		{"write fails, all lands", durabletest.Write, durabletest.Fault{Err: syscall.EIO, Applied: true}, "one\ntwo\n"},
		{"short write", durabletest.Write, durabletest.Fault{Lands: 1}, "one\nt"},
		{"sync fails", durabletest.Sync, durabletest.Fault{Err: syscall.EIO}, "one\ntwo\n"},
		{"sync fails, applied", durabletest.Sync, durabletest.Fault{Err: syscall.EIO, Applied: true}, "one\ntwo\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			armed := false
			disk := durable.On(&durabletest.FS{Plan: func(c durabletest.Call) durabletest.Fault {
				if armed && c.Op == tt.op {
					armed = false
					return tt.fault
				}
				return durabletest.Fault{}
			}})
			a, err := disk.OpenAppend(path, 0o644)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			if err := a.Append([]byte("one\n")); err != nil {
				t.Fatal(err)
			}
			armed = true
			first := a.Append([]byte("two\n"))
			if first == nil || !strings.Contains(first.Error(), path) {
				t.Fatalf("Append = %v, want an error naming %s", first, path)
			}
			if err := a.Append([]byte("three\n")); err != first {
				t.Errorf("the next Append = %v, want the first error", err)
			}
			if err := a.Truncate(0); err != first {
				t.Errorf("Truncate = %v, want the first error", err)
			}
			if got := read(t, path); got != tt.want {
				t.Errorf("the file holds %q, want %q", got, tt.want)
			}

			again, err := disk.OpenAppend(path, 0o644)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if err := again.Truncate(4); err != nil {
				t.Fatal(err)
			}
			if err := again.Append([]byte("2\n")); err != nil {
				t.Fatal(err)
			}
			if got := read(t, path); got != "one\n2\n" {
				t.Errorf("after cutting, the file holds %q", got)
			}
		})
	}
}

// TestAppendCalls holds Append to its documented cost: one write and one sync.
func TestAppendCalls(t *testing.T) {
	fs := new(durabletest.FS)
	a, err := durable.On(fs).OpenAppend(filepath.Join(t.TempDir(), "log"), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	before := fs.Calls()
	if err := a.Append(bytes.Repeat([]byte("x"), 1<<20)); err != nil {
		t.Fatal(err)
	}
	if got := fs.Calls() - before; got != 2 {
		t.Errorf("Append made %d calls, want a write and a sync", got)
	}
}

func TestRemoveStale(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{
		".old.0000000000000000.tmp": 48 * time.Hour,
		".new.0000000000000000.tmp": time.Minute,
		"kept":                      48 * time.Hour,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := durable.RemoveStale(dir, now.Add(-24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(names(t, dir), " "); got != ".new.0000000000000000.tmp kept" {
		t.Errorf("left: %s", got)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
