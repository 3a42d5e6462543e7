package traincmd

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hanzoai/link/cmd/internal/local"
	"github.com/hanzoai/link/cmd/internal/report"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/kai"
)

var fitCommand = term.Command{
	Name: "fit", Args: "STAGE.json | FILE",
	Short: "teach a checkpoint, evaluate it before and after, and record the run",
	Long: `
STAGE.json says everything about a run in one document; the one that a run used
is kept as runs/RUN/stage.json. With a FILE of rows (CSV, TSV, JSON Lines) the
stage is made from the flags instead: --label names the answer's column, and
--encoder or --base what to start from.

The base is evaluated first, as a run of its own; then the steps; then the
trained model on the same rows. Every step is on disk in the spool before the
next one begins. Nothing waits for a network: with HANZO_API set what there is is
sent on the side, and train sync sends the rest.

Ctrl-C saves the state and leaves the run open: train fit --resume RUN goes on
from there, and so it does after a crash, bit for bit.

--dry-run imports and seals the rows, prints what there would be to do and what it
would cost in steps, memory and time, and stops: there is no run and no record.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		var f fitting
		f.machine.Flag(flags)
		f.record.Flag(flags)
		f.folders.flag(flags)
		f.quick.flag(flags)
		flags.StringVar(&f.run, "run", "", "the run's `id`; default run_ and 16 random hex digits")
		flags.StringVar(&f.resume, "resume", "", "go on with this `run`")
		flags.BoolVar(&f.dry.on, "dry-run", false, "say what would be done and what it costs, and do none of it")
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			f.streams, f.progress, f.asJSON = streams, term.NewProgress(streams.Err), *asJSON
			f.quick.given = f.quick.among(flags)
			if f.dry.on {
				return f.rehearse(ctx, args)
			}
			if f.resume != "" {
				if len(args) > 0 || f.quick.given != "" || f.run != "" {
					return term.Usagef("--resume takes no file and nothing about one: the run keeps its own stage")
				}
				return f.again(ctx)
			}
			file, err := term.One(args, "a stage file or a file of rows")
			if err != nil {
				return err
			}
			return f.begin(ctx, file)
		}
	},
}

// folders are where a run's things are kept.
type folders struct{ suites, builds, runs string }

func (f *folders) flag(flags *flag.FlagSet) {
	flags.StringVar(&f.suites, "data", "data", "the `folder` of suites")
	flags.StringVar(&f.builds, "builds", "builds", "the `folder` of sealed builds")
	flags.StringVar(&f.runs, "runs", "runs", "the `folder` of runs")
}

// fitting is one train fit.
type fitting struct {
	machine local.Machine
	record  local.Record
	folders folders
	quick   quick
	run     string
	resume  string
	dry     dryRun

	streams  term.IO
	progress *term.Progress
	asJSON   bool
	part     string // what the last progress was of
}

// The files of a run's folder that begin writes, the last one last: a folder that
// has it can be resumed.
const (
	stageName = "stage.json"
	runName   = "run.json"
)

// dir is the run's folder. A run's name is one before anything is done under it.
func (f *fitting) dir() (string, error) {
	if !record.ValidRun(f.run) {
		return "", term.Usagef("%q is no run id: it begins with a letter or digit and has at most 192 of letters, digits and ._:+@-", f.run)
	}
	return filepath.Join(f.folders.runs, f.run), nil
}

// runFile is runs/RUN/run.json: what resuming needs and the stage does not say.
type runFile struct {
	Build string `json:"build"` // the build's folder
	Base  string `json:"base"`  // the base checkpoint's folder
	At    string `json:"at"`    // the stage file's folder, from which its other paths are
}

// begin makes a run of a file and fits it.
func (f *fitting) begin(ctx context.Context, file string) error {
	if f.run == "" {
		f.run = "run_" + randomHex()
	}
	dir, err := f.dir()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, runName)); err == nil {
		return term.Usagef("%s exists: train fit --resume %s goes on with it, another --run starts anew", dir, f.run)
	}
	src, at, err := f.stageBytes(file, dir)
	if err != nil {
		return err
	}
	stage, err := trainer.ParseStage(src)
	if err != nil {
		return term.Usagef("%s: %w", file, err)
	}
	base := stage.Init.Dir
	if !filepath.IsAbs(base) {
		base = filepath.Join(at, base)
	}
	var model *kai.Model
	if f.quick.encoder == "" {
		if model, err = f.machine.Load(base); err != nil {
			return err
		}
	}
	build, err := buildStage(f.streams.Err, stage, at, f.folders)
	if err != nil {
		return err
	}
	opened, err := data.OpenBuild(build)
	if err != nil {
		return term.Refuse(err)
	}
	if err := stage.Enough(opened); err != nil {
		return term.Exit(term.Refused, err)
	}
	if model == nil {
		if model, err = f.makeBase(base); err != nil {
			return err
		}
	}
	if src, err = trainer.Choose(src, model, local.Memory()); err != nil {
		return err
	}
	if stage, err = trainer.ParseStage(src); err != nil {
		return term.Usagef("%s: %w", file, err)
	}
	if err := f.fits(stage, model, at); err != nil {
		return err
	}
	if f.dry.on {
		return f.estimate(ctx, stage, model, opened)
	}
	for _, p := range []*string{&build, &base, &at} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	kept, err := canon.Marshal(runFile{Build: build, Base: base, At: at})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, stageName), src, 0o644); err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, runName), append(kept, '\n'), 0o644); err != nil {
		return err
	}
	if stage.From != "" {
		return f.from(ctx, stage, model, opened, base, at)
	}
	return f.fit(ctx, stage, model, opened, base)
}

// fits refuses what a stage asks of its base or of the spool that they do not have,
// before there is a run.
func (f *fitting) fits(stage trainer.Stage, model *kai.Model, at string) error {
	var s *spool.Spool
	if len(stage.Protect.Capabilities) > 0 || canon.SHA256(stage.From).Valid() {
		var err error
		if s, err = f.record.Open(); err != nil {
			return err
		}
	}
	if stage.From != "" {
		dir, remove, err := fromFolder(s, stage.From, at)
		if err != nil {
			return err
		}
		defer remove()
		if fromKind(dir) != record.KindCheckpoint {
			if err := trainer.Applies(model, dir); err != nil {
				return term.Exit(term.Refused, err)
			}
		}
	}
	return term.Exit(term.Refused, stage.Fits(model, s))
}

// again takes up a run that was interrupted.
func (f *fitting) again(ctx context.Context) error {
	f.run = f.resume
	dir, err := f.dir()
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(dir, runName))
	if errors.Is(err, os.ErrNotExist) {
		return term.Usagef("there is no run %s in %s", f.run, f.folders.runs)
	}
	if err != nil {
		return err
	}
	var kept runFile
	if err := canon.Unmarshal(raw, &kept); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, runName), err)
	}
	src, err := os.ReadFile(filepath.Join(dir, stageName))
	if err != nil {
		return err
	}
	stage, err := trainer.ParseStage(src)
	if err != nil {
		return term.Usagef("%s: %w", filepath.Join(dir, stageName), err)
	}
	build, err := data.OpenBuild(kept.Build)
	if err != nil {
		return term.Refuse(err)
	}
	model, err := f.machine.Load(kept.Base)
	if err != nil {
		return err
	}
	if stage.From != "" {
		return f.from(ctx, stage, model, build, kept.Base, kept.At)
	}
	return f.fit(ctx, stage, model, build, kept.Base)
}

// fit evaluates the base, trains, and shows what came of it.
func (f *fitting) fit(ctx context.Context, stage trainer.Stage, model *kai.Model, build *data.Build, base string) error {
	s, err := f.record.Open()
	if err != nil {
		return err
	}
	stop := sendAside(ctx, s, f.run, f.streams.Err)
	defer stop()
	address, before, err := f.baseline(ctx, s, model, build, base)
	if err != nil {
		return err
	}
	rec, err := local.OpenRun(s, f.run)
	if err != nil {
		return err
	}
	defer rec.Close()
	if cut := rec.Cut(); cut > 0 {
		f.progress.Say("%s: %d bytes of an event that was never acknowledged were cut from the end of the log", f.run, cut)
	}
	result, err := trainer.Fit(ctx, trainer.Config{
		Run: f.run, Stage: stage, Build: build, Model: model, Base: address, Device: model.Device(),
		Recorder: rec, Dir: filepath.Join(f.folders.runs, f.run), Resume: f.resume != "", Baseline: &before,
		By: local.User(), Progress: f.show, Cache: subspaces(f.folders),
	})
	f.progress.Done()
	switch {
	case errors.Is(err, trainer.ErrInterrupted):
		return term.Exit(term.Interrupted, fmt.Errorf("run %s is interrupted after step %d and kept: train fit --resume %s goes on", f.run, result.Steps, f.run))
	case errors.Is(err, data.ErrPurpose):
		return term.Refuse(err)
	case err != nil:
		return err
	}
	for _, w := range result.Warnings {
		if err := rec.Metric(map[string]string{"warning": w.Code, "suite": w.Suite, "text": w.Text}); err != nil {
			return err
		}
	}
	if err := rec.Metric(map[string]any{"protection": result.Protection}); err != nil {
		return err
	}
	if result.Ended != "" {
		if err := rec.Metric(map[string]string{"text": result.Ended}); err != nil {
			return err
		}
	}
	if err := rec.Metric(report.Cut{Cut: result.Cut.Rows}); err != nil {
		return err
	}
	if err := noteEvaluations(rec, result.Evaluations); err != nil {
		return err
	}
	page := filepath.Join(f.folders.runs, f.run, "report.html")
	if err := writeReport(page, s, f.run, before.Run); err != nil {
		return err
	}
	if f.asJSON {
		if err := term.PrintJSON(f.streams.Out, outcomeOf(result, page)); err != nil {
			return err
		}
	} else {
		showResult(f.streams.Out, result, stage, page)
	}
	if result.Verdict != nil && result.Verdict.Verdict != "pass" {
		return term.Exit(term.Rejected, fmt.Errorf("run %s: its gate failed; the checkpoint is kept", f.run))
	}
	return nil
}

// baseline evaluates the base on what the run will be evaluated on, once for a
// base and a build, and returns the base's address too.
func (f *fitting) baseline(ctx context.Context, s *spool.Spool, model *kai.Model, build *data.Build, base string) (canon.SHA256, trainer.Evaluated, error) {
	none := trainer.Evaluated{}
	subject, err := trainer.PutCheckpoint(s, base, "train init")
	if err != nil {
		return "", none, err
	}
	key, err := trainer.BaselineKey(subject, build)
	if err != nil {
		return "", none, err
	}
	runs, err := s.Runs()
	if err != nil {
		return "", none, err
	}
	run := trainer.BaselineRun(key, f.run, runs)
	rec, err := local.OpenRun(s, run)
	if err != nil {
		return "", none, err
	}
	defer rec.Close()
	before, err := trainer.Evaluate(ctx, trainer.EvalConfig{
		Run: run, Build: build, Model: model, Subject: subject, Device: model.Device(),
		Recorder: rec, By: local.User(), Tags: []string{"baseline"}, Progress: f.show,
	})
	f.progress.Done()
	if errors.Is(err, trainer.ErrInterrupted) {
		err = term.Exit(term.Interrupted, fmt.Errorf("run %s is interrupted before its first step: train fit --resume %s goes on", f.run, f.run))
	}
	return subject, before, err
}

// noteEvaluations notes beside the events what the report shows of suites and the
// record has no place for.
func noteEvaluations(rec trainer.Log, list []trainer.SuiteResult) error {
	for _, e := range list {
		if e.Tokens == 0 {
			continue // read back from the record, which does not say what was cut or asked again
		}
		if err := rec.Metric(map[string]report.Flips{"flips": {Evaluation: e.Evaluation, Asked: e.Flips.Asked, Changed: e.Flips.Changed}}); err != nil {
			return err
		}
		if err := rec.Metric(report.Cut{Evaluation: e.Evaluation, Cut: e.Cut.Rows}); err != nil {
			return err
		}
	}
	return nil
}

// show is the progress line. Each part of a run shows at once, however soon it
// comes after the one before.
func (f *fitting) show(p trainer.Progress) {
	if part := string(p.Phase) + p.Suite; part != f.part {
		f.progress.Done()
		f.part = part
	}
	f.progress.Show(progressLine(p))
}

// writeReport draws the run's page.
func writeReport(page string, s *spool.Spool, run, baseline string) error {
	r, err := report.Read(s, run, baseline)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := report.Write(&b, r); err != nil {
		return err
	}
	return durable.WriteFile(page, b.Bytes(), 0o644)
}

func randomHex() string {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic("train: the system has no random numbers: " + err.Error())
	}
	return hex.EncodeToString(b[:])
}
