package kai

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hanzoai/link/kernels/cpu"
	"github.com/hanzoai/link/trainer/decision"
)

// examples makes rows whose target is a function of their features.
func examples(m *Model, n, options int) []Example {
	var list []Example
	for i := range n {
		e := Example{Features: make([]float32, 2*m.Width()), Target: make([]float64, options), Weight: 1 + float64(i%3)}
		truncatedNormal(e.Features, uint64(i), "features")
		for j := range e.Features {
			e.Features[j] *= 50
		}
		best := 0
		for j := range options {
			if e.Features[j] > e.Features[best] {
				best = j
			}
		}
		e.Target[best] = 1
		list = append(list, e)
	}
	return list
}

// TestReadoutGradients compares the loss with its gradient along itself, for
// every parameter.
func TestReadoutGradients(t *testing.T) {
	m := nano(t, 1)
	for _, q := range []decision.Question{
		question(t, decision.Choice, "b", "a", "c"), question(t, decision.Score, "low", "mid", "high"), question(t, decision.Noul),
	} {
		r, err := m.NewReadout("test", q, 1)
		if err != nil {
			t.Fatal(err)
		}
		batch := examples(m, 20, len(q.Options))
		if loss, cross := r.Step(batch); (loss > cross) != (q.Type == decision.Score) {
			t.Errorf("%s: loss %v, of which cross-entropy %v", q.Type, loss, cross)
		}
		for _, p := range r.Params() {
			direct(t, string(q.Type)+" "+p.Name, p, slices.Clone(values(p.Grad)), func() float64 { loss, _ := r.Step(batch); return loss })
		}
	}
}

// direct compares a parameter's gradient with the central difference of the loss
// along it: (L(w+hg) - L(w-hg))/2h is |g|². The weight moves by 3e-3 or, where
// the loss bends within that or rounding hides its growth, by less or more.
func direct(t *testing.T, name string, p *Param, g []float32, loss func() float64) {
	t.Helper()
	norm := 0.0
	for _, v := range g {
		norm += float64(v) * float64(v)
	}
	if norm < 1e-12 {
		return // 0 but for rounding
	}
	w := slices.Clone(values(p.W))
	at := func(h float64) float64 {
		for i := range w {
			p.W.Host[i] = float32(float64(w[i]) + h*float64(g[i]))
		}
		defer copy(p.W.Host, w)
		return loss()
	}
	var got []float64
	for _, by := range []float64{3e-3, 1e-3, 1e-2} {
		h := by / math.Sqrt(norm)
		growth := (at(h) - at(-h)) / (2 * h)
		if math.Abs(growth-norm) < 2e-2*norm+1e-9 {
			return
		}
		got = append(got, growth)
	}
	t.Errorf("%s: the loss grows by %.5g along its gradient, want %.5g", name, got, norm)
}

func TestReadoutLearns(t *testing.T) {
	m := nano(t, 1)
	q := question(t, decision.Choice, "b", "a", "c")
	run := func(threads int) (first, last float64, w []float32) {
		m.dev = cpu.New(threads)
		r, err := m.NewReadout("test", q, 1)
		if err != nil {
			t.Fatal(err)
		}
		batch := examples(m, 100, 3)
		for i := range 60 {
			last, _ = r.Step(batch)
			if i == 0 {
				first = last
			}
			for _, p := range r.Params() {
				for j, g := range values(p.Grad) {
					p.W.Host[j] -= .2 * g
				}
			}
		}
		for _, p := range r.Params() {
			w = append(w, values(p.W)...)
		}
		return first, last, w
	}
	first, last, w := run(1)
	if !(last < first/2) {
		t.Errorf("the loss went from %v to %v", first, last)
	}
	_, _, again := run(2)
	sameBits(t, "weights on two threads", again, w)
}

