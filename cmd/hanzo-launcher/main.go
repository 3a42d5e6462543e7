//go:build linux

// Command hanzo-launcher is the root daemon that starts a linked machine's work;
// systemd starts it by its socket.
package main

import (
	"os"

	"github.com/hanzoai/link/launcher"
)

func main() { os.Exit(launcher.Main()) }
