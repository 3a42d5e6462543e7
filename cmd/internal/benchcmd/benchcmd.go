// Package benchcmd is the bench command: it evaluates checkpoints, judges runs
// by frozen gates and draws reports. What it measures it records in the spool,
// like every run.
package benchcmd

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/hanzoai/link/cmd/internal/local"
	"github.com/hanzoai/link/cmd/internal/report"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/eval"
)

// Program is the bench command.
func Program() term.Program {
	return term.Program{
		Name:     "bench",
		About:    "evaluate models, judge runs, draw reports",
		Commands: []term.Command{evalCommand, gateCommand, reportCommand},
	}
}

var evalCommand = term.Command{
	Name: "eval", Args: "CHECKPOINT BUILD",
	Short: "answer a build's evaluation rows with a checkpoint, and record the run",
	Long: `
BUILD is a folder that train stage or train fit made. The run it records can be a
gate's baseline. Predictions and scored items are stored beside it.

With --baseline RUN each suite is compared with that run's answers to the same
rows: the change in accuracy with the 95 % interval of a paired bootstrap over
groups of rows, McNemar's exact p, and kl, the mean of KL(baseline‖this) over the
questions in nats.

Some rows of each suite are asked again with their options in other orders. flips
counts the questions whose answer, or any bit of whose probabilities, changed with
the order: anything but 0 is a fault of this program.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		var m local.Machine
		m.Flag(flags)
		var record local.Record
		record.Flag(flags)
		run := flags.String("run", "", "the run's `id`; default from the checkpoint and the build")
		suites := flags.String("suites", "", "answer only these `suites`, separated by commas")
		baseline := flags.String("baseline", "", "compare with this `run`, of the same build")
		flips := flags.Int("flips", trainer.FlipRows, "ask this `number` of a suite's rows in other orders of their options")
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) != 2 {
				return term.Usagef("expected a checkpoint and a build, and got %d arguments", len(args))
			}
			model, err := m.Load(args[0])
			if err != nil {
				return err
			}
			build, err := data.OpenBuild(args[1])
			if err != nil {
				return term.Refuse(err)
			}
			if *flips < 0 {
				return term.Usagef("--flips %d: a number of rows is not negative", *flips)
			}
			only := term.List(*suites)
			if err := trainer.EvaluateSuites(build, only); err != nil {
				return term.Exit(term.Refused, err)
			}
			s, err := record.Open()
			if err != nil {
				return err
			}
			var before *trainer.Evaluated
			if *baseline != "" {
				if before, err = recorded(s, *baseline); err != nil {
					return err
				}
			}
			subject, err := trainer.PutCheckpoint(s, args[0], "bench eval")
			if err != nil {
				return err
			}
			if *run == "" {
				if *run, err = evalRun(subject, build, only); err != nil {
					return err
				}
			}
			rec, err := local.OpenRun(s, *run)
			if err != nil {
				return err
			}
			defer rec.Close()
			progress := term.NewProgress(streams.Err)
			out, err := trainer.Evaluate(ctx, trainer.EvalConfig{
				Run: *run, Build: build, Suites: only, Model: model, Subject: subject, Device: model.Device(),
				Recorder: rec, Flips: *flips, By: local.User(), Progress: func(p trainer.Progress) {
					progress.Show(fmt.Sprintf("evaluating %s: %d of %d rows", p.Suite, p.Done, p.Rows))
				},
			})
			progress.Done()
			if errors.Is(err, trainer.ErrInterrupted) {
				return term.Exit(term.Interrupted, fmt.Errorf("run %s is interrupted; the same command goes on with it", *run))
			}
			if err != nil {
				return err
			}
			for _, e := range out.Suites {
				if err := note(rec, e); err != nil {
					return err
				}
			}
			if before != nil {
				if out.Suites, err = (trainer.Stage{}).Compare(build, *before, out.Suites); err != nil {
					return err
				}
			}
			return showEvaluated(streams.Out, out, *baseline, *asJSON)
		}
	},
}

// recorded reads the answers of a baseline back.
func recorded(s *spool.Spool, run string) (*trainer.Evaluated, error) {
	fold, err := s.Fold(run)
	if err != nil {
		return nil, fmt.Errorf("the baseline: %w", err)
	}
	before, err := trainer.Recorded(run, fold, s.OpenArtifact)
	if err != nil {
		return nil, fmt.Errorf("the baseline: run %s: %w", run, err)
	}
	return &before, nil
}

// note keeps what an evaluation's events do not say beside them, for bench report.
func note(log trainer.Log, e trainer.SuiteResult) error {
	if e.Flips.Asked > 0 {
		if err := log.Metric(map[string]report.Flips{"flips": {Evaluation: e.Evaluation, Asked: e.Flips.Asked, Changed: e.Flips.Changed}}); err != nil {
			return err
		}
	}
	if e.Tokens == 0 {
		return nil // read back from the record, which does not say what was cut
	}
	return log.Metric(report.Cut{Evaluation: e.Evaluation, Cut: e.Cut.Rows})
}

// evalRun is the run in which a checkpoint answers these suites of a build: the
// same command goes on with it.
func evalRun(subject canon.SHA256, build *data.Build, suites []string) (string, error) {
	all, err := trainer.BaselineKey(subject, build)
	if err != nil {
		return "", err
	}
	h, err := canon.Of(append([]string{all}, suites...))
	if err != nil {
		return "", err
	}
	return "eval_" + h.Hex()[:16], nil
}

func showEvaluated(w io.Writer, out trainer.Evaluated, baseline string, asJSON bool) error {
	if asJSON {
		type suite struct {
			Suite      string         `json:"suite"`
			Dataset    string         `json:"dataset"`
			Evaluation string         `json:"evaluation"`
			Measures   []gate.Measure `json:"measures"`
			Flips      *eval.Flipped  `json:"flips"` // null where none was asked
			Before     []gate.Measure `json:"before"`
			Change     *eval.Change   `json:"change"` // null without a baseline
			KL         *float64       `json:"kl"`     // in nats; null without a baseline
		}
		list := struct {
			Run      string  `json:"run"`
			Baseline string  `json:"baseline"`
			Suites   []suite `json:"suites"`
		}{Run: out.Run, Baseline: baseline}
		for _, s := range out.Suites {
			line := suite{s.Suite, s.Dataset.ID, s.Evaluation, s.Measures, nil, s.Before, s.Change, s.KL}
			if s.Flips.Asked > 0 {
				line.Flips = &s.Flips
			}
			list.Suites = append(list.Suites, line)
		}
		return term.PrintJSON(w, list)
	}
	table := term.NewTable(w)
	header := []string{"suite", "rows", "accuracy", "log loss", "brier", "ece", "flips"}
	if baseline != "" {
		header = append(header, "change", "95 % interval", "p", "kl")
	}
	table.Row(header...)
	for _, s := range out.Suites {
		row := []string{s.Suite, fmt.Sprint(len(s.Items))}
		for _, name := range []string{gate.Accuracy, gate.NLL, gate.Brier, gate.ECE} {
			v, err := gate.Metric(name, s.Items)
			if err != nil {
				row = append(row, "–")
				continue
			}
			row = append(row, fmt.Sprintf("%.4f", v))
		}
		flips := "–"
		if s.Flips.Asked > 0 {
			flips = fmt.Sprintf("%d of %d", s.Flips.Changed, s.Flips.Asked)
		}
		if row = append(row, flips); baseline != "" {
			row = append(row, beside(s)...)
		}
		table.Row(row...)
	}
	table.Flush()
	fmt.Fprintf(w, "run %s\n", out.Run)
	return nil
}

// beside is a suite's change from the baseline: points, their interval, p and kl.
func beside(s trainer.SuiteResult) []string {
	cells := []string{"–", "–", "–", "–"}
	if c := s.Change; c != nil {
		cells[0], cells[2] = fmt.Sprintf("%+.1f", 100*c.Delta), fmt.Sprintf("%.4f", c.P)
		if !math.IsNaN(c.Lo) {
			cells[1] = fmt.Sprintf("%+.1f to %+.1f", 100*c.Lo, 100*c.Hi)
		}
		if c.P < 0.0001 {
			cells[2] = "<.0001"
		}
	}
	if s.KL != nil {
		cells[3] = fmt.Sprintf("%.4f", *s.KL)
	}
	return cells
}

var gateCommand = term.Command{
	Name: "gate", Args: "RUN | GATE.json",
	Short: "judge a run by the gate it named before it began, or store a gate",
	Long: `
With RUN: evaluates the gate that the run's RUN_CREATED named, from the items in
the spool, and prints every rule. A run that is still open gets its
GATE_EVALUATED; the control plane computes the same verdict again and refuses one
that differs.

With GATE.json: checks the gate and stores it in the spool, from where it is sent
before any run that names it. A gate never changes: another threshold is another
version, naming the one before.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		var record local.Record
		record.Flag(flags)
		asJSON := term.AsJSON(flags)
		return func(_ context.Context, streams term.IO, args []string) error {
			name, err := term.One(args, "a run or a gate file")
			if err != nil {
				return err
			}
			s, err := record.Open()
			if err != nil {
				return err
			}
			if strings.HasSuffix(name, ".json") {
				return storeGate(streams.Out, s, name, *asJSON)
			}
			return judge(streams, s, name, *asJSON)
		}
	},
}

