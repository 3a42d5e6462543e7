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
//	          ◀───────────────────────────── ready    kinds, or the reasons why none; again when the policy changes
//
//	  start ─────────────────────────────────────▶  policy, pins, tree, sandbox
//	          ◀─────────────────────────── refused    nothing of it is left
//	          ◀─────────── started + [socket] [pidfd]  it runs
//	          ◀─────── ended + [stdout] [stderr]       its control group is empty
//
//	  stop ──────────────────────────────────────▶  SIGTERM, 10 s, SIGKILL to the group
//	          ◀─────────────────────────────── ended   or refused (lost): no such activity
//
//	  forget ────────────────────────────────────▶  what an ended activity left in its spool
//	          ◀─────────────────────────── forgotten   or refused: it runs, or try again
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
// answers one request before it reads the next (but for a forget, which may take as
// long as a workload has made it take, and is answered when it is done), so an agent that writes and never
// reads fills its own socket; one that leaves an answer unread for a few seconds
// loses the connection, and with it its work.
//
// Descriptors come with SCM_RIGHTS and only to the agent. The launcher reads
// without room for any, so that the kernel drops what an agent attaches.
//
// The envelope is package activity's. This package does not judge one beyond its
// shape: policy does, in the launcher.
package ipc

import (
	"errors"
	"fmt"

	"github.com/hanzoai/link/activity"
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
	Start *activity.Envelope `json:"start,omitzero"`
	Stop  *Stop              `json:"stop,omitzero"`

	Forget *Forget `json:"forget,omitzero"`
}

// Stop asks for an activity's end. What was asked for first is its reason.
type Stop struct {
	Activity string          `json:"activity"`
	Reason   activity.Reason `json:"reason"`
}

// Forget asks to remove all that an activity left in its spool directory, whatever that
// is. The empty directory stays, which keeps the activity from being started again.
// What is there no more is forgotten too. One is removed at a time: another that is
// asked for meanwhile is refused with code capacity, and to be asked for again.
type Forget struct {
	Activity string `json:"activity"`
}

// A Reply is what the launcher says: exactly one of its fields is set.
type Reply struct {
	Ready   *Ready   `json:"ready,omitzero"`
	Started *Started `json:"started,omitzero"`
	Ended   *Ended   `json:"ended,omitzero"`
	Refused *Refused `json:"refused,omitzero"`

	Forgotten *Forgotten `json:"forgotten,omitzero"`
}

// Forgotten says that nothing is left in an activity's spool directory, for good.
type Forgotten struct {
	Activity string `json:"activity"`
}

// Ready is the first reply on a connection that is the agent's, and comes again
// whenever the policy has changed.
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
	Activity  string          `json:"activity"`
	State     activity.State  `json:"state"`
	Reason    activity.Reason `json:"reason,omitzero"`  // when stopped
	Code      activity.Code   `json:"code,omitzero"`    // when failed
	Message   string          `json:"message,omitzero"` // when failed: a sentence, and the last lines that it wrote
	Exit      int             `json:"exit"`             // its exit status; -1 after a signal
	Signal    int             `json:"signal,omitzero"`  // the signal that ended it
	Stdout    int             `json:"stdout"`
	Stderr    int             `json:"stderr"`
	Truncated bool            `json:"truncated"`
}

// Refused says that a request, or the connection, came to nothing. Activity is
// empty where the packet was malformed or the connection is what is refused.
type Refused struct {
	Activity string        `json:"activity"`
	Code     activity.Code `json:"code"`
	Message  string        `json:"message"`
}

// check says what of a request's shape canon does not: which of its fields are
// set, and that its names are names.
func (r Request) check() error {
	asked := 0
	for _, there := range []bool{r.Start != nil, r.Stop != nil, r.Forget != nil} {
		if there {
			asked++
		}
	}
	switch {
	case asked > 1:
		return errors.New("a request holds one of start, stop and forget, not more")
	case r.Start != nil:
		if err := r.Start.Check(); err != nil {
			return fmt.Errorf("start.%w", err)
		}
		return nil
	case r.Stop != nil:
		if !activity.ValidID(r.Stop.Activity) {
			return fmt.Errorf("stop.activity: %.80q is no activity id", r.Stop.Activity)
		}
		return nil
	case r.Forget != nil:
		if !activity.ValidID(r.Forget.Activity) {
			return fmt.Errorf("forget.activity: %.80q is no activity id", r.Forget.Activity)
		}
		return nil
	}
	return errors.New("a request holds start, stop or forget")
}
