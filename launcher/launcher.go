//go:build linux

// Package launcher is the root half of a linked machine: the daemon that starts
// work for an agent that it does not trust (HIP-1172 A9).
//
// It listens on one Unix socket, speaks package ipc with one agent at a time, and
// for each activity that the owner's policy admits it builds a sandbox and runs a
// pinned binary in it. It does nothing else: no network, no store, no audit log.
//
// # Who is trusted with what
//
//	policy file, manifest, binaries  root's; what they say is done
//	agent (hanzo-link)               may ask for what the policy admits, see how it
//	                                 ends, and end it; nothing that it sends names a
//	                                 command, an environment or a path
//	store                            the agent's; opened beneath, without links, and
//	                                 handed on as descriptors
//	workload (hanzo-work)            nothing
//
// So an agent that somebody has taken over can start admitted work, feed it any
// data, fill its own socket, and kill everything it may kill anyway. It cannot
// raise a limit, run another binary, reach a file that is not its own, or keep
// work alive past its own end.
//
// # Life
//
// [Run] is one loop that owns all state; what waits (for a connection, a packet, a
// workload, the policy file) is a goroutine that tells the loop, and Run returns
// after all of them have. When the agent's connection closes or its process ends,
// every workload is killed at once. When Run's context ends, every workload is
// stopped, with its ten seconds, and then Run returns.
//
// # Crashes
//
// The launcher writes nothing down. Whatever an earlier life left running is killed
// and removed before a connection is answered. A spool directory stays, and keeps
// its activity from being run a second time. What is in it stays until the agent says
// that the record is sent; a removal that a crash cut short is asked for again.
//
// # Bounds
//
// A connection has one buffer of a packet. Packets, connections, starts and log
// lines are paced by token buckets, a hundred malformed packets close a connection,
// and a reply that the agent does not take within two seconds does as well. There
// are never more than 64 workloads, each of which keeps at most 2 MiB of output. What
// ended work has left in its spools counts against caps.disk of the policy, so that a
// start is refused when it and what is kept come to more.
package launcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/sandbox"
	"golang.org/x/sys/unix"
)

// Config is what a launcher needs to know. Paths are absolute and clean.
type Config struct {
	Listener *net.UnixListener // of network unixpacket; Run closes it
	Agent    User              // hanzo-link
	Work     User              // hanzo-work; its two numbers are the same

	Group  string // the control group of the agent's unit
	Run    string // the directory of run directories, root's; made when absent
	Spool  string // the directory of spool directories, root's, which the agent's group can read; made when absent
	Store  string // the directory that holds trees/
	Lib    string // the directory of binaries and their manifest, root's
	Policy string // the policy file, root's

	// Controllers are those without which nothing is started; nil means cpu, memory
	// and pids. A limit whose controller is not among them is not set, so anything
	// but nil is for a host whose owner knows that its work is not limited.
	Controllers []string
	// Starts bounds the starts that are tried; zero means 30 and then one a second.
	Starts Rate

	// Notify is told READY=1, WATCHDOG=1 and STOPPING=1, for a service manager; nil
	// is none. Watchdog is how often it wants to be told of the second; 0 is never.
	Notify   func(state string)
	Watchdog time.Duration

	Log *slog.Logger // nil discards
}

// User is a user of the system.
type User struct{ UID, GID uint32 }

func (c *Config) check() error {
	switch {
	case c.Listener == nil || c.Listener.Addr().Network() != "unixpacket":
		return errors.New("launcher: the socket is not a Unix socket of type SOCK_SEQPACKET: let the socket unit say ListenSequentialPacket")
	case c.Agent.UID == 0 || c.Agent.GID == 0 || c.Work.UID == 0:
		return errors.New("launcher: neither the agent nor a workload may be root")
	case c.Agent.UID == c.Work.UID:
		return errors.New("launcher: the agent and the workloads may not be one user")
	case c.Work.UID != c.Work.GID:
		return fmt.Errorf("launcher: the workloads' user %d has group %d: its number must be the user's", c.Work.UID, c.Work.GID)
	}
	return nil
}

