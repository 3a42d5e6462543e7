package record

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

var (
	// ErrPurpose is a purpose that does not admit a use, or disagrees with where
	// the object came from: 422 purpose_refused.
	ErrPurpose = errors.New("purpose refused")
	// ErrDerivation is deriving from evaluation data: 422 derivation_refused.
	ErrDerivation = errors.New("derivation refused")
)

// A Purpose says what an item or an artifact may be used for. It is set when the
// object is written and never changed.
type Purpose string

const (
	Train         Purpose = "train"          // gradient steps, selection, derivation, teacher queries
	Dev           Purpose = "dev"            // selection, early stopping, calibration; never a gradient step
	EvalOnly      Purpose = "eval_only"      // evaluation and observation; nothing is derived from it
	SealedEval    Purpose = "sealed_eval"    // scored by the server only; its gold never leaves the store
	TeacherMining Purpose = "teacher_mining" // sent to a teacher; trains only through what is derived from the answers
)

// A Role is how a run reads a dataset.
type Role string

const (
	RoleTrain    Role = "train"    // gradient steps
	RoleSelect   Role = "select"   // selection, early stopping, calibration
	RoleEvaluate Role = "evaluate" // an evaluation scores it
	RoleQuery    Role = "query"    // a teacher or another system is asked about it
)

// admission is the matrix of HIP-1334 §3.2. On a sealed_eval dataset the role
// evaluate means that the server scores it (§8.4).
var admission = map[Purpose]struct {
	roles      []Role
	derivation bool
}{
	Train:         {[]Role{RoleTrain, RoleSelect, RoleEvaluate, RoleQuery}, true},
	Dev:           {[]Role{RoleSelect, RoleEvaluate, RoleQuery}, true},
	EvalOnly:      {[]Role{RoleEvaluate, RoleQuery}, false},
	SealedEval:    {[]Role{RoleEvaluate}, false},
	TeacherMining: {[]Role{RoleQuery}, true},
}

// Valid reports whether p is one of the five purposes.
func (p Purpose) Valid() bool { _, ok := admission[p]; return ok }

// Admits reports whether data of purpose p may be read in a role.
func (p Purpose) Admits(r Role) bool {
	return slices.Contains(admission[p].roles, r)
}

// Derivation reports whether anything may be derived from data of purpose p.
func (p Purpose) Derivation() bool { return admission[p].derivation }

// Evaluation reports whether p marks data that judges models.
func (p Purpose) Evaluation() bool { return p == EvalOnly || p == SealedEval }

// Valid reports whether r is one of the four roles.
func (r Role) Valid() bool { return Train.Admits(r) }

// Derive returns the purpose of what is made from parents (§3.3): dev when one of
// them is dev, else train, also without parents. It refuses evaluation data with
// an error that is [ErrDerivation].
func Derive(parents ...Purpose) (Purpose, error) {
	purpose := Train
	for _, p := range parents {
		if !p.Derivation() {
			return "", fmt.Errorf("%w: nothing is derived from %s data", ErrDerivation, p)
		}
		if p == Dev {
			purpose = Dev
		}
	}
	return purpose, nil
}

// CheckParents reports whether an artifact's purpose agrees with its parents'
// (§3.3, §3.5). Predictions and items are not derived from what they evaluate but
// carry its purpose, so of their parents only data counts; a dataset may also
// repeat rows of a parent of its own purpose. The error is [ErrDerivation] or
// [ErrPurpose].
func (a Artifact) CheckParents(parents ...Artifact) error {
	if a.Kind == KindPredictions || a.Kind == KindItems {
		for _, p := range parents {
			if p.Kind.data() && p.Purpose != a.Purpose {
				return fmt.Errorf("%w: %s over the %s %s carry its purpose %s, not %s",
					ErrPurpose, a.Kind, p.Kind, p.SHA256, p.Purpose, a.Purpose)
			}
		}
		return nil
	}
	if a.Kind == KindDataset {
		var others []Artifact
		for _, p := range parents {
			// Dev rows stay, because they also decide what is made with others.
			if p.Kind != KindDataset || p.Purpose != a.Purpose || p.Purpose == Dev {
				others = append(others, p)
			}
		}
		if len(others) == 0 {
			return nil
		}
		parents = others
	}
	purposes := make([]Purpose, len(parents))
	for i, p := range parents {
		purposes[i] = p.Purpose
	}
	want, err := Derive(purposes...)
	if err != nil {
		return err
	}
	if a.Purpose != want {
		return fmt.Errorf("%w: a %s made from %s is %s, not %s", ErrPurpose, a.Kind, listed(purposes), want, a.Purpose)
	}
	return nil
}

func listed(purposes []Purpose) string {
	if len(purposes) == 0 {
		return "no data"
	}
	names := make([]string, len(purposes))
	for i, p := range purposes {
		names[i] = string(p)
	}
	return strings.Join(names, ", ")
}
