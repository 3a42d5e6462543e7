package trainer

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/kai"
	"github.com/hanzoai/link/trainer/project"
)

// Estimate is what [Fit] of a stage would do, and about what it would cost. What
// is counted is exact: rows, questions, tokens, steps, parameters. Memory is
// planned from the shapes, and time is scaled from a measurement of a moment: on
// a busy machine, or for steps much larger than the sample, it is off.
type Estimate struct {
	Stage string `json:"stage"`
	Build string `json:"build"` // its folder
	Mode  string `json:"mode"`  // Full, Readout or LoRA; "from" where nothing is trained
	Chose string `json:"chose"` // what Auto chose and why; "" of a mode that was asked for

	Sets []SetEstimate `json:"sets"` // by suite, as a build lists them

	Epochs    int    `json:"epochs"`    // of the plan: those that its steps reach
	Steps     int    `json:"steps"`     // at most: a readout's patience and a bound on the drift end a run earlier
	Rows      int    `json:"rows"`      // target rows an epoch reads, repeats counted
	Tokens    uint64 `json:"tokens"`    // context tokens of the whole plan's target rows
	Preserved uint64 `json:"preserved"` // and of the preservation rows beside them

	Parameters int `json:"parameters"` // all of the model
	Trained    int `json:"trained"`    // those that training moves, an adapter's factors for an adapter

	Memory     MemoryEstimate      `json:"memory"`
	Protection *ProtectionEstimate `json:"protection"` // null where no subspace is built
	Time       TimeEstimate        `json:"time"`
}

// SetEstimate is one set of the build as the model reads it.
type SetEstimate struct {
	Suite     string      `json:"suite"`
	Split     string      `json:"split"` // "keep" is the preservation set
	Dataset   string      `json:"dataset"`
	Role      record.Role `json:"role"`
	Target    bool        `json:"target"`    // the gate asks that its suite improves
	Protected bool        `json:"protected"` // or that it does not lose
	Rows      int         `json:"rows"`
	Questions int         `json:"questions"`
	Tokens    uint64      `json:"tokens"` // of contexts
	Cut       int         `json:"cut"`    // rows whose state does not fit
}

// MemoryEstimate is the memory of training, in bytes, on the device. A run takes
// somewhat more: its rows, the program, and what a device rounds up.
type MemoryEstimate struct {
	Weights     uint64 `json:"weights"`
	Bases       uint64 `json:"bases"`   // the base's value of what is trained
	Changes     uint64 `json:"changes"` // the change from it, which is what is optimised
	Moments     uint64 `json:"moments"`
	Gradients   uint64 `json:"gradients"`   // sums and their open blocks
	Subspace    uint64 `json:"subspace"`    // at the cap, with scratch
	Activations uint64 `json:"activations"` // of the largest micro-batch and its step's options
	Total       uint64 `json:"total"`
}

// ProtectionEstimate is what building the subspace costs.
type ProtectionEstimate struct {
	Rows   int     `json:"rows"`   // of all suites, that it is built from
	Layers int     `json:"layers"` //
	Cached bool    `json:"cached"` // it stands in the cache: nothing is built
	Passes float64 `json:"passes"` // its cost in training passes over those rows
	Memory uint64  `json:"memory"` // bytes while it is built, on the device and the host
}

// TimeEstimate is time in seconds. The rate behind it is of one small step
// forward and back, Sample context tokens in Measured seconds.
type TimeEstimate struct {
	Protect  float64 `json:"protect"`  // the base's answers on the preservation rows, and the subspace
	Train    float64 `json:"train"`    // the steps, or a readout's reading of its rows
	Evaluate float64 `json:"evaluate"` // before and after, and calibrating
	Total    float64 `json:"total"`

	Sample   int     `json:"sample"`
	Measured float64 `json:"measured"`
}

// sampleTokens is about how many context tokens the measured step reads: enough
// for its products to run at their speed, few enough that a large model on a slow
// machine is measured in seconds.
const sampleTokens = 256

