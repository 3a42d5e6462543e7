package data

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hanzoai/link/spool/canon"
)

// A Size is what one row costs to compute.
type Size struct {
	Context int // tokens of its contexts
	Options int // tokens of its options' texts
	Head    int // tokens its head reads
	Set     int // rows of one Set other than 0 have the same options, which a micro-batch holds once
	Group   int // rows of one Group other than 0 are read together
}

// A Budget caps a micro-batch; 0 is no cap. A row, or the rows of one group, that
// is over a cap by itself makes a micro-batch of its own.
type Budget struct {
	Context int `json:"ctx"`
	Options int `json:"options"`
	Head    int `json:"head"`
	Rows    int `json:"rows"`
}

// PlanConfig says how rows become steps. BatchTokens, BatchRows or both are set.
type PlanConfig struct {
	Seed        uint64
	Epochs      int    // 1 or more
	BatchTokens int    // context tokens a step; a row or group over it is a step of its own; 0: no cap
	BatchRows   int    // rows a step; 0: no cap
	MaxSteps    int    // 0: all epochs
	Budget      Budget // cuts steps into micro-batches, which changes no result
}

// A Plan says which rows each step reads, in which order. It is a pure function
// of the sizes and the configuration. Steps count from 1, epochs and rows from 0.
//
// An epoch reads every row once, in an order of its own. A step takes rows in
// that order until the next would exceed its caps, and ends with its epoch, so
// that the last step of an epoch may be small; fewer rows than a batch are one
// step. The rows of one [Size].Group stand in that order as one, by rising row:
// no step and no micro-batch divides them. A plan is safe for concurrent use.
type Plan struct {
	cfg    PlanConfig
	sizes  []Size
	units  [][]int // what the orders permute: rows that are read together, by their first
	group  bool    // a unit has more than one row
	orders []order // by epoch
	steps  []span
}

// A span is the part of an epoch that one step reads, in units.
type span struct{ epoch, lo, hi int }

// NewPlan plans the steps over rows of the given sizes.
func NewPlan(sizes []Size, cfg PlanConfig) (*Plan, error) {
	switch b := cfg.Budget; {
	case len(sizes) == 0:
		return nil, errors.New("plan: there are no rows to train on")
	case cfg.Epochs < 1:
		return nil, fmt.Errorf("plan: epochs is %d; it must be 1 or more", cfg.Epochs)
	case cfg.BatchTokens < 0 || cfg.BatchRows < 0 || cfg.BatchTokens+cfg.BatchRows == 0:
		return nil, fmt.Errorf("plan: batch_tokens is %d and batch_rows %d; one must be above 0 and neither below", cfg.BatchTokens, cfg.BatchRows)
	case cfg.MaxSteps < 0:
		return nil, fmt.Errorf("plan: max_steps is %d; it must be 0 or more", cfg.MaxSteps)
	case b.Context < 0 || b.Options < 0 || b.Head < 0 || b.Rows < 0:
		return nil, fmt.Errorf("plan: budget %+v has a cap below 0", b)
	}
	p := &Plan{cfg: cfg, sizes: sizes, units: unitsOf(sizes)}
	p.group = len(p.units) < len(sizes)
	for epoch := range cfg.Epochs {
		o := newOrder(cfg.Seed, uint64(epoch), len(p.units))
		p.orders = append(p.orders, o)
		lo, rows, tokens := 0, 0, 0
		for i := range p.units {
			unit, t := p.units[o.at(i)], 0
			for _, row := range unit {
				t += sizes[row].Context
			}
			full := cfg.BatchRows > 0 && rows+len(unit) > cfg.BatchRows ||
				cfg.BatchTokens > 0 && tokens+t > cfg.BatchTokens
			if i > lo && full {
				p.steps = append(p.steps, span{epoch, lo, i})
				lo, rows, tokens = i, 0, 0
			}
			rows, tokens = rows+len(unit), tokens+t
		}
		p.steps = append(p.steps, span{epoch, lo, len(p.units)})
		if cfg.MaxSteps > 0 && len(p.steps) >= cfg.MaxSteps {
			p.steps = p.steps[:cfg.MaxSteps]
			break
		}
	}
	return p, nil
}

// unitsOf gathers rows that are read together, by rising row, units by their
// first.
func unitsOf(sizes []Size) [][]int {
	units := make([][]int, 0, len(sizes))
	of := make(map[int]int)         // group to unit
	rows := make([]int, len(sizes)) // behind the units of one
	for row, s := range sizes {
		if u, ok := of[s.Group]; ok && s.Group != 0 {
			units[u] = append(units[u], row)
			continue
		}
		of[s.Group] = len(units)
		rows[row] = row
		units = append(units, rows[row:row+1:row+1])
	}
	return units
}