const (
	// ceiling is how many workloads there are at most, whatever the policy says: each
	// takes a handful of descriptors and goroutines here.
	ceiling = 64
	// maxMalformed is how many malformed packets a connection may bring: an agent that
	// works sends none, and one of another version must not go on for ever.
	maxMalformed = 100
	// replyLimit is how long a reply may wait for room in the agent's socket: the
	// longest that the loop is away from a change of policy, which the watch tells
	// within 2 s and which begins to stop work within 5 s.
	replyLimit = 2 * time.Second
	// startLimit is how long building a sandbox may take. It takes milliseconds; a
	// first hash of the binary can take a second.
	startLimit = 30 * time.Second
	// recheckEvery is how often work is judged anew that was admitted by another
	// policy than the one that was told of last.
	recheckEvery = 2 * time.Second
)

// launcher is a Run.
type launcher struct {
	Config // immutable

	ctx      context.Context // Run's; immutable once the loop runs
	group    group
	binaries binaries
	quiet    *quiet
	starts   *bucket
	packets  *bucket
	tasks    sync.WaitGroup // every goroutine but the loop and a session's

	// What the loop is told.
	conns    chan *net.UnixConn
	policies chan reading
	events   chan event // from jobs, each of which is drained to its end
	sizes    chan sized
	removals chan removal

	// The loop's own.
	told    [32]byte // the sum of the policy that was told of last; zero when it is broken
	session *session // nil while no agent is connected
	jobs    []*job   // the oldest first; all are the session's

	kept       map[string]int64 // what ended activities have left in their spools, in bytes
	complete   bool             // kept has what earlier lives have left
	recounting bool             // some of kept are being counted again
	forgetting string           // the activity whose spool is being emptied
}

// reading is one reading of the policy file. Its sum is zero where err is not nil.
type reading struct {
	policy policy.Policy
	sum    [32]byte
	err    error
}

// Run serves agents until ctx ends or the listener breaks. It needs root.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.check(); err != nil {
		return err
	}
	defer cfg.Listener.Close()
	if cfg.Controllers == nil {
		cfg.Controllers = []string{"cpu", "memory", "pids"}
	}
	if cfg.Starts == (Rate{}) {
		cfg.Starts = defaultStarts
	}
	if cfg.Notify == nil {
		cfg.Notify = func(string) {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	l := &launcher{
		Config:   cfg,
		group:    group{cfg.Group, cfg.Controllers},
		binaries: binaries{dir: cfg.Lib},
		quiet:    newQuiet(cfg.Log),
		starts:   newBucket(cfg.Starts),
		packets:  newBucket(requestRate),
		conns:    make(chan *net.UnixConn),
		policies: make(chan reading),
		events:   make(chan event),
		sizes:    make(chan sized),
		removals: make(chan removal),
		kept:     make(map[string]int64),
	}
	// Descriptors are never taken (ipc.Conn), and since Linux 6.16 the kernel does not
	// even carry them here: the last close of one can wait, as a socket's with
	// SO_LINGER, and that would be in a thread of ours. An older one says no to this.
	setsockopt(cfg.Listener, unix.SO_PASSRIGHTS, 0)
	// What an earlier life left running ends now; what it left lying is removed when
	// an agent connects, before anything is started.
	if err := l.group.kill(); err != nil {
		return err
	}
	return l.run(ctx)
}

// setsockopt sets a number of the socket's, where the kernel knows it.
func setsockopt(l *net.UnixListener, option, value int) {
	if raw, err := l.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, value) })
	}
}

