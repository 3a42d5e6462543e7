package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
)

// A work is one activity on this machine, from its envelope until the cloud has
// acknowledged its end and has its record. It is the loop's.
type work struct {
	entry
	kept bool // it is in the journal, or was

	trees []string // that it is given
	ask   policy.Ask
	due   time.Time // when it must be ready

	stopping activity.Reason // why it was asked to end, the first time
	closed   bool            // the cloud has acknowledged its end

	// Of what is in flight.
	cancel  context.CancelFunc // ends the pull that runs, or nil
	whole   bool               // all its trees are in the store
	pinned  bool
	sending bool
	unsaved bool // the journal holds an older state

	progress   *api.Progress // that the cloud was not told of
	done       api.Progress
	progressAt time.Time // not earlier

	reportAt   time.Time
	reportWait backoff
	deferred   bool // a report failed since the agent is closing
	unknown    bool // the cloud said so in answer to its end
	saveAt     time.Time
	saveWait   backoff

	ran       bool          // a workload may have run, so there may be a record
	quiet     chan struct{} // closed when no process of it is left
	recording bool
	recorded  bool // nothing more of it will be sent

	// Of a spool whose record is sent whole.
	clearAt   time.Time
	clearWait backoff
	cleared   bool // the launcher has removed what was in it
}

// launched reports whether it is the launcher's: it may run, or may be about to.
func (w *work) launched() bool { return w.State == activity.Starting || w.State == activity.Ready }

// settle says that no process of it is left.
func (w *work) settle() {
	select {
	case <-w.quiet:
	default:
		close(w.quiet)
	}
}

func (w *work) id() string { return w.Envelope.Activity }

// A refusal is why an envelope comes to nothing, with A5's code.
type refusal struct {
	code activity.Code
	err  error
}

func (r refusal) Error() string       { return r.err.Error() }
func (r refusal) Unwrap() error       { return r.err }
func (r refusal) Code() activity.Code { return r.code }

func refuse(code activity.Code, format string, args ...any) error {
	return refusal{code, fmt.Errorf(format, args...)}
}

// codeOf is an error's A5 code, or the other one.
func codeOf(err error, other activity.Code) activity.Code {
	if d, ok := errors.AsType[policy.Denied](err); ok {
		return activity.Code(d.Code())
	}
	if coded, ok := errors.AsType[interface {
		error
		Code() activity.Code
	}](err); ok {
		return coded.Code()
	}
	return other
}

// maxWorks bounds the activities whose end the cloud has not acknowledged, whatever it
// offers. It is as many as a claim may name, and as a policy may admit.
const maxWorks = 1024

// take judges an envelope and, unless it is held already, makes it this machine's
// work. It reports whether that is news. Before the journal holds it, nothing is done
// about it; what is refused needs no journal, for the cloud offers it again until it
// has heard of the refusal.
func (a *agent) take(src canon.Raw) bool {
	w := &work{quiet: make(chan struct{})}
	err := canon.Unmarshal(src, &w.Envelope)
	if err == nil {
		err = w.Envelope.Check()
	}
	if err != nil {
		// Whose failure it is can be told from the id alone.
		var named struct{ Activity string }
		if json.Unmarshal(src, &named) != nil || !activity.ValidID(named.Activity) {
			a.Log.Warn("an envelope that names no activity was left alone", "err", plain(err.Error()))
			return false
		}
		w.Envelope = activity.Envelope{Activity: named.Activity}
		err = refusal{activity.Schema, err}
	}
	if _, held := a.works[w.id()]; held {
		return false
	}
	if _, ended := a.finished[w.id()]; ended {
		return false
	}
	if a.open >= maxWorks {
		a.Log.Warn("an envelope was left alone: too many wait for the cloud to hear of them", "activity", w.id(), "open", a.open)
		return false
	}
	w.Node, w.Taken, w.State = a.node, now(), activity.Requested
	if err == nil {
		err = a.judge(w)
	}
	if err == nil {
		if err = a.put(w.entry); err != nil {
			err = refuse(activity.Capacity, "the agent's journal cannot be written: %w", err)
		}
	}
	a.add(w)
	if err != nil {
		a.fail(w, err)
		return true
	}
	w.kept = true
	a.pin(w)
	a.Log.Info("taken", "activity", w.id(), "kind", w.Envelope.Kind, "org", w.Envelope.Org, "requester", w.Envelope.Requester, "deadline", w.Envelope.Deadline)
	return true
}

func (a *agent) add(w *work) {
	a.works[w.id()] = w
	a.order = append(a.order, w)
	a.open++
}

