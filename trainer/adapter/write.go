package adapter

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/trainer/safetensors"
)

// The files of an adapter.
const (
	configFile  = "adapter_config.json"
	weightsFile = "adapter_model.safetensors"
	headFile    = "head.safetensors"
)

// Where a parameter's name begins here, and a tensor's in PEFT's file.
const (
	encoderPrefix = "encoder."
	headPrefix    = "head."
	peftPrefix    = "base_model.model."
)

// PEFTConfig is what adapter_config.json says beside the modules.
type PEFTConfig struct {
	Base  string  // where PEFT looks for the base: a folder or a name; may be empty
	Rank  int     // of most factors
	Alpha float64 // of most factors
	// BaseSHA256 is the address of the base's model.safetensors, which a loader can
	// compare; "" says nothing. PEFT's files have no place for it: it stands in the
	// tensors' metadata.
	BaseSHA256 string
}

// configJSON is what Write writes of PEFT's LoraConfig; PEFT fills in the rest.
type configJSON struct {
	AlphaPattern    map[string]float64 `json:"alpha_pattern"`
	Base            *string            `json:"base_model_name_or_path"`
	Bias            string             `json:"bias"`
	FanInFanOut     bool               `json:"fan_in_fan_out"`
	InferenceMode   bool               `json:"inference_mode"`
	InitLoRAWeights bool               `json:"init_lora_weights"`
	Alpha           float64            `json:"lora_alpha"`
	Dropout         float64            `json:"lora_dropout"`
	ModulesToSave   *[]string          `json:"modules_to_save"`
	PEFTType        string             `json:"peft_type"`
	Rank            int                `json:"r"`
	RankPattern     map[string]int     `json:"rank_pattern"`
	TargetModules   []string           `json:"target_modules"`
	TaskType        *string            `json:"task_type"`
	UseDoRA         bool               `json:"use_dora"`
	UseRSLoRA       bool               `json:"use_rslora"`
}

// Write makes the folder dir of an adapter. It appears whole and durable, or not
// at all; it is an error if it exists and is not empty. Equal factors are equal
// bytes, in whatever order the list has them. The targets are written as the
// modules' whole names, so that PEFT adapts those and no others; factors whose
// rank or alpha is not cfg's are named in rank_pattern and alpha_pattern.
func Write(dir string, cfg PEFTConfig, list []Factors) error {
	if err := write(filepath.Clean(dir), cfg, list); err != nil {
		return fmt.Errorf("writing adapter %s: %w", dir, err)
	}
	return nil
}

func write(dir string, cfg PEFTConfig, list []Factors) error {
	if files, err := os.ReadDir(dir); err == nil && len(files) > 0 {
		return fmt.Errorf("the folder is there already and is not empty")
	}
	c, err := cfg.json(list)
	if err != nil {
		return err
	}
	meta := map[string]string{"format": "pt"}
	if cfg.BaseSHA256 != "" {
		meta[baseKey] = cfg.BaseSHA256
	}
	var encoder, head []safetensors.Tensor
	for _, f := range list {
		if name, ok := strings.CutPrefix(module(f.Name), encoderPrefix); ok {
			encoder = append(encoder, f.tensors(peftPrefix+name)...)
		} else {
			head = append(head, f.tensors(module(f.Name))...)
		}
	}

	tmp := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".partial")
	if err := os.RemoveAll(tmp); err != nil { // of a write that was cut short
		return err
	}
	defer os.RemoveAll(tmp) // nothing is there after the rename
	if err := durable.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(tmp, configFile), append(c, '\n'), 0o644); err != nil {
		return err
	}
	if err := safetensors.Write(filepath.Join(tmp, weightsFile), encoder, meta); err != nil {
		return err
	}
	if len(head) > 0 {
		if err := safetensors.Write(filepath.Join(tmp, headFile), head, meta); err != nil {
			return err
		}
	}
	return durable.RenameDir(tmp, dir)
}

// baseKey is the metadata that holds the base's address.
const baseKey = "base_sha256"

// tensors are the factors under a module's name.
func (f Factors) tensors(name string) []safetensors.Tensor {
	return []safetensors.Tensor{
		{Name: name + suffixA, Shape: []int{f.Rank, f.In}, Data: f.A},
		{Name: name + suffixB, Shape: []int{f.Out, f.Rank}, Data: f.B},
	}
}

// What a factor's tensor is called after its module.
const (
	suffixA = ".lora_A.weight"
	suffixB = ".lora_B.weight"
)

// json is adapter_config.json.
func (cfg PEFTConfig) json(list []Factors) ([]byte, error) {
	c := configJSON{Bias: "none", InferenceMode: true, InitLoRAWeights: true, PEFTType: "LORA",
		Rank: cfg.Rank, Alpha: cfg.Alpha, TargetModules: []string{},
		RankPattern: map[string]int{}, AlphaPattern: map[string]float64{}}
	if cfg.Base != "" {
		c.Base = &cfg.Base
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("it has no factors")
	}
	for i, f := range list {
		if err := f.Check(); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(list[:i], func(g Factors) bool { return g.Name == f.Name }) {
			return nil, fmt.Errorf("%s is there twice", f.Name)
		}
		name, ok := strings.CutPrefix(module(f.Name), encoderPrefix)
		switch {
		case !strings.HasSuffix(f.Name, ".weight"):
			return nil, fmt.Errorf("%s is no module's weight", f.Name)
		case ok:
			c.TargetModules = append(c.TargetModules, name)
		case !strings.HasPrefix(f.Name, headPrefix):
			return nil, fmt.Errorf("%s is of neither the encoder nor the head", f.Name)
		}
		if f.Rank != cfg.Rank {
			c.RankPattern[regexp.QuoteMeta(name)] = f.Rank
		}
		if cfg.Alpha/float64(f.Rank) != f.Scale {
			alpha := f.Scale * float64(f.Rank)
			if float32(alpha/float64(f.Rank)) != float32(f.Scale) {
				return nil, fmt.Errorf("%s: no alpha gives the scale %v at rank %d", f.Name, f.Scale, f.Rank)
			}
			c.AlphaPattern[regexp.QuoteMeta(name)] = alpha
		}
	}
	slices.Sort(c.TargetModules)
	return canon.Marshal(c)
}
