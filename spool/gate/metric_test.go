package gate

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"
)

const vectors = "../../test/vectors/"

func readVector(t testing.TB, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(vectors + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// near is the agreement that HIP-1334 §8.3 requires of two implementations.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-12 }

func ptr[T any](v T) *T { return &v }

// answered scores one answer to a question with gold option gold.
func answered(id string, gold int, p []float64) Item {
	best, brier := 0, 0.0
	for i := range p {
		if p[i] > p[best] {
			best = i
		}
		d := p[i]
		if i == gold {
			d--
		}
		brier += d * d
	}
	return Item{Item: id, Question: "q", Correct: ptr(best == gold), PGold: &p[gold], Confidence: &p[best], Brier: &brier}
}

func TestMetrics(t *testing.T) {
	var v struct {
		TwoAnswers struct {
			Rows []struct {
				Gold int
				P    []float64
			}
			Accuracy, ECE, Brier float64
			NLL                  float64 `json:"nll_rounded4"`
		} `json:"two_answers"`
	}
	readVector(t, "metrics-vectors.json", &v)
	two := v.TwoAnswers
	var items []Item
	for i, r := range two.Rows {
		items = append(items, answered(fmt.Sprint(i), r.Gold, r.P))
	}
	check := func(items []Item, name string, want, tolerance float64) {
		t.Helper()
		got, err := Metric(name, items)
		if err != nil || !(math.Abs(got-want) <= tolerance) {
			t.Errorf("Metric(%s) = %v, %v; want %v", name, got, err, want)
		}
	}
	check(items, Accuracy, two.Accuracy, 1e-12)
	check(items, ECE, two.ECE, 1e-12)
	check(items, Brier, two.Brier, 1e-12)
	check(items, NLL, two.NLL, 5e-5)
	check(items, NLL, -(math.Log(.75)+math.Log(.45))/2, 1e-12)

	// A probability of zero counts as 1e-12: 13.8155 over one right and one wrong answer.
	check([]Item{answered("a", 0, []float64{1, 0}), answered("b", 1, []float64{1, 0})}, NLL, -math.Log(1e-12)/2, 1e-12)

	scores := []Item{{Item: "a", Score: ptr(-2.0)}, {Item: "b", Score: ptr(5.0)}}
	check(scores, Score, 1.5, 1e-12)

	measures := Measures(items)
	if len(measures) != 4 {
		t.Fatalf("Measures = %+v, want the four that items allow", measures)
	}
	for i, name := range []string{Accuracy, NLL, Brier, ECE} {
		want, _ := Metric(name, items)
		if m := measures[i]; m.Metric != name || m.Value != want || m.Category != All || *m.N != 2 || *m.Of != 2 || m.Lo != nil || m.Hi != nil {
			t.Errorf("Measures[%d] = %+v, want %s %v of 2", i, m, name, want)
		}
	}
}

// TestMetricRefuses checks the ways to a NaN.
func TestMetricRefuses(t *testing.T) {
	good := answered("a", 0, []float64{1, 0})
	tests := []struct {
		name, metric string
		items        []Item
	}{
		{"no items", Accuracy, nil},
		{"not computed from items", "f1", []Item{good}},
		{"no correct", Accuracy, []Item{good, {Item: "b"}}},
		{"no correct", ECE, []Item{{Item: "b", Confidence: ptr(0.5)}}},
		{"no confidence", ECE, []Item{{Item: "b", Correct: ptr(true)}}},
		{"no p_gold", NLL, []Item{{Item: "b"}}},
		{"NaN", NLL, []Item{{Item: "b", PGold: ptr(math.NaN())}}},
		{"no brier", Brier, []Item{{Item: "b"}}},
		{"a sum that overflows", Score, []Item{{Item: "a", Score: ptr(math.MaxFloat64)}, {Item: "b", Score: ptr(math.MaxFloat64)}}},
		{"infinite score", Score, []Item{{Item: "b", Score: ptr(math.Inf(1))}}},
	}
	for _, tt := range tests {
		if got, err := Metric(tt.metric, tt.items); err == nil {
			t.Errorf("%s: Metric(%s) = %v, want an error", tt.name, tt.metric, got)
		}
	}
	if m := Measures(nil); len(m) != 0 || m == nil {
		t.Errorf("Measures(nil) = %v", m)
	}
}

// TestBins checks ECE's edges: closed above, and the lowest closed below too.
func TestBins(t *testing.T) {
	fifteenth := 1.0
	fifteenth /= 15
	for i := 1; i < bins; i++ {
		edge := float64(i) * fifteenth
		if edge != float64(i)/15 {
			t.Errorf("edge %d: i·(1/15) = %v, i/15 = %v", i, edge, float64(i)/15)
		}
		if got := binOf(edge); got != i-1 {
			t.Errorf("binOf(%v) = %d, want %d", edge, got, i-1)
		}
		if got := binOf(math.Nextafter(edge, 2)); got != i {
			t.Errorf("binOf(just over %v) = %d, want %d", edge, got, i)
		}
	}
	if binOf(0) != 0 || binOf(1) != 14 || binOf(1.0000000001) != 14 {
		t.Errorf("binOf at the ends: %d, %d", binOf(0), binOf(1))
	}
}
