package trainer

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/trainer/safetensors"
)

// The training state is a folder state/<step>/ of two files, written whole and
// renamed into place before any older one is removed:
//
//	state.json            what the step depends on, and the tensors' address
//	tensors.safetensors   d/, m/ and v/<parameter>: the change and its moments
//
// So after a crash or a full disk at any write the newest folder whose name is a
// number is a whole state. A folder under another name is one in the making.

// stateFormat is the newest state.json that this package reads and the one it
// writes.
const stateFormat = 2

// state is where a run stands after Step steps. The hashes are those a resumed
// run must have too, or its steps would be other ones.
type state struct {
	Format  int          `json:"format"`
	Step    int          `json:"step"`
	Tokens  uint64       `json:"tokens"`
	Config  canon.SHA256 `json:"config_sha256"`
	Plan    canon.SHA256 `json:"plan_sha256"`
	Base    canon.SHA256 `json:"base_sha256"`
	Tensors canon.SHA256 `json:"tensors_sha256"`
	// Subspace is the address of the protected subspace, "" for none.
	Subspace string   `json:"subspace_sha256"`
	Cuts     int      `json:"cuts"`    // how often the drift's bound halved the learning rate
	Drift    float64  `json:"drift"`   // at the last look
	Removed  *removal `json:"removed"` // null where nothing is projected
	Best     *best    `json:"best"`    // a readout's; null in full
}

// best is a readout's early stopping: the best epoch on the select rows so far.
type best struct {
	Epoch int     `json:"epoch"` // counted from 1; 0: none yet
	NLL   float64 `json:"nll"`
	Since int     `json:"since"` // epochs since it
}

// patient reports that patience epochs, where it is not 0, have brought nothing.
func (b *best) patient(patience int) bool {
	return b != nil && patience > 0 && b.Since >= patience
}

// tensor is one run of values of a state.
type tensor struct {
	name  string
	shape []int
	mem   kernels.Mem
}

// saveState writes s and values as dir/<s.Step>, then removes older states. A
// failure to remove one is not an error: the newest counts.
func saveState(disk durable.Disk, dev kernels.Device, dir string, s state, values []tensor) error {
	name := strconv.Itoa(s.Step)
	tmp := filepath.Join(dir, ".new")
	if err := os.RemoveAll(tmp); err != nil {
		return fmt.Errorf("trainer: clearing an unfinished state: %w", err)
	}
	if err := disk.MkdirAll(tmp, 0o777); err != nil {
		return fmt.Errorf("trainer: saving the state of step %d: %w", s.Step, err)
	}
	err := writeState(disk, dev, tmp, s, values)
	if err == nil {
		err = replaceDir(disk, tmp, filepath.Join(dir, name))
	}
	if err != nil {
		os.RemoveAll(tmp)
		return fmt.Errorf("trainer: saving the state of step %d: %w (the previous state is kept)", s.Step, err)
	}
	steps, err := savedSteps(dir)
	if err != nil {
		return err
	}
	for _, step := range steps[:len(steps)-1] {
		os.RemoveAll(filepath.Join(dir, strconv.Itoa(step)))
	}
	return nil
}

// replaceDir renames tmp to dst. A dst that exists is the same state, saved
// before: a resumed run repeats a step.
func replaceDir(disk durable.Disk, tmp, dst string) error {
	if _, err := os.Stat(dst); err == nil {
		return os.RemoveAll(tmp)
	}
	return disk.RenameDir(tmp, dst)
}

func writeState(disk durable.Disk, dev kernels.Device, dir string, s state, values []tensor) error {
	f, err := disk.Create(filepath.Join(dir, "tensors.safetensors"))
	if err != nil {
		return err
	}
	defer f.Abort()
	hash := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(f, hash), 1<<20)
	list := make([]safetensors.Tensor, len(values))
	for i, v := range values {
		list[i] = safetensors.Tensor{Name: v.name, Shape: v.shape, Data: hostValues(dev, v.mem)}
	}
	if err := safetensors.Encode(out, list, nil); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if err := f.Commit(); err != nil {
		return err
	}
	s.Format, s.Tensors = stateFormat, canon.SHA256(hex.EncodeToString(hash.Sum(nil)))
	b, err := canon.Marshal(s)
	if err != nil {
		return err
	}
	return disk.WriteFile(filepath.Join(dir, "state.json"), b, 0o666)
}

// hostValues are m's values; on a device of host memory, m itself.
func hostValues(dev kernels.Device, m kernels.Mem) []float32 {
	if m.Host != nil {
		return m.Host
	}
	v := make([]float32, m.Len)
	dev.Read(v, m)
	return v
}

// savedSteps lists the steps whose states are in dir, ascending.
func savedSteps(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("trainer: %w", err)
	}
	var steps []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && e.IsDir() && strconv.Itoa(n) == e.Name() && n >= 0 {
			steps = append(steps, n)
		}
	}
	slices.Sort(steps)
	return steps, nil
}

// loadState reads the newest state in dir into values, which name what to read.
// found is false when there is none. want's hashes must be the state's.
func loadState(dev kernels.Device, dir string, want state, values []tensor) (s state, found bool, err error) {
	steps, err := savedSteps(dir)
	if err != nil || len(steps) == 0 {
		return state{}, false, err
	}
	dir = filepath.Join(dir, strconv.Itoa(steps[len(steps)-1]))
	defer func() {
		if err != nil {
			err = fmt.Errorf("trainer: resuming from %s: %w", dir, err)
		}
	}()
	b, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil {
		return state{}, false, err
	}
	if err := canon.Unmarshal(b, &s); err != nil {
		return state{}, false, fmt.Errorf("state.json: %w", err)
	}
	if s.Format != stateFormat {
		return state{}, false, fmt.Errorf("state.json has format %d, this build reads %d", s.Format, stateFormat)
	}
	for _, c := range []struct {
		what      string
		have, now canon.SHA256
	}{{"stage", s.Config, want.Config}, {"base", s.Base, want.Base}, {"data or plan", s.Plan, want.Plan}} {
		if c.have != c.now {
			return state{}, false, fmt.Errorf("the %s is another one: the state has %s, this run %s; start a new run", c.what, c.have, c.now)
		}
	}
	if s.Subspace != want.Subspace {
		return state{}, false, fmt.Errorf("%w: the state was trained off the subspace %s, and this run's is %s: start a new run", ErrProjection, s.Subspace, want.Subspace)
	}
	return s, true, readTensors(dev, filepath.Join(dir, "tensors.safetensors"), s.Tensors, values)
}

// readTensors reads the file, whose address is sum, into values.
func readTensors(dev kernels.Device, name string, sum canon.SHA256, values []tensor) error {
	raw, err := os.Open(name)
	if err != nil {
		return err
	}
	hash := sha256.New()
	_, err = io.Copy(hash, raw)
	raw.Close()
	if err != nil {
		return err
	}
	if have := hex.EncodeToString(hash.Sum(nil)); have != string(sum) {
		return fmt.Errorf("tensors.safetensors hashes to %s, state.json has %s: the file is damaged", have, sum)
	}
	f, err := safetensors.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if len(f.Names()) != len(values) {
		return fmt.Errorf("%d tensors, want %d", len(f.Names()), len(values))
	}
	for _, v := range values {
		info, ok := f.Info(v.name)
		if !ok || !slices.Equal(info.Shape, v.shape) {
			return fmt.Errorf("tensor %s is missing or has another shape", v.name)
		}
		host := make([]float32, v.mem.Len)
		if err := f.Float32(v.name, host); err != nil {
			return err
		}
		dev.Write(v.mem, host)
	}
	return nil
}
