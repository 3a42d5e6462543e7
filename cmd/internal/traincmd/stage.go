package traincmd

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/data"
)

var stageCommand = term.Command{
	Name: "stage", Args: "STAGE.json",
	Short: "seal the rows that a stage names, as train fit would, and stop there",
	Long: `
Imports the files that the stage's takes name, divides and seals their rows, and
leaves out what also stands in a set that judges. Prints each dataset's id, which
ends in its hash: the same rows are the same dataset, on every machine.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		var f folders
		flags.StringVar(&f.suites, "data", "data", "the `folder` of suites")
		flags.StringVar(&f.builds, "builds", "builds", "the `folder` of sealed builds")
		asJSON := term.AsJSON(flags)
		return func(_ context.Context, streams term.IO, args []string) error {
			file, err := term.One(args, "a stage file")
			if err != nil {
				return err
			}
			src, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			stage, err := trainer.ParseStage(src)
			if err != nil {
				return term.Usagef("%s: %w", file, err)
			}
			if *asJSON {
				r, err := sealStage(streams.Err, stage, filepath.Dir(file), f)
				if err != nil {
					return err
				}
				return term.PrintJSON(streams.Out, r)
			}
			dir, err := buildStage(streams.Out, stage, filepath.Dir(file), f)
			if err == nil {
				fmt.Fprintln(streams.Out, dir)
			}
			return err
		}
	},
}

// exampleExclusions is how many rows that the barrier left out are shown.
const exampleExclusions = 3

// buildStage seals a stage's rows, says what it did, and returns the build's
// folder.
func buildStage(w io.Writer, stage trainer.Stage, at string, f folders) (dir string, err error) {
	r, err := sealStage(w, stage, at, f)
	if err != nil {
		return "", err
	}
	if r.Existed {
		return r.Dir, nil
	}
	for _, s := range r.Sets {
		fmt.Fprintf(w, "%s: %d rows, purpose %s", s.ID, s.Items, s.Purpose)
		if s.Excluded > 0 {
			fmt.Fprintf(w, "; %d left out by the barrier", s.Excluded)
		}
		if s.Cut > 0 {
			fmt.Fprintf(w, "; %d left out by the take", s.Cut)
		}
		fmt.Fprintln(w)
	}
	for _, x := range r.Excluded[:min(len(r.Excluded), exampleExclusions)] {
		fmt.Fprintf(w, "  barrier: %s/%s is %s to %s\n", x.Suite, x.Item, x.Why, x.Against)
	}
	if n := len(r.Excluded); n > exampleExclusions {
		fmt.Fprintf(w, "  and %d more; %s lists all\n", n-exampleExclusions, filepath.Join(r.Dir, "barrier.json"))
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(w, "note: %s\n", warning)
	}
	return r.Dir, nil
}

// sealStage imports the takes that name a file and seals all of them. An import
// that refuses rows says so on w.
func sealStage(w io.Writer, stage trainer.Stage, at string, f folders) (data.StageReport, error) {
	config := data.StageConfig{
		Suites: f.suites, Builds: f.builds, Stage: stage.Stage, Official: stage.Official, Seed: stage.Seed,
		Takes: stage.Data(),
	}
	if stage.Fractions != nil {
		config.Fractions = data.Fractions(*stage.Fractions)
	}
	for _, take := range stage.Takes {
		if take.File == "" {
			continue
		}
		report, err := data.Import(take.Import(at, f.suites))
		if err != nil || len(report.Refused) > 0 {
			showImport(w, report)
		}
		if err != nil {
			return data.StageReport{}, term.Refuse(err)
		}
	}
	r, err := data.Stage(config)
	return r, term.Refuse(err)
}
