package traincmd

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hanzoai/link/cmd/internal/report"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/eval"
)

// progressLine is where a run stands, in one line.
func progressLine(p trainer.Progress) string {
	switch p.Phase {
	case trainer.Preparing:
		return fmt.Sprintf("preparing rows: %d of %d", p.Done, p.Rows)
	case trainer.Protecting:
		return fmt.Sprintf("the base's answers on %s: %d of %d rows", p.Suite, p.Done, p.Rows)
	case trainer.Reading:
		return fmt.Sprintf("reading rows: %d of %d", p.Done, p.Rows)
	case trainer.Calibrating:
		return fmt.Sprintf("calibrating on %d held-out rows", p.Rows)
	case trainer.Evaluating:
		return fmt.Sprintf("evaluating %s: %d of %d rows", p.Suite, p.Done, p.Rows)
	}
	line := fmt.Sprintf("step %d of %d  loss %.4f  %s tokens/s", p.Step, p.Steps, p.Loss, thousands(p.Rate))
	if p.Left > 0 {
		line += "  " + p.Left.Round(time.Second).String() + " left"
	}
	if p.Share > 0 {
		line += fmt.Sprintf("  %.0f %% of the gradient removed", 100*p.Share)
	}
	if p.SelectNLL > 0 {
		line += fmt.Sprintf("  held-out loss %.4f", p.SelectNLL)
	}
	if p.Cut > 0 {
		line += fmt.Sprintf("  %d rows cut", p.Cut)
	}
	return line
}

// thousands writes a rate with three figures: 943, 4.1k, 12k.
func thousands(v float64) string {
	switch {
	case v >= 10_000:
		return fmt.Sprintf("%.0fk", v/1000)
	case v >= 1000:
		return fmt.Sprintf("%.1fk", v/1000)
	}
	return fmt.Sprintf("%.0f", v)
}

// suiteOutcome is one suite of a run's result, as --json prints it.
type suiteOutcome struct {
	Suite      string         `json:"suite"`
	Dataset    string         `json:"dataset"`
	Evaluation string         `json:"evaluation"`
	Role       string         `json:"role"`
	Rows       int            `json:"rows"`
	Before     []gate.Measure `json:"before"`
	After      []gate.Measure `json:"after"`
	MostCommon *float64       `json:"most_common"` // accuracy of always giving the most common answer; null without gold answers
	Chance     *float64       `json:"chance"`      // accuracy of answering at random; null without gold answers
	Change     *eval.Change   `json:"change"`      // null without a baseline or gold answers
	KL         *float64       `json:"kl"`          // mean KL(base‖model) in nats; null without a baseline
	Flips      *eval.Flipped  `json:"flips"`       // questions asked in other orders of their options; null when none was
	Verdict    string         `json:"verdict"`     // of the gate's rules on the suite: pass, fail, or "" where none judges it
	Cut        *cutOutcome    `json:"cut"`         // null where a resumed run read the answers back
}

// cutOutcome is rows whose state was cut to what the model reads.
type cutOutcome struct {
	Rows  int      `json:"rows"`
	Items []string `json:"items"` // the first few
}

func cutOf(c eval.Cut) *cutOutcome { return &cutOutcome{c.Rows, append([]string{}, c.Items...)} }

type warningOutcome struct {
	Code  string `json:"code"`
	Suite string `json:"suite"`
	Text  string `json:"text"`
}

// outcome is a run's result, as --json prints it.
type outcome struct {
	Run        string              `json:"run"`
	Status     string              `json:"status"`
	Steps      int                 `json:"steps"`
	Tokens     uint64              `json:"tokens"`
	Cut        *cutOutcome         `json:"cut"`   // of the training rows
	Ended      string              `json:"ended"` // why a readout ended when it did; "" of any other run
	Checkpoint string              `json:"checkpoint"`
	SHA256     string              `json:"checkpoint_sha256"`
	Capability string              `json:"capability_sha256"`
	Protection *trainer.Protection `json:"protection"` // null where nothing was trained but a readout
	Suites     []suiteOutcome      `json:"suites"`
	Verdict    *gate.Verdict       `json:"verdict"`
	Warnings   []warningOutcome    `json:"warnings"`
	Report     string              `json:"report"`
}

func outcomeOf(r trainer.Result, page string) outcome {
	o := outcome{
		Run: r.Run, Status: string(r.Status), Steps: r.Steps, Tokens: r.Tokens, Cut: cutOf(r.Cut), Ended: r.Ended, Checkpoint: r.CheckpointDir,
		SHA256: string(r.Checkpoint), Capability: string(r.Capability), Protection: r.Protection,
		Verdict: r.Verdict, Report: page,
	}
	for _, s := range r.Evaluations {
		suite := suiteOutcome{
			Suite: s.Suite, Dataset: s.Dataset.ID, Evaluation: s.Evaluation, Role: role(s), Rows: len(s.Items),
			Before: s.Before, After: s.Measures, Change: s.Change, KL: s.KL, Verdict: string(s.Verdict),
		}
		if s.Common.Of > 0 {
			suite.MostCommon, suite.Chance = new(s.Common.Accuracy()), &s.Chance
		}
		if s.Flips.Asked > 0 {
			suite.Flips = &s.Flips
		}
		if s.Tokens > 0 {
			suite.Cut = cutOf(s.Result.Cut)
		}
		o.Suites = append(o.Suites, suite)
	}
	for _, w := range r.Warnings {
		o.Warnings = append(o.Warnings, warningOutcome{w.Code, w.Suite, w.Text})
	}
	return o
}

func role(s trainer.SuiteResult) string {
	switch {
	case s.Target:
		return "target"
	case s.Protected:
		return "protected"
	}
	return ""
}