// close takes note that the cloud wants to hear no more of a work.
func (a *agent) close(w *work) {
	w.closed = true
	a.open--
}

// judge says why an envelope's work is not for this machine. The launcher will judge
// it again, and the cloud has; neither of them is relied on.
func (a *agent) judge(w *work) error {
	e := w.Envelope
	if a.Dial == nil {
		return refusal{activity.Denied, errPresence}
	}
	known := []string{policy.EngineServe, policy.StudioRender, policy.FnRun, policy.TrainFit}
	if !slices.Contains(known, e.Kind) {
		return refuse(activity.Unsupported, "nobody here knows the kind %q", e.Kind)
	}
	own := readPolicy(a.Policy)
	if e.Kind != policy.TrainFit {
		if !slices.Contains(own.policy.Kinds, e.Kind) {
			return policy.Denied{Rule: "kind", Reason: fmt.Sprintf("asked for %q, which the owner does not admit", e.Kind)}
		}
		return refuse(activity.Unsupported, "this agent does not run %q yet", e.Kind)
	}
	if err := w.parse(); err != nil {
		return err
	}
	switch {
	case !time.Now().Before(w.due):
		problem := a.clock.problem()
		if problem != "" {
			problem = " (" + problem + ")"
		}
		return refuse(activity.TooLate, "its deadline %s had passed when it came%s", e.Deadline, problem)
	case own.err != nil:
		return refusal{activity.Denied, own.err}
	case e.Org != a.link.Org:
		return policy.Denied{Rule: "org", Reason: fmt.Sprintf("asked by %q, and this machine is linked to %q", e.Org, a.link.Org)}
	}
	held := a.held()
	if err := own.policy.Admit(w.ask, held); err != nil {
		return err
	}
	free, err := policy.HostFree(a.Store)
	if err != nil {
		return refusal{activity.StartFailed, err}
	}
	return own.policy.Capacity(w.ask, held, free)
}

// parse reads what an envelope says, beyond its form.
func (w *work) parse() error {
	var err error
	if w.due, err = w.Envelope.Due(); err != nil {
		return refusal{activity.Schema, err}
	}
	input, err := policy.ParseTrainFit(w.Envelope.Input)
	if err != nil {
		return refuse(activity.Schema, "input: %w", err)
	}
	w.ask = input.Ask(w.id(), w.Envelope.Org)
	w.trees = []string{input.Stage}
	if input.Base != input.Stage {
		w.trees = append(w.trees, input.Base)
	}
	packet, err := canon.Marshal(ipc.Request{Start: &w.Envelope})
	if err != nil {
		return refusal{activity.Schema, err}
	}
	if len(packet) > ipc.MaxPacket {
		return refuse(activity.Schema, "the envelope has %d bytes, and %d is the most", len(packet), ipc.MaxPacket)
	}
	return nil
}

// held is what the work here holds that has not ended.
func (a *agent) held() (held policy.Held) {
	for _, w := range a.order {
		if !w.State.Ended() {
			held = hold(held, w.ask)
		}
	}
	return held
}

func hold(held policy.Held, ask policy.Ask) policy.Held {
	held.Count++
	held.VRAM += ask.VRAM
	held.Memory += ask.Memory
	held.CPUs += ask.CPUs
	held.Disk += ask.Disk
	return held
}

// advance does the next thing for a work, when there is one to be done now.
func (a *agent) advance(w *work) {
	if w.unsaved && a.due(w.saveAt) {
		a.save(w)
	}
	a.report(w)
	a.record(w)
	a.clear(w)
	switch {
	case w.State.Ended() || w.stopping != "" || a.closing:
	case w.State != activity.Ready && a.due(w.due):
		a.stop(w, activity.Deadline)
	case w.launched() || w.cancel != nil:
	case !w.whole:
		a.pull(w)
	case a.conn != nil && a.conn.ready != nil:
		a.start(w)
	}
	if w.closed && (!w.ran || w.recorded && !w.uncleared()) && w.cancel == nil && !w.sending {
		a.forget(w)
	}
}

