package db

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
)

// Admits reads what a node says of itself, and answers what reports whether the node
// would take an activity beside running others. Both are asked while the fleet stands
// still, so they must not wait for anything; the first is asked once for all that
// wait, for a policy may be long.
type Admits func(facts api.WorkerFacts) func(e activity.Envelope, running int) bool

// A claim is one that is held.
type claim struct {
	names map[string]bool            // the activities that the node says it has
	stops map[string]activity.Reason // those of them that do not live here
}

// Claim waits for something to tell the node id, at most in.Wait seconds, and is a
// heartbeat. It answers nil when there was nothing until then, or until drain is
// closed.
//
// What starts is requested, its deadline has not passed, the node does not name it
// already, and admits lets it in beside what runs: the live activities that the node
// has reported of, or names. What stops is what the node names and does not live
// here, and what lives and is to end; the same is said again 2 s later at the
// earliest, so that a node that is slow to end something does not spin.
func (f *Fleet) Claim(ctx context.Context, id string, in api.Claim, admits Admits, drain <-chan struct{}) (*api.Claimed, error) {
	c, err := f.arrive(ctx, id, in)
	if err != nil {
		return nil, err
	}
	defer f.leave(id, c)
	end := time.NewTimer(time.Duration(in.Wait) * time.Second)
	defer end.Stop()
	for {
		out, wake, again, err := f.due(id, in.Key, c, admits)
		if err != nil || out != nil {
			return out, err
		}
		select {
		case <-wake:
		case <-again:
		case <-end.C:
			return nil, nil
		case <-drain:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// arrive takes a claim in: it marks who was heard of, finds what the node has lost,
// and why what it names does not live here.
func (f *Fleet) arrive(ctx context.Context, id string, in api.Claim) (*claim, error) {
	c := &claim{names: make(map[string]bool, len(in.Running)), stops: make(map[string]activity.Reason)}
	var unknown, lost []string
	f.mu.Lock()
	n := f.nodes[id]
	err := n.refuses(id, in.Key)
	if err == nil && len(n.claims) >= maxClaims {
		err = api.Refuse(api.RateLimited, "node %s has %d claims waiting already", id, maxClaims).After(repeat)
	}
	if err != nil {
		f.mu.Unlock()
		return nil, err
	}
	now := f.now()
	n.lastClaim = now
	for _, r := range in.Running {
		c.names[r.Activity] = true
		if l := n.live[r.Activity]; l != nil {
			l.heard = now
		} else {
			unknown = append(unknown, r.Activity)
		}
	}
	for act, l := range n.live {
		if !c.names[act] && f.silent(l, now) {
			lost = append(lost, act)
		}
	}
	n.claims[c] = struct{}{}
	f.mu.Unlock()

	if len(lost) > 0 {
		err = f.lose(ctx, id, lost)
	}
	if err == nil && len(unknown) > 0 {
		err = f.explain(ctx, id, in.Key, unknown, c)
	}
	if err != nil {
		f.leave(id, c)
	}
	return c, err
}

// refuses is why a claim with key is none of n's, which may be nil.
func (n *node) refuses(id, key string) error {
	switch {
	case n == nil:
		return removed(id)
	case n.key != key:
		return wrongKey(id)
	}
	return nil
}

func (f *Fleet) leave(id string, c *claim) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.nodes[id]; n != nil {
		delete(n.claims, c)
	}
}

// silent reports whether nothing has named l for so long that a claim without it
// says that it is lost. f.mu is held.
func (f *Fleet) silent(l *live, now time.Time) bool {
	return l.State != activity.Requested && now.Sub(latest(l.heard, f.since)) >= Silence
}

// lose fails what a node does not know any more, unless it was heard of since.
func (f *Fleet) lose(ctx context.Context, id string, lost []string) error {
	return f.update(ctx, func(t *tx) (func(), error) {
		var changes []func()
		for _, act := range lost {
			change, err := f.fail(t, act, activity.Lost, "the node does not know it any more", func(api.Activity) bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				n := f.nodes[id]
				return n != nil && n.live[act] != nil && f.silent(n.live[act], f.now())
			})
			if err != nil {
				return nil, err
			}
			if change != nil {
				changes = append(changes, change)
			}
		}
		return func() {
			for _, change := range changes {
				change()
			}
		}, nil
	})
}

// explain finds why the activities of unknown do not live on the node.
func (f *Fleet) explain(ctx context.Context, id, key string, unknown []string, c *claim) error {
	stops := make(map[string]activity.Reason, len(unknown))
	err := f.look(ctx, func(t *tx) error {
		for _, act := range unknown {
			a, ok, err := t.activityOf(id, key, act)
			if err != nil {
				return err
			}
			stops[act] = activity.Cancel
			if ok {
				stops[act] = reasonOf(a)
			}
		}
		return nil
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	for act, reason := range stops {
		c.stops[act] = reason
	}
	return err
}

// due answers what there is to tell now or, when there is nothing, the channels of
// when to look again.
func (f *Fleet) due(id, key string, c *claim, admits Admits) (*api.Claimed, <-chan struct{}, <-chan time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[id]
	if n == nil || n.key != key {
		return nil, nil, nil, removed(id)
	}
	stop, again := n.stop(c)
	start := f.start(n, c, admits)
	if len(start) > 0 || len(stop) > 0 {
		return &api.Claimed{Start: start, Stop: stop}, nil, nil, nil
	}
	return nil, n.wake, again, nil
}

// stop is what the node is to end now, and when there will be more of it. f.mu is
// held. It goes by this machine's own clock, as waits do.
func (n *node) stop(c *claim) (out []api.Stop, again <-chan time.Time) {
	stops := make(map[string]activity.Reason, len(c.stops))
	for act, reason := range c.stops {
		stops[act] = reason
	}
	for act, l := range n.live {
		if l.Stopping != "" {
			stops[act] = l.Stopping
		}
	}
	if len(stops) == 0 && len(n.told) == 0 {
		return nil, nil
	}
	now := time.Now()
	for act, at := range n.told {
		if now.Sub(at) >= repeat {
			delete(n.told, act)
		}
	}
	wait := time.Duration(0)
	for act, reason := range stops {
		if at, told := n.told[act]; told {
			wait = max(wait, repeat-now.Sub(at))
			continue
		}
		n.told[act] = now
		out = append(out, api.Stop{Activity: act, Reason: reason})
	}
	if wait > 0 {
		again = time.After(wait)
	}
	slices.SortFunc(out, func(a, b api.Stop) int { return cmp.Compare(a.Activity, b.Activity) })
	return out, again
}

// start is what the node is to begin now, the first requested first. f.mu is held.
func (f *Fleet) start(n *node, c *claim, admits Admits) []activity.Envelope {
	var waiting []*live
	running := 0
	for act, l := range n.live {
		if l.State != activity.Requested || c.names[act] {
			running++
		} else {
			waiting = append(waiting, l)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	slices.SortFunc(waiting, func(a, b *live) int { return cmp.Compare(a.seq, b.seq) })
	now, takes := f.now(), admits(n.facts)
	var out []activity.Envelope
	for _, l := range waiting {
		if len(out) == api.MaxStarts {
			break
		}
		if now.Before(l.due) && takes(l.Envelope, running) {
			out = append(out, l.Envelope)
			running++
		}
	}
	return out
}