// showResult prints a run's suites before and after, what its protection came to,
// what was noticed, and the one sentence that matters. The table leaves out what
// --json and the report have, so that it fits 100 columns: kl stands there where a
// suite is protected, and flips where an answer changed with the order of options.
func showResult(w io.Writer, r trainer.Result, stage trainer.Stage, page string) {
	protected := slices.ContainsFunc(r.Evaluations, func(s trainer.SuiteResult) bool { return s.Protected && s.KL != nil })
	flipped := slices.ContainsFunc(r.Evaluations, func(s trainer.SuiteResult) bool { return s.Flips.Changed > 0 })
	row := func(cells []string, kl, flips, verdict string) []string {
		if protected {
			cells = append(cells, kl)
		}
		if flipped {
			cells = append(cells, flips)
		}
		return append(cells, verdict)
	}
	table := term.NewTable(w)
	table.Row(row([]string{"suite", "rows", "before", "after", "common", "change", "95 % interval", "p", "ece"}, "kl", "flips", "verdict")...)
	for _, s := range r.Evaluations {
		common, change, interval, p, kl, flips := math.NaN(), "", "", "", "", "–"
		if s.Common.Of > 0 {
			common = s.Common.Accuracy()
		}
		if c := s.Change; c != nil {
			change, interval, p = fmt.Sprintf("%+.1f", 100*c.Delta), "–", pValue(c.P)
			if !math.IsNaN(c.Lo) {
				interval = fmt.Sprintf("%+.1f to %+.1f", 100*c.Lo, 100*c.Hi)
			}
		}
		if s.Protected && s.KL != nil {
			kl = fixed(*s.KL)
		}
		if s.Flips.Asked > 0 {
			flips = fmt.Sprintf("%d of %d", s.Flips.Changed, s.Flips.Asked)
		}
		table.Row(row([]string{
			s.Suite, fmt.Sprint(len(s.Items)), percent(measure(s.Before, gate.Accuracy)), percent(measure(s.Measures, gate.Accuracy)),
			percent(common), change, interval, p, fixed(measure(s.Measures, gate.ECE)),
		}, kl, flips, strings.TrimSpace(mark(s.Verdict)+" "+role(s)))...)
	}
	table.Flush()
	if r.Ended != "" {
		fmt.Fprintln(w, r.Ended)
	}
	if p := r.Protection; p != nil && (p.Subspace != "" || len(p.Rows) > 0) {
		showProtection(w, *p)
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(w, "note: %s\n", warning.Text)
	}
	if stage.From != "" {
		fmt.Fprintf(w, "evaluated %s beside the base, and trained nothing; report: %s\n", stage.From, page)
		return
	}
	fmt.Fprintf(w, "%s; report: %s\n", report.Sentence(stage.Stage, sentenceSuites(r), r.Verdict), page)
	fmt.Fprintf(w, "ask it: train ask %s \"…\"\n", r.CheckpointDir)
}

func sentenceSuites(r trainer.Result) []report.Outcome {
	var suites []report.Outcome
	for _, s := range r.Evaluations {
		role := role(s)
		if s.Protected && s.Verdict == "" {
			role = report.Unjudged
		}
		suites = append(suites, report.Outcome{
			Suite: s.Suite, Role: role,
			Before: measure(s.Before, gate.Accuracy), After: measure(s.Measures, gate.Accuracy),
		})
	}
	return suites
}

// showProtection prints what a run's protection was, suite by suite, and what it
// came to.
func showProtection(w io.Writer, p trainer.Protection) {
	held := make(map[string]bool) // a capability has energy and no rows
	for name := range p.Rows {
		held[name] = true
	}
	for name := range p.Energy {
		held[name] = true
	}
	var kept []string
	for _, name := range slices.Sorted(maps.Keys(held)) {
		var parts []string
		if n := p.Rows[name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d rows", n))
		}
		if e, ok := p.Energy[name]; ok {
			parts = append(parts, fmt.Sprintf("%.1f %% of the energy", 100*e))
		}
		if address, ok := strings.CutPrefix(name, "capability:"); ok {
			name = fmt.Sprintf("capability %.12s", address)
		}
		kept = append(kept, name+" "+strings.Join(parts, ", "))
	}
	fmt.Fprintf(w, "kept: %s\n", strings.Join(kept, "; "))
	came := []string{fmt.Sprintf("‖D‖/‖W‖ %.2g", p.Norm)}
	if p.Subspace != "" {
		came = append([]string{fmt.Sprintf("%.0f %% of the gradient removed", 100*p.Share)}, came...)
		came = append(came, fmt.Sprintf("leak %.1e, %.1e as loaded", p.Leak, p.Served))
	}
	if p.Drift > 0 {
		came = append(came, fmt.Sprintf("drift %.2g nats", p.Drift))
	}
	fmt.Fprintf(w, "protection: %s\n", strings.Join(came, "; "))
}

// mark is the outcome of a suite's rules before what the suite is to the run.
func mark(v gate.Outcome) string {
	switch v {
	case gate.Pass:
		return "✓"
	case gate.Fail:
		return "✗"
	}
	return ""
}

// pValue is a probability in four figures.
func pValue(p float64) string {
	if p < 0.0001 {
		return "<.0001"
	}
	return fmt.Sprintf("%.4f", p)
}

// measure is the value of a metric over all rows, NaN without one.
func measure(measures []gate.Measure, metric string) float64 {
	for _, m := range measures {
		if m.Category == gate.All && m.Metric == metric {
			return m.Value
		}
	}
	return math.NaN()
}

func percent(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.1f", 100*v)
}

func fixed(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.3f", v)
}
