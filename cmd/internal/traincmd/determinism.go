package traincmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/hanzoai/link/cmd/internal/local"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/kernels"
	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/kai"
)

var determinismCommand = term.Command{
	Name: "determinism", Args: "STAGE.json | --plan",
	Short: "train a stage twice for 100 steps, and record whether the bits are equal",
	Long: `
Two replicas, A and B, train the stage from one start, one after the other. They
are not repetitions: B computes on another number of threads, in another
fast instruction set where the machine has a second one, and cuts each step into
smaller micro-batches. The weights are hashed after steps 1, 2, 4, 8, 16, 32, 64 and 100.
Where the stage plans fewer steps, its epochs are repeated.

The report is kept in the spool, and train sync sends it. A run is eligible as a
reference when a report of its environment is exact and the environment is not
dirty: built from a commit, with nothing changed.

--plan prints the kernel plan instead: every kernel, with the order of its sums.
The environment of a run has its hash.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		var p probing
		p.record.Flag(flags)
		p.folders.flag(flags)
		term.Natural(flags, &p.threads, "threads", "replica A computes on this `number` of threads, 0 is every core; B on one, or on two where A does")
		plan := flags.Bool("plan", false, "print the kernel plan, train nothing")
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			p.streams, p.progress, p.asJSON = streams, term.NewProgress(streams.Err), *asJSON
			if *plan {
				if len(args) > 0 {
					return term.Usagef("--plan takes no stage: the kernels are the same for all")
				}
				return p.plan()
			}
			file, err := term.One(args, "a stage file")
			if err != nil {
				return err
			}
			return p.probe(ctx, file)
		}
	},
}

// probing is one train determinism.
type probing struct {
	record  local.Record
	folders folders
	threads int

	streams  term.IO
	progress *term.Progress
	asJSON   bool
	part     string // what the last progress was of
}

// plan prints the kernel plan: the canonical JSON that kernel_plan_hash is of, or a
// table.
func (p *probing) plan() error {
	plan := cpu.New(1).Plan()
	if p.asJSON {
		return term.PrintJSON(p.streams.Out, plan)
	}
	hash, err := canon.Of(plan)
	if err != nil {
		return err
	}
	table := term.NewTable(p.streams.Out)
	table.Row("operation", "dtype", "shape", "kernel", "reduction")
	for _, s := range plan {
		table.Row(s.Op, s.DType, s.Shape, s.Kernel, s.Reduction)
	}
	table.Flush()
	fmt.Fprintf(p.streams.Out, "kernel_plan_hash %s\n", hash)
	return nil
}

// devices are those of the two replicas. They differ in all that a result does not
// depend on.
func (p *probing) devices() (a, b kernels.Device, err error) {
	threads, other := p.threads, 1
	if threads == 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	if threads == 1 {
		other = 2
	}
	isas := cpu.ISAs()
	isa := isas[0]
	if len(isas) > 1 && isas[1] != cpu.Scalar { // that is for any machine, and takes ten times as long
		isa = isas[1]
	}
	b, err = cpu.NewISA(isa, other)
	return cpu.New(threads), b, err
}

// probe probes a stage and shows what came of it.
func (p *probing) probe(ctx context.Context, file string) error {
	src, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	stage, err := trainer.ParseStage(src)
	if err != nil {
		return term.Usagef("%s: %w", file, err)
	}
	if stage.From != "" {
		return term.Usagef("%s evaluates what is there (from) and trains nothing to probe", file)
	}
	at := filepath.Dir(file)
	base := stage.Init.Dir
	if !filepath.IsAbs(base) {
		base = filepath.Join(at, base)
	}
	if stage, err = choose(src, file, base); err != nil {
		return err
	}
	dir, err := buildStage(p.streams.Err, stage, at, p.folders)
	if err != nil {
		return err
	}
	build, err := data.OpenBuild(dir)
	if err != nil {
		return term.Refuse(err)
	}
	if err := stage.Enough(build); err != nil {
		return term.Exit(term.Refused, err)
	}
	s, err := p.record.Open()
	if err != nil {
		return err
	}
	defer s.Close()
	a, b, err := p.devices()
	if err != nil {
		return err
	}
	load := func(dev kernels.Device) func() (*kai.Model, error) {
		return func() (*kai.Model, error) { return kai.Load(base, dev) }
	}
	res, err := trainer.Probe(ctx, trainer.ProbeConfig{
		Stage: stage, Build: build, A: load(a), B: load(b), Store: s, Progress: p.show,
	})
	p.progress.Done()
	switch {
	case errors.Is(err, trainer.ErrInterrupted):
		return term.Exit(term.Interrupted, errors.New("interrupted; nothing is recorded of a probe that has not ended"))
	case errors.Is(err, data.ErrPurpose):
		return term.Refuse(err)
	case err != nil:
		return err
	}
	if p.asJSON {
		err = term.PrintJSON(p.streams.Out, probedOutcome(res))
	} else {
		showProbe(p.streams.Out, res)
	}
	if err != nil {
		return err
	}
	if !res.Exact() {
		return fmt.Errorf("the replicas are not the same bits: %s; the report is kept", difference(res))
	}
	return nil
}

// choose settles an adaptation of auto over the base, as train fit does. The base
// is not kept: the replicas load their own.
func choose(src []byte, file, base string) (trainer.Stage, error) {
	model, err := local.Machine{}.Load(base)
	if err != nil {
		return trainer.Stage{}, err
	}
	if src, err = trainer.Choose(src, model, local.Memory()); err != nil {
		return trainer.Stage{}, err
	}
	stage, err := trainer.ParseStage(src)
	if err != nil {
		return stage, term.Usagef("%s: %w", file, err)
	}
	return stage, nil
}

// show is the progress line of a replica.
func (p *probing) show(replica string, at trainer.Progress) {
	if part := replica + string(at.Phase) + at.Suite; part != p.part {
		p.progress.Done()
		p.part = part
	}
	line := progressLine(at)
	if at.Phase == trainer.Training {
		line = fmt.Sprintf("step %d of %d  loss %.4f", at.Step, at.Steps, at.Loss)
	}
	p.progress.Show("replica " + replica + ": " + line)
}

// difference says where the replicas of a probe that is not exact differ.
func difference(res trainer.ProbeResult) string {
	r := res.Report
	switch {
	case r.FirstDivergentStep != nil:
		return fmt.Sprintf("their weights differ after step %d, and after step 100 by %.3g at most", *r.FirstDivergentStep, r.MaxAbsWeightDelta)
	case !res.State:
		return "their weights are equal, and the optimizer's state is not"
	}
	return "their weights are equal, and they answer differently"
}

// shownDigits is how much of a hash a table shows.
const shownDigits = 16

// showProbe prints a probe's result.
func showProbe(w io.Writer, res trainer.ProbeResult) {
	table := term.NewTable(w)
	table.Row("replica", "device", "micro-batches", "took")
	for i, r := range []trainer.Replica{res.A, res.B} {
		table.Row("AB"[i:i+1], r.Device, fmt.Sprint(r.Micro), r.Took.Round(100*time.Millisecond).String())
	}
	table.Flush()
	fmt.Fprintln(w)
	r := res.Report
	table.Row("after step", "weights of A", "weights of B", "")
	row := func(step string, a, b canon.Hash) {
		verdict := "equal"
		if a != b {
			verdict = "different"
		}
		table.Row(step, a.Hex()[:shownDigits], b.Hex()[:shownDigits], verdict)
	}
	row("0", r.Probe.WeightsHash, r.Probe.WeightsHash)
	for _, s := range r.Probe.Steps {
		row(fmt.Sprint(s.Step), s.A, s.B)
	}
	table.Flush()
	fmt.Fprintln(w)
	if last := record.ProbeSteps[len(record.ProbeSteps)-1]; uint64(res.Planned) < last {
		fmt.Fprintf(w, "the stage plans %d steps: its epochs were repeated to make %d\n", res.Planned, last)
	}
	state := "is equal too"
	if !res.State {
		state = "is different"
	}
	fmt.Fprintf(w, "the optimizer's state at the end %s\n", state)
	if res.Selected == 0 {
		fmt.Fprintln(w, "the stage holds no rows out: no answers were compared")
	} else {
		fmt.Fprintf(w, "of %d answers on held-out rows %.4g %% agree\n", res.Selected, 100*r.PredictionAgreement)
	}
	if r.Exact {
		fmt.Fprintln(w, "exact: after every probed step the replicas had the same bits")
	} else {
		fmt.Fprintf(w, "not exact: after step %d the replicas had other bits; at the end weights differ by at most %.3g, relatively by %.3g\n",
			*r.FirstDivergentStep, r.MaxAbsWeightDelta, r.MaxRelWeightDelta)
	}
	if res.Environment.Dirty {
		fmt.Fprintln(w, "the environment is dirty (built from no commit, or with changes): its runs are no references")
	}
	fmt.Fprintf(w, "environment %s\nreport %s\n", r.EnvironmentArtifactSHA256, res.Hash)
}

// probeOutcome is a probe's result, as --json prints it.
type probeOutcome struct {
	Report     record.DeterminismReport `json:"report"`
	ReportHash canon.Hash               `json:"report_hash"`
	Optimizer  bool                     `json:"optimizer_equal"`
	Planned    int                      `json:"planned_steps"` // of the stage; under 100, its epochs were repeated
	Selected   int                      `json:"selected"`      // answers compared
	Dirty      bool                     `json:"dirty"`         // of the environment
	Replicas   []replicaOutcome         `json:"replicas"`      // A, B
}

type replicaOutcome struct {
	Device  string  `json:"device"`
	Micro   int     `json:"micro_batches"`
	Seconds float64 `json:"seconds"`
}

func probedOutcome(res trainer.ProbeResult) probeOutcome {
	out := probeOutcome{
		Report: res.Report, ReportHash: res.Hash, Optimizer: res.State, Planned: res.Planned,
		Selected: res.Selected, Dirty: res.Environment.Dirty,
	}
	for _, r := range []trainer.Replica{res.A, res.B} {
		out.Replicas = append(out.Replicas, replicaOutcome{r.Device, r.Micro, r.Took.Seconds()})
	}
	return out
}
