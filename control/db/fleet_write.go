package db

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
)

// maxBatch is the most writes that one transaction takes together.
const maxBatch = 128

// A write is one caller's part of a transaction. fn writes and answers what is to
// change in memory once that is committed, or nil; it runs in the writer's goroutine,
// and what it answers under f.mu. When it fails, its part is undone and no other's.
type write struct {
	ctx  context.Context
	fn   func(*tx) (func(), error)
	done chan error
}

func newWrite(ctx context.Context, fn func(*tx) (func(), error)) *write {
	return &write{ctx, fn, make(chan error, 1)}
}

var errClosed = errors.New("the fleet is closed")

// update runs fn in one of the next transactions. When it returns nil, what fn wrote
// is on stable storage and in memory; when it returns an error, none of it is, unless
// the error is the commit's own: then it is there or not.
func (f *Fleet) update(ctx context.Context, fn func(*tx) (func(), error)) error {
	w := newWrite(ctx, fn)
	select {
	case f.writes <- w:
	case <-f.closing:
		return errClosed
	}
	select {
	case err := <-w.done:
		return err
	case <-f.closed: // and the writer may have left it where it was
	}
	select {
	case err := <-w.done:
		return err
	default:
		return errClosed
	}
}

// run is the writer.
func (f *Fleet) run() {
	defer close(f.closed)
	tick := time.NewTicker(sweepTick)
	defer tick.Stop()
	last, flushed := time.Now(), time.Now()
	for {
		select {
		case w := <-f.writes:
			batch := []*write{w}
			for more := true; more && len(batch) < maxBatch; {
				select {
				case w := <-f.writes:
					batch = append(batch, w)
				default:
					more = false
				}
			}
			f.commit(batch)
		case <-tick.C:
			if time.Since(last) > stall {
				f.restartSilence()
			}
			f.sweep()
			if time.Since(flushed) > flushTick {
				f.flush()
				flushed = time.Now()
			}
			last = time.Now()
		case <-f.closing:
			return
		}
	}
}

// restartSilence counts silence from now on: while the process stood still, nobody
// could be heard.
func (f *Fleet) restartSilence() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since = f.now()
}

// commit runs the writes of batch in one transaction and answers each.
func (f *Fleet) commit(batch []*write) {
	errs, changes, events, err := f.transact(batch)
	f.mu.Lock()
	if err != nil {
		// The transaction is there or not, and only the tables know.
		f.stale = true
	} else {
		for _, change := range changes {
			if change != nil {
				change()
			}
		}
		if events {
			f.announce()
		}
	}
	stale := f.stale
	f.mu.Unlock()
	if stale {
		err = errors.Join(err, f.load(context.Background()))
	}
	for i, w := range batch {
		w.done <- cmp.Or(err, errs[i])
	}
}

// transact runs the writes of batch in one transaction. It answers what became of
// each and whether there are events among them, or the error of the whole.
func (f *Fleet) transact(batch []*write) (errs []error, changes []func(), events bool, err error) {
	errs, changes = make([]error, len(batch)), make([]func(), len(batch))
	ctx := context.Background() // no caller's: one that leaves must not undo what others wrote
	sqltx, err := f.write.BeginTx(ctx, nil)
	if err != nil {
		return errs, nil, false, fmt.Errorf("beginning a transaction: %w", err)
	}
	defer sqltx.Rollback()
	t := &tx{ctx: ctx, sql: sqltx, received: instant(f.now()), stmts: f.stmts}
	for i, w := range batch {
		if errs[i] = w.ctx.Err(); errs[i] != nil {
			continue
		}
		if err := t.exec("savepoint one"); err != nil {
			return errs, nil, false, err
		}
		if changes[i], errs[i] = w.fn(t); errs[i] != nil {
			changes[i] = nil
			// A full disk undoes the whole transaction, and this savepoint with it.
			if err := t.exec("rollback to one"); err != nil {
				return errs, nil, false, errors.Join(errs[i], err)
			}
		}
		if err := t.exec("release one"); err != nil {
			return errs, nil, false, err
		}
	}
	if err := sqltx.Commit(); err != nil {
		return errs, nil, false, fmt.Errorf("committing: %w", err)
	}
	f.stmts.prepare(f.write)
	return errs, changes, t.events, nil
}

// commitAll is for the writer's goroutine, or before there is one: it commits writes
// and answers the first of their errors.
func (f *Fleet) commitAll(writes []*write) error {
	for len(writes) > 0 {
		n := min(len(writes), maxBatch)
		f.commit(writes[:n])
		for _, w := range writes[:n] {
			if err := <-w.done; err != nil {
				return err
			}
		}
		writes = writes[n:]
	}
	return nil
}

// sweep fails what nobody took by its deadline, and what lived on nodes that have
// been silent for too long. An error leaves it for the next time.
func (f *Fleet) sweep() error {
	var batch []*write
	fail := func(id string, code activity.Code, message string, still func(api.Activity) bool) {
		batch = append(batch, newWrite(context.Background(), func(t *tx) (func(), error) {
			return f.fail(t, id, code, message, still)
		}))
	}
	taken := func(a api.Activity) bool { return a.State != activity.Requested }
	untaken := func(a api.Activity) bool { return a.State == activity.Requested }
	f.mu.Lock()
	now := f.now()
	for _, n := range f.nodes {
		silent := now.Sub(latest(n.lastClaim, f.since)) > api.OnlineFor*time.Second
		for id, l := range n.live {
			switch {
			case untaken(l.Activity) && now.After(l.due):
				fail(id, activity.TooLate, "its deadline passed before the node took it", untaken)
			case taken(l.Activity) && silent:
				fail(id, activity.Lost, fmt.Sprintf("the node has been offline for %d s", api.OnlineFor), taken)
			}
		}
	}
	f.mu.Unlock()
	return f.commitAll(batch)
}