func TestReadoutRoutes(t *testing.T) {
	dir := t.TempDir()
	m := nano(t, 1)
	mine, other := question(t, decision.Choice, "street", "card", "shop"), question(t, decision.Choice, "card", "shop")
	noul := question(t, decision.Noul)
	row := asking("the card was charged twice", mine, other, noul)
	base, err := m.NewPredictor().Answer(row)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Save(filepath.Join(dir, "base")); err != nil {
		t.Fatal(err)
	}
	for name, q := range map[string]decision.Question{"triage": mine, "urgent": noul} {
		r, err := m.NewReadout(name, q, 5)
		if err != nil {
			t.Fatal(err)
		}
		r.Temperature = 1.5
		r.Provenance = map[string]json.RawMessage{"rows": json.RawMessage("70")}
		if err := m.Attach(r); err != nil {
			t.Fatal(err)
		}
	}
	answers, err := m.NewPredictor().Answer(row)
	if err != nil {
		t.Fatal(err)
	}
	if answers[0].Readout != "triage" || answers[1].Readout != "" || answers[2].Readout != "urgent" {
		t.Errorf("answered by %q, %q and %q", answers[0].Readout, answers[1].Readout, answers[2].Readout)
	}
	if maps.Equal(answers[0].Probabilities, base[0].Probabilities) || *answers[2].Noul == *base[2].Noul {
		t.Error("the readouts answer as the base does")
	}
	if !maps.Equal(answers[1].Probabilities, base[1].Probabilities) {
		t.Errorf("the base's question moved: %v, was %v", answers[1].Probabilities, base[1].Probabilities)
	}
	swapped, err := m.NewPredictor().Answer(asking(row.State, question(t, decision.Choice, "shop", "street", "card")))
	if err != nil {
		t.Fatal(err)
	}
	if swapped[0].Readout != "triage" || !maps.Equal(swapped[0].Probabilities, answers[0].Probabilities) {
		t.Errorf("in another order: %+v, want %v", swapped[0], answers[0].Probabilities)
	}

	if err := m.Save(filepath.Join(dir, "with")); err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(filepath.Join(dir, "with"), cpu.New(1))
	if err != nil {
		t.Fatal(err)
	}
	got, err := loaded.NewPredictor().Answer(row)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if a, b := fmt.Sprint(got[i].Probabilities, got[i].AnswerConfidence), fmt.Sprint(answers[i].Probabilities, answers[i].AnswerConfidence); a != b {
			t.Errorf("question %d: loaded answers %s, saved %s", i, a, b)
		}
	}
	if list := loaded.Readouts(); len(list) != 2 || list[0].Name != "triage" || string(list[0].Provenance["rows"]) != "70" || list[0].Temperature != 1.5 {
		t.Errorf("loaded readouts %+v", list)
	}
	if err := loaded.Save(filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	if a, b := files(t, filepath.Join(dir, "with")), files(t, filepath.Join(dir, "again")); len(a) != 7 || !maps.Equal(a, b) {
		t.Errorf("saved again, of %d files some differ", len(a))
	}
}

func TestReadoutRefuses(t *testing.T) {
	m := nano(t, 1)
	q := question(t, decision.Choice, "card", "shop")
	for _, name := range []string{"", "..", "A", "a/b", strings.Repeat("a", 65)} {
		if _, err := m.NewReadout(name, q, 1); err == nil {
			t.Errorf("readout name %q passed", name)
		}
	}
	r, err := m.NewReadout("a", q, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Attach(r); err != nil {
		t.Fatal(err)
	}
	twin, err := m.NewReadout("b", question(t, decision.Choice, "shop", "card"), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Attach(twin); err == nil || !strings.Contains(err.Error(), "same question") {
		t.Errorf("two readouts for one question: %v", err)
	}
	if err := nano(t, 2).Attach(r); err == nil {
		t.Error("attached to another model")
	}
	dir := t.TempDir()
	if err := m.Save(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if err := nano(t, 2).Save(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "b", readoutsDir), os.DirFS(filepath.Join(dir, "a", readoutsDir))); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(filepath.Join(dir, "b"), cpu.New(1)); err == nil || !strings.Contains(err.Error(), "belongs to a base") {
		t.Errorf("a readout of another base: %v", err)
	}
	if err := os.Rename(filepath.Join(dir, "a", readoutsDir, "a"), filepath.Join(dir, "a", readoutsDir, "z")); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(filepath.Join(dir, "a"), cpu.New(1)); err == nil || !strings.Contains(err.Error(), "readouts/z: capability.json names it a") {
		t.Errorf("a readout under another name: %v", err)
	}

	// After a step the weights are others.
	m.Train(m.Frozen)
	e := m.Encoder()
	row := asking("the card", question(t, decision.Choice, "card", "shop", "street"))
	row.Asked[0].Target = []float64{1, 0, 0}
	inputs, err := e.Encode(row)
	if err != nil {
		t.Fatal(err)
	}
	m.Step(e.Texts, [][]Input{inputs}, Objective{})
	if err := m.Save(filepath.Join(dir, "c")); err == nil || !strings.Contains(err.Error(), "readout a") {
		t.Errorf("saved a readout with other weights: %v", err)
	}
}
