//go:build linux

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hanzoai/link/activity"
)

// What a history tells of. Who saw it stands behind.
const (
	asked     = "asked"     // requester: an enqueue goes out; Activity is empty
	enqueued  = "enqueued"  // requester: it was answered 201
	refused   = "refused"   // requester: it was answered anything else, or nothing
	cancelled = "cancelled" // requester: a cancel goes out

	dropped  = "dropped"  // node: its launcher or its agent is about to be restarted
	began    = "began"    // node: a life of its agent begins
	ended    = "ended"    // node: a life of its agent has ended in order
	offered  = "offered"  // node: the answer of a claim names the activity as a start
	called   = "called"   // node: any other call was answered, with Status; 0 is not at all
	reported = "reported" // node: a report of State was answered, with Status; 0 is not at all

	started  = "started"  // launcher: the workload runs
	finished = "finished" // launcher: the workload is over, with End
	torn     = "torn"     // launcher: the workload was killed, for the connection ended

	delivered = "delivered" // proxy: the cloud has answered a report of State, sent at Sent, with Status
	killed    = "killed"    // driver: the process of this node, or of the cloud ("cloud"), was killed
)

// An entry is one thing that happened. Its time is the machine's clock, which all
// processes of a run share.
type entry struct {
	At       int64          `json:"at"` // nanoseconds since 1970
	Sent     int64          `json:"sent,omitempty"`
	What     string         `json:"what"`
	Node     string         `json:"node,omitempty"`
	Activity string         `json:"activity,omitempty"`
	State    activity.State `json:"state,omitempty"`
	End      string         `json:"end,omitempty"` // A5's reason or code
	Status   int            `json:"status,omitempty"`
}

// A history is a file to which one process appends. Each entry is one write, so
// what was told survives the process's being killed.
type history struct {
	mu   sync.Mutex // guards file, and the order of times in it
	file *os.File
}

func newHistory(path string) (*history, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &history{file: f}, nil
}

// tell writes e down, with the time if it has none.
func (h *history) tell(e entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.At == 0 {
		e.At = time.Now().UnixNano()
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = h.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic("a history that cannot be written proves nothing: " + err.Error())
	}
}

func (h *history) close() error { return h.file.Close() }

// readHistories reads every history in dir into one, in the order of time. A last
// line without its end is one that its process was killed at.
func readHistories(dir string) ([]entry, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var all []entry
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var e entry
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				f.Close()
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, e)
		}
		f.Close()
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	slices.SortStableFunc(all, func(a, b entry) int { return cmp.Compare(a.At, b.At) })
	return all, nil
}
