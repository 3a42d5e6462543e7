package trainer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/eval"
	"github.com/hanzoai/link/trainer/kai"
)

// ProbeConfig is one [Probe].
type ProbeConfig struct {
	Stage Stage
	Build *data.Build // the stage's data

	// A and B load the base anew, each on the device of one replica. The devices
	// may differ in all that must not matter, as in their number of threads.
	A, B func() (*kai.Model, error)

	Store    ProbeStore
	Progress func(replica string, p Progress) // nil: nobody looks
}

// ProbeStore keeps what a probe finds: a spool is one.
type ProbeStore interface {
	Store
	PutDeterminism(record.DeterminismReport) (canon.Hash, error)
}

// ProbeResult is what became of two replicas.
type ProbeResult struct {
	Report      record.DeterminismReport
	Hash        canon.Hash         // of the report, as the store holds it
	Environment record.Environment // that of the report

	// State reports that after the last step the optimizer's state is equal too,
	// of which the report says nothing.
	State    bool
	Planned  int // steps of the stage's own plan; under 100, its epochs were repeated
	Selected int // answers on select rows that were compared
	A, B     Replica
}

// Replica is how one of the two computed.
type Replica struct {
	Device string        // for a person
	Micro  int           // micro-batches that the target rows of all steps were cut into; a readout's are its steps
	Took   time.Duration // from loading the base to the last answer
}

// Exact reports whether nothing that was compared differs.
func (r ProbeResult) Exact() bool {
	return r.Report.Exact && r.State && r.Report.PredictionAgreement == 1
}

// probeSteps is how many steps a replica takes.
var probeSteps = int(record.ProbeSteps[len(record.ProbeSteps)-1])

// Probe trains the stage twice from one start, 100 steps each, and records whether
// the weights are the same bits (HIP-1334 §6.2). The replicas run one after the
// other, so that a probe needs the memory of one run and once more the weights.
//
// They are not repetitions. Replica B cuts its steps into micro-batches of at most
// a third of a step's rows, and its device may differ: what Probe finds equal does
// not depend on either. Each builds what the stage protects anew. The schedule is
// that of the stage's plan, of which a long one is broken off after 100 steps; where
// it is shorter, its epochs are repeated. Nothing is evaluated but the select rows,
// and a readout's patience or a bound on the drift ends nothing early.
//
// The config and environment artifacts are those that [Fit] would record, so that
// the report speaks for its runs.
func Probe(ctx context.Context, c ProbeConfig) (ProbeResult, error) {
	if c.Stage.From != "" {
		return ProbeResult{}, errors.New("trainer: the stage evaluates what is there (from) and trains nothing to probe")
	}
	a, err := c.replicate(ctx, "A", c.A, 0)
	if err != nil {
		return ProbeResult{}, interrupted(err)
	}
	b, err := c.replicate(ctx, "B", c.B, max(1, a.rows/3))
	if err != nil {
		return ProbeResult{}, interrupted(err)
	}
	res := ProbeResult{
		Environment: a.environment, State: a.optimizer == b.optimizer, Planned: a.planned, Selected: len(a.answers), A: a.Replica, B: b.Replica,
	}
	if res.Report, err = c.report(a, b); err != nil {
		return res, err
	}
	res.Hash, err = c.Store.PutDeterminism(res.Report)
	return res, err
}

// replica is what is kept of one run.
type replica struct {
	Replica
	environment record.Environment
	start       record.Probe // its hashes before the first step
	weights     []canon.Hash // after each of record.ProbeSteps
	last        []float32    // all weights after the last step, in order of names
	optimizer   canon.Hash   // after the last step
	answers     []string     // to the questions of the select rows, then
	planned     int          // steps of the stage's own plan
	rows        int          // target rows of the largest step
}