// fail ends an activity with a code, if it still lives and is as the caller saw it.
func (f *Fleet) fail(t *tx, id string, code activity.Code, message string, still func(api.Activity) bool) (func(), error) {
	a, ok, err := t.activity(id)
	if err != nil || !ok || a.State.Ended() || !still(a) {
		return nil, err
	}
	a.State, a.Stopping, a.Progress = activity.Failed, "", nil
	a.Error = &activity.Failure{Code: code, Message: message}
	if err := t.settle(&a); err != nil {
		return nil, err
	}
	return func() { f.changed(a, true) }, nil
}

// flush notes when nodes claimed.
func (f *Fleet) flush() error {
	type note struct {
		id string
		at time.Time
	}
	var notes []note
	f.mu.Lock()
	for _, n := range f.nodes {
		if n.lastClaim != n.noted {
			notes = append(notes, note{n.id, n.lastClaim})
			n.noted = n.lastClaim
		}
	}
	f.mu.Unlock()
	if len(notes) == 0 {
		return nil
	}
	return f.commitAll([]*write{newWrite(context.Background(), func(t *tx) (func(), error) {
		for _, n := range notes {
			if err := t.exec("update node set lastclaim = ? where id = ?", instant(n.at), n.id); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})})
}

// changed puts an activity as it is committed into memory. When the cloud ended it,
// the claims that name it are told. f.mu is held.
func (f *Fleet) changed(a api.Activity, byCloud bool) {
	n := f.nodes[a.Node]
	if n == nil {
		return
	}
	l := n.live[a.Activity]
	if l == nil {
		return
	}
	stopping := a.Stopping != l.Stopping
	l.Activity = a
	if a.State.Ended() {
		delete(n.live, a.Activity)
		if byCloud {
			for c := range n.claims {
				if c.names[a.Activity] {
					c.stops[a.Activity] = reasonOf(a)
				}
			}
		}
	}
	if a.State.Ended() || stopping {
		n.signal()
	}
}

// reasonOf is why a node is told to stop an activity that has ended here.
func reasonOf(a api.Activity) activity.Reason {
	if a.Reason != "" {
		return a.Reason
	}
	return activity.Cancel
}

// activity reads one activity.
func (t *tx) activity(id string) (api.Activity, bool, error) {
	var a api.Activity
	ok, err := t.object(&a, "select body from activity where id = ?", id)
	return a, ok, err
}

// activityOf reads an activity that was asked of this install and no other.
func (t *tx) activityOf(node, key, id string) (api.Activity, bool, error) {
	var a api.Activity
	ok, err := t.object(&a, "select body from activity where id = ? and node = ? and key = ?", id, node, key)
	return a, ok, err
}

// store writes an activity as it is now.
func (t *tx) store(a *api.Activity) error {
	body, err := canon.Marshal(a)
	if err != nil {
		return err
	}
	return t.exec("update activity set state = ?, live = ?, body = ? where id = ?", string(a.State), !a.State.Ended(), body, a.Activity)
}

// settle writes an activity that has just ended, and its event.
func (t *tx) settle(a *api.Activity) error {
	a.Updated = t.received
	if err := t.store(a); err != nil {
		return err
	}
	if a.State == activity.Stopped {
		return t.event(*a, api.WorkloadStopped, string(a.Reason))
	}
	return t.event(*a, api.WorkloadFailed, string(a.Error.Code))
}

// event appends to the feed what happened to an activity. Its seq is the row's.
func (t *tx) event(a api.Activity, name, reason string) error {
	body, err := canon.Marshal(api.WorkloadEvent{
		Name: name, Org: a.Org, Node: a.Node, Activity: a.Activity, Kind: a.Kind, Requester: a.Requester,
		State: a.State, Reason: reason, Time: t.received,
	})
	if err != nil {
		return err
	}
	t.events = true
	return t.exec("insert into event(body) values(?)", body)
}

// texts reads the texts that are the only column of query.
func (t *tx) texts(query string, args ...any) ([]string, error) {
	rows, err := t.sql.QueryContext(t.ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("reading the record: %w", err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, fmt.Errorf("reading the record: %w", err)
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// look runs fn on one unchanging state of the tables.
func (f *Fleet) look(ctx context.Context, fn func(*tx) error) error {
	sqltx, err := f.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("beginning a read: %w", err)
	}
	defer sqltx.Rollback()
	return fn(&tx{ctx: ctx, sql: sqltx, received: instant(f.now())})
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// statements are those that the writer has used, prepared: a third of what its
// transactions took was parsing. They are the writer's goroutine's alone.
type statements struct {
	held   map[string]*sql.Stmt
	wanted map[string]bool
}

// get answers a prepared statement, or nil and prepares it for another time: while
// the transaction has the one connection, it cannot be prepared.
func (s *statements) get(query string) *sql.Stmt {
	if s == nil {
		return nil
	}
	stmt := s.held[query]
	if stmt == nil {
		s.wanted[query] = true
	}
	return stmt
}

// prepare prepares what was wanted. One that fails is executed as text.
func (s *statements) prepare(db *sql.DB) {
	for query := range s.wanted {
		if stmt, err := db.Prepare(query); err == nil {
			s.held[query] = stmt
		}
	}
	clear(s.wanted)
}
