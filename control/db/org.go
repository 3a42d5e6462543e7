package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/spool/event"
)

// An Org is the record of one org.
type Org struct {
	// immutable once open
	dir   string
	disk  durable.Disk // of trees and blobs
	now   func() time.Time
	write *sql.DB // one connection: SQLite has one writer
	read  *sql.DB

	recent treeCache

	assembling sync.Mutex // one upload is put together from its parts at a time

	writing sync.Mutex // held over every write transaction; guards folds
	// folds are runs as their stored events fold, for those written last. One
	// is dropped when what it saw may not have been committed.
	folds map[string]*event.Run
}

// maxFolds bounds the runs held folded; a run past it is folded again from its
// log when its next event comes.
const maxFolds = 32

// Objects are kept as their canonical JSON, so that what is answered is what was
// hashed; a column beside it exists only to be filtered or joined on. seq is the
// order of receipt, unique over all tables of the org.
var orgSchema = []string{`
create table sequence(one integer primary key check (one = 1), last integer not null) strict;
insert into sequence values(1, 0);

create table dataset(
	id        text primary key,
	seq       integer not null unique,
	purpose   text not null,
	benchmark text,
	sha256    text,
	body      blob not null
) strict;

create table item(
	dataset       text not null references dataset(id) on delete cascade,
	id            text not null,
	example       text not null,
	contamination text,             -- null: no string leaf, takes no part in matching
	guarded       integer not null, -- 1: eval_only or sealed_eval, nothing that trains may equal it
	body          blob not null,
	primary key (dataset, id)
) strict, without rowid;
create index item_example on item(example) where guarded;
create index item_contamination on item(contamination) where guarded;

create table sealed_read(
	dataset text not null references dataset(id) on delete cascade,
	run     text not null,
	reads   integer not null,
	primary key (dataset, run)
) strict, without rowid;

create table artifact(
	sha256  text primary key,
	seq     integer not null unique,
	kind    text not null,
	run     text,
	purpose text not null,
	created text not null,
	stored  integer not null,
	body    blob not null
) strict;

create table gate(
	hash     text primary key,
	seq      integer not null unique,
	name     text not null,
	version  integer not null,
	received text not null,
	body     blob not null,
	unique (name, version)
) strict;

create table run(
	id      text primary key,
	seq     integer not null unique,
	kind    text not null,
	status  text not null,
	job     text,
	created text not null,
	body    blob not null
) strict;
create table tag(
	run text not null references run(id),
	tag text not null,
	primary key (run, tag)
) strict, without rowid;

create table event(
	run      text not null,
	seq      integer not null,
	received text not null,
	body     blob not null,
	primary key (run, seq)
) strict, without rowid;

create table attachment(
	run     text not null,
	dataset text not null,
	role    text not null,
	primary key (dataset, run, role)
) strict, without rowid;

create table evaluation(
	id      text primary key,
	seq     integer not null unique,
	run     text not null,
	dataset text not null,
	subject text not null,
	purpose text not null,
	body    blob not null
) strict;
create index evaluation_run on evaluation(run);

create table scoring(
	evaluation text primary key,
	run        text not null,
	dataset    text not null,
	gate       text not null,
	body       blob not null,
	unique (run, dataset)
) strict;
create index scoring_gate on scoring(gate);
`, `
create table determinism(
	hash        text primary key,
	seq         integer not null unique,
	environment text not null,
	reference   integer not null, -- 1: exact, and the environment is not dirty
	received    text not null,
	body        blob not null
) strict;
create index determinism_environment on determinism(environment);
`}

func openOrg(dir string, now func() time.Time) (*Org, error) {
	o := &Org{dir: dir, disk: durable.On(durable.OS), now: now, folds: make(map[string]*event.Run)}
	for _, d := range []string{o.artifacts(), o.parts(), o.trees(), o.blobs()} {
		if err := makeDir(d); err != nil {
			return nil, err
		}
		// The lock says that no other process is writing here.
		if err := durable.RemoveStale(d, now()); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(dir, "research.db")
	var err error
	if o.write, err = openSQLite(path, 1, false); err != nil {
		return nil, err
	}
	if err := migrate(context.Background(), o.write, orgSchema); err != nil {
		o.write.Close()
		return nil, err
	}
	if o.read, err = openSQLite(path, 4, true); err != nil {
		o.write.Close()
		return nil, err
	}
	if err := durable.SyncDir(dir); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

func (o *Org) close() error { return errors.Join(o.read.Close(), o.write.Close()) }

func (o *Org) artifacts() string { return filepath.Join(o.dir, "artifacts") }
func (o *Org) parts() string     { return filepath.Join(o.dir, "parts") }

// update runs fn in one write transaction. When update returns nil, what fn
// wrote is on stable storage; when it returns an error, none of it is, unless
// the error is the commit's own: then it is there or not.
func (o *Org) update(ctx context.Context, fn func(*tx) error) error {
	o.writing.Lock()
	defer o.writing.Unlock()
	return o.updating(ctx, fn)
}

// updating is update for a caller that holds o.writing, and goes on holding it.
func (o *Org) updating(ctx context.Context, fn func(*tx) error) error {
	sqltx, err := o.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("beginning a transaction: %w", err)
	}
	defer sqltx.Rollback()
	if err := fn(&tx{ctx: ctx, sql: sqltx, received: instant(o.now())}); err != nil {
		return err
	}
	if err := sqltx.Commit(); err != nil {
		return fmt.Errorf("committing: %w", err)
	}
	return nil
}

// view runs fn on one unchanging state of the record.
func (o *Org) view(ctx context.Context, fn func(*tx) error) error {
	sqltx, err := o.read.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("beginning a read: %w", err)
	}
	defer sqltx.Rollback()
	return fn(&tx{ctx: ctx, sql: sqltx, received: instant(o.now())})
}

