package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/eval"
	"github.com/hanzoai/link/trainer/safetensors"
)

// An outcome is what a run came to; outcome.json in its folder.
type outcome struct {
	Target  string `json:"target"`
	Variant string `json:"variant"`
	Seed    uint64 `json:"seed"`

	// What it was made of: the outcome of anything else is another.
	Stage json.RawMessage `json:"stage"`
	Rows  int             `json:"rows"` // bench.rows
	Base  string          `json:"base"` // SHA-256 of the base's weights

	Build  string                  `json:"build"`
	Suites map[string]suiteOutcome `json:"suites"`
	Norm   float64                 `json:"norm"` // ‖D‖/‖W‖ over the linear layers
	// Protection is what trainer says of it; the norm in it is over what was trained,
	// which is more in an unprotected run.
	Protection *trainer.Protection `json:"protection"`
	Steps      int                 `json:"steps"`
	Tokens     uint64              `json:"tokens"`
	// Wall times, of the process that ended the run.
	StepSeconds float64  `json:"step_seconds"`
	Seconds     float64  `json:"seconds"` // training and evaluation
	Warnings    []string `json:"warnings"`
}

// A suiteOutcome is a suite before and after. Accuracies are fractions.
type suiteOutcome struct {
	Rows     int     `json:"rows"`
	Accuracy float64 `json:"accuracy"`
	Change   float64 `json:"change"`
	Lo       float64 `json:"lo"` // the change's 95 % paired bootstrap interval
	Hi       float64 `json:"hi"`
	KL       float64 `json:"kl"` // mean KL(base‖model) in nats
}

// fill measures what a run came to and writes it into its folder, together with the
// items that the table pools.
func (o *outcome) fill(before trainer.Evaluated, result trainer.Result, dir, base string) (err error) {
	o.Suites, o.Warnings, o.Protection = map[string]suiteOutcome{}, []string{}, result.Protection
	for _, w := range result.Warnings {
		o.Warnings = append(o.Warnings, w.Text)
	}
	if o.Norm, err = moved(base, result.CheckpointDir); err != nil {
		return err
	}
	for i, s := range result.Evaluations {
		was := before.Suites[i] // both are of the build's sets, in its order
		if was.Dataset.ID != s.Dataset.ID || s.Change == nil {
			return fmt.Errorf("%s: the base did not answer these rows", s.Suite)
		}
		accuracy, err := gate.Metric(gate.Accuracy, s.Items)
		if err != nil {
			return err
		}
		kl, err := divergence(was.Predictions, s.Predictions)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Suite, err)
		}
		o.Suites[s.Suite] = suiteOutcome{len(s.Items), accuracy, s.Change.Delta, s.Change.Lo, s.Change.Hi, kl}
		for name, items := range map[string][]gate.Item{"before": was.Items, "after": s.Items} {
			b, _, err := gate.ItemsNDJSON(items)
			if err != nil {
				return err
			}
			if err := durable.WriteFile(filepath.Join(dir, s.Suite+"."+name+".ndjson"), b, 0o644); err != nil {
				return err
			}
		}
	}
	b, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, "outcome.json"), b, 0o644)
}

// divergence is the mean KL(before‖after) of answers to the same questions, in nats.
func divergence(before, after []gate.Prediction) (float64, error) {
	if len(before) != len(after) || len(after) == 0 {
		return 0, fmt.Errorf("%d answers before and %d after", len(before), len(after))
	}
	var sum float64
	for i, a := range after {
		b := before[i]
		if b.Item != a.Item || b.Question != a.Question || len(b.Probabilities) != len(a.Probabilities) {
			return 0, fmt.Errorf("question %s of item %s is another after", b.Question, b.Item)
		}
		for j, p := range b.Probabilities {
			if p > 0 {
				// A probability that is rounded to 0 counts as the least that is not.
				sum += float64(p * (math.Log(p) - math.Log(max(a.Probabilities[j], math.SmallestNonzeroFloat64))))
			}
		}
	}
	return sum / float64(len(after)), nil
}

// moved is ‖W − W0‖/‖W0‖ over the linear layers of two checkpoints, in which every
// matrix is one but the embeddings' tables.
func moved(base, trained string) (float64, error) {
	from, err := safetensors.Open(filepath.Join(base, "model.safetensors"))
	if err != nil {
		return 0, err
	}
	defer from.Close()
	to, err := safetensors.Open(filepath.Join(trained, "model.safetensors"))
	if err != nil {
		return 0, err
	}
	defer to.Close()
	var change, whole float64
	for _, name := range from.Names() {
		if info, _ := from.Info(name); len(info.Shape) != 2 || strings.Contains(name, "embeddings") {
			continue
		}
		w0, err := from.ReadFloat32(name)
		if err != nil {
			return 0, err
		}
		w, err := to.ReadFloat32(name)
		if err != nil {
			return 0, err
		}
		for i := range w0 {
			d := float64(w[i]) - float64(w0[i])
			change += float64(d * d) // rounded by itself, on every machine
			whole += float64(w0[i]) * float64(w0[i])
		}
	}
	return math.Sqrt(change / whole), nil
}

