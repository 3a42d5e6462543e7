package trainer

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
)

// Recorder takes what a run has to say: a spool with one of its logs open is
// one. Whatever it returns nil for is on stable storage.
type Recorder interface {
	Log
	Store
}

// Log is a run's events.
type Log interface {
	// Append records body as the run's next event.
	Append(event.Body) (event.Event, error)
	// Check reports whether a step that is repeated is recorded, and fails with
	// event.ErrDiverged when what is recorded differs.
	Check(event.StepRecorded) (recorded bool, err error)
	// Metric notes v beside the events, for people and charts: nothing decides by it.
	Metric(v any) error
	// Run is the run as its events so far make it, to read.
	Run() *event.Run
}

// Store holds what events name. To put what is held already changes nothing.
type Store interface {
	Put(record.Artifact, io.Reader) (record.Artifact, error)
	OpenArtifact(canon.SHA256) (io.ReadCloser, error)
	PutGate(gate.Gate) (canon.Hash, error)
	PutDataset(record.Dataset) error
}

// recorder is a Recorder that fills in who records.
type recorder struct {
	Recorder
	run, tool string
}

// artifact is the metadata of what this run makes.
func (r recorder) artifact(kind record.Kind, purpose record.Purpose, parents ...canon.SHA256) record.Artifact {
	if parents == nil {
		parents = []canon.SHA256{}
	}
	return record.Artifact{
		Kind: kind, MediaType: kind.MediaType(), SchemaVersion: 1, Purpose: purpose, Parents: parents,
		Producer: record.Producer{Run: &r.run, Tool: r.tool, Version: Version()},
	}
}

// put stores bytes made for training.
func (r recorder) put(kind record.Kind, b []byte, parents ...canon.SHA256) (canon.SHA256, error) {
	a, err := r.Put(r.artifact(kind, record.Train, parents...), bytes.NewReader(b))
	return a.SHA256, err
}

// putJSON stores v in canonical form.
func (r recorder) putJSON(kind record.Kind, v any) (canon.SHA256, error) {
	b, err := canon.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("trainer: writing the %s: %w", kind, err)
	}
	return r.put(kind, b)
}

// putDir stores a folder as one object.
func (r recorder) putDir(kind record.Kind, dir string, parents ...canon.SHA256) (canon.SHA256, error) {
	p, err := pack(dir)
	if err != nil {
		return "", err
	}
	defer p.Close()
	a, err := r.Put(r.artifact(kind, record.Train, parents...), p)
	return a.SHA256, err
}

// putSet stores a sealed dataset and its items.
func (r recorder) putSet(s *data.Set) error {
	d := s.Dataset
	items, err := s.Reader()
	if err != nil {
		return err
	}
	defer items.Close()
	a := r.artifact(record.KindDataset, d.Purpose)
	a.SHA256 = *d.SHA256
	if _, err := r.Put(a, items); err != nil {
		return err
	}
	now := time.Now().UTC().Format(time.RFC3339)
	d.Created, d.Sealed = now, &now
	return r.PutDataset(d)
}

// create appends RUN_CREATED, unless a resumed run has it: then the run must be
// of the same config and gate.
func (r recorder) create(c event.RunCreated) error {
	view := r.Run().View()
	if view.Seq == 0 {
		_, err := r.Append(c)
		return err
	}
	if view.ConfigSHA256 != c.ConfigSHA256 {
		return fmt.Errorf("trainer: run %s has config %s, the stage file now gives %s: start a new run", r.run, view.ConfigSHA256, c.ConfigSHA256)
	}
	if was, now := view.GateSpecHash, c.GateSpecHash; (was == nil) != (now == nil) || was != nil && *was != *now {
		return fmt.Errorf("trainer: run %s named another gate: its data or its base's evaluation changed; start a new run", r.run)
	}
	return nil
}

// attach appends DATASET_ATTACHED for a set, unless a resumed run has it.
func (r recorder) attach(s *data.Set, role record.Role) error {
	if r.attached(s, role) {
		return nil
	}
	if err := r.putSet(s); err != nil {
		return err
	}
	_, err := r.Append(attachment(s, role))
	return err
}

// attached reports whether the run reads a set in a role.
func (r recorder) attached(s *data.Set, role record.Role) bool {
	return slices.Contains(r.Run().View().Datasets, attachment(s, role))
}

func attachment(s *data.Set, role record.Role) event.DatasetAttached {
	return event.DatasetAttached{Dataset: s.Dataset.ID, DatasetSHA256: *s.Dataset.SHA256, Purpose: s.Dataset.Purpose, Role: role}
}

// PutCheckpoint stores a checkpoint's folder as one object, so that runs can
// name it as a parent, and returns its address. Equal checkpoints have one.
func PutCheckpoint(s Store, dir, tool string) (canon.SHA256, error) {
	return PutFolder(s, record.KindCheckpoint, dir, tool)
}

// PutFolder stores a folder that was made of parents as one object, and returns
// its address. Equal folders have one.
func PutFolder(s Store, kind record.Kind, dir, tool string, parents ...canon.SHA256) (canon.SHA256, error) {
	p, err := pack(dir)
	if err != nil {
		return "", err
	}
	defer p.Close()
	a, err := s.Put(record.Artifact{
		Kind: kind, MediaType: record.MediaTar, SchemaVersion: 1, Purpose: record.Train,
		Parents: append([]canon.SHA256{}, parents...), Producer: record.Producer{Tool: tool, Version: Version()},
	}, p)
	return a.SHA256, err
}
