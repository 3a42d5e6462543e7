// Package upload sends a spool to the control plane.
//
// It reads what the spool holds and the server has not acknowledged, and sends
// it in an order in which the server can accept it: artifacts, parents first;
// datasets, whose items are artifacts; gates; determinism reports, whose environments
// are artifacts; then each run's events, in seq order, at most [api.MaxEvents] a call
// (HIP-1334 §13.4). An
// acknowledgement is written to the spool after the server's 2xx and never
// before, so that a crash at any point costs a repetition, which the server
// answers as one: every write of the wire may be sent again.
//
// # Failures
//
// The network, a timeout, 408, 429 and 5xx are waited out: 1 s, doubling to 60 s,
// with up to a quarter more at random so that many machines do not return at
// once, and never less than a Retry-After of up to an hour; without limit, until the
// context ends.
// Every call has a deadline, and sending an artifact one on its progress, so that
// a server that accepts and then says nothing is a failure like any other.
//
// 413 halves what is sent in one call. Any other refusal of an object by a control plane
// is final (a page of a proxy's is none, and ends Drain with an error), and so is a file of ours that cannot be read: it stops that run, or the runs that
// name that object, and is reported; the others go on. A run that was stopped is tried again by the next Uploader.
//
// A missing or refused token and a spool that belongs to another org or was sent to
// another control plane stop everything, since nothing could be sent: [ErrSignIn],
// [spool.ErrForeign], [spool.ErrOtherServer].
//
// Nobody waits for an Uploader but who calls it: producers write to the spool and
// do not know of it. Several may send one spool; the server sees repetitions.
package upload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool"
)

// The back-off of HIP-1334 §13.4.
const (
	firstWait = time.Second
	lastWait  = 60 * time.Second

	// mostAsked is the most that is waited because somebody asks for it: a proxy that
	// says a year must not end what was to be sent tomorrow.
	mostAsked = time.Hour
)

// ErrSignIn reports that the server does not accept the token.
var ErrSignIn = errors.New("not signed in")

// Config is what an Uploader works with. Spool and Client are required.
type Config struct {
	Spool  *spool.Spool
	Client *api.Client

	// Runs says of which runs the events are sent: others that lie in the spool are
	// none of the sender's business. nil is all.
	Runs func(run string) bool

	// Again makes the first Drain forget what was acknowledged and send all of it,
	// also to another control plane than the one before.
	Again bool

	// Waiting is called before each wait: for how long, and the error of the call
	// that is then made again. nil means that nobody wants to know.
	Waiting func(wait time.Duration, err error)

	// Poll is how often Run looks for what is new; 0 means 2 s.
	Poll time.Duration

	// Stall is how long an artifact's upload may make no progress; 0 means 60 s.
	Stall time.Duration
}

// An Uploader sends one spool. It is used by one goroutine at a time.
type Uploader struct {
	spool  *spool.Spool
	client *api.Client
	wanted func(run string) bool // nil is every run
	again  bool
	notify func(time.Duration, error)
	poll   time.Duration
	stall  time.Duration
	sleep  func(context.Context, time.Duration) error

	streams map[string]*stream
	refused map[string]Refusal // by its subject
	report  Report
	trouble error // why the last call failed or could not be made; nil after one that was answered
}

// New returns an Uploader for c.
func New(c Config) *Uploader {
	u := &Uploader{
		spool: c.Spool, client: c.Client, wanted: c.Runs, again: c.Again, notify: c.Waiting, poll: c.Poll, stall: c.Stall, sleep: sleep,
		streams: make(map[string]*stream), refused: make(map[string]Refusal),
	}
	if u.notify == nil {
		u.notify = func(time.Duration, error) {}
	}
	if u.poll == 0 {
		u.poll = 2 * time.Second
	}
	if u.stall == 0 {
		u.stall = 60 * time.Second
	}
	return u
}

// A Report says what was acknowledged since the Uploader was made.
type Report struct {
	Artifacts, Datasets, Gates, Determinism, Events int

	// Refused is what the server will not take or the spool cannot give, and
	// what is therefore held back, in the order it was found.
	Refused []Refusal
}

// A Refusal is one object that stays here.
type Refusal struct {
	Subject string // "run NAME", "artifact ADDRESS", "dataset ID", "gate HASH", "determinism report HASH"
	Seq     uint64 // of a run: the first event that was not accepted; else 0
	Err     error
}

func (r Refusal) String() string {
	if r.Seq > 0 {
		return fmt.Sprintf("%s stopped at seq %d: %v", r.Subject, r.Seq, r.Err)
	}
	return fmt.Sprintf("%s: %v", r.Subject, r.Err)
}

// Pending reports whether there is anything to send. It calls nobody, and may find
// that something cannot be read: see [Uploader.Report].
func (u *Uploader) Pending() (bool, error) {
	w, err := u.plan()
	return !w.empty(), err
}

// Report says what was done so far.
func (u *Uploader) Report() Report { return u.report }

// Drain sends all that is unacknowledged and returns when nothing is left to
// send but what was refused. It begins by asking whom the token speaks for, also
// when there is nothing to send: that it returns nil means that the server of the
// acknowledgements answered. Its error says that it could not go on: the context
// ended, the token was refused, the spool is another org's or was sent to another
// control plane, the disk failed. What was sent until then is acknowledged and in
// the report.
func (u *Uploader) Drain(ctx context.Context) (Report, error) {
	if err := u.signIn(ctx); err != nil {
		return u.report, err
	}
	for {
		sent, err := u.pass(ctx)
		if err != nil || !sent {
			return u.report, err
		}
	}
}

