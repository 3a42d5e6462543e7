package data

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestOrder checks that every epoch is a permutation, whatever the number of
// rows, and that seed and epoch each choose another.
func TestOrder(t *testing.T) {
	sizes := []int{1, 2, 3, 15, 16, 17, 255, 256, 257, 1000, 65535, 65537}
	for _, n := range sizes {
		for seed := range uint64(3) {
			seen := make([]bool, n)
			o := newOrder(seed, 1, n)
			for i := range n {
				j := o.at(i)
				if j < 0 || j >= n || seen[j] {
					t.Fatalf("n %d, seed %d: at(%d) = %d, out of range or a second time", n, seed, i, j)
				}
				seen[j] = true
			}
		}
	}

	all := func(seed, epoch uint64) []int {
		o := newOrder(seed, epoch, 1000)
		list := make([]int, 1000)
		for i := range list {
			list[i] = o.at(i)
		}
		return list
	}
	if slices.Equal(all(1, 0), all(1, 1)) || slices.Equal(all(1, 0), all(2, 0)) || slices.Equal(all(1, 0), all(0, 1)) {
		t.Error("two (seed, epoch) pairs have one order")
	}
	// Pinned: a change here reorders every run that is resumed across it.
	want := []int{8, 7, 0, 2, 4, 1, 9, 3, 6, 5}
	o := newOrder(1, 0, 10)
	for i, w := range want {
		if got := o.at(i); got != w {
			t.Errorf("newOrder(1, 0, 10).at(%d) = %d, want %d", i, got, w)
		}
	}
}

// TestOrderUniform draws the place of each of 10 rows over 20,000 epochs. Each
// row's places are then a sum of squares with 9 degrees of freedom; 40 is
// exceeded once in 130,000.
func TestOrderUniform(t *testing.T) {
	const n, epochs = 10, 20_000
	var counts [n][n]int
	for epoch := range uint64(epochs) {
		o := newOrder(7, epoch, n)
		for i := range n {
			counts[i][o.at(i)]++
		}
	}
	for i := range n {
		chi := 0.0
		for _, c := range counts[i] {
			chi += math.Pow(float64(c)-epochs/n, 2) / (epochs / n)
		}
		if chi > 40 {
			t.Errorf("place %d: chi-square %.1f over 9 degrees of freedom", i, chi)
		}
	}
}

// lengths are n rows of 1 to 30 context tokens.
func lengths(n int) []Size {
	list := make([]Size, n)
	for i := range list {
		list[i] = Size{Context: 1 + i*7%30, Options: 40, Head: 10, Set: 1 + i%2}
	}
	return list
}

