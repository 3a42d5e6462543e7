//go:build linux

package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
)

// A ledger is a run, from all sides, after it is over.
type ledger struct {
	history    []entry
	activities []api.Activity      // all that the cloud holds
	events     []api.WorkloadEvent // all of its feed
	most       int                 // workloads that a node may run at once
	disturbed  bool                // faults were injected
}

// check holds the sides against each other and answers what does not hold, in
// sentences.
//
// Of every run:
//
//   - what a requester was told is enqueued, the cloud holds, and every activity
//     that the cloud holds has ended there, with one event that says how;
//   - no activity is started twice, by whatever launcher and in whatever life, and
//     none on a node that is not its own, or after its end was said;
//   - no node runs more at once than it may;
//   - an activity that ran to its end on the node has that end in the cloud, and one
//     that the cloud says is done ran to its end;
//   - the reports that the cloud has accepted go forward, and none comes after an end
//     but the same end.
//
// Of an undisturbed run: everything that was enqueued was started, and is done.
//
// Of a disturbed one, an activity may instead be cancelled, where a requester asked
// for that, or lost, where the work itself was: where its agent was killed or
// restarted, or the launcher's connection was torn, after the activity came to it.
// Work that finished and is still lost is so only where its agent was killed before
// it could have said so.
func (l ledger) check() []string {
	var wrong []string
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }

	// What happened to each activity, and what ended lives of each node.
	of := make(map[string][]entry)
	breaks := make(map[string][]entry)
	runs := make(map[string]int)
	for _, e := range l.history {
		if e.Activity != "" {
			of[e.Activity] = append(of[e.Activity], e)
		}
		switch e.What {
		case killed, ended, dropped:
			breaks[e.Node] = append(breaks[e.Node], e)
			if e.What == killed {
				runs[e.Node] = 0 // its launcher went with it
			}
		case started:
			if runs[e.Node]++; runs[e.Node] > l.most {
				say("%s runs %d at once, and %d is the most", e.Node, runs[e.Node], l.most)
			}
		case finished, torn:
			if runs[e.Node] > 0 {
				runs[e.Node]--
			}
		}
	}

	held := make(map[string]api.Activity)
	for _, a := range l.activities {
		if _, twice := held[a.Activity]; twice {
			say("%s is listed twice", a.Activity)
		}
		held[a.Activity] = a
	}
	for id := range of {
		if _, known := held[id]; !known {
			say("%s was enqueued or run, and the cloud does not hold it", id)
		}
	}

	ends := make(map[string][]api.WorkloadEvent)
	for _, e := range l.events {
		if e.State.Ended() && e.Activity != "" {
			ends[e.Activity] = append(ends[e.Activity], e)
		}
	}
	for _, a := range l.activities {
		l.one(a, of[a.Activity], breaks[a.Node], ends[a.Activity], say)
	}
	slices.Sort(wrong)
	return wrong
}

// one checks one activity.
func (l ledger) one(a api.Activity, all, breaks []entry, ends []api.WorkloadEvent, say func(string, ...any)) {
	id := a.Activity
	if !a.State.Ended() {
		say("%s has not ended: the cloud holds it as %s", id, a.State)
		return
	}
	end := endOf(a)
	if len(ends) != 1 {
		say("%s ended as %s with %d events that say so", id, end, len(ends))
	} else if ends[0].State != a.State || ends[0].Reason != end {
		say("%s ended as %s %s, and its event says %s %s", id, a.State, end, ends[0].State, ends[0].Reason)
	}

	var start, finish, tear, offer, cancel *entry
	var accepted []entry
	over := false
	for i, e := range all {
		switch e.What {
		case started:
			if start != nil {
				say("%s was started twice: on %s, and again on %s", id, start.Node, e.Node)
			}
			if e.Node != a.Node {
				say("%s is %s's and was started on %s", id, a.Node, e.Node)
			}
			if over {
				say("%s was started after its end was reported", id)
			}
			start = &all[i]
		case finished:
			finish = &all[i]
		case torn:
			tear = &all[i]
		case offered:
			if offer == nil {
				offer = &all[i]
			}
		case cancelled:
			cancel = &all[i]
		case delivered:
			if e.Status/100 != 2 {
				break
			}
			// Two that are under way at once may be taken in either order.
			before := furthest(accepted, e.Sent)
			if e.State != before && !before.Next(e.State) {
				say("%s: the cloud has accepted %s after %s", id, e.State, before)
			}
			accepted = append(accepted, e)
			over = over || e.State.Ended()
		}
	}

	done := a.State == activity.Stopped && a.Reason == activity.Done
	switch {
	case !l.disturbed && start == nil:
		say("%s was lost: it ended as %s and never ran", id, end)
	case !l.disturbed && !done:
		say("%s ended as %s, in a run without a fault", id, end)
	case done && (finish == nil || finish.End != string(activity.Done)):
		say("%s is done, the cloud says, and it never finished", id)
	case done:
	case a.Reason == activity.Cancel:
		if cancel == nil {
			say("%s ended as cancelled, and nobody asked for that", id)
		}
	case a.Error != nil && a.Error.Code == activity.Lost:
		l.lost(a, start, finish, tear, offer, breaks, say)
	default:
		say("%s ended as %s: %+v", id, end, a.Error)
	}
	if start != nil && finish == nil && tear == nil && !broken(breaks, start.At, math.MaxInt64) {
		say("%s was started, and the launcher says no more of it", id)
	}
}

