// Package cpu computes the operations of [kernels.Device] on the processor.
//
// [Reference] is their definition as code: plain loops over scalars. [Device]
// gives the same bits faster: products are packed and tiled, rows are vectors of
// AVX-512 or AVX2 where the processor has them, and work is cut over threads
// only where no sum is cut. Every fast function names the scalar one it equals,
// and package kerneltest holds the two together.
//
// The vector code is generated: see isa_amd64.go and gen. Other architectures
// run the scalar loops.
package cpu

import (
	"fmt"
	"runtime"

	"github.com/hanzoai/link/kernels"
)

// Device is the processor. It keeps packing buffers for the largest operation it
// has seen: about a megabyte a thread, and of the largest right side of a product
// as much as is packed at a time, up to 512 values a line.
type Device struct {
	table   *table
	workers []worker
	b       []float32 // a product's packed right side, shared by the threads
}

var _ kernels.Device = (*Device)(nil)

// New is a device of this machine's best instruction set on that many threads;
// 0 takes GOMAXPROCS.
func New(threads int) *Device {
	d, err := NewISA(ISAs()[0], threads)
	if err != nil {
		panic(err) // it was just listed
	}
	return d
}

// ISAs are the instruction sets this machine can run, the best first.
func ISAs() []ISA {
	var s []ISA
	for _, t := range tables() {
		s = append(s, t.isa)
	}
	return s
}

// NewISA is [New] with the instruction set named, which is for tests: the bits
// are the same.
func NewISA(isa ISA, threads int) (*Device, error) {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	for _, t := range tables() {
		if t.isa == isa {
			d := &Device{table: &t, workers: make([]worker, threads)}
			for i := range d.workers {
				d.workers[i].t = &t
			}
			return d, nil
		}
	}
	return nil, fmt.Errorf("cpu: this machine has no %s, only %v", isa, ISAs())
}

func (d *Device) Name() string {
	return fmt.Sprintf("cpu %s, %d threads", d.table.isa, len(d.workers))
}

func (d *Device) Plan() []kernels.Selection { return kernels.ExactPlan() }

// Alloc is n zeros that start on a cache line.
func (d *Device) Alloc(n int) kernels.Mem { return kernels.Mem{Host: aligned(n), Len: n} }

func (d *Device) Zero(m kernels.Mem) { Reference{}.Zero(m) }

func (d *Device) Copy(dst, src kernels.Mem) { Reference{}.Copy(dst, src) }

func (d *Device) Write(dst kernels.Mem, src []float32) { Reference{}.Write(dst, src) }

func (d *Device) Read(dst []float32, src kernels.Mem) { Reference{}.Read(dst, src) }

// chunk is how many values a thread takes at a time of an operation on values:
// a part of the first-level cache.
const chunk = 4096

// The costs of one value, in operations, as span counts them. They only decide
// what is too small to share.
const (
	moveCost = 2
	normCost = 16
	expCost  = 40
)

func (d *Device) Add(y, a, b kernels.Mem) {
	need("Add a", a, y.Len)
	need("Add b", b, y.Len)
	d.span(y.Len, chunk, moveCost, func(w *worker, i, j int) {
		w.t.add(y.Host[i:j], a.Host[i:j], b.Host[i:j])
	})
}

func (d *Device) Mul(y, a, b kernels.Mem) {
	need("Mul a", a, y.Len)
	need("Mul b", b, y.Len)
	d.span(y.Len, chunk, moveCost, func(w *worker, i, j int) {
		w.t.mul(y.Host[i:j], a.Host[i:j], b.Host[i:j])
	})
}

func (d *Device) Scale(y kernels.Mem, s float32) {
	d.span(y.Len, chunk, moveCost, func(w *worker, i, j int) {
		w.t.scale(y.Host[i:j], y.Host[i:j], s)
	})
}

func (d *Device) GELU(y, x kernels.Mem) {
	need("GELU x", x, y.Len)
	d.span(y.Len, chunk, expCost, func(w *worker, i, j int) {
		w.t.gelu(y.Host[i:j], x.Host[i:j])
	})
}

func (d *Device) GELUBack(dx, dy, x kernels.Mem) {
	need("GELUBack dy", dy, dx.Len)
	need("GELUBack x", x, dx.Len)
	d.span(dx.Len, chunk, expCost, func(w *worker, i, j int) {
		w.t.geluBack(dx.Host[i:j], dy.Host[i:j], x.Host[i:j])
	})
}

// rows is how many rows of d values make a task.
func rows(d int) int { return max(1, chunk/max(d, 1)) }

func (d *Device) GeGLU(y, x kernels.Mem, t, h int) {
	need("GeGLU y", y, t*h)
	need("GeGLU x", x, t*2*h)
	d.span(t, rows(h), h*expCost, func(w *worker, from, to int) {
		for i := from; i < to; i++ {
			r := x.Host[i*2*h:]
			w.t.geglu(y.Host[i*h:(i+1)*h], r[:h], r[h:2*h])
		}
	})
}

func (d *Device) GeGLUBack(dx, dy, x kernels.Mem, t, h int) {
	need("GeGLUBack dx", dx, t*2*h)
	need("GeGLUBack dy", dy, t*h)
	need("GeGLUBack x", x, t*2*h)
	d.span(t, rows(h), h*expCost, func(w *worker, from, to int) {
		for i := from; i < to; i++ {
			r, g := x.Host[i*2*h:], dx.Host[i*2*h:]
			w.t.gegluBack(g[:h], g[h:2*h], dy.Host[i*h:(i+1)*h], r[:h], r[h:2*h])
		}
	})
}

func (d *Device) SumSquares(m kernels.Mem) float64 {
	need("SumSquares", m, m.Len)
	return d.table.sumSquares(m.Host)
}

func (d *Device) AdamW(w, dd, m, v, grad, base kernels.Mem, a kernels.AdamW) {
	needAdamW(w, dd, m, v, grad, base)
	d.span(dd.Len, chunk, normCost, func(k *worker, i, j int) {
		var wij, bij []float32
		if !base.None() {
			wij, bij = w.Host[i:j], base.Host[i:j]
		}
		k.t.adamw(wij, dd.Host[i:j], m.Host[i:j], v.Host[i:j], grad.Host[i:j], bij, &a)
	})
}
