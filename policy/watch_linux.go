package policy

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tick is how long the file goes unread when nothing tells of a change: inotify
	// does not tell of one on some network file systems, of one further up the
	// path, or while the directory is absent. With settle it keeps the promise of
	// two seconds.
	tick = time.Second
	// quiet is how long a new reading must stand before it is told. An editor that
	// truncates and writes, or deletes and creates, is seen as one change by it.
	quiet = 100 * time.Millisecond
	// settle is how long a file that keeps changing is waited for.
	settle = 500 * time.Millisecond
)

// Watch tells what [Load] says of path: at once, and then whenever that changes,
// within two seconds, until ctx ends; it then returns nil. Errors are told as
// well, with the zero Policy, which admits nothing: the file is absent, broken or
// not trusted, and whoever watches offers nothing until a policy is told again.
// What is told differs from what was told before it, so the same bytes or the same
// error are told once, however often the file is written.
//
// The file may be written in place, renamed over, deleted and created again, and
// its directory be absent, created, or replaced by another: what counts is what
// the path leads to. Told runs in the caller's goroutine, never concurrently, and
// keeps Watch from looking while it runs. The one error returned is a path that
// is not absolute and clean.
func Watch(ctx context.Context, path string, told func(Policy, [32]byte, error)) error {
	if err := checkPath(path); err != nil {
		return err
	}
	w := watchDirectory(ctx, filepath.Dir(path))
	defer w.close()

	// The directory is watched before the file is read, so no change falls between.
	w.arm()
	last := read(path)
	told(last.policy, last.sum, last.err)
	for w.wait(ctx) {
		w.arm()
		now := read(path)
		if now.same(last) {
			continue
		}
		for began := time.Now(); time.Since(began) < settle; {
			if !pause(ctx, quiet) {
				return nil
			}
			next := read(path)
			stands := next.same(now)
			now = next
			if stands {
				break
			}
		}
		if !now.same(last) {
			last = now
			told(last.policy, last.sum, last.err)
		}
	}
	return nil
}

// reading is what Load said.
type reading struct {
	policy Policy
	sum    [32]byte
	err    error
}

func read(path string) reading {
	p, sum, err := Load(path)
	return reading{p, sum, err}
}

func (r reading) same(other reading) bool {
	if r.err != nil || other.err != nil {
		return r.err != nil && other.err != nil && r.err.Error() == other.err.Error()
	}
	return r.sum == other.sum
}

// pause returns false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// A watch hurries the next reading. It decides nothing: what it misses is read at
// the next tick, and so is everything where there is no inotify to be had.
type watch struct {
	dir    string
	events *os.File // inotify; nil when there is none
	fd     int      // of events
	wd     int      // the watched directory, -1 when none is
	end    func()
}

func watchDirectory(ctx context.Context, dir string) *watch {
	w := &watch{dir: dir, wd: -1, end: func() {}}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil { // too many instances, for one
		return w
	}
	events := os.NewFile(uintptr(fd), "inotify")
	if events.SetReadDeadline(time.Time{}) != nil { // cannot be waited for
		events.Close()
		return w
	}
	w.events, w.fd = events, fd
	// A read in progress ends when ctx does.
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		events.SetReadDeadline(time.Unix(1, 0))
	})
	w.end = func() {
		if !stop() {
			<-ended
		}
		events.Close()
	}
	return w
}

func (w *watch) close() { w.end() }

// arm watches the directory that the path leads to now, and only that.
func (w *watch) arm() {
	if w.events == nil {
		return
	}
	const changes = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	wd, err := unix.InotifyAddWatch(w.fd, w.dir, changes|unix.IN_ONLYDIR)
	if err != nil {
		wd = -1
	}
	if w.wd >= 0 && w.wd != wd {
		unix.InotifyRmWatch(w.fd, uint32(w.wd)) // gone already if the directory is
	}
	w.wd = wd
}

// wait returns true when it is time to read again: after a tick, or when the
// directory has changed and been left alone for a moment. It returns false when
// ctx ended.
func (w *watch) wait(ctx context.Context) bool {
	if w.events == nil {
		return pause(ctx, tick)
	}
	w.events.SetReadDeadline(time.Now().Add(tick))
	// ctx may have ended before the deadline was set anew, and its own been lost.
	if ctx.Err() != nil {
		return false
	}
	// What happened is of no interest, and the buffer holds many events: however
	// many there are, the file is read once a moment.
	var buf [16 << 10]byte
	if _, err := w.events.Read(buf[:]); err != nil {
		if ctx.Err() != nil {
			return false
		}
		if os.IsTimeout(err) {
			return true
		}
	}
	return pause(ctx, quiet)
}
