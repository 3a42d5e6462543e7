package traincmd

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/trainer"
	"github.com/hanzoai/link/trainer/eval"
)

// result is a run that taught a suite of one group of rows.
func result() trainer.Result {
	return trainer.Result{
		Ended: "stopped after epoch 4 of 60: 3 epochs without a better held-out loss",
		Cut:   eval.Cut{Rows: 2, Items: []string{"a", "b"}},
		Evaluations: []trainer.SuiteResult{{
			Suite:  "desk",
			Result: eval.Result{Tokens: 1, Cut: eval.Cut{Rows: 1, Items: []string{"c"}}, Measures: []gate.Measure{{Category: gate.All, Metric: gate.Accuracy, Value: .5}}},
			Common: eval.Common{Answer: "billing", Right: 6, Of: 10, Questions: 1, Golds: 2, Options: 2},
			Change: &eval.Change{Delta: .029, Lo: math.NaN(), Hi: math.NaN(), Groups: 1},
		}},
		Warnings: []trainer.Warning{{Code: trainer.CutRows, Text: "2 of 9 training rows were cut: a, b"}},
	}
}

// TestShowResult: what a person reads of it.
func TestShowResult(t *testing.T) {
	var out bytes.Buffer
	showResult(&out, result(), trainer.Stage{}, "page")
	lines := strings.Split(out.String(), "\n")
	if !strings.Contains(lines[0], "after  most common  change") || !strings.Contains(lines[1], "60.0") || !strings.Contains(lines[1], "+2.9") || !strings.Contains(lines[1], " – ") || strings.Contains(out.String(), "NaN") {
		t.Errorf("the table is\n%s", out.String())
	}
	for _, want := range []string{result().Ended, "note: 2 of 9 training rows were cut: a, b"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the result does not say %q:\n%s", want, out.String())
		}
	}
}

// TestOutcome: what a program reads of it.
func TestOutcome(t *testing.T) {
	r := result()
	r.Evaluations = append(r.Evaluations, trainer.SuiteResult{Suite: "sealed"})
	b, err := json.Marshal(outcomeOf(r, "page"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"most_common":0.6,"cut":{"rows":1,"items":["c"]}`, `"most_common":null,"cut":null`,
		`"cut":{"rows":2,"items":["a","b"]},"ended":"stopped after epoch 4 of 60`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the outcome has no %s: %s", want, b)
		}
	}
}
