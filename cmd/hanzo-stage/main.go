//go:build linux

// Command hanzo-stage is pid 1 of a sandbox; the launcher starts it.
package main

import "github.com/hanzoai/link/sandbox/stage"

func main() { stage.Main() }
