package db

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
)

// A bench is a fleet with one node, evo, and a clock that a test moves.
type bench struct {
	t     *testing.T
	dir   string
	store *Store
	*Fleet

	clock sync.Mutex // guards at
	at    time.Time
}

const key = "9b1c0e6f2a4d4e0b8c7f3a5d1e2b6c90"

func newBench(t *testing.T) *bench {
	b := &bench{t: t, dir: t.TempDir(), at: time.Date(2026, 10, 22, 17, 4, 5, 0, time.UTC)}
	b.open()
	t.Cleanup(func() { b.store.Close() })
	if _, _, err := b.Link(t.Context(), "evo", api.WorkerPut{Key: key}, "acme/alice"); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) open() {
	b.t.Helper()
	var err error
	if b.store, err = Open(b.dir, b.time); err == nil {
		b.Fleet, err = b.store.Fleet("acme")
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) reopen() {
	b.t.Helper()
	if err := b.store.Close(); err != nil {
		b.t.Fatal(err)
	}
	b.open()
}

func (b *bench) time() time.Time {
	b.clock.Lock()
	defer b.clock.Unlock()
	return b.at
}

func (b *bench) pass(d time.Duration) {
	b.clock.Lock()
	defer b.clock.Unlock()
	b.at = b.at.Add(d)
}

var order = Order{
	Enqueue: api.Enqueue{Node: "evo", Kind: "train.fit", Input: canon.Raw("{}")}, Project: "default", Requester: "acme/alice",
}

func anything(api.Worker, int) error { return nil }

func (b *bench) enqueue() string {
	b.t.Helper()
	a, err := b.Enqueue(b.t.Context(), order, anything)
	if err != nil {
		b.t.Fatal(err)
	}
	return a.Activity
}

func (b *bench) report(act string, state activity.State) {
	b.t.Helper()
	if err := b.Report(b.t.Context(), "evo", act, api.StateReport{Key: key, State: state}, ""); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) get(act string) api.Activity {
	b.t.Helper()
	a, err := b.Fleet.Activity(b.t.Context(), act)
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

// remembered is what memory holds of an activity, which must be what the tables hold.
func (b *bench) remembered(act string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.nodes["evo"]
	return n != nil && n.live[act] != nil
}

// TestHalfRemoved: a node whose credential ended, and nothing else, because the
// process died there, is removed by the next opening.
func TestHalfRemoved(t *testing.T) {
	b := newBench(t)
	act := b.enqueue()
	if err := b.store.RevokeNode(t.Context(), "acme", "evo"); err != nil {
		t.Fatal(err)
	}
	b.reopen()
	if got := b.Workers(); len(got) != 0 {
		t.Errorf("nodes: %+v", got)
	}
	if a := b.get(act); a.State != activity.Stopped || a.Reason != activity.Unlink {
		t.Errorf("its activity is %s %s", a.State, a.Reason)
	}
	events, err := b.WorkloadEvents(t.Context(), 0, 10, 0, nil)
	if err != nil || len(events) != 1 || events[0].Reason != "unlink" {
		t.Errorf("events: %+v, %v", events, err)
	}
}

// TestHalfLinked: a node that never got its credential is not there after a restart,
// and can be linked again.
func TestHalfLinked(t *testing.T) {
	b := newBench(t)
	if err := b.update(t.Context(), func(t *tx) (func(), error) {
		return nil, t.exec("insert into node(id, key, linkedby, firstseen, lastclaim, facts) select 'half', key, linkedby, firstseen, '', facts from node")
	}); err != nil {
		t.Fatal(err)
	}
	b.reopen()
	if got := b.Workers(); len(got) != 1 || got[0].ID != "evo" {
		t.Errorf("nodes: %+v", got)
	}
	if _, credential, err := b.Link(t.Context(), "half", api.WorkerPut{Key: key}, "acme/alice"); err != nil || credential == "" {
		t.Errorf("linking it again: %v", err)
	}
}

// TestOneFails: of the writes in one transaction, the one that fails is undone and
// the others are not.
func TestOneFails(t *testing.T) {
	b := newBench(t)
	broken := errors.New("broken")
	insert := func(seq int, err error) *write {
		return newWrite(t.Context(), func(t *tx) (func(), error) {
			return nil, errors.Join(t.exec("insert into event(seq, body) values(?, x'7b7d')", seq), err)
		})
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	left := insert(4, nil)
	left.ctx = gone
	batch := []*write{insert(1, nil), insert(2, broken), insert(3, nil), left}
	// The writer's goroutine is idle, and only it commits otherwise.
	b.commit(batch)
	for i, want := range []error{nil, broken, nil, context.Canceled} {
		if got := <-batch[i].done; !errors.Is(got, want) {
			t.Errorf("write %d: %v, want %v", i, got, want)
		}
	}
	var seqs []string
	if err := b.look(t.Context(), func(t *tx) (err error) {
		seqs, err = t.texts("select seq from event order by seq")
		return err
	}); err != nil || strings.Join(seqs, " ") != "1 3" {
		t.Errorf("written: %v, %v", seqs, err)
	}
}

// TestCommitFails: when a transaction ends otherwise than by its commit, every write
// of it fails, and memory is what the tables are.
func TestCommitFails(t *testing.T) {
	b := newBench(t)
	kept := b.enqueue()
	b.report(kept, activity.Ready)
	first, second := newWrite(t.Context(), func(t *tx) (func(), error) {
		return func() { b.nodes["evo"].live["act_phantom"] = &live{} }, t.exec("delete from activity")
	}), newWrite(t.Context(), func(t *tx) (func(), error) { return nil, t.exec("rollback") })
	b.commit([]*write{first, second})
	if err := <-first.done; err == nil {
		t.Error("a write of a transaction that was not committed succeeded")
	}
	if err := <-second.done; err == nil {
		t.Error("the write that broke the transaction succeeded")
	}
	if !b.remembered(kept) || b.remembered("act_phantom") {
		t.Error("memory is not what the tables are")
	}
	if next := b.enqueue(); !b.remembered(next) {
		t.Error("what was enqueued after it is not remembered")
	}
	b.reopen()
	if !b.remembered(kept) || b.get(kept).State != activity.Ready {
		t.Error("the reopened fleet lacks what was committed")
	}
}

// TestStoodStill: a process that stood still counts silence from when it went on.
func TestStoodStill(t *testing.T) {
	b := newBench(t)
	act := b.enqueue()
	b.report(act, activity.Ready)
	b.pass(time.Hour)
	b.restartSilence()
	if err := b.sweep(); err != nil || b.get(act).State != activity.Ready {
		t.Errorf("it was lost, or %v", err)
	}
	b.pass((api.OnlineFor + 1) * time.Second)
	if err := b.sweep(); err != nil || b.get(act).State != activity.Failed {
		t.Errorf("it was not lost, or %v", err)
	}
}

// TestIndexed: no listing, and nothing that a claim or a report asks, reads a table
// from end to end or sorts it.
func TestIndexed(t *testing.T) {
	b := newBench(t)
	for query, args := range map[string][]any{
		"select body from activity where seq < ? order by seq desc limit ?":                               {9, 9},
		"select body from activity where seq < ? and node = ? order by seq desc limit ?":                  {9, "x", 9},
		"select body from activity where seq < ? and state = ? order by seq desc limit ?":                 {9, "x", 9},
		"select body from activity where seq < ? and node = ? and state = ? order by seq desc limit ?":    {9, "x", "y", 9},
		"select body from activity where id = ?":                                                          {"x"},
		"select body from event where seq > ? order by seq limit ?":                                       {9, 9},
		"select id from activity where node = ? and live order by seq":                                    {"x"},
		"select body from activity where id = ? and node = ? and key = ?":                                 {"x", "y", "z"},
		"select key, (select count(*) from activity where node = n.id and live) from node n where id = ?": {"x"},
		"update activity set state = ?, live = ?, body = ? where id = ?":                                  {"x", 1, "y", "z"},
		"update activity set started = 1 where id = ? and not started returning id":                       {"x"},
	} {
		rows, err := b.read.Query("explain query plan "+query, args...)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			sorts := strings.Contains(detail, "TEMP B-TREE") && !strings.Contains(query, "live order by seq") // a node's few live ones
			if strings.HasPrefix(detail, "SCAN") && detail != "SCAN CONSTANT ROW" || sorts {
				t.Errorf("%s: %s", query, detail)
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestClosedWhileAsked: a write that comes as the fleet closes is answered, and not
// left waiting for a writer that is gone.
func TestClosedWhileAsked(t *testing.T) {
	b := newBench(t)
	if err := b.store.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 * maxBatch { // by chance it is put where the writer would find it
		if err := b.update(t.Context(), func(*tx) (func(), error) { return nil, nil }); !errors.Is(err, errClosed) {
			t.Fatalf("update = %v", err)
		}
	}
}

// TestJudgedOnce: a claim reads what the node says of itself once, however many
// activities wait: the fleet stands still meanwhile.
func TestJudgedOnce(t *testing.T) {
	b := newBench(t)
	for range 20 {
		b.enqueue()
	}
	read := 0
	claimed, err := b.Claim(t.Context(), "evo", api.Claim{Key: key, Wait: 1}, func(api.WorkerFacts) func(activity.Envelope, int) bool {
		read++
		return func(_ activity.Envelope, running int) bool { return running < 3 }
	}, nil)
	if err != nil || len(claimed.Start) != 3 || read != 1 {
		t.Errorf("%+v, %v; read %d times", claimed, err, read)
	}
}