// Steps is how many steps the plan has.
func (p *Plan) Steps() int { return len(p.steps) }

// Epoch is the epoch that a step belongs to.
func (p *Plan) Epoch(step int) int { return p.steps[step-1].epoch }

// Rows are the rows of a step, in the order in which they are read.
func (p *Plan) Rows(step int) []int {
	var rows []int
	for _, unit := range p.read(step) {
		rows = append(rows, unit...)
	}
	return rows
}

// read are the units of a step, in the order in which they are read.
func (p *Plan) read(step int) [][]int {
	s := p.steps[step-1]
	list := make([][]int, 0, s.hi-s.lo)
	for i := s.lo; i < s.hi; i++ {
		list = append(list, p.units[p.orders[s.epoch].at(i)])
	}
	return list
}

// Micro cuts a step's rows into micro-batches within the budget. Put together
// they are Rows: a cut never reorders.
func (p *Plan) Micro(step int) [][]int {
	var cut [][]int
	var micro []int
	var sum Size
	sets := make(map[int]bool) // of the micro-batch
	for _, unit := range p.read(step) {
		s := p.cost(unit, sets)
		b := p.cfg.Budget
		over := b.Context > 0 && sum.Context+s.Context > b.Context ||
			b.Options > 0 && sum.Options+s.Options > b.Options ||
			b.Head > 0 && sum.Head+s.Head > b.Head ||
			b.Rows > 0 && len(micro)+len(unit) > b.Rows
		if len(micro) > 0 && over {
			cut = append(cut, micro)
			micro, sum = nil, Size{}
			clear(sets)
			s = p.cost(unit, sets)
		}
		micro = append(micro, unit...)
		sum.Context += s.Context
		sum.Options += s.Options
		sum.Head += s.Head
		for _, row := range unit {
			sets[p.sizes[row].Set] = true
		}
	}
	return append(cut, micro)
}

// cost is what a unit adds to a micro-batch that holds the options of sets.
func (p *Plan) cost(unit []int, sets map[int]bool) Size {
	var sum Size
	for i, row := range unit {
		s := p.sizes[row]
		sum.Context += s.Context
		sum.Head += s.Head
		held := sets[s.Set] || slices.ContainsFunc(unit[:i], func(r int) bool { return p.sizes[r].Set == s.Set })
		if s.Set == 0 || !held {
			sum.Options += s.Options
		}
	}
	return sum
}

// JSON is the plan artifact: canonical JSON that, with the rows' item ids in
// order, fixes every step. ids[i] is the item of row i. The budget is not in it.
// A plan without groups names none; of one with them, units[i] is the unit of row
// i, which is what the order permutes.
func (p *Plan) JSON(ids []string) (canon.Raw, error) {
	if len(ids) != len(p.sizes) {
		panic("data: Plan.JSON with other rows than were planned")
	}
	items, err := canon.Of(ids)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	counts := make([][]int, len(p.orders)) // rows of each step of each epoch
	for i, s := range p.steps {
		counts[s.epoch] = append(counts[s.epoch], len(p.Rows(i+1)))
	}
	var units []int
	if p.group {
		units = make([]int, len(ids))
		for i, unit := range p.units {
			for _, row := range unit {
				units[row] = i
			}
		}
	}
	return canon.Marshal(struct {
		Format      int        `json:"format"`
		Order       string     `json:"order"`
		Seed        uint64     `json:"seed"`
		Epochs      int        `json:"epochs"`
		BatchTokens int        `json:"batch_tokens"`
		BatchRows   int        `json:"batch_rows"`
		MaxSteps    int        `json:"max_steps"`
		Rows        int        `json:"rows"`
		ItemsHash   canon.Hash `json:"items_hash"`
		Steps       int        `json:"steps"`
		Counts      [][]int    `json:"counts"`
		Units       []int      `json:"units,omitzero"`
	}{1, "feistel8-splitmix64", p.cfg.Seed, p.cfg.Epochs, p.cfg.BatchTokens, p.cfg.BatchRows,
		p.cfg.MaxSteps, len(ids), items, len(p.steps), counts, units})
}

// BatchIDsHash is the _hash of the item ids of a step's rows, in order: a step
// event's batch_ids_hash.
func (p *Plan) BatchIDsHash(step int, ids []string) (canon.Hash, error) {
	rows := p.Rows(step)
	batch := make([]string, len(rows))
	for i, row := range rows {
		batch[i] = ids[row]
	}
	return canon.Of(batch)
}
