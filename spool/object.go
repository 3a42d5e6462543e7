package spool

import (
	"bytes"
	"fmt"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

var _ event.Refs = (*Spool)(nil)

// PutGate stores a gate and returns its hash. The same gate again is no change.
func (s *Spool) PutGate(g gate.Gate) (canon.Hash, error) {
	if err := g.Validate(); err != nil {
		return "", fmt.Errorf("putting gate %s: %w", g.Name, err)
	}
	b, err := canon.Marshal(g)
	if err != nil {
		return "", fmt.Errorf("putting gate %s: %w", g.Name, err)
	}
	hash := canon.HashOf(b)
	if err := s.disk.WriteFile(s.path(gates, hash.Hex()+".json"), append(b, '\n'), s.mode); err != nil {
		return "", fmt.Errorf("putting gate %s: %w", g.Name, err)
	}
	return hash, nil
}

// Gate reports whether a gate is held.
func (s *Spool) Gate(hash canon.Hash) bool {
	_, err := s.LoadGate(hash)
	return err == nil
}

// LoadGate returns a gate that is held; another is fs.ErrNotExist.
func (s *Spool) LoadGate(hash canon.Hash) (gate.Gate, error) {
	var g gate.Gate
	if !hash.Valid() {
		return g, fmt.Errorf("%q is no hash of a gate", hash)
	}
	if ok, err := s.load(gates, hash.Hex(), &g); err != nil {
		return g, err
	} else if !ok {
		return g, absent("no gate " + string(hash) + " in " + s.dir)
	}
	if got, err := canon.Of(g); err != nil || got != hash {
		return g, fmt.Errorf("%w: %s.json in %s hashes to %s", ErrCorrupt, hash.Hex(), s.path(gates, ""), got)
	}
	return g, nil
}

// Gates returns the hashes of all gates held.
func (s *Spool) Gates() ([]canon.Hash, error) {
	return hashes(s, gates)
}

// hashes lists a folder of objects by their hashes.
func hashes(s *Spool, folder string) ([]canon.Hash, error) {
	names, err := list(s, folder, ".json", canon.SHA256.Valid)
	var found []canon.Hash
	for _, name := range names {
		found = append(found, canon.Hash("sha256:"+name))
	}
	return found, err
}

// PutDeterminism stores a report whose environment artifact is held, and returns its
// hash. The same report again is no change.
func (s *Spool) PutDeterminism(r record.DeterminismReport) (canon.Hash, error) {
	fail := func(err error) (canon.Hash, error) {
		return "", fmt.Errorf("putting determinism report: %w", err)
	}
	if err := r.Validate(); err != nil {
		return fail(err)
	}
	environment, ok, err := s.artifact(r.EnvironmentArtifactSHA256)
	switch {
	case err != nil:
		return fail(err)
	case !ok:
		return fail(fmt.Errorf("its environment %s is not in the spool: put it first", r.EnvironmentArtifactSHA256))
	case environment.Kind != record.KindEnvironment:
		return fail(fmt.Errorf("its environment %s is %s, not %s", r.EnvironmentArtifactSHA256, environment.Kind, record.KindEnvironment))
	}
	b, err := canon.Marshal(r)
	if err != nil {
		return fail(err)
	}
	hash := canon.HashOf(b)
	if err := s.disk.WriteFile(s.path(probes, hash.Hex()+".json"), append(b, '\n'), s.mode); err != nil {
		return fail(err)
	}
	return hash, nil
}

// LoadDeterminism returns a determinism report that is held; another is
// fs.ErrNotExist.
func (s *Spool) LoadDeterminism(hash canon.Hash) (record.DeterminismReport, error) {
	var r record.DeterminismReport
	if !hash.Valid() {
		return r, fmt.Errorf("%q is no hash of a determinism report", hash)
	}
	ok := false
	if !s.attached {
		var err error
		if ok, err = s.load(probes, hash.Hex(), &r); err != nil {
			return r, err
		}
	}
	if !ok {
		return r, absent("no determinism report " + string(hash) + " in " + s.dir)
	}
	if got, err := canon.Of(r); err != nil || got != hash {
		return r, fmt.Errorf("%w: %s.json in %s hashes to %s", ErrCorrupt, hash.Hex(), s.path(probes, ""), got)
	}
	return r, nil
}

// Determinism returns the hashes of all determinism reports held.
func (s *Spool) Determinism() ([]canon.Hash, error) {
	if s.attached {
		return nil, nil
	}
	return hashes(s, probes)
}

// PutDataset stores a sealed dataset whose items artifact is held. The same
// dataset again is no change, whatever its instants; another of that id is
// [ErrExists].
func (s *Spool) PutDataset(d record.Dataset) error {
	fail := func(err error) error { return fmt.Errorf("putting dataset %s: %w", d.ID, err) }
	if err := d.Validate(); err != nil {
		return fail(err)
	}
	if d.State != record.Sealed {
		return fail(fmt.Errorf("it is %s: seal it first, a run reads only a sealed one", d.State))
	}
	items, ok, err := s.artifact(*d.SHA256)
	switch {
	case err != nil:
		return fail(err)
	case !ok:
		return fail(fmt.Errorf("its items %s are not in the spool: put them first", *d.SHA256))
	case items.Kind != record.KindDataset || items.Purpose != d.Purpose:
		return fail(fmt.Errorf("its items %s are %s of purpose %s, not %s of purpose %s", *d.SHA256, items.Kind, items.Purpose, record.KindDataset, d.Purpose))
	}
	held, ok, err := s.dataset(d.ID)
	if err != nil {
		return fail(err)
	}
	if ok {
		held.Created, held.Sealed = d.Created, d.Sealed
		same, err := equal(held, d)
		if err != nil {
			return fail(err)
		}
		if !same {
			return fail(fmt.Errorf("%w with other content; a changed dataset is a new one, with another id and this one in its parents", ErrExists))
		}
		return s.disk.SyncDir(s.path(datasets, ""))
	}
	b, err := canon.Marshal(d)
	if err != nil {
		return fail(err)
	}
	if err := s.disk.WriteFile(s.path(datasets, d.ID+".json"), append(b, '\n'), s.mode); err != nil {
		return fail(err)
	}
	return nil
}

// equal compares by canonical form.
func equal(a, b any) (bool, error) {
	x, err := canon.Marshal(a)
	if err != nil {
		return false, err
	}
	y, err := canon.Marshal(b)
	return bytes.Equal(x, y), err
}

// Dataset returns a dataset that is held. One whose file cannot be read is not;
// PutDataset says why.
func (s *Spool) Dataset(id string) (record.Dataset, bool) {
	d, ok, err := s.dataset(id)
	return d, ok && err == nil
}

func (s *Spool) dataset(id string) (d record.Dataset, ok bool, err error) {
	if !record.ValidDataset(id) {
		return d, false, nil
	}
	ok, err = s.load(datasets, id, &d)
	if err == nil && ok && d.ID != id {
		err = fmt.Errorf("%w: %s.json in %s describes %s", ErrCorrupt, id, s.path(datasets, ""), d.ID)
	}
	return d, ok, err
}

// Datasets returns the ids of all datasets held, sorted.
func (s *Spool) Datasets() ([]string, error) {
	return list(s, datasets, ".json", record.ValidDataset)
}
