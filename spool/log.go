package spool

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/event"
)

// A Log is one run, open for writing. It holds the run's lock until Close.
type Log struct {
	// Immutable.
	spool *Spool
	run   string
	lock  *os.File
	cut   int64

	mu      sync.Mutex        // guards all below, and orders the appends
	file    *durable.Appender // nil once closed
	fold    event.Run
	last    uint64   // seq of the last event on stable storage
	failed  error    // the first failed append, or that the log is closed
	metrics *os.File // opened by the first Metric
}

// Create begins a run. One that has events already is [ErrExists].
func (s *Spool) Create(run string) (*Log, error) {
	l, err := s.openLog(run, os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if l.last > 0 {
		l.Close()
		return nil, fmt.Errorf("run %s: %w, with %d events in %s; resume it, or give the new run another name", run, ErrExists, l.last, s.dir)
	}
	return l, nil
}

// Resume opens a run to go on with it, and cuts off a torn tail. A run that is
// not here is fs.ErrNotExist.
func (s *Spool) Resume(run string) (*Log, error) { return s.openLog(run, 0) }

func (s *Spool) openLog(run string, flag int) (_ *Log, err error) {
	if err := checkRun(run); err != nil {
		return nil, err
	}
	l := &Log{spool: s, run: run}
	if l.lock, err = s.lock(run, flag); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.unlock(run, l.lock)
		}
	}()
	path := s.path(runs, run+".log")
	whole, err := s.replay(l.lock, path, run, &l.fold)
	if err != nil {
		return nil, err
	}
	l.last = l.fold.Next() - 1
	acked, err := s.Acked(run)
	if err != nil {
		return nil, err
	}
	if acked > l.last {
		return nil, fmt.Errorf("%w: %s ends at seq %d, and the server acknowledged %d: it has lost events; nothing was changed", ErrCorrupt, path, l.last, acked)
	}
	info, err := l.lock.Stat()
	if err != nil {
		return nil, err
	}
	if l.file, err = s.disk.OpenAppend(path, s.mode); err != nil {
		return nil, err
	}
	l.cut = info.Size() - whole
	// Also when there is nothing to cut: Truncate syncs, and the last writer may
	// have died before it did.
	if err := l.file.Truncate(whole); err != nil {
		l.file.Close()
		return nil, err
	}
	return l, nil
}

// Cut returns how many bytes of a torn event were cut off when the log was
// opened.
func (l *Log) Cut() int64 { return l.cut }

// Last returns the seq of the last event on stable storage, 0 before the first.
func (l *Log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// View returns the view of the run.
func (l *Log) View() event.View {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fold.View()
}

// Run returns the log's fold, to read. It is the caller's to see that no event
// is appended meanwhile.
func (l *Log) Run() *event.Run { return &l.fold }

// Append records body as the run's next event. When it returns nil the event is
// on stable storage and every reader sees it.
//
// An event that breaks a rule of HIP-1334 §7 is an *event.Refusal, one with a
// number that is not finite is event.ErrNotFinite; neither changes anything.
// Any other failure is the disk's: it names the file, and it is what every later
// Append returns. The step that caused the event must then not go on.
func (l *Log) Append(body event.Body) (event.Event, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return event.Event{}, l.failed
	}
	e, err := event.New(l.run, l.last+1, time.Now(), body)
	if err != nil {
		return event.Event{}, err
	}
	line := append(bytes.Clone(e.JSON()), '\n')
	if len(line) > MaxEvent {
		return event.Event{}, fmt.Errorf("run %s: an event of %d bytes; the most is %d", l.run, len(line), MaxEvent)
	}
	if _, err := l.fold.Apply(e, l.spool); err != nil {
		return event.Event{}, err
	}
	if err := l.file.Append(line); err != nil {
		l.failed = fmt.Errorf("run %s stopped recording at seq %d: %w; make room or repair the disk, then resume the run", l.run, e.Seq, err)
		return event.Event{}, l.failed
	}
	l.last = e.Seq
	return e, nil
}

// Check compares a step that a resumed trainer has repeated with the one
// recorded. It reports whether the step is recorded, in which case it is not
// appended again; one that differs in any bit is event.ErrDiverged.
func (l *Log) Check(step event.StepRecorded) (recorded bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fold.Check(step)
}

// Metric notes v, as one line of canonical JSON, in the run's metrics. These are
// for looking at: they are not synced, and a resumed run repeats the lines of
// the steps that it repeats.
func (l *Log) Metric(v any) error {
	line, err := canon.Marshal(v)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return l.failed
	}
	if l.metrics == nil {
		if l.metrics, err = l.spool.openMetrics(l.run); err != nil {
			return err
		}
	}
	if _, err = l.metrics.Write(append(line, '\n')); err != nil {
		l.metrics.Close() // the next call opens it again and drops what is torn
		l.metrics = nil
	}
	return err
}

// openMetrics opens a run's metrics for appending whole lines. The end of a line that a
// crash tore is dropped.
func (s *Spool) openMetrics(run string) (*os.File, error) {
	f, err := s.files.open(s.path(runs, run+".metrics"), os.O_RDWR|os.O_CREATE|os.O_APPEND, s.mode)
	if err != nil {
		return nil, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		tail := make([]byte, min(size, MaxEvent))
		if _, err = f.ReadAt(tail, size-int64(len(tail))); err == nil {
			torn := len(tail) - (bytes.LastIndexByte(tail, '\n') + 1)
			if torn > 0 {
				err = f.Truncate(size - int64(torn))
			}
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Close gives up the run's lock. Everything appended is already durable. A second
// Close does nothing.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	if l.metrics != nil {
		l.metrics.Close()
	}
	err := l.file.Close()
	l.file, l.failed = nil, fmt.Errorf("run %s: log: %w", l.run, os.ErrClosed)
	if e := l.spool.unlock(l.run, l.lock); err == nil {
		err = e
	}
	return err
}
