package trainer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/eval"
	"github.com/hanzoai/link/trainer/kai"
)

var (
	// ErrInterrupted ends a Fit whose context was cancelled: the state is saved
	// and the run is open, to be resumed.
	ErrInterrupted = errors.New("interrupted")
	// ErrFailed ends a Fit whose run was recorded as failed, which is final: a
	// number was not finite, or a resumed step differed.
	ErrFailed = errors.New("run failed")
)

// Config is one run of [Fit].
type Config struct {
	Run    string         // its id, which is also the Recorder's log's
	Stage  Stage          //
	Build  *data.Build    // the stage's data
	Model  *kai.Model     // the base as loaded; trained in place
	Base   canon.SHA256   // the base's checkpoint artifact, held by the Recorder
	Device kernels.Device // the Model's

	Recorder Recorder
	Dir      string     // the run's folder: state/, checkpoint/, capability/ and lora/ go there
	Resume   bool       // go on with the run in Dir, instead of refusing one
	Baseline *Evaluated // the base's own evaluations; needed where the stage has a gate
	Cache    string     // a folder that keeps protected subspaces from run to run; "": none

	// GradientOnly projects the gradient and not the update, which leaks: for
	// test/bench/protection to show how much. Nothing that a person types sets it.
	GradientOnly bool

	By   string   // who runs it
	Job  string   // the job it is for; "" for none
	Tags []string //

	// StateEvery is how much time may pass between saved states: what a kill costs.
	// It changes no bit of the result. 0 is a minute; negative saves every step.
	StateEvery time.Duration
	Progress   func(Progress) // nil: nobody looks

	disk *durable.Disk // where states are written; nil: the machine's
}

// Progress is where a run stands. It is for a person to look at: it comes as
// often as there is news, and says nothing that the record does not.
type Progress struct {
	Phase Phase
	Suite string // the suite being evaluated, "" otherwise

	Step, Steps int     // of the plan; a readout may end earlier
	Epoch       int     // from 1
	Loss        float64 // of the step
	GradNorm    float64
	LR          float64
	Tokens      uint64        // from the start of the run
	Rate        float64       // tokens a second since this process began
	Left        time.Duration // estimated; 0 while unknown
	SelectNLL   float64       // the last look at the select rows; 0: none yet
	Share       float64       // of the gradient's square, what projection removed: the mean so far

	Done, Rows int // rows evaluated, prepared or read, of how many; first none
	Cut        int // training rows whose state does not fit
}

// Phase is a part of a run.
type Phase string

// The parts of a run, in order.
const (
	Preparing   Phase = "prepare"
	Protecting  Phase = "protect" // the base's answers and directions on what is protected
	Reading     Phase = "read"    // a readout's rows, with the base
	Training    Phase = "train"
	Calibrating Phase = "calibrate"
	Evaluating  Phase = "evaluate"
)

// Result is what a run came to.
type Result struct {
	Run    string
	Status event.RunStatus // Completed or Failed; Training where the run is open
	Steps  int
	Tokens uint64

	Checkpoint    canon.SHA256 // the checkpoint artifact; "" before there is one
	CheckpointDir string
	Capability    canon.SHA256 // "" unless the stage's output is a capability

	Cut   eval.Cut // training rows whose state did not fit
	Ended string   // of a readout: after how many epochs it ended, and why; "" in full

	Protection  *Protection // nil of a readout
	Calibration eval.Calibration
	Evaluations []SuiteResult
	Gate        *gate.Gate
	Verdict     *gate.Verdict // nil where the stage has no gate
	Warnings    []Warning
}

// fit is a run of Fit.
type fit struct {
	Config
	rec  recorder
	disk durable.Disk

	config  canon.SHA256 // the addresses of what the run depends on
	plan    canon.SHA256
	weights string // of the base's model.safetensors

	set     trainSet
	kept    *keeper // nil where nothing is protected
	learner learner
	opt     *optimizer
	state   state
	watch   watch
	began   time.Time // of this process
	beganAt uint64    // tokens then
	whole   uint64    // tokens of the whole plan; 0: not added up yet
	last    Progress
	res     Result
}

