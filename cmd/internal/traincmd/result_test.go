package traincmd

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

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
			Chance: .5, Change: &eval.Change{Delta: .029, Lo: math.NaN(), Hi: math.NaN(), Groups: 1, Lost: 1, Gained: 6, P: .125},
			KL: new(.25), Flips: eval.Flipped{Asked: 16, Changed: 1}, Verdict: gate.Fail,
		}},
		Warnings: []trainer.Warning{{Code: trainer.CutRows, Text: "2 of 9 training rows were cut: a, b"}},
	}
}

// TestShowResult: what a person reads of it.
func TestShowResult(t *testing.T) {
	var out bytes.Buffer
	showResult(&out, result(), trainer.Stage{}, "page")
	lines := strings.Split(out.String(), "\n")
	if !strings.Contains(lines[0], "after  common  change") || !strings.Contains(lines[1], "60.0") || !strings.Contains(lines[1], "+2.9") || !strings.Contains(lines[1], " – ") || strings.Contains(out.String(), "NaN") {
		t.Errorf("the table is\n%s", out.String())
	}
	for _, want := range []string{result().Ended, "note: 2 of 9 training rows were cut: a, b"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the result does not say %q:\n%s", want, out.String())
		}
	}
}

// protected is the run, which protected a suite by projection.
func protected() trainer.Result {
	r := result()
	r.Evaluations = append(r.Evaluations, trainer.SuiteResult{
		Suite: "mail", Protected: true, KL: new(.0031), Verdict: gate.Pass,
		Change: &eval.Change{Delta: -.01, Lo: -.02, Hi: .005, Groups: 90, Lost: 80, Gained: 3, P: 1e-9},
	})
	r.Protection = &trainer.Protection{
		Subspace: "5ub", Strength: 1, Share: .62, Norm: .021, Leak: 3e-8, Served: 2e-6, Drift: .0125,
		Energy: map[string]float64{"mail": .97, "capability:0123456789abcdef": .991}, Rows: map[string]int{"mail": 512}, Layers: []trainer.LayerProtection{},
	}
	return r
}

// TestShowProtected: of what is protected the table says how far its answers went,
// and a line what the protection came to.
func TestShowProtected(t *testing.T) {
	show := func(r trainer.Result) string {
		var out bytes.Buffer
		showResult(&out, r, trainer.Stage{}, "page")
		return out.String()
	}
	got := show(protected())
	lines := strings.Split(got, "\n")
	cells := func(line string) []string { return strings.Fields(line) }
	if want := "suite rows before after common change 95 % interval p ece kl flips verdict"; strings.Join(cells(lines[0]), " ") != want {
		t.Errorf("the columns are %q, want %q", cells(lines[0]), want)
	}
	if want := "desk 0 – 50.0 60.0 +2.9 – 0.1250 – 1 of 16 ✗"; strings.Join(cells(lines[1]), " ") != want {
		t.Errorf("the target's row is %q, want %q", cells(lines[1]), want)
	}
	if want := "mail 0 – – – -1.0 -2.0 to +0.5 <.0001 – 0.003 – ✓ protected"; strings.Join(cells(lines[2]), " ") != want {
		t.Errorf("the protected row is %q, want %q", cells(lines[2]), want)
	}
	want := "kept: capability 0123456789ab 99.1 % of the energy; mail 512 rows, 97.0 % of the energy\n" +
		"protection: 62 % of the gradient removed; ‖D‖/‖W‖ 0.021; leak 3.0e-08, 2.0e-06 as loaded; drift 0.013 nats\n"
	if !strings.Contains(got, want) {
		t.Errorf("the result does not say %q:\n%s", want, got)
	}
	r := protected()
	r.Protection.Subspace, r.Protection.Drift, r.Protection.Energy = "", 0, nil
	if got := show(r); !strings.Contains(got, "kept: mail 512 rows\nprotection: ‖D‖/‖W‖ 0.021\n") {
		t.Errorf("without a subspace it says\n%s", got)
	}
	r.Evaluations[0].Flips.Changed = 0
	if got := show(r); strings.Contains(got, "flips") {
		t.Errorf("where no order of options changed an answer it says\n%s", got)
	}
	r = result()
	r.Protection = &trainer.Protection{Norm: .5}
	if got := show(r); strings.Contains(got, "protection:") || strings.Contains(got, " kl ") {
		t.Errorf("a run that protected nothing says\n%s", got)
	}
}

