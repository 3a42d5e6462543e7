package trainer

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/adapter"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/project"
	"github.com/hanzoai/link/trainer/safetensors"
)

// ErrOtherBase is a capability or adapter that was made for another base.
var ErrOtherBase = errors.New("it was made for another base")

// Apply makes of the base m, as loaded, the model that the folder dir teaches: a
// capability of a full or an adapter's run, or an adapter in PEFT's files. Over
// the base that it was trained from a capability gives the run's checkpoint, bit
// for bit, and its temperatures. It fails, changing nothing, with ErrOtherBase or
// an error that names the tensor that does not fit.
func Apply(m *kai.Model, dir string) error {
	if err := apply(m, dir); err != nil {
		return fmt.Errorf("trainer: applying %s: %w", dir, err)
	}
	return nil
}

// Applies fails as Apply would, and changes nothing.
func Applies(m *kai.Model, dir string) error {
	if _, _, err := readChange(m, dir); err != nil {
		return fmt.Errorf("trainer: applying %s: %w", dir, err)
	}
	return nil
}

func apply(m *kai.Model, dir string) error {
	c, man, err := readChange(m, dir)
	if err != nil {
		return err
	}
	dev := m.Device()
	for _, p := range m.Params() {
		if d, ok := c[p.Name]; ok {
			dev.Add(p.W, p.W, d)
		}
	}
	if man != nil {
		for bucket, t := range man.Temperature {
			if m.Config.Temperature == nil {
				m.Config.Temperature = map[string]float64{}
			}
			m.Config.Temperature[bucket] = t
		}
	}
	m.Changed()
	return nil
}

// Fits checks what a stage asks of the base m and of the store, before anything is
// made: that an adapter has its targets and its rank, and that the capabilities to
// protect are held and were made for m.
func (s Stage) Fits(m *kai.Model, store Store) error {
	if s.Mode() == LoRA && s.From == "" {
		if _, err := s.targets(m); err != nil {
			return err
		}
	}
	for _, c := range s.Protect.Capabilities {
		if _, err := heldChange(m, store, canon.SHA256(c)); err != nil {
			return err
		}
	}
	return nil
}

// targets are the parameters that the stage's adapter writes.
func (s Stage) targets(m *kai.Model) ([]*kai.Param, error) {
	a := s.Adaptation
	targets, err := adapter.Targets(m.Linears(), a.Targets)
	if err != nil {
		return nil, fmt.Errorf("trainer: adaptation.targets: %w", err)
	}
	for _, p := range targets {
		if err := s.adapter().Check(p.Shape[1], p.Shape[0], p.Name); err != nil {
			return nil, fmt.Errorf("trainer: adaptation.%w", err)
		}
	}
	return targets, nil
}

// adapter is the adaptation as package adapter takes it.
func (s Stage) adapter() adapter.Config {
	return adapter.Config{Rank: s.Adaptation.Rank, Alpha: s.Adaptation.Alpha, Targets: s.Adaptation.Targets}
}

// heldChange reads what a capability in the store adds to the parameters of m.
func heldChange(m *kai.Model, store Store, address canon.SHA256) (c map[string]kernels.Mem, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("trainer: protect.capabilities: %s: %w", address, err)
		}
	}()
	dir, err := os.MkdirTemp("", "capability-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := Unpack(store, address, dir); err != nil {
		return nil, err
	}
	c, _, err = readChange(m, dir)
	if errors.Is(err, ErrOtherBase) {
		err = fmt.Errorf("%w: a capability is protected over the base that it was trained from; over what was trained with it, protect the suites it was taught", err)
	}
	return c, err
}