// learner is the part of training in which full and readout differ.
type learner interface {
	// gradient leaves the gradient of a step's mean loss in the parameters. cross
	// is the part of the loss that is cross-entropy against the targets.
	gradient(step int) (loss, cross float64)
	// after is told that a step, applied, ended; done means that training ends
	// here, before the plan's last step.
	after(ctx context.Context, step int) (done bool, err error)
	// updated is told that a step's update was applied.
	updated(step int) error
	// extra are the tensors of the state beyond the optimizer's.
	extra() []tensor
	// finish leaves the model as it is shipped, calibrated on the select rows.
	finish(ctx context.Context) error
}

// Fit trains, evaluates and records one run; see the package's documentation.
//
// An error that is ErrFailed or ErrInterrupted comes with a Result. Any other
// error leaves the run open where it was: what is wrong can be repaired and the
// run resumed.
func Fit(ctx context.Context, c Config) (Result, error) {
	f, err := newFit(ctx, c)
	if err != nil {
		v := c.Recorder.Run().View() // of a resumed run, where it stood
		return Result{Run: c.Run, Status: event.Training, Steps: int(v.Steps), Tokens: v.Tokens}, interrupted(err)
	}
	return f.end(f.run(ctx))
}

// run is a run in the order in which things happen. Each part appends only what
// the log of a resumed run lacks.
func (f *fit) run(ctx context.Context) error {
	if err := f.begin(); err != nil { // artifacts, RUN_CREATED, DATASET_ATTACHED, TRAIN_STARTED
		return err
	}
	if err := f.train(ctx); err != nil { // STEP_RECORDED, states
		return err
	}
	if err := f.learner.finish(ctx); err != nil { // temperatures
		return err
	}
	if err := f.checkpoint(); err != nil { // CHECKPOINT_CREATED
		return err
	}
	if err := f.evaluate(ctx); err != nil { // EVAL_STARTED, EVAL_COMPLETED
		return err
	}
	if err := f.judge(); err != nil { // GATE_EVALUATED
		return err
	}
	return f.capability()
}

// newFit checks what can be checked before anything is recorded and reads the
// rows.
func newFit(ctx context.Context, c Config) (*fit, error) {
	f := &fit{Config: c, began: time.Now(), disk: durable.On(durable.OS)}
	if c.disk != nil {
		f.disk = *c.disk
	}
	f.rec, f.weights = recorder{c.Recorder, c.Run, "train fit"}, c.Model.SHA256
	f.res = Result{Run: c.Run, Status: event.Training}
	if want := filepath.Base(c.Build.Dir) + "/manifest.json"; c.Stage.Manifest != "" && c.Stage.Manifest != want {
		return nil, fmt.Errorf("trainer: the stage pins the build %s, this one is %s", c.Stage.Manifest, want)
	}
	switch view := f.rec.Run().View(); {
	case view.Ended != nil:
		return nil, fmt.Errorf("trainer: run %s has ended %s: start a new run", c.Run, view.Status)
	case view.Seq > 0 && !c.Resume:
		return nil, fmt.Errorf("trainer: run %s has begun: resume it or start a new run", c.Run)
	}
	if !c.Resume {
		for _, name := range []string{"state", "checkpoint", "capability", "lora"} {
			if _, err := os.Stat(filepath.Join(c.Dir, name)); err == nil {
				return nil, fmt.Errorf("trainer: %s holds another run's %s: resume it or choose another folder", c.Dir, name)
			}
		}
	}
	var err error
	enc := f.Model.Encoder()
	if f.set, err = f.read(ctx, enc); err != nil {
		return nil, err
	}
	if f.kept, err = f.guard(ctx, enc); err != nil {
		return nil, err
	}
	if c.Stage.Mode() == Readout {
		f.learner, err = newReadout(ctx, f)
	} else {
		f.learner, err = newFull(f)
	}
	return f, err
}

