package gate

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"testing"
)

func TestSplitMix64(t *testing.T) {
	r := splitMix64{13}
	if a, b := r.next(), r.next(); a != 14180207640020093695 || b != 6063221543909367921 {
		t.Errorf("SplitMix64(13) = %d, %d", a, b)
	}
	r = splitMix64{13}
	var got []uint64
	for range 8 {
		got = append(got, r.below(8))
	}
	if want := []uint64{7, 1, 0, 3, 3, 4, 7, 4}; !slices.Equal(got, want) {
		t.Errorf("indices under 8 = %v, want %v", got, want)
	}
	// n = 2⁶³+1 rejects nearly half of all numbers, so a missing redraw shows.
	n := uint64(1<<63 + 1)
	r, all := splitMix64{13}, splitMix64{13}
	for range 100 {
		want := all.next()
		for want >= math.MaxUint64-math.MaxUint64%n {
			want = all.next()
		}
		if got := r.below(n); got != want%n {
			t.Fatalf("below(%d) = %d, want %d", n, got, want%n)
		}
	}
}

// rightAnswers are the eight rows of HIP-1334 §9.2 in groups of two.
func rightAnswers(right ...int) []Item {
	var items []Item
	for i := 1; i <= 8; i++ {
		items = append(items, Item{
			Item: fmt.Sprint(i), Question: "q", Group: fmt.Sprintf("g%d", (i+1)/2), Correct: ptr(slices.Contains(right, i)),
		})
	}
	return items
}

func TestHIP1334Item10(t *testing.T) {
	var v struct {
		Bootstrap struct {
			Subject  []int `json:"subject_correct_items"`
			Baseline []int `json:"baseline_correct_items"`
			Draws    uint32
			Level    float64
			Seed     uint64
			Accuracy float64
			Against  float64    `json:"baseline_accuracy"`
			Items    [2]float64 `json:"item_interval"`
			Groups   [2]float64 `json:"group_interval"`
		} `json:"paired_bootstrap"`
		McNemar struct {
			B, C uint64
			P    float64
		}
	}
	readVector(t, "hip1334-vectors.json", &v)
	want := v.Bootstrap
	subject := []Evaluation{{DatasetSHA256: dataset, Complete: true, Items: rightAnswers(want.Subject...)}}
	baseline := []Evaluation{{DatasetSHA256: dataset, Complete: true, Items: rightAnswers(want.Baseline...)}}

	for unit, interval := range map[Unit][2]float64{UnitItem: want.Items, UnitGroup: want.Groups} {
		g := oneRule(Test{Kind: Hold, Interval: &Interval{Kind: ByBootstrap, Draws: want.Draws, Level: want.Level, Seed: want.Seed, Unit: unit}})
		r := g.Evaluate(subject, baseline).Rules[0]
		if r.Reason != nil || !near(*r.Value, want.Accuracy) || !near(*r.Baseline, want.Against) ||
			!near(*r.Lo, interval[0]) || !near(*r.Hi, interval[1]) || r.N != 8 {
			t.Errorf("over %ss: %s", unit, show(r))
		}
	}
	g := oneRule(Test{Kind: Hold, Interval: &Interval{Kind: ByMcNemar, Alpha: 0.05}})
	if r := g.Evaluate(subject, baseline).Rules[0]; r.P == nil || !near(*r.P, v.McNemar.P) {
		t.Errorf("McNemar: %s, want p %v", show(r), v.McNemar.P)
	}
	if p := McNemar(v.McNemar.B, v.McNemar.C); !near(p, v.McNemar.P) {
		t.Errorf("McNemar(%d, %d) = %v, want %v", v.McNemar.B, v.McNemar.C, p, v.McNemar.P)
	}
}

