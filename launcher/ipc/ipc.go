//go:build linux

// Package ipc is what the agent and the launcher say to one another.
//
// The agent, which no one trusts, speaks to the launcher, which is root, over one
// SOCK_SEQPACKET Unix socket. A packet is one JSON object of at most MaxPacket
// bytes, read by canon.Unmarshal: a field that is not of these types, a second
// value behind the first, a duplicate member or a byte that is not UTF-8 makes
// the packet malformed. An empty packet reads as the end of the connection.
//
//	agent                                        launcher
//	  connect ───────────────────────────────────▶  who is it? (peer credentials)
//	          ◀─────────────────────────── refused    not the agent: closed
//	          ◀───────────────────────────── ready    kinds, or the reasons why none
//
//	  start ─────────────────────────────────────▶  policy, pins, tree, sandbox
//	          ◀─────────────────────────── refused    nothing of it is left
//	          ◀─────────── started + [socket] [pidfd]  it runs
//	          ◀─────── ended + [stdout] [stderr]       its control group is empty
//
//	  stop ──────────────────────────────────────▶  SIGTERM, 10 s, SIGKILL to the group
//	          ◀─────────────────────────────── ended   or refused (lost): no such activity
//
//	  anything malformed ────────────────────────▶
//	          ◀────────────────── refused (schema)     the hundredth closes the connection
//
//	  close, or die ─────────────────────────────▶  every workload is killed at once
//
// Every start is answered by refused or by started, and every started by one
// ended, in the order in which these things happened; the answers name the
// activity. A start for an activity that runs already changes nothing and is
// answered by started again, with descriptors of the same process. A launcher
// answers one request before it reads the next, so an agent that writes and never
// reads fills its own socket; one that leaves an answer unread for a few seconds
// loses the connection, and with it its work.
//
// Descriptors come with SCM_RIGHTS and only to the agent. The launcher reads
// without room for any, so that the kernel drops what an agent attaches.
//
// The envelope is hip-1172 A4's; the codes and reasons are its A5's. The package
// does not judge an envelope beyond its shape: policy does, in the launcher.
package ipc

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hanzoai/link/spool/canon"
)

const (
	// Version is the protocol's, in Ready. Both binaries come from one install, so
	// an agent that meets another version was not restarted, and stops.
	Version = 1
	// MaxPacket bounds a packet in bytes, both ways. It lies well under Linux's
	// default socket buffer (212992 bytes), so one packet always fits an empty one.
	MaxPacket = 64 << 10
)

// A Request is what an agent asks: exactly one of its fields is set.
type Request struct {
	Start *Start `json:"start,omitzero"`
	Stop  *Stop  `json:"stop,omitzero"`
}

// Start asks for one activity to be run. It is the cloud's envelope, field by
// field, and says neither a command nor an environment nor a path.
type Start struct {
	Activity  string    `json:"activity"` // ValidActivity
	Kind      string    `json:"kind"`
	Org       string    `json:"org"`
	Project   string    `json:"project"`
	Requester string    `json:"requester"`
	Issued    string    `json:"issued"`   // RFC 3339, UTC
	Deadline  string    `json:"deadline"` // RFC 3339, UTC: the workload is ready by then or not at all
	Input     canon.Raw `json:"input"`    // the kind's own closed schema
}

// Stop asks for an activity's end. What was asked for first is its reason.
type Stop struct {
	Activity string `json:"activity"`
	Reason   Reason `json:"reason"`
}

// A Reply is what the launcher says: exactly one of its fields is set.
type Reply struct {
	Ready   *Ready   `json:"ready,omitzero"`
	Started *Started `json:"started,omitzero"`
	Ended   *Ended   `json:"ended,omitzero"`
	Refused *Refused `json:"refused,omitzero"`
}

// Ready is the first reply on a connection that is the agent's.
type Ready struct {
	Version int      `json:"version"`
	Kinds   []string `json:"kinds"`   // what may be started now; each start is judged anew
	Reasons []string `json:"reasons"` // why a kind that the policy names, or every one, is not among them
}

// Started says that a workload runs. With it come, as far as they are said to, the
// workload's socket, as an O_PATH descriptor, and then the pidfd of its pid 1, which
// ends last. A kind that is not called has no socket, and a workload that was over
// at once no pidfd.
type Started struct {
	Activity string `json:"activity"`
	Socket   bool   `json:"socket"`
	PidFD    bool   `json:"pidfd"`
}