// begin records what the run depends on, and takes up a resumed run's state.
func (f *fit) begin() error {
	config, err := f.Stage.Config()
	if err != nil {
		return err
	}
	if f.config, err = f.rec.put(record.KindConfig, config); err != nil {
		return err
	}
	env, err := Environment(f.Device)
	if err != nil {
		return err
	}
	environment, err := f.rec.putJSON(record.KindEnvironment, env)
	if err != nil {
		return err
	}
	plan, err := f.planJSON()
	if err != nil {
		return err
	}
	if f.plan, err = f.rec.put(record.KindPlan, plan); err != nil {
		return err
	}
	gateHash, err := f.gate()
	if err != nil {
		return err
	}
	if err := f.rec.create(event.RunCreated{
		Kind: event.KindTrain, EnvironmentArtifactSHA256: environment, ConfigSHA256: f.config,
		Parents: []canon.SHA256{f.Base}, Seed: f.Stage.Seed, GateSpecHash: gateHash,
		Job: optional(f.Job), Tags: append([]string{}, f.Tags...), By: f.By,
	}); err != nil {
		return err
	}
	started := f.rec.Run().View().Status != event.Created
	for _, role := range []record.Role{record.RoleTrain, record.RoleSelect, record.RoleEvaluate} {
		for _, s := range f.Build.Role(role) {
			if started && !f.rec.attached(s, role) {
				return fmt.Errorf("trainer: run %s does not read dataset %s, which %s holds: its data changed; start a new run", f.Run, s.Dataset.ID, f.Build.Dir)
			}
			if err := f.rec.attach(s, role); err != nil {
				return err
			}
		}
	}
	if !started {
		if _, err := f.rec.Append(event.TrainStarted{
			PlanSHA256: f.plan, Batches: uint64(f.set.plan.Steps()), Tokens: f.total(),
		}); err != nil {
			return err
		}
	}
	return f.takeUp()
}

// takeUp loads the newest state, if there is one.
func (f *fit) takeUp() error {
	f.state = state{Config: f.config, Plan: f.plan, Base: f.Base}
	if f.kept != nil && f.kept.subspace != nil {
		f.state.Subspace = f.kept.subspace.SHA256()
		f.state.Removed = &removal{Layers: map[string]float64{}}
	}
	if f.Stage.Mode() == Readout {
		f.state.Best = &best{}
	}
	s, found, err := loadState(f.Device, f.states(), f.state, append(f.opt.values(), f.learner.extra()...))
	if err != nil {
		return err
	}
	if found {
		f.state = s
		f.opt.restore()
	}
	f.beganAt = f.state.Tokens
	return f.provenance(f.rec.Run().View().EnvironmentArtifactSHA256)
}

func (f *fit) states() string { return filepath.Join(f.Dir, "state") }

// train takes the steps that are left.
func (f *fit) train(ctx context.Context) error {
	saved, every := time.Now(), f.StateEvery
	if every == 0 {
		every = time.Minute
	}
	done := f.state.Best.patient(f.Stage.Patience) || f.state.Cuts > driftCuts
	for step := f.state.Step + 1; step <= f.set.plan.Steps() && !done; step++ {
		if err := f.step(step); err != nil {
			return err
		}
		var err error
		if done, err = f.learner.after(ctx, step); err != nil {
			return err
		}
		last := done || step == f.set.plan.Steps()
		if last || ctx.Err() != nil || every < 0 || time.Since(saved) >= every {
			if err := saveState(f.disk, f.Device, f.states(), f.state, append(f.opt.values(), f.learner.extra()...)); err != nil {
				return err
			}
			saved = time.Now()
		}
		if ctx.Err() != nil && !last {
			return ErrInterrupted
		}
	}
	f.res.Cut = f.set.cut
	f.warn(f.watch.warnings(f.set)...)
	return nil
}