// readChange reads what dir adds to the parameters of m, by name, and a
// capability's manifest.
func readChange(m *kai.Model, dir string) (map[string]kernels.Mem, *manifest, error) {
	if _, err := os.Stat(filepath.Join(dir, "kai.json")); err == nil {
		return nil, nil, errors.New("it is a checkpoint: a capability or an adapter is what adds to a base")
	}
	raw, err := os.ReadFile(filepath.Join(dir, "capability.json"))
	if errors.Is(err, fs.ErrNotExist) {
		c, err := adapter.ReadConfig(dir)
		if err != nil {
			return nil, nil, err
		}
		if c.BaseSHA256 != "" && c.BaseSHA256 != m.SHA256 { // PEFT's own files name no weights
			return nil, nil, fmt.Errorf("%w: its base's weights are %.12s…, these are %.12s…", ErrOtherBase, c.BaseSHA256, m.SHA256)
		}
		list, err := adapter.Read(dir, m.Linears())
		if err != nil {
			return nil, nil, err
		}
		return products(m.Device(), list), nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	man, err := parseManifest(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("capability.json: %w", err)
	}
	if man.BaseSHA256 != m.SHA256 {
		return nil, nil, fmt.Errorf("%w: its base's weights are %.12s…, these are %.12s…", ErrOtherBase, man.BaseSHA256, m.SHA256)
	}
	if man.Form == formDelta {
		c, err := readDelta(m, filepath.Join(dir, deltaFile))
		return c, man, err
	}
	list, err := readFactors(m, filepath.Join(dir, loraFile), man.Adaptation)
	return products(m.Device(), list), man, err
}

// parseManifest reads a capability.json whose tensors change weights, and holds it
// to what Apply relies on.
func parseManifest(raw []byte) (*manifest, error) {
	var kind struct {
		Form   string
		Format int
	}
	if err := json.Unmarshal(raw, &kind); err != nil {
		return nil, err
	}
	switch {
	case kind.Form != formDelta && kind.Form != formLoRA: // a readout's has other fields too
		return nil, fmt.Errorf("a capability of form %q is not applied to weights: delta and lora are", kind.Form)
	case kind.Format != manifestFormat:
		return nil, fmt.Errorf("format %d is not what this program reads, which is %d", kind.Format, manifestFormat)
	}
	var man manifest
	if err := canon.Unmarshal(raw, &man); err != nil {
		return nil, err
	}
	for _, bucket := range slices.Sorted(maps.Keys(man.Temperature)) {
		if t := man.Temperature[bucket]; !(t > 0) {
			return nil, fmt.Errorf("temperature of %s is %v; want a positive number", bucket, t)
		}
	}
	return &man, nil
}

// products are the changes that factors write, by parameter.
func products(dev kernels.Device, list []adapter.Factors) map[string]kernels.Mem {
	c := map[string]kernels.Mem{}
	for _, f := range list {
		c[f.Name] = f.Delta(dev)
	}
	return c
}

func readDelta(m *kai.Model, name string) (map[string]kernels.Mem, error) {
	f, err := safetensors.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c := map[string]kernels.Mem{}
	for _, name := range f.Names() {
		p, err := paramOf(m, name)
		if err != nil {
			return nil, err
		}
		if c[name], err = readTensor(m.Device(), f, name, p.Shape); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func readFactors(m *kai.Model, name string, a Adaptation) ([]adapter.Factors, error) {
	f, err := safetensors.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []adapter.Factors
	for _, name := range f.Names() {
		target, ok := strings.CutSuffix(name, ".lora_A")
		if !ok {
			continue
		}
		p, err := paramOf(m, target)
		if err != nil {
			return nil, err
		}
		info, _ := f.Info(name)
		if len(info.Shape) != 2 || len(p.Shape) != 2 {
			return nil, fmt.Errorf("tensor %s is no factor of a matrix", name)
		}
		t := adapter.Factors{Name: target, Out: p.Shape[0], In: p.Shape[1], Rank: info.Shape[0], Scale: a.Alpha / float64(a.Rank)}
		if t.A, err = readValues(f, name, []int{t.Rank, t.In}); err != nil {
			return nil, err
		}
		if t.B, err = readValues(f, target+".lora_B", []int{t.Out, t.Rank}); err != nil {
			return nil, err
		}
		if err := t.Check(); err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, nil
}

// paramOf is the parameter of a name.
func paramOf(m *kai.Model, name string) (*kai.Param, error) {
	i := slices.IndexFunc(m.Params(), func(p *kai.Param) bool { return p.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("%w: it has no parameter %s", ErrOtherBase, name)
	}
	return m.Params()[i], nil
}

func readTensor(dev kernels.Device, f *safetensors.File, name string, shape []int) (kernels.Mem, error) {
	v, err := readValues(f, name, shape)
	if err != nil {
		return kernels.Mem{}, err
	}
	mem := dev.Alloc(len(v))
	dev.Write(mem, v)
	return mem, nil
}

func readValues(f *safetensors.File, name string, shape []int) ([]float32, error) {
	info, ok := f.Info(name)
	if !ok || !slices.Equal(info.Shape, shape) {
		return nil, fmt.Errorf("tensor %s is missing or has another shape than %v", name, shape)
	}
	v, err := f.ReadFloat32(name)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(v, func(x float32) bool { return x-x != 0 }); i >= 0 {
		return nil, fmt.Errorf("tensor %s: value %d is %v", name, i, v[i])
	}
	return v, nil
}

// addCapability lets a capability's own directions join the protected ones: of
// each layer that it changes, the input side of the change.
func (f *fit) addCapability(b *project.Builder, k *keeper, address canon.SHA256) error {
	c, err := heldChange(f.Model, f.rec, address)
	if err != nil {
		return err
	}
	dev := f.Device
	for i, l := range k.linears {
		g, at, any := dev.Alloc(l.Out*l.In), 0, false
		for _, p := range l.Params {
			if d, ok := c[p.Name]; ok {
				dev.Copy(g.Slice(at, at+d.Len), d)
				any = true
			}
			at += p.Shape[0] * p.Shape[1]
		}
		if any {
			b.Matrix(i, g)
		}
	}
	return b.Suite("capability:" + string(address))
}

// Unpack writes the files of a stored folder below dir, which exists.
func Unpack(s Store, address canon.SHA256, dir string) error {
	r, err := s.OpenArtifact(address)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("this spool holds no artifact %s", address)
	}
	if err != nil {
		return err
	}
	defer r.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("artifact %s is not a folder: %w", address, err)
		}
		if h.Typeflag != tar.TypeReg || !filepath.IsLocal(h.Name) {
			return fmt.Errorf("artifact %s holds %q, which is not a plain file", address, h.Name)
		}
		if parent := filepath.Dir(h.Name); parent != "." {
			if err := root.MkdirAll(parent, 0o777); err != nil {
				return err
			}
		}
		w, err := root.Create(h.Name)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, t)
		if err := errors.Join(err, w.Close()); err != nil {
			return err
		}
	}
}