func storeGate(w io.Writer, s *spool.Spool, name string, asJSON bool) error {
	src, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var g gate.Gate
	if err := canon.Unmarshal(src, &g); err != nil {
		return term.Usagef("%s: %w", name, err)
	}
	if err := g.Validate(); err != nil {
		return term.Usagef("%s: %w", name, err)
	}
	hash, err := s.PutGate(g)
	if err != nil {
		return err
	}
	if asJSON {
		return term.PrintJSON(w, map[string]canon.Hash{"gate_spec_hash": hash})
	}
	fmt.Fprintln(w, hash)
	return nil
}

// judge evaluates a run's own gate and, while the run is open, records it.
func judge(streams term.IO, s *spool.Spool, run string, asJSON bool) error {
	fold, err := s.Fold(run)
	if err != nil {
		return err
	}
	view := fold.View()
	if view.GateSpecHash == nil {
		return term.Usagef("run %s named no gate when it was created, and none can be chosen afterwards", run)
	}
	g, err := s.LoadGate(*view.GateSpecHash)
	if err != nil {
		return err
	}
	subject, err := evaluations(s, run)
	if err != nil {
		return err
	}
	var baseline []gate.Evaluation
	if g.Baseline != nil {
		if baseline, err = evaluations(s, *g.Baseline); err != nil {
			return fmt.Errorf("the gate's baseline: %w", err)
		}
	}
	verdict := g.Evaluate(subject, baseline)
	if view.Ended == nil {
		log, err := s.Resume(run)
		if err != nil {
			return err
		}
		defer log.Close()
		if _, err := log.Append(event.GateEvaluated(verdict)); err != nil {
			return err
		}
	}
	if asJSON {
		if err := term.PrintJSON(streams.Out, verdict); err != nil {
			return err
		}
	} else {
		showVerdict(streams.Out, g, verdict)
	}
	if verdict.Verdict != "pass" {
		return term.Exit(term.Rejected, fmt.Errorf("run %s fails gate %s", run, g.Name))
	}
	return nil
}

