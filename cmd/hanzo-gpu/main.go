// Command hanzo-gpu asks NVIDIA's driver library what GPUs there are, prints the
// answer as one JSON object (facts.NVIDIA) and exits. It takes no arguments and
// reads no environment of its own.
//
// It is a program of its own because the library is NVIDIA's C code in the caller's
// process: where that crashes or hangs, it is here, and the agent goes on without
// this answer. So it is also the only program of this repository that needs cgo.
//
//	0  the answer
//	1  {"error": …}: no library, no driver, or a build without cgo
//	2  called with arguments
//
// A status above that, or a signal, is the library's doing.
//
// Most of the library's functions are looked up when they are first called, for no
// driver has all of them. Where the C compiler looks all of them up at the start
// (Ubuntu's does), build with -ldflags=-extldflags=-Wl,-z,lazy.
//
// No machine of this project's has such a GPU: the tests hold the program to a
// library of their own that says what NVIDIA documents, and compare with
// nvidia-smi where a host has it.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/hanzoai/link/agent/facts"
	"github.com/hanzoai/link/spool/canon"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout)) }

func run(args []string, out io.Writer) int {
	found, status := facts.NVIDIA{Error: "hanzo-gpu takes no arguments"}, 2
	if len(args) == 0 {
		found, status = ask(), 0
		if found.Error != "" {
			status = 1
		}
	}
	if found.GPUs == nil {
		found.GPUs = []facts.NVIDIAGPU{}
	}
	b, err := canon.Marshal(found)
	if err != nil {
		b, status = []byte(`{"error":"the driver's answer cannot be written as JSON","gpus":[]}`), 1
	}
	if _, err := fmt.Fprintf(out, "%s\n", b); err != nil {
		return 1
	}
	return status
}
