package record

import (
	"fmt"
	"regexp"

	"github.com/hanzoai/link/spool/canon"
)

// An Environment is where a run's numbers come from (HIP-1334 §6.1), held as an
// artifact of kind environment. What was not measured is empty, never guessed.
type Environment struct {
	GitSHA           string      `json:"git_sha"`       // the producing tree's commit, 40 hex
	Dirty            bool        `json:"dirty"`         // the tree differed from the commit
	LockfileHash     canon.Hash  `json:"lockfile_hash"` // of the lockfile's bytes
	ML               string      `json:"ml"`            // the training engine's commit
	Kernels          string      `json:"kernels"`       // the kernels' commit
	Accelerator      Accelerator `json:"accelerator"`
	KernelPlanHash   canon.Hash  `json:"kernel_plan_hash"`
	Precision        Precision   `json:"precision"`
	GPUs             []GPU       `json:"gpus"`
	CompilerFlags    []string    `json:"compiler_flags"`
	DeterminismFlags []string    `json:"determinism_flags"`
	Image            *string     `json:"image"` // the container image's digest, when one ran
}

// An Accelerator is the interface the kernels were written to.
type Accelerator struct {
	API     AcceleratorAPI `json:"api"`
	Version string         `json:"version"` // of the CUDA or ROCm toolkit
	Driver  string         `json:"driver"`
}

// An AcceleratorAPI is cuda, rocm, metal or cpu.
type AcceleratorAPI string

const (
	CUDA  AcceleratorAPI = "cuda"
	ROCm  AcceleratorAPI = "rocm"
	Metal AcceleratorAPI = "metal"
	CPU   AcceleratorAPI = "cpu"
)

// Valid reports whether a is one of the four.
func (a AcceleratorAPI) Valid() bool { return a == CUDA || a == ROCm || a == Metal || a == CPU }

// A Precision names the dtypes of a run.
type Precision struct {
	Compute    string `json:"compute"`
	Master     string `json:"master"`
	Accumulate string `json:"accumulate"`
}

// A GPU is one device used.
type GPU struct {
	UUID string `json:"uuid"`
	Arch string `json:"arch"`
}

var commitForm = regexp.MustCompile(`^([0-9a-f]{40})?$`)

// Validate checks an environment by itself.
func (e Environment) Validate() error {
	if err := shape(e); err != nil {
		return err
	}
	switch {
	case !commitForm.MatchString(e.GitSHA):
		return fault("git_sha", fmt.Errorf("%q is not 40 lower-case hex digits", e.GitSHA))
	case e.Precision.Compute == "":
		return fault("precision/compute", errEmpty)
	case e.Precision.Master == "":
		return fault("precision/master", errEmpty)
	case e.Precision.Accumulate == "":
		return fault("precision/accumulate", errEmpty)
	}
	return nil
}
