// Package linkcmd is hanzo link and hanzo unlink: it makes a machine one that a
// control plane may ask for work, as far as its owner's policy admits, and takes that
// back (HIP-1172 A1).
//
// # What is done, in which order
//
// Everything that can be known beforehand is checked before anything is written. Then
// the machine is registered, with the session of the person who links and for that one
// call; its key is on disk before the call, so that one whose answer is lost can be
// made again. Only then are programs and units installed, credential and policy
// written, and the services started. Unlinking goes the other way: the services, and
// with them all work, are stopped before the control plane is told, and what the
// machine knows itself by is deleted when the control plane has confirmed.
//
// # Crashes
//
// Each step looks at what is there. A command that was killed is mended by running it
// again, or by running the other one; there is no other repair. Two at once exclude
// each other by a lock that is root's.
//
// # Who is trusted
//
// The state directory is root's, and the agent may make files there. What it made is
// read without following links and only where it is the agent's own, so that root
// cannot be made to send what the agent could not have read itself.
//
// # Presence
//
// A host that cannot build the sandbox is linked without root, users, launcher and
// policy: the agent runs as the person who links, and the machine is seen in the fleet
// and offers nothing. Its files are in ~/.hanzo/link.
package linkcmd

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/agent"
	"github.com/hanzoai/link/agent/facts"
	"github.com/hanzoai/link/cmd/internal/logincmd"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/systemd"
)

// Link is hanzo link.
var Link = term.Command{
	Name:  "link",
	Short: "link this machine to your org; it offers nothing until its policy says so",
	Long: `
It takes no flags and no arguments: sudo hanzo link. With the login of the person who
types it (hanzo login), or with $HANZO_API and $HANZO_TOKEN_FILE, it registers this
machine, once. Then it installs the agent, the launcher and what they run, root's, in
/usr/local/lib/hanzo/link, with systemd units and the users hanzo-link and hanzo-work;
writes /etc/hanzo/link/policy.json, which admits nothing, unless there is one; starts
the services; and says what this host would offer and why not the rest.

Run again, it replaces what is not current and leaves the rest alone. The programs come
from the folder of this one.

On a host that cannot build the sandbox (not Linux, or without control groups v2 alone)
it needs no root and links for presence only: the agent runs as you, from ~/.hanzo/link,
and the machine is listed and offers nothing.`,
	Setup: func(*flag.FlagSet) func(context.Context, term.IO, []string) error {
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) > 0 {
				return term.Usagef("link: takes no flags and no arguments, and got %q: run sudo hanzo link", args)
			}
			return link(ctx, streams.Out)
		}
	},
}

// Unlink is hanzo unlink.
var Unlink = term.Command{
	Name:  "unlink",
	Short: "end this machine's work and take it out of your org",
	Long: `
It stops every workload and waits for it, and up to a minute and a half for the agent to
send what was recorded; tells the control plane that the machine is gone, which ends its
credential; and removes the services and their programs. The policy, the audit log, the
store and what was not sent stay, and it says how a person sends that.

Where the control plane cannot be told, the services go all the same; the command then
fails, and is to be run again.`,
	Setup: func(*flag.FlagSet) func(context.Context, term.IO, []string) error {
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) > 0 {
				return term.Usagef("unlink: takes no flags and no arguments, and got %q: run sudo hanzo unlink", args)
			}
			return unlink(ctx, streams.Out)
		}
	},
}

// warning is A1's: nothing detects what it names.
const warning = `warning: whatever the cloud runs on this machine by another way, as a user who can
become root (a shell that is published, a CI runner, an agent loop, a node that admits
system.run), can change the policy and all that it guards. Do not have both, unless it
runs as a user who cannot become root. Nothing here detects it.`

// callTime is how long the control plane may take over linking or unlinking.
const callTime = 30 * time.Second

// The files of a link that this package touches itself, in the state directory.
const (
	keyFile        = "key"
	credentialFile = "credential"
	linkFile       = "link.json"
	markerFile     = "unlinking" // while hanzo unlink is at work: the agent's end is then that
	journalFolder  = "activities"
	auditedFile    = "linked"  // which link the audit log has
	lockedFile     = "running" // locked while an agent runs
)

// A place is where a link is kept, and how it is made.
type place struct {
	dir     string // the state directory
	again   string // the command that links, as errors name it
	session func() (logincmd.Saved, error)
	facts   func(context.Context) (api.WorkerFacts, error)

	// credential is the node's, where there is a link: what is no file of the agent's own
	// is not read.
	credential func() (string, error)

	http *http.Client  // nil is the client's own
	wait time.Duration // for an answer of the control plane; 0 is callTime
}

// held is the link that stands here. There is none where the credential or link.json
// is missing or broken, for either alone is of use to nobody.
func (p place) held() (l agent.Link, held bool) {
	if _, err := os.Lstat(filepath.Join(p.dir, credentialFile)); err != nil {
		return l, false
	}
	l, err := agent.ReadLink(p.dir)
	return l, err == nil
}

