//go:build linux

package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/sandbox"
	"golang.org/x/sys/unix"
)

// What ended work has left in its spools stays until its record is sent and the agent
// says so, or for good where the record is never taken. It is the owner's disk, so it
// counts against caps.disk when a start is judged.
//
// Each spool is counted once: when its work has ended, before that is told, or when the
// launcher starts. After that nobody fills it but the agent, which writes a few bytes
// as it sends, and which has a disk to fill without it. What keeps a start from being
// admitted is counted once more, for the owner may have removed some of it. The loop
// never counts. While the spools of an earlier life are being counted a start is
// refused, and one whose agent is gone counts meanwhile with what its work was admitted
// with.

const (
	// uncountable is the size of a spool that holds more than is counted: more than any
	// cap, so that nothing starts beside it.
	uncountable = 1 << 61
	// countLimit is how long an agent waits at most to be answered while the spools of
	// an earlier life are counted.
	countLimit = 10 * time.Second
	// forgetLimit is how long one removal may take before it is refused, to be asked for
	// again: an agent that has been taken over may be adding to what is removed.
	forgetLimit = 10 * time.Minute
)

// sized says what a spool holds, in bytes on disk. One without an activity says that
// all were counted.
type sized struct {
	activity string
	size     int64
}

// removal says what became of one.
type removal struct {
	activity string
	err      error
}

// census counts the spools that an earlier life has left.
func (l *launcher) census(ctx context.Context) {
	tell := func(s sized) bool {
		select {
		case l.sizes <- s:
			return true
		case <-ctx.Done():
			return false
		}
	}
	dir, err := os.Open(l.Spool)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.Log.Error("what is kept cannot be counted, so nothing is started: run hanzo link again", "err", err)
		return
	}
	for err == nil {
		var names []string
		names, err = dir.Readdirnames(1024)
		for _, name := range names {
			if !activity.ValidID(name) {
				continue
			}
			if size := l.measure(ctx, name); size > 0 && !tell(sized{name, size}) {
				return
			}
		}
	}
	dir.Close()
	tell(sized{})
}

// measure counts what a spool holds. What cannot be read is uncountable, too.
func (l *launcher) measure(ctx context.Context, id string) int64 {
	dir, err := l.openSpool(id)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return 0 // what is no directory is root's own, and no workload's
	}
	var size int64
	if err == nil {
		size, err = sandbox.Usage(ctx, dir)
		dir.Close()
	}
	if err != nil && ctx.Err() == nil {
		l.quiet.warn("a spool holds more than is counted, so nothing starts beside it: look at it, and remove what is in it", "spool", filepath.Join(l.Spool, id), "err", err)
		return uncountable
	}
	return min(size, uncountable)
}

// openSpool opens an activity's spool directory to be read. Its parent is root's, and
// so is the making of what is in that.
func (l *launcher) openSpool(id string) (*os.File, error) {
	dir, err := openDir(l.Spool)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return openBeneath(dir, id, unix.O_RDONLY|unix.O_DIRECTORY)
}

// keep counts what work has left whose agent did not wait for it to be counted.
func (l *launcher) keep(j *job) {
	if _, err := os.Lstat(filepath.Join(l.Spool, j.activity)); err != nil {
		return // it was never made
	}
	l.kept[j.activity] = j.ask.Disk
	l.tasks.Go(func() {
		s := sized{j.activity, l.measure(l.ctx, j.activity)}
		select {
		case l.sizes <- s:
		case <-l.ctx.Done():
		}
	})
}

// counted takes note of a size.
func (l *launcher) counted(s sized) {
	_, awaited := l.kept[s.activity]
	switch {
	case s.activity == "":
		l.complete, l.recounting = true, false
	case l.complete && !awaited: // forgotten meanwhile
	case s.size == 0:
		delete(l.kept, s.activity)
	default:
		l.kept[s.activity] = s.size
	}
}

// room judges whether there is room for an ask beside what runs and what is kept.
func (l *launcher) room(p policy.Policy, ask policy.Ask, held policy.Held, free policy.Free) error {
	if !l.complete {
		return refusal{activity.Capacity, errors.New("what earlier work has left in its spools is still being counted: try again in a minute")}
	}
	var kept int64
	for _, size := range l.kept {
		kept = min(kept+size, uncountable)
	}
	held.Disk = min(held.Disk+kept, uncountable)
	err := p.Capacity(ask, held, free)
	if d, ok := errors.AsType[policy.Denied](err); ok && d.Rule == "capacity.disk" && kept > 0 {
		l.recount()
		d.Reason += fmt.Sprintf("; what ended work has left in %s, where its record is not sent, holds %d bytes, and hanzo status names it", l.Spool, kept)
		return d
	}
	return err
}

// recount counts what is kept once more, for the next start.
func (l *launcher) recount() {
	if l.recounting {
		return
	}
	l.recounting = true
	ids := slices.Collect(maps.Keys(l.kept))
	l.tasks.Go(func() {
		for _, id := range append(ids, "") {
			s := sized{activity: id}
			if id != "" {
				s.size = l.measure(l.ctx, id)
			}
			select {
			case l.sizes <- s:
			case <-l.ctx.Done():
				return
			}
		}
	})
}

// forgetSpool has the spool of an ended activity emptied, one at a time.
func (l *launcher) forgetSpool(id string) {
	switch {
	case l.find(id) != nil:
		l.refuse(id, refusal{activity.Denied, errors.New("the activity runs: its spool is forgotten after its end")})
		return
	case l.forgetting != "":
		l.refuse(id, refusal{activity.Capacity, errors.New("another spool is being emptied: ask again after it")})
		return
	}
	l.forgetting = id
	l.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(l.ctx, forgetLimit)
		defer cancel()
		r := removal{id, l.emptySpool(ctx, id)}
		select {
		case l.removals <- r:
		case <-l.ctx.Done():
		}
	})
}

// emptySpool removes everything in a spool directory, which stays as root's own. That
// holds when it returns nil, whatever happens then.
func (l *launcher) emptySpool(ctx context.Context, id string) error {
	dir, err := l.openSpool(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	// First, so that nobody adds to it meanwhile.
	if err := errors.Join(dir.Chown(0, int(l.Agent.GID)), dir.Chmod(0o750)); err != nil {
		return err
	}
	if err := sandbox.Empty(ctx, dir); err != nil {
		return err
	}
	return dir.Sync()
}

// removed takes note of the end of a removal.
func (l *launcher) removed(r removal) {
	l.forgetting = ""
	if r.err != nil {
		l.refuse(r.activity, refusal{activity.Capacity, fmt.Errorf("its spool could not be emptied: %w", r.err)})
		return
	}
	delete(l.kept, r.activity)
	l.Log.Info("forgotten", "activity", r.activity)
	l.reply(ipc.Reply{Forgotten: &ipc.Forgotten{Activity: r.activity}})
}
