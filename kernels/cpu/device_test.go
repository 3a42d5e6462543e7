package cpu_test

import (
	"fmt"
	"testing"

	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/kernels/kerneltest"
)

// each runs f on every instruction set of this machine, on one thread and on
// more than the machine may have.
func each(t *testing.T, f func(t *testing.T, d *cpu.Device)) {
	for _, isa := range cpu.ISAs() {
		for _, threads := range []int{1, 3} {
			d, err := cpu.NewISA(isa, threads)
			if err != nil {
				t.Fatal(err)
			}
			t.Run(fmt.Sprintf("%s/%d", isa, threads), func(t *testing.T) { f(t, d) })
		}
	}
}

// TestReference holds every instruction set and thread count to the reference's
// bits.
func TestReference(t *testing.T) {
	each(t, func(t *testing.T, d *cpu.Device) { kerneltest.Run(t, d, cpu.Reference{}) })
}
