package record

import (
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/hanzoai/link/spool/canon"
)

const vectors = "../../test/vectors/"

func readVector(t testing.TB, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(vectors + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// admissionVectors is HIP-1334 §3.2's table and cases of §3.3.
type admissionVectors struct {
	Roles      []Role
	Matrix     map[Purpose][]bool
	Derivation map[Purpose]bool
	Cases      []struct {
		Parents []Purpose
		Purpose Purpose
		Refused Purpose
	} `json:"derive_cases"`
}

func TestAdmission(t *testing.T) {
	var v admissionVectors
	readVector(t, "hip1334-admission-matrix.json", &v)
	if len(v.Matrix) != 5 || len(v.Roles) != 4 {
		t.Fatalf("the table has %d purposes and %d roles", len(v.Matrix), len(v.Roles))
	}
	for purpose, row := range v.Matrix {
		if !purpose.Valid() {
			t.Errorf("%s is not a purpose", purpose)
		}
		for i, want := range row {
			if got := purpose.Admits(v.Roles[i]); got != want {
				t.Errorf("%s admits %s = %t, want %t", purpose, v.Roles[i], got, want)
			}
		}
		if got := purpose.Derivation(); got != v.Derivation[purpose] {
			t.Errorf("%s derivation = %t", purpose, got)
		}
		if purpose.Admits("other") || purpose.Admits("") {
			t.Errorf("%s admits a role that does not exist", purpose)
		}
	}
	for _, r := range v.Roles {
		if !r.Valid() || Purpose("other").Admits(r) {
			t.Errorf("role %s: valid %t", r, r.Valid())
		}
	}
	if Role("other").Valid() || Purpose("").Valid() || Purpose("").Derivation() {
		t.Error("a purpose or role that does not exist is valid")
	}
}

func TestHIP1334Item4(t *testing.T) {
	var v admissionVectors
	readVector(t, "hip1334-admission-matrix.json", &v)
	for _, c := range v.Cases {
		got, err := Derive(c.Parents...)
		if got != c.Purpose || errors.Is(err, ErrDerivation) != (c.Refused != "") {
			t.Errorf("Derive(%v) = %q, %v; want %q, refused %t", c.Parents, got, err, c.Purpose, c.Refused != "")
		}
	}

	artifact := func(kind Kind, p Purpose) Artifact {
		return Artifact{SHA256: canon.Sum([]byte(kind)), Kind: kind, Purpose: p}
	}
	tests := []struct {
		name    string
		a       Artifact
		parents []Artifact
		want    error
	}{
		{"train from eval_only", artifact(KindCheckpoint, Train), []Artifact{artifact(KindDataset, EvalOnly)}, ErrDerivation},
		{"train from sealed predictions", artifact(KindPairs, Train), []Artifact{artifact(KindPredictions, SealedEval)}, ErrDerivation},
		{"train from teacher_mining and train", artifact(KindPairs, Train), []Artifact{artifact(KindDataset, TeacherMining), artifact(KindDataset, Train)}, nil},
		{"teacher_mining from teacher_mining", artifact(KindPairs, TeacherMining), []Artifact{artifact(KindDataset, TeacherMining)}, ErrPurpose},
		{"train from dev", artifact(KindCheckpoint, Train), []Artifact{artifact(KindDataset, Dev), artifact(KindDataset, Train)}, ErrPurpose},
		{"dev from dev", artifact(KindCheckpoint, Dev), []Artifact{artifact(KindDataset, Dev), artifact(KindDataset, Train)}, nil},
		{"without parents", artifact(KindConfig, Train), nil, nil},
		{"without parents, but eval_only", artifact(KindConfig, EvalOnly), nil, ErrPurpose},
		{"predictions carry the dataset's purpose", artifact(KindPredictions, EvalOnly), []Artifact{artifact(KindCheckpoint, Train), artifact(KindDataset, EvalOnly)}, nil},
		{"predictions that shed it", artifact(KindPredictions, Train), []Artifact{artifact(KindCheckpoint, Train), artifact(KindDataset, EvalOnly)}, ErrPurpose},
		{"items from predictions", artifact(KindItems, SealedEval), []Artifact{artifact(KindPredictions, SealedEval)}, nil},
		{"items that shed it", artifact(KindItems, EvalOnly), []Artifact{artifact(KindPredictions, SealedEval)}, ErrPurpose},
		{"a dataset without its retired items", artifact(KindDataset, EvalOnly), []Artifact{artifact(KindDataset, EvalOnly)}, nil},
		{"a train dataset from an eval_only one", artifact(KindDataset, Train), []Artifact{artifact(KindDataset, EvalOnly)}, ErrDerivation},
		{"a dev dataset from dev and train", artifact(KindDataset, Dev), []Artifact{artifact(KindDataset, Dev), artifact(KindDataset, Train)}, nil},
		{"a dev dataset from train", artifact(KindDataset, Dev), []Artifact{artifact(KindDataset, Train)}, ErrPurpose},
		{"a dataset of its own", artifact(KindDataset, SealedEval), nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.a.CheckParents(tt.parents...); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("CheckParents: %v, want %v", err, tt.want)
			}
		})
	}
}
