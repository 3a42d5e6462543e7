// Package durabletest breaks disks, for the tests of what writes through package
// durable. It is not for anything else: nothing but a test imports it.
package durabletest

import (
	"io/fs"
	"sync"

	"github.com/hanzoai/link/spool/durable"
)

// An Op is a call that can be broken.
type Op string

// The calls of durable.FS and durable.Handle.
const (
	Open     Op = "open"
	Write    Op = "write"
	Sync     Op = "fsync"
	Truncate Op = "truncate"
	Rename   Op = "rename"
	Remove   Op = "remove"
	Mkdir    Op = "mkdir"
)

// A Call is one call about to be made.
type Call struct {
	N    int    // counts all calls, from 1
	Op   Op     // which
	Path string // the file; for a rename, the new name
	Size int    // bytes of a write
}

// A Fault is how a call fails. The zero Fault is no fault.
type Fault struct {
	Err     error  // what the caller is told
	Applied bool   // the call takes effect all the same
	Lands   int    // of a write that is not applied: how many bytes take effect; with no Err, a short write
	Then    func() // called after the effect and before the answer; may not return
}

// FS is durable.OS with faults. Every call that writes is counted and put to
// Plan, which may be nil. A sync is counted and not made: it costs milliseconds,
// and what it is for, no test can see without cutting the power.
type FS struct {
	Plan func(Call) Fault

	mu sync.Mutex
	n  int
}

// Calls returns how many calls were made.
func (f *FS) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

// do makes one call: all of it, or its first lands bytes, or none of it.
func (f *FS) do(op Op, path string, size int, call func(size int) error) error {
	f.mu.Lock()
	f.n++
	c := Call{N: f.n, Op: op, Path: path, Size: size}
	f.mu.Unlock()
	var fault Fault
	if f.Plan != nil {
		fault = f.Plan(c)
	}
	var err error
	switch {
	case fault.Applied, fault.Err == nil && fault.Then == nil && fault.Lands == 0:
		err = call(size)
	case fault.Lands > 0:
		err = call(min(fault.Lands, size))
	}
	if fault.Then != nil {
		fault.Then()
	}
	if fault.Err != nil {
		return &fs.PathError{Op: string(op), Path: path, Err: fault.Err}
	}
	return err
}

// Over is base with the faults of f, and counts with it.
func (f *FS) Over(base durable.FS) durable.FS { return over{f, base} }

// FS is also durable.FS, over durable.OS.
func (f *FS) OpenFile(name string, flag int, perm fs.FileMode) (durable.Handle, error) {
	return f.Over(durable.OS).OpenFile(name, flag, perm)
}
func (f *FS) Rename(from, to string) error              { return f.Over(durable.OS).Rename(from, to) }
func (f *FS) Remove(name string) error                  { return f.Over(durable.OS).Remove(name) }
func (f *FS) Mkdir(name string, perm fs.FileMode) error { return f.Over(durable.OS).Mkdir(name, perm) }
func (f *FS) Stat(name string) (fs.FileInfo, error)     { return f.Over(durable.OS).Stat(name) }

type over struct {
	fs   *FS
	base durable.FS
}

func (o over) OpenFile(name string, flag int, perm fs.FileMode) (durable.Handle, error) {
	var h durable.Handle
	err := o.fs.do(Open, name, 0, func(int) (err error) {
		h, err = o.base.OpenFile(name, flag, perm)
		return err
	})
	if err != nil {
		if h != nil {
			h.Close()
		}
		return nil, err
	}
	return &handle{h, o.fs, name}, nil
}

func (o over) Rename(from, to string) error {
	return o.fs.do(Rename, to, 0, func(int) error { return o.base.Rename(from, to) })
}

func (o over) Remove(name string) error {
	return o.fs.do(Remove, name, 0, func(int) error { return o.base.Remove(name) })
}

func (o over) Mkdir(name string, perm fs.FileMode) error {
	return o.fs.do(Mkdir, name, 0, func(int) error { return o.base.Mkdir(name, perm) })
}

func (o over) Stat(name string) (fs.FileInfo, error) { return o.base.Stat(name) }

type handle struct {
	durable.Handle
	fs   *FS
	path string
}

func (h *handle) Write(p []byte) (n int, err error) {
	err = h.fs.do(Write, h.path, len(p), func(size int) (err error) {
		n, err = h.Handle.Write(p[:size])
		return err
	})
	return n, err
}

func (h *handle) Sync() error {
	return h.fs.do(Sync, h.path, 0, func(int) error { return nil })
}

func (h *handle) Truncate(size int64) error {
	return h.fs.do(Truncate, h.path, 0, func(int) error { return h.Handle.Truncate(size) })
}
