package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/hanzoai/link/spool"
	"github.com/hanzoai/link/spool/gate"
)

// snipsStage is the stage that the README shows.
const snipsStage = `{
  "stage": "snips",
  "init": {"dir": "minilm-kai"},
  "takes": [{"suite": "snips", "file": %q, "state": ["text"], "label": "label", "split": "split",
             "instructions": "what does the user want"}],
  "adaptation": {"mode": "full"},
  "evaluation": {"suites": ["snips"]},
  "epochs": 1, "batch_tokens": 2048, "seed": %d
}
`

// snips measures a full adaptation of the encoder on snips: accuracy on the
// authors' test split, over three seeds, and tokens a second.
func snips(b bench) error {
	if _, err := b.train("init", "minilm-kai", "--encoder", b.encoder); err != nil {
		return err
	}
	var accuracies []float64
	for seed := 1; seed <= 3; seed++ {
		stage := fmt.Sprintf(snipsStage, filepath.Join(b.data, "snips", "snips.jsonl"), seed)
		if err := os.WriteFile(filepath.Join(b.dir, "snips.json"), []byte(stage), 0o644); err != nil {
			return err
		}
		run := fmt.Sprintf("snips%d", seed)
		fit, err := b.train("fit", "snips.json", "--run", run)
		if err != nil {
			return err
		}
		accuracy, tokens, err := outcome(b.dir, run)
		if err != nil {
			return err
		}
		fmt.Printf("\nseed %d: accuracy %.4f; %d tokens trained; %s\n\n", seed, accuracy, tokens, fit)
		accuracies = append(accuracies, accuracy)
	}
	mean, spread := 0.0, 0.0
	for _, a := range accuracies {
		mean += a / float64(len(accuracies))
	}
	for _, a := range accuracies {
		spread += (a - mean) * (a - mean) / float64(len(accuracies)-1)
	}
	fmt.Printf("mean of %d seeds: %.4f, deviation %.4f\n", len(accuracies), mean, math.Sqrt(spread))
	return nil
}

// outcome reads a run's accuracy and its trained tokens from the spool.
func outcome(dir, run string) (accuracy float64, tokens uint64, err error) {
	s, err := spool.Open(filepath.Join(dir, "spool"), "", "")
	if err != nil {
		return 0, 0, err
	}
	fold, err := s.Fold(run)
	if err != nil {
		return 0, 0, err
	}
	for _, e := range fold.Evaluations() {
		for _, m := range e.Measures {
			if m.Metric == gate.Accuracy {
				return m.Value, fold.View().Tokens, nil
			}
		}
	}
	return 0, 0, fmt.Errorf("run %s has no accuracy", run)
}
