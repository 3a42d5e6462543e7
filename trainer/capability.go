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
	"github.com/hanzoai/link/trainer/adapter"
	"github.com/hanzoai/link/trainer/safetensors"
)

// A capability is what a run taught, apart from its base (HIP-1333 §6). A
// readout's is the folder that its checkpoint holds it in. A full run's is
// delta.safetensors, the masters D of every parameter that was trained, beside
// this manifest: fl(W0 + D) over the base's weights is the checkpoint bit for bit.
// An adapter's is lora.safetensors, the factors of each target, from which D is
// computed as it was in training; hence the same bits again. [Apply] does both.
type manifest struct {
	Format      int                `json:"format"` // manifestFormat
	Name        string             `json:"name"`
	Form        string             `json:"form"` // "delta" or "lora"
	BaseModel   string             `json:"base_model"`
	BaseSHA256  string             `json:"base_sha256"` // of the base's model.safetensors
	Adaptation  Adaptation         `json:"adaptation"`
	Protect     Protect            `json:"protect"`
	Evaluation  []suiteMeasures    `json:"evaluation"`
	Temperature map[string]float64 `json:"temperature"` // by bucket, of the trained model
	Protection  *Protection        `json:"protection"`
}

// manifestFormat is the capability.json that this package writes and reads.
const manifestFormat = 1

type suiteMeasures struct {
	Suite         string         `json:"suite"`
	DatasetSHA256 canon.SHA256   `json:"dataset_sha256"`
	Base          []gate.Measure `json:"base"`
	Trained       []gate.Measure `json:"trained"`
}

// The forms of a capability, and the files that hold its tensors.
const (
	formDelta, deltaFile = "delta", "delta.safetensors"
	formLoRA, loraFile   = "lora", "lora.safetensors"
)

// capability stores the run's output where that is more than the checkpoint.
func (f *fit) capability() error {
	kind, name := record.KindCapability, "capability"
	var write func(dir string) error
	switch {
	case f.Stage.Output.Kind == Checkpoint:
		return nil
	case f.Stage.Mode() == Readout:
		dir := filepath.Join(f.res.CheckpointDir, "readouts", f.Stage.Output.Name)
		var err error
		f.res.Capability, err = f.rec.putDir(kind, dir, f.parents()...)
		return err
	case f.Stage.Output.Kind == LoRA:
		kind, name, write = record.KindLora, "lora", f.writeLoRA
	default:
		write = f.writeCapability
	}
	dir := filepath.Join(f.Dir, name)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := write(dir); err != nil {
			return fmt.Errorf("trainer: writing the %s: %w", name, err)
		}
	}
	var err error
	f.res.Capability, err = f.rec.putDir(kind, dir, f.parents()...)
	return err
}

// factors are the adapter's, as they are written.
func (f *fit) factors() []adapter.Factors {
	var list []adapter.Factors
	for _, a := range f.opt.adapters {
		list = append(list, a.Factors())
	}
	return list
}

// writeLoRA writes the adapter alone, in PEFT's files.
func (f *fit) writeLoRA(dir string) error {
	a := f.Stage.Adaptation
	return adapter.Write(dir, adapter.PEFTConfig{Base: f.Stage.Init.Dir, BaseSHA256: f.weights, Rank: a.Rank, Alpha: a.Alpha}, f.factors())
}

// writeCapability writes the folder dir, whole or not at all.
func (f *fit) writeCapability(dir string) error {
	m := manifest{
		Format: manifestFormat, Name: f.Stage.Output.Name, Form: formDelta,
		BaseModel: f.Stage.BaseModel, BaseSHA256: f.weights,
		Adaptation: f.Stage.Adaptation, Protect: f.Stage.Protect,
		Temperature: f.Model.Config.Temperature, Protection: f.res.Protection,
	}
	var tensors []safetensors.Tensor
	file := deltaFile
	if f.Stage.Mode() == LoRA {
		m.Form, file = formLoRA, loraFile
		for _, t := range f.factors() {
			tensors = append(tensors,
				safetensors.Tensor{Name: t.Name + ".lora_A", Shape: []int{t.Rank, t.In}, Data: t.A},
				safetensors.Tensor{Name: t.Name + ".lora_B", Shape: []int{t.Out, t.Rank}, Data: t.B})
		}
	} else {
		for _, p := range f.opt.masters {
			tensors = append(tensors, safetensors.Tensor{Name: p.Name, Shape: p.Shape, Data: hostValues(f.Device, p.d)})
		}
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
	if err := safetensors.Write(filepath.Join(tmp, file), tensors, nil); err != nil {
		return err
	}
	return durable.RenameDir(tmp, dir)
}
