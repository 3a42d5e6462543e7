// Package traincmd is the train command: everything a person does to teach a
// model, each step a subcommand. It turns flags into calls of package trainer
// and below, shows progress, and records every run in the spool. It decides
// nothing about training itself.
package traincmd

import "github.com/hanzoai/link/cmd/internal/term"

// Program is the train command.
func Program() term.Program {
	return term.Program{
		Name:  "train",
		About: "teach a decision model from labelled text, and keep the record",
		Commands: []term.Command{
			initCommand, importCommand, checkCommand, stageCommand, fitCommand,
			determinismCommand, calibrateCommand, askCommand, syncCommand, cancelCommand,
		},
	}
}
