package eval

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/hanzoai/link/spool/gate"
)

// TestChangeIn is the change in accuracy of pairs of rows, in fractions.
func TestChangeIn(t *testing.T) {
	items := func(n, right int) []gate.Item {
		var list []gate.Item
		for i := range n {
			correct := i < right
			list = append(list, gate.Item{Item: fmt.Sprint("i", i), Question: "q", Correct: &correct})
		}
		return list
	}
	grouped := func(list []gate.Item) []gate.Item {
		for i := range list {
			list[i].Group = "one"
		}
		return list
	}
	backwards := func(list []gate.Item) []gate.Item {
		slices.Reverse(list)
		return list
	}
	mirrored := func(list []gate.Item) []gate.Item {
		for i := range list {
			list[i].Correct = new(!*list[i].Correct)
		}
		return list
	}
	unknown := math.NaN()
	tests := []struct {
		name          string
		before, after []gate.Item
		delta         float64
		groups        int
		wide          bool // the interval has a width
		lost, gained  int
		p             float64 // 2·Σ C(n, k)/2ⁿ up to the smaller count, at most 1
	}{
		{"nothing changed", items(10, 5), items(10, 5), 0, 10, false, 0, 0, 1},
		{"all repaired", items(10, 0), items(10, 10), 1, 10, false, 0, 10, 2. / 1024},
		{"half repaired", items(10, 0), items(10, 5), .5, 10, true, 0, 5, 2. / 32},
		{"some lost", items(10, 8), items(10, 5), -.3, 10, true, 3, 0, 2. / 8},
		{"listed backwards", items(10, 8), backwards(items(10, 5)), -.3, 10, true, 3, 0, 2. / 8},
		{"as many lost as gained", items(10, 5), mirrored(items(10, 5)), 0, 10, true, 5, 5, 1},
		{"one group", grouped(items(10, 0)), grouped(items(10, 5)), .5, 1, false, 0, 5, 2. / 32},
		{"rows on one side only", items(10, 0), items(5, 5), unknown, 0, false, 0, 0, 0},
		{"no rows", nil, nil, unknown, 0, false, 0, 0, 0},
		{"rows without a verdict", []gate.Item{{Item: "a", Question: "q"}}, []gate.Item{{Item: "a", Question: "q"}}, unknown, 0, false, 0, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, ok := ChangeIn(tt.before, tt.after)
			if ok == math.IsNaN(tt.delta) || c.Groups != tt.groups {
				t.Fatalf("ChangeIn = %+v, %t, want %d groups", c, ok, tt.groups)
			}
			if !ok {
				return
			}
			if c.Groups == 1 && !(math.IsNaN(c.Lo) && math.IsNaN(c.Hi)) {
				t.Errorf("one group has the interval %v to %v", c.Lo, c.Hi)
			}
			if c.Lost != tt.lost || c.Gained != tt.gained || c.P != tt.p {
				t.Errorf("ChangeIn = %+v, want %d lost, %d gained, p %v", c, tt.lost, tt.gained, tt.p)
			}
			if math.Abs(c.Delta-tt.delta) > 1e-15 || c.Lo > c.Delta || c.Hi < c.Delta || (c.Lo < c.Hi) != tt.wide {
				t.Errorf("ChangeIn = %+v, want %v and an interval (wide: %t) around it", c, tt.delta, tt.wide)
			}
		})
	}
}

// TestChangeJSON: a change without an interval has null for it.
func TestChangeJSON(t *testing.T) {
	for want, c := range map[string]Change{
		`{"delta":0.5,"lo":0.25,"hi":0.75,"groups":9,"lost":1,"gained":4,"p":0.375}`: {.5, .25, .75, 9, 1, 4, .375},
		`{"delta":0.5,"lo":null,"hi":null,"groups":1,"lost":0,"gained":1,"p":1}`:     {.5, math.NaN(), math.NaN(), 1, 0, 1, 1},
	} {
		if got, err := json.Marshal(c); err != nil || string(got) != want {
			t.Errorf("%+v is %s, %v, want %s", c, got, err, want)
		}
	}
}

// TestKL: the mean divergence of pairs of answers, in nats.
func TestKL(t *testing.T) {
	at := func(item string, p ...float64) gate.Prediction {
		return gate.Prediction{Item: item, Question: "q", Probabilities: p}
	}
	list := func(p ...gate.Prediction) []gate.Prediction { return p }
	half := list(at("a", .5, .5))
	for _, tt := range []struct {
		name          string
		before, after []gate.Prediction
		want          float64
		ok            bool
	}{
		{"the same", half, half, 0, true},
		{"the same, and sure", list(at("a", 1, 0)), list(at("a", 1, 0)), 0, true},
		{"the same, and surer than the clip", list(at("a", 1, 1e-300)), list(at("a", 1, 1e-300)), 0, true},
		{"sure became even", list(at("a", 1, 0)), half, math.Ln2, true},
		{"even became sharp", half, list(at("a", .9, .1)), .5*math.Log(.5/.9) + .5*math.Log(.5/.1), true},
		{"what was sure is left out", list(at("a", 1, 0)), list(at("a", 0, 1)), -math.Log(1e-12), true},
		{"the mean of two", list(at("a", 1, 0), at("b", 1, 0)), list(at("b", 1, 0), at("a", .5, .5)), math.Ln2 / 2, true},
		{"another item", half, list(at("b", .5, .5)), 0, false},
		{"more options", half, list(at("a", .5, .25, .25)), 0, false},
		{"more questions", half, list(at("a", .5, .5), at("b", .5, .5)), 0, false},
		{"none", nil, nil, 0, false},
	} {
		got, ok := KL(tt.before, tt.after)
		if math.Abs(got-tt.want) > 1e-14*(1+tt.want) || ok != tt.ok {
			t.Errorf("%s: KL = %v, %t, want %v, %t", tt.name, got, ok, tt.want, tt.ok)
		}
	}
	a, b := list(at("a", .2, .8), at("b", .7, .3), at("c", .1, .9)), list(at("a", .3, .7), at("b", .6, .4), at("c", .4, .6))
	one, _ := KL(a, b)
	slices.Reverse(a)
	if two, _ := KL(a, b); one != two {
		t.Errorf("listed backwards KL is %v, was %v", two, one)
	}
}