// instant is a time as the server writes it (HIP-1334 §2.4).
func instant(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// A tx is one transaction and the instant it was received.
type tx struct {
	ctx      context.Context
	sql      *sql.Tx
	received string
	events   bool        // a fleet's feed was written to
	stmts    *statements // of the fleet whose writer this is; nil: none is prepared
}

// next draws the org's next sequence number.
func (t *tx) next() (uint64, error) {
	var n uint64
	err := t.sql.QueryRowContext(t.ctx, "update sequence set last = last + 1 returning last").Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("drawing a sequence number: %w", err)
	}
	return n, nil
}

func (t *tx) exec(query string, args ...any) error {
	var err error
	if stmt := t.stmts.get(query); stmt != nil {
		_, err = t.sql.StmtContext(t.ctx, stmt).ExecContext(t.ctx, args...)
	} else {
		_, err = t.sql.ExecContext(t.ctx, query, args...)
	}
	if err != nil {
		return fmt.Errorf("writing the record: %w", err)
	}
	return nil
}

// row scans one row into dest and reports whether there was one.
func (t *tx) row(query string, args []any, dest ...any) (bool, error) {
	var row *sql.Row
	if stmt := t.stmts.get(query); stmt != nil {
		row = t.sql.StmtContext(t.ctx, stmt).QueryRowContext(t.ctx, args...)
	} else {
		row = t.sql.QueryRowContext(t.ctx, query, args...)
	}
	err := row.Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the record: %w", err)
	}
	return true, nil
}

// object reads one canonical object, the only column of query, into v.
func (t *tx) object(v any, query string, args ...any) (bool, error) {
	var body []byte
	ok, err := t.row(query, args, &body)
	if err != nil || !ok {
		return false, err
	}
	return true, decode(body, v)
}

// decode reads what encode wrote.
func decode(body []byte, v any) error {
	if err := canon.Unmarshal(body, v); err != nil {
		return fmt.Errorf("the record holds an object that does not decode: %w", err)
	}
	return nil
}

// bodies reads the canonical objects that are the only column of query.
func (t *tx) bodies(query string, args ...any) ([]canon.Raw, error) {
	rows, err := t.sql.QueryContext(t.ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("reading the record: %w", err)
	}
	defer rows.Close()
	out := []canon.Raw{}
	for rows.Next() {
		var body []byte
		if err := rows.Scan(&body); err != nil {
			return nil, fmt.Errorf("reading the record: %w", err)
		}
		out = append(out, body)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("reading the record: %w", err)
	}
	return out, nil
}

// A filter builds the where clause of a listing.
type filter struct {
	where string
	args  []any
}

// and adds a condition with one parameter unless value is empty.
func (f *filter) and(condition, value string) {
	if value == "" {
		return
	}
	f.where += " and " + condition
	f.args = append(f.args, value)
}

// page lists the bodies of table that f admits, in the order of receipt, after
// the object named after in the column id.
func (o *Org) page(ctx context.Context, table, id string, f filter, after string, limit int) ([]canon.Raw, error) {
	var out []canon.Raw
	err := o.view(ctx, func(t *tx) error {
		var from uint64
		if after != "" {
			ok, err := t.row("select seq from "+table+" where "+id+" = ?", []any{after}, &from)
			if err != nil {
				return err
			}
			if !ok {
				return api.Refuse(api.Invalid, "after: there is no %s %s", table, after)
			}
		}
		var err error
		out, err = t.bodies("select body from "+table+" where seq > ?"+f.where+" order by seq limit ?",
			append(append([]any{from}, f.args...), limit)...)
		return err
	})
	return out, err
}

// unknown is the answer to an id that the org does not hold, whoever else does.
func unknown(what, id string) error {
	return api.Refuse(api.NotFound, "%s %s: there is none", what, id)
}
