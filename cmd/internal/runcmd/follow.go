package runcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/gate"
)

// late is how long a record may take to come whole after its activity has ended: the
// node sends it by itself, at its own pace.
const late = time.Minute

// A follower prints what becomes of one activity.
type follower struct {
	client   *api.Client
	streams  term.IO
	asJSON   bool
	progress *term.Progress
	every    time.Duration
	late     time.Duration

	state   activity.State    // as last printed
	seq     uint64            // of the last event printed
	judged  map[string]string // datasets by evaluation
	step    string            // the last one, until it is printed
	batches uint64            // of its plan
	whole   bool              // the record has its end
	waiting bool              // the control plane does not answer, which was printed
}

func newFollower(client *api.Client, streams term.IO, asJSON bool) *follower {
	return &follower{client: client, streams: streams, asJSON: asJSON, progress: term.NewProgress(streams.Err), every: every, late: late, judged: make(map[string]string)}
}

// follow prints until the activity has ended and its record is whole, or the time for
// that is over. Its error is the activity's end.
func (f *follower) follow(ctx context.Context, act api.Activity) error {
	defer f.progress.Done()
	name := act.Activity
	left := f.late
	for {
		if err := f.show(act); err != nil {
			return err
		}
		more, err := f.events(ctx, act)
		if err == nil {
			f.waiting = false
		}
		switch {
		case err != nil:
		case act.State.Ended() && (f.whole || !recorded(act)):
			return f.end(ctx, act)
		case act.State.Ended() && more:
			left = f.late
			continue
		case act.State.Ended():
			if left -= f.every; left < 0 {
				f.progress.Say("the record of %s is not whole yet: the node goes on sending it", name)
				return f.end(ctx, act)
			}
		case more:
			continue
		}
		if err == nil {
			err = pause(ctx, f.every)
		}
		if err == nil {
			var next api.Activity
			if next, err = f.client.Activity(ctx, name); err == nil {
				act = next
				continue
			}
		}
		if ctx.Err() != nil {
			return term.Exit(term.Interrupted, fmt.Errorf("no longer following %s, which goes on: hanzo follow %s, or hanzo cancel %s", name, name, name))
		}
		retry, after := api.Retryable(err)
		if !retry {
			return fmt.Errorf("following %s: %w", name, err)
		}
		if !f.waiting {
			f.waiting = true
			f.progress.Say("waiting for the control plane: %s", term.Plain(err.Error()))
		}
		if pause(ctx, max(after, f.every)) != nil {
			continue // the context's end is told above
		}
	}
}

// recorded reports whether an ended activity has a record that will have an end: its
// work was done. What was stopped or crashed leaves its record open.
func recorded(act api.Activity) bool { return act.Reason == activity.Done }

// show prints a state when it is new.
func (f *follower) show(act api.Activity) error {
	if act.State == f.state && f.asJSON {
		return nil
	}
	fresh := act.State != f.state
	f.state = act.State
	if f.asJSON {
		return term.PrintJSON(f.streams.Out, struct {
			Activity api.Activity `json:"activity"`
		}{act})
	}
	if fresh {
		f.progress.Done()
		if _, err := fmt.Fprintln(f.streams.Out, sentence(act)); err != nil {
			return err
		}
	}
	if p := act.Progress; act.State == activity.Pulling && p != nil && p.Total > 0 {
		f.progress.Show(fmt.Sprintf("pulling: %s of %s", term.Bytes(p.Done), term.Bytes(p.Total)))
	}
	return nil
}

// sentence is what a state means.
func sentence(act api.Activity) string {
	switch act.State {
	case activity.Requested:
		return fmt.Sprintf("%s: requested of %s", act.Activity, act.Node)
	case activity.Pulling:
		return fmt.Sprintf("%s: %s pulls what it needs", act.Activity, act.Node)
	case activity.Starting:
		return fmt.Sprintf("%s: its sandbox is being built", act.Activity)
	case activity.Ready:
		return fmt.Sprintf("%s: it runs", act.Activity)
	}
	return fmt.Sprintf("%s: %s", act.Activity, fate(act))
}

