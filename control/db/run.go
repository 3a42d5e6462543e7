package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/event"
	"github.com/hanzoai/link/spool/record"
)

// AppendEvents applies events to a run in order, each the JSON of one, until the
// first that is refused. What was applied is on stable storage when it returns,
// also when it returns a refusal, whose Batch then says how far it came.
func (o *Org) AppendEvents(ctx context.Context, project, run string, events []canon.Raw) (api.Appended, error) {
	if len(events) > api.MaxEvents {
		return api.Appended{}, api.Refuse(api.TooLarge, "%d events in one call; send at most %d", len(events), api.MaxEvents)
	}
	if !record.ValidRun(run) {
		return api.Appended{}, api.Refuse(api.Invalid, "%q is not a run's name", run)
	}
	b := batch{org: o, run: run, project: project, out: api.Appended{Run: run}}
	// The fold is kept before the next append may look for it: one that came later
	// would be behind the log.
	o.writing.Lock()
	defer o.writing.Unlock()
	err := o.updating(ctx, func(t *tx) error {
		// Until the commit is done the fold may be ahead of the log.
		b.tx, b.fold = t, o.folds[run]
		delete(o.folds, run)
		if b.fold == nil {
			var err error
			if b.fold, err = o.refold(t, run); err != nil {
				return err
			}
		}
		return b.apply(events)
	})
	if err != nil {
		return api.Appended{}, err
	}
	o.keep(run, b.fold)
	b.out.Next = b.fold.Next()
	if b.refusal != nil {
		b.refusal.Batch = &b.out
		return b.out, b.refusal
	}
	return b.out, nil
}

// keep holds a committed fold for the next append. o.writing is held.
func (o *Org) keep(run string, fold *event.Run) {
	for other := range o.folds {
		if len(o.folds) < maxFolds {
			break
		}
		delete(o.folds, other)
	}
	o.folds[run] = fold
}

