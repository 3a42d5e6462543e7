package durable

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// An Appender adds records to the end of a file. It does not lock the file:
// its owner sees to it that there is one Appender at a time. An Appender is
// used by one goroutine.
type Appender struct {
	path string
	h    Handle
	err  error // the first failure; the end of the file is unknown since
}

// OpenAppend opens path for appending and creates it when it is missing, with
// its name on stable storage.
func OpenAppend(path string, perm fs.FileMode) (*Appender, error) {
	return local.OpenAppend(path, perm)
}

// OpenAppend is the function of that name, on this disk.
func (d Disk) OpenAppend(path string, perm fs.FileMode) (*Appender, error) {
	h, err := d.fs.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, perm)
	if err != nil {
		return nil, fmt.Errorf("opening to append: %w", err)
	}
	// Even when the file exists: whoever created it may have died before
	// its name was synced.
	if err := d.SyncDir(filepath.Dir(path)); err != nil {
		h.Close()
		return nil, err
	}
	return &Appender{path: path, h: h}, nil
}

// Append adds rec with one write and returns when it is on stable storage.
//
// After a failure rec may be there whole, in part or not at all, and every
// later Append fails with that same error: what follows a torn record would be
// torn too. Open the file again, cut it back to whole records with Truncate,
// and go on.
func (a *Appender) Append(rec []byte) error {
	if a.err != nil {
		return a.err
	}
	n, err := a.h.Write(rec)
	if err == nil && n < len(rec) {
		err = io.ErrShortWrite
	}
	if err == nil {
		err = a.h.Sync()
	}
	if err != nil {
		a.err = fmt.Errorf("appending to %s: %w", a.path, err)
	}
	return a.err
}

// Truncate cuts the file to size bytes and returns when that is on stable
// storage. A failure is final, as in Append.
func (a *Appender) Truncate(size int64) error {
	if a.err != nil {
		return a.err
	}
	err := a.h.Truncate(size)
	if err == nil {
		err = a.h.Sync()
	}
	if err != nil {
		a.err = fmt.Errorf("cutting %s to %d bytes: %w", a.path, size, err)
	}
	return a.err
}

// Close closes the file. What was appended is already durable.
func (a *Appender) Close() error { return a.h.Close() }
