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
	stop := sendAside(ctx, s, f.run, f.streams.Err)
	defer stop()
	address, before, err := f.baseline(ctx, s, model, build, base)
	if err != nil {
		return err
	}
	dir, remove, err := fromFolder(s, stage.From, at)
	if err != nil {
		return err
	}
	defer remove()
	result := trainer.Result{Run: f.run, Status: event.Completed}
	kind, parents := fromKind(dir), []canon.SHA256{address}
	if kind == record.KindCheckpoint {
		parents = nil
		model, err = f.machine.Load(dir)
	} else {
		err = term.Exit(term.Refused, trainer.Apply(model, dir))
	}
	if err != nil {
		return err
	}
	if result.Checkpoint = canon.SHA256(stage.From); !result.Checkpoint.Valid() { // a folder, to be stored
		result.CheckpointDir = dir
		if result.Checkpoint, err = trainer.PutFolder(s, kind, dir, "train fit", parents...); err != nil {
			return err
		}
	}
	rec, err := local.OpenRun(s, f.run)
	if err != nil {
		return err
	}
	defer rec.Close()
	after, err := trainer.Evaluate(ctx, trainer.EvalConfig{
		Run: f.run, Build: build, Model: model, Subject: result.Checkpoint, Device: model.Device(),
		Recorder: rec, By: local.User(), Progress: f.show, Flips: trainer.FlipRows,
	})
	f.progress.Done()
	if errors.Is(err, trainer.ErrInterrupted) {
		return term.Exit(term.Interrupted, fmt.Errorf("run %s is interrupted: train fit --resume %s goes on", f.run, f.run))
	}
	if err != nil {
		return err
	}
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

// fromFolder is the folder that from names, at relative to the stage file's. What is
// named by its address is unpacked from the spool; remove takes that away again.
func fromFolder(s *spool.Spool, from, at string) (dir string, remove func(), err error) {
	remove = func() {}
	if address := canon.SHA256(from); address.Valid() {
		if dir, err = os.MkdirTemp("", "from-*"); err != nil {
			return "", remove, err
		}
		remove = func() { os.RemoveAll(dir) }
		if err := trainer.Unpack(s, address, dir); err != nil {
			remove()
			return "", remove, term.Exit(term.Refused, fmt.Errorf("from: %w", err))
		}
		return dir, remove, nil
	}
	if dir = from; !filepath.IsAbs(dir) {
		dir = filepath.Join(at, dir)
	}
	if _, err := os.Stat(dir); err != nil {
		return "", remove, term.Usagef("from: %s is neither an artifact's address nor a folder: %w", from, err)
	}
	return dir, remove, nil
}

// fromKind is what a folder holds: a checkpoint, a capability, or else an adapter in
// PEFT's files.
func fromKind(dir string) record.Kind {
	for _, k := range []struct {
		file string
		kind record.Kind
	}{{"kai.json", record.KindCheckpoint}, {"capability.json", record.KindCapability}} {
		if _, err := os.Stat(filepath.Join(dir, k.file)); err == nil {
			return k.kind
		}
	}
	return record.KindLora
}
