package kai

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/trainer/safetensors"
	"github.com/hanzoai/link/trainer/tokenizer"
)

// The files of a checkpoint.
const (
	configFile   = "kai.json"
	weightsFile  = "model.safetensors"
	tokenizerDir = "tokenizer"
	readoutsDir  = "readouts"
)

// Load reads a checkpoint: kai.json, model.safetensors, tokenizer/ and
// readouts/*. A missing, unexpected or misshapen tensor is an error naming it.
func Load(dir string, dev kernels.Device) (*Model, error) {
	m, err := load(dir, dev)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", dir, err)
	}
	return m, nil
}

func load(dir string, dev kernels.Device) (*Model, error) {
	src, err := os.ReadFile(filepath.Join(dir, configFile))
	if err != nil {
		return nil, err
	}
	c, err := parseConfig(src)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	tok, err := tokenizer.Load(filepath.Join(dir, tokenizerDir))
	if err != nil {
		return nil, err
	}
	m, err := build(c, tok, dev)
	if err != nil {
		return nil, err
	}
	f, err := safetensors.OpenModel(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := m.params.load(dev, f, m.params.list, same(f)); err != nil {
		return nil, err
	}
	if m.SHA256, err = sumWeights(dir); err != nil {
		return nil, err
	}
	return m, m.loadReadouts(filepath.Join(dir, readoutsDir))
}

// same names every tensor of a file as itself.
func same(f *safetensors.File) map[string]string {
	names := make(map[string]string)
	for _, name := range f.Names() {
		names[name] = name
	}
	return names
}

// load allocates all parameters and fills those of the list, each from the
// tensor that names gives it. The two must name each other exactly.
func (ps *params) load(dev kernels.Device, f *safetensors.File, list []*Param, names map[string]string) error {
	if err := match(list, f, names); err != nil {
		return err
	}
	ps.alloc(dev)
	for _, p := range list {
		values, err := f.ReadFloat32(names[p.Name])
		if err != nil {
			return err
		}
		for i, v := range values {
			if v-v != 0 {
				return fmt.Errorf("tensor %q: value %d is %v", names[p.Name], i, v)
			}
		}
		dev.Write(p.W, values)
	}
	return nil
}

// match compares the names and shapes of parameters with those of tensors.
func match(list []*Param, f *safetensors.File, names map[string]string) error {
	var missing []string
	known := make(map[string]bool)
	for _, p := range list {
		known[p.Name] = true
		if _, ok := names[p.Name]; !ok {
			missing = append(missing, p.Name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the weights lack %s", listed(missing))
	}
	var unexpected []string
	for name, from := range names {
		if !known[name] {
			unexpected = append(unexpected, from)
		}
	}
	if slices.Sort(unexpected); len(unexpected) > 0 {
		return fmt.Errorf("the weights have what this model does not: %s", listed(unexpected))
	}
	for _, p := range list {
		if info, _ := f.Info(names[p.Name]); !slices.Equal(info.Shape, p.Shape) {
			return fmt.Errorf("tensor %q has shape %v; the config asks for %v", names[p.Name], info.Shape, p.Shape)
		}
	}
	return nil
}

// listed is at most five names and how many more there are.
func listed(names []string) string {
	s := strings.Join(names[:min(5, len(names))], ", ")
	if len(names) > 5 {
		s += fmt.Sprintf(" and %d more", len(names)-5)
	}
	return s
}

// sumWeights is the address of a folder's weights: of model.safetensors, or of
// its shards end to end in the order of their names.
func sumWeights(dir string) (string, error) {
	files := []string{filepath.Join(dir, weightsFile)}
	if _, err := os.Stat(files[0]); err != nil {
		if files, err = filepath.Glob(filepath.Join(dir, "*.safetensors")); err != nil {
			return "", err
		}
	}
	h := sha256.New()
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return "", err
		}
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Save writes a checkpoint as a new folder dir, with its readouts. The folder
// appears complete and durable, or not at all; it is an error if it exists and
// is not empty. Equal models are equal bytes. It sets m.SHA256.
func (m *Model) Save(dir string) error {
	if err := m.save(filepath.Clean(dir)); err != nil {
		return fmt.Errorf("saving checkpoint %s: %w", dir, err)
	}
	return nil
}

func (m *Model) save(dir string) error {
	if list, err := os.ReadDir(dir); err == nil && len(list) > 0 {
		return fmt.Errorf("the folder is there already and is not empty")
	}
	for _, r := range m.Readouts() {
		if r.version != m.version {
			return fmt.Errorf("readout %s was trained over the weights as they were before the last step", r.Name)
		}
	}
	tmp := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".partial")
	if err := os.RemoveAll(tmp); err != nil { // of a save that was cut short
		return err
	}
	defer os.RemoveAll(tmp) // nothing is there after the rename
	if err := durable.MkdirAll(filepath.Join(tmp, tokenizerDir), 0o755); err != nil {
		return err
	}
	sum, err := m.params.write(m.dev, filepath.Join(tmp, weightsFile))
	if err != nil {
		return err
	}
	src, err := m.Config.json()
	if err != nil {
		return fmt.Errorf("%s: %w", configFile, err)
	}
	if err := durable.WriteFile(filepath.Join(tmp, configFile), src, 0o644); err != nil {
		return err
	}
	files := m.tokenizer.Files()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := durable.WriteFile(filepath.Join(tmp, tokenizerDir, name), files[name], 0o644); err != nil {
			return err
		}
	}
	for _, r := range m.Readouts() {
		if err := r.save(filepath.Join(tmp, readoutsDir, r.Name), sum); err != nil {
			return err
		}
	}
	if err := durable.RenameDir(tmp, dir); err != nil {
		return err
	}
	m.SHA256 = sum
	for _, r := range m.readouts {
		r.Base = sum
	}
	return nil
}

// write writes every parameter to a safetensors file and returns the file's
// address.
func (ps *params) write(dev kernels.Device, path string) (string, error) {
	tensors := make([]safetensors.Tensor, len(ps.list))
	for i, p := range ps.list {
		tensors[i] = safetensors.Tensor{Name: p.Name, Shape: p.Shape, Data: hostValues(dev, p.W)}
	}
	f, err := durable.Create(path)
	if err != nil {
		return "", err
	}
	defer f.Abort()
	h := sha256.New()
	if err := safetensors.Encode(io.MultiWriter(f, h), tensors, nil); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), f.Commit()
}

// hostValues is m in host memory: itself where it is there already.
func hostValues(dev kernels.Device, m kernels.Mem) []float32 {
	if m.Host != nil {
		return m.Host
	}
	v := make([]float32, m.Len)
	dev.Read(v, m)
	return v
}
