// Package activity is one piece of work on a linked machine, from the moment the
// cloud asks for it to its end: the envelope that asks, the states that it goes
// through, and the closed sets of reasons and codes with which it ends (HIP-1172
// A4, A5).
//
// The cloud, the agent and the launcher all judge by it, so it is pure: no clock,
// disk or network, and it may be used concurrently. It knows no kind of work and no
// policy; package policy does.
package activity

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hanzoai/link/spool/canon"
)

// An Envelope asks for one activity to be run. It says neither a command nor an
// environment nor a path.
type Envelope struct {
	Activity  string    `json:"activity"` // see ValidID; minted by the cloud, never reused
	Kind      string    `json:"kind"`
	Org       string    `json:"org"`
	Project   string    `json:"project"`
	Requester string    `json:"requester"` // org/name
	Issued    string    `json:"issued"`    // RFC 3339, UTC
	Deadline  string    `json:"deadline"`  // RFC 3339, UTC: the workload is ready by then or not at all
	Input     canon.Raw `json:"input"`     // the kind's own closed schema
}

// Check says what of an envelope is not of its form. It does not judge the input,
// which its kind does, nor whether the deadline has passed.
func (e Envelope) Check() error {
	if !ValidID(e.Activity) {
		return fmt.Errorf("activity: %.80q is no activity id", e.Activity)
	}
	for _, field := range []struct{ name, value string }{
		{"kind", e.Kind}, {"org", e.Org}, {"project", e.Project}, {"requester", e.Requester},
	} {
		if !plain(field.value) {
			return fmt.Errorf("%s: want 1 to %d visible characters", field.name, maxName)
		}
	}
	if e.Input == nil {
		return errors.New("input: missing")
	}
	return nil
}

// Due is the deadline, parsed.
func (e Envelope) Due() (time.Time, error) {
	t, err := time.Parse(time.RFC3339, e.Deadline)
	if err != nil {
		return time.Time{}, fmt.Errorf("deadline: %.80q is not an RFC 3339 instant", e.Deadline)
	}
	return t, nil
}

// maxName bounds kind, org, project and requester, in bytes.
const maxName = 256

// plain reports whether s is short and free of control characters and spaces: it
// goes into logs and messages as it is.
func plain(s string) bool {
	return s != "" && len(s) <= maxName && strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || 0x7f <= r && r <= 0xa0 }) < 0
}

// ValidID reports whether id is an activity's: act_ and 1 to 60 of A-Z a-z 0-9 _ -,
// so a safe name of a directory.
func ValidID(id string) bool {
	rest, ok := strings.CutPrefix(id, "act_")
	if !ok || rest == "" || len(rest) > 60 {
		return false
	}
	return strings.IndexFunc(rest, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-')
	}) < 0
}

// NewID mints an id: act_ and a ULID, which is 48 bits of milliseconds and 80
// random ones, so that ids sort by when they were minted.
func NewID(now time.Time) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(now.UnixMilli())<<16)
	rand.Read(b[6:])
	return "act_" + ulid(b)
}

// ulid writes 16 bytes as 26 digits of 5 bits, the first of which has three.
func ulid(b [16]byte) string {
	var digits [26]byte
	const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	hi, lo := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	for i := 25; i >= 0; i-- {
		digits[i] = alphabet[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return string(digits[:])
}

// A State is where an activity is in its life (A5).
type State string

const (
	Requested State = "requested" // enqueued, and no node has said a word of it
	Pulling   State = "pulling"   // what it needs is being fetched and verified
	Starting  State = "starting"  // its sandbox is being built
	Ready     State = "ready"     // it runs
	Idle      State = "idle"      // it waits to be called
	Stopped   State = "stopped"   // ended, with a Reason
	Failed    State = "failed"    // ended, with a Code
)

// order is the states as they follow one another.
var order = []State{Requested, Pulling, Starting, Ready, Idle}

// Valid reports whether s is one of A5's states.
func (s State) Valid() bool { return s.Ended() || slices.Contains(order, s) }

// Ended reports whether s is terminal.
func (s State) Ended() bool { return s == Stopped || s == Failed }

// Next reports whether an activity may go from s to t: forward only, except that
// ready and idle alternate; any state may be skipped, and any live one may end. A
// state is not its own next.
func (s State) Next(t State) bool {
	from, to := slices.Index(order, s), slices.Index(order, t)
	switch {
	case from < 0: // ended, or none
		return false
	case t.Ended():
		return true
	case s == Idle && t == Ready:
		return true
	}
	return to > from
}

// A Reason is why an activity was stopped (A5).
type Reason string

const (
	Done     Reason = "done"     // it ended by itself, its work done
	Idled    Reason = "idle"     // nothing was asked of it for idleSec
	Cancel   Reason = "cancel"   // its owner's wish
	Unlink   Reason = "unlink"   // the machine's owner took it from the cloud
	Policy   Reason = "policy"   // the policy no longer admits it
	Deadline Reason = "deadline" // it was not ready in time
	Max      Reason = "max"      // it ran for maxSec
)

// Valid reports whether r is one of A5's reasons.
func (r Reason) Valid() bool {
	switch r {
	case Done, Idled, Cancel, Unlink, Policy, Deadline, Max:
		return true
	}
	return false
}

// A Code is why an activity failed (A5).
type Code string

const (
	Denied      Code = "denied"      // the policy says no; the message names the rule
	Schema      Code = "schema"      // the envelope or the input is not of its form
	Unsupported Code = "unsupported" // nobody here knows such a kind
	Capacity    Code = "capacity"    // there is no room for it, or it took more than its share
	Source      Code = "source"      // a download went where the policy does not let it
	CustomCode  Code = "custom_code" // a model brings code along
	Integrity   Code = "integrity"   // bytes that are not the ones that a hash names
	Pull        Code = "pull"        // what it needs could not be fetched
	StartFailed Code = "start"       // it could not be started
	Crash       Code = "crash"       // it ended by itself, by a status or a signal that says its work is not done
	TooLate     Code = "deadline"    // its deadline passed before it was ready
	Lost        Code = "lost"        // the node does not know it any more
)

// Valid reports whether c is one of A5's codes.
func (c Code) Valid() bool {
	switch c {
	case Denied, Schema, Unsupported, Capacity, Source, CustomCode, Integrity, Pull, StartFailed, Crash, TooLate, Lost:
		return true
	}
	return false
}

// Failure is why an activity failed, for a program and for a person.
type Failure struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// MaxMessage is the most bytes of a Failure's message.
const MaxMessage = 4 << 10

// Records reports whether a run is an activity's to record: the run of its name, or
// base_<16 hex>_<its name>, in which the base that it starts from was evaluated.
func Records(id, run string) bool {
	rest, ok := strings.CutPrefix(run, "base_")
	if !ok {
		return run == id
	}
	key, name, _ := strings.Cut(rest, "_")
	return name == id && len(key) == 16 && strings.Trim(key, "0123456789abcdef") == ""
}
