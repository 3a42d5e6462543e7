// Package kerneltest holds a [kernels.Device] to the definition of its
// operations.
//
// [Run] compares every operation with a reference's, bit for bit, over shapes
// that meet the edges of tiles, vectors and blocks; it also watches guard values
// around every operand, and that what an operation only reads stays as it was.
// [Invariance] checks on one device alone that bits do not depend on how a step
// is cut or packed. [Digest] is one number for all that a device computes, the
// same on every machine. [Oracle] compares every operation with float64 within a
// stated error, and every way back with finite differences.
package kerneltest

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/hanzoai/link/kernels"
)

// guard is how many values stand before and after each operand. It is odd, so
// that operands do not start on a vector's boundary.
const guard = 5

// guardValue is a NaN no operation makes.
var guardValue = math.Float32frombits(0x7fc0dead)

// operand is one memory that a case passes to an operation.
type operand struct {
	name   string
	init   []float32 // its values before
	output bool      // the operation may write it
}

func in(name string, v []float32) operand  { return operand{name, v, false} }
func out(name string, v []float32) operand { return operand{name, v, true} }

// memory places v on d between guards.
func memory(d kernels.Device, v []float32) (whole, inner kernels.Mem) {
	all := make([]float32, len(v)+2*guard)
	for i := range all {
		all[i] = guardValue
	}
	copy(all[guard:], v)
	whole = d.Alloc(len(all))
	d.Write(whole, all)
	return whole, whole.Slice(guard, guard+len(v))
}

// apply runs f on d over fresh copies of the operands and returns their values
// after, or fails t for what was written outside or not to be written.
func apply(t *testing.T, d kernels.Device, ops []operand, f func(d kernels.Device, m []kernels.Mem)) [][]float32 {
	t.Helper()
	whole, inner := make([]kernels.Mem, len(ops)), make([]kernels.Mem, len(ops))
	for i, o := range ops {
		whole[i], inner[i] = memory(d, o.init)
		if len(o.init) == 0 {
			inner[i] = kernels.Mem{} // an optional operand left out
		}
	}
	f(d, inner)
	after := make([][]float32, len(ops))
	for i, o := range ops {
		got := make([]float32, whole[i].Len)
		d.Read(got, whole[i])
		for j := range guard {
			if !same(got[j], guardValue) || !same(got[len(got)-1-j], guardValue) {
				t.Errorf("%s: wrote outside %s", d.Name(), o.name)
				break
			}
		}
		after[i] = got[guard : len(got)-guard]
		if !o.output {
			if k := differ(after[i], o.init); k >= 0 {
				t.Errorf("%s: changed %s[%d], which it should only read", d.Name(), o.name, k)
			}
		}
	}
	return after
}

// same reports equal bits, any two NaNs being equal.
func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// differ is the first index at which the bits differ, or -1.
func differ(a, b []float32) int {
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	for i := range a {
		if !same(a[i], b[i]) {
			return i
		}
	}
	return -1
}

// A comparison is the devices of one Run.
type comparison struct {
	*testing.T
	ref  kernels.Device
	devs []kernels.Device
	sum  hash.Hash // of all that ref wrote, when not nil
}

// compare runs f on every device and compares what it wrote with what the
// reference did.
func (c comparison) compare(name string, ops []operand, f func(d kernels.Device, m []kernels.Mem)) {
	c.Run(name, func(t *testing.T) {
		want := apply(t, c.ref, ops, f)
		for _, v := range want {
			c.digest(v)
		}
		for _, d := range c.devs {
			got := apply(t, d, ops, f)
			for i, o := range ops {
				if k := differ(got[i], want[i]); k >= 0 && o.output {
					t.Errorf("%s: %s[%d] of %d = %v (%#x), want %v (%#x)", d.Name(), o.name, k, len(got[i]),
						got[i][k], math.Float32bits(got[i][k]), want[i][k], math.Float32bits(want[i][k]))
				}
			}
		}
	})
}

// digest adds v's bits to the sum, every NaN as one.
func (c comparison) digest(v []float32) {
	if c.sum == nil {
		return
	}
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		u := math.Float32bits(x)
		if x != x {
			u = math.Float32bits(float32(math.NaN()))
		}
		b = binary.LittleEndian.AppendUint32(b, u)
	}
	c.sum.Write(b)
}

// values draws the operands of one case. The same name gives the same values.
type values struct{ r *rand.Rand }

func draw(name string, args ...any) values {
	h := fnv.New64a()
	fmt.Fprintln(h, name, args)
	return values{rand.New(rand.NewPCG(h.Sum64(), 1))}
}

// normal is n values of deviation s.
func (v values) normal(n int, s float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(v.r.NormFloat64() * s)
	}
	return x
}

// edgy is n finite values of which many are zeros of both signs, subnormal,
// very large or very small.
func (v values) edgy(n int) []float32 {
	x := v.normal(n, 1)
	for i := range x {
		switch v.r.IntN(8) {
		case 0:
			x[i] = 0
		case 1:
			x[i] = float32(math.Copysign(0, -1))
		case 2:
			x[i] = math.Float32frombits(uint32(v.r.IntN(1<<23)) | uint32(v.r.IntN(2))<<31)
		case 3:
			x[i] = float32(math.Ldexp(float64(x[i]), v.r.IntN(80)-40))
		}
	}
	return x
}

// positive is n values in (0, 1].
func (v values) positive(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = 1 - v.r.Float32()
	}
	return x
}

// garbage is what stands in memory that an operation writes all of.
func (v values) garbage(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return x
}

// ids is n indices below limit.
func (v values) ids(n, limit int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(v.r.IntN(limit))
	}
	return x
}

// segments packs rows of the given lengths.
func segments(lengths ...int) kernels.Segments {
	s := kernels.Segments{0}
	for _, n := range lengths {
		s = append(s, s[len(s)-1]+int32(n))
	}
	return s
}
