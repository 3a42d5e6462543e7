package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/hanzoai/link/activity"
)

// Status is how an agent is. It is status.json, written whenever it has changed.
type Status struct {
	ID        string `json:"id"`
	Org       string `json:"org"`
	API       string `json:"api"`
	Version   string `json:"version"`
	PID       int    `json:"pid"`
	Since     string `json:"since"`     // RFC 3339: when the agent started
	Connected bool   `json:"connected"` // the last claim was answered
	LastClaim string `json:"lastClaim,omitzero"`

	// Problem is what keeps the agent from the cloud or from its disk, or that its
	// clock differs from the cloud's: sentences that say what to do. Empty when there
	// is none.
	Problem string `json:"problem,omitzero"`

	Offers     []string         `json:"offers"`
	Reasons    []string         `json:"reasons"` // why a kind, or every one, is not offered
	Activities []StatusActivity `json:"activities"`

	// Unsent are activities that ended and whose record the cloud has not whole yet.
	Unsent int `json:"unsent"`

	// Kept are activities of which something stays in the spool that this agent does not
	// send: the cloud refused it, it is no record, or it is an earlier link's. They are
	// the first maxKept.
	Kept []string `json:"kept"`
}

// maxKept bounds what the status names.
const maxKept = 100

// StatusActivity is one activity whose end the cloud has not acknowledged.
type StatusActivity struct {
	Activity string         `json:"activity"`
	Kind     string         `json:"kind"`
	State    activity.State `json:"state"`
	Since    string         `json:"since"` // RFC 3339: when the agent took it
	Done     int64          `json:"done,omitzero"`
	Total    int64          `json:"total,omitzero"` // of what is pulled, in bytes, while it is pulling
}

// ReadStatus reads a status file. An agent that has not run since boot is
// fs.ErrNotExist; of one that was killed it is the last word, and [Status.Lives] tells
// the two apart.
func ReadStatus(path string) (Status, error) {
	src, err := readOwnTo(path, 1<<20) // of as many activities as there may be
	if err != nil {
		return Status{}, err
	}
	var s Status
	if err := json.Unmarshal(src, &s); err != nil {
		return Status{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// write replaces the file. It is for those who look now, so it is whole but not
// durable.
func (s Status) write(path string) error {
	src, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	next := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(next, append(src, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// plain makes one line for a person of what another machine said.
func plain(s string) string {
	const most = 500
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, "\ufffd"))
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
