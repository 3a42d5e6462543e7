package trainer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"time"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

// memory is a Recorder that keeps everything in memory, with the rules of a
// spool: the fold admits events, parents must be held, addresses are checked.
// What a killed process had appended is still there for the next one.
type memory struct {
	run       string
	fold      event.Run
	log       []event.Event
	artifacts map[canon.SHA256]record.Artifact
	bytes     map[canon.SHA256][]byte
	gates     map[canon.Hash]gate.Gate
	datasets  map[string]record.Dataset
	metrics   []string

	// before and after are called around the append of an event; either may
	// panic, as a process dies, or fail, as a disk does.
	before, after func(event.Body) error
}

func newMemory(run string) *memory {
	return &memory{
		run: run, artifacts: map[canon.SHA256]record.Artifact{}, bytes: map[canon.SHA256][]byte{},
		gates: map[canon.Hash]gate.Gate{}, datasets: map[string]record.Dataset{},
	}
}

// another is another run's Recorder, over a copy of what m holds.
func (m *memory) another(run string) *memory {
	return &memory{
		run: run, artifacts: maps.Clone(m.artifacts), bytes: maps.Clone(m.bytes),
		gates: maps.Clone(m.gates), datasets: maps.Clone(m.datasets),
	}
}

func (m *memory) Append(b event.Body) (event.Event, error) {
	if m.before != nil {
		if err := m.before(b); err != nil {
			return event.Event{}, err
		}
	}
	e, err := event.New(m.run, m.fold.Next(), time.Unix(1_800_000_000, 0), b)
	if err != nil {
		return event.Event{}, err
	}
	if _, err := m.fold.Apply(e, m); err != nil {
		return event.Event{}, err
	}
	m.log = append(m.log, e)
	if m.after != nil {
		return e, m.after(b)
	}
	return e, nil
}

func (m *memory) Check(s event.StepRecorded) (bool, error) { return m.fold.Check(s) }
func (m *memory) Run() *event.Run                          { return &m.fold }

func (m *memory) Put(a record.Artifact, r io.Reader) (record.Artifact, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return a, err
	}
	if sha := canon.Sum(b); a.SHA256 == "" {
		a.SHA256 = sha
	} else if a.SHA256 != sha {
		return a, fmt.Errorf("bytes of %s hash to %s", a.SHA256, sha)
	}
	if held, ok := m.artifacts[a.SHA256]; ok {
		if held.Kind != a.Kind || held.Purpose != a.Purpose {
			return a, fmt.Errorf("%s is held as %s of purpose %s, not %s, %s", a.SHA256, held.Kind, held.Purpose, a.Kind, a.Purpose)
		}
		return held, nil
	}
	var parents []record.Artifact
	for _, sha := range a.Parents {
		p, ok := m.artifacts[sha]
		if !ok {
			return a, fmt.Errorf("parent %s of a %s is not held", sha, a.Kind)
		}
		parents = append(parents, p)
	}
	if err := a.CheckParents(parents...); err != nil {
		return a, err
	}
	a.Size, a.State, a.Created = uint64(len(b)), record.Registered, "2027-01-01T00:00:00Z"
	if err := a.Validate(); err != nil {
		return a, err
	}
	m.artifacts[a.SHA256], m.bytes[a.SHA256] = a, b
	return a, nil
}

func (m *memory) OpenArtifact(sha canon.SHA256) (io.ReadCloser, error) {
	b, ok := m.bytes[sha]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

func (m *memory) PutGate(g gate.Gate) (canon.Hash, error) {
	if err := g.Validate(); err != nil {
		return "", err
	}
	h, err := g.Hash()
	m.gates[h] = g
	return h, err
}

func (m *memory) PutDataset(d record.Dataset) error {
	if _, ok := m.artifacts[*d.SHA256]; !ok {
		return errors.New("the dataset's items are not held")
	}
	m.datasets[d.ID] = d
	return d.Validate()
}

func (m *memory) Artifact(sha canon.SHA256) (record.Artifact, bool) {
	a, ok := m.artifacts[sha]
	return a, ok
}
func (m *memory) Gate(h canon.Hash) bool { _, ok := m.gates[h]; return ok }
func (m *memory) Dataset(id string) (record.Dataset, bool) {
	d, ok := m.datasets[id]
	return d, ok
}

// bodies are the events' bodies: all that two logs of one run may be held to,
// since their instants differ.
func (m *memory) bodies() []event.Body {
	list := make([]event.Body, len(m.log))
	for i, e := range m.log {
		list[i] = e.Body
	}
	return list
}

// types are the events' types, runs of one type once.
func (m *memory) types() []event.Type {
	var list []event.Type
	for _, e := range m.log {
		if n := len(list); n == 0 || list[n-1] != e.Body.Type() {
			list = append(list, e.Body.Type())
		}
	}
	return list
}

// steps are the recorded steps.
func (m *memory) steps() []event.StepRecorded {
	var list []event.StepRecorded
	for s := range m.fold.Steps() {
		list = append(list, s)
	}
	return list
}

func (m *memory) Metric(v any) error {
	b, err := canon.Marshal(v)
	m.metrics = append(m.metrics, string(b))
	return err
}

var _ Recorder = (*memory)(nil)