// Ended says that a workload is over: its control group is empty and its run
// directory gone. Stdout and Stderr are lengths in bytes, at most 1 MiB each; for
// each that is not zero a sealed memory file of that length comes along, stdout's
// first. They are the beginning of what was written; Truncated says that there
// was more, which was read and dropped.
type Ended struct {
	Activity  string `json:"activity"`
	State     State  `json:"state"`
	Reason    Reason `json:"reason,omitzero"`  // when stopped
	Code      Code   `json:"code,omitzero"`    // when failed
	Message   string `json:"message,omitzero"` // when failed: a sentence, and the last lines that it wrote
	Exit      int    `json:"exit"`             // its exit status; -1 after a signal
	Signal    int    `json:"signal,omitzero"`  // the signal that ended it
	Stdout    int    `json:"stdout"`
	Stderr    int    `json:"stderr"`
	Truncated bool   `json:"truncated"`
}

// Refused says that a request, or the connection, came to nothing. Activity is
// empty where the packet was malformed or the connection is what is refused.
type Refused struct {
	Activity string `json:"activity"`
	Code     Code   `json:"code"`
	Message  string `json:"message"`
}

// A State is how an activity ended.
type State string

const (
	Stopped State = "stopped"
	Failed  State = "failed"
)

// Valid reports whether s is one of the two.
func (s State) Valid() bool { return s == Stopped || s == Failed }

// A Reason is why an activity was stopped (A5).
type Reason string

const (
	Done     Reason = "done"     // it ended by itself, its work done
	Idle     Reason = "idle"     // nothing was asked of it for idleSec
	Cancel   Reason = "cancel"   // its owner's wish
	Unlink   Reason = "unlink"   // the machine's owner took it from the cloud
	Policy   Reason = "policy"   // the policy no longer admits it
	Deadline Reason = "deadline" // it was not ready in time
	Max      Reason = "max"      // it ran for maxSec
)

// Valid reports whether r is one of A5's reasons.
func (r Reason) Valid() bool {
	switch r {
	case Done, Idle, Cancel, Unlink, Policy, Deadline, Max:
		return true
	}
	return false
}

// A Code is why an activity failed (A5).
type Code string

const (
	Denied      Code = "denied"      // the policy says no; the message names the rule
	Schema      Code = "schema"      // the packet or the input is not of its form
	Unsupported Code = "unsupported" // this launcher knows no such kind
	Capacity    Code = "capacity"    // there is no room for it, or it took more than its share
	Source      Code = "source"
	CustomCode  Code = "custom_code"
	Integrity   Code = "integrity" // a binary is not the pinned one
	Pull        Code = "pull"      // a tree that it needs is not in the store
	StartFailed Code = "start"     // it could not be started
	Crash       Code = "crash"     // it ended by itself, by a status or a signal that says its work is not done
	TooLate     Code = "deadline"  // its deadline passed before it was ready
	Lost        Code = "lost"      // no such activity runs here
)

// Valid reports whether c is one of A5's codes.
func (c Code) Valid() bool {
	switch c {
	case Denied, Schema, Unsupported, Capacity, Source, CustomCode, Integrity, Pull, StartFailed, Crash, TooLate, Lost:
		return true
	}
	return false
}

// ValidActivity reports whether id is an activity's: act_ and 1 to 60 of
// A-Z a-z 0-9 _ -, so a safe name of a directory and one that package sandbox takes.
func ValidActivity(id string) bool {
	rest, ok := strings.CutPrefix(id, "act_")
	if !ok || rest == "" || len(rest) > 60 {
		return false
	}
	return strings.IndexFunc(rest, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-')
	}) < 0
}

// check says what of a request's shape canon does not: which of its fields are
// set, and that its names are names.
func (r Request) check() error {
	switch {
	case r.Start != nil && r.Stop != nil:
		return errors.New("a request holds start or stop, not both")
	case r.Start != nil:
		s := r.Start
		if !ValidActivity(s.Activity) {
			return fmt.Errorf("start.activity: %.80q is no activity id", s.Activity)
		}
		for _, field := range []struct{ name, value string }{
			{"kind", s.Kind}, {"org", s.Org}, {"project", s.Project}, {"requester", s.Requester},
		} {
			if !plain(field.value) {
				return fmt.Errorf("start.%s: want 1 to %d visible characters", field.name, maxName)
			}
		}
		if s.Input == nil {
			return errors.New("start.input: missing")
		}
		return nil
	case r.Stop != nil:
		if !ValidActivity(r.Stop.Activity) {
			return fmt.Errorf("stop.activity: %.80q is no activity id", r.Stop.Activity)
		}
		return nil
	}
	return errors.New("a request holds start or stop")
}

// maxName bounds kind, org, project and requester, in bytes.
const maxName = 256

// plain reports whether s is short and free of control characters and spaces: it
// goes into logs and messages as it is.
func plain(s string) bool {
	return s != "" && len(s) <= maxName && strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || 0x7f <= r && r <= 0xa0 }) < 0
}