// before is the link that stands here, or the session with which to make one.
func (p place) before() (l agent.Link, session logincmd.Saved, err error) {
	l, held := p.held()
	if held {
		return l, session, p.elsewhere(l)
	}
	session, err = p.login()
	return agent.Link{}, session, err
}

// make registers the machine, unless l says that it is linked and the control plane
// takes its credential, and has settle put in place what the link needs; an empty
// credential is the one that is there. A machine that the control plane turns out to
// have removed meanwhile is registered anew, once: its agent has found that out, and has
// deleted the credential.
func (p place) make(ctx context.Context, out io.Writer, l agent.Link, session logincmd.Saved,
	settle func(context.Context, io.Writer, agent.Link, string) error) error {
	if l != (agent.Link{}) {
		fmt.Fprintf(out, "linked to %s at %s as %s, by %s\n", l.Org, l.API, l.ID, l.LinkedBy)
		refused := p.refused(ctx, l)
		if refused == nil {
			err := settle(ctx, out, l, "")
			if !errors.Is(err, errRemoved) {
				return err
			}
			refused = err
		}
		var err error
		if session, err = p.login(); err != nil {
			return fmt.Errorf("%w: to link it again: %w", refused, err)
		}
		fmt.Fprintf(out, "%s; registering it anew\n", refused)
	}
	l, credential, err := p.register(ctx, session)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "registered with %s at %s as %s, by %s\n", l.Org, l.API, l.ID, l.LinkedBy)
	if err = settle(ctx, out, l, credential); errors.Is(err, errRemoved) {
		err = fmt.Errorf("%w meanwhile: run %s again", errRemoved, p.again)
	}
	return err
}

// refused is why the credential that stands here is of no use; nil is that it is, or that
// the control plane cannot be asked now, which the agent goes on to do. What is asked for
// is a file of an activity that there is not: that changes nothing there, and is not
// found, by a node's credential alone.
func (p place) refused(ctx context.Context, l agent.Link) error {
	credential, err := p.credential()
	switch {
	case err != nil:
		return fmt.Errorf("the credential of this machine cannot be used: %w", err)
	case credential == "" || strings.ContainsFunc(credential, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return fmt.Errorf("%s holds no credential", filepath.Join(p.dir, credentialFile))
	case api.Private("the control plane", l.API) != nil:
		return nil
	}
	client := p.node(l, credential)
	call, cancel := p.deadline(ctx)
	defer cancel()
	_, err = client.NodeTree(call, l.ID, activity.NewID(time.Now()), strings.Repeat("0", 64))
	switch {
	case api.Is(err, api.Gone):
		return errRemoved
	case api.Is(err, api.Unauthorized), api.Is(err, api.Forbidden):
		return fmt.Errorf("%s does not take the credential of this machine, as after its data was made anew", l.API)
	}
	return nil
}

// node is a client of the node's own credential.
func (p place) node(l agent.Link, credential string) *api.Client {
	return &api.Client{Base: l.API, Token: func() (string, error) { return credential, nil }, HTTP: p.http}
}

// elsewhere refuses to link a machine to a second control plane or org.
func (p place) elsewhere(l agent.Link) error {
	s, err := p.session()
	if err != nil {
		return nil // none is needed
	}
	if !sameAddress(s.API, l.API) || s.Org != "" && s.Org != l.Org {
		return fmt.Errorf("this machine is linked to %s at %s, and the login is for %s: run %s first", l.Org, l.API,
			strings.TrimSpace(s.Org+" at "+s.API), strings.Replace(p.again, "link", "unlink", 1))
	}
	return nil
}

func sameAddress(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }

// login is the session of the person who links.
func (p place) login() (logincmd.Saved, error) {
	s, err := p.session()
	if err != nil {
		return s, err
	}
	return s, api.Private("the control plane", s.API)
}

// register registers the machine. Its error says in one sentence what the control
// plane made of it and what is written.
func (p place) register(ctx context.Context, s logincmd.Saved) (agent.Link, string, error) {
	about, err := p.facts(ctx)
	if err != nil {
		return agent.Link{}, "", err
	}
	client := s.Client()
	client.HTTP = p.http
	call, cancel := p.deadline(ctx)
	defer cancel()
	l, credential, err := agent.Register(call, client, p.dir, about, -1, -1)
	if err != nil {
		err = fmt.Errorf("%w; nothing is linked, and nothing written but %s, which the next %s uses", reason(ctx, s.API, err), filepath.Join(p.dir, keyFile), p.again)
	}
	return l, credential, err
}

// reason says for a person why a control plane did not do what it was asked.
func reason(ctx context.Context, address string, err error) error {
	p, answered := errors.AsType[*api.Problem](err)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s did not answer in time: see whether it runs and can be reached from here", address)
	case answered && p.Code == "":
		return fmt.Errorf("%s answered %d without saying why, so it may be no control plane: see what is at that address (%w)", address, p.Status, err)
	case answered && p.Code == api.Unauthorized:
		return fmt.Errorf("%s does not know the token: run hanzo login %s (%w)", address, address, err)
	case answered && p.Status >= 500:
		return fmt.Errorf("%s cannot answer now: try again later (%w)", address, err)
	case answered && p.Code == api.Conflict:
		return err // which says what to do
	case answered:
		return fmt.Errorf("%s refuses: %w", address, err)
	}
	return fmt.Errorf("%s: %w", address, err)
}

