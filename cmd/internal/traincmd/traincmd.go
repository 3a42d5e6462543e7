// Package traincmd is the train command: everything a person does to teach a
// model, each step a subcommand. It turns flags into calls of package trainer
// and below, shows progress, and records every run in the spool. It decides
// nothing about training itself.
package traincmd

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/kai"
)

// Program is the train command.
func Program() term.Program {
	return term.Program{
		Name:  "train",
		About: "teach a decision model from labelled text, and keep the record",
		Commands: []term.Command{
			initCommand, importCommand, checkCommand, stageCommand, fitCommand,
			calibrateCommand, askCommand, syncCommand, cancelCommand,
		},
	}
}

// machine is the device that every subcommand computes on.
type machine struct{ threads int }

func (m *machine) flag(flags *flag.FlagSet) {
	flags.IntVar(&m.threads, "threads", 0, "compute on this `number` of threads; 0 is every core. No result depends on it")
}

func (m machine) device() *cpu.Device { return cpu.New(m.threads) }

// recordIn is where runs are recorded.
type recordIn struct{ root string }

func (r *recordIn) flag(flags *flag.FlagSet) {
	flags.StringVar(&r.root, "spool", "", "keep the record under this `folder`; default $HANZO_SPOOL, else ~/.hanzo/spool")
}

func (r recordIn) open() (*spool.Spool, error) { return spool.Open(r.root, "", "") }

// asJSON declares --json.
func asJSON(flags *flag.FlagSet) *bool {
	return flags.Bool("json", false, "print one JSON object instead of text")
}

// printJSON prints v as one canonical line.
func printJSON(w io.Writer, v any) error {
	b, err := canon.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// one is the single argument that a subcommand takes.
func one(args []string, what string) (string, error) {
	if len(args) != 1 {
		return "", term.Usagef("expected one argument, %s, and got %d", what, len(args))
	}
	return args[0], nil
}

// load reads a checkpoint's folder.
func load(dir string, m machine) (*kai.Model, error) {
	if _, err := os.Stat(filepath.Join(dir, "kai.json")); errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(dir, "config.json")); err == nil {
			return nil, term.Usagef("%s is an encoder, not a Kai checkpoint: train init NEW --encoder %s makes one", dir, dir)
		}
		return nil, term.Usagef("%s is no Kai checkpoint (it has no kai.json): train init makes one", dir)
	}
	return kai.Load(dir, m.device())
}

// refused gives an error of the rows its exit status; a file that could not be
// read or written is no fault of theirs.
func refused(err error) error {
	if _, disk := errors.AsType[*fs.PathError](err); disk {
		return err
	}
	return term.Exit(term.Refused, err)
}

// list splits a flag's comma-separated value; the empty string is no value.
func list(s string) []string {
	if s == "" {
		return nil
	}
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}
