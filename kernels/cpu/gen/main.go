// Command gen writes the vector code of package cpu: one instruction set a run.
//
//	gen -set AVX2 -out avx2_amd64.s -stubs avx2_amd64.go -pkg cpu
//
// Both sets come from the same source, which says each function once; see vec.go
// for what differs.
package main

import (
	"flag"

	. "github.com/mmcloughlin/avo/build"
)

func main() {
	name := flag.String("set", "AVX2", "the instruction set: AVX2 or AVX512")
	flag.Parse()
	s := &set{name: *name, w: 8, table: map[uint32]int{}}
	rows := 6
	if *name == "AVX512" {
		s.w, rows = 16, 12
	}
	s.gemm(rows)
	s.turn("turnA", rows)
	s.turn("turnB", s.w)
	s.interleave("copyA", rows)
	s.interleave("copyB", 2*s.w)
	s.elementwise()
	s.reductions()
	s.constants()
	Generate()
}
