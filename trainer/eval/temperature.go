package eval

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/canon"
)

// The range temperatures are sought in, as Kai's: a temperature below it
// multiplies logits until every answer is certain (a published value of .1 did).
const (
	minTemperature = 0.5
	maxTemperature = 5.0
)

// enoughRows is how many held-out questions a bucket needs for a temperature of
// its own.
const enoughRows = 50

// Held is one question answered on a row held out for calibration: its bucket
// ("choice:3-5", see kai.Bucket), the logits before any temperature, and the
// target distribution over the same options in the same order.
type Held struct {
	Bucket         string
	Logits, Target []float64
}

// Calibration is what [FitTemperatures] found. Its JSON is a part of kai.json.
type Calibration struct {
	ID      string            `json:"id"`    // "cal_" and 16 hex of the rest
	Split   string            `json:"split"` // which rows it was fitted on
	Buckets map[string]Bucket `json:"buckets"`
}

// Bucket is the calibration of one kind and size of question.
type Bucket struct {
	Rows        int     `json:"rows"`        // questions it was fitted on
	Temperature float64 `json:"temperature"` // in [0.5, 5]
	NLLAt1      float64 `json:"nll_at_1"`    // mean nll with temperature 1
	NLL         float64 `json:"nll"`         // mean nll with this temperature
	From        string  `json:"from"`        // "bucket", "type" or "none": which rows chose it
}

// FitTemperatures chooses a temperature a bucket: the one that minimises the
// mean negative log-likelihood of the bucket's held-out questions, by golden
// section. A bucket of fewer than 50 questions takes its type's (all buckets of
// the type together), and 1 when the type has fewer than 50 too. Temperatures
// are rounded to 1e-4, which is finer than any such sample supports and keeps
// them equal on machines whose exp differs in the last bit.
//
// The result does not depend on the order of held. A logit that is NaN or +Inf is
// [ErrNotFinite].
func FitTemperatures(split string, held []Held) (Calibration, error) {
	byBucket, byType := map[string][]Held{}, map[string][]Held{}
	for i, h := range held {
		if len(h.Logits) != len(h.Target) || len(h.Logits) < 2 {
			return Calibration{}, fmt.Errorf("eval: calibration row %d has %d logits and %d targets", i, len(h.Logits), len(h.Target))
		}
		for _, z := range h.Logits {
			if math.IsNaN(z) || math.IsInf(z, 1) {
				return Calibration{}, fmt.Errorf("eval: calibration row %d has a logit that is %v: %w", i, z, ErrNotFinite)
			}
		}
	}
	for _, h := range slices.SortedFunc(slices.Values(held), order) {
		byBucket[h.Bucket] = append(byBucket[h.Bucket], h)
		byType[typeOf(h.Bucket)] = append(byType[typeOf(h.Bucket)], h)
	}
	c := Calibration{Split: split, Buckets: map[string]Bucket{}}
	for _, name := range slices.Sorted(maps.Keys(byBucket)) {
		rows := byBucket[name]
		b := Bucket{Rows: len(rows), Temperature: 1, From: "none"}
		switch kind := byType[typeOf(name)]; {
		case len(rows) >= enoughRows:
			b.Temperature, b.From = best(rows), "bucket"
		case len(kind) >= enoughRows:
			b.Temperature, b.From = best(kind), "type"
		}
		b.NLLAt1, b.NLL = NLL(rows, 1), NLL(rows, b.Temperature)
		c.Buckets[name] = b
	}
	err := c.identify()
	return c, err
}

func typeOf(bucket string) string {
	kind, _, _ := strings.Cut(bucket, ":")
	return kind
}

// order is any fixed order of held rows: sums then do not depend on theirs.
func order(a, b Held) int {
	return cmp.Or(slices.Compare(a.Logits, b.Logits), slices.Compare(a.Target, b.Target))
}

// best minimises NLL over [minTemperature, maxTemperature] by golden section
// (Kiefer, 1953). The mean nll as a function of 1/T is convex, so it has one
// minimum there. rows are in [order].
func best(rows []Held) float64 {
	const ratio = 0.6180339887498949 // (√5-1)/2
	lo, hi := minTemperature, maxTemperature
	a, b := hi-ratio*(hi-lo), lo+ratio*(hi-lo)
	fa, fb := NLL(rows, a), NLL(rows, b)
	for hi-lo > 1e-6 {
		if fa <= fb {
			hi, b, fb = b, a, fa
			a = hi - ratio*(hi-lo)
			fa = NLL(rows, a)
		} else {
			lo, a, fa = a, b, fb
			b = lo + ratio*(hi-lo)
			fb = NLL(rows, b)
		}
	}
	return math.Round((lo+hi)/2*1e4) / 1e4
}

// NLL is the mean cross-entropy of softmax(logits/t) against the targets. A
// logit of -Inf (an option left out before the head) counts as probability
// 1e-12, the floor of HIP-1334 §8.3.
func NLL(rows []Held, t float64) float64 {
	var sum float64
	for _, r := range rows {
		top := slices.Max(r.Logits)
		var z float64
		for _, l := range r.Logits {
			z += math.Exp((l - top) / t)
		}
		lz := math.Log(z)
		for i, y := range r.Target {
			if y != 0 {
				sum += y * min(lz-(r.Logits[i]-top)/t, -math.Log(1e-12))
			}
		}
	}
	return sum / float64(len(rows))
}

// identify names c by what it holds, so that an answer can say which calibration
// shaped it.
func (c *Calibration) identify() error {
	c.ID = ""
	h, err := canon.Of(*c)
	if err != nil {
		return fmt.Errorf("eval: naming the calibration: %w", err)
	}
	c.ID = "cal_" + h.Hex()[:16]
	return nil
}

// Temperatures are c's temperatures by bucket.
func (c Calibration) Temperatures() map[string]float64 {
	m := make(map[string]float64, len(c.Buckets))
	for name, b := range c.Buckets {
		m[name] = b.Temperature
	}
	return m
}
