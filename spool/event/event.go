// Package event is a run's record: nine kinds of events and the fold that turns
// them into what is known of the run.
//
// An [Event] is one fact. Its id is the hash of its canonical JSON without the id
// (HIP-1334 §7.1), so sending it again is harmless and changing it is visible. It
// is made by [New] on the machine where it happened or read by [Parse]; its bytes,
// [Event.JSON], are stored and forwarded as they are and never written anew.
//
// A [Run] is the fold. [Run.Apply] holds every rule of acceptance (§7.2, §7.3) and
// serves producer and server alike: a trainer learns before it writes what the
// server would refuse. What the rules ask about other objects comes through [Refs].
// Refused events leave a run as it was, and applying a batch is applying its events
// one by one.
//
// Everything is pure: no clock, no disk, no network. A Run holds 104 bytes a step
// and nothing else that grows with steps; it is not safe for concurrent use.
package event

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// instantLayout is that of event instants: UTC, milliseconds (HIP-1334 §2.4).
const instantLayout = "2006-01-02T15:04:05.000Z"

// An Event is one entry of a run's log. It is immutable, and only what New and
// Parse return is an event.
type Event struct {
	ID   canon.Hash
	Run  string
	Seq  uint64 // 1, 2, 3, … within the run
	At   string // the producer's clock
	Body Body

	id   canon.Hash // as hashed
	json []byte
}

// envelope is an event's JSON less its body.
type envelope struct {
	ID   canon.Hash `json:"event_id,omitzero"` // absent while it is hashed
	Run  string     `json:"run"`
	Seq  uint64     `json:"seq"`
	At   string     `json:"at"`
	Type Type       `json:"type"`
}

// New makes the event of seq that happened at a time, to the millisecond. It
// refuses what [Parse] would; a number that is not finite is [ErrNotFinite] and
// the error names its field.
func New(run string, seq uint64, at time.Time, body Body) (Event, error) {
	if body == nil {
		return Event{}, errors.New("event without a body")
	}
	env := envelope{Run: run, Seq: seq, At: at.UTC().Format(instantLayout), Type: body.Type()}
	variant := variants[env.Type]
	if err := check(env, body); err != nil {
		return Event{}, fmt.Errorf("%s: %w", env.Type, err)
	}
	noID, err := canon.Marshal(variant.line(env, body))
	if err != nil {
		return Event{}, fmt.Errorf("%s: %w", env.Type, err)
	}
	env.ID = canon.HashOf(noID)
	json, err := canon.Marshal(variant.line(env, body))
	if err != nil {
		return Event{}, fmt.Errorf("%s: %w", env.Type, err)
	}
	// The event's own copy, with lists that are empty rather than nil, as Parse has it.
	if _, body, err = variant.parse(json); err != nil {
		return Event{}, fmt.Errorf("%s: %w", env.Type, err)
	}
	return Event{env.ID, run, seq, env.At, body, env.ID, json}, nil
}

// Parse reads an event strictly: no member it does not know, none missing, every id
// and enumeration well formed, event_id the hash of the rest. The error is a
// *[Refusal] of code invalid_event; a wrong id is [ErrID]. b need not be canonical.
func Parse(b []byte) (Event, error) {
	json, err := canon.Canonicalize(b)
	if err != nil {
		return Event{}, invalid(ErrInvalid, 0, "%v", err)
	}
	name, err := canon.Tag(json, "type")
	if err != nil {
		return Event{}, invalid(ErrInvalid, 0, "%v", err)
	}
	variant, ok := variants[Type(name)]
	if !ok {
		return Event{}, invalid(ErrInvalid, 0, "/type: %.80q is not one of the nine events", name)
	}
	env, body, err := variant.parse(b)
	if err == nil {
		err = check(env, body)
	}
	if err != nil {
		return Event{}, invalid(ErrInvalid, env.Seq, "%s: %v", name, err)
	}
	if hash := canon.HashOf(unsigned(json, env.ID)); env.ID != hash {
		return Event{}, invalid(ErrID, env.Seq, "event_id is %q, but the event hashes to %s", env.ID, hash)
	}
	return Event{env.ID, env.Run, env.Seq, env.At, body, env.ID, json}, nil
}

// unsigned cuts event_id out of an event's canonical bytes, as [canon.Without] does
// at the price of reading them again. It relies on what variant.parse has found: no
// other member of that name at any depth, and run, seq and type after it. Within a
// string the quotes would be escaped.
func unsigned(json []byte, id canon.Hash) []byte {
	before, after, _ := bytes.Cut(json, []byte(`"event_id":"`+string(id)+`",`))
	return slices.Concat(before, after)
}

// JSON returns the event's canonical bytes, without a newline. They are not to be
// modified.
func (e Event) JSON() []byte { return e.json }

// check tests what the types of an event's fields cannot say.
func check(env envelope, b Body) error {
	switch {
	case !record.ValidRun(env.Run):
		return fault("/run", "%q is not a run's name", env.Run)
	case env.Seq == 0:
		return fault("/seq", "counts from 1")
	}
	if t, err := time.Parse(instantLayout, env.At); err != nil || t.Format(instantLayout) != env.At {
		return fault("/at", "%q is not an instant in UTC with milliseconds and Z", env.At)
	}
	return b.check()
}

func fault(at, format string, args ...any) error {
	return &canon.Error{Pointer: at, Err: fmt.Errorf(format, args...)}
}
