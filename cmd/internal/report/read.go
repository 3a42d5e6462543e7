package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/eval"
)

// Read makes a run's report from its record. baseline is the run whose
// evaluations are "before"; empty takes the gate's, if there is one and it was
// recorded on this machine.
func Read(s *spool.Spool, run, baseline string) (Report, error) {
	fold, err := s.Fold(run)
	if err != nil {
		return Report{}, err
	}
	view := fold.View()
	r := Report{Run: run, Status: string(view.Status)}
	var g gate.Gate
	if view.GateSpecHash != nil {
		if g, err = s.LoadGate(*view.GateSpecHash); err != nil {
			return Report{}, fmt.Errorf("report of run %s: %w", run, err)
		}
	}
	before, err := baselineOf(s, g, baseline)
	if err != nil {
		return Report{}, fmt.Errorf("report of run %s: its baseline: %w", run, err)
	}
	noted, err := readNotes(s, run)
	if err != nil {
		return Report{}, err
	}
	var verdict *event.GateEvaluated
	if n := len(view.Gates); n > 0 {
		verdict = &view.Gates[n-1]
		r.Verdict = string(verdict.Verdict)
	}
	var outcomes []Outcome
	for _, e := range fold.Evaluations() {
		var base event.Evaluation
		for _, b := range before {
			if b.DatasetSHA256 == e.DatasetSHA256 && b.ItemsSHA256 != nil {
				base = b
			}
		}
		suite, err := readSuite(s, e, base)
		if err != nil {
			return Report{}, fmt.Errorf("report of run %s: %w", run, err)
		}
		suite.judge(g, verdict, e.DatasetSHA256)
		if cut, ok := noted.cut[e.ID]; ok {
			suite.Cut = &cut
		}
		if flips, ok := noted.flips[e.ID]; ok {
			suite.Flips = &flips
		}
		r.Suites = append(r.Suites, suite)
		outcomes = append(outcomes, Outcome{suite.Name, suite.Role, accuracy(suite.Before), accuracy(suite.After)})
	}
	for step := range fold.Steps() {
		r.Steps = append(r.Steps, Step{step.Step, step.Loss})
	}
	r.Sentence = Sentence(run, outcomes, (*gate.Verdict)(verdict))
	r.Notices, r.Facts = noted.texts, facts(view)
	r.Protection, r.Shares = noted.protection, noted.shares
	if p := noted.protection; p != nil {
		r.Facts = append(r.Facts, Fact{"size of the change, ‖D‖/‖W₀‖", share(p.Norm)})
		if p.Subspace != "" {
			r.Facts = append(r.Facts, Fact{"protected subspace", p.Subspace})
		}
	}
	if cut, ok := noted.cut[""]; ok {
		r.Facts = append(r.Facts, Fact{"training rows cut to fit", fmt.Sprint(cut)})
	}
	return r, nil
}

// baselineOf is the evaluations of the run named, or else of the gate's baseline.
func baselineOf(s *spool.Spool, g gate.Gate, run string) ([]event.Evaluation, error) {
	named := run != ""
	if !named {
		if g.Baseline == nil {
			return nil, nil
		}
		run = *g.Baseline
	}
	fold, err := s.Fold(run)
	if !named && errors.Is(err, fs.ErrNotExist) {
		return nil, nil // recorded on another machine
	}
	if err != nil {
		return nil, err
	}
	return fold.Evaluations(), nil
}