// readOutcome reads a run's outcome where it is done. One of another stage, other
// rows or another base than it would have now is refused.
func (b *bench) readOutcome(r run, base string) (o outcome, done bool, err error) {
	text, err := os.ReadFile(filepath.Join(r.dir(b), "outcome.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return o, false, nil
	}
	if err != nil {
		return o, false, err
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return o, false, fmt.Errorf("%s: %w", r.dir(b), err)
	}
	was, err := trainer.ParseStage(o.Stage)
	if err != nil {
		return o, false, fmt.Errorf("%s: %w", r.dir(b), err)
	}
	then, err := was.Config()
	if err != nil {
		return o, false, err
	}
	now, err := b.config(r)
	if err != nil {
		return o, false, err
	}
	o.Variant = r.variant.name // its folder may be that of another that says the same
	if !bytes.Equal(then, now) || o.Rows != b.rows || o.Base != base {
		return o, false, fmt.Errorf("%s was run with another stage, other rows or another base: choose another -dir, or delete it", r.dir(b))
	}
	return o, true, nil
}

// String is the outcome in a line.
func (o outcome) String() string {
	line := fmt.Sprintf("%s/%s/%d: target %.1f", o.Target, o.Variant, o.Seed, 100*o.Suites[o.Target].Accuracy)
	for _, s := range protected {
		c := o.Suites[s.name]
		line += fmt.Sprintf("  %s %+.1f [%+.1f, %+.1f] KL %.3f", s.name, 100*c.Change, 100*c.Lo, 100*c.Hi, c.KL)
	}
	line += fmt.Sprintf("  ‖D‖/‖W‖ %.4f", o.Norm)
	if p := o.Protection; p != nil && p.Subspace != "" {
		line += fmt.Sprintf("  kept %.3f  removed %.3f  leak %.1e", o.energy(), p.Share, p.Leak)
	}
	return line + fmt.Sprintf("  %d steps  %.2f s/step  %.0f s", o.Steps, o.StepSeconds, o.Seconds)
}

// energy is the share of the suites' gradients that the subspace holds, the mean
// over suites; 0 without one.
func (o outcome) energy() (sum float64) {
	for _, s := range protected {
		sum += o.Protection.Energy[s.name] / float64(len(protected))
	}
	return sum
}

// write writes results.json and table.md.
func (b *bench) write(results []outcome) error {
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(b.dir, "results.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	var table bytes.Buffer
	for _, target := range b.targets {
		fmt.Fprintf(&table, "| %s, %d steps | target |", target, b.steps)
		for _, s := range protected {
			fmt.Fprintf(&table, " %s |", s.name)
		}
		fmt.Fprintf(&table, " KL | ‖D‖/‖W‖ | kept | removed | leak | seeds | s/step | s |\n|---|---|%s---|---|---|---|---|---|---|---|\n", strings.Repeat("---|", len(protected)))
		for _, name := range b.variants {
			if err := b.row(&table, target, name, results); err != nil {
				return err
			}
		}
		table.WriteString("\n")
	}
	return durable.WriteFile(filepath.Join(b.dir, "table.md"), table.Bytes(), 0o644)
}

// row writes a variant's row of the table, over the seeds that are done.
func (b *bench) row(w io.Writer, target, name string, results []outcome) error {
	var runs []outcome
	for _, o := range results {
		if o.Target == target && o.Variant == name {
			runs = append(runs, o)
		}
	}
	if len(runs) == 0 {
		return nil
	}
	mean := func(of func(outcome) float64) (sum float64) {
		for _, o := range runs {
			sum += of(o) / float64(len(runs))
		}
		return sum
	}
	fmt.Fprintf(w, "| %s | %.1f |", name, 100*mean(func(o outcome) float64 { return o.Suites[target].Accuracy }))
	for _, s := range protected {
		c, err := b.pooled(runs, s.name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, " %+.1f [%+.1f, %+.1f] |", 100*c.Delta, 100*c.Lo, 100*c.Hi)
	}
	kl := mean(func(o outcome) float64 { return o.Protection.Drift })
	kept, removed, leak := "–", "–", "–"
	if p := runs[0].Protection; p != nil && p.Subspace != "" {
		kept = fmt.Sprintf("%.3f", mean(outcome.energy))
		removed = fmt.Sprintf("%.3f", mean(func(o outcome) float64 { return o.Protection.Share }))
		leak = fmt.Sprintf("%.1e", mean(func(o outcome) float64 { return o.Protection.Leak }))
	}
	fmt.Fprintf(w, " %.3f | %.4f | %s | %s | %s | %d | %.2f | %.0f |\n",
		kl, mean(func(o outcome) float64 { return o.Norm }), kept, removed, leak,
		len(runs),
		mean(func(o outcome) float64 { return o.StepSeconds }), mean(func(o outcome) float64 { return o.Seconds }))
	return nil
}

// pooled is a suite's change over several runs, a row's answers of all of them
// drawn as one.
func (b *bench) pooled(runs []outcome, suite string) (eval.Change, error) {
	var before, after []gate.Item
	for _, o := range runs {
		r, err := b.run(o.Target, o.Variant, o.Seed)
		if err != nil {
			return eval.Change{}, err
		}
		for name, list := range map[string]*[]gate.Item{"before": &before, "after": &after} {
			items, err := readItems(filepath.Join(r.dir(b), suite+"."+name+".ndjson"))
			if err != nil {
				return eval.Change{}, err
			}
			for _, it := range items {
				if it.Group == "" {
					it.Group = it.Item
				}
				it.Item = fmt.Sprintf("%s of seed %d", it.Item, o.Seed)
				*list = append(*list, it)
			}
		}
	}
	c, ok := eval.ChangeIn(before, after)
	if !ok {
		return c, fmt.Errorf("%s: the rows before and after are not the same", suite)
	}
	return c, nil
}

func readItems(file string) ([]gate.Item, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return gate.ParseItems(f)
}

// fileSum is a file's SHA-256, in hex.
func fileSum(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
