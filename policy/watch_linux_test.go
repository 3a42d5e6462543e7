package policy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWatchIsInTime: the longest way of a change to the callback, a tick that has
// just begun and a file that then settles at the last moment, is the two seconds
// that Watch promises, less the time it takes to read the file a few times.
func TestWatchIsInTime(t *testing.T) {
	if longest := tick + quiet + settle + quiet; longest > 1900*time.Millisecond {
		t.Errorf("a change may take %v", longest)
	}
}

// watched is a Watch in progress and what it told.
type watched struct {
	t    *testing.T
	path string
	told chan reading
	last reading
}

// watchTest begins to watch dir/link/policy.json, which names org zero.
func watchTest(t *testing.T) *watched {
	dir := rootDir(t) + "/link"
	do(t, os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755))
	w := &watched{t: t, path: dir + "/policy.json", told: make(chan reading, 100)}
	write(t, w.path, naming("zero"))
	w.start()
	w.hears("zero")
	return w
}

func (w *watched) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- Watch(ctx, w.path, func(p Policy, sum [32]byte, err error) { w.told <- reading{p, sum, err} })
	}()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Watch returned %v", err)
		}
	})
}

func naming(org string) string { return fmt.Sprintf(`{"orgs": [%q]}`, org) }

// next is what is told next. It always differs from what was told before.
func (w *watched) next() reading {
	w.t.Helper()
	r := <-w.told
	if r.same(w.last) && w.last.sum != [32]byte{} || r.err != nil && r.same(w.last) {
		w.t.Errorf("told the same twice: %+v", r)
	}
	if r.err != nil && (len(r.policy.Orgs) > 0 || r.sum != [32]byte{}) {
		w.t.Errorf("an error was told with a policy: %+v", r)
	}
	w.last = r
	return r
}

// hears waits for the policy that names org. Before it the file may have been seen
// half written, or absent.
func (w *watched) hears(org string) {
	w.t.Helper()
	for {
		r := w.next()
		if r.err == nil {
			if r.policy.Orgs[0] != org {
				w.t.Fatalf("heard of org %s, want %s", r.policy.Orgs[0], org)
			}
			return
		}
	}
}

// hearsError waits for an error that says what.
func (w *watched) hearsError(what string) {
	w.t.Helper()
	if r := w.next(); r.err == nil || !strings.Contains(r.err.Error(), what) {
		w.t.Fatalf("heard %v and %v, want an error that says %q", r.policy.Orgs, r.err, what)
	}
}

// TestWatchEditors: however an editor writes, the new policy is told.
func TestWatchEditors(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(t *testing.T, path, text string)
	}{
		{"in place, truncated first", write},
		{"in place, over what is there", func(t *testing.T, path, text string) {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			do(t, err)
			_, err = f.WriteAt([]byte(text), 0)
			do(t, err, f.Close())
		}},
		{"in place, and never closed", func(t *testing.T, path, text string) {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
			do(t, err)
			t.Cleanup(func() { f.Close() })
			_, err = f.WriteString(text)
			do(t, err)
		}},
		{"renamed over it", func(t *testing.T, path, text string) {
			write(t, path+".new", text)
			do(t, os.Rename(path+".new", path))
		}},
		{"renamed over it from another directory", func(t *testing.T, path, text string) {
			elsewhere := filepath.Dir(filepath.Dir(path)) + "/new"
			write(t, elsewhere, text)
			do(t, os.Rename(elsewhere, path))
		}},
		{"renamed away as a backup and written anew", func(t *testing.T, path, text string) {
			do(t, os.Rename(path, path+"~"))
			write(t, path, text)
			do(t, os.Remove(path+"~"))
		}},
		{"linked as a backup and renamed over", func(t *testing.T, path, text string) {
			do(t, os.Link(path, path+"~"))
			write(t, path+".new", text)
			do(t, os.Rename(path+".new", path), os.Remove(path+"~"))
		}},
		{"deleted and created", func(t *testing.T, path, text string) {
			do(t, os.Remove(path))
			write(t, path, text)
		}},
		{"its directory replaced", func(t *testing.T, path, text string) {
			dir := filepath.Dir(path)
			do(t, os.Mkdir(dir+".new", 0o755))
			write(t, dir+".new/policy.json", text)
			do(t, os.Rename(dir, dir+".old"), os.Rename(dir+".new", dir))
		}},
		{"its directory exchanged", func(t *testing.T, path, text string) {
			dir := filepath.Dir(path)
			do(t, os.RemoveAll(dir+".new"), os.Mkdir(dir+".new", 0o755))
			write(t, dir+".new/policy.json", text)
			do(t, unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, dir+".new", unix.RENAME_EXCHANGE))
		}},
		{"its directory deleted and created", func(t *testing.T, path, text string) {
			dir := filepath.Dir(path)
			do(t, os.RemoveAll(dir), os.Mkdir(dir, 0o755))
			write(t, path, text)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := watchTest(t)
			tt.edit(t, w.path, naming("alfa"))
			w.hears("alfa")
			// And again: the watch is on what the path leads to now.
			do(t, os.RemoveAll(filepath.Dir(w.path)+".old"))
			tt.edit(t, w.path, naming("beta"))
			w.hears("beta")
		})
	}
}

