package trainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/record"
)

// note puts a member in the model's provenance.
func (f *fit) note(name string, value []byte) {
	if f.Model.Config.Provenance == nil {
		f.Model.Config.Provenance = map[string]json.RawMessage{}
	}
	f.Model.Config.Provenance[name] = value
}

// provenance says in the model what it was trained from; how its first weights
// were made stands there already and stays ("init", see kai.Init). It names no
// run and no time, so that the same stage over the same base and rows is the
// same checkpoint.
func (f *fit) provenance(environment canon.SHA256) error {
	for name, value := range map[string]any{
		"from": struct {
			Init
			Checkpoint canon.SHA256 `json:"checkpoint_sha256"`
		}{f.Stage.Init, f.Base},
		"stage":       f.Stage.Stage,
		"data":        f.Build.Hash,
		"barrier":     f.Build.BarrierHash,
		"spec":        f.config,
		"environment": environment,
	} {
		b, err := canon.Marshal(value)
		if err != nil {
			return fmt.Errorf("trainer: provenance: %s: %w", name, err)
		}
		f.note(name, b)
	}
	return f.Model.Teach(f.set.asked())
}

// checkpoint saves the model and records it. A checkpoint that is there is this
// run's, saved before it was killed: the folder appears whole or not at all, and
// the same steps give the same bytes.
func (f *fit) checkpoint() error {
	steps, err := canon.Marshal(f.state.Step)
	if err != nil {
		return err
	}
	f.note("steps", steps)
	dir := filepath.Join(f.Dir, "checkpoint")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := f.Model.Save(dir); err != nil {
			return err
		}
	}
	f.res.CheckpointDir = dir
	if f.res.Checkpoint, err = f.rec.putDir(record.KindCheckpoint, dir, f.parents()...); err != nil {
		return err
	}
	c := event.CheckpointCreated{Step: uint64(f.state.Step), Tokens: f.state.Tokens, ArtifactSHA256: f.res.Checkpoint}
	if slices.Contains(f.rec.Run().View().Checkpoints, c) {
		return nil
	}
	_, err = f.rec.Append(c)
	return err
}

// parents are what the trained weights were made from: the base and the rows.
func (f *fit) parents() []canon.SHA256 {
	parents := []canon.SHA256{f.Base}
	for _, s := range f.Build.Role(record.RoleTrain) {
		parents = append(parents, *s.Dataset.SHA256)
	}
	return parents
}