// pull fetches what is missing of a work's trees.
func (a *agent) pull(w *work) {
	missing := slices.DeleteFunc(slices.Clone(w.trees), a.keeper.Has)
	if len(missing) == 0 {
		w.whole = true
		a.again = true
		return
	}
	if w.State == activity.Requested {
		a.to(w, activity.Pulling)
	}
	limit, held := readPolicy(a.Policy).policy.Caps.Disk, a.held().Disk
	ctx, cancel := context.WithCancel(a.ctx)
	w.cancel = cancel
	a.spawn(func() func() {
		var told time.Time
		progress := func(done, total int64) {
			if time.Since(told) < a.pace.progress/4 {
				return
			}
			told = time.Now()
			a.tell(func() { w.done = api.Progress{Done: done, Total: total}; w.progress = &w.done })
		}
		var err error
		for _, hash := range missing {
			if err = a.keeper.Pull(ctx, w.id(), hash, limit, held, progress); err != nil {
				break
			}
		}
		return func() { a.pulled(w, err) }
	})
}

func (a *agent) pulled(w *work, err error) {
	w.cancel()
	w.cancel, w.progress = nil, nil
	switch {
	case w.State.Ended():
		a.unpin(w)
	case err == nil:
		w.whole = true
	case a.closing: // the next life goes on
	default:
		a.fail(w, refusal{codeOf(err, activity.Pull), err})
	}
}

// start asks the launcher for a work, once the journal says that it may have been.
func (a *agent) start(w *work) {
	before := w.entry
	w.State = activity.Starting
	w.Reports = append(slices.Clone(w.Reports), api.StateReport{State: activity.Starting})
	if err := a.put(w.entry); err != nil {
		w.entry = before
		a.fail(w, refuse(activity.Capacity, "the agent's journal cannot be written: %w", err))
		return
	}
	w.unsaved = false
	a.again = true
	a.request(ipc.Request{Start: &w.Envelope})
}

// to brings a work into a state that is not an end.
func (a *agent) to(w *work, s activity.State) {
	w.State = s
	w.Reports = append(w.Reports, api.StateReport{State: s})
	a.save(w)
}

// stop ends a work for a reason; the first one counts. What the launcher has ends when
// the launcher says so.
func (a *agent) stop(w *work, reason activity.Reason) {
	if w.State.Ended() || w.stopping != "" {
		return
	}
	w.stopping = reason
	a.Log.Info("stopping", "activity", w.id(), "reason", reason)
	if w.launched() {
		a.request(ipc.Request{Stop: &ipc.Stop{Activity: w.id(), Reason: reason}})
		return
	}
	if w.cancel != nil {
		w.cancel()
	}
	a.end(w, api.StateReport{State: activity.Stopped, Reason: reason})
}

// fail ends a work because of an error.
func (a *agent) fail(w *work, err error) {
	a.end(w, api.StateReport{State: activity.Failed, Error: &activity.Failure{Code: codeOf(err, activity.StartFailed), Message: err.Error()}})
}

// end ends a work. Its pull, if one runs, was told to stop.
func (a *agent) end(w *work, r api.StateReport) {
	e := w.Envelope
	entry := line{Activity: w.id(), Kind: e.Kind, Org: e.Org, Project: e.Project, Requester: e.Requester}
	if r.State == activity.Stopped {
		entry.Event, entry.Reason = auditStop, r.Reason
	} else {
		r.Error.Message = clip(r.Error.Message, activity.MaxMessage)
		entry.Event, entry.Code = auditFail, r.Error.Code
		if r.Error.Code == activity.Denied {
			entry.Event, entry.Message = auditDeny, plain(r.Error.Message)
		}
	}
	a.note(entry)
	// Not the message: it may quote an input, or what a workload wrote.
	a.Log.Info("ended", "activity", w.id(), "state", r.State, "reason", r.Reason, "code", entry.Code, "why", entry.Message)
	w.State = r.State
	w.Reports = append(w.Reports, r)
	w.progress = nil
	if w.cancel == nil {
		a.unpin(w)
	}
	if !w.ran {
		w.settle()
	}
	a.again = true
	if w.kept {
		a.save(w)
	}
}

// save puts a work's state into the journal. What is already so in the world does not
// become untrue by a disk that is full, so a failure is tried again, and named.
func (a *agent) save(w *work) {
	if err := a.put(w.entry); err != nil {
		w.unsaved, w.saveAt = true, time.Now().Add(w.saveWait.next(a.pace, false, 0))
		return
	}
	w.unsaved, w.saveWait = false, backoff{}
}

// put makes an entry of the journal what it is now, and names a disk that does not
// take it.
func (a *agent) put(e entry) error {
	err := a.journal.put(e)
	if err != nil {
		a.fault = "the journal cannot be written: " + err.Error()
		a.Log.Error("the journal cannot be written", "activity", e.Envelope.Activity, "err", err)
		return err
	}
	a.fault = ""
	return nil
}