// TestWatchErrors: what is wrong is told, once each, and so is its end.
func TestWatchErrors(t *testing.T) {
	w := watchTest(t)
	dir := filepath.Dir(w.path)

	do(t, os.Remove(w.path))
	w.hearsError("no such file")
	write(t, w.path, naming("alfa"))
	w.hears("alfa")

	// Three spellings of an empty file are one reason.
	write(t, w.path, "")
	w.hearsError("the file is empty")
	write(t, w.path, "\n")
	write(t, w.path, "\n\n")
	write(t, w.path, `{"kind": []}`)
	w.hearsError("/kind: unknown member")
	write(t, w.path, naming("beta"))
	w.hears("beta")

	do(t, os.Chmod(w.path, 0o666))
	w.hearsError("has mode 0666")
	do(t, os.Chmod(w.path, 0o644))
	w.hears("beta")
	do(t, os.Link(w.path, dir+"/other"))
	w.hearsError("has 2 names")
	do(t, os.Remove(dir+"/other"))
	w.hears("beta")

	// Of these inotify does not tell: they happen above the watched directory, or
	// there is none.
	do(t, os.Chmod(filepath.Dir(dir), 0o777))
	w.hearsError("has mode 0777")
	do(t, os.Chmod(filepath.Dir(dir), 0o755))
	w.hears("beta")
	do(t, os.RemoveAll(dir))
	w.hearsError("no such file")
	do(t, os.Mkdir(dir, 0o755))
	write(t, w.path, naming("gamma"))
	w.hears("gamma")
}

// TestWatchSameBytes: a file that was written again and says the same is no news.
func TestWatchSameBytes(t *testing.T) {
	w := watchTest(t)
	write(t, w.path+".new", naming("zero"))
	do(t, os.Rename(w.path+".new", w.path))
	write(t, w.path+".new", naming("alfa"))
	do(t, os.Rename(w.path+".new", w.path))
	if r := w.next(); r.err != nil || r.policy.Orgs[0] != "alfa" {
		t.Errorf("heard %v and %v, want org alfa at once", r.policy.Orgs, r.err)
	}
}

// TestWatchAbsent: a directory that is not there yet is told, and then its policy.
func TestWatchAbsent(t *testing.T) {
	dir := rootDir(t) + "/link"
	w := &watched{t: t, path: dir + "/policy.json", told: make(chan reading, 100)}
	w.start()
	w.hearsError("no such file")
	do(t, os.Mkdir(dir, 0o755))
	write(t, w.path, naming("alfa"))
	w.hears("alfa")
}

// TestWatchWithoutInotify: a host that has no inotify instance left is watched all
// the same.
func TestWatchWithoutInotify(t *testing.T) {
	dir := rootDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{dir: dir, wd: -1, end: func() {}}
	w.arm()
	if !w.wait(ctx) {
		t.Error("wait says that ctx ended")
	}
	cancel()
	if w.wait(ctx) {
		t.Error("wait does not say that ctx ended")
	}
	w.close()
}

// TestWatchLeavesNothing: ended watches leave no descriptor.
func TestWatchLeavesNothing(t *testing.T) {
	path := rootDir(t) + "/policy.json"
	write(t, path, written)
	descriptors := func() (n int) {
		links, err := filepath.Glob("/proc/self/fd/*")
		do(t, err)
		for _, l := range links {
			if to, err := os.Readlink(l); err == nil && (strings.Contains(to, "inotify") || strings.HasPrefix(to, filepath.Dir(path))) {
				n++
			}
		}
		return n
	}
	before := descriptors()
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		// The callback ends the watch: before it waits, as well as while it does.
		if err := Watch(ctx, path, func(Policy, [32]byte, error) { cancel() }); err != nil {
			t.Fatal(err)
		}
	}
	if after := descriptors(); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func TestWatchPath(t *testing.T) {
	for _, path := range []string{"policy.json", "/etc//policy.json", "/"} {
		err := Watch(t.Context(), path, func(Policy, [32]byte, error) { t.Error("told") })
		if err == nil {
			t.Errorf("watches %q", path)
		}
	}
}
