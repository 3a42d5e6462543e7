package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
)

// claim asks the cloud for work, when none is asked for and it is time.
func (a *agent) claim() {
	switch {
	case a.claiming || a.closing:
		return
	case !a.due(a.claimAt):
		// The watchdog is fed by the steps of this wait and by the claims' answers, and
		// so by nothing while the loop or a claim hangs.
		if a.due(a.restAt) {
			a.feed()
			a.restAt = time.Now().Add(a.pace.rest)
			a.due(a.restAt)
		}
		return
	}
	body := api.Claim{Key: a.key, Wait: int(a.Wait / time.Second), Running: []api.Running{}}
	if !a.status.Connected {
		body.Wait = api.MinWait // whether the cloud answers is to be known soon
	}
	for _, w := range a.order {
		if !w.closed {
			body.Running = append(body.Running, api.Running{Activity: w.id(), State: w.State})
		}
	}
	a.claiming = true
	a.claims++
	number, began := a.claims, time.Now()
	ctx, cancel := context.WithCancel(a.ctx)
	a.stopClaim = cancel
	a.spawn(func() func() {
		defer cancel()
		offered, err := a.client.Offers(ctx, a.link.ID, body)
		return func() { a.claimed(number, began, offered, err) }
	})
}

func (a *agent) claimed(number int, began time.Time, offered api.Offered, err error) {
	a.claiming, a.stopClaim = false, nil
	a.feed()
	a.restAt = time.Now().Add(a.pace.rest)
	a.watchClock()
	if a.closing {
		return
	}
	if err != nil {
		a.status.Connected = false
		if api.Is(err, api.Gone) {
			a.gone(err)
			return
		}
		problem, slow := explain(err)
		wait := a.claimWait.next(a.pace, slow, a.troubled(err))
		a.claimAt = time.Now().Add(wait)
		a.restAt = time.Now().Add(a.pace.rest)
		if problem != a.problem { // the same one is not said again
			a.Log.Warn("no claim", "err", problem, "again", wait.Round(time.Millisecond))
		}
		a.problem = problem
		return
	}
	if !a.status.Connected {
		a.Log.Info("connected", "api", a.link.API)
		// What waited for the network need wait no longer.
		for _, w := range a.order {
			if !w.unknown {
				w.reportAt, w.reportWait = time.Time{}, backoff{}
			}
		}
	}
	a.problem, a.claimWait = "", backoff{}
	a.status.Connected, a.status.LastClaim = true, time.Now().UTC().Format(time.RFC3339)
	for id, last := range a.finished {
		if number > last {
			delete(a.finished, id)
		}
	}
	if a.audit.pending != nil {
		a.audit.flush()
	}
	a.kept = slices.DeleteFunc(a.kept, a.spoolEmpty) // the owner may have seen to it
	news := a.obey(offered)
	// An answer that comes at once and says nothing new is not asked for again at once,
	// and the longer that goes on the later: whoever answers so is out of order.
	if news || time.Since(began) >= min(a.pace.first, a.Wait/2) {
		a.futile = backoff{}
		return
	}
	a.claimAt = time.Now().Add(min(a.futile.next(a.pace, false, 0), a.Wait))
}

// obey does what a claim's answer says, and reports whether any of it was news.
func (a *agent) obey(offered api.Offered) bool {
	news := false
	for _, s := range offered.Stop {
		w := a.works[s.Activity]
		switch {
		case w == nil:
		case !w.State.Ended():
			news = news || w.stopping == ""
			a.stop(w, s.Reason)
		case w.unknown && !w.sending && !w.closed:
			// Neither its report nor its claim finds it: nobody waits for its end.
			a.Log.Warn("the cloud does not know this activity", "activity", w.id())
			w.Reports = nil
			a.close(w)
			news = true
		}
	}
	for _, src := range offered.Start {
		if a.take(src) {
			news = true
		}
	}
	return news
}

// troubled lets go of connections that may be dead, and returns what the server asked
// to wait.
func (a *agent) troubled(err error) time.Duration {
	if p, ok := errors.AsType[*api.Problem](err); ok {
		return p.RetryAfter
	}
	a.client.HTTP.CloseIdleConnections()
	return 0
}

// watchClock names a clock that differs from the cloud's.
func (a *agent) watchClock() {
	problem := a.clock.problem()
	if (problem == "") != (a.clockProblem == "") {
		a.Log.Warn("the clock", "problem", problem, "differs", problem != "")
	}
	a.clockProblem = problem
}

// feed tells the watchdog that the claims go on.
func (a *agent) feed() {
	if a.Watchdog > 0 {
		a.Notify("WATCHDOG=1")
	}
}

// gone does what the cloud's removal of this node asks for.
func (a *agent) gone(err error) {
	if a.closing {
		return
	}
	a.Log.Warn("the cloud has removed this node", "err", plain(err.Error()))
	a.unlinked, a.err, a.problem = true, ErrUnlinked, ErrUnlinked.Error()
	a.shut(true)
}