// replicate is one run. rows, when it is not 0, caps a micro-batch further.
func (c ProbeConfig) replicate(ctx context.Context, name string, load func() (*kai.Model, error), rows int) (replica, error) {
	began := time.Now()
	model, err := load()
	if err != nil {
		return replica{}, err
	}
	r := replica{Replica: Replica{Device: model.Device().Name()}}
	if r.environment, err = Environment(model.Device()); err != nil {
		return r, err
	}
	f := &fit{
		Config: Config{Stage: c.Stage, Build: c.Build, Model: model, Device: model.Device()},
		rec:    recorder{unrecorded{c.Store}, "", "train determinism"}, disk: durable.On(durable.OS), weights: model.SHA256, began: began,
	}
	if c.Progress != nil {
		f.Progress = func(p Progress) { c.Progress(name, p) }
	}
	f.Stage.EvalEvery = 0 // looking changes nothing
	if rows > 0 && (f.Stage.Budget.Rows == 0 || rows < f.Stage.Budget.Rows) {
		f.Stage.Budget.Rows = rows
	}
	if r.planned, err = f.planProbe(ctx); err != nil {
		return r, err
	}
	if err := r.begin(f); err != nil {
		return r, err
	}
	for step := 1; step <= probeSteps; step++ {
		if err := ctx.Err(); err != nil {
			return r, err
		}
		if err := f.probeStep(ctx, step); err != nil {
			return r, err
		}
		r.rows = max(r.rows, len(f.set.plan.Rows(step)))
		r.Micro++
		if f.Stage.Mode() != Readout {
			r.Micro += len(f.set.plan.Micro(step)) - 1
		}
		if slices.Contains(record.ProbeSteps, uint64(step)) {
			r.weights = append(r.weights, hashTensors(f.Device, f.allWeights()))
		}
	}
	r.optimizer = hashTensors(f.Device, f.opt.values())
	for _, t := range f.allWeights() {
		r.last = append(r.last, hostValues(f.Device, t.mem)...)
	}
	r.answers, err = f.selected(ctx)
	r.Took = time.Since(began)
	return r, err
}

// planProbe reads the rows and makes the learner, over a plan that is long enough.
// It returns how many steps the stage's own has.
func (f *fit) planProbe(ctx context.Context) (planned int, err error) {
	enc := f.Model.Encoder()
	if f.set, err = f.read(ctx, enc); err != nil {
		return 0, err
	}
	if planned = f.set.plan.Steps(); planned < probeSteps {
		// An epoch has a step at least.
		f.Stage.Epochs, f.Stage.MaxSteps, f.Stage.Resources.Steps = max(f.Stage.Epochs, probeSteps), probeSteps, 0
		enc = f.Model.Encoder()
		if f.set, err = f.read(ctx, enc); err != nil {
			return 0, err
		}
	}
	if f.kept, err = f.guard(ctx, enc); err != nil {
		return 0, err
	}
	if f.Stage.Mode() == Readout {
		f.state.Best = &best{}
		f.learner, err = newReadout(ctx, f)
	} else {
		f.learner, err = newFull(f)
	}
	return planned, err
}

// probeStep is fit.step without a record.
func (f *fit) probeStep(ctx context.Context, step int) error {
	lr := f.rates(step)
	loss, _ := f.learner.gradient(step)
	norm := f.opt.norm()
	if err := finite(step, "loss", loss); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	if err := finite(step, "grad_norm", norm); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	f.opt.step(step, norm, lr)
	f.state.Step = step
	if _, err := f.learner.after(ctx, step); err != nil {
		return err
	}
	f.report(Progress{Phase: Training, Step: step, Steps: probeSteps, Loss: loss, GradNorm: norm, LR: lr.recorded()})
	return nil
}

// begin hashes what the replicas share.
//
// Every random number here is a pure function of the stage's seed and of what it is
// drawn for, so the seed is all of the generator's state: its hash is the _hash of
// {"seed":…}. That of the batch ids is the _hash of the list of each step's
// batch_ids_hash.
func (r *replica) begin(f *fit) error {
	r.start.WeightsHash = hashTensors(f.Device, f.allWeights())
	r.start.OptimizerHash = hashTensors(f.Device, f.opt.values())
	var err error
	r.start.RNGHash, err = canon.Of(struct {
		Seed uint64 `json:"seed"`
	}{f.Stage.Seed})
	if err != nil {
		return err
	}
	batches := make([]canon.Hash, probeSteps)
	for i := range batches {
		if batches[i], err = f.batchIDsHash(i + 1); err != nil {
			return err
		}
	}
	r.start.BatchIDsHash, err = canon.Of(batches)
	return err
}

// allWeights are the model's parameters and, of a readout, its own.
func (f *fit) allWeights() []tensor {
	params := f.Model.Params()
	if l, ok := f.learner.(*readout); ok {
		params = slices.Concat(params, l.head.Params())
	}
	var list []tensor
	for _, p := range params {
		list = append(list, tensor{p.Name, p.Shape, p.W})
	}
	slices.SortFunc(list, func(a, b tensor) int { return strings.Compare(a.name, b.name) })
	return list
}

