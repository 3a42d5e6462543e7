//go:build !linux || !cgo

package main

import "github.com/hanzoai/link/agent/facts"

func ask() facts.NVIDIA {
	return facts.NVIDIA{Error: "hanzo-gpu was built without cgo, which asking NVIDIA's library needs: build it with CGO_ENABLED=1 on Linux"}
}