// TestShowResultWidth: the table of a run as wide as they come fits 100 columns.
func TestShowResultWidth(t *testing.T) {
	var r trainer.Result
	for _, suite := range []string{"banking77", "clinc150", "fine-foods"} {
		s := trainer.SuiteResult{
			Suite: suite, Protected: suite != "banking77", Target: suite == "banking77", Verdict: gate.Fail, KL: new(1.234),
			Common: eval.Common{Right: 412, Of: 1000}, Change: &eval.Change{Delta: -.349, Lo: -.381, Hi: -.316, P: 1e-9}, Flips: eval.Flipped{Asked: 16},
		}
		s.Items = make([]gate.Item, 3080)
		s.Before = []gate.Measure{{Category: gate.All, Metric: gate.Accuracy, Value: 1}}
		s.Measures = []gate.Measure{{Category: gate.All, Metric: gate.Accuracy, Value: .651}, {Category: gate.All, Metric: gate.ECE, Value: .123}}
		r.Evaluations = append(r.Evaluations, s)
	}
	var out bytes.Buffer
	showResult(&out, r, trainer.Stage{}, "page")
	for _, line := range strings.Split(out.String(), "\n")[:4] {
		if n := utf8.RuneCountInString(line); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestProgressLine: each part of a run says where it stands.
func TestProgressLine(t *testing.T) {
	for _, tt := range []struct {
		p    trainer.Progress
		want string
	}{
		{trainer.Progress{Phase: trainer.Protecting, Suite: "mail", Done: 64, Rows: 512}, "the base's answers on mail: 64 of 512 rows"},
		{trainer.Progress{Phase: trainer.Evaluating, Suite: "mail", Done: 6, Rows: 12}, "evaluating mail: 6 of 12 rows"},
		{trainer.Progress{Phase: trainer.Training, Step: 3, Steps: 9, Loss: .5, Rate: 4100, Share: .616}, "step 3 of 9  loss 0.5000  4.1k tokens/s  62 % of the gradient removed"},
		{trainer.Progress{Phase: trainer.Training, Step: 3, Steps: 9, Loss: .5, Rate: 943}, "step 3 of 9  loss 0.5000  943 tokens/s"},
	} {
		if got := progressLine(tt.p); got != tt.want {
			t.Errorf("%+v is %q, want %q", tt.p, got, tt.want)
		}
	}
}

// TestOutcome: what a program reads of it.
func TestOutcome(t *testing.T) {
	r := protected()
	r.Evaluations = append(r.Evaluations, trainer.SuiteResult{Suite: "sealed", Chance: math.NaN()})
	b, err := json.Marshal(outcomeOf(r, "page"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"most_common":0.6,"chance":0.5,"change":{"delta":0.029,"lo":null,"hi":null,"groups":1,"lost":1,"gained":6,"p":0.125},"kl":0.25,` +
			`"flips":{"asked":16,"changed":1},"verdict":"fail","cut":{"rows":1,"items":["c"]}`,
		`"most_common":null,"chance":null,"change":null,"kl":null,"flips":null,"verdict":"","cut":null`,
		`"lo":-0.02,"hi":0.005`, `"protection":{"subspace_sha256":"5ub","strength":1,`,
		`"cut":{"rows":2,"items":["a","b"]},"ended":"stopped after epoch 4 of 60`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the outcome has no %s: %s", want, b)
		}
	}
}
