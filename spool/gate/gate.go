// Package gate judges a run by rules that were frozen before it began.
//
// A [Gate] is a list of rules over evaluations; its id is its hash. [Gate.Evaluate]
// is the whole of judging (HIP-1334 §9.2): the metrics recomputed from items, the
// paired bootstrap, McNemar's exact test, and one result a rule. Runtime and server
// both call it, so that they can differ only in what they are given.
//
// Everything is pure and deterministic: the bootstrap draws from a SplitMix64
// stream seeded by the rule. Sums are plain float64 sums in the order of the items;
// implementations agree to 1e-12, not to the bit. A number that is not finite is
// treated as missing, because every comparison with a NaN is false and a rule
// written as "unless" would pass.
package gate

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/hanzoai/link/spool/canon"
)

// ErrVersion is a gate that does not follow the one it replaces: 422 bad_version.
var ErrVersion = errors.New("bad version")

// A Gate is the frozen criteria a run is judged by (HIP-1334 §9.1). It is
// immutable: any change is a new version and a new hash.
type Gate struct {
	Name     string      `json:"name"`
	Version  uint32      `json:"version"`  // 1, 2, …
	Previous *canon.Hash `json:"previous"` // the hash of the version before; nil at 1
	Baseline *string     `json:"baseline"` // the run whose evaluations are the baseline
	Rules    []Rule      `json:"rules"`
}

// A Rule tests one metric on one dataset.
type Rule struct {
	Dataset       string       `json:"dataset"`
	DatasetSHA256 canon.SHA256 `json:"dataset_sha256"`
	Category      string       `json:"category"` // All, or a slice that only measures have
	Metric        string       `json:"metric"`
	Higher        bool         `json:"higher"` // larger is better
	Test          Test         `json:"test"`
}

// All is the category of a metric over every row.
const All = "all"

// A TestKind is hold, improve, floor or ceiling.
type TestKind string

const (
	Hold    TestKind = "hold"    // not worse than the baseline by more than Tolerance
	Improve TestKind = "improve" // better than the baseline by more than Margin
	Floor   TestKind = "floor"   // at least Value; above it when Strict
	Ceiling TestKind = "ceiling" // at most Value; below it when Strict
)

// Valid reports whether k is one of the four.
func (k TestKind) Valid() bool { return k == Hold || k == Improve || k == Floor || k == Ceiling }

// A Test is what a rule requires. Only the fields of its kind are written and read.
type Test struct {
	Kind      TestKind
	Tolerance float64   // Hold
	Margin    float64   // Improve
	Interval  *Interval // Hold and Improve; nil compares the two numbers
	Value     float64   // Floor and Ceiling
	Strict    bool      // Floor and Ceiling
}

// An IntervalKind is bootstrap or mcnemar.
type IntervalKind string

const (
	ByBootstrap IntervalKind = "bootstrap"
	ByMcNemar   IntervalKind = "mcnemar"
)

// Valid reports whether k is one of the two.
func (k IntervalKind) Valid() bool { return k == ByBootstrap || k == ByMcNemar }

// A Unit is what the bootstrap draws.
type Unit string

const (
	UnitItem  Unit = "item"
	UnitGroup Unit = "group"
)

// Valid reports whether u is item or group.
func (u Unit) Valid() bool { return u == UnitItem || u == UnitGroup }

// An Interval is how a rule allows for noise. Only the fields of its kind are
// written and read.
type Interval struct {
	Kind  IntervalKind
	Draws uint32  // bootstrap
	Level float64 // bootstrap: the interval's, in (0, 1)
	Seed  uint64  // bootstrap
	Unit  Unit    // bootstrap
	Alpha float64 // mcnemar: in (0, 1)
}

// The wire shapes of the variants. Names and nulls are hashed.
type (
	holdJSON struct {
		Kind      TestKind  `json:"kind"`
		Tolerance float64   `json:"tolerance"`
		Interval  *Interval `json:"interval"`
	}
	improveJSON struct {
		Kind     TestKind  `json:"kind"`
		Margin   float64   `json:"margin"`
		Interval *Interval `json:"interval"`
	}
	boundJSON struct {
		Kind   TestKind `json:"kind"`
		Value  float64  `json:"value"`
		Strict bool     `json:"strict"`
	}
	bootstrapJSON struct {
		Kind  IntervalKind `json:"kind"`
		Draws uint32       `json:"draws"`
		Level float64      `json:"level"`
		Seed  uint64       `json:"seed"`
		Unit  Unit         `json:"unit"`
	}
	mcnemarJSON struct {
		Kind  IntervalKind `json:"kind"`
		Alpha float64      `json:"alpha"`
	}
)

// MarshalJSON writes the fields of t's kind.
func (t Test) MarshalJSON() ([]byte, error) {
	switch t.Kind {
	case Hold:
		return canon.Marshal(holdJSON{t.Kind, t.Tolerance, t.Interval})
	case Improve:
		return canon.Marshal(improveJSON{t.Kind, t.Margin, t.Interval})
	}
	return canon.Marshal(boundJSON{t.Kind, t.Value, t.Strict})
}

// UnmarshalJSON reads the fields of the kind it finds and refuses others.
func (t *Test) UnmarshalJSON(b []byte) error {
	kind, err := canon.Tag(b, "kind")
	if err != nil {
		return err
	}
	switch TestKind(kind) {
	case Hold:
		var v holdJSON
		err = canon.Unmarshal(b, &v)
		*t = Test{Kind: v.Kind, Tolerance: v.Tolerance, Interval: v.Interval}
	case Improve:
		var v improveJSON
		err = canon.Unmarshal(b, &v)
		*t = Test{Kind: v.Kind, Margin: v.Margin, Interval: v.Interval}
	default:
		var v boundJSON
		err = canon.Unmarshal(b, &v)
		*t = Test{Kind: v.Kind, Value: v.Value, Strict: v.Strict}
	}
	return err
}

