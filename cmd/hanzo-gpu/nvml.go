//go:build linux && cgo

package main

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/hanzoai/link/agent/facts"
)

// maxGPUs bounds a count that the library says.
const maxGPUs = 64

func ask() facts.NVIDIA {
	lib := nvml.New()
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return facts.NVIDIA{Error: "libnvidia-ml.so.1 is not on this host: install NVIDIA's driver"}
	default:
		return facts.NVIDIA{Error: "NVIDIA's driver does not answer: " + text(lib.ErrorString(ret))}
	}
	defer lib.Shutdown()
	var found facts.NVIDIA
	if v, ret := lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		found.Driver = text(v)
	}
	if v, ret := lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS && v > 0 {
		found.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10) // 12040 is 12.4
	}
	n, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		found.Error = "counting GPUs: " + text(lib.ErrorString(ret))
		return found
	}
	for i := range min(n, maxGPUs) {
		d, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // it has fallen off the bus, or is not ours to see
		}
		found.GPUs = append(found.GPUs, gpu(lib, d))
	}
	return found
}

func gpu(lib nvml.Interface, d nvml.Device) facts.NVIDIAGPU {
	g := facts.NVIDIAGPU{Instances: []facts.MIGInstance{}, Processes: []facts.GPUProcess{}}
	g.Name, g.UUID = named(d)
	if major, minor, ret := d.GetCudaComputeCapability(); ret == nvml.SUCCESS {
		g.Arch = fmt.Sprintf("sm_%d%d", major, minor)
	}
	switch m, ret := d.GetMemoryInfo(); {
	case ret == nvml.SUCCESS:
		g.MemoryTotal = int64(min(m.Total, 1<<52))
	case ret == nvml.ERROR_NOT_SUPPORTED:
		g.Unified = true // Jetson and GB10 count no memory of their own
	}
	g.Processes = processes(g.Processes, d)
	// Drivers before 450 lack these functions, and calling one that is not there ends
	// the program.
	if lib.Extensions().LookupSymbol("nvmlDeviceGetMigMode") != nil {
		return g
	}
	if mode, _, ret := d.GetMigMode(); ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return g
	}
	g.MIG = true
	n, ret := d.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return g
	}
	for i := range min(n, maxGPUs) {
		part, ret := d.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // a slot that is not used
		}
		m := facts.MIGInstance{GPU: -1, Compute: -1}
		m.Name, m.UUID = named(part)
		if id, ret := part.GetGpuInstanceId(); ret == nvml.SUCCESS {
			m.GPU = id
		}
		if id, ret := part.GetComputeInstanceId(); ret == nvml.SUCCESS {
			m.Compute = id
		}
		if info, ret := part.GetMemoryInfo(); ret == nvml.SUCCESS {
			m.MemoryTotal = int64(min(info.Total, 1<<52))
		}
		g.Instances = append(g.Instances, m)
		g.Processes = processes(g.Processes, part) // a cut GPU says them of its parts
	}
	return g
}

func named(d nvml.Device) (name, uuid string) {
	if s, ret := d.GetName(); ret == nvml.SUCCESS {
		name = text(s)
	}
	if s, ret := d.GetUUID(); ret == nvml.SUCCESS {
		uuid = text(s)
	}
	return name, uuid
}

// processes adds those of d that are not there yet.
func processes(all []facts.GPUProcess, d nvml.Device) []facts.GPUProcess {
	infos, ret := d.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return all
	}
next:
	for _, info := range infos {
		p := facts.GPUProcess{PID: int(info.Pid)}
		if info.UsedGpuMemory <= 1<<52 { // else it is the mark of a driver that does not say
			p.Memory = int64(info.UsedGpuMemory)
		}
		for i := range all {
			if all[i].PID == p.PID {
				all[i].Memory = max(all[i].Memory, p.Memory)
				continue next
			}
		}
		all = append(all, p)
	}
	return all
}

// text is a C string of the library's as JSON can hold it.
func text(s string) string { return strings.ToValidUTF8(s, "") }