// Run sends what there is and what is added, until ctx ends, and returns what it
// did. A failure that ends Drain is tried again a minute later. The error is what
// kept it from sending when ctx ended, nil when nothing did. It asks at once who is
// there, and after that calls nobody while there is nothing to send.
func (u *Uploader) Run(ctx context.Context) (Report, error) {
	_, err := u.Drain(ctx)
	for {
		wait := u.poll
		if err != nil && ctx.Err() == nil {
			u.trouble, wait = err, lastWait
		}
		if u.sleep(ctx, wait) != nil {
			return u.report, u.trouble
		}
		var todo work
		if todo, err = u.plan(); err == nil && !todo.empty() {
			_, err = u.Drain(ctx)
		}
	}
}

// signIn asks whom the token speaks for and who answers, and binds the spool to
// them.
func (u *Uploader) signIn(ctx context.Context) error {
	var id api.Identity
	err := u.try(ctx, "whoami", func(ctx context.Context) (err error) {
		id, err = u.client.Whoami(ctx)
		return err
	})
	if err != nil {
		return fatal(u.client, err)
	}
	if !u.again {
		return u.spool.FileUnder(id.Owner, id.Project, id.Server)
	}
	if err := u.spool.Refile(id.Owner, id.Project, id.Server); err != nil {
		return err
	}
	u.again = false
	clear(u.streams) // they began after what was acknowledged
	return nil
}

// pass sends what is unacknowledged now. It reports whether anything was.
func (u *Uploader) pass(ctx context.Context) (sent bool, err error) {
	work, err := u.plan()
	if err != nil || work.empty() {
		return false, err
	}
	before := u.report
	for _, a := range work.artifacts {
		if err := u.settle("artifact "+string(a.SHA256), 0, u.sendArtifact(ctx, a)); err != nil {
			return false, err
		}
	}
	for _, d := range work.datasets {
		if err := u.settle("dataset "+d.ID, 0, u.sendDataset(ctx, d)); err != nil {
			return false, err
		}
	}
	for _, g := range work.gates {
		if err := u.settle("gate "+string(g.hash), 0, u.sendGate(ctx, g)); err != nil {
			return false, err
		}
	}
	for _, d := range work.determinism {
		if err := u.settle("determinism report "+string(d.hash), 0, u.sendDeterminism(ctx, d)); err != nil {
			return false, err
		}
	}
	for _, s := range work.streams {
		err := u.sendRun(ctx, s)
		if err := u.settle("run "+s.run, s.next(), err); err != nil {
			return false, err
		}
	}
	after := u.report
	return after.Artifacts > before.Artifacts || after.Datasets > before.Datasets ||
		after.Gates > before.Gates || after.Determinism > before.Determinism || after.Events > before.Events, nil
}

// settle takes the outcome of sending one object: a refusal is kept and nil is
// returned; an error that concerns everything is returned.
func (u *Uploader) settle(subject string, seq uint64, err error) error {
	if err == nil {
		return nil
	}
	if !final(err) {
		return fatal(u.client, err)
	}
	if p, ok := errors.AsType[*api.Problem](err); ok && p.Seq > 0 {
		seq = p.Seq
	}
	r := Refusal{Subject: subject, Seq: seq, Err: err}
	u.refused[subject] = r
	u.report.Refused = append(u.report.Refused, r)
	return nil
}

// errHeld is why something is not sent: what it needs was refused.
var errHeld = errors.New("held back")

// final reports whether err concerns one object and will not pass.
func final(err error) bool {
	if errors.Is(err, spool.ErrCorrupt) || errors.Is(err, errHeld) {
		return true
	}
	p, ok := errors.AsType[*api.Problem](err)
	if !ok || p.Status == http.StatusUnauthorized {
		return false
	}
	// A 4xx without a code of ours is somebody else's: a proxy's or a portal's on the
	// way, which says nothing of the object, but for its size.
	return p.Status/100 == 4 && (p.Code != "" || p.Status == http.StatusRequestEntityTooLarge)
}

// fatal says what to do about an error that stops everything.
func fatal(c *api.Client, err error) error {
	p, ok := errors.AsType[*api.Problem](err)
	switch {
	case !ok:
		return err
	case p.Status == http.StatusUnauthorized:
		return fmt.Errorf("%w at %s: %w; put a token it knows in the file that HANZO_TOKEN_FILE names (default ~/.hanzo/token)", ErrSignIn, c.Base, err)
	case p.Code == "":
		return fmt.Errorf("%w; is %s a control plane?", err, c.Base)
	}
	return err
}

// try makes a call until it is answered for good, waiting as the package says.
func (u *Uploader) try(ctx context.Context, what string, call func(context.Context) error) error {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := call(ctx)
		if err == nil {
			u.trouble = nil
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		}
		again, after := retryable(err)
		if !again {
			return err
		}
		d := max(wait+rand.N(wait/4), min(after, mostAsked))
		u.trouble = err
		u.notify(d, err)
		if u.sleep(ctx, d) != nil {
			return fmt.Errorf("%s: %w; the last try: %w", what, context.Cause(ctx), err)
		}
	}
}

// retryable is api.Retryable with what happens on our side of a call: a stalled
// upload, and bytes that our own disk does not give.
func retryable(err error) (bool, time.Duration) {
	if errors.Is(err, errStalled) {
		return true, 0
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok || errors.Is(err, spool.ErrCorrupt) {
		return false, 0
	}
	return api.Retryable(err)
}

// sleep waits for d or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