// step takes one step: gradient, record, update. The event is on stable storage
// before a parameter moves.
func (f *fit) step(n int) error {
	lr := f.rates(n)
	loss, cross := f.learner.gradient(n)
	norm := f.opt.norm()
	if err := finite(n, "loss", loss); err != nil {
		return err
	}
	if err := finite(n, "grad_norm", norm); err != nil {
		return err
	}
	batch, err := f.batchIDsHash(n)
	if err != nil {
		return err
	}
	s := event.StepRecorded{
		Step: uint64(n), Tokens: f.state.Tokens + f.tokens(n),
		Loss: loss, GradNorm: norm, LR: lr.recorded(), BatchIDsHash: batch,
	}
	recorded, err := f.rec.Check(s)
	if err != nil {
		return err
	}
	if !recorded {
		if _, err := f.rec.Append(s); err != nil {
			return err
		}
	}
	clipped := f.opt.step(n, norm, lr)
	f.state.Step, f.state.Tokens = n, s.Tokens
	f.watch.step(cross, clipped)
	if err := f.learner.updated(n); err != nil {
		return err
	}
	f.tell(n, s)
	return nil
}

// rates are a step's learning rates, counted from 1. A readout's is constant, and
// it trains no encoder, whatever the stage says of one.
func (f *fit) rates(step int) rates {
	if f.Stage.Mode() == Readout {
		return rates{head: float32(f.Stage.LRHead)}
	}
	r := Span(f.set.plan.Steps(), f.Stage.Warmup, f.Stage.Cool).Rate(step-1) * math.Ldexp(1, -f.state.Cuts)
	return rates{float32(f.Stage.LREncoder * r), float32(f.Stage.LRHead * r)}
}

// A notFinite is a number of a step that cannot be recorded or trained on.
type notFinite struct {
	step  int
	field string
	value float64
}

func (e *notFinite) Error() string {
	return fmt.Sprintf("step %d: %s is %v: lower the learning rates, or look at the batch's rows", e.step, e.field, e.value)
}

func finite(step int, field string, v float64) error {
	if v-v != 0 { // true of NaN and both infinities alone
		return &notFinite{step, field, v}
	}
	return nil
}

// tell reports a step to whoever looks.
func (f *fit) tell(n int, s event.StepRecorded) {
	p := &f.last
	p.Phase, p.Step, p.Steps, p.Epoch = Training, n, f.set.plan.Steps(), f.set.plan.Epoch(n)+1
	p.Loss, p.GradNorm, p.LR, p.Tokens, p.Cut = s.Loss, s.GradNorm, s.LR, s.Tokens, f.set.cut.Rows
	if took := time.Since(f.began); took > 0 && s.Tokens > f.beganAt {
		p.Rate = float64(s.Tokens-f.beganAt) / took.Seconds()
		if f.Stage.Mode() != Readout { // a readout's patience cannot be foretold
			p.Left = time.Duration(float64(f.total()-s.Tokens) / p.Rate * float64(time.Second))
		}
	}
	f.report(*p)
}

func (f *fit) report(p Progress) {
	if f.Progress != nil {
		f.Progress(p)
	}
}

// end records how the run ended. An error that another try may not meet leaves
// it open.
func (f *fit) end(err error) (Result, error) {
	f.res.Steps, f.res.Tokens = f.state.Step, f.state.Tokens
	err = interrupted(err)
	c := event.RunCompleted{Status: event.Completed, Steps: uint64(f.state.Step), Tokens: f.state.Tokens, Batches: uint64(f.state.Step)}
	_, bad := errors.AsType[*notFinite](err)
	switch {
	case err == nil:
	case bad || errors.Is(err, eval.ErrNotFinite) || errors.Is(err, event.ErrDiverged):
		why := err.Error()
		c.Status, c.Error = event.Failed, &why
		if v := f.rec.Run().View(); c.Steps < v.Steps { // a resumed run failed before where it stood
			c.Steps, c.Tokens, c.Batches = v.Steps, v.Tokens, v.Batches
		}
		err = fmt.Errorf("trainer: %w: %w", ErrFailed, err)
	default:
		return f.res, fmt.Errorf("trainer: run %s is left open: %w", f.Run, err)
	}
	if _, e := f.rec.Append(c); e != nil {
		return f.res, errors.Join(err, e)
	}
	f.res.Status = c.Status
	return f.res, err
}

// interrupted is err, and ErrInterrupted where a context was cancelled.
func interrupted(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return ErrInterrupted
	}
	return err
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
