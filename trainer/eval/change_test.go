package eval

import (
	"fmt"
	"math"
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
	unknown := math.NaN()
	tests := []struct {
		name          string
		before, after []gate.Item
		delta         float64
		groups        int
		wide          bool // the interval has a width
	}{
		{"nothing changed", items(10, 5), items(10, 5), 0, 10, false},
		{"all repaired", items(10, 0), items(10, 10), 1, 10, false},
		{"half repaired", items(10, 0), items(10, 5), .5, 10, true},
		{"one group", grouped(items(10, 0)), grouped(items(10, 5)), .5, 1, false},
		{"rows on one side only", items(10, 0), items(5, 5), unknown, 0, false},
		{"no rows", nil, nil, unknown, 0, false},
		{"rows without a verdict", []gate.Item{{Item: "a", Question: "q"}}, []gate.Item{{Item: "a", Question: "q"}}, unknown, 0, false},
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
			if c.Delta != tt.delta || c.Lo > c.Delta || c.Hi < c.Delta || (c.Lo < c.Hi) != tt.wide {
				t.Errorf("ChangeIn = %+v, want %v and an interval (wide: %t) around it", c, tt.delta, tt.wide)
			}
		})
	}
}
