//go:build linux

package main

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// A verdict is what becomes of a call: an action, or a check of an argument.
type verdict interface{ String() string }

// An action is what the filter returns to the kernel.
type action uint32

const (
	allow           action = unix.SECCOMP_RET_ALLOW
	eperm           action = unix.SECCOMP_RET_ERRNO | action(unix.EPERM)
	enosys          action = unix.SECCOMP_RET_ERRNO | action(unix.ENOSYS)
	einval          action = unix.SECCOMP_RET_ERRNO | action(unix.EINVAL)
	eafnosupport    action = unix.SECCOMP_RET_ERRNO | action(unix.EAFNOSUPPORT)
	eprotonosupport action = unix.SECCOMP_RET_ERRNO | action(unix.EPROTONOSUPPORT)
	kill            action = unix.SECCOMP_RET_KILL_PROCESS
)

func (a action) String() string {
	switch a {
	case allow:
		return "allow"
	case kill:
		return "kill"
	}
	return unix.ErrnoName(unix.Errno(a & unix.SECCOMP_RET_DATA))
}

// A check compares the low 32 bits of an argument, under a mask.
type check struct {
	arg   int // 0 to 5
	mask  uint32
	cases []one
	rest  verdict
}

type one struct {
	value uint32
	then  verdict
}

func (c check) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "arg%d", c.arg)
	if c.mask != all {
		fmt.Fprintf(&b, "&%#x", c.mask)
	}
	for _, one := range c.cases {
		if inner, ok := one.then.(check); ok {
			fmt.Fprintf(&b, " %#x:(%v)", one.value, inner)
			continue
		}
		fmt.Fprintf(&b, " %#x:%v", one.value, one.then)
	}
	fmt.Fprintf(&b, " else:%v", c.rest)
	return b.String()
}

// Where a program finds what it decides on: offsets in struct seccomp_data
// (linux/seccomp.h). Both architectures are little-endian, so an argument's low
// half comes first.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// A program is written from its end to its beginning: a BPF jump only goes
// forward, so each finds its target in place, and how far away it is.
type program struct {
	reversed []unix.SockFilter
	returns  map[action]label
}

// A label is an instruction, counted from the end of the program.
type label int

func (p *program) emit(code uint16, yes, no uint8, k uint32) label {
	p.reversed = append(p.reversed, unix.SockFilter{Code: code, Jt: yes, Jf: no, K: k})
	return label(len(p.reversed) - 1)
}

func (p *program) ret(a action) label {
	if at, ok := p.returns[a]; ok && p.distance(at) < near {
		return at
	}
	at := p.emit(unix.BPF_RET|unix.BPF_K, 0, 0, uint32(a))
	p.returns[a] = at
	return at
}

// distance is what a jump emitted next has to skip to get to at.
func (p *program) distance(at label) int { return len(p.reversed) - int(at) - 1 }

// near is how far a conditional jump is let go: it has a byte for the distance,
// less the two instructions that bringing its targets near may put between.
const near = 250

func (p *program) jump(op uint16, k uint32, yes, no label) label {
	for _, target := range []*label{&yes, &no} {
		if d := p.distance(*target); d >= near {
			*target = p.emit(unix.BPF_JMP|unix.BPF_JA, 0, 0, uint32(d))
		}
	}
	return p.emit(unix.BPF_JMP|unix.BPF_K|op, uint8(p.distance(yes)), uint8(p.distance(no)), k)
}

// then makes at what follows whatever is emitted next.
func (p *program) then(at label) {
	if d := p.distance(at); d > 0 {
		p.emit(unix.BPF_JMP|unix.BPF_JA, 0, 0, uint32(d))
	}
}

func (p *program) load(offset uint32) label {
	return p.emit(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, 0, 0, offset)
}

// decide returns where v is decided.
func (p *program) decide(v verdict) label {
	switch v := v.(type) {
	case action:
		return p.ret(v)
	case check:
		next := p.decide(v.rest)
		for i := len(v.cases) - 1; i >= 0; i-- {
			then := p.decide(v.cases[i].then)
			next = p.jump(unix.BPF_JEQ, v.cases[i].value, then, next)
		}
		p.then(next)
		if v.mask != all {
			p.emit(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, 0, 0, v.mask)
		}
		return p.load(offArgs + 8*uint32(v.arg))
	}
	panic(fmt.Sprintf("verdict %T", v))
}

// A span is the numbers from first up to the next span's first, decided alike.
type span struct {
	first uint32
	then  verdict
	at    label
}

// search returns where the number, which is loaded, is looked for among spans.
func (p *program) search(spans []span) label {
	if len(spans) == 1 {
		return spans[0].at
	}
	half := len(spans) / 2
	yes := p.search(spans[half:])
	no := p.search(spans[:half])
	return p.jump(unix.BPF_JGE, spans[half].first, yes, no)
}

// assemble writes the filter of one architecture. A number that calls does not
// name, any beyond the last included, is ENOSYS.
func assemble(arch architecture, calls map[uint32]verdict) []unix.SockFilter {
	p := &program{returns: make(map[action]label)}
	var spans []span
	last := uint32(0)
	for number := range calls {
		last = max(last, number)
	}
	for number := range last + 2 {
		v, named := calls[number]
		if !named {
			v = enosys
		}
		a, plain := v.(action)
		if n := len(spans); n > 0 && plain && spans[n-1].then == verdict(a) {
			continue
		}
		spans = append(spans, span{first: number, then: v})
	}
	for i := range spans {
		spans[i].at = p.decide(spans[i].then)
	}
	native := p.search(spans)
	if arch.x32 {
		native = p.jump(unix.BPF_JSET, x32Bit, p.ret(kill), native)
	}
	p.then(native)
	native = p.load(offNumber)
	p.jump(unix.BPF_JEQ, arch.audit, native, p.ret(kill))
	p.load(offArch)

	code := make([]unix.SockFilter, 0, len(p.reversed))
	for i := len(p.reversed) - 1; i >= 0; i-- {
		code = append(code, p.reversed[i])
	}
	return code
}

const x32Bit = 0x40000000 // __X32_SYSCALL_BIT of asm/unistd.h
