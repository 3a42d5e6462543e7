package eval

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// drawn are n questions of k options whose targets are drawn from
// softmax(z/temperature) while the model reports the logits z: the temperature
// that explains them is the one they were drawn with.
func drawn(bucket string, n, k int, temperature float64) []Held {
	r := rand.New(rand.NewPCG(uint64(n), uint64(k)))
	list := make([]Held, n)
	for i := range list {
		h := Held{Bucket: bucket, Logits: make([]float64, k), Target: make([]float64, k)}
		p, sum := make([]float64, k), 0.0
		for j := range k {
			h.Logits[j] = 2 * r.NormFloat64()
			p[j] = math.Exp(h.Logits[j] / temperature)
			sum += p[j]
		}
		for j := range k {
			h.Target[j] = p[j] / sum // the expected target: no sampling noise
		}
		list[i] = h
	}
	return list
}

// TestFitTemperatures: the temperature that made the targets is found, and is
// clamped to the range.
func TestFitTemperatures(t *testing.T) {
	for _, tt := range []struct{ made, want float64 }{
		{1, 1}, {1.7, 1.7}, {.8, .8}, {4.9, 4.9}, {.1, .5}, {40, 5},
	} {
		c, err := FitTemperatures("dev", drawn("choice:3-5", 200, 4, tt.made))
		if err != nil {
			t.Fatal(err)
		}
		b := c.Buckets["choice:3-5"]
		if math.Abs(b.Temperature-tt.want) > 1.1e-4 {
			t.Errorf("targets made at %v: temperature %v, want %v", tt.made, b.Temperature, tt.want)
		}
		if b.NLL > b.NLLAt1+1e-9 {
			t.Errorf("targets made at %v: nll %v is worse than %v at temperature 1", tt.made, b.NLL, b.NLLAt1)
		}
	}
}

// TestFallback: a bucket under 50 rows takes its type's temperature, and 1 when
// its type is under 50 too.
func TestFallback(t *testing.T) {
	for _, tt := range []struct {
		name        string
		small, rest int // rows of choice:2 and of choice:6-10
		from        string
	}{
		{"enough", 50, 0, "bucket"},
		{"one short, type has enough", 49, 1, "type"},
		{"type is short", 24, 25, "none"},
		{"alone and short", 49, 0, "none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			held := slices.Concat(drawn("choice:2", tt.small, 2, 2), drawn("choice:6-10", tt.rest, 7, 2), drawn("noul:2", 300, 2, 3))
			c, err := FitTemperatures("dev", held)
			if err != nil {
				t.Fatal(err)
			}
			b := c.Buckets["choice:2"]
			want := 2.0
			if tt.from == "none" {
				want = 1
			}
			if b.From != tt.from || math.Abs(b.Temperature-want) > 1.1e-4 || b.Rows != tt.small {
				t.Errorf("choice:2 = %+v, want %v from %s over %d rows", b, want, tt.from, tt.small)
			}
			if math.Abs(c.Buckets["noul:2"].Temperature-3) > 1.1e-4 {
				t.Errorf("noul:2 = %+v, want 3: another type has no part in it", c.Buckets["noul:2"])
			}
		})
	}
}

// TestFitOrder: the rows' order changes neither a bit nor the id.
func TestFitOrder(t *testing.T) {
	held := drawn("choice:3-5", 77, 3, 1.3)
	one, err := FitTemperatures("dev", held)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(held)
	two, err := FitTemperatures("dev", held)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(one, two); d != "" {
		t.Errorf("reversed rows give another calibration:\n%s", d)
	}
}

// TestFitLeftOut: an option that never entered the head has logit -Inf; a row
// whose gold is one costs the floor and moves no temperature to infinity.
func TestFitLeftOut(t *testing.T) {
	held := drawn("choice:31+", 60, 3, 1)
	held[0].Logits[1], held[0].Target = math.Inf(-1), []float64{0, 1, 0}
	c, err := FitTemperatures("dev", held)
	if err != nil {
		t.Fatal(err)
	}
	if b := c.Buckets["choice:31+"]; math.IsInf(b.NLL, 0) || math.IsNaN(b.NLL) || b.Temperature < .9 || b.Temperature > 1.1 {
		t.Errorf("bucket = %+v, want a finite nll and a temperature near 1", b)
	}
	held[0].Logits[0] = math.NaN()
	if _, err := FitTemperatures("dev", held); !errors.Is(err, ErrNotFinite) {
		t.Errorf("a NaN logit: %v, want ErrNotFinite", err)
	}
}
