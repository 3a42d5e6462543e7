// Command train teaches decision models and keeps the record; train help says
// more.
package main

import (
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/cmd/internal/traincmd"
)

func main() { term.Exec(traincmd.Program()) }
