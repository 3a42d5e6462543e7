package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/hanzoai/link/activity"
)

// What is audited (A10).
const (
	auditLink   = "link"
	auditUnlink = "unlink"
	auditPolicy = "policy"
	auditStart  = "start"
	auditStop   = "stop"
	auditDeny   = "deny"
	auditFail   = "fail"
)

// A line of audit.jsonl. It never holds a token, an input, or words that a workload
// has written.
type line struct {
	Time  string `json:"time"`
	Event string `json:"event"`

	// Of link and unlink.
	API      string `json:"api,omitempty"`
	Node     string `json:"node,omitempty"`
	LinkedBy string `json:"linkedBy,omitempty"`

	// Of policy: the file's hash and the kinds, or why it admits nothing.
	PolicySHA256 string   `json:"policySha256,omitempty"`
	Kinds        []string `json:"kinds,omitempty"`

	// Of the others, and Org of link too.
	Activity  string          `json:"activity,omitempty"`
	Kind      string          `json:"kind,omitempty"`
	Org       string          `json:"org,omitempty"`
	Project   string          `json:"project,omitempty"`
	Requester string          `json:"requester,omitempty"`
	Reason    activity.Reason `json:"reason,omitempty"`
	Code      activity.Code   `json:"code,omitempty"`
	Message   string          `json:"message,omitempty"` // of deny and policy
}

// audit appends to a file that everybody may read, each line by one write, so that a
// crash leaves it whole but for the last line, and the next one begins on its own. A
// line that cannot be written is kept, as far as there is room, and written before
// the next.
type audit struct {
	path    string
	pending [][]byte
	lost    int
}

// maxPending is how many lines wait for a disk.
const maxPending = 1000

func (a *audit) add(l line) error {
	l.Time = time.Now().UTC().Format(time.RFC3339)
	src, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if len(a.pending) == maxPending {
		a.lost++
		a.pending = a.pending[1:]
	}
	a.pending = append(a.pending, append(src, '\n'))
	return a.flush()
}

// flush writes what waits.
func (a *audit) flush() error {
	for len(a.pending) > 0 {
		if err := appendLine(a.path, a.pending[0]); err != nil {
			return fmt.Errorf("%w: %d lines of the audit log wait, %d are lost", err, len(a.pending), a.lost)
		}
		a.pending = a.pending[1:]
	}
	a.pending = nil
	return nil
}

func appendLine(path string, text []byte) error {
	const mode = 0o644
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &fs.PathError{Op: "append", Path: path, Err: errors.New("is no regular file")}
	}
	if info.Size() == 0 {
		if err := f.Chmod(mode); err != nil { // whatever the umask is
			return err
		}
	} else {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, info.Size()-1); err != nil {
			return err
		}
		if last[0] != '\n' { // a torn line of an earlier life
			text = append([]byte{'\n'}, text...)
		}
	}
	if _, err := f.Write(text); err != nil {
		return err
	}
	return f.Sync()
}