// readSuite reads one evaluation's items beside the base's, and each answer beside
// its gold. base is zero where there is none.
func readSuite(s *spool.Spool, e, base event.Evaluation) (Suite, error) {
	suite := Suite{Name: suiteOf(e.Dataset)}
	var err error
	if e.ItemsSHA256 != nil {
		if suite.After, err = ReadItems(s, *e.ItemsSHA256); err != nil {
			return suite, err
		}
	}
	if base.ItemsSHA256 != nil {
		if suite.Before, err = ReadItems(s, *base.ItemsSHA256); err != nil {
			return suite, err
		}
		if c, ok := eval.ChangeIn(suite.Before, suite.After); ok && !math.IsNaN(c.Lo) {
			suite.Lo, suite.Hi = &c.Lo, &c.Hi
		}
	}
	if e.PredictionsSHA256 == nil || e.Purpose == record.SealedEval {
		return suite, nil
	}
	predictions, err := readPredictions(s, *e.PredictionsSHA256)
	if err != nil {
		return suite, err
	}
	if base.PredictionsSHA256 != nil {
		was, err := readPredictions(s, *base.PredictionsSHA256)
		if err != nil {
			return suite, err
		}
		if kl, ok := eval.KL(was, predictions); ok {
			suite.KL = &kl
		}
	}
	rows, err := readRows(s, e.DatasetSHA256)
	if err != nil {
		return suite, err
	}
	suite.Common = eval.MostCommon(rows)
	golds := make(map[[2]string]string)
	for _, row := range rows {
		for _, asked := range row.Asked {
			if asked.Target != nil {
				golds[[2]string{row.ID, asked.Key}] = eval.Gold(asked)
			}
		}
	}
	for _, p := range predictions {
		if gold, ok := golds[[2]string{p.Item, p.Question}]; ok {
			suite.Answers = append(suite.Answers, Answer{gold, p.Answer})
		}
	}
	return suite, nil
}

// ReadItems reads an items artifact.
func ReadItems(s *spool.Spool, sha canon.SHA256) ([]gate.Item, error) {
	f, err := s.OpenArtifact(sha)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return gate.ParseItems(f)
}

func readPredictions(s *spool.Spool, sha canon.SHA256) ([]gate.Prediction, error) {
	f, err := s.OpenArtifact(sha)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return gate.ParsePredictions(f)
}

// maxItem is the most bytes of one dataset item: a state of 10 MB, escaped.
const maxItem = 64 << 20

// readRows reads what a dataset asks and its gold answers, without the states;
// nothing when the dataset is not on this machine.
func readRows(s *spool.Spool, sha canon.SHA256) ([]decision.Row, error) {
	f, err := s.OpenArtifact(sha)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var rows []decision.Row
	var reader decision.Reader
	for line, err := range canon.Lines(f, maxItem) {
		if err != nil {
			return nil, err
		}
		var item record.DatasetItem
		if err := canon.Unmarshal(line.Bytes, &item); err != nil {
			return nil, fmt.Errorf("dataset %s, line %d: %w", sha, line.N, err)
		}
		row, err := reader.ParseRow(item.Payload.Input, item.Payload.Gold)
		if err != nil {
			return nil, fmt.Errorf("dataset %s, line %d: %w", sha, line.N, err)
		}
		row.ID, row.State = item.ItemID, ""
		rows = append(rows, row)
	}
	return rows, nil
}

// judge says what the gate asks of the suite, which is on the dataset at sha, and
// what it found.
func (s *Suite) judge(g gate.Gate, verdict *event.GateEvaluated, sha canon.SHA256) {
	var asked []string
	for i, rule := range g.Rules {
		if rule.DatasetSHA256 != sha {
			continue
		}
		asked = append(asked, words(rule))
		if rule.Test.Kind == gate.Improve {
			s.Role = "target"
		} else if s.Role == "" {
			s.Role = "protected"
		}
		if verdict == nil || i >= len(verdict.Rules) {
			continue
		}
		if verdict.Rules[i].Pass && s.Verdict == "" {
			s.Verdict = "pass"
		} else if !verdict.Rules[i].Pass {
			s.Verdict = "fail"
		}
	}
	s.Rule = strings.Join(asked, "; ")
}

