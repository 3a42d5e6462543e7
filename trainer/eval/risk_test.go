package eval

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
)

// vectors are hand-computed cases of a published harness, rounded to 4 places.
type vectors struct {
	TwoAnswers struct {
		Rows []struct {
			Gold int
			P    []float64
		}
		Accuracy, ECE, Brier float64
		NLL                  float64 `json:"nll_rounded4"`
	} `json:"two_answers"`
	RiskCoverage []struct {
		Conf    []float64
		Correct []int
		AURC    float64
		Risk    map[string]float64
	} `json:"risk_coverage"`
	ScoreMAE struct {
		Soft, P []float64
		Brier   float64 `json:"brier_vs_soft"`
	} `json:"score_mae"`
}

func readVectors(t *testing.T) (v vectors) {
	t.Helper()
	b, err := os.ReadFile("../../test/vectors/metrics-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// scored is the result of answering each target with the probabilities beside
// it, options in the order of their texts.
func scored(t *testing.T, targets, probabilities [][]float64) Result {
	t.Helper()
	var r Result
	for i, p := range probabilities {
		q := decision.Question{Type: decision.Choice, Options: make([]decision.Option, len(p))}
		order := make([]int, len(p))
		for j := range p {
			q.Options[j].Key, order[j] = strconv.Itoa(j), j
		}
		row := decision.Row{ID: "item" + strconv.Itoa(i)}
		asked := decision.Asked{Key: "q", Question: q, Target: targets[i]}
		if err := r.add(asking{&row, &asked}, kai.Input{Order: order}, kai.Prediction{P: p}, map[string]bool{}); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// TestMetricVectors: the items written here give the published metrics.
func TestMetricVectors(t *testing.T) {
	v := readVectors(t)
	var targets, probabilities [][]float64
	for _, row := range v.TwoAnswers.Rows {
		target := make([]float64, len(row.P))
		target[row.Gold] = 1
		targets, probabilities = append(targets, target), append(probabilities, row.P)
	}
	r := scored(t, targets, probabilities)
	for metric, want := range map[string]float64{
		gate.Accuracy: v.TwoAnswers.Accuracy, gate.ECE: v.TwoAnswers.ECE, gate.Brier: v.TwoAnswers.Brier, gate.NLL: v.TwoAnswers.NLL,
	} {
		if got, err := gate.Metric(metric, r.Items); err != nil || math.Abs(got-want) > 5e-5 {
			t.Errorf("%s = %v (%v), want %v", metric, got, err, want)
		}
	}
	soft := scored(t, [][]float64{v.ScoreMAE.Soft}, [][]float64{v.ScoreMAE.P})
	if got := *soft.Items[0].Brier; math.Abs(got-v.ScoreMAE.Brier) > 1e-12 {
		t.Errorf("brier of a soft target = %v, want %v", got, v.ScoreMAE.Brier)
	}
}

// TestRisk holds the curve to the published vectors, one of which has two
// answers of equal confidence.
func TestRisk(t *testing.T) {
	for _, v := range readVectors(t).RiskCoverage {
		var items []gate.Item
		for i, c := range v.Conf {
			correct := v.Correct[i] == 1
			items = append(items, gate.Item{Item: strconv.Itoa(i), Correct: &correct, Confidence: &c})
		}
		for range 2 {
			r := RiskOf(items)
			if math.Abs(r.AURC-v.AURC) > 5e-5 {
				t.Errorf("AURC of %v, %v = %v, want %v", v.Conf, v.Correct, r.AURC, v.AURC)
			}
			for coverage, want := range v.Risk {
				c, _ := strconv.ParseFloat(coverage, 64)
				if got := r.At(c); math.Abs(got-want) > 5e-5 {
					t.Errorf("risk of %v, %v at %v = %v, want %v", v.Conf, v.Correct, c, got, want)
				}
			}
			slices.Reverse(items) // the order of the items has no part in it
		}
	}
	if r := RiskOf(nil); r.AURC != 0 || r.At(1) != 0 {
		t.Errorf("risk of nothing = %+v", r)
	}
}

// TestNotFinite: a probability that is not a number is an error naming the item
// and the question, never a wrong answer.
func TestNotFinite(t *testing.T) {
	row := decision.Row{ID: "item7"}
	asked := decision.Asked{Key: "queue", Question: decision.Question{Options: make([]decision.Option, 2)}}
	var r Result
	err := r.add(asking{&row, &asked}, kai.Input{Order: []int{0, 1}}, kai.Prediction{P: []float64{math.NaN(), 1}}, map[string]bool{})
	if err == nil || err.Error() != "eval: item item7, question queue: probability is NaN: not finite" {
		t.Errorf("add = %v, want an error naming the item and the question", err)
	}
}
