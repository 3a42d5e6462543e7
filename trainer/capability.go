package trainer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/safetensors"
)

// A capability is what a run taught, apart from its base (HIP-1333 §6). A
// readout's is the folder that its checkpoint holds it in. A full run's is
// delta.safetensors, the masters D of every parameter that was trained, beside
// this manifest: fl(W0 + D) over the base's weights is the checkpoint bit for bit.
type manifest struct {
	Format      int                `json:"format"`
	Name        string             `json:"name"`
	Form        string             `json:"form"` // "delta"
	BaseModel   string             `json:"base_model"`
	BaseSHA256  string             `json:"base_sha256"` // of the base's model.safetensors
	Adaptation  Adaptation         `json:"adaptation"`
	Protect     Protect            `json:"protect"`
	Evaluation  []suiteMeasures    `json:"evaluation"`
	Temperature map[string]float64 `json:"temperature"` // by bucket, of the trained model
}

type suiteMeasures struct {
	Suite         string         `json:"suite"`
	DatasetSHA256 canon.SHA256   `json:"dataset_sha256"`
	Base          []gate.Measure `json:"base"`
	Trained       []gate.Measure `json:"trained"`
}

// capability stores the capability where the stage's output is one.
func (f *fit) capability() error {
	if f.Stage.Output.Kind != Capability {
		return nil
	}
	dir := filepath.Join(f.res.CheckpointDir, "readouts", f.Stage.Output.Name)
	if f.Stage.Mode() == Full {
		dir = filepath.Join(f.Dir, "capability")
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			if err := f.writeCapability(dir); err != nil {
				return fmt.Errorf("trainer: writing the capability: %w", err)
			}
		}
	}
	var err error
	f.res.Capability, err = f.rec.putDir(record.KindCapability, dir, f.parents()...)
	return err
}

// writeCapability writes the folder dir, whole or not at all.
func (f *fit) writeCapability(dir string) error {
	m := manifest{
		Format: 1, Name: f.Stage.Output.Name, Form: "delta",
		BaseModel: f.Stage.BaseModel, BaseSHA256: f.weights,
		Adaptation: f.Stage.Adaptation, Protect: f.Stage.Protect,
		Temperature: f.Model.Config.Temperature,
	}
	for _, s := range f.res.Evaluations {
		m.Evaluation = append(m.Evaluation, suiteMeasures{s.Suite, *s.Dataset.SHA256, s.Before, s.Measures})
	}
	b, err := canon.Marshal(m)
	if err != nil {
		return err
	}
	tmp := filepath.Join(f.Dir, ".capability")
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := durable.MkdirAll(tmp, 0o777); err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := durable.WriteFile(filepath.Join(tmp, "capability.json"), b, 0o666); err != nil {
		return err
	}
	var deltas []safetensors.Tensor
	for _, p := range f.opt.masters {
		deltas = append(deltas, safetensors.Tensor{Name: p.Name, Shape: p.Shape, Data: hostValues(f.Device, p.d)})
	}
	if err := safetensors.Write(filepath.Join(tmp, "delta.safetensors"), deltas, nil); err != nil {
		return err
	}
	return durable.RenameDir(tmp, dir)
}
