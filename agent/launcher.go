package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
)

// A connection is one to the launcher. Work lives no longer than the connection over
// which it was started.
type connection struct {
	Launcher
	ready   *ipc.Ready    // what it said last of what it can start; nil before
	queue   []ipc.Request // to be written
	writing bool
}

// connect makes a connection where there is none and it is time.
func (a *agent) connect() {
	if a.Dial == nil || a.conn != nil || a.dialing || a.closing || !a.due(a.dialAt) {
		return
	}
	a.dialing = true
	a.tasks.Go(func() {
		l, err := a.Dial()
		if !a.tell(func() { a.dialed(l, err) }) && err == nil {
			l.Close()
		}
	})
}

func (a *agent) dialed(l Launcher, err error) {
	a.dialing = false
	if err != nil {
		a.noLauncher(fmt.Errorf("the launcher cannot be reached: %w: systemctl status hanzo-link-launcher", err))
		return
	}
	if a.closing {
		l.Close()
		return
	}
	c := &connection{Launcher: l}
	a.conn = c
	a.tasks.Go(func() { a.listen(c) })
}

// noLauncher waits before the next try.
func (a *agent) noLauncher(err error) {
	a.dialAt = time.Now().Add(a.dialWait.next(a.pace, false, 0))
	if a.absent != err.Error() {
		a.Log.Warn("no launcher", "err", err)
	}
	a.absent = err.Error()
	if !a.closing && (!a.registered || len(a.offered) > 0) { // it is known now that nothing is
		a.stale, a.refreshAt = true, later(a.refreshAt, time.Now().Add(a.pace.again), a.refreshWait)
	}
}

// later is the time of a registration that is not urgent: a failed one's own wait
// goes before.
func later(at, then time.Time, failed backoff) time.Time {
	if failed != (backoff{}) && at.After(then) {
		return at
	}
	return then
}

// listen tells the loop of what the launcher says, until it says no more.
func (a *agent) listen(c *connection) {
	for {
		r, files, err := c.ReadReply()
		if err != nil {
			a.tell(func() { a.disconnected(c, err) })
			return
		}
		output := outputOf(r, files)
		a.tell(func() { a.hear(c, r, output) })
	}
}

// outputOf reads what came along with a reply, as much of it as a report may hold, and
// closes all of it.
func outputOf(r ipc.Reply, files []*os.File) *api.Output {
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	e := r.Ended
	if e == nil {
		return nil
	}
	out := &api.Output{Exit: e.Exit, Truncated: e.Truncated}
	rest := files
	for _, stream := range []struct {
		length int
		text   *string
	}{{e.Stdout, &out.Stdout}, {e.Stderr, &out.Stderr}} {
		if stream.length == 0 || len(rest) == 0 {
			continue
		}
		// ReadAt: the file's position is the launcher's too.
		data := make([]byte, min(stream.length, api.MaxOutput))
		n, err := rest[0].ReadAt(data, 0)
		rest = rest[1:]
		*stream.text = clip(string(data[:n]), api.MaxOutput)
		if n < stream.length || err != nil && err != io.EOF || len(*stream.text) < n {
			out.Truncated = true
		}
	}
	return out
}

// hear does what the launcher says.
func (a *agent) hear(c *connection, r ipc.Reply, output *api.Output) {
	if a.conn != c {
		return
	}
	switch {
	case r.Ready != nil:
		a.readied(c, r.Ready)
	case r.Refused != nil:
		a.refused(c, r.Refused)
	case r.Forgotten != nil:
		a.forgotten(r.Forgotten.Activity)
	case r.Started != nil:
		if w := a.works[r.Started.Activity]; w != nil && w.State == activity.Starting {
			w.ran = true
			e := w.Envelope
			a.note(line{Event: auditStart, Activity: w.id(), Kind: e.Kind, Org: e.Org, Project: e.Project, Requester: e.Requester})
			a.Log.Info("started", "activity", w.id())
			a.to(w, activity.Ready)
		}
	case r.Ended != nil:
		if w := a.works[r.Ended.Activity]; w != nil && w.launched() {
			w.ran = true
			w.settle()
			a.end(w, endOf(r.Ended, w.stopping, output))
		}
	}
}

// endOf is the report of what the launcher says of an end. What it stopped as
// cancelled, and nobody cancelled, it stopped because it or this agent ends.
func endOf(e *ipc.Ended, asked activity.Reason, output *api.Output) api.StateReport {
	r := api.StateReport{State: e.State, Output: output}
	switch {
	case e.State == activity.Stopped && e.Reason == activity.Cancel && asked == "":
		r.State = activity.Failed
		r.Error = &activity.Failure{Code: activity.Lost, Message: "this machine's agent or launcher was stopped while it ran, as by a restart of the machine"}
	case e.State == activity.Stopped:
		r.Reason = e.Reason
	default:
		r.State = activity.Failed
		r.Error = &activity.Failure{Code: e.Code, Message: e.Message}
	}
	if r.Error != nil && !r.Error.Code.Valid() || r.Error == nil && !r.Reason.Valid() {
		r.State, r.Reason = activity.Failed, ""
		r.Error = &activity.Failure{Code: activity.Crash, Message: "it ended, and the launcher did not say how"}
	}
	return r
}

