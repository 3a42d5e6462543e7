package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// The files that hold a model's weights, by Hugging Face's names.
const (
	single = "model.safetensors"
	index  = "model.safetensors.index.json"
)

// OpenModel opens the weights in a model's folder: model.safetensors, or, where
// there is none, every shard that model.safetensors.index.json names. Each shard
// must be there, and the index's weight_map and the shards' own headers must
// name the same tensors in the same places.
func OpenModel(dir string) (*File, error) {
	path := filepath.Join(dir, single)
	if _, err := os.Stat(path); err == nil {
		f, err := Open(path)
		if err == nil {
			f.path = dir
		}
		return f, err
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	src, err := os.ReadFile(filepath.Join(dir, index))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noWeights(dir)
	} else if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	f := &File{path: dir, tensors: make(map[string]tensor)}
	if err := f.addShards(src); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// addShards opens what an index lists and compares the two.
func (f *File) addShards(src []byte) error {
	indexPath := filepath.Join(f.path, index)
	var idx struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(src, &idx); err != nil {
		return fmt.Errorf("safetensors: %s: %w", indexPath, err)
	}
	if len(idx.WeightMap) == 0 {
		return fmt.Errorf("safetensors: %s: weight_map names no tensor", indexPath)
	}
	shards := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(idx.WeightMap)) {
		shard := idx.WeightMap[name]
		if !filepath.IsLocal(shard) || filepath.Base(shard) != shard {
			return fmt.Errorf("safetensors: %s: tensor %q: shard %q is not the name of a file beside the index", indexPath, name, shard)
		}
		shards[shard] = true
	}
	for _, shard := range slices.Sorted(maps.Keys(shards)) {
		if err := f.add(filepath.Join(f.path, shard)); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("safetensors: %s: shard %q is missing: copy it beside the index", indexPath, shard)
			}
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(idx.WeightMap)) {
		t, ok := f.tensors[name]
		if !ok {
			return fmt.Errorf("safetensors: %s: tensor %q: not in shard %q nor in any other", indexPath, name, idx.WeightMap[name])
		}
		if got := filepath.Base(f.parts[t.part].path); got != idx.WeightMap[name] {
			return fmt.Errorf("safetensors: %s: tensor %q: weight_map says shard %q, but it is in %q", indexPath, name, idx.WeightMap[name], got)
		}
	}
	for _, name := range f.names {
		if _, ok := idx.WeightMap[name]; !ok {
			return fmt.Errorf("safetensors: %s: tensor %q: in shard %q, but not in weight_map", indexPath, name, filepath.Base(f.parts[f.tensors[name].part].path))
		}
	}
	return nil
}

// noWeights says why a folder cannot be opened, and what to do about it when its
// weights are a pickle.
func noWeights(dir string) error {
	for _, name := range []string{"pytorch_model.bin", "pytorch_model.bin.index.json", "model.bin"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("safetensors: %s holds its weights as a pickle (%s), which can run code when it is opened and is never read here; "+
				"convert it once with Python: from transformers import AutoModel; AutoModel.from_pretrained(DIR).save_pretrained(DIR)", dir, name)
		}
	}
	return fmt.Errorf("safetensors: %s: neither %s nor %s is there: %w", dir, single, index, fs.ErrNotExist)
}
