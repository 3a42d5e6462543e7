package agent

import (
	"errors"

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

	// Problem is what keeps the agent from the cloud, or the clock that differs from
	// the cloud's: a sentence that says what to do. Empty when there is none.
	Problem string `json:"problem,omitzero"`

	Offers     []string         `json:"offers"`
	Reasons    []string         `json:"reasons"` // why a kind, or every one, is not offered
	Activities []StatusActivity `json:"activities"`

	// Unsent are activities that ended and whose record the cloud has not whole yet.
	Unsent int `json:"unsent"`
}

// StatusActivity is one activity whose end the cloud has not acknowledged.
type StatusActivity struct {
	Activity string         `json:"activity"`
	Kind     string         `json:"kind"`
	State    activity.State `json:"state"`
	Since    string         `json:"since"` // RFC 3339: when the agent took it
	Done     int64          `json:"done,omitzero"`
	Total    int64          `json:"total,omitzero"` // of what is pulled, in bytes
}

// ReadStatus reads a status file. An agent that has not run since boot is
// fs.ErrNotExist.
func ReadStatus(path string) (Status, error) { return Status{}, errors.New("not built yet") }
