package data

import (
	"errors"
	"io"
	"iter"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
	"github.com/hanzoai/link/trainer/decision"
)

// ErrPurpose is a row or dataset whose purpose does not admit how it would be
// read. The error names the file, the line and the item.
var ErrPurpose = record.ErrPurpose

// ErrCorrupt is a build or a suite whose bytes are not those that were written.
var ErrCorrupt = errors.New("corrupt")

// A Build is a verified folder of sealed datasets.
type Build struct {
	Dir         string
	Hash        canon.Hash // of the manifest; its first 16 hex end the folder's name
	BarrierHash canon.Hash // contamination_barrier_hash (HIP-1334 §3.5)
	Sets        []*Set     // by dataset id
}

// A Set is one sealed dataset of a build.
type Set struct {
	// Dataset is as it is recorded, except that Created and Sealed are empty: who
	// records it stamps it.
	Dataset record.Dataset
	Suite   string
	Split   string // "train", "dev", "test", "sealed" or "mining"
	Role    record.Role
}

// OpenBuild reads and verifies the build in dir.
func OpenBuild(dir string) (*Build, error) { panic("data: unwritten") }

// Role lists the sets attached in a role, by dataset id.
func (b *Build) Role(role record.Role) []*Set { panic("data: unwritten") }

// Find returns a suite's set in a role.
func (b *Build) Find(suite string, role record.Role) (*Set, bool) { panic("data: unwritten") }

// Train returns the rows that a gradient step reads, set after set in item
// order. A row that its take repeats stands there as often, next to itself.
func (b *Build) Train() ([]decision.Row, error) { panic("data: unwritten") }

// Rows reads the set, in item order, for its role.
func (s *Set) Rows() ([]decision.Row, error) { panic("data: unwritten") }

// Items yields the set's items, in order; after an error it ends.
func (s *Set) Items() iter.Seq2[record.DatasetItem, error] { panic("data: unwritten") }

// Reader opens the items artifact: the bytes whose SHA-256 is the dataset's.
func (s *Set) Reader() (io.ReadCloser, error) { panic("data: unwritten") }