// DryRun says what Fit would do. It reads every row of the build and runs one
// small step and, beside a subspace, the eigenvectors of one layer; it records
// nothing and writes nothing. Of c it reads Stage, Build, Model, Device, Cache and
// Progress. The model is not to be trained afterwards: gradients are left in it.
func DryRun(ctx context.Context, c Config) (Estimate, error) {
	d := dry{fit: &fit{Config: c}, shapes: shapesOf(c.Model)}
	d.weights = c.Model.SHA256
	e := &d.estimate
	e.Stage, e.Build, e.Mode, e.Chose = c.Stage.Stage, c.Build.Dir, c.Stage.Mode(), c.Stage.Adaptation.Chose
	e.Parameters = c.Model.Size()
	e.Memory.Weights = 4 * uint64(e.Parameters)
	if c.Stage.From != "" {
		e.Mode = "from"
	}
	if err := d.run(ctx); err != nil {
		return Estimate{}, interrupted(err)
	}
	return d.estimate, nil
}

// dry is a dry run under way.
type dry struct {
	*fit
	shapes   shapes
	estimate Estimate
	texts    *kai.Texts

	forward map[string]float64 // multiply-adds of reading the sets, by split
	sample  []kai.Input        // of the step that is measured
}

func (d *dry) run(ctx context.Context) error {
	e, enc := &d.estimate, d.Model.Encoder()
	d.texts = enc.Texts
	if err := d.limits(); err != nil {
		return err
	}
	kept, err := d.count(ctx, enc)
	if err != nil {
		return err
	}
	training := e.Mode == Full || e.Mode == LoRA
	if e.Mode != "from" {
		if d.set, err = d.read(ctx, enc); err != nil {
			return err
		}
		e.Steps, e.Rows = d.set.plan.Steps(), len(d.set.rows)
		for step := 1; step <= e.Steps; step++ {
			e.Tokens += d.set.targets(step)
		}
		e.Epochs = d.set.plan.Epoch(e.Steps) + 1
		d.sample = nil
		for _, r := range d.set.plan.Rows(1) {
			if d.sample = append(d.sample, d.set.inputs[r]...); contextTokens(d.sample) >= sampleTokens {
				break
			}
		}
	}
	if training {
		if err := d.parameters(); err != nil {
			return err
		}
	}
	rate, err := d.measure(training)
	if err != nil {
		return err
	}
	t := &e.Time
	t.Evaluate = rate * (2*d.forward["test"] + 2*d.forward["sealed"] + d.forward["dev"])
	switch {
	case training:
		t.Protect = rate * d.forward["keep"]
		if err := d.protection(rate, kept); err != nil {
			return err
		}
		t.Train = rate * d.steps(kept)
	case e.Mode == Readout:
		t.Train = rate * (d.forward["train"] + d.forward["dev"])
	}
	t.Total = t.Protect + t.Train + t.Evaluate
	m := &e.Memory
	m.Total = m.Weights + m.Bases + m.Changes + m.Moments + m.Gradients + m.Subspace + m.Activations
	return nil
}

// count reads every set. It returns the preservation rows by suite, in order.
func (d *dry) count(ctx context.Context, enc *kai.Encoder) (kept []keptRow, err error) {
	d.forward = map[string]float64{}
	s := d.Stage
	for _, set := range d.Build.Sets {
		rows, err := set.Rows()
		if err != nil {
			return nil, err
		}
		at := SetEstimate{
			Suite: set.Suite, Split: set.Split, Dataset: set.Dataset.ID, Role: set.Role, Rows: len(rows),
			Target: slices.Contains(s.Evaluation.Suites, set.Suite), Protected: slices.Contains(s.Protect.Suites, set.Suite),
		}
		seen := map[int]bool{} // option texts: a predictor reads each once
		for i, row := range rows {
			if i%1024 == 0 {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				d.report(Progress{Phase: Preparing, Done: i, Rows: len(rows)})
			}
			in, err := enc.Encode(row)
			if err != nil {
				return nil, fmt.Errorf("trainer: item %s: %w", row.ID, err)
			}
			w := d.work(in, seen)
			d.forward[set.Split] += d.shapes.products(w)
			at.Questions += len(in)
			at.Tokens += uint64(w.context)
			if slices.ContainsFunc(in, func(q kai.Input) bool { return q.Cut > 0 }) {
				at.Cut++
			}
			if set.Kept() {
				kept = append(kept, keptRow{suite: set.Suite, inputs: in})
			}
			if set.Role == record.RoleEvaluate && contextTokens(d.sample) < sampleTokens {
				d.sample = append(d.sample, in...) // of a stage that trains nothing
			}
		}
		d.estimate.Sets = append(d.estimate.Sets, at)
	}
	return kept, nil
}

