package facts

// NVIDIA is what cmd/hanzo-gpu prints: the driver's own account of NVIDIA's GPUs,
// one JSON object. Error is set, and the rest may be empty, where the driver could
// not be asked.
type NVIDIA struct {
	Error  string      `json:"error,omitzero"`
	Driver string      `json:"driver,omitzero"` // as 570.86.15
	CUDA   string      `json:"cuda,omitzero"`   // the newest that the driver runs, as 12.8
	GPUs   []NVIDIAGPU `json:"gpus"`            // in the order of their PCI addresses
}

// NVIDIAGPU is one of them. Sizes are bytes.
type NVIDIAGPU struct {
	Name        string        `json:"name"`
	UUID        string        `json:"uuid,omitzero"`
	Arch        string        `json:"arch,omitzero"`        // as sm_90
	MemoryTotal int64         `json:"memoryTotal,omitzero"` // absent where the driver counts none of its own
	Unified     bool          `json:"unified,omitzero"`     // it uses the host's memory
	MIG         bool          `json:"mig,omitzero"`         // it is cut into instances, or ready to be
	Instances   []MIGInstance `json:"instances"`
	Processes   []GPUProcess  `json:"processes"`
}

// MIGInstance is one part of a GPU that is cut.
type MIGInstance struct {
	Name        string `json:"name,omitzero"`
	UUID        string `json:"uuid,omitzero"`
	GPU         int    `json:"gpu"`     // its GPU instance
	Compute     int    `json:"compute"` // its compute instance
	MemoryTotal int64  `json:"memoryTotal,omitzero"`
}

// GPUProcess is a process that uses a GPU to compute, by its number on the host.
type GPUProcess struct {
	PID    int   `json:"pid"`
	Memory int64 `json:"memory"` // bytes; 0 where the driver does not say
}