func (p place) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, cmp.Or(p.wait, callTime))
}

// leave tells the control plane that the machine goes. That it is gone already, or
// that its credential is nobody's any more, is as good; note then says what is left to
// know.
func (p place) leave(ctx context.Context, l agent.Link, credential string) (note string, err error) {
	if err := api.Private("the control plane", l.API); err != nil {
		return "", err
	}
	client := p.node(l, credential)
	call, cancel := p.deadline(ctx)
	defer cancel()
	err = client.DeleteWorker(call, l.ID)
	problem, answered := errors.AsType[*api.Problem](err)
	switch {
	case err == nil:
		return fmt.Sprintf("%s has removed %s from %s, and ended its credential", l.API, l.ID, l.Org), nil
	case answered && (problem.Code == api.Gone || problem.Code == api.NotFound):
		return fmt.Sprintf("%s had removed %s from %s already", l.API, l.ID, l.Org), nil
	case answered && problem.Code == api.Unauthorized:
		return fmt.Sprintf("%s no longer knows the credential of this machine: if it still lists %s in %s, an admin of the org takes it out: hanzo remove %s", l.API, l.ID, l.Org, l.ID), nil
	}
	return "", reason(ctx, l.API, err)
}

// forget deletes what the machine knew itself by. The journal goes with it: what is in
// it can be told to nobody any more.
func (p place) forget() error {
	return errors.Join(
		removeFile(filepath.Join(p.dir, credentialFile)), removeFile(filepath.Join(p.dir, linkFile)),
		removeFile(filepath.Join(p.dir, keyFile)), removeFile(filepath.Join(p.dir, auditedFile)),
		removeFile(filepath.Join(p.dir, lockedFile)),
		os.RemoveAll(filepath.Join(p.dir, journalFolder)),
		durable.SyncDir(p.dir),
	)
}

func removeFile(path string) error {
	err := os.Remove(path)
	if _, is := os.Lstat(path); errors.Is(is, fs.ErrNotExist) {
		return nil // also on a file system that is read-only, which is another error
	}
	return err
}

// errRemoved is that the control plane removed the machine while it was being linked.
var errRemoved = errors.New("the control plane had removed this machine")

// Patience with an agent that was started: until it is connected, and with a problem
// that it names.
const (
	connectTime = 90 * time.Second
	problemTime = 10 * time.Second
)

// connected waits until the agent says that it is connected, or says why it is not.
func (p place) connected(ctx context.Context, status string) error {
	var last agent.Status
	var problem time.Time // since when there is one
	for began := time.Now(); ; {
		s, err := agent.ReadStatus(status)
		if err == nil && !s.Lives(p.dir) {
			s, err = agent.Status{}, fs.ErrNotExist // the last word of one that was killed
		}
		switch {
		case err == nil && s.Connected:
			return nil
		case err == nil && s.Problem != "" && problem.IsZero():
			problem = time.Now()
		case err == nil && s.Problem == "":
			problem = time.Time{}
		}
		if err == nil {
			last = s
		}
		if _, err := os.Lstat(filepath.Join(p.dir, credentialFile)); errors.Is(err, fs.ErrNotExist) {
			return errRemoved
		}
		if !problem.IsZero() && time.Since(problem) > problemTime || time.Since(began) > connectTime {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	if last.Problem == "" {
		return errors.New("the machine is linked, and its agent does not say that it is connected: hanzo doctor looks for the reason")
	}
	return fmt.Errorf("the machine is linked, and its agent is not connected yet and goes on trying: %s", last.Problem)
}

// tell prints what was done.
func tell(out io.Writer, steps ...systemd.Step) {
	for _, step := range steps {
		fmt.Fprintf(out, "  %-8s %s\n", step.Did, step.What)
	}
}

// beside is the folder of this program, which is a release's.
func beside() (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	return filepath.Dir(self), err
}

// readFacts is facts.Read with the helper of a release.
func readFacts(bin, store string) func(context.Context) (api.WorkerFacts, error) {
	return func(ctx context.Context) (api.WorkerFacts, error) {
		return facts.Read(ctx, "/", filepath.Join(bin, "hanzo-gpu"), store)
	}
}
