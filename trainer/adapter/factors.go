package adapter

import (
	"fmt"
	"slices"

	"github.com/hanzoai/link/kernels"
)

// Factors are one parameter's adapter at rest.
type Factors struct {
	Name          string // the parameter's, as kai.Param has it
	Out, In, Rank int
	Scale         float64   // alpha/rank; it acts rounded to float32
	A             []float32 // [Rank,In]
	B             []float32 // [Out,Rank]
}

// Delta is the change D [Out,In] in new memory of dev: the bits that LoRA.Delta
// made of the same factors, on any device.
func (f Factors) Delta(dev kernels.Device) kernels.Mem {
	a, b, d := dev.Alloc(len(f.A)), dev.Alloc(len(f.B)), dev.Alloc(f.Out*f.In)
	dev.Write(a, f.A)
	dev.Write(b, f.B)
	delta(dev, d, b, a, f.Out, f.In, f.Rank, float32(f.Scale))
	return d
}

// Check refuses factors whose product is no change of a weight [Out,In], finite in
// every value. Nothing else that takes factors looks at them.
func (f Factors) Check() error {
	if f.Out < 1 || f.In < 1 || f.Rank < 1 || len(f.A) != f.Rank*f.In || len(f.B) != f.Out*f.Rank {
		return fmt.Errorf("%s: %d and %d values are no factors of [%d,%d] of rank %d", f.Name, len(f.A), len(f.B), f.Out, f.In, f.Rank)
	}
	for _, v := range [][]float32{f.A, f.B} {
		if i := slices.IndexFunc(v, func(x float32) bool { return x-x != 0 }); i >= 0 {
			return fmt.Errorf("%s: value %d of a factor is %v", f.Name, i, v[i])
		}
	}
	if s := float32(f.Scale); s-s != 0 {
		return fmt.Errorf("%s: its scale is %v", f.Name, f.Scale)
	}
	return nil
}
