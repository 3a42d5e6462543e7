package traincmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hanzoai/link/cmd/internal/local"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/kai"
)

// from evaluates what the stage's from names beside the base, and trains nothing:
// a run of kind eval, of a checkpoint, of a capability over the base or of an
// adapter over it.
func (f *fitting) from(ctx context.Context, stage trainer.Stage, model *kai.Model, build *data.Build, base, at string) error {
	s, err := f.record.Open()
	if err != nil {
		return err
	}
	address, before, err := f.baseline(ctx, s, model, build, base)
	if err != nil {
		return err
	}
	dir, subject, err := f.subject(s, stage.From, at, address)
	if err != nil {
		return err
	}
	if canon.SHA256(stage.From).Valid() {
		defer os.RemoveAll(dir)
	}
	if _, err := os.Stat(filepath.Join(dir, "kai.json")); err == nil {
		model, err = f.machine.Load(dir)
		if err != nil {
			return err
		}
	} else if err := trainer.Apply(model, dir); err != nil {
		return term.Exit(term.Refused, err)
	}
	rec, err := local.OpenRun(s, f.run)
	if err != nil {
		return err
	}
	defer rec.Close()
	after, err := trainer.Evaluate(ctx, trainer.EvalConfig{
		Run: f.run, Build: build, Model: model, Subject: subject, Device: model.Device(),
		Recorder: rec, By: local.User(), Progress: f.show, Flips: trainer.FlipRows,
	})
	f.progress.Done()
	if errors.Is(err, trainer.ErrInterrupted) {
		return term.Exit(term.Interrupted, fmt.Errorf("run %s is interrupted: train fit --resume %s goes on", f.run, f.run))
	}
	if err != nil {
		return err
	}
	result := trainer.Result{Run: f.run, Status: event.Completed, CheckpointDir: dir, Checkpoint: subject}
	if result.Evaluations, err = stage.Compare(build, before, after.Suites); err != nil {
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
		return term.PrintJSON(f.streams.Out, outcomeOf(result, page))
	}
	showResult(f.streams.Out, result, stage, page)
	return nil
}

// subject is the folder that from names and its address in the spool. What is
// named by its address is unpacked into a folder that the caller removes.
func (f *fitting) subject(s *spool.Spool, from, at string, base canon.SHA256) (dir string, subject canon.SHA256, err error) {
	if address := canon.SHA256(from); address.Valid() {
		if dir, err = os.MkdirTemp("", "from-*"); err != nil {
			return "", "", err
		}
		if err := trainer.Unpack(s, address, dir); err != nil {
			os.RemoveAll(dir)
			return "", "", term.Exit(term.Refused, fmt.Errorf("from: %w", err))
		}
		return dir, address, nil
	}
	if dir = from; !filepath.IsAbs(dir) {
		dir = filepath.Join(at, dir)
	}
	kind := record.KindLora
	for name, k := range map[string]record.Kind{"kai.json": record.KindCheckpoint, "capability.json": record.KindCapability} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			kind = k
		}
	}
	if _, err := os.Stat(dir); err != nil {
		return "", "", term.Usagef("from: %s is neither an artifact's address nor a folder: %w", from, err)
	}
	parents := []canon.SHA256{base}
	if kind == record.KindCheckpoint {
		parents = nil
	}
	subject, err = trainer.PutFolder(s, kind, dir, "train fit", parents...)
	return dir, subject, err
}
