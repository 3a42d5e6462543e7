package adapter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/nearest"
	"github.com/hanzoai/link/trainer/safetensors"
)

// Read reads the adapter in the folder dir, ours or one that PEFT made, as
// factors of the linears' parameters, sorted by name. It runs rank_pattern,
// alpha_pattern and use_rslora, and refuses by its name what it does not:
//
//   - another peft_type than LORA, and every field of the config that would change
//     what the adapter computes: bias, modules_to_save, use_dora,
//     target_parameters and the like, or one that it does not know;
//   - an init_lora_weights that put a part of the base into the factors (pissa,
//     olora, corda, loftq): the base that they fit is not the published one;
//   - a module that the model does not have, unless its B is 0 and so it changes
//     nothing (PEFT adapts BERT's pooler, which nothing here reads);
//   - a shape that is not the module's, or a module that target_modules names and
//     the file lacks: the adapter was made for another base;
//   - a pickle (adapter_model.bin), and values that are not finite.
//
// A shape is all that PEFT's files say of the base; see ReadConfig.
func Read(dir string, linears []kai.Linear) ([]Factors, error) {
	list, err := read(dir, linears)
	if err != nil {
		return nil, fmt.Errorf("adapter %s: %w", dir, err)
	}
	return list, nil
}

// ReadConfig reads what the adapter in dir says of itself and of its base.
func ReadConfig(dir string) (PEFTConfig, error) {
	c, err := readConfig(dir)
	if err != nil {
		return PEFTConfig{}, fmt.Errorf("adapter %s: %w", dir, err)
	}
	f, err := safetensors.Open(filepath.Join(dir, weightsFile))
	if err != nil {
		return PEFTConfig{}, fmt.Errorf("adapter %s: %w", dir, err)
	}
	defer f.Close()
	return PEFTConfig{Base: c.base, Rank: c.rank, Alpha: c.alpha, BaseSHA256: f.Metadata()[baseKey]}, nil
}