// furthest is how far the reports had come that were accepted before an instant.
func furthest(accepted []entry, at int64) activity.State {
	s := activity.Requested
	for _, e := range accepted {
		if e.At < at && s.Next(e.State) {
			s = e.State
		}
	}
	return s
}

// lost checks that an activity which the cloud says is lost was.
func (l ledger) lost(a api.Activity, start, finish, tear, offer *entry, breaks []entry, say func(string, ...any)) {
	id := a.Activity
	until, ok := told(a)
	switch {
	case !ok:
		say("%s ended at %q, which is no instant", id, a.Updated)
	case finish != nil:
		// It may have been killed between the launcher's word and the agent's.
		if !broken(breaks, finish.At, until) {
			say("%s finished as %s, and is lost although its agent lived on", id, finish.End)
		}
	case tear != nil:
	case start != nil:
		if !broken(breaks, start.At, until) {
			say("%s was started and is lost, although its agent lived on", id)
		}
	case offer == nil:
		// It may have come in an answer whose reader was killed.
		if len(breaks) == 0 {
			say("%s is lost, although no node was ever offered it", id)
		}
	case !broken(breaks, offer.At, until):
		say("%s is lost before it was started, although its agent lived on", id)
	}
}

// broken reports whether a life of the node's agent or launcher ended between two
// instants.
func broken(breaks []entry, from, to int64) bool {
	return slices.ContainsFunc(breaks, func(e entry) bool { return from <= e.At && e.At <= to })
}

// told is when the cloud took an activity's end, at the latest; its instants are cut
// to what RFC 3339 text holds of them.
func told(a api.Activity) (int64, bool) {
	t, err := time.Parse(time.RFC3339, a.Updated)
	return t.Add(time.Second).UnixNano(), err == nil
}

// trace is what all sides saw of the activities that wrong speaks of, and of their
// nodes' ends meanwhile; of the first few.
func (l ledger) trace(wrong []string) []string {
	const most = 5
	var lines []string
	seen := 0
	for _, a := range l.activities {
		if seen == most || !slices.ContainsFunc(wrong, func(s string) bool { return strings.HasPrefix(s, a.Activity) }) {
			continue
		}
		seen++
		first := true
		for _, e := range l.history {
			ends := e.Node == a.Node && (e.What == killed || e.What == ended || e.What == began || e.What == dropped) || e.Node == "cloud"
			if e.Activity == a.Activity || ends && !first {
				first = false
				lines = append(lines, fmt.Sprintf("%s  %s %s %s %s %s %d",
					time.Unix(0, e.At).UTC().Format("15:04:05.000"), cmp.Or(e.Activity, "-"), e.Node, e.What, e.State, e.End, e.Status))
			}
		}
		lines = append(lines, fmt.Sprintf("the cloud: %s %s at %s, %+v", a.Activity, a.State, a.Updated, a.Error))
	}
	return lines
}

// endOf is how an activity ended, in one word.
func endOf(a api.Activity) string {
	if a.Error != nil {
		return string(a.Error.Code)
	}
	return string(a.Reason)
}