// run is the loop.
func (l *launcher) run(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { l.Listener.Close() })
	defer stop()
	l.tasks.Go(func() { cancel(l.accept(ctx)) })
	l.tasks.Go(func() { cancel(l.watch(ctx)) })
	l.ctx = ctx
	l.tasks.Go(func() { l.census(ctx) })
	impatient := time.After(countLimit)
	defer l.tasks.Wait()
	defer cancel(nil)

	var watchdog <-chan time.Time
	if l.Watchdog > 0 {
		ticker := time.NewTicker(l.Watchdog / 2)
		defer ticker.Stop()
		watchdog = ticker.C
	}
	recheck := time.NewTicker(recheckEvery)
	defer recheck.Stop()
	l.Log.Info("ready", "socket", l.Listener.Addr().String())
	l.Notify("READY=1")
	for {
		// What the owner changed goes before whatever an agent can bring, one that
		// takes each reply at the last moment too.
		select {
		case r := <-l.policies:
			l.apply(r)
		case <-recheck.C:
			l.recheck()
		default:
		}
		var requests <-chan incoming
		var lost <-chan struct{}
		if l.session != nil {
			lost = l.session.ctx.Done()
			if !l.starting() {
				requests = l.session.requests
			}
		}
		// An agent is answered once its starts are not refused for what is not counted.
		conns := l.conns
		if !l.complete && impatient != nil {
			conns = nil
		}
		select {
		case conn := <-conns:
			l.connect(conn)
		case r := <-requests:
			l.request(r)
		case e := <-l.events:
			l.report(e)
		case s := <-l.sizes:
			l.counted(s)
		case r := <-l.removals:
			l.removed(r)
		case <-impatient:
			impatient = nil
		case r := <-l.policies:
			l.apply(r)
		case <-recheck.C:
			l.recheck()
		case <-lost:
			l.disconnect()
		case <-watchdog:
			l.Notify("WATCHDOG=1")
		case <-ctx.Done():
			l.Notify("STOPPING=1")
			l.shutdown()
			if parent.Err() != nil {
				return nil
			}
			return context.Cause(ctx)
		}
	}
}

// accept takes connections. Its error is the listener's, or nil at ctx's end.
func (l *launcher) accept(ctx context.Context) error {
	for pace := newBucket(connectRate); pace.wait(ctx); {
		conn, err := l.Listener.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("launcher: the listening socket: %w", err)
		case err != nil:
			l.quiet.warn("a connection could not be taken", "err", err)
			continue
		}
		select {
		case l.conns <- conn:
		case <-ctx.Done():
			conn.Close()
		}
	}
	return nil
}

// watch follows the policy file.
func (l *launcher) watch(ctx context.Context) error {
	return policy.Watch(ctx, l.Policy, func(p policy.Policy, sum [32]byte, err error) {
		select {
		case l.policies <- reading{p, sum, err}:
		case <-ctx.Done():
		}
	})
}

// starting reports whether a start is under way: no request is read meanwhile.
func (l *launcher) starting() bool {
	return len(l.jobs) > 0 && !l.jobs[len(l.jobs)-1].started
}

// connect answers a new connection: it becomes the session, or is refused.
func (l *launcher) connect(conn *net.UnixConn) {
	peer, err := l.admit(conn)
	if err != nil {
		l.refuseConnection(conn, err)
		return
	}
	if l.session != nil {
		if !l.session.over() {
			peer.PidFD.Close()
			l.refuseConnection(conn, fmt.Errorf("one agent at a time: process %d is connected", l.session.peer.PID))
			return
		}
		// The agent has come back before its end was noticed.
		l.disconnect()
	}
	l.session = newSession(conn, peer, l.packets)
	l.session.unable = l.makeHost(l.session)
	ready := l.ready()
	l.quiet.info("agent connected", "pid", peer.PID, "kinds", ready.Kinds, "reasons", ready.Reasons)
	l.reply(ipc.Reply{Ready: &ready})
}

func (l *launcher) refuseConnection(conn *net.UnixConn, reason error) {
	l.quiet.warn("connection refused", "err", reason)
	c := ipc.NewConn(conn)
	c.SetWriteDeadline(time.Now().Add(replyLimit)) // its socket is empty: this does not wait
	c.WriteReply(ipc.Reply{Refused: &ipc.Refused{Code: activity.Denied, Message: clip(reason.Error())}})
	c.Close()
}