// refold folds a run's stored events.
func (o *Org) refold(t *tx, run string) (*event.Run, error) {
	rows, err := t.sql.QueryContext(t.ctx, "select body from event where run = ? order by seq", run)
	if err != nil {
		return nil, fmt.Errorf("reading run %s: %w", run, err)
	}
	defer rows.Close()
	fold := new(event.Run)
	refs := &refs{tx: t}
	for rows.Next() {
		var body sql.RawBytes
		if err := rows.Scan(&body); err != nil {
			return nil, fmt.Errorf("reading run %s: %w", run, err)
		}
		e, err := event.Parse(body)
		if err == nil {
			_, err = fold.Apply(e, refs)
		}
		if err = errors.Join(err, refs.err); err != nil {
			return nil, fmt.Errorf("run %s: stored event %d is not what was accepted: %w", run, fold.Next(), err)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("reading run %s: %w", run, err)
	}
	return fold, nil
}

// A batch is one append under way.
type batch struct {
	org          *Org
	tx           *tx
	run, project string
	fold         *event.Run
	out          api.Appended
	scored       *scoring     // of the event being applied, when it ends a sealed evaluation
	refusal      *api.Problem // of the event that ended the batch early
}

// apply applies events and writes what they changed.
func (b *batch) apply(events []canon.Raw) error {
	insert, err := b.tx.sql.PrepareContext(b.tx.ctx, "insert into event(run, seq, received, body) values(?, ?, ?, ?)")
	if err != nil {
		return fmt.Errorf("writing events: %w", err)
	}
	defer insert.Close()
	for i, raw := range events {
		e, outcome, err := b.one(raw)
		if p, ok := errors.AsType[*api.Problem](err); ok {
			p.Detail = fmt.Sprintf("events/%d: %s", i, p.Detail)
			p.Seq = e.Seq
			b.refusal = p
			break
		}
		if err != nil {
			return err
		}
		if outcome == event.Duplicate {
			b.out.Duplicate++
			continue
		}
		b.out.Accepted++
		if _, err := insert.ExecContext(b.tx.ctx, b.run, e.Seq, b.tx.received, e.JSON()); err != nil {
			return fmt.Errorf("writing event %d of run %s: %w", e.Seq, b.run, err)
		}
		if b.scored != nil {
			if err := b.keepScoring(b.scored); err != nil {
				return err
			}
		}
		if a, ok := e.Body.(event.DatasetAttached); ok {
			err := b.tx.exec("insert into attachment(run, dataset, role) values(?, ?, ?) on conflict do nothing", b.run, a.Dataset, string(a.Role))
			if err != nil {
				return err
			}
		}
	}
	if b.out.Accepted == 0 {
		return nil
	}
	return b.store()
}

// one applies one event. A refusal is a *api.Problem and changes nothing.
func (b *batch) one(raw canon.Raw) (event.Event, event.Outcome, error) {
	e, err := event.Parse(raw)
	if err != nil {
		if r, ok := errors.AsType[*event.Refusal](err); ok {
			e.Seq = r.Seq
		}
		return e, event.Refused, refusalOf(err)
	}
	if e.Run != b.run {
		return e, event.Refused, api.Refuse(api.InvalidEvent, "/run: the event is of run %s, and the path names %s", e.Run, b.run)
	}
	b.scored = nil
	// What only the server can judge is judged before the fold takes the event, and
	// only of one that is new: a duplicate was judged when it came.
	if e.Seq == b.fold.Next() {
		if err := b.judge(e.Body); err != nil {
			return e, event.Refused, err
		}
	}
	refs := &refs{tx: b.tx}
	outcome, err := b.fold.Apply(e, refs)
	if refs.err != nil {
		return e, event.Refused, refs.err
	}
	return e, outcome, refusalOf(err)
}

// refusalOf gives a refusal of the fold its place in the protocol. The codes of
// the rules are package event's.
func refusalOf(err error) error {
	r, ok := errors.AsType[*event.Refusal](err)
	if !ok {
		return err
	}
	p := api.Refuse(api.Code(r.Code), "%s", r.Detail)
	return p.With(r.Status)
}

// store writes the run's new view and evaluations.
func (b *batch) store() error {
	view := b.fold.View()
	view.Project = b.project
	seq, held, err := b.heldRun(&view)
	if err != nil {
		return err
	}
	body, err := canon.Marshal(view)
	if err != nil {
		return err
	}
	if held {
		err = b.tx.exec("update run set status = ?, body = ? where id = ?", string(view.Status), body, b.run)
	} else {
		err = b.tx.exec("insert into run(id, seq, kind, status, job, created, body) values(?, ?, ?, ?, ?, ?, ?)",
			b.run, seq, string(view.Kind), string(view.Status), view.Job, view.Created, body)
		for _, tag := range view.Tags {
			if err != nil {
				break
			}
			err = b.tx.exec("insert into tag(run, tag) values(?, ?) on conflict do nothing", b.run, tag)
		}
	}
	if err != nil {
		return err
	}
	return b.storeEvaluations()
}

// heldRun draws a sequence number for a new run, and keeps what the server set on
// one that is held: a run stays in the project that created it.
func (b *batch) heldRun(view *event.View) (seq uint64, held bool, err error) {
	var was event.View
	held, err = b.tx.object(&was, "select body from run where id = ?", b.run)
	if err != nil {
		return 0, false, err
	}
	if held {
		view.Project, view.Visibility = was.Project, was.Visibility
		return 0, true, nil
	}
	seq, err = b.tx.next()
	return seq, false, err
}

func (b *batch) storeEvaluations() error {
	evaluations, err := b.evaluations()
	if err != nil {
		return err
	}
	for _, ev := range evaluations {
		body, err := canon.Marshal(ev)
		if err != nil {
			return err
		}
		var held []byte
		ok, err := b.tx.row("select body from evaluation where id = ?", []any{ev.ID}, &held)
		if err != nil {
			return err
		}
		if ok {
			if string(held) != string(body) {
				err = b.tx.exec("update evaluation set body = ? where id = ?", body, ev.ID)
			}
			if err != nil {
				return err
			}
			continue
		}
		seq, err := b.tx.next()
		if err != nil {
			return err
		}
		subject := ev.Subject.Name
		if ev.Subject.SHA256 != "" {
			subject = string(ev.Subject.SHA256)
		}
		err = b.tx.exec("insert into evaluation(id, seq, run, dataset, subject, purpose, body) values(?, ?, ?, ?, ?, ?, ?)",
			ev.ID, seq, b.run, ev.Dataset, subject, string(ev.Purpose), body)
		if err != nil {
			return err
		}
	}
	return nil
}

// refs answers the fold's questions from one transaction. Its methods cannot
// return a failure of the store, so the first one is kept.
type refs struct {
	tx  *tx
	err error
}

func (r *refs) Artifact(sha canon.SHA256) (record.Artifact, bool) {
	a, ok, err := r.tx.artifact(sha)
	r.err = errors.Join(r.err, err)
	return a, ok
}

func (r *refs) Gate(hash canon.Hash) bool {
	ok, err := r.tx.gateHeld(hash)
	r.err = errors.Join(r.err, err)
	return ok
}

func (r *refs) Dataset(id string) (record.Dataset, bool) {
	d, ok, err := r.tx.dataset(id)
	r.err = errors.Join(r.err, err)
	return d, ok
}

// Run answers the view of one run.
func (o *Org) Run(ctx context.Context, id string) (api.Run, error) {
	var out api.Run
	err := o.view(ctx, func(t *tx) error {
		ok, err := t.object(&out, "select body from run where id = ?", id)
		if err == nil && !ok {
			return unknown("run", id)
		}
		if err == nil {
			out.Reference, err = t.reference(out.EnvironmentArtifactSHA256)
		}
		return err
	})
	return out, err
}

// Runs lists views.
func (o *Org) Runs(ctx context.Context, q api.RunQuery) ([]canon.Raw, error) {
	var f filter
	f.and("kind = ?", q.Kind)
	f.and("status = ?", q.Status)
	f.and("job = ?", q.Job)
	f.and("id in (select run from tag where tag = ?)", q.Tag)
	f.and("unixepoch(created, 'subsec') >= unixepoch(?, 'subsec')", q.Since)
	f.and("unixepoch(created, 'subsec') < unixepoch(?, 'subsec')", q.Until)
	bodies, err := o.page(ctx, "run", "id", f, q.After, q.Limit)
	if err != nil {
		return nil, err
	}
	return bodies, o.markReference(ctx, bodies)
}

// Events answers at most limit events of a run's log from the first after the seq
// after, as they were received.
func (o *Org) Events(ctx context.Context, run string, after uint64, limit int) ([]canon.Raw, error) {
	if _, err := o.Run(ctx, run); err != nil {
		return nil, err
	}
	var out []canon.Raw
	err := o.view(ctx, func(t *tx) error {
		var err error
		out, err = t.bodies("select body from event where run = ? and seq > ? order by seq limit ?", run, after, limit)
		return err
	})
	return out, err
}

// Evaluation answers one evaluation.
func (o *Org) Evaluation(ctx context.Context, id string) (api.Evaluation, error) {
	var out api.Evaluation
	err := o.view(ctx, func(t *tx) error {
		ok, err := t.object(&out, "select body from evaluation where id = ?", id)
		if err == nil && !ok {
			return unknown("evaluation", id)
		}
		return err
	})
	return out, err
}

// Evaluations lists evaluations.
func (o *Org) Evaluations(ctx context.Context, q api.EvaluationQuery) ([]canon.Raw, error) {
	var f filter
	f.and("run = ?", q.Run)
	f.and("dataset = ?", q.Dataset)
	f.and("subject = ?", q.Subject)
	f.and("purpose = ?", string(q.Purpose))
	return o.page(ctx, "evaluation", "id", f, q.After, q.Limit)
}