// TestBootstrapStrong uses rows that tell a right bootstrap from near misses: one
// that reseeds, takes a plain remainder, averages group means, interpolates
// quantiles, sorts i2 before i10 or computes α exactly gives other ends.
func TestBootstrapStrong(t *testing.T) {
	draw := splitMix64{7}
	unit := func() *float64 { return ptr(float64(draw.next()>>11) / (1 << 53)) }
	sizes := []int{1, 2, 3, 4, 5, 9}
	var subject, baseline []Item
	for g, size := range sizes {
		for range size {
			it := Item{Item: fmt.Sprintf("i%d", len(subject)+1), Question: "q", Group: fmt.Sprintf("g%d", g), Score: unit()}
			subject = append(subject, it)
			it.Score = unit()
			baseline = append(baseline, it)
		}
	}
	if *subject[0].Score != 0.3898297483912715 || *baseline[23].Score != 0.8279039732939806 {
		t.Fatalf("the rows are not those of the vector: %v … %v", *subject[0].Score, *baseline[23].Score)
	}
	tests := []struct {
		level  float64
		unit   Unit
		lo, hi float64
	}{
		{0.95, UnitItem, -0.1308690796405776, 0.2006746901823153},
		{0.95, UnitGroup, -0.1004472847887694, 0.2101618530096051},
		{0.90, UnitItem, -0.1084459955052909, 0.1856318200323878}, // rank 49, not 50
	}
	for _, tt := range tests {
		g := oneRule(Test{Kind: Hold, Interval: &Interval{Kind: ByBootstrap, Draws: 1000, Level: tt.level, Seed: 13, Unit: tt.unit}})
		g.Rules[0].Metric = Score
		// The order in which rows are given does not matter.
		slices.Reverse(subject)
		r := g.Evaluate([]Evaluation{{DatasetSHA256: dataset, Complete: true, Items: subject}},
			[]Evaluation{{DatasetSHA256: dataset, Complete: true, Items: baseline}}).Rules[0]
		if r.Lo == nil || !near(*r.Lo, tt.lo) || !near(*r.Hi, tt.hi) {
			t.Errorf("level %v over %ss: %s; want [%v, %v]", tt.level, tt.unit, show(r), tt.lo, tt.hi)
		}
	}
}

// TestBootstrapRanks checks the ends' ranks on draws that number themselves.
func TestBootstrapRanks(t *testing.T) {
	for _, tt := range []struct {
		draws       uint32
		level       float64
		first, last float64
	}{
		{1000, 0.95, 25, 974},
		{1000, 0.99, 5, 994},
		{1000, 0.9, 49, 949}, // 1 − 0.9 is a little under a tenth
		{1, 0.5, 0, 0},
		{2, 0.999, 0, 1},
		{100, 0.0001, 49, 50},
	} {
		i := -1.0
		lo, hi := Bootstrap(3, tt.draws, tt.level, 1, func([]int) float64 { i++; return i })
		if lo != tt.first || hi != tt.last {
			t.Errorf("%d draws at %v: ranks %v and %v, want %v and %v", tt.draws, tt.level, lo, hi, tt.first, tt.last)
		}
	}
}

func TestMcNemar(t *testing.T) {
	tests := []struct {
		b, c uint64
		want float64
	}{
		{0, 0, 1},
		{5, 5, 1},
		{0, 1, 1},
		{0, 5, 2.0 / 32},
		{40, 60, 0.056887933640980784},
		{1000, 1100, 0.030720707864242296}, // 2,100 choose k overflows a float64
	}
	for _, tt := range tests {
		for _, got := range []float64{McNemar(tt.b, tt.c), McNemar(tt.c, tt.b)} {
			if !near(got, tt.want) {
				t.Errorf("McNemar(%d, %d) = %v, want %v", tt.b, tt.c, got, tt.want)
			}
		}
	}
	// The same in whole numbers.
	for b := uint64(0); b < 40; b++ {
		for c := uint64(0); c < 40; c++ {
			if got, want := McNemar(b, c), exactMcNemar(b, c); got != want {
				t.Errorf("McNemar(%d, %d) = %v, want %v", b, c, got, want)
			}
		}
	}
	if p := McNemar(0, 5000); p != 0 {
		t.Errorf("McNemar(0, 5000) = %v, want 0, which 2⁻⁴⁹⁹⁹ rounds to", p)
	}
}

func exactMcNemar(b, c uint64) float64 {
	sum := new(big.Int)
	for k := uint64(0); k <= min(b, c); k++ {
		sum.Add(sum, new(big.Int).Binomial(int64(b+c), int64(k)))
	}
	p := new(big.Rat).SetFrac(sum.Lsh(sum, 1), new(big.Int).Lsh(big.NewInt(1), uint(b+c)))
	f, _ := p.Float64()
	return min(1, f)
}
