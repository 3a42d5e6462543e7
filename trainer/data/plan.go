package data

import "github.com/hanzoai/link/spool/canon"

// A Size is what one row costs to compute.
type Size struct {
	Context int // tokens of its contexts
	Options int // tokens of its options' texts
	Head    int // tokens its head reads
	Set     int // rows of one Set other than 0 have the same options, which a micro-batch holds once
}

// A Budget caps a micro-batch; 0 is no cap. A row that is over a cap by itself
// makes a micro-batch of its own.
type Budget struct {
	Context int `json:"ctx"`
	Options int `json:"options"`
	Head    int `json:"head"`
	Rows    int `json:"rows"`
}

// PlanConfig says how rows become steps. One of BatchTokens and BatchRows, or
// both, is set.
type PlanConfig struct {
	Seed        uint64 `json:"seed"`
	Epochs      int    `json:"epochs"`
	BatchTokens int    `json:"batch_tokens"` // context tokens a step; a row over it is a step of its own; 0: no cap
	BatchRows   int    `json:"batch_rows"`   // rows a step; 0: no cap
	MaxSteps    int    `json:"max_steps"`    // 0: all epochs
	Budget      Budget `json:"budget"`       // cannot change a result, and so is not part of the plan's hash
}

// A Plan says which rows each step reads, in which order.
type Plan struct{}

// NewPlan plans the steps over rows of the given sizes.
func NewPlan(sizes []Size, cfg PlanConfig) (*Plan, error) { panic("data: unwritten") }

// Steps is how many steps the plan has.
func (p *Plan) Steps() int { panic("data: unwritten") }

// Epoch is the epoch, from 0, that a step, from 1, belongs to.
func (p *Plan) Epoch(step int) int { panic("data: unwritten") }

// Rows are the rows of a step, from 1, in the order in which they are read.
func (p *Plan) Rows(step int) []int { panic("data: unwritten") }

// Micro cuts a step's rows into micro-batches, in order.
func (p *Plan) Micro(step int) [][]int { panic("data: unwritten") }

// JSON is the plan artifact: canonical JSON that, with the rows' ids in order,
// fixes every step. ids[i] is the item of row i.
func (p *Plan) JSON(ids []string) (canon.Raw, error) { panic("data: unwritten") }

// BatchIDsHash is the _hash of the item ids of a step's rows, in order.
func (p *Plan) BatchIDsHash(step int, ids []string) (canon.Hash, error) { panic("data: unwritten") }