// events prints what has come of the record; more says that there may be more at once.
func (f *follower) events(ctx context.Context, act api.Activity) (more bool, err error) {
	if act.State == activity.Requested {
		return false, nil
	}
	page, err := f.client.Events(ctx, act.Activity, f.seq, 0)
	if api.Is(err, api.NotFound) {
		return false, nil // it has recorded nothing yet
	}
	if err != nil {
		return false, err
	}
	for _, raw := range page {
		e, err := event.Parse(raw)
		if err != nil {
			return false, fmt.Errorf("the record of %s: %w", act.Activity, err)
		}
		if f.seq = e.Seq; f.asJSON {
			err = term.PrintJSON(f.streams.Out, struct {
				Event canon.Raw `json:"event"`
			}{raw})
		} else {
			err = f.print(e.Body)
		}
		if err != nil {
			return false, err
		}
		if e.Body.Type() == event.TypeRunCompleted {
			f.whole = true
		}
	}
	return len(page) > 0 && !f.whole, nil
}

// print says an event that matters to who waits for a result.
func (f *follower) print(body event.Body) error {
	line := ""
	switch b := body.(type) {
	case event.TrainStarted:
		f.batches = b.Batches
		line = fmt.Sprintf("training: %d steps, %d tokens", b.Batches, b.Tokens)
	case event.StepRecorded:
		f.step = fmt.Sprintf("step %d of %d  loss %.4f", b.Step, max(f.batches, b.Step), b.Loss)
		f.progress.Show(f.step)
		return nil
	case event.EvalStarted:
		f.judged[b.Evaluation] = b.Dataset
	case event.CheckpointCreated:
		line = fmt.Sprintf("checkpoint after step %d: %s", b.Step, b.ArtifactSHA256)
	case event.EvalCompleted:
		if m, ok := accuracy(b.Measures); ok {
			line = fmt.Sprintf("%s: accuracy %.1f %%", f.judged[b.Evaluation], 100*m)
		}
	case event.GateEvaluated:
		line = "gate: " + string(b.Verdict)
	case event.RunCompleted:
		line = fmt.Sprintf("run %s after %d steps", b.Status, b.Steps)
		if b.Error != nil {
			line += ": " + term.Plain(*b.Error)
		}
	}
	if line == "" {
		return nil
	}
	f.progress.Done()
	if f.step != "" { // where it had come to
		line, f.step = f.step+"\n"+line, ""
	}
	_, err := fmt.Fprintln(f.streams.Out, line)
	return err
}

// accuracy is an evaluation's, over all rows.
func accuracy(all []gate.Measure) (float64, bool) {
	for _, m := range all {
		if m.Category == gate.All && m.Metric == gate.Accuracy {
			return m.Value, true
		}
	}
	return 0, false
}

// end is the error that the activity's end is.
func (f *follower) end(ctx context.Context, act api.Activity) error {
	switch {
	case act.State == activity.Failed && act.Error != nil:
		message := cmp.Or(term.Plain(act.Error.Message), "the node said no more")
		return fmt.Errorf("%s failed on %s (%s): %s", act.Activity, act.Node, act.Error.Code, message)
	case act.Reason != activity.Done:
		return fmt.Errorf("%s was stopped on %s (%s)%s", act.Activity, act.Node, act.Reason, because(act.Reason))
	}
	view, err := f.client.Run(ctx, act.Activity)
	if err != nil && !api.Is(err, api.NotFound) {
		return fmt.Errorf("%s is done, and its run could not be read: %w", act.Activity, err)
	}
	failed := act.Output != nil && act.Output.Exit == gateFailed
	for _, g := range view.Gates {
		failed = failed || g.Verdict != gate.Pass
	}
	if failed {
		return term.Exit(term.Rejected, errors.New(act.Activity+" ended, and its gate failed"))
	}
	if !f.asJSON {
		fmt.Fprintf(f.streams.Out, "done: run %s, %d steps, %d tokens\n", act.Activity, view.Steps, view.Tokens)
	}
	return nil
}

// gateFailed is the exit status of train fit that says so.
const gateFailed = int(term.Rejected)

// because says what a reason means to who asked.
func because(r activity.Reason) string {
	switch r {
	case activity.Policy:
		return ": its owner's policy no longer admits it"
	case activity.Unlink:
		return ": the machine was unlinked"
	case activity.Max:
		return ": it ran for as long as it may"
	case activity.Deadline:
		return ": it was not ready in time"
	}
	return ""
}