// words says a rule as a person would.
func words(r gate.Rule) string {
	switch r.Test.Kind {
	case gate.Hold:
		worse := "fall"
		if !r.Higher {
			worse = "rise"
		}
		return fmt.Sprintf("%s may %s by %g", r.Metric, worse, r.Test.Tolerance)
	case gate.Improve:
		if r.Test.Margin == 0 {
			return r.Metric + " must improve"
		}
		return fmt.Sprintf("%s must improve by over %g", r.Metric, r.Test.Margin)
	case gate.Floor:
		return fmt.Sprintf("%s at least %g", r.Metric, r.Test.Value)
	}
	return fmt.Sprintf("%s at most %g", r.Metric, r.Test.Value)
}

// suiteOf is the suite of a dataset's id, <suite>.<split>.<12 hex>, or the id.
func suiteOf(dataset string) string {
	parts := strings.Split(dataset, ".")
	if n := len(parts); n > 2 && len(parts[n-1]) == 12 {
		return strings.Join(parts[:n-2], ".")
	}
	return dataset
}

func accuracy(items []gate.Item) float64 {
	v, err := gate.Metric(gate.Accuracy, items)
	if err != nil {
		return math.NaN()
	}
	return v
}

// notes are what stands beside a run's log. Of lines about one thing the last
// counts: a resumed run repeats them.
type notes struct {
	texts      []string         // to be read, each once
	cut        map[string]int   // by evaluation; of the training rows by ""
	flips      map[string]Flips // by evaluation
	shares     []Share          // by step
	protection *trainer.Protection
}

// A note is one line of a run's metrics: of its fields, those of one kind are set.
type note struct {
	Text       string              `json:"text"`
	Cut        *int                `json:"cut"`
	Evaluation string              `json:"evaluation"` // of Cut
	Flips      *Flips              `json:"flips"`
	Protection *trainer.Protection `json:"protection"`
	Share
}

func readNotes(s *spool.Spool, run string) (notes, error) {
	found := notes{cut: make(map[string]int), flips: make(map[string]Flips)}
	f, err := os.Open(filepath.Join(s.Dir(), "runs", run+".metrics"))
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return found, err
	}
	defer f.Close()
	steps := make(map[uint64]Share)
	for line, err := range canon.Lines(f, 1<<20) {
		if err != nil {
			break // a line that a crash tore: these are notes, not the record
		}
		var n note
		if json.Unmarshal(line.Bytes, &n) != nil {
			continue // not a note of ours
		}
		switch {
		case n.Text != "":
			if !slices.Contains(found.texts, n.Text) {
				found.texts = append(found.texts, n.Text)
			}
		case n.Cut != nil:
			found.cut[n.Evaluation] = *n.Cut
		case n.Flips != nil:
			if n.Flips.Asked > 0 {
				found.flips[n.Flips.Evaluation] = *n.Flips
			}
		case n.Protection != nil:
			found.protection = n.Protection
		case len(n.Share.Layer) > 0:
			steps[n.Step] = n.Share
		}
	}
	for _, step := range slices.Sorted(maps.Keys(steps)) {
		found.shares = append(found.shares, steps[step])
	}
	return found, nil
}

func facts(v event.View) []Fact {
	list := []Fact{
		{"created", v.Created}, {"by", v.By}, {"seed", fmt.Sprint(v.Seed)},
		{"steps", fmt.Sprint(v.Steps)}, {"tokens", fmt.Sprint(v.Tokens)},
		{"config", string(v.ConfigSHA256)}, {"environment", string(v.EnvironmentArtifactSHA256)},
	}
	for _, p := range v.Parents {
		list = append(list, Fact{"base", string(p)})
	}
	for _, d := range v.Datasets {
		list = append(list, Fact{fmt.Sprintf("dataset, to %s", d.Role), d.Dataset + " " + string(d.DatasetSHA256)})
	}
	for _, c := range v.Checkpoints {
		list = append(list, Fact{fmt.Sprintf("checkpoint at step %d", c.Step), string(c.ArtifactSHA256)})
	}
	if v.GateSpecHash != nil {
		list = append(list, Fact{"gate", string(*v.GateSpecHash)})
	}
	if v.Error != nil {
		list = append(list, Fact{"error", *v.Error})
	}
	return list
}