// keptRow is one row of the preservation set.
type keptRow struct {
	suite  string
	inputs []kai.Input
}

// parameters counts what is trained and the memory that it takes, and gives the
// model its gradients.
func (d *dry) parameters() error {
	e, m := &d.estimate, &d.estimate.Memory
	learns, err := d.Stage.learns(d.Model)
	if err != nil {
		return err
	}
	largest := 0
	for _, p := range d.Model.Params() {
		if !learns(p.Name) {
			continue
		}
		n := p.W.Len
		m.Bases += 4 * uint64(n)
		m.Gradients += 8 * uint64(n)
		largest = max(largest, n)
		if e.Mode == LoRA {
			e.Trained += d.Stage.Adaptation.Rank * (p.Shape[0] + p.Shape[1])
		} else {
			e.Trained += n
		}
	}
	d.Model.Train(func(name string) bool { return !learns(name) })
	projected := d.Stage.Protect.Projection != nil
	switch {
	case e.Mode == LoRA:
		m.Bases += 4 * uint64(largest) // the change that an adapter writes
		m.Gradients += 4 * uint64(e.Trained)
	case projected:
		m.Subspace += 8 * uint64(largest) // the update, and the decay
	}
	m.Changes, m.Moments = 4*uint64(e.Trained), 8*uint64(e.Trained)
	for _, l := range d.Model.Linears() {
		if projected && slices.ContainsFunc(l.Params, func(p *kai.Param) bool { return learns(p.Name) }) {
			rank := d.Stage.Protect.Projection.subspace().Most(l.In)
			m.Subspace += 4 * uint64(rank*l.In+rank*l.Out)
		}
	}
	for step := 1; step <= e.Steps; step++ {
		options := 0
		for _, o := range d.distinct(d.set.plan.Rows(step)) {
			options += d.texts.Tokens(o)
		}
		for _, rows := range d.set.plan.Micro(step) {
			var w work
			for _, r := range rows {
				w = w.plus(d.work(d.set.inputs[r], nil))
			}
			w.options = options
			m.Activations = max(m.Activations, 4*uint64(d.shapes.activations(w, d.Model.Budget.Options)))
		}
	}
	return nil
}

