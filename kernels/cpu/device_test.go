package cpu_test

import (
	"testing"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/kernels/kerneltest"
)

// devices are every instruction set of this machine, on one thread and on more
// than the machine may have; the scalar loops, slow as they are, only once.
func devices(t *testing.T) []kernels.Device {
	var ds []kernels.Device
	for _, isa := range cpu.ISAs() {
		for _, threads := range []int{1, 3} {
			if isa == cpu.Scalar && threads == 1 {
				continue
			}
			d, err := cpu.NewISA(isa, threads)
			if err != nil {
				t.Fatal(err)
			}
			ds = append(ds, d)
		}
	}
	return ds
}

// TestReference holds every instruction set and thread count to the reference's
// bits.
func TestReference(t *testing.T) { kerneltest.Run(t, cpu.Reference{}, devices(t)...) }

// TestDigest compares this machine with the one that wrote kerneltest.Exact.
func TestDigest(t *testing.T) {
	if got := kerneltest.Digest(t, cpu.New(0)); got != kerneltest.Exact {
		t.Errorf("digest = %s, want %s", got, kerneltest.Exact)
	}
}

func TestInvariance(t *testing.T) {
	for _, d := range append(devices(t), cpu.Reference{}) {
		t.Run(d.Name(), func(t *testing.T) { kerneltest.Invariance(t, d) })
	}
}

// TestOracle needs one device only, since all give the same bits.
func TestOracle(t *testing.T) { kerneltest.Oracle(t, cpu.New(0)) }
