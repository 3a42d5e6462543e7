package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/agent/facts"
	"github.com/hanzoai/link/agent/store"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/durable"
)

// ErrUnlinked is [Run]'s error when the cloud says that the node was removed. All
// work has been stopped and the credential is gone.
var ErrUnlinked = errors.New("this machine was removed from its org: to link it again, run sudo hanzo link")

// Config is what an agent needs to know. Paths are absolute.
type Config struct {
	Dir    string // the state directory: key, credential, link.json, activities, audit.jsonl
	Spool  string // the directory of spool directories
	Store  string // the directory that holds trees/
	Policy string // the policy file; "" when there is no launcher
	Status string // where status.json is written; "" is nowhere

	// Dial connects to the launcher; nil is presence only, which offers nothing.
	Dial func() (Launcher, error)

	// Facts says what this host is; Run adds what it offers and the policy.
	Facts func(context.Context) (api.WorkerFacts, error)

	// HTTP is the transport of every call; nil is one of the agent's own, over
	// HTTP/1.1, without redirects.
	HTTP *http.Client

	// Wait is how long a claim waits, in whole seconds; 0 is 25 s.
	Wait time.Duration

	// Notify is told READY=1, WATCHDOG=1 and STOPPING=1, for a service manager; nil
	// is none. Watchdog is how often it wants to be told of the second, 0 is never.
	// It is told whenever a claim was answered or waited out, at least every 45 s, so
	// it must be longer than that.
	Notify   func(state string)
	Watchdog time.Duration

	Log *slog.Logger // nil discards
}

// A Launcher is a connection to the launcher: an [ipc.Conn], on a system that has
// one. One goroutine reads and another writes.
type Launcher interface {
	ReadReply() (ipc.Reply, []*os.File, error)
	WriteRequest(ipc.Request) error
	SetWriteDeadline(time.Time) error
	Close() error
}

// Run is the agent's life. It returns nil when ctx ends, [ErrUnlinked] when the node
// was removed, and any other error where it cannot go on: a link that cannot be read or
// on which another agent runs, a launcher of another version.
//
// When ctx ends it stops all work, says so to the cloud, and returns within 25 s.
// Work that ran is reported as lost, or as stopped by unlink when the file unlinking
// stands in Dir, which is how hanzo unlink says that it is at work; work that did not
// run yet stays in the journal for the next life. An agent that is connected while it
// is unlinked goes on sending records until the cloud has all of them, for at most
// 80 s, because nothing opens the cloud to them afterwards but a person's token.
func Run(ctx context.Context, cfg Config) error {
	return run(ctx, cfg, parts{disk: durable.On(durable.OS), pace: usual})
}

// parts are what an agent is made of and tests make otherwise.
type parts struct {
	disk     durable.Disk
	pace     pace
	keeper   keeper   // nil is the store
	recorder recorder // nil is records
}

// agent is the loop and its state.
type agent struct {
	Config
	parts
	link    Link
	key     string
	node    string // see nodeName
	client  *api.Client
	clock   clock
	journal journal
	audit   audit

	tasks sync.WaitGroup
	told  chan func() // what goroutines tell the loop, to be done there
	ctx   context.Context
	wake  time.Time // when the loop has something to do; zero is never
	again bool      // something was done that lets something else be done now
	err   error     // why Run ends, when it is not its context

	closing  bool
	unlinked bool // the cloud removed this node
	draining bool // closing, and records are still sent: afterwards nobody here can
	closeBy  time.Time

	works     map[string]*work
	order     []*work        // the same, in the order in which they were taken
	finished  map[string]int // forgotten activities, with the last claim asked before
	unsettled []*work        // whose processes the launcher kills, or has killed
	open      int            // works that are not closed
	sending   int            // reports in flight
	recording int
	clearing  *work    // whose spool the launcher is emptying
	kept      []string // activities of which something stays in the spool

	// Of the claims.
	claims    int // asked so far
	claiming  bool
	claimAt   time.Time
	restAt    time.Time // of a wait for claimAt: when the watchdog is fed
	claimWait backoff
	futile    backoff            // after answers that said nothing new, and at once
	stopClaim context.CancelFunc // nil when none is in flight

	// Of the registration.
	stale       bool // what the cloud knows of this node is not how it is
	refreshing  bool
	refreshAt   time.Time
	refreshWait backoff
	registered  bool     // in this life
	offered     []string // what the launcher could start, as it was told last

	// Of the launcher.
	conn     *connection
	dialing  bool
	dialAt   time.Time
	dialWait backoff
	absent   string   // why there is none
	policy   *reading // as it was when the launcher was ready last; nil before

	// Of the status.
	status       Status // what does not change, and the last claim
	shown        Status // as it was written
	unwritten    error
	problem      string // with the claims
	unregistered string // with the registration
	clockProblem string
	fault        string // with the disk
}

