package record

import (
	"fmt"

	"github.com/hanzoai/link/spool/canon"
)

// A Kind is what an artifact is.
type Kind string

const (
	KindCheckpoint   Kind = "checkpoint"
	KindCapability   Kind = "capability"
	KindLora         Kind = "lora"
	KindBasis        Kind = "basis"
	KindMerged       Kind = "merged"
	KindConfig       Kind = "config"       // a run's configuration: stage file, job spec or harness settings
	KindPlan         Kind = "plan"         // a training run's batch plan
	KindDataset      Kind = "dataset"      // a sealed dataset's items
	KindPredictions  Kind = "predictions"  // an evaluation's output
	KindItems        Kind = "items"        // an evaluation's per-item scores
	KindEnvironment  Kind = "environment"  // an Environment
	KindRequest      Kind = "request"      // what a teacher was sent
	KindResponse     Kind = "response"     // what a teacher answered
	KindTarget       Kind = "target"       // derived supervision R1
	KindPairs        Kind = "pairs"        // R2
	KindDistribution Kind = "distribution" // R3
	KindInvariance   Kind = "invariance"   // R4
	KindReport       Kind = "report"       // writing
	KindSnapshot     Kind = "snapshot"     // a board image
)

// Media types, each with the bytes that are hashed (HIP-1334 §5.1): canonical
// JSON; canonical lines each ending in a newline, in the order the kind fixes; an
// uncompressed tar in name order with zero times and owners and mode 0644; any
// other, the bytes as written.
const (
	MediaJSON     = "application/json"
	MediaNDJSON   = "application/x-ndjson"
	MediaTar      = "application/x-tar"
	MediaMarkdown = "text/markdown"
	MediaPNG      = "image/png"
)

var mediaTypes = map[Kind]string{
	KindCheckpoint: MediaTar, KindCapability: MediaTar, KindLora: MediaTar, KindBasis: MediaTar, KindMerged: MediaTar,
	KindConfig: MediaJSON, KindPlan: MediaJSON, KindEnvironment: MediaJSON, KindRequest: MediaJSON, KindResponse: MediaJSON,
	KindDataset: MediaNDJSON, KindPredictions: MediaNDJSON, KindItems: MediaNDJSON,
	KindTarget: MediaNDJSON, KindPairs: MediaNDJSON, KindDistribution: MediaNDJSON, KindInvariance: MediaNDJSON,
	KindReport: MediaMarkdown, KindSnapshot: MediaPNG,
}

// Valid reports whether k is a kind of HIP-1334 §5.2.
func (k Kind) Valid() bool { return mediaTypes[k] != "" }

// MediaType returns the media type of artifacts of kind k.
func (k Kind) MediaType() string { return mediaTypes[k] }

// data reports whether artifacts of kind k hold rows of a dataset or what was
// computed over each of them.
func (k Kind) data() bool { return k == KindDataset || k == KindPredictions || k == KindItems }

// A Compression is how an artifact's bytes are stored or sent. The address does
// not depend on it.
type Compression string

const (
	Gzip Compression = "gzip"
	Zstd Compression = "zstd"
)

// Valid reports whether c is gzip or zstd.
func (c Compression) Valid() bool { return c == Gzip || c == Zstd }

// An ArtifactState is registered until the server has read the object back and it
// hashed to its address, then stored.
type ArtifactState string

const (
	Registered ArtifactState = "registered"
	Stored     ArtifactState = "stored"
)

// Valid reports whether s is registered or stored.
func (s ArtifactState) Valid() bool { return s == Registered || s == Stored }

// An Artifact describes bytes held under their address (HIP-1334 §5.2).
type Artifact struct {
	SHA256         canon.SHA256   `json:"sha256"`
	Kind           Kind           `json:"kind"`
	MediaType      string         `json:"media_type"`
	SchemaVersion  uint32         `json:"schema_version"` // of the kind's schema, from 1
	Purpose        Purpose        `json:"purpose"`
	Size           uint64         `json:"size"` // uncompressed bytes
	CompressedSize *uint64        `json:"compressed_size"`
	Compression    *Compression   `json:"compression"`
	Producer       Producer       `json:"producer"`
	Parents        []canon.SHA256 `json:"parents"` // the artifacts it was made from
	State          ArtifactState  `json:"state"`
	Created        string         `json:"created"` // RFC 3339, UTC
}

// A Producer is what wrote an artifact.
type Producer struct {
	Run     *string     `json:"run"`
	EventID *canon.Hash `json:"event_id"` // the event that names it
	Tool    string      `json:"tool"`     // "train fit"
	Version string      `json:"version"`  // the tool's commit
}

// Validate checks all that can be known without the bytes and the parents; see
// [Artifact.CheckParents].
func (a Artifact) Validate() error {
	if err := shape(a); err != nil {
		return err
	}
	switch {
	case a.MediaType != a.Kind.MediaType():
		return fault("media_type", fmt.Errorf("%q, but a %s is %s", a.MediaType, a.Kind, a.Kind.MediaType()))
	case a.SchemaVersion == 0:
		return fault("schema_version", errZero)
	case (a.Compression == nil) != (a.CompressedSize == nil):
		return fault("compressed_size", fmt.Errorf("must be set together with compression"))
	case a.Producer.Tool == "":
		return fault("producer/tool", errEmpty)
	}
	if r := a.Producer.Run; r != nil && !ValidRun(*r) {
		return fault("producer/run", fmt.Errorf("%q does not match %s", *r, runPattern))
	}
	for i, p := range a.Parents {
		if p == a.SHA256 {
			return fault(fmt.Sprintf("parents/%d", i), fmt.Errorf("an artifact is not its own parent"))
		}
	}
	return instant("created", a.Created)
}