// readied takes note of what can be started now: on a new connection, and whenever the
// policy has changed.
func (a *agent) readied(c *connection, ready *ipc.Ready) {
	if ready.Version != ipc.Version {
		a.err = fmt.Errorf("the launcher speaks version %d and this agent %d: sudo hanzo link installs both of one version", ready.Version, ipc.Version)
		return
	}
	if c.ready == nil {
		// Of an earlier connection's work nothing is left: the launcher answers a new
		// one only then.
		for _, w := range a.unsettled {
			w.settle()
		}
		a.unsettled = nil
		a.Log.Info("the launcher is there", "kinds", ready.Kinds, "reasons", ready.Reasons)
	}
	c.ready, a.absent, a.dialWait = ready, "", backoff{}
	a.stale = true
	if a.refreshWait == (backoff{}) {
		a.refreshAt = time.Time{}
	}
	own := readPolicy(a.Policy)
	if a.policy == nil || own.sum != a.policy.sum || (own.err == nil) != (a.policy.err == nil) {
		l := line{Event: auditPolicy, PolicySHA256: own.sum, Kinds: own.policy.Kinds}
		if own.err != nil {
			l.Message = plain(own.err.Error())
		}
		a.note(l)
	}
	a.policy = &own
	a.enforce(own, ready)
}

// enforce stops what is not the launcher's yet and what the policy does not admit any
// more. The rest is for the launcher to stop.
func (a *agent) enforce(own reading, ready *ipc.Ready) {
	if own.err != nil && len(ready.Kinds) > 0 {
		return // it is being written; the launcher tells when it stands
	}
	var held policy.Held
	for _, w := range slices.Clone(a.order) {
		if w.State.Ended() {
			continue
		}
		err := own.err
		if err == nil {
			err = own.policy.Admit(w.ask, held)
		}
		if err != nil && !w.launched() {
			a.stop(w, activity.Policy)
			continue
		}
		held = hold(held, w.ask)
	}
}

// refused takes note of a request, or a connection, that came to nothing.
func (a *agent) refused(c *connection, r *ipc.Refused) {
	w := a.works[r.Activity]
	switch {
	case r.Activity == "" && c.ready == nil:
		a.absent = "the launcher refuses this agent: " + plain(r.Message)
		c.Close() // and listen tells of the rest
	case r.Activity == "":
		a.Log.Error("the launcher takes a packet for malformed", "err", plain(r.Message))
	case w != nil && w == a.clearing:
		a.unforgotten(r.Message)
	case w != nil && w.State == activity.Starting:
		a.fail(w, refusal{r.Code, errors.New(r.Message)})
	}
}

// disconnected takes note of a connection's end, which is its work's.
func (a *agent) disconnected(c *connection, err error) {
	if a.conn != c {
		return
	}
	a.hangUp()
	for _, w := range slices.Clone(a.order) {
		if w.launched() {
			w.ran = true
			a.unsettled = append(a.unsettled, w)
			a.fail(w, refuse(activity.Lost, "the launcher's connection ended while it ran, and it with the connection"))
		}
	}
	reason := fmt.Errorf("the launcher ended the connection (%w): systemctl status hanzo-link-launcher", err)
	if strings.HasPrefix(a.absent, "the launcher refuses") {
		reason = errors.New(a.absent)
	}
	a.noLauncher(reason)
}

// hangUp closes the connection, if there is one.
func (a *agent) hangUp() {
	if a.conn != nil {
		a.conn.Close()
		a.conn = nil
		a.clearing = nil // it is asked for again, over another connection
	}
}

// request has the launcher asked, after what it is being asked already.
func (a *agent) request(r ipc.Request) {
	if a.conn != nil { // else its work is over, or about to be found so
		a.conn.queue = append(a.conn.queue, r)
		a.again = true
	}
}

// write writes the next request.
func (a *agent) write() {
	c := a.conn
	if c == nil || c.writing || len(c.queue) == 0 {
		return
	}
	r := c.queue[0]
	c.queue = c.queue[1:]
	c.writing = true
	a.spawn(func() func() {
		err := c.SetWriteDeadline(time.Now().Add(a.pace.write))
		if err == nil {
			err = c.WriteRequest(r)
		}
		return func() {
			c.writing = false
			if err != nil && a.conn == c {
				a.Log.Error("the launcher takes no request", "err", err)
				c.Close() // and listen tells of the rest
			}
		}
	})
}
