package traincmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/kai"
)

// dryRun is train fit --dry-run.
type dryRun struct {
	on    bool
	cache string // of subspaces, in the folder of the real runs
}

// rehearse is begin up to where a run would be made. What would stand in the run's
// folder, a base over --encoder, stands in one that is removed.
func (f *fitting) rehearse(ctx context.Context, args []string) error {
	if f.run != "" || f.resume != "" {
		return term.Usagef("--dry-run makes no run: leave --run and --resume out")
	}
	file, err := term.One(args, "a stage file or a file of rows")
	if err != nil {
		return err
	}
	f.dry.cache = subspaces(f.folders)
	if f.folders.runs, err = os.MkdirTemp("", "dry-run-*"); err != nil {
		return err
	}
	defer os.RemoveAll(f.folders.runs)
	return f.begin(ctx, file)
}

// subspaces is the folder that keeps protected subspaces from run to run.
func subspaces(f folders) string { return filepath.Join(f.runs, ".subspaces") }

// estimate prints what fit would do with the stage.
func (f *fitting) estimate(ctx context.Context, stage trainer.Stage, model *kai.Model, build *data.Build) error {
	e, err := trainer.DryRun(ctx, trainer.Config{
		Stage: stage, Build: build, Model: model, Device: model.Device(), Cache: f.dry.cache, Progress: f.show,
	})
	f.progress.Done()
	if errors.Is(err, trainer.ErrInterrupted) {
		return term.Exit(term.Interrupted, errors.New("the dry run is interrupted"))
	}
	if err != nil {
		return err
	}
	if f.asJSON {
		return term.PrintJSON(f.streams.Out, e)
	}
	showEstimate(f.streams.Out, e)
	return nil
}

// showEstimate prints an estimate as two tables: the sets, and all else.
func showEstimate(w io.Writer, e trainer.Estimate) {
	sets := term.NewTable(w)
	sets.Row("suite", "", "set", "role", "rows", "questions", "tokens", "cut")
	for _, s := range e.Sets {
		role := ""
		switch {
		case s.Target && s.Protected:
			role = "target, protected"
		case s.Target:
			role = "target"
		case s.Protected:
			role = "protected"
		}
		sets.Row(s.Suite, role, s.Split, string(s.Role), fmt.Sprint(s.Rows), fmt.Sprint(s.Questions), fmt.Sprint(s.Tokens), fmt.Sprint(s.Cut))
	}
	sets.Flush()
	fmt.Fprintln(w)

	t := term.NewTable(w)
	mode := e.Mode
	if e.Chose != "" {
		mode = e.Chose
	}
	t.Row("mode", mode)
	if e.Steps > 0 {
		t.Row("steps", fmt.Sprintf("%d, over %s of %d rows", e.Steps, epochs(e.Epochs), e.Rows))
		tokens := fmt.Sprintf("%d of targets", e.Tokens)
		if e.Preserved > 0 {
			tokens += fmt.Sprintf(", %d of preservation rows", e.Preserved)
		}
		t.Row("tokens", tokens)
	}
	t.Row("parameters", fmt.Sprintf("%.2f million, %.2f trained", float64(e.Parameters)/1e6, float64(e.Trained)/1e6))
	if e.Mode == trainer.Full || e.Mode == trainer.LoRA {
		t.Row("memory", memory(e.Memory))
	}
	if p := e.Protection; p != nil {
		what := fmt.Sprintf("%d rows, %d layers, %.2f training passes over those rows, %s while it is built", p.Rows, p.Layers, p.Passes, term.Bytes(int64(p.Memory)))
		if p.Cached {
			what += "; kept from an earlier run"
		}
		t.Row("subspace", what)
	}
	t.Row("time", fmt.Sprintf("about %s: protect %s, train %s, evaluate %s", about(e.Time.Total), about(e.Time.Protect), about(e.Time.Train), about(e.Time.Evaluate)))
	t.Row("measured on", fmt.Sprintf("%d tokens in %.2f s", e.Time.Sample, e.Time.Measured))
	t.Flush()
	fmt.Fprintf(w, "stage %s over %s: nothing was trained or recorded\n", e.Stage, e.Build)
}

func epochs(n int) string {
	if n == 1 {
		return "1 epoch"
	}
	return fmt.Sprintf("%d epochs", n)
}

// memory is the sum and its parts, those that there are.
func memory(m trainer.MemoryEstimate) string {
	var parts []string
	for _, p := range []struct {
		name string
		size uint64
	}{
		{"weights", m.Weights}, {"base copies", m.Bases}, {"changes", m.Changes}, {"moments", m.Moments},
		{"gradients", m.Gradients}, {"subspace", m.Subspace}, {"activations", m.Activations},
	} {
		if p.size > 0 {
			parts = append(parts, p.name+" "+term.Bytes(int64(p.size)))
		}
	}
	return term.Bytes(int64(m.Total)) + ": " + strings.Join(parts, ", ")
}

// about is a time of which more than two figures would mean nothing.
func about(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < 10*time.Minute:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Minute).String()
}
