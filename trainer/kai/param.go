package kai

import (
	"slices"
	"strings"

	"github.com/hanzoai/link/kernels"
)

// Param is one named parameter as a view into the model's memory.
type Param struct {
	Name  string // as in model.safetensors: "encoder." and Hugging Face's name, or "head." and ours
	Shape []int
	Group string // "encoder" or "head": which learning rate
	Decay bool   // a matrix or a table, which weight decay pulls toward the base; not a bias or a norm
	W     kernels.Mem
	// Grad is the gradient that [Model.Step] left, in W's layout. It is absent
	// for a parameter that does not learn.
	Grad kernels.Mem

	in     *tensor
	offset int // where it starts in the tensor
}

// size is how many values the parameter has.
func (p *Param) size() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// tensor is the memory of one operand and of its gradient. It holds one
// parameter, or several side by side where an operation wants them so: BERT's
// query, key and value are one matrix here and three on disk.
type tensor struct {
	size  int
	table bool // rows are looked up: the gradient is a chain over tokens, with no open block
	w     kernels.Mem
	grad  *kernels.Grad // nil while nothing of it learns
	tap   tap           // takes the gradient in grad's place, in its factors
}

// A tap takes what the gradient of a linear's weight is the product of: t tokens
// of dy [t,out], the gradient of its output, and of x [t,in], its input. They
// hold until it returns.
type tap func(dy, x kernels.Mem, t int)

// learns reports whether any of the tensor's parameters has a gradient, or is
// tapped. An absent tensor (a bias that the model does not have) learns nothing.
func (t *tensor) learns() bool { return t != nil && (t.grad != nil || t.tap != nil) }

// mem is the tensor's values, or absent memory where there is no tensor.
func (t *tensor) mem() kernels.Mem {
	if t == nil {
		return kernels.Mem{}
	}
	return t.w
}

// g is the gradient to sum into, or nil.
func (t *tensor) g() *kernels.Grad {
	if t == nil {
		return nil
	}
	return t.grad
}

// params is every parameter of a model: declared one by one, then allocated as
// one run of memory, so that copying, hashing or sending all weights is one
// loop.
type params struct {
	group   string // of what is declared next
	list    []*Param
	tensors []*tensor
	sums    kernels.Mem // all gradients
}

// part is one parameter of a tensor.
type part struct {
	name  string
	shape []int
}

func (ps *params) add(decay, table bool, parts ...part) *tensor {
	t := &tensor{table: table}
	for _, p := range parts {
		param := &Param{Name: p.name, Shape: p.shape, Group: ps.group, Decay: decay, in: t, offset: t.size}
		ps.list = append(ps.list, param)
		t.size += param.size()
	}
	ps.tensors = append(ps.tensors, t)
	return t
}

// matrix declares a weight [out, in].
func (ps *params) matrix(name string, out, in int) *tensor {
	return ps.add(true, false, part{name, []int{out, in}})
}

// vector declares a bias, or a norm's scale or shift, [d].
func (ps *params) vector(name string, d int) *tensor {
	return ps.add(false, false, part{name, []int{d}})
}

// lookup declares rows [n, d] that are looked up.
func (ps *params) lookup(name string, n, d int) *tensor {
	return ps.add(true, true, part{name, []int{n, d}})
}

// round16 keeps every tensor at the start of a cache line.
func round16(n int) int { return (n + 15) &^ 15 }

// sort ends the declarations: the list is by name from here on.
func (ps *params) sort() {
	slices.SortFunc(ps.list, func(a, b *Param) int { return strings.Compare(a.Name, b.Name) })
}

// alloc gives every parameter its memory, zeros.
func (ps *params) alloc(dev kernels.Device) {
	total := 0
	for _, t := range ps.tensors {
		total += round16(t.size)
	}
	all, at := dev.Alloc(total), 0
	for _, t := range ps.tensors {
		t.w = all.Slice(at, at+t.size)
		at += round16(t.size)
	}
	for _, p := range ps.list {
		p.W = p.in.w.Slice(p.offset, p.offset+p.size())
	}
}

// train gives gradients to the tensors of every parameter that is not frozen.
func (ps *params) train(dev kernels.Device, frozen func(name string) bool) {
	learns, sums, opens := make(map[*tensor]bool), 0, 0
	for _, p := range ps.list {
		if !frozen(p.Name) && !learns[p.in] {
			learns[p.in] = true
			sums += round16(p.in.size)
			if !p.in.table {
				opens += round16(p.in.size)
			}
		}
	}
	ps.sums = dev.Alloc(sums)
	open, s, o := dev.Alloc(opens), 0, 0
	for _, t := range ps.tensors {
		t.grad = nil
		if !learns[t] {
			continue
		}
		t.grad = &kernels.Grad{Sum: ps.sums.Slice(s, s+t.size)}
		s += round16(t.size)
		if !t.table {
			t.grad.Open = open.Slice(o, o+t.size)
			o += round16(t.size)
		}
	}
	for _, p := range ps.list {
		p.Grad = kernels.Mem{}
		if !frozen(p.Name) {
			p.Grad = p.in.grad.Sum.Slice(p.offset, p.offset+p.size())
		}
	}
}

// begin zeroes the gradients; end closes them.
func (ps *params) begin(dev kernels.Device) { dev.Zero(ps.sums) }

func (ps *params) end(dev kernels.Device) {
	for _, t := range ps.tensors {
		if t.learns() && !t.table {
			dev.Close(t.grad)
		}
	}
}