// refresh tells the cloud what this node is, when that has changed and it is time.
func (a *agent) refresh() {
	if !a.stale || a.refreshing || a.closing || !a.due(a.refreshAt) {
		return
	}
	a.stale, a.refreshing = false, true
	var kinds []string
	if a.conn != nil && a.conn.ready != nil {
		kinds = a.conn.ready.Kinds
	}
	a.registered, a.offered = true, kinds // or it is tried again
	a.spawn(func() func() {
		err := a.register(kinds)
		return func() { a.refreshed(err) }
	})
}

// register makes the call. The launcher's kinds are those of the policy that it can
// run; what the cloud is told of is both as they are now.
func (a *agent) register(kinds []string) error {
	ctx, cancel := context.WithTimeout(a.ctx, a.pace.facts)
	facts, err := a.Facts(ctx)
	cancel()
	if err != nil {
		return err
	}
	facts.Offers = []string{}
	if a.Dial != nil {
		if own := readPolicy(a.Policy); own.err == nil {
			facts.Policy, facts.PolicySHA256 = canon.Raw(own.src), own.sum
			for _, kind := range kinds {
				if slices.Contains(own.policy.Kinds, kind) {
					facts.Offers = append(facts.Offers, kind)
				}
			}
		}
	}
	_, err = a.client.PutWorker(a.ctx, a.link.ID, api.WorkerPut{Key: a.key, WorkerFacts: facts})
	return err
}

func (a *agent) refreshed(err error) {
	a.refreshing = false
	switch {
	case a.closing:
	case err == nil:
		a.refreshWait, a.unregistered = backoff{}, ""
	case api.Is(err, api.Gone):
		a.gone(err)
	default:
		problem, slow := explain(err)
		a.stale = true
		a.refreshAt = time.Now().Add(a.refreshWait.next(a.pace, slow, a.troubled(err)))
		if problem != a.unregistered {
			a.Log.Warn("not registered", "err", problem)
		}
		a.unregistered = problem
	}
}

// maxSending is how many reports are in flight at once.
const maxSending = 8

// report sends a work's next report, one at a time and in order.
func (a *agent) report(w *work) {
	if w.sending || w.closed || a.unlinked || a.sending >= maxSending || a.closing && w.deferred {
		return
	}
	var r api.StateReport
	queued := len(w.Reports) > 0
	switch {
	case queued:
		if !a.due(w.reportAt) {
			return
		}
		r = w.Reports[0]
	case w.progress != nil && w.State == activity.Pulling && !a.closing && a.due(w.progressAt):
		r = api.StateReport{State: w.State, Progress: new(*w.progress)}
		w.progress = nil
	default:
		return
	}
	r.Key = a.key
	w.sending = true
	a.sending++
	a.spawn(func() func() {
		err := a.client.Report(a.ctx, a.link.ID, w.id(), r)
		return func() { a.reported(w, r, queued, err) }
	})
}

// reported does what the answer to a report says.
func (a *agent) reported(w *work, r api.StateReport, queued bool, err error) {
	a.sending--
	w.sending = false
	a.again = true
	if !queued { // progress, which is not owed
		w.progressAt = time.Now().Add(a.pace.progress)
		if api.Is(err, api.Gone) {
			a.stop(w, activity.Cancel)
		}
		return
	}
	switch {
	case err == nil:
		a.acknowledged(w)
		return
	case api.Is(err, api.Gone) && !r.State.Ended():
		// It was cancelled: nothing but its end is of interest.
		w.Reports = slices.DeleteFunc(slices.Clone(w.Reports), func(r api.StateReport) bool { return !r.State.Ended() })
		a.stop(w, activity.Cancel)
		if w.kept {
			a.save(w)
		}
		return
	case api.Is(err, api.IllegalTransition):
		a.Log.Warn("the cloud has this activity in another state: the report is dropped", "activity", w.id(), "state", r.State, "err", plain(err.Error()))
		a.acknowledged(w)
		return
	case api.Is(err, api.Invalid) || api.Is(err, api.TooLarge):
		a.Log.Error("the cloud does not take this report", "activity", w.id(), "state", r.State, "err", plain(err.Error()))
		if !r.State.Ended() {
			a.acknowledged(w)
			return
		}
		w.Reports = slices.Clone(w.Reports)
		w.Reports[0].Output = nil // the end matters more than what it said
	case api.Is(err, api.NotFound):
		w.unknown = true
	}
	problem, slow := explain(err)
	w.reportAt = time.Now().Add(w.reportWait.next(a.pace, slow || w.unknown, a.troubled(err)))
	if a.closing {
		w.deferred = true // to the next life
	}
	a.Log.Warn("not reported", "activity", w.id(), "state", r.State, "err", problem)
}

// acknowledged drops a work's first report. Its end's acknowledgement closes it.
func (a *agent) acknowledged(w *work) {
	if w.Reports[0].State.Ended() {
		a.close(w)
	}
	w.Reports = w.Reports[1:]
	w.reportAt, w.reportWait, w.unknown = time.Time{}, backoff{}, false
	if w.kept {
		a.save(w)
	}
}