// selected are the answers to the select rows, one a question.
func (f *fit) selected(ctx context.Context) ([]string, error) {
	var answers []string
	switch l := f.learner.(type) {
	case *readout:
		for _, h := range l.answers() {
			top := 0
			for i, z := range h.Logits {
				if z > h.Logits[top] {
					top = i
				}
			}
			answers = append(answers, fmt.Sprint(top))
		}
	case *full:
		if len(l.selects) == 0 {
			return nil, nil
		}
		res, err := eval.Evaluate(ctx, f.Model, l.selects, func(done int) {
			f.report(Progress{Phase: Evaluating, Done: done, Rows: len(l.selects)})
		})
		if err != nil {
			return nil, err
		}
		for _, p := range res.Predictions {
			answers = append(answers, p.Answer)
		}
	}
	return answers, nil
}

// hashTensors is HIP-1334 §6.2's hash: sha256 over, for each tensor in name order,
// its name, 0x00, its dtype's name, 0x00, each dimension as a little-endian u64,
// then its values' little-endian bytes in the master dtype.
func hashTensors(dev kernels.Device, list []tensor) canon.Hash {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b tensor) int { return strings.Compare(a.name, b.name) })
	h := sha256.New()
	b := make([]byte, 0, 1<<16)
	for _, t := range list {
		b = append(b[:0], t.name...)
		b = append(b, "\x00"+masterDType+"\x00"...)
		for _, n := range t.shape {
			b = binary.LittleEndian.AppendUint64(b, uint64(n))
		}
		for _, v := range hostValues(dev, t.mem) {
			if len(b) > cap(b)-4 {
				h.Write(b)
				b = b[:0]
			}
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		h.Write(b)
	}
	return canon.Hash("sha256:" + hex.EncodeToString(h.Sum(nil)))
}

// masterDType is the dtype's name that [Environment] gives.
const masterDType = "f32"

// report compares two replicas.
func (c ProbeConfig) report(a, b replica) (record.DeterminismReport, error) {
	r := record.DeterminismReport{Probe: a.start, KnownNondeterministicOps: []string{}} // package kernels admits none
	switch {
	case !reflect.DeepEqual(a.environment, b.environment):
		return r, errors.New("trainer: the replicas ran in two environments: their devices have other kernel plans")
	case !reflect.DeepEqual(a.start, b.start):
		return r, errors.New("trainer: the replicas did not begin alike: the base or the data changed between them")
	}
	for i, step := range record.ProbeSteps {
		r.Probe.Steps = append(r.Probe.Steps, record.ProbedStep{Step: step, A: a.weights[i], B: b.weights[i]})
	}
	r.FirstDivergentStep = r.Probe.Divergent()
	r.Exact = r.FirstDivergentStep == nil
	for i, x := range a.last {
		x, y := float64(x), float64(b.last[i])
		if d := math.Abs(x - y); d > 0 {
			r.MaxAbsWeightDelta = max(r.MaxAbsWeightDelta, d)
			r.MaxRelWeightDelta = max(r.MaxRelWeightDelta, d/max(math.Abs(x), math.Abs(y)))
		}
	}
	r.PredictionAgreement = 1
	if n := len(a.answers); n > 0 {
		equal := 0
		for i, answer := range a.answers {
			if answer == b.answers[i] {
				equal++
			}
		}
		r.PredictionAgreement = float64(equal) / float64(n)
	}
	config, err := c.Stage.Config()
	if err != nil {
		return r, err
	}
	if r.ConfigSHA256, err = c.put(record.KindConfig, config); err != nil {
		return r, err
	}
	environment, err := canon.Marshal(a.environment)
	if err != nil {
		return r, err
	}
	r.EnvironmentArtifactSHA256, err = c.put(record.KindEnvironment, environment)
	return r, err
}

func (c ProbeConfig) put(kind record.Kind, b []byte) (canon.SHA256, error) {
	a, err := c.Store.Put(record.Artifact{
		Kind: kind, MediaType: kind.MediaType(), SchemaVersion: 1, Purpose: record.Train, Parents: []canon.SHA256{},
		Producer: record.Producer{Tool: "train determinism", Version: Version()},
	}, bytes.NewReader(b))
	return a.SHA256, err
}

// unrecorded is a Recorder of no run: a probe has none.
type unrecorded struct{ Store }

func (unrecorded) Append(event.Body) (event.Event, error) {
	return event.Event{}, errors.New("trainer: a probe records no event")
}
func (unrecorded) Check(event.StepRecorded) (bool, error) { return false, nil }
func (unrecorded) Metric(any) error                       { return nil }
func (unrecorded) Run() *event.Run                        { return new(event.Run) }
