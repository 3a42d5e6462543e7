package spool

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"

	"github.com/hanzoai/link/spool/event"
)

// MaxEvent is the most bytes of an event's canonical JSON. One that is larger
// is refused when it is built: it would never fit a request.
const MaxEvent = 1 << 20

// lines reads the whole lines of a log and keeps apart what follows the last.
type lines struct {
	r    *bufio.Reader
	tail []byte // after io.EOF: the bytes after the last newline
}

// newLines reads from r. The buffer bounds the length of a line.
func newLines(r io.Reader) *lines { return &lines{r: bufio.NewReaderSize(r, MaxEvent+1)} }

// next returns a line without its newline, valid until the call after. It ends
// with io.EOF.
func (l *lines) next() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	switch {
	case err == nil:
		return line[:len(line)-1], nil
	case err == io.EOF:
		l.tail = line
		return nil, io.EOF
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, fmt.Errorf("longer than %d bytes", MaxEvent)
	}
	return nil, err
}

// last reports whether nothing follows the line that next returned.
func (l *lines) last() bool {
	_, err := l.r.Peek(1)
	return err == io.EOF
}

// parse reads the event that stands at seq in a run's log.
func parse(line []byte, run string, seq uint64) (event.Event, error) {
	e, err := event.Parse(line)
	switch {
	case err != nil:
		return e, err
	case !bytes.Equal(e.JSON(), line):
		return e, errors.New("not in canonical form")
	case e.Run != run:
		return e, fmt.Errorf("an event of run %s", e.Run)
	case e.Seq != seq:
		return e, fmt.Errorf("has seq %d, not %d", e.Seq, seq)
	}
	return e, nil
}

// corrupt reports a line that is not what it should be.
func corrupt(path string, line uint64, err error) error {
	return fmt.Errorf("%w: %s line %d: %w; nothing was changed: restore the file, or move it away and begin a new run", ErrCorrupt, path, line, err)
}

// A Tail reads a run's log from some seq on and can go on as the log grows. A
// torn tail is not read. A Tail is used by one goroutine.
type Tail struct {
	spool  *Spool
	run    string
	path   string
	seq    uint64 // of the last event passed
	offset int64  // where the next line begins; unknown until skip is 0
	skip   uint64 // lines still to pass over
}

// Tail reads the events of run after the seq after.
func (s *Spool) Tail(run string, after uint64) *Tail {
	return &Tail{spool: s, run: run, path: s.path(runs, run+".log"), seq: after, skip: after}
}

// Next returns the events that follow, at most n and at most size bytes of them
// but one at least; none when the log has no more yet. With an error it returns
// the events before the place of the error.
func (t *Tail) Next(n int, size int) ([]event.Event, error) {
	if err := checkRun(t.run); err != nil {
		return nil, err
	}
	f, err := t.spool.files.open(t.path, os.O_RDONLY, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, t.spool.noRun(t.run)
		}
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < t.offset {
		return nil, fmt.Errorf("%w: %s is shorter than it was", ErrCorrupt, t.path)
	}
	if info.Size() == t.offset && t.skip == 0 {
		return nil, nil
	}
	if _, err := f.Seek(t.offset, io.SeekStart); err != nil {
		return nil, err
	}
	l := newLines(f)
	for t.skip > 0 { // line n holds seq n, so counting is enough
		line, err := l.next()
		if err == io.EOF {
			return nil, fmt.Errorf("%w: %s ends at seq %d, and the server acknowledged %d: it has lost events", ErrCorrupt, t.path, t.seq-t.skip, t.seq)
		}
		if err != nil {
			return nil, corrupt(t.path, t.seq-t.skip+1, err)
		}
		t.offset += int64(len(line)) + 1
		t.skip--
	}
	var events []event.Event
	for total := 0; len(events) < n; {
		line, err := l.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return events, corrupt(t.path, t.seq+1, err)
		}
		if total += len(line) + 1; total > size && len(events) > 0 {
			break
		}
		e, err := parse(line, t.run, t.seq+1)
		if err != nil {
			if l.last() && bytes.IndexByte(line, 0) >= 0 {
				break // torn: see replay
			}
			return events, corrupt(t.path, t.seq+1, err)
		}
		events = append(events, e)
		t.seq++
		t.offset += int64(len(line)) + 1
	}
	return events, nil
}

// Events reads a run's whole log. An error ends it.
func (s *Spool) Events(run string) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		t := s.Tail(run, 0)
		for {
			events, err := t.Next(1000, 4<<20)
			for _, e := range events {
				if !yield(e, nil) {
					return
				}
			}
			if err != nil {
				yield(event.Event{}, err)
				return
			}
			if len(events) == 0 {
				return
			}
		}
	}
}

// Fold applies a run's whole log.
func (s *Spool) Fold(run string) (*event.Run, error) {
	fold := new(event.Run)
	for e, err := range s.Events(run) {
		if err != nil {
			return nil, err
		}
		if _, err := fold.Apply(e, s); err != nil {
			return nil, corrupt(s.path(runs, run+".log"), e.Seq, err)
		}
	}
	return fold, nil
}

// View returns the view of a run as its log stands.
func (s *Spool) View(run string) (event.View, error) {
	fold, err := s.Fold(run)
	if err != nil {
		return event.View{}, err
	}
	return fold.View(), nil
}

// replay reads a log from its start and applies it to fold. It returns how many
// bytes of it are whole events; the rest of size is torn and may be cut.
func (s *Spool) replay(f io.Reader, path, run string, fold *event.Run) (whole int64, err error) {
	l := newLines(f)
	for seq := uint64(1); ; seq++ {
		line, err := l.next()
		if err == io.EOF {
			if !tornOff(l.tail) {
				return 0, fmt.Errorf("%w: %s line %d is no event and no beginning of one; nothing was changed: is this file a run's log?", ErrCorrupt, path, seq)
			}
			return whole, nil
		}
		if err != nil {
			return 0, corrupt(path, seq, err)
		}
		e, err := parse(line, run, seq)
		if err == nil {
			_, err = fold.Apply(e, s)
		} else if bytes.IndexByte(line, 0) >= 0 && l.last() {
			// A power cut between two pages of the line: its end is on
			// the disk and its beginning is a hole. It was never synced.
			return whole, nil
		}
		if err != nil {
			return 0, corrupt(path, seq, err)
		}
		whole += int64(len(line)) + 1
	}
}

// tornOff reports whether b can be what a crash left of an event's line: none of
// it, its beginning, or a page that was never written.
func tornOff(b []byte) bool {
	const start = `{"` // every event's
	n := min(len(b), len(start))
	return string(b[:n]) == start[:n] || b[0] == 0
}