// ready says what may be started now, and why not the rest.
func (l *launcher) ready() ipc.Ready {
	ready := ipc.Ready{Version: ipc.Version, Kinds: []string{}, Reasons: []string{}}
	fail := func(err error) { ready.Reasons = append(ready.Reasons, clip(err.Error())) }

	p, _, err := policy.Load(l.Policy)
	if err != nil {
		fail(err)
	} else if len(p.Kinds) == 0 {
		fail(fmt.Errorf("%s admits no kind of work", l.Policy))
	}
	if l.session.unable != nil {
		fail(l.session.unable)
	}
	for _, kind := range p.Kinds {
		binary, ok := runs[kind]
		if !ok {
			fail(fmt.Errorf("%s: this launcher does not run it", kind))
			continue
		}
		if lacks := p.TrainFitLacks(); len(lacks) > 0 {
			fail(fmt.Errorf("%s: the policy gives it nothing: %s", kind, strings.Join(lacks, ", ")))
			continue
		}
		f, err := l.binaries.open(binary)
		if err != nil {
			fail(fmt.Errorf("%s: %w", kind, err))
			continue
		}
		f.Close()
		if l.session.host != nil {
			ready.Kinds = append(ready.Kinds, kind)
		}
	}
	return ready
}

// makeHost takes the control group back from the agent and prepares sandboxes in
// it, with nothing left in it of an earlier life. A stage parked ahead of the first
// start is also the proof that this host can build one.
func (l *launcher) makeHost(s *session) error {
	if err := l.group.take(); err != nil {
		return err
	}
	if err := errors.Join(ensureOwn(l.Run, 0, 0o700), ensureOwn(l.Spool, int(l.Agent.GID), 0o750)); err != nil {
		return err
	}
	stage, err := l.binaries.open("hanzo-stage")
	if err != nil {
		return err
	}
	defer stage.Close() // the host keeps a copy
	host, err := sandbox.New(sandbox.Config{Group: l.group.work(), Run: l.Run, Stage: stage, User: l.Work.UID, Log: l.Log})
	if err != nil {
		return err
	}
	if err := errors.Join(host.Sweep(), host.Park(s.ctx)); err != nil {
		return errors.Join(err, host.Close())
	}
	makeSpare(l.Spool)
	s.host = host
	return nil
}

// request does what the agent asks.
func (l *launcher) request(r incoming) {
	s := l.session
	switch {
	case r.err != nil:
		s.malformed++
		l.quiet.warn("malformed packet", "pid", s.peer.PID) // without what was in it
		l.refuse("", refusal{activity.Schema, r.err})
		if s.malformed >= maxMalformed {
			l.Log.Warn("connection closed: too many malformed packets", "pid", s.peer.PID, "packets", s.malformed)
			s.cancel()
		}
	case r.request.Stop != nil:
		j := l.find(r.request.Stop.Activity)
		if j == nil {
			l.refuse(r.request.Stop.Activity, refusal{activity.Lost, errors.New("no such activity runs here")})
			return
		}
		j.end(r.request.Stop.Reason)
	case r.request.Forget != nil:
		l.forgetSpool(r.request.Forget.Activity)
	default:
		l.start(r.request.Start)
	}
}

// start begins an activity, unless it runs already or may not.
func (l *launcher) start(asked *activity.Envelope) {
	if j := l.find(asked.Activity); j != nil {
		l.replyStarted(j)
		return
	}
	j, err := l.judge(asked)
	if err != nil {
		l.refuse(asked.Activity, err)
		return
	}
	s := l.session
	l.jobs = append(l.jobs, j)
	l.tasks.Go(func() { l.live(j, s) })
}

// report tells the agent what became of a job.
func (l *launcher) report(e event) {
	j := e.job
	switch {
	case e.err != nil:
		l.forget(j)
		l.keep(j)
		l.refuse(j.activity, e.err)
	case e.started:
		j.started, j.pidfd = true, e.pidfd
		l.Log.Info("started", "activity", j.activity, "group", e.group, "kind", j.ask.Kind, "org", j.ask.Org)
		l.replyStarted(j)
	default:
		l.forget(j)
		if e.left > 0 {
			l.kept[j.activity] = e.left
		} else if e.left < 0 {
			l.keep(j)
		}
		l.Log.Info("ended", "activity", j.activity, "state", e.ended.State, "reason", e.ended.Reason, "code", e.ended.Code, "exit", e.ended.Exit)
		l.replyEnded(e)
	}
}

