// Command hanzo-cloud is the embedded control plane: one process, one folder,
// nothing else to install.
package main

import "github.com/hanzoai/link/cmd/internal/term"

// program is the table of commands, in help's order.
var program = term.Program{
	Name:     "hanzo-cloud",
	About:    "the control plane of training runs, on this machine",
	Commands: []term.Command{serveCommand, tokenCommand, demoCommand},
}

func main() { term.Exec(program) }
