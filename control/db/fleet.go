package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
)

// A Fleet is the linked machines of one org, the activities asked of them, and the
// feed of what became of those. It is the file compute.db.
//
// # What is where
//
// The tables are the truth: a transition, its event, and what makes a repeated
// report a repeat are one row or one transaction. Memory repeats what is committed
// of the nodes and of the live activities, and is changed only after a commit, in
// the order of commits, before whoever wrote is answered. A claim reads memory
// alone; it touches the disk only when it changes something.
//
// Every write goes through one goroutine, which takes what is waiting into one
// transaction, each write behind a savepoint of its own: a thousand nodes that
// report at once wait for a few syncs and not for a thousand.
//
// # Whose an activity is
//
// An activity is bound to the install that it was asked of, by the key of that: an id
// is a name, and after a removal it can be another machine's. To that one the
// activities of the first are as unknown as any other node's. An install that is
// linked again under its id has its own, and can report and write the record of them.
//
// # Crashes
//
// After a kill at any moment
//
//   - what was acknowledged is there; what was not is there whole or not at all. A
//     report that is sent again is answered as the first was. An enqueue whose
//     answer was lost may have been made: a list shows it.
//   - an activity whose envelope went out and of which no state came is still
//     requested, and the next claim gets the envelope again.
//   - what is to end still says so, and every claim is told until it has.
//   - who was heard of when is not known, for that is not written on each claim: the
//     clock of silence begins at the opening, so that nothing is lost early. The
//     instant of a node's last claim lags by up to half a minute.
//   - a node that is being removed has lost its credential first, which is in
//     another file; the opening finds it without one and ends its removal.
//
// # Silence
//
// An activity past requested is failed with lost when its node claims without
// naming it and nothing named it for [Silence]: one claim may have been older than
// the report that it misses. The activities of a node that has not claimed for
// [api.OnlineFor] seconds are failed with lost within a second or so, and those that
// nobody took by their deadline with deadline. When this process itself stood still,
// silence begins anew.
//
// # Concurrency
//
// Methods may be called concurrently. Channels in memory wake held claims and
// polls; a fleet served by more than one process would put a bus in their place.
type Fleet struct {
	// immutable once open
	org    string
	tokens *Tokens
	now    func() time.Time
	write  *sql.DB // one connection, of the writer
	read   *sql.DB
	stmts  *statements // the writer's

	writes  chan *write
	closing chan struct{}
	closed  chan struct{}

	linking sync.Mutex // held while a node and its credential change together

	mu    sync.Mutex // guards what follows
	nodes map[string]*node
	news  chan struct{} // closed and replaced when events were committed
	since time.Time     // silence counts from no earlier
	stale bool          // a commit failed, and memory may lack what it wrote
}

// Silence is how long nothing must have named an activity before a claim without
// it says that it is lost: the longest wait of a claim and, after it, as long as its
// answer may take.
const Silence = (api.MaxWait + 15) * time.Second

const (
	repeat    = 2 * time.Second  // between two answers that stop the same activity
	maxClaims = 8                // of one node held at once: each renewed connection leaves one behind
	sweepTick = time.Second      // between two looks at deadlines and at silent nodes
	flushTick = 30 * time.Second // between two notes of when nodes claimed
	stall     = 10 * time.Second // a look that comes this late finds that the process stood still
)

// A node is what memory knows of one machine.
type node struct {
	id, key, linkedBy, firstSeen string

	facts     api.WorkerFacts
	lastClaim time.Time // zero before the first
	noted     time.Time // the lastClaim that is written

	live   map[string]*live
	claims map[*claim]struct{}
	told   map[string]time.Time // when a claim was last told to stop an activity
	wake   chan struct{}        // closed and replaced when a held claim should look
}

// A live is an activity that has not ended.
type live struct {
	api.Activity
	seq   uint64
	due   time.Time
	heard time.Time // when a claim or a report last named it
}