// reading is the policy file as it was read.
type reading struct {
	policy policy.Policy
	src    []byte
	sum    string // SHA-256 of src, hex
	err    error
}

// errPresence is why a machine offers nothing that only shows its presence.
var errPresence = errors.New("this machine is linked for presence only: it has no launcher, and runs nothing")

func run(ctx context.Context, cfg Config, p parts) error {
	if cfg.Wait == 0 {
		cfg.Wait = 25 * time.Second
	}
	if cfg.Notify == nil {
		cfg.Notify = func(string) {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if seconds := cfg.Wait / time.Second; seconds < api.MinWait || seconds > api.MaxWait {
		return fmt.Errorf("agent: a claim waits %d to %d s, not %v", api.MinWait, api.MaxWait, cfg.Wait)
	}
	a := &agent{
		Config: cfg, parts: p,
		told:  make(chan func()),
		works: make(map[string]*work), finished: make(map[string]int),
		journal: journal{filepath.Join(cfg.Dir, "activities"), p.disk},
		audit:   audit{path: filepath.Join(cfg.Dir, "audit.jsonl")},
	}
	if _, err := ReadLink(a.Dir); err != nil {
		return err
	}
	held, err := lock(a.Dir)
	if err != nil {
		return err
	}
	defer held.Close()
	if err := a.begin(); err != nil {
		return err
	}
	var cancel context.CancelFunc
	a.ctx, cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer a.tasks.Wait()
	defer a.hangUp()
	defer cancel()
	a.loop(ctx)
	if a.unlinked {
		a.unlink()
	}
	return a.err
}

// begin reads what an earlier life and hanzo link have left.
func (a *agent) begin() (err error) {
	if a.link, err = ReadLink(a.Dir); err != nil {
		return err
	}
	if a.key, err = readKey(a.Dir); err != nil {
		return err
	}
	credential := api.TokenFile(filepath.Join(a.Dir, credentialName))
	if _, err := credential(); err != nil {
		return fmt.Errorf("this machine's credential: %w: run sudo hanzo link", err)
	}
	a.node = nodeName(a.link)
	a.client = &api.Client{Base: a.link.API, Token: credential, HTTP: transport(a.HTTP, &a.clock)}
	if a.keeper == nil && a.Dial != nil {
		s, err := store.Open(a.Store)
		if err != nil {
			return err
		}
		a.keeper = trees{s, a.client, a.link.ID}
	}
	if a.recorder == nil {
		a.recorder = &records{client: a.client, node: a.link.ID, dir: a.Spool, log: a.Log}
	}
	a.status = Status{ID: a.link.ID, Org: a.link.Org, API: a.link.API, Version: facts.Version(), PID: os.Getpid(), Since: now()}
	a.noteLink()

	entries, faults := a.journal.open()
	for _, err := range faults {
		a.fault = err.Error()
		a.Log.Error("the journal", "err", err)
	}
	a.restore(entries)
	a.kept = a.keeps()

	// The first registration waits a moment for what the launcher offers.
	a.stale = true
	if a.Dial != nil {
		a.refreshAt = time.Now().Add(a.pace.hello)
	}
	return nil
}

// loop runs until there is nothing left to do.
func (a *agent) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	ended := ctx.Done()
	a.Log.Info("ready", "node", a.link.ID, "org", a.link.Org, "api", a.link.API, "activities", len(a.order))
	a.Notify("READY=1")
	for {
		a.wake = time.Time{}
		over := a.step()
		a.tellStatus()
		if over {
			return
		}
		wait := time.Duration(1<<63 - 1)
		if !a.wake.IsZero() {
			wait = max(0, time.Until(a.wake))
		}
		timer.Reset(wait)
		select {
		case f := <-a.told:
			f()
		case <-timer.C:
		case <-ended:
			ended = nil
			_, err := os.Lstat(filepath.Join(a.Dir, unlinkingName))
			a.shut(err == nil)
		}
	}
}

// step begins whatever can be begun now, and reports whether the loop is over. What it
// begins is a goroutine that waits and then tells the loop, so step never waits.
func (a *agent) step() bool {
	for a.again = true; a.again; {
		a.again = false
		a.connect()
		a.refresh()
		for _, w := range slices.Clone(a.order) {
			a.advance(w)
		}
		a.write()
		a.claim()
	}
	return a.over()
}

// due reports whether t has come, and sees to it that the loop wakes when it does.
func (a *agent) due(t time.Time) bool {
	if !time.Now().Before(t) {
		return true
	}
	if a.wake.IsZero() || t.Before(a.wake) {
		a.wake = t
	}
	return false
}

// spawn runs wait in a goroutine of its own, and what it returns in the loop.
func (a *agent) spawn(wait func() func()) {
	a.tasks.Go(func() { a.tell(wait()) })
}

// tell has the loop do f, and reports false when the loop is over.
func (a *agent) tell(f func()) bool {
	select {
	case a.told <- f:
		return true
	case <-a.ctx.Done():
		return false
	}
}

// shut begins the end: nothing new is begun, and all work is stopped.
func (a *agent) shut(unlink bool) {
	if a.closing {
		return
	}
	a.closing, a.closeBy = true, time.Now().Add(a.pace.end)
	if unlink && !a.unlinked && a.status.Connected {
		// Once the node is removed, its records are nobody's to send but a person's.
		a.draining, a.closeBy = true, time.Now().Add(a.pace.unlink)
	}
	a.Log.Info("ending", "unlink", unlink, "activities", len(a.order))
	a.Notify("STOPPING=1")
	a.feed()
	a.status.Connected = false
	if a.stopClaim != nil {
		a.stopClaim()
	}
	for _, w := range slices.Clone(a.order) {
		switch {
		case w.State.Ended():
		case unlink:
			a.stop(w, activity.Unlink)
		case w.launched():
			// It will be lost, as after a crash: of A5's reasons to be stopped, this
			// machine's restart is none.
			a.request(ipc.Request{Stop: &ipc.Stop{Activity: w.id(), Reason: activity.Cancel}})
		case w.cancel != nil:
			w.cancel()
		}
	}
	if unlink {
		a.note(a.linkLine(auditUnlink))
	}
}

// over reports whether the loop has come to its end.
func (a *agent) over() bool {
	if !a.closing {
		return a.err != nil
	}
	if a.due(a.closeBy) {
		return true
	}
	for _, w := range a.order {
		if w.launched() || w.cancel != nil {
			return false
		}
		// The node of an unlinked machine has no address any more.
		if w.State.Ended() && len(w.Reports) > 0 && !w.deferred && !a.unlinked {
			return false
		}
		if a.draining && !w.deferred && w.ran && (!w.recorded || w.uncleared() && a.conn != nil) {
			return false
		}
	}
	return true
}

// keeps finds the activities of which something is in the spool that no work of this
// agent's is to send: their records were refused, or are another link's.
func (a *agent) keeps() (ids []string) {
	if a.Dial == nil {
		return nil
	}
	entries, _ := os.ReadDir(a.Spool)
	for _, e := range entries {
		if activity.ValidID(e.Name()) && a.works[e.Name()] == nil {
			ids = append(ids, e.Name())
		}
	}
	return slices.DeleteFunc(ids, a.spoolEmpty)
}

// spoolEmpty reports whether nothing is in an activity's spool.
func (a *agent) spoolEmpty(id string) bool {
	dir, err := os.Open(filepath.Join(a.Spool, id))
	if err == nil {
		defer dir.Close()
		_, err = dir.Readdirnames(1)
		return errors.Is(err, io.EOF)
	}
	return errors.Is(err, fs.ErrNotExist)
}

// unlink leaves nothing behind that the cloud has ended. The policy, the store, the
// spools and the audit log are the owner's.
func (a *agent) unlink() {
	for _, w := range a.order {
		a.journal.remove(w.id())
	}
	if err := os.Remove(filepath.Join(a.Dir, credentialName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.Log.Error("the credential, which is of no more use, cannot be removed", "err", err)
	}
	if err := a.disk.SyncDir(a.Dir); err != nil {
		a.Log.Error("the credential's removal may not last", "err", err)
	}
}

// note appends to the audit log.
func (a *agent) note(l line) {
	if err := a.audit.add(l); err != nil {
		a.fault = err.Error()
		a.Log.Error("the audit log cannot be written", "err", err)
	}
}

func (a *agent) linkLine(event string) line {
	return line{Event: event, API: a.link.API, Node: a.link.ID, Org: a.link.Org, LinkedBy: a.link.LinkedBy}
}

// noteLink audits a link that no life before has.
func (a *agent) noteLink() {
	path := filepath.Join(a.Dir, "linked")
	if before, err := readOwn(path); err == nil && strings.TrimSpace(string(before)) == a.link.Linked {
		return
	}
	a.note(a.linkLine(auditLink))
	if err := a.disk.WriteFile(path, []byte(a.link.Linked+"\n"), 0o600); err != nil {
		a.fault = err.Error()
		a.Log.Error("the link will be audited again", "err", err)
	}
}

// tellStatus writes the status when it is another.
func (a *agent) tellStatus() {
	if a.Status == "" {
		return
	}
	s := a.status
	if a.conn != nil && a.conn.ready != nil {
		s.Offers, s.Reasons = a.conn.ready.Kinds, a.conn.ready.Reasons
	} else if a.absent != "" {
		s.Reasons = []string{a.absent}
	}
	s.Offers, s.Reasons = append([]string{}, s.Offers...), append([]string{}, s.Reasons...)
	s.Kept = append([]string{}, a.kept[:min(len(a.kept), maxKept)]...)
	s.Activities = []StatusActivity{}
	for _, w := range a.order {
		if w.closed {
			if w.ran && !w.recorded {
				s.Unsent++
			}
			continue
		}
		shown := StatusActivity{Activity: w.id(), Kind: w.Envelope.Kind, State: w.State, Since: w.Taken}
		if w.State == activity.Pulling { // of which it is the progress
			shown.Done, shown.Total = w.done.Done, w.done.Total
		}
		s.Activities = append(s.Activities, shown)
	}
	var problems []string
	for _, p := range []string{a.problem, a.unregistered, a.clockProblem, a.fault} {
		if p != "" {
			problems = append(problems, p)
		}
	}
	s.Problem = strings.Join(problems, "; ")
	if reflect.DeepEqual(s, a.shown) {
		return
	}
	err := s.write(a.Status)
	if err != nil && a.unwritten == nil { // once
		a.Log.Error("the status cannot be written", "err", err)
	}
	a.unwritten, a.shown = err, s
}
