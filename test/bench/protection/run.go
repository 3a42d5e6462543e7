package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/kai"
)

// A variant is a way to protect: what its stage says beyond what all say.
type variant struct {
	name         string
	overlay      string // JSON; a protect in it gets the suites
	gradientOnly bool
}

var variants = []variant{
	{"unprotected", `{"protect": {"projection": {"strength": 0}, "distillation": false, "drift": 100}}`, false},
	{"gradient-only", `{"protect": {"projection": {"strength": 1}, "distillation": false}}`, true},
	{"projection", `{"protect": {"projection": {"strength": 1}, "distillation": false}}`, false},
	{"distillation", `{"protect": {"projection": {"strength": 0}, "distillation": true}}`, false},
	{"both", `{"protect": {"projection": {"strength": 1}, "distillation": true, "drift": null}}`, false},
	{"default", `{"protect": {}}`, false},
}

// A run is one training of a target.
type run struct {
	target  suite
	variant variant
	seed    uint64
}

func (b *bench) run(target, name string, seed uint64) (run, error) {
	s, err := findSuite(target)
	if err != nil {
		return run{}, err
	}
	for _, v := range variants {
		if v.name == name {
			return run{s, v, seed}, nil
		}
	}
	return run{}, fmt.Errorf("there is no variant %q", name)
}

func (r run) String() string { return fmt.Sprintf("%s/%s/%d", r.target.name, r.variant.name, r.seed) }

// dir is the run's folder. Two variants that say the same thing have one: the
// default is some variant of the table, and is not run twice.
func (r run) dir(b *bench) string {
	mine, err := b.config(r)
	for _, v := range variants {
		if err != nil {
			break // as the run itself will say
		}
		other := run{r.target, v, r.seed}
		if c, err := b.config(other); err == nil && string(c) == string(mine) && v.gradientOnly == r.variant.gradientOnly {
			r = other
			break
		}
	}
	return filepath.Join(b.dir, "runs", strings.ReplaceAll(r.String(), "/", "-"))
}

// config is the run's stage with its defaults filled in.
func (b *bench) config(r run) ([]byte, error) {
	src, err := b.stage(r)
	if err != nil {
		return nil, err
	}
	stage, err := trainer.ParseStage(src)
	if err != nil {
		return nil, err
	}
	return stage.Config()
}

// maxLen is how many tokens of a state are read, by the base and after: it bounds
// how long the table takes.
const maxLen = 48

// take is a suite's part of a stage. One that only judges trains on no row.
func (s suite) take(judges bool) map[string]any {
	t := map[string]any{
		"suite": s.name, "file": s.name + ".jsonl", "state": []string{"text"}, "label": "label", "split": "split",
		"instructions": s.question,
	}
	if judges {
		t["rows"] = 0
	}
	return t
}

// baseStage is the stage that makes the base.
func baseStage() ([]byte, error) {
	var takes []any
	for _, s := range protected {
		takes = append(takes, s.take(s.name == "clinc150"))
	}
	return json.Marshal(map[string]any{
		"stage": "base", "init": map[string]any{"dir": "minilm-kai"}, "takes": takes,
		"adaptation": map[string]any{"mode": "full"}, "output": map[string]any{"kind": "checkpoint"},
		"lr_encoder": 5e-5, "lr_head": 5e-4, "epochs": 2, "batch_tokens": 2048, "max_len": maxLen, "seed": 1,
	})
}