// forget drops a work that nobody waits for any more. Its id is remembered until a
// claim that was asked after this has been answered: the one that is on its way may
// still offer it.
func (a *agent) forget(w *work) {
	if w.kept {
		if err := a.journal.remove(w.id()); err != nil {
			a.fault = err.Error()
			a.Log.Error("the journal cannot be written", "activity", w.id(), "err", err)
		}
	}
	delete(a.works, w.id())
	a.order = slices.DeleteFunc(a.order, func(other *work) bool { return other == w })
	a.finished[w.id()] = a.claims
}

func (a *agent) pin(w *work) {
	for _, hash := range w.trees {
		a.keeper.Pin(hash)
	}
	w.pinned = true
}

func (a *agent) unpin(w *work) {
	if !w.pinned {
		return
	}
	w.pinned = false
	for _, hash := range w.trees {
		a.keeper.Unpin(hash)
	}
}

// record has a work's record sent, from when it runs until all of it is. Of those that
// ended, only a few at once.
func (a *agent) record(w *work) {
	const most = 4
	if !w.ran || w.recording || w.recorded || a.closing && !a.draining {
		return
	}
	if w.State.Ended() && a.recording >= most {
		return
	}
	w.recording = true
	a.recording++
	a.spawn(func() func() {
		err := a.recorder.Record(a.ctx, w.id(), w.quiet)
		return func() {
			a.recording--
			w.recording = false
			if a.ctx.Err() != nil {
				return
			}
			w.recorded = true
			a.again = true
			if err != nil {
				a.Log.Error("not all of the record can be sent: it stays in its spool", "activity", w.id(), "err", plain(err.Error()))
				a.kept = append(a.kept, w.id())
				return
			}
			w.Sent = true
			if w.kept {
				a.save(w)
			}
		}
	})
}

// uncleared reports whether what is in the spool may go and has not.
func (w *work) uncleared() bool { return w.Sent && !w.cleared }

// clear has the launcher remove what is in the spool of a work whose record is sent:
// whatever a workload left there, the agent may not be able to. The launcher does one
// at a time.
func (a *agent) clear(w *work) {
	switch {
	case !w.uncleared() || !w.State.Ended():
		return
	case a.Dial == nil: // and so nothing ran
		w.cleared = true
		return
	case a.conn == nil || a.conn.ready == nil || a.clearing != nil || !a.due(w.clearAt):
		return
	}
	a.clearing = w
	a.request(ipc.Request{Forget: &ipc.Forget{Activity: w.id()}})
}

// forgotten takes note that the launcher has emptied a spool.
func (a *agent) forgotten(id string) {
	if w := a.works[id]; w != nil && w.Sent {
		w.cleared = true
	}
	if a.clearing != nil && a.clearing.id() == id {
		a.clearing = nil
	}
	a.again = true
}

// unforgotten takes note that the launcher has not emptied the spool that it was asked
// to, which it is asked again.
func (a *agent) unforgotten(why string) {
	w := a.clearing
	a.clearing = nil
	w.clearAt = time.Now().Add(w.clearWait.next(a.pace, false, 0))
	a.Log.Warn("a spool whose record is sent was not emptied", "activity", w.id(), "err", plain(why))
}

// restore makes works of what an earlier life has left in the journal. What the
// launcher may have been asked for is lost: it was killed with its agent. The rest
// goes on.
func (a *agent) restore(entries []entry) {
	for _, e := range entries {
		if e.Node != a.node {
			a.Log.Warn("what is left of another link's activity is forgotten", "activity", e.Envelope.Activity, "node", e.Node)
			a.journal.remove(e.Envelope.Activity)
			continue
		}
		w := &work{entry: e, kept: true, quiet: make(chan struct{})}
		a.add(w)
		switch {
		case w.State.Ended():
			w.ran, w.recorded = true, w.Sent // it may have
			if len(w.Reports) == 0 {
				a.close(w)
			}
		case w.launched():
			w.ran = true
			a.fail(w, refuse(activity.Lost, "the agent ended while it ran, and the launcher ended it then"))
		default:
			if err := w.parse(); err != nil {
				a.fail(w, err)
				continue
			}
			a.pin(w)
		}
		a.unsettled = append(a.unsettled, w)
		if a.Dial == nil {
			w.settle()
		}
	}
}

// now is a time as the journal and the status have it.
func now() string { return time.Now().UTC().Format(time.RFC3339Nano) }

// clip cuts text to most bytes, and makes of it what can be sent.
func clip(s string, most int) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}