// apply takes note of a change of the policy file.
func (l *launcher) apply(r reading) {
	l.told = r.sum
	if r.err != nil {
		l.Log.Error("the policy admits nothing", "err", r.err)
	} else {
		l.Log.Info("policy read", "kinds", r.policy.Kinds)
	}
	l.enforce()
	if l.session != nil {
		ready := l.ready()
		l.reply(ipc.Reply{Ready: &ready})
	}
}

// recheck closes a gap: a start reads the policy by itself, and the watch does not
// tell of a file that changed and changed back between two of its looks.
func (l *launcher) recheck() {
	if slices.ContainsFunc(l.jobs, func(j *job) bool { return j.policy != l.told }) {
		l.enforce()
	}
}

// enforce stops what the policy does not admit now, the newest first where it is
// a matter of how much. It reads the file, for what was told may be older than the
// reading by which the last start was judged.
func (l *launcher) enforce() {
	if len(l.jobs) == 0 {
		return
	}
	p, sum, broken := policy.Load(l.Policy)
	if broken != nil && l.told != [32]byte{} {
		return // in the middle of a change, of which the watch tells when it stands
	}
	var held policy.Held
	for _, j := range l.jobs {
		err := broken
		if err == nil {
			err = p.Admit(j.ask, held)
		}
		if err == nil {
			err = p.Capacity(j.ask, held, roomy)
		}
		j.policy = sum
		if err == nil {
			held = hold(held, j.ask)
			continue
		}
		if j.end(activity.Policy) {
			l.Log.Warn("stopping what the policy no longer admits", "activity", j.activity, "err", err)
		}
	}
}

// roomy is a host whose own size refuses nothing: a change of the policy is judged
// by its caps alone.
var roomy = policy.Free{Memory: 1 << 62, MemoryTotal: 1 << 62, Disk: 1 << 62, DiskTotal: 1 << 62}

// hold adds what a workload holds.
func hold(held policy.Held, a policy.Ask) policy.Held {
	held.Count++
	held.VRAM += a.VRAM
	held.Memory += a.Memory
	held.CPUs += a.CPUs
	held.Disk += a.Disk
	return held
}

// disconnect ends the session: all its work is killed, and over when it returns.
func (l *launcher) disconnect() {
	s := l.session
	s.cancel() // which kills its jobs
	for len(l.jobs) > 0 {
		e := <-l.events
		if e.started { // it is killed next, and told of once more
			e.job.pidfd = e.pidfd
			continue
		}
		l.forget(e.job)
		l.keep(e.job)
		l.Log.Info("killed with its agent", "activity", e.job.activity)
	}
	s.close()
	l.session = nil
	l.quiet.info("agent disconnected", "pid", s.peer.PID)
}

// shutdown stops all work with its ten seconds, unless the agent goes meanwhile,
// and ends the session.
func (l *launcher) shutdown() {
	for _, j := range l.jobs {
		j.end(activity.Cancel)
	}
	for len(l.jobs) > 0 {
		l.report(<-l.events)
	}
	if l.session != nil {
		l.disconnect()
	}
}

func (l *launcher) find(activity string) *job {
	for _, j := range l.jobs {
		if j.activity == activity {
			return j
		}
	}
	return nil
}

func (l *launcher) forget(j *job) {
	if j.pidfd != nil {
		j.pidfd.Close()
	}
	l.jobs = slices.DeleteFunc(l.jobs, func(other *job) bool { return other == j })
}

// held is what the running work holds.
func (l *launcher) held() (held policy.Held) {
	for _, j := range l.jobs {
		held = hold(held, j.ask)
	}
	return held
}