// stage is a run's stage file.
func (b *bench) stage(r run) ([]byte, error) {
	takes, names := []any{r.target.take(false)}, []string{}
	for _, s := range protected {
		takes, names = append(takes, s.take(true)), append(names, s.name)
	}
	stage := map[string]any{
		"stage": r.target.name, "init": map[string]any{"dir": "base"}, "takes": takes,
		"adaptation": map[string]any{"mode": "full"}, "output": map[string]any{"kind": "checkpoint"},
		"evaluation": map[string]any{"suites": []string{r.target.name}},
		"lr_encoder": b.lrEncoder, "lr_head": b.lrHead, "seed": r.seed,
		"max_steps": b.steps, "batch_tokens": b.tokens, "max_len": maxLen,
		"epochs": 1000, // of which max_steps leaves what it leaves
	}
	var overlay map[string]any
	if err := json.Unmarshal([]byte(r.variant.overlay), &overlay); err != nil {
		return nil, fmt.Errorf("variant %s: %w", r.variant.name, err)
	}
	maps.Copy(stage, overlay)
	if protect, ok := stage["protect"].(map[string]any); ok {
		protect["suites"] = names
	}
	return json.Marshal(stage)
}

// one does a run in this process and writes its outcome.
func (b *bench) one(ctx context.Context, name string) error {
	if name == "base" {
		return b.makeBase(ctx)
	}
	parts := strings.Split(name, "/")
	if len(parts) != 3 || b.base == "" {
		return errors.New("-run is TARGET/VARIANT/SEED, and -base says of which base")
	}
	seed, err := strconv.ParseUint(parts[2], 10, 64)
	if err != nil {
		return err
	}
	r, err := b.run(parts[0], parts[1], seed)
	if err != nil {
		return err
	}
	src, err := b.stage(r)
	if err != nil {
		return err
	}
	model, err := kai.Load(b.base, cpu.New(0))
	if err != nil {
		return err
	}
	l := lesson{bench: b, name: strings.ReplaceAll(name, "/", "-"), dir: r.dir(b), gradientOnly: r.variant.gradientOnly, model: model}
	o := outcome{Target: r.target.name, Variant: r.variant.name, Seed: r.seed, Stage: src, Rows: b.rows, Base: model.SHA256}
	if err := l.seal(src); err != nil {
		return err
	}
	before, err := l.ask(ctx)
	if err != nil {
		return err
	}
	result, err := l.teach(ctx, &before)
	if err != nil {
		return err
	}
	o.Build, o.Steps, o.Tokens = filepath.Base(l.build.Dir), result.Steps, result.Tokens
	o.StepSeconds, o.Seconds = l.stepSeconds, l.seconds
	if err := o.fill(before, result, r.dir(b), b.base); err != nil || b.keep {
		return err
	}
	for _, name := range []string{"spool", "state", "checkpoint", "eval"} {
		if err := os.RemoveAll(filepath.Join(l.dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// makeBase trains the base.
func (b *bench) makeBase(ctx context.Context) error {
	src, err := baseStage()
	if err != nil {
		return err
	}
	dev, fresh := cpu.New(0), filepath.Join(b.dir, "minilm-kai")
	if _, err := os.Stat(fresh); errors.Is(err, os.ErrNotExist) {
		model, _, err := kai.Init(kai.InitConfig{Encoder: b.encoder, Seed: 1}, dev)
		if err != nil {
			return err
		}
		if err := model.Save(fresh); err != nil {
			return err
		}
	}
	b.base = fresh
	l := lesson{bench: b, name: "base", dir: filepath.Join(b.dir, "runs", "base")}
	if l.model, err = kai.Load(fresh, dev); err != nil {
		return err
	}
	if err := l.seal(src); err != nil {
		return err
	}
	_, err = l.teach(ctx, nil)
	return err
}

// A lesson is what train fit does with a stage file, part by part.
type lesson struct {
	*bench
	name, dir    string
	gradientOnly bool
	model        *kai.Model // bench.base as loaded
	stage        trainer.Stage
	build        *data.Build

	stepSeconds, seconds float64 // of a step, and of teach
}

// seal seals the rows that the stage names.
func (l *lesson) seal(src []byte) (err error) {
	if l.stage, err = trainer.ParseStage(src); err != nil {
		return err
	}
	imported := filepath.Join(l.bench.dir, "suites")
	for _, t := range l.stage.Takes {
		if _, err := data.Import(t.Import(l.bench.dir, imported)); err != nil {
			return err
		}
	}
	sealed, err := data.Stage(data.StageConfig{
		Suites: imported, Builds: filepath.Join(l.bench.dir, "builds"),
		Stage: l.stage.Stage, Seed: l.stage.Seed, Takes: l.stage.Data(),
	})
	if err != nil {
		return err
	}
	l.build, err = data.OpenBuild(sealed.Dir)
	return err
}

// ask evaluates the base, once for all runs of a build.
func (l *lesson) ask(ctx context.Context) (trainer.Evaluated, error) {
	var none trainer.Evaluated
	s, err := spool.Open(filepath.Join(l.bench.dir, "baselines"), "", "")
	if err != nil {
		return none, err
	}
	address, err := trainer.PutCheckpoint(s, l.base, "bench")
	if err != nil {
		return none, err
	}
	key, err := trainer.BaselineKey(address, l.build)
	if err != nil {
		return none, err
	}
	runs, err := s.Runs()
	if err != nil {
		return none, err
	}
	name := trainer.BaselineRun(key, l.name, runs)
	rec, err := open(s, name)
	if err != nil {
		return none, err
	}
	defer rec.Close()
	return trainer.Evaluate(ctx, trainer.EvalConfig{
		Run: name, Build: l.build, Model: l.model, Subject: address, Device: l.model.Device(),
		Recorder: rec, By: "bench", Progress: l.show,
	})
}

// teach trains the model and evaluates it.
func (l *lesson) teach(ctx context.Context, before *trainer.Evaluated) (trainer.Result, error) {
	s, err := spool.Open(filepath.Join(l.dir, "spool"), "", "")
	if err != nil {
		return trainer.Result{}, err
	}
	address, err := trainer.PutCheckpoint(s, l.base, "bench")
	if err != nil {
		return trainer.Result{}, err
	}
	rec, err := open(s, l.name)
	if err != nil {
		return trainer.Result{}, err
	}
	defer rec.Close()
	began, from, first := time.Now(), 0, time.Time{}
	result, err := trainer.Fit(ctx, trainer.Config{
		Run: l.name, Stage: l.stage, Build: l.build, Model: l.model, Base: address, Device: l.model.Device(),
		Recorder: rec, Dir: l.dir, Resume: rec.Run().View().Seq > 0, Baseline: before, By: "bench",
		Cache: filepath.Join(l.bench.dir, "subspaces"), GradientOnly: l.gradientOnly,
		Progress: func(p trainer.Progress) {
			switch {
			case p.Phase != trainer.Training:
			case from == 0:
				from, first = p.Step, time.Now()
			default:
				l.stepSeconds = time.Since(first).Seconds() / float64(p.Step-from)
			}
			l.show(p)
		},
	})
	l.seconds = time.Since(began).Seconds()
	return result, err
}

// show says where a run stands, now and then.
func (l *lesson) show(p trainer.Progress) {
	switch {
	case p.Phase == trainer.Training && (p.Step%10 == 0 || p.Step == p.Steps):
		fmt.Fprintf(os.Stderr, "%s: step %d of %d, loss %.4f\n", l.name, p.Step, p.Steps, p.Loss)
	case p.Phase != trainer.Training && p.Done == 0:
		fmt.Fprintf(os.Stderr, "%s: %s %s\n", l.name, p.Phase, p.Suite)
	}
}

// A recording is a run's log and the spool that it stands in.
type recording struct {
	*spool.Spool
	*spool.Log
}

func (r recording) Close() error { return r.Log.Close() }

// open opens a run's log, a new one or one that was begun.
func open(s *spool.Spool, run string) (recording, error) {
	log, err := s.Create(run)
	if errors.Is(err, spool.ErrExists) {
		log, err = s.Resume(run)
	}
	return recording{s, log}, err
}
