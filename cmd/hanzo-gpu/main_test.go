//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hanzoai/link/agent/facts"
	"github.com/hanzoai/link/spool/canon"
)

// helper builds hanzo-gpu with cgo and a library for it, and answers a program
// that runs the one with the other, which is asked for a fault.
func helper(t *testing.T, fault string, defines ...string) string {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: apt-get install gcc")
	}
	dir := t.TempDir()
	build := exec.Command(compiler, append(defines, "-shared", "-fPIC", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), "testdata/nvml.c")...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the library: %v\n%s", err, out)
	}
	build = exec.Command("go", "build", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", filepath.Join(dir, "program"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building hanzo-gpu: %v\n%s", err, out)
	}
	script := filepath.Join(dir, "hanzo-gpu")
	write(t, script, fmt.Sprintf("#!/bin/sh\nLD_LIBRARY_PATH=%s FAULT=%s exec %s/program \"$@\"\n", dir, fault, dir))
	return script
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// answer is what the program prints, and how it ends.
func answer(t *testing.T, program string, args ...string) (facts.NVIDIA, int) {
	t.Helper()
	var out bytes.Buffer
	c := exec.CommandContext(t.Context(), program, args...)
	c.Env, c.Stdout = []string{}, &out
	err := c.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	var found facts.NVIDIA
	if err := canon.Unmarshal(bytes.TrimSpace(out.Bytes()), &found); err != nil {
		t.Fatalf("%q: %v", out.String(), err)
	}
	return found, c.ProcessState.ExitCode()
}

var two = facts.NVIDIA{
	Driver: "570.86.15", CUDA: "12.8",
	GPUs: []facts.NVIDIAGPU{{
		Name: "NVIDIA H100 80GB HBM3", UUID: "GPU-1", Arch: "sm_90", MemoryTotal: 81559<<20 + 4096,
		Instances: []facts.MIGInstance{}, Processes: []facts.GPUProcess{{PID: 41, Memory: 1 << 30}, {PID: 42}},
	}, {
		Name: "NVIDIA GB10", UUID: "GPU-2", Arch: "sm_121", Unified: true,
		Instances: []facts.MIGInstance{}, Processes: []facts.GPUProcess{},
	}},
}

func TestTheLibrarysAnswer(t *testing.T) {
	found, status := answer(t, helper(t, ""))
	if d := cmp.Diff(two, found); d != "" || status != 0 {
		t.Errorf("status %d (-want +got):\n%s", status, d)
	}
}