func TestPlan(t *testing.T) {
	tests := []struct {
		name  string
		sizes []Size
		cfg   PlanConfig
		want  []int // rows of each step
	}{
		{"rows divide", lengths(6), PlanConfig{Epochs: 1, BatchRows: 3}, []int{3, 3}},
		{"the last step is small", lengths(7), PlanConfig{Epochs: 2, BatchRows: 3}, []int{3, 3, 1, 3, 3, 1}},
		{"fewer rows than a batch", lengths(2), PlanConfig{Epochs: 2, BatchRows: 256}, []int{2, 2}},
		{"a row over the batch is a step", []Size{{Context: 9}, {Context: 9}}, PlanConfig{Epochs: 1, BatchTokens: 4}, []int{1, 1}},
		{"steps are capped", lengths(7), PlanConfig{Epochs: 2, BatchRows: 3, MaxSteps: 4}, []int{3, 3, 1, 3}},
		{"a cap past the end is none", lengths(2), PlanConfig{Epochs: 1, BatchRows: 1, MaxSteps: 9}, []int{1, 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := NewPlan(tt.sizes, tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			for step := 1; step <= p.Steps(); step++ {
				got = append(got, len(p.Rows(step)))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("rows of the steps (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPlanInvariants checks over many shapes that an epoch reads each row once,
// that caps hold, and that micro-batches are the step's rows in order.
func TestPlanInvariants(t *testing.T) {
	sizes := lengths(137)
	cfg := PlanConfig{
		Seed: 3, Epochs: 3, BatchTokens: 200, BatchRows: 20,
		Budget: Budget{Context: 60, Options: 80, Head: 50, Rows: 4},
	}
	p, err := NewPlan(sizes, cfg)
	if err != nil {
		t.Fatal(err)
	}
	read := make([][]int, cfg.Epochs)
	for step := 1; step <= p.Steps(); step++ {
		rows := p.Rows(step)
		read[p.Epoch(step)] = append(read[p.Epoch(step)], rows...)
		tokens := 0
		for _, r := range rows {
			tokens += sizes[r].Context
		}
		if tokens > cfg.BatchTokens || len(rows) > cfg.BatchRows {
			t.Errorf("step %d reads %d tokens in %d rows", step, tokens, len(rows))
		}
		var together []int
		for _, micro := range p.Micro(step) {
			together = append(together, micro...)
			context, sets := 0, map[int]bool{}
			for _, r := range micro {
				context += sizes[r].Context
				sets[sizes[r].Set] = true
			}
			if context > 60 || len(sets)*40 > 80 || len(micro)*10 > 50 || len(micro) > 4 {
				t.Errorf("step %d: micro-batch %v is over the budget", step, micro)
			}
		}
		if !slices.Equal(together, rows) {
			t.Errorf("step %d: micro-batches read %v, the step %v", step, together, rows)
		}
	}
	for epoch, rows := range read {
		slices.Sort(rows)
		for i, r := range rows {
			if r != i {
				t.Fatalf("epoch %d does not read every row once: %v", epoch, rows)
			}
		}
	}
}

// TestPlanGroups checks over many shapes that rows of one group are read one after
// another, by rising row, and never divided by a step or a micro-batch.
func TestPlanGroups(t *testing.T) {
	sizes := lengths(120)
	for i := range sizes {
		sizes[i].Group = i % 40 // 39 groups of 3 rows that stand 40 apart, and 3 rows alone
	}
	t.Run("by rows", func(t *testing.T) { checkGroups(t, sizes, 400) })
	t.Run("by tokens", func(t *testing.T) { checkGroups(t, sizes, 150) })
}

func checkGroups(t *testing.T, sizes []Size, batchTokens int) {
	cfg := PlanConfig{
		Seed: 3, Epochs: 3, BatchTokens: batchTokens, BatchRows: 20,
		Budget: Budget{Context: 80, Options: 80, Head: 50, Rows: 4},
	}
	p, err := NewPlan(sizes, cfg)
	if err != nil {
		t.Fatal(err)
	}
	context := func(rows []int) (n int) {
		for _, r := range rows {
			n += sizes[r].Context
		}
		return n
	}
	read := make([][]int, cfg.Epochs)
	for step := 1; step <= p.Steps(); step++ {
		rows := p.Rows(step)
		read[p.Epoch(step)] = append(read[p.Epoch(step)], rows...)
		if len(rows) > cfg.BatchRows || context(rows) > cfg.BatchTokens {
			t.Errorf("step %d reads %d rows of %d tokens", step, len(rows), context(rows))
		}
		var together []int
		for _, micro := range p.Micro(step) {
			together = append(together, micro...)
			for i, r := range micro {
				if g := sizes[r].Group; g != 0 {
					at := slices.Index(micro, g)
					if at < 0 || i-at > 2 || !slices.Equal(micro[at:at+3], []int{g, g + 40, g + 80}) {
						t.Fatalf("step %d: micro-batch %v divides group %d", step, micro, g)
					}
				}
			}
			if units := groupsIn(sizes, micro); units > 1 && (len(micro) > 4 || context(micro) > 80) {
				t.Errorf("step %d: micro-batch %v of %d units is over the budget", step, micro, units)
			}
		}
		if !slices.Equal(together, rows) {
			t.Errorf("step %d: micro-batches read %v, the step %v", step, together, rows)
		}
	}
	for epoch, rows := range read {
		slices.Sort(rows)
		for i, r := range rows {
			if r != i {
				t.Fatalf("epoch %d does not read every row once: %v", epoch, rows)
			}
		}
	}
}

// groupsIn counts the units of some rows: groups, and rows alone.
func groupsIn(sizes []Size, rows []int) int {
	groups, alone := make(map[int]bool), 0
	for _, r := range rows {
		if g := sizes[r].Group; g != 0 {
			groups[g] = true
		} else {
			alone++
		}
	}
	return len(groups) + alone
}

// TestPlanGroupsOver checks that a group over every cap goes alone and whole.
func TestPlanGroupsOver(t *testing.T) {
	sizes := []Size{{Context: 1}, {Context: 9, Group: 5}, {Context: 1}, {Context: 9, Group: 5}, {Context: 9, Group: 5}}
	p, err := NewPlan(sizes, PlanConfig{Epochs: 1, BatchRows: 2, BatchTokens: 10, Budget: Budget{Context: 2, Rows: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for step := 1; step <= p.Steps(); step++ {
		if rows := p.Rows(step); slices.Contains(rows, 1) {
			if want := []int{1, 3, 4}; !slices.Equal(rows, want) || len(p.Micro(step)) != 1 {
				t.Errorf("the group's step reads %v as %v, want %v at once", rows, p.Micro(step), want)
			}
			return
		}
	}
	t.Error("no step reads the group")
}

// TestPlanGroupsOptions checks that options that rows of a group share count once.
func TestPlanGroupsOptions(t *testing.T) {
	sizes := []Size{{Options: 40, Set: 1, Group: 1}, {Options: 40, Set: 1, Group: 1}, {Options: 40, Set: 1, Group: 2}, {Options: 40, Set: 1, Group: 2}}
	p, err := NewPlan(sizes, PlanConfig{Epochs: 1, BatchRows: 4, Budget: Budget{Options: 40}})
	if err != nil {
		t.Fatal(err)
	}
	if micro := p.Micro(1); len(micro) != 1 {
		t.Errorf("rows of one set of options are read as %v, want at once", micro)
	}
	sizes[2].Set, sizes[3].Set = 2, 3
	if micro := p.Micro(1); len(micro) != 2 {
		t.Errorf("groups of different options are read as %v, want apart", micro)
	}
	p.cfg.Budget.Options = 119
	if micro := p.Micro(1); len(micro) != 2 {
		t.Errorf("40 and 80 tokens of options are read as %v in 119, want apart", micro)
	}
	p.cfg.Budget.Options = 120
	if micro := p.Micro(1); len(micro) != 1 {
		t.Errorf("40 and 80 tokens of options are read as %v in 120, want at once", micro)
	}
}

// TestPlanWithoutGroups pins the plan of rows without groups, and of groups of one
// row, which is the same: a change reorders every run that is resumed across it.
func TestPlanWithoutGroups(t *testing.T) {
	sizes, ids := lengths(23), make([]string, 23)
	for i := range ids {
		ids[i] = fmt.Sprintf("s:%d", i)
	}
	const want = `{"batch_rows":6,"batch_tokens":100,"counts":[[4,6,6,6,1],[6,6,6,5]],"epochs":2,"format":1,` +
		`"items_hash":"sha256:fdd1ba475d7f9dccbdaf512de7122c825735b0a63923f11a39acc32ebe33c8a8",` +
		`"max_steps":0,"order":"feistel8-splitmix64","rows":23,"seed":9,"steps":9}`
	for _, group := range []int{0, 1} {
		for i := range sizes {
			sizes[i].Group = group * (i + 1)
		}
		p, err := NewPlan(sizes, PlanConfig{Seed: 9, Epochs: 2, BatchTokens: 100, BatchRows: 6, Budget: Budget{Context: 40, Options: 40}})
		if err != nil {
			t.Fatal(err)
		}
		raw, err := p.JSON(ids)
		if err != nil {
			t.Fatal(err)
		}
		if string(raw) != want {
			t.Errorf("the plan is\n%s, want\n%s", raw, want)
		}
		if got, want := fmt.Sprint(p.Micro(1)), "[[21] [14 8] [12]]"; got != want {
			t.Errorf("step 1 is read as %s, want %s", got, want)
		}
	}
	for i := range sizes {
		sizes[i].Group = 1 + i/2
	}
	p, err := NewPlan(sizes, PlanConfig{Seed: 9, Epochs: 2, BatchTokens: 100, BatchRows: 6})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := p.JSON(ids)
	if err != nil {
		t.Fatal(err)
	}
	if want := `"units":[0,0,1,1,2,2,`; !strings.Contains(string(raw), want) {
		t.Errorf("the plan of groups is\n%s, want it with %s", raw, want)
	}
}

// TestCycle checks that a walk reads everything once before anything twice, each
// time in another order, and depends on nothing but seed and place.
func TestCycle(t *testing.T) {
	for _, n := range []int{1, 2, 7, 300} {
		c := NewCycle(5, n)
		var laps [3][]int
		for i := range 3 * n {
			laps[i/n] = append(laps[i/n], c.At(i))
		}
		for lap, list := range laps {
			sorted := slices.Sorted(slices.Values(list))
			for i, v := range sorted {
				if v != i {
					t.Fatalf("lap %d of %d does not read each once: %v", lap, n, list)
				}
			}
		}
		if n == 300 && (slices.Equal(laps[0], laps[1]) || slices.Equal(laps[1], laps[2])) {
			t.Error("two laps have one order")
		}
	}
	if a, b := NewCycle(5, 300), NewCycle(6, 300); a.At(0) == b.At(0) && a.At(1) == b.At(1) && a.At(2) == b.At(2) {
		t.Error("the seed does not decide the order")
	}
	// Pinned: a change here gives the steps of a resumed run other kept rows.
	c, want := NewCycle(1, 10), []int{8, 7, 0, 2, 4, 1, 9, 3, 6, 5}
	for i, w := range want {
		if got := c.At(i); got != w {
			t.Errorf("At(%d) = %d, want %d", i, got, w)
		}
	}
}

// TestPlanJSON checks that what changes a step changes the artifact, and that
// the budget, which cannot, does not.
func TestPlanJSON(t *testing.T) {
	ids := make([]string, 50)
	for i := range ids {
		ids[i] = fmt.Sprintf("s:%d", i)
	}
	base := PlanConfig{Seed: 1, Epochs: 1, BatchRows: 8}
	artifact := func(cfg PlanConfig, ids []string) string {
		p, err := NewPlan(lengths(len(ids)), cfg)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := p.JSON(ids)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	was := artifact(base, ids)
	budget := base
	budget.Budget = Budget{Rows: 2}
	if artifact(budget, ids) != was {
		t.Error("the budget changes the plan")
	}
	seed := base
	seed.Seed = 2
	renamed := slices.Clone(ids)
	renamed[7] = "s:x"
	for name, other := range map[string]string{"seed": artifact(seed, ids), "an id": artifact(base, renamed)} {
		if other == was {
			t.Errorf("%s does not change the plan", name)
		}
	}

	p, _ := NewPlan(lengths(len(ids)), base)
	h1, err := p.BatchIDsHash(1, ids)
	if err != nil || !h1.Valid() {
		t.Fatalf("BatchIDsHash = %q, %v", h1, err)
	}
	if h2, _ := p.BatchIDsHash(2, ids); h1 == h2 {
		t.Error("two steps have one batch_ids_hash")
	}
}

func TestPlanRefuses(t *testing.T) {
	one := []Size{{Context: 1}}
	tests := []struct {
		name  string
		sizes []Size
		cfg   PlanConfig
		want  string
	}{
		{"no rows", nil, PlanConfig{Epochs: 1, BatchRows: 1}, "plan: there are no rows to train on"},
		{"no epochs", one, PlanConfig{BatchRows: 1}, "plan: epochs is 0; it must be 1 or more"},
		{"no batch", one, PlanConfig{Epochs: 1}, "plan: batch_tokens is 0 and batch_rows 0; one must be above 0 and neither below"},
		{"negative cap", one, PlanConfig{Epochs: 1, BatchRows: 1, Budget: Budget{Rows: -1}}, "plan: budget {Context:0 Options:0 Head:0 Rows:-1} has a cap below 0"},
	}
	for _, tt := range tests {
		if _, err := NewPlan(tt.sizes, tt.cfg); err == nil || err.Error() != tt.want {
			t.Errorf("%s: NewPlan = %v, want %q", tt.name, err, tt.want)
		}
	}
}
