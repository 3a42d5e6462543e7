package db

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
)

// Deadline is how long after an enqueue its workload must be ready.
const Deadline = 20 * time.Minute

// An Order is what a person asks of a node.
type Order struct {
	api.Enqueue
	Project   string
	Requester string // org/name
}

// Enqueue makes a requested activity, which the node's next claim gets. judge says
// whether the node takes it beside the activities that it holds already, requested or
// later; a refusal of its own with code denied is an event, and any refusal is the
// answer.
func (f *Fleet) Enqueue(ctx context.Context, o Order, judge func(w api.Worker, held int) error) (api.Activity, error) {
	now := f.now()
	a := api.Activity{
		Envelope: activity.Envelope{
			Activity: activity.NewID(now), Kind: o.Kind, Org: f.org, Project: o.Project, Requester: o.Requester,
			Issued: instant(now), Deadline: instant(now.Add(Deadline)), Input: o.Input,
		},
		Node: o.Node, State: activity.Requested,
	}
	if err := a.Envelope.Check(); err != nil {
		return a, api.Refuse(api.Invalid, "%v", err)
	}
	var refusal error
	err := f.update(ctx, func(t *tx) (func(), error) {
		w, err := f.Worker(o.Node)
		if err != nil {
			return nil, err
		}
		var held int
		var key string
		ok, err := t.row("select key, (select count(*) from activity where node = n.id and live) from node n where id = ?", []any{o.Node}, &key, &held)
		if err != nil {
			return nil, err
		}
		if !ok { // removed a moment ago, in this transaction
			return nil, unknown("node", o.Node)
		}
		if refusal = judge(w, held); refusal != nil {
			p, ok := errors.AsType[*api.Problem](refusal)
			if !ok || p.Code != api.Denied {
				return nil, refusal
			}
			of := a
			of.Activity, of.State = "", ""
			return nil, t.event(of, api.WorkloadDenied, p.Rule)
		}
		a.Updated = t.received
		body, err := canon.Marshal(a)
		if err != nil {
			return nil, err
		}
		var seq uint64
		ok, err = t.row("insert into activity(id, node, key, state, live, started, body) values(?, ?, ?, ?, 1, 0, ?) returning seq",
			[]any{a.Activity, a.Node, key, string(a.State), body}, &seq)
		if err != nil || !ok {
			return nil, errors.Join(err, errors.New("an activity was not stored"))
		}
		l, err := newLive(a, seq, f.now())
		return func() {
			if n := f.nodes[a.Node]; n != nil {
				n.live[a.Activity] = l
				n.signal()
			}
		}, err
	})
	if err == nil {
		err = refusal
	}
	return a, err
}

// Activity answers one activity.
func (f *Fleet) Activity(ctx context.Context, id string) (api.Activity, error) {
	var a api.Activity
	err := f.look(ctx, func(t *tx) error {
		var ok bool
		var err error
		if a, ok, err = t.activity(id); err == nil && !ok {
			return unknown("activity", id)
		}
		return err
	})
	return a, err
}

// NodeActivity answers an activity of a node that is the install of key. Another's is
// unknown to it.
func (s *Store) NodeActivity(ctx context.Context, org, node, key, act string) (api.Activity, error) {
	f, err := s.Fleet(org)
	if err != nil {
		return api.Activity{}, err
	}
	var a api.Activity
	err = f.look(ctx, func(t *tx) error {
		var ok bool
		var err error
		if a, ok, err = t.activityOf(node, key, act); err == nil && !ok {
			return unknown("activity", act)
		}
		return err
	})
	return a, err
}

// Activities lists activities, the newest first.
func (f *Fleet) Activities(ctx context.Context, q api.ActivityQuery) ([]canon.Raw, error) {
	var out []canon.Raw
	err := f.look(ctx, func(t *tx) error {
		before := uint64(math.MaxInt64)
		if q.After != "" {
			ok, err := t.row("select seq from activity where id = ?", []any{q.After}, &before)
			if err == nil && !ok {
				err = api.Refuse(api.Invalid, "after: there is no activity %s", q.After)
			}
			if err != nil {
				return err
			}
		}
		var where filter
		where.and("node = ?", q.Node)
		where.and("state = ?", string(q.State))
		var err error
		out, err = t.bodies("select body from activity where seq < ?"+where.where+" order by seq desc limit ?",
			append(append([]any{before}, where.args...), q.Limit)...)
		return err
	})
	return out, err
}

// Cancel asks for the end of an activity and answers it as it is then. One of which
// no state came ends at once; a live one is to be stopped; one that has ended is left
// as it is.
func (f *Fleet) Cancel(ctx context.Context, id string) (api.Activity, error) {
	var a api.Activity
	err := f.update(ctx, func(t *tx) (func(), error) {
		var ok bool
		var err error
		if a, ok, err = t.activity(id); err != nil {
			return nil, err
		}
		switch {
		case !ok:
			return nil, unknown("activity", id)
		case a.State.Ended() || a.Stopping != "":
			return nil, nil
		case a.State == activity.Requested:
			a.State, a.Reason = activity.Stopped, activity.Cancel
			err = t.settle(&a)
		default:
			a.Stopping = activity.Cancel
			err = t.store(&a)
		}
		after := a
		return func() { f.changed(after, true) }, err
	})
	return a, err
}

