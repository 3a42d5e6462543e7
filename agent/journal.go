package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/durable"
)

// An entry is what is kept of one activity, in a file of its name.
type entry struct {
	Node     string            `json:"node"` // whose activity it is: see nodeName
	Taken    string            `json:"taken"`
	Envelope activity.Envelope `json:"envelope"`

	// State is how far it has come here. From starting on, the launcher may have been
	// asked to start it.
	State activity.State `json:"state"`

	// Reports are what the cloud has not acknowledged yet, in order, without the key.
	Reports []api.StateReport `json:"reports"`

	// Sent says that the cloud has acknowledged the whole record, so that what is in the
	// spool may go.
	Sent bool `json:"sent,omitzero"`
}

// nodeName tells the activities of one link from those of another that the machine
// had before.
func nodeName(l Link) string { return l.API + " " + l.Org + "/" + l.ID }

// journal is the directory of entries. What put returns for is on stable storage.
type journal struct {
	dir  string
	disk durable.Disk
}

const journalSuffix = ".json"

// open makes the directory and reads what an earlier life has left, in the order in
// which it was taken. A file that cannot be read for what it is is put aside under
// another name, and is one of the errors.
func (j journal) open() ([]entry, []error) {
	if err := j.disk.MkdirAll(j.dir, 0o700); err != nil {
		return nil, []error{err}
	}
	files, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, []error{err}
	}
	var entries []entry
	var faults []error
	for _, f := range files {
		if durable.IsTemp(f.Name()) { // its writer is dead
			os.Remove(filepath.Join(j.dir, f.Name()))
			continue
		}
		id, ours := strings.CutSuffix(f.Name(), journalSuffix)
		if !ours {
			continue
		}
		e, err := j.read(id)
		if err != nil {
			path := j.path(id)
			faults = append(faults, fmt.Errorf("%s: %w: kept as %s.broken", path, err, path), os.Rename(path, path+".broken"))
			continue
		}
		entries = append(entries, e)
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		return strings.Compare(a.Taken+a.Envelope.Activity, b.Taken+b.Envelope.Activity)
	})
	return entries, slices.DeleteFunc(faults, func(err error) bool { return err == nil })
}

func (j journal) read(id string) (entry, error) {
	src, err := os.ReadFile(j.path(id))
	if err != nil {
		return entry{}, err
	}
	var e entry
	if err := json.Unmarshal(src, &e); err != nil {
		return entry{}, err
	}
	if e.Envelope.Activity != id || !activity.ValidID(id) || !e.State.Valid() {
		return entry{}, errors.New("is no entry of the journal")
	}
	return e, nil
}

// put makes an entry what it is now.
func (j journal) put(e entry) error {
	src, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return j.disk.WriteFile(j.path(e.Envelope.Activity), src, 0o600)
}

// remove forgets an activity. A name that is not gone for good is found again by the
// next life, which has nothing to do for it.
func (j journal) remove(id string) error {
	err := os.Remove(j.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (j journal) path(id string) string { return filepath.Join(j.dir, id+journalSuffix) }