var fleetSchema = []string{`
create table node(
	id        text primary key,
	key       text not null,
	linkedby  text not null,
	firstseen text not null,
	lastclaim text not null, -- lags behind; empty before the first
	facts     blob not null
) strict;

create table activity(
	seq     integer primary key,
	id      text not null unique,
	node    text not null,
	key     text not null, -- of the install that it was asked of
	state   text not null,
	live    integer not null,
	started integer not null, -- 1: its event has been written
	body    blob not null
) strict;
create index activity_live on activity(node) where live;
create index activity_node on activity(node, seq);
create index activity_state on activity(state, seq);
create index activity_both on activity(node, state, seq);

create table event(seq integer primary key, body blob not null) strict;
`}

// Fleet opens the fleet of one org, which must come from a token.
func (s *Store) Fleet(org string) (*Fleet, error) {
	if !ValidOrg(org) {
		return nil, fmt.Errorf("org %q is not a name this store can hold", org)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.fleets[org]; f != nil {
		return f, nil
	}
	f, err := openFleet(s, org)
	if err != nil {
		return nil, fmt.Errorf("opening the fleet of %s: %w", org, err)
	}
	s.fleets[org] = f
	return f, nil
}

func openFleet(s *Store, org string) (*Fleet, error) {
	dir := filepath.Join(s.dir, "orgs", org)
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	f := &Fleet{
		org: org, tokens: s.Tokens, now: s.now,
		writes: make(chan *write, maxBatch), closing: make(chan struct{}), closed: make(chan struct{}),
		news:  make(chan struct{}),
		stmts: &statements{held: make(map[string]*sql.Stmt), wanted: make(map[string]bool)},
	}
	path := filepath.Join(dir, "compute.db")
	var err error
	if f.write, err = openSQLite(path, 1, false); err != nil {
		return nil, err
	}
	ctx := context.Background()
	if err := migrate(ctx, f.write, fleetSchema); err != nil {
		f.write.Close()
		return nil, err
	}
	if f.read, err = openSQLite(path, 4, true); err != nil {
		f.write.Close()
		return nil, err
	}
	err = durable.SyncDir(dir)
	if err == nil {
		err = f.load(ctx)
	}
	if err == nil {
		err = f.finishRemovals(ctx)
	}
	if err == nil {
		err = f.sweep()
	}
	if err != nil {
		return nil, errors.Join(err, f.read.Close(), f.write.Close())
	}
	go f.run()
	return f, nil
}

// close ends the writer and notes when nodes claimed.
func (f *Fleet) close() error {
	close(f.closing)
	<-f.closed
	return errors.Join(f.flush(), f.read.Close(), f.write.Close())
}

// load makes memory repeat the tables. Every node and activity counts as heard of
// now.
func (f *Fleet) load(ctx context.Context) error {
	now := f.now()
	nodes := make(map[string]*node)
	rows, err := f.write.QueryContext(ctx, "select id, key, linkedby, firstseen, lastclaim, facts from node")
	if err != nil {
		return fmt.Errorf("reading the nodes: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		n := newNode()
		var last string
		var facts []byte
		if err := rows.Scan(&n.id, &n.key, &n.linkedBy, &n.firstSeen, &last, &facts); err != nil {
			return fmt.Errorf("reading the nodes: %w", err)
		}
		if err := decode(facts, &n.facts); err != nil {
			return err
		}
		if last != "" {
			if n.lastClaim, err = time.Parse(time.RFC3339, last); err != nil {
				return fmt.Errorf("node %s: its last claim: %w", n.id, err)
			}
			n.noted = n.lastClaim
		}
		nodes[n.id] = n
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("reading the nodes: %w", err)
	}
	rows.Close()

	rows, err = f.write.QueryContext(ctx, "select seq, body from activity where live")
	if err != nil {
		return fmt.Errorf("reading the activities: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var seq uint64
		var body []byte
		if err := rows.Scan(&seq, &body); err != nil {
			return fmt.Errorf("reading the activities: %w", err)
		}
		var a api.Activity
		if err := decode(body, &a); err != nil {
			return err
		}
		n := nodes[a.Node]
		if n == nil {
			return fmt.Errorf("activity %s lives on node %s, which there is none", a.Activity, a.Node)
		}
		if n.live[a.Activity], err = newLive(a, seq, now); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("reading the activities: %w", err)
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	for id, old := range f.nodes { // after a commit that failed: those that wait go on waiting
		if n := nodes[id]; n != nil {
			n.claims, n.told, n.lastClaim = old.claims, old.told, old.lastClaim
		}
		old.signal()
	}
	f.nodes, f.since, f.stale = nodes, now, false
	f.announce()
	return nil
}

func newNode() *node {
	return &node{
		live: make(map[string]*live), claims: make(map[*claim]struct{}), told: make(map[string]time.Time),
		wake: make(chan struct{}),
	}
}

func newLive(a api.Activity, seq uint64, now time.Time) (*live, error) {
	due, err := a.Due()
	return &live{Activity: a, seq: seq, due: due, heard: now}, err
}

// signal lets the held claims of n look again. f.mu is held.
func (n *node) signal() {
	close(n.wake)
	n.wake = make(chan struct{})
}

// announce lets those that poll for events look again. f.mu is held.
func (f *Fleet) announce() {
	close(f.news)
	f.news = make(chan struct{})
}

// online reports whether a claim of n landed lately.
func (n *node) online(now time.Time) bool {
	return !n.lastClaim.IsZero() && now.Sub(n.lastClaim) <= api.OnlineFor*time.Second
}

// worker is n as its org sees it. f.mu is held.
func (n *node) worker(now time.Time) api.Worker {
	w := api.Worker{
		ID: n.id, WorkerFacts: n.facts, Status: api.Offline, LinkedBy: n.linkedBy, FirstSeen: n.firstSeen,
		Workloads: []api.Workload{},
	}
	if n.online(now) {
		w.Status = api.Online
	}
	if !n.lastClaim.IsZero() {
		w.LastClaim = instant(n.lastClaim)
	}
	for _, id := range slices.Sorted(maps.Keys(n.live)) {
		l := n.live[id]
		w.Workloads = append(w.Workloads, api.Workload{Activity: id, Kind: l.Kind, State: l.State})
	}
	return w
}

// Workers answers every node in the order of their ids.
func (f *Fleet) Workers() []api.Worker {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	out := make([]api.Worker, 0, len(f.nodes))
	for _, n := range f.nodes {
		out = append(out, n.worker(now))
	}
	slices.SortFunc(out, func(a, b api.Worker) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Worker answers one node.
func (f *Fleet) Worker(id string) (api.Worker, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[id]
	if n == nil {
		return api.Worker{}, unknown("node", id)
	}
	return n.worker(f.now()), nil
}

// Link registers a node for a person, or links the same install again, and mints
// its credential, whose first use ends the one before. An id that another install holds
// is a conflict.
func (f *Fleet) Link(ctx context.Context, id string, in api.WorkerPut, linkedBy string) (api.Worker, string, error) {
	f.linking.Lock()
	defer f.linking.Unlock()
	facts, err := canon.Marshal(in.WorkerFacts)
	if err != nil {
		return api.Worker{}, "", err
	}
	err = f.update(ctx, func(t *tx) (func(), error) {
		key, firstSeen := "", t.received
		held, err := t.row("select key, firstseen from node where id = ?", []any{id}, &key, &firstSeen)
		if err != nil {
			return nil, err
		}
		if held && key != in.Key {
			return nil, api.Refuse(api.Conflict, "node %s is another install's; choose another id, or remove it first", id)
		}
		err = t.exec(`insert into node(id, key, linkedby, firstseen, lastclaim, facts) values(?, ?, ?, ?, '', ?)
			on conflict(id) do update set linkedby = excluded.linkedby, facts = excluded.facts`,
			id, in.Key, linkedBy, firstSeen, facts)
		return func() { f.seat(id, in, linkedBy, firstSeen) }, err
	})
	if err != nil {
		return api.Worker{}, "", err
	}
	credential, err := f.tokens.MintNode(ctx, f.org, id, in.Key, linkedBy)
	if err != nil {
		return api.Worker{}, "", err
	}
	w, err := f.Worker(id)
	return w, credential, err
}

// seat puts what a registration said into memory. f.mu is held.
func (f *Fleet) seat(id string, in api.WorkerPut, linkedBy, firstSeen string) {
	n := f.nodes[id]
	if n == nil {
		n = newNode()
		f.nodes[id] = n
	}
	n.id, n.key, n.linkedBy, n.firstSeen, n.facts = id, in.Key, linkedBy, firstSeen, in.WorkerFacts
	n.signal()
}

// Refresh takes what a node says of itself now. One that says nothing new writes
// nothing.
func (f *Fleet) Refresh(ctx context.Context, id string, in api.WorkerPut) (api.Worker, error) {
	facts, err := canon.Marshal(in.WorkerFacts)
	if err != nil {
		return api.Worker{}, err
	}
	err = f.update(ctx, func(t *tx) (func(), error) {
		var key, linkedBy, firstSeen string
		var held []byte
		ok, err := t.row("select key, linkedby, firstseen, facts from node where id = ?", []any{id}, &key, &linkedBy, &firstSeen, &held)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, removed(id)
		}
		if key != in.Key {
			return nil, wrongKey(id)
		}
		if string(held) == string(facts) {
			return nil, nil
		}
		err = t.exec("update node set facts = ? where id = ?", facts, id)
		return func() { f.seat(id, in, linkedBy, firstSeen) }, err
	})
	if err != nil {
		return api.Worker{}, err
	}
	return f.Worker(id)
}

func removed(id string) error {
	return api.Refuse(api.Gone, "node %s was removed; to link the machine again, run sudo hanzo link on it", id)
}

func wrongKey(id string) error {
	return api.Refuse(api.Conflict, "node %s is the install of another key", id)
}

// Unlink removes a node: its credential ends, its live activities are stopped, and
// its held claims are told. Whether the caller may is asked with who linked it.
func (f *Fleet) Unlink(ctx context.Context, id string, may func(linkedBy string) error) error {
	f.linking.Lock()
	defer f.linking.Unlock()
	w, err := f.Worker(id)
	if err != nil {
		return err
	}
	if err := may(w.LinkedBy); err != nil {
		return err
	}
	if err := f.tokens.RevokeNode(ctx, f.org, id); err != nil {
		return err
	}
	// From here on it is decided: the next opening would go on.
	return f.update(context.WithoutCancel(ctx), func(t *tx) (func(), error) { return f.remove(t, id) })
}

// remove takes a node out of the tables.
func (f *Fleet) remove(t *tx, id string) (func(), error) {
	ids, err := t.texts("select id from activity where node = ? and live order by seq", id)
	if err != nil {
		return nil, err
	}
	for _, act := range ids {
		a, ok, err := t.activity(act)
		if err != nil {
			return nil, err
		}
		if ok {
			a.State, a.Reason, a.Stopping, a.Progress = activity.Stopped, activity.Unlink, "", nil
			if err := t.settle(&a); err != nil {
				return nil, err
			}
		}
	}
	if err := t.exec("delete from node where id = ?", id); err != nil {
		return nil, err
	}
	return func() {
		if n := f.nodes[id]; n != nil {
			delete(f.nodes, id)
			n.signal()
		}
	}, nil
}

// finishRemovals removes the nodes that have no credential: the process died
// between the two, or before the first one was made.
func (f *Fleet) finishRemovals(ctx context.Context) error {
	known, err := f.tokens.nodes(ctx, f.org)
	if err != nil {
		return err
	}
	var batch []*write
	for id := range f.nodes {
		if !known[id] {
			batch = append(batch, newWrite(ctx, func(t *tx) (func(), error) { return f.remove(t, id) }))
		}
	}
	return f.commitAll(batch)
}

// nodes answers which nodes of an org have a credential.
func (t *Tokens) nodes(ctx context.Context, org string) (map[string]bool, error) {
	rows, err := t.db.QueryContext(ctx, "select id from node where org = ? and not revoked", org)
	if err != nil {
		return nil, fmt.Errorf("reading the credentials of nodes: %w", err)
	}
	defer rows.Close()
	known := make(map[string]bool)
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("reading the credentials of nodes: %w", err)
		}
		known[id] = true
	}
	return known, rows.Err()
}
