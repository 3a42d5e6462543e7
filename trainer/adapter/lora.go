package adapter

import (
	"fmt"
	"math"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/project"
)

// Config is what adapts a model.
type Config struct {
	Rank    int      // of every target
	Alpha   float64  // the change is scaled by Alpha/Rank; twice the rank is usual
	Targets []string // see the function Targets
}

// Check refuses a rank or alpha that no adapter of the layer [out,in] can have.
// Its error begins with the field's name.
func (c Config) Check(in, out int, name string) error {
	switch {
	case c.Rank < 1:
		return fmt.Errorf("rank: %d: want at least 1", c.Rank)
	case c.Rank > min(in, out):
		return fmt.Errorf("rank: %d is more than %s has, which is [%d,%d]: want at most %d", c.Rank, name, out, in, min(in, out))
	case !(c.Alpha > 0) || math.IsInf(c.Alpha, 1):
		return fmt.Errorf("alpha: %v: want above 0; twice the rank is usual", c.Alpha)
	case float32(c.Alpha/float64(c.Rank)) == 0 || math.IsInf(float64(float32(c.Alpha/float64(c.Rank))), 1):
		return fmt.Errorf("alpha: %v: alpha/rank is no float32", c.Alpha)
	}
	return nil
}

// LoRA is the adapter of one linear layer's weight, or of one block of its rows.
// It belongs to the goroutine that has the device.
type LoRA struct {
	Param        *kai.Param
	Rank         int
	Scale        float32     // alpha/rank
	A, B         kernels.Mem // [rank,in] and [out,rank]: what is trained
	GradA, GradB kernels.Mem // their gradients, as the last Backward left them

	scale   float64
	dev     kernels.Device
	proj    *project.Projector // nil: nothing is protected, or Fold was called
	right   kernels.Mem        // [rank,in] A·(I−λVVᵀ)
	open    kernels.Mem        // [rank,in] for the block rule
	in, out int
}

// New is an adapter that changes nothing yet: B is 0, and A uniform in ±1/√in as
// PEFT draws it (Kaiming, a = √5), a pure function of seed and the parameter's
// name. p is a matrix and c was checked for it. proj projects the input side; nil
// leaves it free.
func New(dev kernels.Device, p *kai.Param, c Config, proj *project.Projector, seed uint64) *LoRA {
	out, in, r := p.Shape[0], p.Shape[1], c.Rank
	l := &LoRA{
		Param: p, Rank: r, Scale: float32(c.Alpha / float64(r)),
		A: dev.Alloc(r * in), B: dev.Alloc(out * r),
		GradA: dev.Alloc(r * in), GradB: dev.Alloc(out * r),
		scale: c.Alpha / float64(r), dev: dev, proj: proj,
		right: dev.Alloc(r * in), open: dev.Alloc(r * in), in: in, out: out,
	}
	dev.Write(l.A, uniform(r*in, 1/math.Sqrt(float64(in)), seed, p.Name+".lora_A"))
	return l
}

// project writes A·(I−λVVᵀ) to l.right.
func (l *LoRA) project() {
	l.dev.Copy(l.right, l.A)
	if l.proj != nil {
		l.proj.Remove(l.right, l.Rank)
	}
}

// Delta writes the change D [out,in] to d.
func (l *LoRA) Delta(d kernels.Mem) {
	l.project()
	delta(l.dev, d, l.B, l.right, l.out, l.in, l.Rank, l.Scale)
}

// delta is d = s·(b·a), the order of a change's arithmetic wherever one is made.
func delta(dev kernels.Device, d, b, a kernels.Mem, out, in, rank int, s float32) {
	dev.LinearInput(d, b, a, out, in, rank, false)
	dev.Scale(d, s)
}

// Backward makes GradA and GradB from the gradient G of the parameter:
//
//	GradB = s·G·(A·(I−λVVᵀ))ᵀ,  GradA = s·Bᵀ·G·(I−λVVᵀ)
func (l *LoRA) Backward() {
	dev, g := l.dev, l.Param.Grad
	l.project()
	dev.Linear(l.GradB, g, l.right, kernels.Mem{}, l.out, l.in, l.Rank)
	dev.Scale(l.GradB, l.Scale)

	// The rows of G stand where tokens do.
	dev.Zero(l.GradA)
	sum := kernels.Grad{Sum: l.GradA, Open: l.open}
	dev.LinearWeight(&sum, l.B, g, l.out, l.in, l.Rank)
	dev.Close(&sum)
	dev.Scale(l.GradA, l.Scale)
	if l.proj != nil {
		l.proj.Remove(l.GradA, l.Rank)
	}
}

// Fold ends training at λ = 1: it puts A·(I−VVᵀ), in float64 and rounded once, in
// A's place, and the projector has no part in anything from here on.
func (l *LoRA) Fold(b *project.Basis) {
	a := values(l.dev, l.A)
	b.Reproject(a, l.Rank)
	l.dev.Write(l.A, a)
	l.proj = nil
}

// Factors copies the factors, with the projector in A: their Delta has the bits
// of l's.
func (l *LoRA) Factors() Factors {
	l.project()
	return Factors{Name: l.Param.Name, Out: l.out, In: l.in, Rank: l.Rank, Scale: l.scale,
		A: values(l.dev, l.right), B: values(l.dev, l.B)}
}

// values copies memory to the host.
func values(dev kernels.Device, m kernels.Mem) []float32 {
	v := make([]float32, m.Len)
	dev.Read(v, m)
	return v
}

// uniform is n values of the uniform distribution over ±bound, each a pure
// function of seed, name and index: SplitMix64 (Steele, Lea and Flood, 2014) in
// counter mode, as package kai draws its parameters.
func uniform(n int, bound float64, seed uint64, name string) []float32 {
	key := mix(seed)
	for _, c := range []byte(name) {
		key = mix(key ^ uint64(c))
	}
	v := make([]float32, n)
	for i := range v {
		bits := mix(key + uint64(i)*0x9e3779b97f4a7c15)
		u := float64(bits>>40)*0x1p-23 - 1 // 24 bits over [-1, 1): exact
		v[i] = float32(u * bound)
	}
	return v
}

// mix is SplitMix64's output function, with its increment.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
