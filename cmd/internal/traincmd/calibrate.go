package traincmd

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"

	"github.com/hanzoai/link/cmd/internal/local"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/eval"
)

var calibrateCommand = term.Command{
	Name: "calibrate", Args: "CHECKPOINT BUILD NEW",
	Short: "fit a checkpoint's temperatures on the held-out rows of a build",
	Long: `
Writes CHECKPOINT with other temperatures to the new folder NEW. They are fitted
on the build's select rows, which neither train nor grade; a bucket of questions
with fewer than 50 of them takes its type's temperature, or 1. Readouts keep their
own. train fit does this by itself.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		var m local.Machine
		m.Flag(flags)
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) != 3 {
				return term.Usagef("expected a checkpoint, a build and a new folder, and got %d arguments", len(args))
			}
			model, err := m.Load(args[0])
			if err != nil {
				return err
			}
			build, err := data.OpenBuild(args[1])
			if err != nil {
				return term.Refuse(err)
			}
			var rows []decision.Row
			for _, set := range build.Role(record.RoleSelect) {
				more, err := set.Rows()
				if err != nil {
					return term.Refuse(err)
				}
				rows = append(rows, more...)
			}
			if len(rows) == 0 {
				return term.Exit(term.Refused, fmt.Errorf("%s holds no select rows to calibrate on: give its takes a validation split, or fractions with a dev part", args[1]))
			}
			calibration, err := eval.Calibrate(ctx, model, rows)
			if err != nil {
				return err
			}
			if err := model.Save(args[2]); err != nil {
				return err
			}
			if *asJSON {
				return term.PrintJSON(streams.Out, calibration)
			}
			table := term.NewTable(streams.Out)
			table.Row("questions", "rows", "temperature", "log loss at 1", "log loss")
			for _, name := range slices.Sorted(maps.Keys(calibration.Buckets)) {
				b := calibration.Buckets[name]
				table.Row(name, fmt.Sprint(b.Rows), fmt.Sprintf("%.4f", b.Temperature), fmt.Sprintf("%.4f", b.NLLAt1), fmt.Sprintf("%.4f", b.NLL))
			}
			table.Flush()
			fmt.Fprintf(streams.Out, "%s: calibration %s\n", args[2], calibration.ID)
			return nil
		}
	},
}
