//go:build linux

package main

import (
	"fmt"
	"slices"
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
	enomem          action = unix.SECCOMP_RET_ERRNO | action(unix.ENOMEM)
	einval          action = unix.SECCOMP_RET_ERRNO | action(unix.EINVAL)
	eafnosupport    action = unix.SECCOMP_RET_ERRNO | action(unix.EAFNOSUPPORT)
	eopnotsupp      action = unix.SECCOMP_RET_ERRNO | action(unix.EOPNOTSUPP)
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
	arg   int  // 0 to 5
	high  bool // the high ones instead: a pointer has both
	mask  uint32
	cases []one // at least one
	rest  verdict
}

type one struct {
	value uint32
	then  verdict
}

func (c check) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "arg%d", c.arg)
	if c.high {
		b.WriteString("high")
	}
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
// forward, so each finds its targets in place.
type program struct {
	reversed []unix.SockFilter
	returns  map[action]label
}

// limit is how long a program may get. Up to here every distance fits the byte
// that a conditional jump has for it; the design asks for less than 300, and the
// kernel takes 4096.
const limit = 256

// A label is an instruction, counted from the end of the program.
type label int

func (p *program) emit(code uint16, yes, no uint8, k uint32) label {
	p.reversed = append(p.reversed, unix.SockFilter{Code: code, Jt: yes, Jf: no, K: k})
	return label(len(p.reversed) - 1)
}

func (p *program) load(offset uint32) label {
	return p.emit(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, 0, 0, offset)
}

func (p *program) jump(op uint16, k uint32, yes, no label) label {
	distance := func(at label) uint8 { return uint8(len(p.reversed) - int(at) - 1) }
	return p.emit(unix.BPF_JMP|unix.BPF_K|op, distance(yes), distance(no), k)
}

func (p *program) ret(a action) label {
	at, ok := p.returns[a]
	if !ok {
		at = p.emit(unix.BPF_RET|unix.BPF_K, 0, 0, uint32(a))
		p.returns[a] = at
	}
	return at
}

// decide returns where v is decided.
func (p *program) decide(v verdict) label {
	switch v := v.(type) {
	case action:
		return p.ret(v)
	case check:
		next := p.decide(v.rest)
		for _, one := range slices.Backward(v.cases) {
			then := p.decide(one.then)
			next = p.jump(unix.BPF_JEQ, one.value, then, next)
		}
		if v.mask != all {
			p.emit(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, 0, 0, v.mask)
		}
		offset := offArgs + 8*uint32(v.arg)
		if v.high {
			offset += 4
		}
		return p.load(offset)
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

// assemble writes the filter of one architecture: architecture, number, a binary
// search, and behind it the checks and the returns. A number that calls does not
// name, any beyond the last included, is ENOSYS.
//
// Up to the return a number's path reads nothing but the architecture and the
// number, unless it is checked: so the kernel finds once that a call is always
// allowed, and no longer runs the program for it (since 5.11; see
// seccomp_cache_prepare in kernel/seccomp.c).
func assemble(arch architecture, calls map[uint32]verdict) ([]unix.SockFilter, error) {
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
	search := p.search(spans)
	if arch.x32 {
		p.jump(unix.BPF_JSET, x32Bit, p.ret(kill), search)
	}
	native := p.load(offNumber)
	p.jump(unix.BPF_JEQ, arch.audit, native, p.ret(kill))
	p.load(offArch)

	if len(p.reversed) > limit {
		return nil, fmt.Errorf("%s: %d instructions: keep it to %d", arch.name, len(p.reversed), limit)
	}
	slices.Reverse(p.reversed)
	return p.reversed, nil
}

const x32Bit = 0x40000000 // __X32_SYSCALL_BIT of asm/unistd.h