func read(dir string, linears []kai.Linear) ([]Factors, error) {
	c, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	var all []*kai.Param
	for _, l := range linears {
		all = append(all, l.Params...)
	}
	list, err := c.factors(filepath.Join(dir, weightsFile), peftPrefix, all)
	if err != nil {
		return nil, err
	}
	if err := c.whole(list, all); err != nil {
		return nil, err
	}
	head := filepath.Join(dir, headFile)
	if _, err := os.Stat(head); err == nil {
		more, err := c.factors(head, headPrefix, all)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	slices.SortFunc(list, func(a, b Factors) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// config is what a trained adapter's config decides.
type config struct {
	base     string
	rank     int
	alpha    float64
	ranks    map[string]int     // rank_pattern
	alphas   map[string]float64 // alpha_pattern
	rooted   bool               // use_rslora: alpha/√rank (arXiv 2312.03732)
	targets  []string           // nil where it names none one by one
	patterns map[string]*regexp.Regexp
}

// idle are fields of PEFT's LoraConfig that change nothing of what a trained
// adapter computes: how it was made, where it is placed, what it is called.
// Source: peft 0.21, peft/tuners/lora/config.py.
var idle = []string{
	"arrow_config", "auto_mapping", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules",
	"inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config",
	"megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
}

// harmless are the init_lora_weights that leave the base's weights alone.
var harmless = []string{"true", "false", `"gaussian"`, `"eva"`, `"orthogonal"`}

// readConfig reads the config of a folder that has weights to go with it, or may
// have: those of a pickle are refused here.
func readConfig(dir string) (config, error) {
	src, err := os.ReadFile(filepath.Join(dir, configFile))
	if errors.Is(err, fs.ErrNotExist) {
		return config{}, fmt.Errorf("it is no adapter: it has no %s", configFile)
	}
	if err != nil {
		return config{}, err
	}
	c, err := parseConfig(src)
	if err != nil {
		return config{}, fmt.Errorf("%s: %w", configFile, err)
	}
	if _, err := os.Stat(filepath.Join(dir, weightsFile)); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(dir, "adapter_model.bin")); err == nil {
			return config{}, errors.New("adapter_model.bin is a pickle, which is never opened: save the adapter again with safe_serialization")
		}
	}
	return c, nil
}

func parseConfig(src []byte) (config, error) {
	src, err := canon.Canonicalize(src) // refuses duplicate members and what is not JSON
	if err != nil {
		return config{}, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(src, &fields); err != nil || fields == nil {
		return config{}, errors.New("not a JSON object")
	}
	var c config
	kind, bias, targets, base := "", "none", json.RawMessage("null"), new(string)
	for _, f := range []struct {
		name     string
		to       any
		required bool
	}{
		{"peft_type", &kind, true},
		{"r", &c.rank, true},
		{"lora_alpha", &c.alpha, true},
		{"rank_pattern", &c.ranks, false},
		{"alpha_pattern", &c.alphas, false},
		{"use_rslora", &c.rooted, false},
		{"target_modules", &targets, false},
		{"bias", &bias, false},
		{"base_model_name_or_path", &base, false},
	} {
		raw, ok := fields[f.name]
		if !ok && f.required {
			return config{}, fmt.Errorf("%s is missing", f.name)
		}
		if ok {
			if err := json.Unmarshal(raw, f.to); err != nil {
				return config{}, fmt.Errorf("%s: %w", f.name, err)
			}
			delete(fields, f.name)
		}
	}
	if base != nil {
		c.base = *base
	}
	if kind != "LORA" {
		return config{}, fmt.Errorf("peft_type is %q, which is not run here: LORA is", kind)
	}
	if bias != "none" {
		return config{}, fmt.Errorf("bias is %q, which is not run here: none is", bias)
	}
	if init, ok := fields["init_lora_weights"]; ok && !slices.Contains(harmless, string(init)) {
		return config{}, fmt.Errorf("init_lora_weights is %s, which takes a part of the base into the factors: it fits another base than the published one", init)
	}
	delete(fields, "init_lora_weights")
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if v := string(fields[name]); !slices.Contains(idle, name) && !slices.Contains([]string{"null", "false", "[]", "{}"}, v) {
			return config{}, fmt.Errorf("%s is %.60s, which is not run here", name, v)
		}
	}
	// A string is a regular expression or "all-linear", and layers may be picked or
	// left out: then what was adapted is what the file holds.
	given := func(name string) bool { v, ok := fields[name]; return ok && string(v) != "null" }
	if json.Unmarshal(targets, &c.targets) != nil || given("exclude_modules") || given("layers_to_transform") {
		c.targets = nil
	}
	c.patterns = make(map[string]*regexp.Regexp)
	for _, key := range slices.Concat(slices.Collect(maps.Keys(c.ranks)), slices.Collect(maps.Keys(c.alphas))) {
		if c.patterns[key], err = regexp.Compile(`^(.*\.)?(` + key + `)$`); err != nil {
			return config{}, fmt.Errorf("rank_pattern or alpha_pattern: %w", err)
		}
	}
	return c, nil
}

// pattern is the value that a module's name has in one of the two patterns, and
// otherwise the usual one. PEFT takes the first key that matches, in an order that
// JSON does not promise: keys that match one module must agree.
func pattern[T int | float64](c config, field string, values map[string]T, usual T, module string) (T, error) {
	v, by := usual, ""
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if !c.patterns[key].MatchString(module) {
			continue
		}
		if by != "" && values[key] != v {
			return v, fmt.Errorf("%s: %q and %q are both %s and do not agree", field, by, key, module)
		}
		v, by = values[key], key
	}
	return v, nil
}

// factors reads one file, whose tensors' names all begin with prefix.
func (c config) factors(path, prefix string, all []*kai.Param) ([]Factors, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	file := filepath.Base(path)
	var list []Factors
	for _, tensor := range f.Names() {
		name, ok := strings.CutPrefix(tensor, prefix)
		if !ok {
			return nil, fmt.Errorf("%s: tensor %q does not begin with %q", file, tensor, prefix)
		}
		if b, isB := strings.CutSuffix(tensor, suffixB); isB {
			if _, has := f.Info(b + suffixA); has {
				continue // read with its A
			}
			return nil, fmt.Errorf("%s: %s has a lora_B and no lora_A", file, b)
		}
		name, ok = strings.CutSuffix(name, suffixA)
		if !ok {
			return nil, fmt.Errorf("%s: tensor %q is no factor that is run here: lora_A.weight and lora_B.weight are", file, tensor)
		}
		t, err := c.read(f, strings.TrimSuffix(tensor, suffixA), name, prefix, all)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if t == nil {
			continue
		}
		if slices.ContainsFunc(list, func(o Factors) bool { return o.Name == t.Name }) {
			return nil, fmt.Errorf("%s: %s is there twice", file, name)
		}
		list = append(list, *t)
	}
	return list, nil
}

