// Command bench evaluates models, judges runs by frozen gates and draws reports;
// bench help says more.
package main

import (
	"github.com/hanzoai/link/cmd/internal/benchcmd"
	"github.com/hanzoai/link/cmd/internal/term"
)

func main() { term.Exec(benchcmd.Program()) }