// MarshalJSON writes the fields of i's kind.
func (i Interval) MarshalJSON() ([]byte, error) {
	if i.Kind == ByBootstrap {
		return canon.Marshal(bootstrapJSON{i.Kind, i.Draws, i.Level, i.Seed, i.Unit})
	}
	return canon.Marshal(mcnemarJSON{i.Kind, i.Alpha})
}

// UnmarshalJSON reads the fields of the kind it finds and refuses others.
func (i *Interval) UnmarshalJSON(b []byte) error {
	kind, err := canon.Tag(b, "kind")
	if err != nil {
		return err
	}
	if IntervalKind(kind) == ByBootstrap {
		var v bootstrapJSON
		err = canon.Unmarshal(b, &v)
		*i = Interval{Kind: v.Kind, Draws: v.Draws, Level: v.Level, Seed: v.Seed, Unit: v.Unit}
		return err
	}
	var v mcnemarJSON
	err = canon.Unmarshal(b, &v)
	*i = Interval{Kind: v.Kind, Alpha: v.Alpha}
	return err
}

// Hash returns the gate's id. An optional member that was absent when the gate was
// read counts as null, so both spellings are one gate.
func (g Gate) Hash() (canon.Hash, error) { return canon.Of(g) }

// Follows reports whether g may be stored as the version after previous, or as the
// first when previous is nil. The error is [ErrVersion].
func (g Gate) Follows(previous *Gate) error {
	if previous == nil {
		if g.Version != 1 || g.Previous != nil {
			return fmt.Errorf("%w: the first gate named %s is version 1 and has no previous, not version %d",
				ErrVersion, g.Name, g.Version)
		}
		return nil
	}
	hash, err := previous.Hash()
	if err != nil {
		return err
	}
	if g.Name != previous.Name || g.Version != previous.Version+1 || g.Previous == nil || *g.Previous != hash {
		return fmt.Errorf("%w: a change to %s is version %d with previous %s", ErrVersion, previous.Name, previous.Version+1, hash)
	}
	return nil
}

const namePattern = `^[a-z0-9][a-z0-9._-]{0,63}$`

var nameForm = regexp.MustCompile(namePattern)

// maxDraws bounds the work that one rule can ask of whoever evaluates it.
const maxDraws = 100_000

// Validate refuses a gate whose verdict could not be computed or would not mean
// what it says. The error is a *[canon.Error] naming the member.
func (g Gate) Validate() error {
	if _, err := g.Hash(); err != nil { // enumerations, hashes, finite numbers
		return err
	}
	switch {
	case !nameForm.MatchString(g.Name):
		return fault("/name", "%q does not match %s", g.Name, namePattern)
	case g.Version == 0:
		return fault("/version", "counts from 1")
	case (g.Version == 1) != (g.Previous == nil):
		return fault("/previous", "is null at version 1 and the hash of the version before after that")
	case len(g.Rules) == 0:
		return fault("/rules", "a gate without rules passes everything")
	}
	for i, r := range g.Rules {
		if err := g.validateRule(fmt.Sprintf("/rules/%d", i), r); err != nil {
			return err
		}
	}
	return nil
}

func (g Gate) validateRule(at string, r Rule) error {
	paired := r.Test.Kind == Hold || r.Test.Kind == Improve
	switch {
	case !nameForm.MatchString(r.Dataset):
		return fault(at+"/dataset", "%q does not match %s", r.Dataset, namePattern)
	case r.Metric == "":
		return fault(at+"/metric", "must not be empty")
	case r.Category == "":
		return fault(at+"/category", `must be "all" or a slice`)
	case computed(r.Metric) && r.Category != All:
		return fault(at+"/category", "%s is computed from items, which have no category: it must be %q", r.Metric, All)
	case paired && g.Baseline == nil:
		return fault(at+"/test/kind", "%s needs a baseline, and the gate names none", r.Test.Kind)
	case r.Test.Tolerance < 0:
		return fault(at+"/test/tolerance", "must not be negative")
	case r.Test.Margin < 0:
		return fault(at+"/test/margin", "must not be negative")
	}
	if !paired || r.Test.Interval == nil {
		return nil
	}
	in := *r.Test.Interval
	at += "/test/interval"
	switch {
	case !computed(r.Metric):
		return fault(at, "%s is read from measures and cannot take an interval", r.Metric)
	case in.Kind == ByMcNemar && r.Metric != Accuracy:
		return fault(at, "McNemar's test counts right and wrong answers: it is for accuracy, not %s", r.Metric)
	case in.Kind == ByMcNemar && !(in.Alpha > 0 && in.Alpha < 1):
		return fault(at+"/alpha", "must be between 0 and 1")
	case in.Kind == ByBootstrap && !(in.Level > 0 && in.Level < 1):
		return fault(at+"/level", "must be between 0 and 1")
	case in.Kind == ByBootstrap && (in.Draws < 1 || in.Draws > maxDraws):
		return fault(at+"/draws", "must be from 1 to %d", maxDraws)
	}
	return nil
}

func fault(at, format string, args ...any) error {
	return &canon.Error{Pointer: at, Err: fmt.Errorf(format, args...)}
}