// distinct are the option texts of rows, each once.
func (d *dry) distinct(rows []int) []int {
	var list []int
	for _, r := range rows {
		for _, in := range d.set.inputs[r] {
			list = append(list, in.Options...)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// measure runs the sample, forward and back where there is training, and returns
// the seconds of one multiply-add.
func (d *dry) measure(training bool) (rate float64, err error) {
	if len(d.sample) == 0 {
		return 0, nil
	}
	t := &d.estimate.Time
	w := d.work(d.sample, map[int]bool{})
	t.Sample = w.context
	run := func() { d.Model.NewPredictor().Predict(d.texts, d.sample) }
	passes := 1.
	if training {
		passes = 3 // forward, and the gradients of the inputs and of the weights
		run = func() { d.Model.Step(d.texts, [][]kai.Input{d.sample}, kai.Objective{}) }
	}
	run() // the first allocates
	began := time.Now()
	run()
	t.Measured = time.Since(began).Seconds()
	return t.Measured / (passes * d.shapes.products(w)), nil
}

// protection estimates the subspace, from the kept rows that it is built from. It
// mirrors what project.Builder multiplies for a row; the eigenvectors, which run
// on the host, are measured in the smallest layer and grow with the cube of its
// width.
func (d *dry) protection(rate float64, kept []keptRow) error {
	p := d.Stage.Protect.Projection
	if p == nil {
		return nil
	}
	layers := d.Model.Linears()
	e := &ProtectionEstimate{Layers: len(layers)}
	d.estimate.Protection = e
	if d.Cache != "" {
		key, err := d.subspaceKey()
		if err != nil {
			return err
		}
		_, err = os.Stat(filepath.Join(d.Cache, key))
		e.Cached = err == nil
	}
	taken := map[string]int{}
	var cost, pass float64 // multiply-adds
	for _, row := range kept {
		if taken[row.suite] == p.Rows {
			continue
		}
		taken[row.suite]++
		e.Rows++
		w := d.work(row.inputs, map[int]bool{})
		pass += 3 * d.shapes.products(w)
		cost += d.shapes.products(w) // the base's logits
		for _, in := range row.inputs {
			if len(in.Options) > rivals {
				in.Options = in.Options[:rivals] // the hardest: about as long as the others
			}
			w := d.work([]kai.Input{in}, map[int]bool{})
			cost += 2 * d.shapes.products(w) // forward, and the gradient of the inputs
			for _, l := range layers {
				t := d.shapes.tokens(l.Name, w)
				byGram := t*t*(l.Out+l.In) + t*l.In*l.In
				byG := t*l.Out*l.In + l.Out*l.In*l.In
				cost += float64(min(byGram, byG))
			}
		}
	}
	for _, l := range layers {
		e.Memory += uint64(l.In*l.In) * uint64(4+8+4*len(d.Stage.Protect.Suites)+4*len(d.Stage.Protect.Capabilities))
	}
	seconds := rate * cost
	eigen, err := d.eigenvectors(layers)
	if err != nil {
		return err
	}
	if seconds += eigen; pass > 0 && rate > 0 {
		e.Passes = seconds / (rate * pass)
	}
	if !e.Cached {
		d.estimate.Time.Protect += seconds
	}
	return nil
}

// eigenvectors are the seconds that those of all layers take.
func (d *dry) eigenvectors(layers []kai.Linear) (float64, error) {
	p := d.Stage.Protect.Projection
	least := slices.MinFunc(layers, func(a, b kai.Linear) int { return a.In - b.In }).In
	b := project.NewBuilder(d.Device, []project.Layer{{Name: "sample", In: least, Out: 1}})
	dy, x := d.Device.Alloc(least), d.Device.Alloc(least*least)
	values := make([]float32, least*least)
	for i := range values {
		values[i] = float32(math.Sin(float64(i) * float64(i))) // any full matrix: the work is the same
	}
	d.Device.Write(x, values)
	d.Device.Write(dy, values[:least])
	for i := range least {
		b.Tap(0, dy.Slice(i, i+1), x.Slice(i*least, (i+1)*least), 1)
		b.Row()
	}
	if err := b.Suite("sample"); err != nil {
		if least < 2 {
			return 0, nil // one input has one direction
		}
		return 0, err
	}
	began := time.Now()
	if _, err := b.Build(p.subspace()); err != nil {
		return 0, err
	}
	one, cubes := time.Since(began).Seconds(), 0.
	for _, l := range layers {
		cubes += math.Pow(float64(l.In)/float64(least), 3)
	}
	return one * cubes / float64(min(runtime.GOMAXPROCS(0), len(layers))), nil
}

// steps are the multiply-adds of all steps: target rows, preservation rows beside
// them, and the projections of the gradient and of the update. It counts the
// tokens of the preservation rows.
func (d *dry) steps(kept []keptRow) float64 {
	cycle, at := data.NewCycle(d.Stage.Seed^keepSeed, len(kept)), 0
	distil := d.Stage.Protect.Distillation != nil && len(kept) > 0
	projecting := 0.
	if p := d.Stage.Protect.Projection; p != nil && d.estimate.Mode == Full {
		for _, l := range d.Model.Linears() {
			projecting += 2 * 2 * float64(p.subspace().Most(l.In)) * float64(l.In*l.Out) // xVᵀ and back, twice
		}
	}
	sum := 0.
	for step := 1; step <= d.estimate.Steps; step++ {
		rows, seen := d.set.plan.Rows(step), map[int]bool{}
		for _, r := range rows {
			sum += 3 * d.shapes.products(d.work(d.set.inputs[r], seen))
		}
		for range rows {
			if distil {
				w := d.work(kept[cycle.At(at)].inputs, seen)
				sum += 3 * d.shapes.products(w)
				d.estimate.Preserved += uint64(w.context)
				at++
			}
		}
		sum += projecting
	}
	return sum
}

// work is what reading some inputs takes, in tokens.
type work struct {
	context int
	options int // of the texts that were not read before
	entered int // options that enter the head
}

func (w work) plus(v work) work {
	return work{w.context + v.context, w.options + v.options, w.entered + v.entered}
}

// work adds the inputs' option texts to seen; where that is nil, none counts.
func (d *dry) work(inputs []kai.Input, seen map[int]bool) work {
	var w work
	for _, in := range inputs {
		w.context += len(in.Context)
		w.entered += min(d.Model.Config.TopK, len(in.Options))
		for _, o := range in.Options {
			if seen != nil && !seen[o] {
				seen[o] = true
				w.options += d.texts.Tokens(o)
			}
		}
	}
	return w
}

func contextTokens(inputs []kai.Input) (n int) {
	for _, in := range inputs {
		n += len(in.Context)
	}
	return n
}

// shapes are a model's sizes, by the part that a token passes through.
type shapes struct {
	width           int
	encoder, head   part // the blocks
	option          part // what an option that entered passes through beside them
	largestBackward int  // values a token needs on the way back through one block
}

// part is the linear layers of a part of the model.
type part struct {
	products int // multiply-adds of one token, forward
	values   int // inputs and outputs of a token, which the way back needs
}

func (p *part) add(l kai.Linear) {
	p.products += l.In * l.Out
	p.values += l.In + l.Out
}

func shapesOf(m *kai.Model) shapes {
	var s shapes
	for _, l := range m.Linears() {
		switch {
		case strings.HasPrefix(l.Name, "encoder."):
			s.encoder.add(l)
		case strings.HasPrefix(l.Name, "head.layers."):
			s.head.add(l)
		default:
			s.option.add(l)
		}
		if l.Name == "head.probe" {
			s.width = l.Out
		}
		s.largestBackward = max(s.largestBackward, l.In+l.Out)
	}
	// The gradients of a block's inner values, of its attention's output, of query,
	// key and value, and of what it read.
	s.largestBackward += 5 * s.width
	return s
}

// products are the multiply-adds of a pass forward in the linear layers. The
// attention's, few beside them in rows of some hundred tokens, are left out.
func (s shapes) products(w work) float64 {
	return float64(w.context+w.options)*float64(s.encoder.products) +
		float64(w.context+w.entered)*float64(s.head.products) +
		float64(w.entered)*float64(s.option.products)
}

// tokens is how many tokens a layer reads.
func (s shapes) tokens(layer string, w work) int {
	switch {
	case strings.HasPrefix(layer, "encoder."):
		return w.context + w.options
	case strings.HasPrefix(layer, "head.layers."):
		return w.context + w.entered
	case strings.HasPrefix(layer, "head.retrieval."):
		return 0 // no part in a logit
	}
	return w.entered
}

// activations are the values that a micro-batch holds at once. A block keeps the
// inputs and the outputs of its linear layers. Option texts that fit one pack are
// kept beside the contexts, more of them are read again one pack at a time.
func (s shapes) activations(w work, pack int) int {
	texts := w.context + w.options
	if w.options > pack {
		texts = max(w.context, pack)
	}
	const ends = 4 // in widths a token: the embeddings' sum, the last states, and their gradients
	head := w.context + w.entered
	return texts*(s.encoder.values+ends*s.width) +
		head*(s.head.values+ends*s.width) +
		w.entered*(2*s.option.values) +
		max(w.context, head)*s.largestBackward
}