// Report takes what a node says of one of its activities. rule is what the event
// says of one that the node's policy denied.
//
// A report is accepted when the state follows the one that is held, and when it was
// accepted before. One of an activity that is to end, or was ended while it was
// requested, is gone unless it is its end.
func (f *Fleet) Report(ctx context.Context, node, id string, r api.StateReport, rule string) error {
	f.mu.Lock()
	err := f.nodes[node].refuses(node, r.Key)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return f.update(ctx, func(t *tx) (func(), error) {
		a, ok, err := t.activityOf(node, r.Key, id)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, unknown("activity", id)
		}
		was := a.State
		write, err := take(&a, r)
		if err != nil {
			return nil, err
		}
		if a.State != was {
			a.Updated = t.received
		}
		if write {
			if err := t.report(&a, rule); err != nil {
				return nil, err
			}
		}
		return func() {
			if n := f.nodes[node]; n != nil && n.live[id] != nil {
				n.live[id].heard = f.now()
				f.changed(a, false)
			}
		}, nil
	})
}

// take applies a report to an activity, and reports whether that changed it.
func take(a *api.Activity, r api.StateReport) (changed bool, err error) {
	cancelled := a.Stopping == activity.Cancel || a.Reason == activity.Cancel
	switch {
	case cancelled && !r.State.Ended():
		return false, api.Refuse(api.Gone, "activity %s was cancelled", a.Activity)
	case a.State.Ended() && sameEnd(*a, r):
		return false, nil
	case a.State == activity.Stopped && a.Reason == activity.Cancel:
		// Cancelled before the first word of it came, it has ended twice.
		return false, nil
	case a.State == r.State && !a.State.Ended():
		if r.Progress == nil || a.Progress != nil && *a.Progress == *r.Progress {
			return false, nil
		}
		a.Progress = r.Progress
		return true, nil
	case !a.State.Next(r.State):
		return false, api.Refuse(api.IllegalTransition, "activity %s is %s and does not become %s", a.Activity, a.State, r.State)
	}
	a.State, a.Progress, a.Reason, a.Error, a.Output = r.State, r.Progress, r.Reason, r.Error, r.Output
	if a.State.Ended() {
		a.Stopping = ""
	}
	return true, nil
}

// sameEnd reports whether r says of an ended activity what is known of it. Words and
// output are not compared: what a repeated report quotes may have been cut elsewhere.
func sameEnd(a api.Activity, r api.StateReport) bool {
	if a.State != r.State || a.Reason != r.Reason {
		return false
	}
	return a.State != activity.Failed || a.Error.Code == r.Error.Code
}

// report writes an activity as a report left it, with the event of that.
func (t *tx) report(a *api.Activity, rule string) error {
	switch {
	case a.State == activity.Failed && a.Error.Code == activity.Denied:
		if err := t.store(a); err != nil {
			return err
		}
		return t.event(*a, api.WorkloadDenied, rule)
	case a.State.Ended():
		return t.settle(a)
	}
	if err := t.store(a); err != nil || a.State != activity.Ready {
		return err
	}
	var first string
	begun, err := t.row("update activity set started = 1 where id = ? and not started returning id", []any{a.Activity}, &first)
	if err != nil || !begun {
		return err
	}
	return t.event(*a, api.WorkloadStarted, "")
}

// WorkloadEvents answers at most limit events after a seq, in order. When there are
// none it waits for the first, until wait has passed or drain is closed.
func (f *Fleet) WorkloadEvents(ctx context.Context, after uint64, limit int, wait time.Duration, drain <-chan struct{}) ([]api.WorkloadEvent, error) {
	end := time.NewTimer(wait)
	defer end.Stop()
	for {
		f.mu.Lock()
		news := f.news
		f.mu.Unlock()
		out, err := f.eventsAfter(ctx, after, limit)
		if err != nil || len(out) > 0 || wait <= 0 {
			return out, err
		}
		select {
		case <-news:
		case <-end.C:
			return out, nil
		case <-drain:
			return out, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (f *Fleet) eventsAfter(ctx context.Context, after uint64, limit int) ([]api.WorkloadEvent, error) {
	out := []api.WorkloadEvent{}
	err := f.look(ctx, func(t *tx) error {
		rows, err := t.sql.QueryContext(ctx, "select seq, body from event where seq > ? order by seq limit ?", after, limit)
		if err != nil {
			return fmt.Errorf("reading the feed: %w", err)
		}
		defer rows.Close()
		for rows.Next() {
			var seq uint64
			var body []byte
			if err := rows.Scan(&seq, &body); err != nil {
				return fmt.Errorf("reading the feed: %w", err)
			}
			var e api.WorkloadEvent
			if err := decode(body, &e); err != nil {
				return err
			}
			e.Seq = seq
			out = append(out, e)
		}
		return rows.Err()
	})
	return out, err
}
