package term

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

const (
	redraw = 100 * time.Millisecond // often enough to look alive
	plain  = time.Minute            // a log that nobody watches
)

// Progress shows one line that changes in place on a terminal, and one line a
// minute anywhere else. It is used by one goroutine.
type Progress struct {
	w     io.Writer
	tty   bool
	every time.Duration
	now   func() time.Time
	shown time.Time
	width int
}

// NewProgress shows progress on w, which is a terminal when it is an *os.File
// that is one.
func NewProgress(w io.Writer) *Progress {
	p := &Progress{w: w, every: plain, now: time.Now}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.tty, p.every = true, redraw
	}
	return p
}

// Show replaces the line, or drops it when the last one is too recent.
func (p *Progress) Show(line string) {
	now := p.now()
	if !p.shown.IsZero() && now.Sub(p.shown) < p.every {
		return
	}
	p.shown = now
	if !p.tty {
		fmt.Fprintln(p.w, line)
		return
	}
	width := utf8.RuneCountInString(line)
	fmt.Fprintf(p.w, "\r%s%s", line, strings.Repeat(" ", max(0, p.width-width)))
	p.width = width
}

// Say prints a line of its own, above the line that changes.
func (p *Progress) Say(format string, args ...any) {
	p.Done()
	fmt.Fprintf(p.w, format+"\n", args...)
}

// Done clears the line that changes, so that what follows starts at the left.
func (p *Progress) Done() {
	if p.tty && p.width > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.width))
		p.width = 0
	}
	p.shown = time.Time{}
}
