// Package report draws a run as one HTML file that needs nothing else: no
// script, no font, no network. It shows what was measured and nothing it was
// not given; where rows are too few to say something, it says that.
package report

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"

	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/eval"
)

// Report is everything the page shows.
type Report struct {
	Run      string   // the run's id
	Sentence string   // the one sentence that matters
	Status   string   // the run's status
	Verdict  string   // the gate's: pass, fail, or empty without a gate
	Facts    []Fact   // what made the run, in the order shown
	Notices  []string // what the trainer noticed
	Steps    []Step   // ascending
	Suites   []Suite

	Protection *trainer.Protection // nil when the record does not say
	Shares     []Share             // by step, ascending; empty where no gradient was projected
}

// Fact is one line of the run's particulars.
type Fact struct{ Name, Value string }

// Step is one optimizer step as recorded.
type Step struct {
	Step uint64
	Loss float64
}

// Suite is one evaluated dataset, before and after.
type Suite struct {
	Name    string
	Role    string      // "target" or "protected"
	Rule    string      // what the gate asks of it, in words; empty without one
	Verdict string      // pass, fail or empty
	Lo, Hi  *float64    // of the change in accuracy, as fractions; nil without an interval
	Before  []gate.Item // the base's; nil when it was not evaluated
	After   []gate.Item // this run's
	Answers []Answer    // this run's, for the confusion matrix; may be empty
	Common  eval.Common // always giving the most common answer; zero when the record does not say
	Cut     *int        // rows whose state was cut to fit; nil when the record does not say
	KL      *float64    // [eval.KL] from the base, in nats; nil without both's probabilities
	Flips   *Flips      // nil when nobody asked in another order
}

// Cut is a line of a run's metrics: how many rows of an evaluation, or of the
// training, had a state that was cut to fit.
type Cut struct {
	Evaluation string `json:"evaluation"` // empty for the training rows
	Cut        int    `json:"cut"`
}

// Answer is what a row's gold was and what was answered.
type Answer struct{ Gold, Given string }

//go:embed page.html
var files embed.FS

var page = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"points":      points,
	"percent":     percent,
	"common":      common,
	"loss":        lossChart,
	"bars":        suiteBars,
	"reliability": reliability,
	"confusion":   confusion,
	"surest":      surest,
	"metric":      metric,
	"changed":     changed,
	"mcnemar":     mcnemar,
	"onlyBefore":  func(s Suite) uint64 { n, _, _ := discordant(s); return n },
	"onlyAfter":   func(s Suite) uint64 { _, n, _ := discordant(s); return n },
	"guarded":     Report.guarded,
	"guarantee":   guarantee,
	"guards":      guards,
	"layers":      layerMap,
	"share":       share,
	"nats":        nats,
}).ParseFS(files, "page.html"))

// Write writes the page.
func Write(w io.Writer, r Report) error {
	if err := page.Execute(w, r); err != nil {
		return fmt.Errorf("report of run %s: %w", r.Run, err)
	}
	return nil
}

// metric is a suite's metric for the page: three decimals, or a dash.
func metric(name string, items []gate.Item) string {
	v, err := gate.Metric(name, items)
	if err != nil || math.IsNaN(v) {
		return "–"
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// percent is the accuracy of items, "90.4 %".
func percent(items []gate.Item) string {
	v, err := gate.Metric("accuracy", items)
	if err != nil {
		return "–"
	}
	return strconv.FormatFloat(100*v, 'f', 1, 64) + " %"
}

// common is how often always giving the most common answer is right, "60.0 %".
func common(s Suite) string {
	if s.Common.Of == 0 {
		return "–"
	}
	return strconv.FormatFloat(100*s.Common.Accuracy(), 'f', 1, 64) + " %"
}

// points is the change in accuracy of a suite and its interval, "+3.1 [+1.0, +5.2]",
// or "+3.1 [–]" where there is none.
func points(s Suite) string {
	before, err := gate.Metric("accuracy", s.Before)
	if err != nil {
		return "–"
	}
	after, err := gate.Metric("accuracy", s.After)
	if err != nil {
		return "–"
	}
	interval := "–"
	if s.Lo != nil && s.Hi != nil {
		interval = fmt.Sprintf("%+.1f, %+.1f", 100**s.Lo, 100**s.Hi)
	}
	return fmt.Sprintf("%+.1f [%s]", 100*(after-before), interval)
}

// discordant counts the questions whose correctness changed: those that only the
// base has right, and only this run. It is false when there is nothing to compare.
func discordant(s Suite) (before, after uint64, ok bool) {
	was := make(map[[2]string]bool, len(s.Before))
	for _, item := range s.Before {
		if item.Correct != nil {
			was[[2]string{item.Item, item.Question}] = *item.Correct
		}
	}
	for _, item := range s.After {
		right, known := was[[2]string{item.Item, item.Question}]
		if !known || item.Correct == nil {
			continue
		}
		ok = true
		switch {
		case right && !*item.Correct:
			before++
		case !right && *item.Correct:
			after++
		}
	}
	return before, after, ok
}

// changed says how many rows' correctness changed, either way.
func changed(s Suite) string {
	damaged, repaired, ok := discordant(s)
	if !ok {
		return "–"
	}
	return fmt.Sprintf("%d repaired, %d damaged", repaired, damaged)
}

// mcnemar is the exact two-sided p-value of the change in correctness, or empty
// where there is nothing to compare.
func mcnemar(s Suite) string {
	damaged, repaired, ok := discordant(s)
	if !ok {
		return ""
	}
	return pValue(gate.McNemar(damaged, repaired))
}

// surest is the share right among the half of the questions that were answered
// with the most confidence: what a person gets who hands the rest to someone.
func surest(items []gate.Item) string {
	risk := eval.RiskOf(items)
	if len(risk.Curve) == 0 {
		return "–"
	}
	return strconv.FormatFloat(1-risk.At(.5), 'f', 3, 64)
}
