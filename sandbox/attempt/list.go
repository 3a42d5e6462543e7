//go:build linux

package attempt

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An effort is one attempt of the list.
type effort struct {
	number         int
	name, expected string
	try            func(*trial)
}

// efforts is the list, in the order it is made: what could end the process comes
// last.
func efforts() []effort {
	return slices.Concat(descriptorEfforts, processEfforts, mountEfforts, kernelEfforts, fileEfforts, networkEfforts, lateEfforts)
}

// Listed is what mode "list" will try, without what it will get.
func Listed() []Result {
	var listed []Result
	for _, e := range efforts() {
		listed = append(listed, Result{Number: e.number, Name: e.name, Expected: e.expected})
	}
	return listed
}

// Arguments is the command line, after the program's name, that makes the
// attempts with p's expectations.
func (p Profile) Arguments() []string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // a Profile is strings and numbers
	}
	return []string{Argument, "list", string(text)}
}

// Main is the program that runs inside. The first argument is the mode; what it
// finds it writes to w. It answers the exit status: 0 unless something gave way
// or could not be tried (1) or it was called wrongly (2).
func Main(args []string, w io.Writer) int {
	opened := descriptors()     // before the runtime opens its own
	signal.Ignore(unix.SIGXFSZ) // so that a file too large is an error to report
	if os.Geteuid() == 0 {
		fmt.Fprintln(os.Stderr, "this half of the check runs inside the sandbox, as a user without rights; hanzo sandbox check starts it")
		return 2
	}
	switch {
	case len(args) == 0:
		fmt.Fprintln(os.Stderr, "no mode given")
		return 2
	case args[0] != "list":
		return behave(args[0], args[1:], w)
	case len(args) != 2:
		fmt.Fprintln(os.Stderr, "list: takes what Profile.Arguments gives")
		return 2
	}
	var p Profile
	if err := json.Unmarshal([]byte(args[1]), &p); err != nil {
		fmt.Fprintln(os.Stderr, "list:", err)
		return 2
	}
	status := 0
	for _, e := range efforts() {
		done := make(chan Result)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the attempt
			t := &trial{Profile: p, opened: opened}
			e.try(t)
			done <- t.result(e)
		}()
		r := <-done
		if r.State != Held {
			status = 1
		}
		line, err := json.Marshal(r)
		if err != nil {
			panic(err) // a Result is strings and numbers
		}
		fmt.Fprintf(w, "%s\n", line)
	}
	return status
}

// A trial is one attempt while it is made: what was answered and what gave way.
type trial struct {
	Profile
	opened []int // the descriptors the program was started with

	answers []string
	count   map[string]int
	gave    []string
	broken  []string
}

// held notes an answer that is as it should be.
func (t *trial) held(answer string) {
	if t.count == nil {
		t.count = make(map[string]int)
	}
	if t.count[answer]++; t.count[answer] == 1 {
		t.answers = append(t.answers, answer)
	}
}

// gaveWay notes that something was possible that may not be.
func (t *trial) gaveWay(format string, args ...any) {
	t.gave = append(t.gave, fmt.Sprintf(format, args...))
}

// failed notes that something could not be tried.
func (t *trial) failed(format string, args ...any) {
	t.broken = append(t.broken, fmt.Sprintf(format, args...))
}

// refused judges the answer of what was tried: err must be one of want.
func (t *trial) refused(what string, err error, want ...unix.Errno) {
	var errno unix.Errno
	switch {
	case err == nil:
		t.gaveWay("%s succeeded", what)
	case errors.As(err, &errno) && slices.Contains(want, errno):
		t.held(errnoName(errno))
	default:
		t.gaveWay("%s: %s", what, answer(err))
	}
}

// result is the trial's line.
func (t *trial) result(e effort) Result {
	r := Result{Number: e.number, Name: e.name, Expected: e.expected}
	switch {
	case len(t.gave) > 0:
		r.State, r.Got = GaveWay, some(t.gave)
	case len(t.broken) > 0:
		r.State, r.Got = Failed, some(t.broken)
	case len(t.answers) == 0:
		r.State, r.Got = Failed, "nothing was tried"
	default:
		parts := make([]string, len(t.answers))
		for i, a := range t.answers {
			parts[i] = a
			if n := t.count[a]; n > 1 {
				parts[i] += fmt.Sprintf(" ×%d", n)
			}
		}
		r.State, r.Got = Held, strings.Join(parts, ", ")
	}
	return r
}

// some is a list in a table cell, whose end would hide its beginning.
func some(list []string) string {
	const most = 6
	s := strings.Join(list[:min(most, len(list))], "; ")
	if more := len(list) - most; more > 0 {
		s += fmt.Sprintf("; and %d more", more)
	}
	return s
}

func errnoName(e unix.Errno) string {
	if name := unix.ErrnoName(e); name != "" {
		return name
	}
	return fmt.Sprintf("errno %d", int(e))
}

// answer is an error in a table cell.
func answer(err error) string {
	if err == nil {
		return "success"
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errnoName(errno)
	}
	return err.Error()
}

// denied makes a system call in a child of its own, which takes what the call
// changed with it when it ends, and which must be answered with want.
func (t *trial) denied(want unix.Errno, what string, number uintptr, args ...uintptr) {
	t.refused(what, inChild(number, args...), want)
}

// sys makes a system call on this thread, without the runtime between.
func sys(number uintptr, args ...uintptr) error {
	_, err := value(number, args...)
	return err
}

// value is sys with what the call returned.
func value(number uintptr, args ...uintptr) (uintptr, error) {
	var a [6]uintptr
	copy(a[:], args)
	r, _, e := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if e != 0 {
		return r, e
	}
	return r, nil
}

// kept is what addresses were taken of. A number does not keep what it points at,
// and a variable whose address is only a number may move with its stack.
var kept []any

// address is where v lies, for a raw system call.
func address[T any](v *T) uintptr {
	kept = append(kept, v)
	return uintptr(unsafe.Pointer(v))
}

// pointer is the address of s, ended by a zero byte.
func pointer(s string) uintptr {
	b, err := unix.BytePtrFromString(s)
	if err != nil {
		panic(err) // s is a path of ours
	}
	return address(b)
}