// read reads the factors of one module; nil where it is none of the model's and
// changes nothing. tensor and name are the module's in the file, with and without
// the prefix.
func (c config) read(f *safetensors.File, tensor, name, prefix string, all []*kai.Param) (*Factors, error) {
	if _, ok := f.Info(tensor + suffixB); !ok {
		return nil, fmt.Errorf("%s has a lora_A and no lora_B", tensor)
	}
	t := &Factors{}
	var err error
	if t.A, err = f.ReadFloat32(tensor + suffixA); err != nil {
		return nil, err
	}
	if t.B, err = f.ReadFloat32(tensor + suffixB); err != nil {
		return nil, err
	}
	p := find(name, prefix, all)
	if p == nil {
		if !slices.ContainsFunc(t.B, func(x float32) bool { return x != 0 }) {
			return nil, nil
		}
		var known []string
		for _, p := range all {
			known = append(known, strings.TrimPrefix(module(p.Name), encoderPrefix))
		}
		meant := ""
		if near := nearest.Name(name, known); near != "" {
			meant = fmt.Sprintf("; its nearest is %s", near)
		}
		return nil, fmt.Errorf("it adapts %s, and the model has no linear layer of that name%s: it was made for another base", name, meant)
	}
	t.Name, t.Out, t.In = p.Name, p.Shape[0], p.Shape[1]
	if t.Rank, err = pattern(c, "rank_pattern", c.ranks, c.rank, name); err != nil {
		return nil, err
	}
	alpha, err := pattern(c, "alpha_pattern", c.alphas, c.alpha, name)
	if err != nil {
		return nil, err
	}
	if err := (Config{Rank: t.Rank, Alpha: alpha}).Check(t.In, t.Out, name); err != nil {
		return nil, err
	}
	a, _ := f.Info(tensor + suffixA)
	b, _ := f.Info(tensor + suffixB)
	if wantA, wantB := []int{t.Rank, t.In}, []int{t.Out, t.Rank}; !slices.Equal(a.Shape, wantA) || !slices.Equal(b.Shape, wantB) {
		return nil, fmt.Errorf("%s: its factors are %v and %v, and the model wants %v and %v: the adapter was made for another base or rank",
			name, a.Shape, b.Shape, wantA, wantB)
	}
	t.Scale = alpha / float64(t.Rank)
	if c.rooted {
		t.Scale = alpha / math.Sqrt(float64(t.Rank))
	}
	return t, t.Check()
}

// find is the parameter of a module as a file names it. An adapter over a model
// with a task's head calls the encoder "bert." or "model.".
func find(name, prefix string, all []*kai.Param) *kai.Param {
	names := []string{headPrefix + name}
	if prefix == peftPrefix {
		names = []string{encoderPrefix + name}
		for _, wrapper := range []string{"bert.", "model."} {
			if inner, ok := strings.CutPrefix(name, wrapper); ok {
				names = append(names, encoderPrefix+inner)
			}
		}
	}
	for _, p := range all {
		if slices.Contains(names, module(p.Name)) {
			return p
		}
	}
	return nil
}

// whole refuses a file that lacks a module of the encoder that target_modules
// names: a part of an adapter, or one of a base with fewer layers.
func (c config) whole(list []Factors, all []*kai.Param) error {
	for _, p := range all {
		name, ok := strings.CutPrefix(module(p.Name), encoderPrefix)
		if !ok || slices.ContainsFunc(list, func(f Factors) bool { return f.Name == p.Name }) {
			continue
		}
		for _, target := range c.targets {
			if matches(name, target) {
				return fmt.Errorf("%s: target_modules names %s, and there are no factors of %s: a part is missing, or it was made for another base", weightsFile, target, name)
			}
		}
	}
	return nil
}