func TestMIG(t *testing.T) {
	found, _ := answer(t, helper(t, "mig"))
	want := []facts.MIGInstance{{Name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb", UUID: "MIG-3", GPU: 9, Compute: 0, MemoryTotal: 9856 << 20}}
	if d := cmp.Diff(want, found.GPUs[0].Instances); d != "" || !found.GPUs[0].MIG || found.GPUs[1].MIG {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestOldDriverWithoutMIG(t *testing.T) {
	found, status := answer(t, helper(t, "", "-DOLD"))
	if d := cmp.Diff(two, found); d != "" || status != 0 {
		t.Errorf("status %d (-want +got):\n%s", status, d)
	}
}

func TestFaultsAreSaid(t *testing.T) {
	program := helper(t, "unloaded")
	found, status := answer(t, program)
	if status != 1 || !strings.Contains(found.Error, "Driver Not Loaded") {
		t.Errorf("no driver: %d, %+v", status, found)
	}
	if found, status = answer(t, program, "--all"); status != 2 || found.Error == "" {
		t.Errorf("an argument: %d, %+v", status, found)
	}
	if err := os.Remove(filepath.Join(filepath.Dir(program), "libnvidia-ml.so.1")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		return // this host has a library of its own
	}
	if found, status = answer(t, program); status != 1 || !strings.Contains(found.Error, "libnvidia-ml.so.1 is not on this host") {
		t.Errorf("no library: %d, %+v", status, found)
	}
}

func TestWithoutCgo(t *testing.T) {
	program := filepath.Join(t.TempDir(), "hanzo-gpu")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if found, status := answer(t, program); status != 1 || !strings.Contains(found.Error, "built without cgo") {
		t.Errorf("%d, %+v", status, found)
	}
}

// A host is the same whoever is asked. nvidia-smi is a script that prints what
// NVIDIA's prints of those two GPUs.
func TestHelperAndSMIAgree(t *testing.T) {
	program := helper(t, "")
	root := host(t)
	asked, err := facts.Read(t.Context(), root, program, root)
	if err != nil {
		t.Fatal(err)
	}
	if len(asked.GPUs) != 2 || asked.GPUs[0].MemoryTotal != "81559 MiB" || !asked.GPUs[1].Unified || asked.GPUs[1].MemoryTotal != "122880 MiB" || asked.CUDA != "12.8" {
		t.Errorf("by the helper: %+v", asked)
	}
	same, err := facts.Read(t.Context(), root, "", root)
	if err != nil {
		t.Fatal(err)
	}
	asked.Disk, same.Disk = 0, 0 // which moves
	if d := cmp.Diff(asked, same); d != "" {
		t.Errorf("nvidia-smi (-helper +smi):\n%s", d)
	}
}

// The library's crash is the helper's end, and nobody else's.
func TestCrashOfTheLibrary(t *testing.T) {
	program := helper(t, "crash")
	if out, err := exec.CommandContext(t.Context(), program).Output(); err == nil || len(out) > 0 {
		t.Errorf("the helper ended with %v after it wrote %q", err, out)
	}
	root := host(t)
	w, err := facts.Read(t.Context(), root, program, root)
	if err != nil || len(w.GPUs) != 2 {
		t.Errorf("the host's GPUs are %+v, %v", w.GPUs, err)
	}
}

// A library that hangs costs its time, and nvidia-smi's answer stands.
func TestHangOfTheLibrary(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until the helper's time is over")
	}
	root := host(t)
	start := time.Now()
	w, err := facts.Read(t.Context(), root, helper(t, "hang"), root)
	if err != nil || len(w.GPUs) != 2 {
		t.Errorf("the host's GPUs are %+v, %v", w.GPUs, err)
	}
	t.Logf("took %v", time.Since(start))
}

// TestThisHost holds the real library and the real nvidia-smi to the same answer.
func TestThisHost(t *testing.T) {
	if _, err := os.Stat("/proc/driver/nvidia/version"); err != nil {
		t.Skip("this host has no NVIDIA driver")
	}
	program := filepath.Join(t.TempDir(), "hanzo-gpu")
	build := exec.Command("go", "build", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found, status := answer(t, program)
	if status != 0 {
		t.Fatalf("hanzo-gpu: %d, %+v", status, found)
	}
	asked, _ := facts.Read(t.Context(), "/", program, "/")
	same, _ := facts.Read(t.Context(), "/", "", "/")
	if d := cmp.Diff(asked.GPUs, same.GPUs); d != "" || len(asked.GPUs) == 0 || asked.Driver != same.Driver {
		t.Errorf("(-helper +smi):\n%s", d)
	}
}

// host is a folder of files for a host with the library's two GPUs and 120 GiB.
func host(t *testing.T) string {
	root := t.TempDir()
	write(t, root+"/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15\n")
	write(t, root+"/proc/meminfo", "MemTotal:       125829120 kB\n")
	write(t, root+"/usr/bin/nvidia-smi", `#!/bin/sh
[ "$(/usr/bin/env | /usr/bin/grep -c HOME)" = 0 ] || exit 9
case $1 in
--version) printf 'NVIDIA-SMI version  : 570.86.15\nNVML version        : 570.86\nDRIVER version      : 570.86.15\nCUDA Version        : 12.8\n';;
*) printf 'NVIDIA H100 80GB HBM3, GPU-1, 570.86.15, 81559, 9.0\nNVIDIA GB10, GPU-2, 570.86.15, [N/A], 12.1\n';;
esac
`)
	return root
}