// evaluations are a run's, as a gate reads them.
func evaluations(s *spool.Spool, run string) ([]gate.Evaluation, error) {
	fold, err := s.Fold(run)
	if err != nil {
		return nil, err
	}
	var list []gate.Evaluation
	for _, e := range fold.Evaluations() {
		judged := gate.Evaluation{
			Dataset: e.Dataset, DatasetSHA256: e.DatasetSHA256,
			Complete: e.Completion == event.Complete, Measures: e.Measures,
		}
		if e.ItemsSHA256 != nil {
			if judged.Items, err = report.ReadItems(s, *e.ItemsSHA256); err != nil {
				return nil, fmt.Errorf("evaluation %s: %w", e.ID, err)
			}
		}
		list = append(list, judged)
	}
	return list, nil
}

func showVerdict(w io.Writer, g gate.Gate, v gate.Verdict) {
	table := term.NewTable(w)
	table.Row("rule", "dataset", "metric", "test", "value", "baseline", "improvement", "rows", "")
	for i, r := range v.Rules {
		rule := g.Rules[i]
		word := "✓ pass"
		if !r.Pass {
			word = "✗ fail"
		}
		if r.Reason != nil {
			word += ": " + string(*r.Reason)
		}
		table.Row(fmt.Sprint(i), rule.Dataset, rule.Metric, string(rule.Test.Kind), number(r.Value), number(r.Baseline), number(r.Delta), fmt.Sprint(r.N), word)
	}
	table.Flush()
	fmt.Fprintf(w, "gate %s version %d: %s\n", g.Name, g.Version, v.Verdict)
}

func number(v *float64) string {
	if v == nil {
		return "–"
	}
	return fmt.Sprintf("%.4f", *v)
}

var reportCommand = term.Command{
	Name: "report", Args: "RUN [FILE]",
	Short: "draw a run as one HTML file that needs nothing else",
	Long: `
The page has what the spool has of RUN: the sentence that matters, each suite
before and after with the interval of its change, McNemar's exact p and the gate's
rules on it, the loss, what protection removed, kept and leaked, and of each suite
its reliability, its measures, how far its answers left the base's, the answers
that the order of options changed, and what was answered for what. Of what nobody
measured it says nothing. FILE is RUN.html when it is not given.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		var record local.Record
		record.Flag(flags)
		baseline := flags.String("baseline", "", "compare with this `run`; default the gate's baseline")
		asJSON := term.AsJSON(flags)
		return func(_ context.Context, streams term.IO, args []string) error {
			if len(args) != 1 && len(args) != 2 {
				return term.Usagef("expected a run, and where to write: got %d arguments", len(args))
			}
			s, err := record.Open()
			if err != nil {
				return err
			}
			r, err := report.Read(s, args[0], *baseline)
			if err != nil {
				return err
			}
			name := args[0] + ".html"
			if len(args) == 2 {
				name = args[1]
			}
			var page bytes.Buffer
			if err := report.Write(&page, r); err != nil {
				return err
			}
			if err := durable.WriteFile(filepath.Clean(name), page.Bytes(), 0o644); err != nil {
				return err
			}
			if *asJSON {
				return term.PrintJSON(streams.Out, map[string]string{"run": args[0], "report": name})
			}
			fmt.Fprintln(streams.Out, name)
			return nil
		}
	},
}
