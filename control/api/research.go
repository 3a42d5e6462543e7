package api

import (
	"time"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
	"github.com/hanzoai/link/spool/record"
)

// Limits of the wire. A request past one is 413 too_large.
const (
	MaxItems  = 20_000   // items in one append
	MaxEvents = 1_000    // events in one append
	MaxPage   = 1_000    // members of one listing, and the default
	MaxInline = 16 << 20 // bytes of an artifact sent with its registration
	PartSize  = 64 << 20 // bytes of every part of a grant but the last

	// GrantLife is how long an upload address is accepted.
	GrantLife = 30 * time.Minute
)

// Page is one page of a listing. Data is never null.
type Page[T any] struct {
	Data []T `json:"data"`
}

// Identity is whom a bearer token speaks for.
type Identity struct {
	Owner   string `json:"owner"`            // the org
	Name    string `json:"name"`             // the principal within it
	Project string `json:"project"`          // the org's sub-scope that this token writes under
	Admin   bool   `json:"isAdmin,omitzero"` // an admin of the org

	// Server is the control plane's own id: another id is another record. It is
	// empty when an identity service answers that knows of none.
	Server string `json:"server,omitempty"`
}

// DatasetCreate is the body of POST /v1/research/datasets: a dataset less what
// the server sets.
type DatasetCreate struct {
	ID        string            `json:"id"`
	Purpose   record.Purpose    `json:"purpose"`
	Title     string            `json:"title"`
	License   string            `json:"license"`
	Origin    string            `json:"origin"`
	Parents   []string          `json:"parents"`
	Benchmark *record.Benchmark `json:"benchmark"`
}

// ItemsAppend is the body of POST /v1/research/datasets/{id}/items. All items
// are appended or none.
type ItemsAppend struct {
	Items []record.DatasetItem `json:"items"`
}

// ItemsAppended answers an append: an item that was there already with the same
// content is a duplicate.
type ItemsAppended struct {
	Dataset   string `json:"dataset"`
	Accepted  uint64 `json:"accepted"`
	Duplicate uint64 `json:"duplicate"`
	Items     uint64 `json:"items"` // held now
}

// Registration is the body of POST /v1/research/artifacts: an artifact less
// what the server sets.
//
// With Content the artifact is stored at once; then a null SHA256 is taken from
// the bytes, and Size with it. Without, SHA256 and Size are required and the
// answer is a grant unless the org already holds the bytes.
type Registration struct {
	SHA256         *canon.SHA256       `json:"sha256"`
	Kind           record.Kind         `json:"kind"`
	MediaType      string              `json:"media_type"`
	SchemaVersion  uint32              `json:"schema_version"`
	Purpose        record.Purpose      `json:"purpose"`
	Size           uint64              `json:"size"`            // uncompressed bytes of the canonical representation
	CompressedSize *uint64             `json:"compressed_size"` // bytes that travel, when compressed
	Compression    *record.Compression `json:"compression"`     // how the bytes travel; kept uncompressed, they answer null once stored
	Producer       record.Producer     `json:"producer"`
	Parents        []canon.SHA256      `json:"parents"`
	Content        *string             `json:"content"` // base64 (RFC 4648 §4) of the bytes that travel, at most MaxInline of them
}

// Registered answers a registration.
type Registered struct {
	Artifact record.Artifact `json:"artifact"`
	Stored   bool            `json:"stored"` // the org holds the bytes: nothing to send
	Grant    *Grant          `json:"grant"`  // how to send them; null when stored
}

// Grant is the leave to put one artifact's bytes: one Upload, or one a part for
// more than PartSize bytes. Parts lists only those still missing, so that a
// registration sent again resumes a broken upload.
type Grant struct {
	Expires string   `json:"expires"` // RFC 3339, UTC
	Upload  *Upload  `json:"upload"`
	Parts   []Upload `json:"parts"`
}

// Upload is one signed PUT. It needs no bearer token: the URL is the authority,
// so it is not logged. It works until a PUT under it succeeded or it expires.
type Upload struct {
	Number uint32 `json:"number"` // from 1
	Offset uint64 `json:"offset"` // of the first byte, in the bytes that travel
	Size   uint64 `json:"size"`   // exactly this many
	Method string `json:"method"` // PUT
	URL    string `json:"url"`    // relative to the server's base, or absolute
}

// GateStored answers POST /v1/research/gates.
type GateStored struct {
	GateSpecHash canon.Hash `json:"gate_spec_hash"`
	Created      bool       `json:"created"` // false when it was held already
}

// StoredGate is a gate as the server holds it.
type StoredGate struct {
	GateSpecHash canon.Hash `json:"gate_spec_hash"`
	Spec         gate.Gate  `json:"spec"`
	Received     string     `json:"received"` // the server's clock, to show
	Sequence     uint64     `json:"sequence"` // the order of receipt in the org, to compare (§9.3)
	Scorings     uint64     `json:"scorings"` // sealed scorings counted under it (§8.4)
}

// DeterminismStored answers POST /v1/research/determinism.
type DeterminismStored struct {
	ReportHash canon.Hash `json:"report_hash"` // the report's _hash
	Created    bool       `json:"created"`     // false when it was held already
}

// StoredDeterminism is a determinism report as the server holds it.
type StoredDeterminism struct {
	ReportHash canon.Hash               `json:"report_hash"`
	Report     record.DeterminismReport `json:"report"`
	Received   string                   `json:"received"`
	Reference  bool                     `json:"reference"` // exact, and the environment is not dirty (§6.3)
}

// EventsAppend is the body of POST /v1/research/runs/{id}/events. Events are
// held verbatim: a hash covers every byte.
type EventsAppend struct {
	Events []canon.Raw `json:"events"`
}

// Appended answers an append of events.
type Appended struct {
	Run       string `json:"run"`
	Accepted  uint64 `json:"accepted"`
	Duplicate uint64 `json:"duplicate"`
	Next      uint64 `json:"next"` // the seq that the server expects
}

// The queries of the listings. An empty field does not filter.
type (
	DatasetQuery struct {
		Purpose   record.Purpose
		Benchmark string
		After     string
		Limit     int
	}
	ArtifactQuery struct {
		Kind    record.Kind
		Run     string
		Purpose record.Purpose
		Since   string // RFC 3339: created at or after
		After   string
		Limit   int
	}
	DeterminismQuery struct {
		Environment canon.SHA256
		After       string // a report_hash
		Limit       int
	}
	RunQuery struct {
		Kind, Status, Tag, Job string
		Since, Until           string // RFC 3339: created at or after, created before
		After                  string
		Limit                  int
	}
	EvaluationQuery struct {
		Run, Dataset string
		Subject      string // an artifact's sha256, or a system's name
		Purpose      record.Purpose
		After        string
		Limit        int
	}
)

// The objects that routes answer as they are in the record.
type (
	Run        = event.View
	Evaluation = event.Evaluation
)
