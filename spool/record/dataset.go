package record

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/canon"
)

// A DatasetState is open while items are added and sealed for ever after.
type DatasetState string

const (
	Open   DatasetState = "open"
	Sealed DatasetState = "sealed"
)

// Valid reports whether s is open or sealed.
func (s DatasetState) Valid() bool { return s == Open || s == Sealed }

// A Dataset is a named set of items of one purpose (HIP-1334 §4.1).
type Dataset struct {
	ID        string        `json:"id"`
	Purpose   Purpose       `json:"purpose"`
	Title     string        `json:"title"`
	License   string        `json:"license"` // SPDX identifier, or "unstated"
	Origin    string        `json:"origin"`  // hf://<repo>@<rev>, a URL, <repo>@<commit>
	Parents   []string      `json:"parents"` // datasets its items were derived from
	Benchmark *Benchmark    `json:"benchmark"`
	State     DatasetState  `json:"state"`
	Items     uint64        `json:"items"`
	SHA256    *canon.SHA256 `json:"sha256"` // of its items artifact, once sealed
	Created   string        `json:"created"`
	Sealed    *string       `json:"sealed"`
}

// A Benchmark is the task a dataset is an evaluation set of.
type Benchmark struct {
	ID       string   `json:"id"`
	Title    string   `json:"title"`
	Version  string   `json:"version"` // its own revision; empty when it publishes none
	Split    string   `json:"split"`
	Metric   string   `json:"metric"`  // the metric its authors score it by
	Metrics  []string `json:"metrics"` // every metric its protocol reports
	Citation string   `json:"citation"`
}

// A DatasetItem is one row and its provenance.
type DatasetItem struct {
	DatasetID          string     `json:"dataset_id"`
	ItemID             string     `json:"item_id"`
	Purpose            Purpose    `json:"purpose"`              // its dataset's
	CanonicalExampleID string     `json:"canonical_example_id"` // <source>:<id>, of every view of one example
	SourceHash         canon.Hash `json:"source_hash"`          // of the record it was read from
	ContaminationHash  canon.Hash `json:"contamination_hash"`
	DerivationAllowed  bool       `json:"derivation_allowed"` // as Purpose.Derivation
	Payload            Payload    `json:"payload"`
}

// A Payload is what a model reads and what it should answer. Gold is nil when the
// row has none.
type Payload struct {
	Input canon.Raw `json:"input"`
	Gold  canon.Raw `json:"gold"`
}

// NewItem builds an item, with its hashes, from the record it was read from.
func NewItem(dataset string, purpose Purpose, id, example string, source, input, gold canon.Raw) (DatasetItem, error) {
	src, err := canon.Canonicalize(source)
	if err != nil {
		return DatasetItem{}, fmt.Errorf("source record: %w", err)
	}
	contamination, _ := ContaminationHash(input)
	it := DatasetItem{
		DatasetID: dataset, ItemID: id, Purpose: purpose,
		CanonicalExampleID: example,
		SourceHash:         canon.HashOf(src),
		ContaminationHash:  contamination,
		DerivationAllowed:  purpose.Derivation(),
		Payload:            Payload{Input: input, Gold: gold},
	}
	return it, it.Validate()
}

// Validate checks a dataset by itself.
func (d Dataset) Validate() error {
	if err := shape(d); err != nil {
		return err
	}
	switch {
	case !ValidDataset(d.ID):
		return fault("id", fmt.Errorf("%q does not match %s", d.ID, datasetPattern))
	case d.License == "":
		return fault("license", fmt.Errorf(`must be an SPDX identifier or "unstated"`))
	case d.Origin == "":
		return fault("origin", errEmpty)
	case (d.State == Sealed) != (d.SHA256 != nil):
		return fault("sha256", fmt.Errorf("is set when, and only when, the dataset is sealed"))
	case (d.State == Sealed) != (d.Sealed != nil):
		return fault("sealed", fmt.Errorf("is set when, and only when, the dataset is sealed"))
	}
	for i, p := range d.Parents {
		if !ValidDataset(p) || p == d.ID {
			return fault(fmt.Sprintf("parents/%d", i), fmt.Errorf("%q does not name another dataset", p))
		}
	}
	if d.Benchmark != nil && d.Benchmark.ID == "" {
		return fault("benchmark/id", errEmpty)
	}
	if d.Sealed != nil {
		if err := instant("sealed", *d.Sealed); err != nil {
			return err
		}
	}
	return instant("created", d.Created)
}

// Validate checks an item by itself, recomputing its contamination hash. A wrong
// derivation_allowed is [ErrPurpose].
func (it DatasetItem) Validate() error {
	if err := shape(it); err != nil {
		return err
	}
	source, id, _ := strings.Cut(it.CanonicalExampleID, ":")
	switch {
	case !ValidDataset(it.DatasetID):
		return fault("dataset_id", fmt.Errorf("%q does not match %s", it.DatasetID, datasetPattern))
	case !ValidItem(it.ItemID):
		return fault("item_id", fmt.Errorf("%q does not match %s", it.ItemID, itemPattern))
	case source == "" || id == "":
		return fault("canonical_example_id", fmt.Errorf("%q is not <source>:<id>", it.CanonicalExampleID))
	case it.DerivationAllowed != it.Purpose.Derivation():
		return fault("derivation_allowed", fmt.Errorf("%w: must be %t for %s", ErrPurpose, it.Purpose.Derivation(), it.Purpose))
	case it.Payload.Input == nil:
		return fault("payload/input", fmt.Errorf("member is missing"))
	}
	if hash, _ := ContaminationHash(it.Payload.Input); it.ContaminationHash != hash {
		return fault("contamination_hash", fmt.Errorf("is %s, but payload.input gives %s", it.ContaminationHash, hash))
	}
	return nil
}

// ItemsNDJSON returns the bytes of a sealed dataset's items artifact and their
// address: each item's canonical JSON and a newline, in item_id order (§4.2). It
// refuses two items of one id. items keeps its order.
func ItemsNDJSON(items []DatasetItem) ([]byte, canon.SHA256, error) {
	items = slices.Clone(items)
	slices.SortFunc(items, func(a, b DatasetItem) int { return cmp.Compare(a.ItemID, b.ItemID) })
	var out bytes.Buffer
	for i, it := range items {
		if i > 0 && it.ItemID == items[i-1].ItemID {
			return nil, "", fmt.Errorf("item %s: two items of this id", it.ItemID)
		}
		line, err := canon.Marshal(it)
		if err != nil {
			return nil, "", fmt.Errorf("item %s: %w", it.ItemID, err)
		}
		out.Write(line)
		out.WriteByte('\n')
	}
	return out.Bytes(), canon.Sum(out.Bytes()), nil
}
