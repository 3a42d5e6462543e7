package linkcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/agent"
	"github.com/hanzoai/link/cmd/internal/logincmd"
	"github.com/hanzoai/link/cmd/internal/offer"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/durable"
	"github.com/hanzoai/link/systemd"
)

// agentUser is who the agent runs as.
const agentUser = "hanzo-link"

func link(ctx context.Context, out io.Writer) error {
	bin, err := beside()
	if err != nil {
		return err
	}
	if why := offer.Unfit(); why != "" {
		p, err := thisPresence(bin, why)
		if err != nil {
			return err
		}
		return p.link(ctx, out)
	}
	return thisSystem(bin).link(ctx, out)
}

func unlink(ctx context.Context, out io.Writer) error {
	bin, err := beside()
	if err != nil {
		return err
	}
	s := thisSystem(bin)
	if why := offer.Unfit(); why != "" && !s.installed() {
		p, err := thisPresence(bin, why)
		if err != nil {
			return err
		}
		return p.unlink(ctx, out)
	}
	return s.unlink(ctx, out)
}

// A system is a host on which hanzo link is installed, as root.
type system struct {
	place
	systemd.Host
	uid    int
	bin    string
	offers func(context.Context) ([]offer.Verdict, error)
	lookup func() (uid, gid int, err error) // the agent's user, once there is one
}

func thisSystem(bin string) system {
	build, _ := debug.ReadBuildInfo()
	s := system{
		place: place{
			dir: systemd.State, again: "sudo hanzo link",
			session: func() (logincmd.Saved, error) { return logincmd.Session(logincmd.Person()) },
			facts:   readFacts(bin, systemd.State),
		},
		Host: systemd.Host{Root: "/", Build: build},
		uid:  os.Geteuid(), bin: bin, offers: offer.Host,
		lookup: func() (int, int, error) {
			u, err := user.Lookup(agentUser)
			if err != nil {
				return 0, 0, err
			}
			uid, uerr := strconv.Atoi(u.Uid)
			gid, gerr := strconv.Atoi(u.Gid)
			return uid, gid, errors.Join(uerr, gerr)
		},
	}
	s.credential = s.readCredential
	return s
}

func (s system) path(path string) string { return filepath.Join(s.Root, path) }

func (s system) link(ctx context.Context, out io.Writer) error {
	if s.uid != 0 {
		return errors.New("linking installs services that run other people's work apart from you, which is root's to do: run sudo hanzo link")
	}
	if err := s.Check(s.bin); err != nil {
		return err
	}
	l, session, err := s.before()
	if err != nil {
		return err
	}

	unix.Umask(0o022) // others are to read the policy, whatever the person's is
	if err := durable.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	err = s.make(ctx, out, l, session, s.settle)
	if _, linked := errors.AsType[unusable](err); err != nil && !linked {
		return err
	}
	verdicts, unknown := s.offers(ctx)
	if unknown != nil {
		return errors.Join(err, unknown)
	}
	fmt.Fprintln(out, "this host, now:")
	offer.Print(out, verdicts)
	fmt.Fprintf(out, "what it may do is yours to say, in %s: sudo hanzo policy allow KIND\n\n%s\n", policy.Path, warning)
	return err
}

// unusable is a policy that admits nothing, whatever its owner meant. The machine is
// linked all the same.
type unusable struct{ error }

func (u unusable) Unwrap() error { return u.error }

// settle puts everything in place that the link needs, starts it and waits until it
// is connected. An empty credential is the one that is there.
func (s system) settle(ctx context.Context, out io.Writer, l agent.Link, credential string) error {
	steps, err := s.Place(ctx, s.bin)
	tell(out, steps...)
	if err != nil {
		return unfinished(err)
	}
	uid, gid, err := s.lookup()
	if err != nil {
		return unfinished(err)
	}
	if err := give(filepath.Join(s.dir, keyFile), s.uid, uid, gid); err != nil {
		return unfinished(err)
	}
	if credential != "" {
		if err := s.Renew(); err != nil {
			return unfinished(err)
		}
		if err := l.Write(s.dir, credential, uid, gid); err != nil {
			return unfinished(err)
		}
		tell(out, systemd.Step{Did: systemd.Wrote, What: s.dir + "/" + linkFile}, systemd.Step{Did: systemd.Wrote, What: s.dir + "/" + credentialFile})
	}
	did, broken := s.policy(l.Org)
	if did == "" {
		return unfinished(broken)
	}
	tell(out, systemd.Step{Did: did, What: policy.Path})
	// Left by an unlink that was killed: the agent's next end is none.
	if err := removeFile(filepath.Join(s.dir, markerFile)); err != nil {
		return unfinished(err)
	}
	steps, err = s.Start(ctx)
	tell(out, steps...)
	if err != nil {
		return unfinished(fmt.Errorf("%w: journalctl -u hanzo-link.service -u hanzo-link-launcher.service says more", err))
	}
	if err := s.connected(ctx, s.path(statusFile)); err != nil {
		return err
	}
	fmt.Fprintf(out, "connected: the agent runs as %s and asks %s for work\n", agentUser, l.API)
	return broken
}

// unfinished is an installation that stopped half way.
func unfinished(err error) error {
	return fmt.Errorf("%w: what is said above is done and the rest is not; run sudo hanzo link again, or sudo hanzo unlink to take it back", err)
}

// defaultPolicy is A3's, with the org that links, as a JSON string.
const defaultPolicy = `{
  "kinds": [],
  "orgs": [%s],
  "sources": [{"prefix": "huggingface.co/zenlm/", "hosts": ["huggingface.co", "*.hf.co"]}],
  "models": [],
  "caps": {"vram": 0, "memory": 0, "cpus": 0, "disk": 0},
  "concurrency": 1,
  "idleSec": 600,
  "maxSec": 86400
}
`

// policy writes the default one, unless there is one, which is then only read. One that
// is there and of no use is an [unusable], and a fault of nothing that is done here.
func (s system) policy(org string) (did string, err error) {
	path := s.path(policy.Path)
	did = systemd.Current
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		name, err := json.Marshal(org)
		if err == nil {
			err = durable.MkdirAll(filepath.Dir(path), 0o755)
		}
		if err == nil {
			err = durable.WriteFile(path, fmt.Appendf(nil, defaultPolicy, name), 0o644)
		}
		if err != nil {
			return "", err
		}
		did = systemd.Wrote
	}
	p, _, err := policy.Load(path)
	if err != nil {
		return did, unusable{term.Exit(term.Usage, fmt.Errorf("the policy file is of no use, so nothing is offered: %w: mend it, and hanzo policy check says whether it is right", err))}
	}
	if len(p.Kinds) > 0 && !slices.Contains(p.Orgs, org) {
		return did, unusable{term.Exit(term.Usage, fmt.Errorf("%s takes work of %s alone, and this machine is linked to %s, so nothing will be admitted: change its orgs", policy.Path, strings.Join(p.Orgs, ", "), org))}
	}
	return did, nil
}

// give gives a file of root's to the agent's user. The folder is root's and sticky, so
// nobody else can have put another there.
func give(path string, from, uid, gid int) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if int(st.Uid) != from || uid == from {
		return nil // the agent's already
	}
	return os.Lchown(path, uid, gid)
}

// lockFile is locked while a link or an unlink is at work. Only root can open it:
// whoever can open what is locked can keep the lock, and so keep the owner from
// unlinking, and in the state directory that is the agent.
const lockFile = "/run/hanzo-link.lock"

// lock keeps a second link or unlink out while one is at work.
func (s system) lock() (unlock func(), err error) {
	path := s.path(lockFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.New("another hanzo link or hanzo unlink is at work: wait for it, and run this again")
		}
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return func() { f.Close() }, nil
}

// installed reports whether anything of a link is on this host but what stays after
// unlinking.
func (s system) installed() bool {
	paths := []string{systemd.Lib, systemd.State + "/" + credentialFile, systemd.State + "/" + linkFile, systemd.State + "/" + markerFile}
	for _, unit := range systemd.Units {
		paths = append(paths, filepath.Join(systemd.UnitDir, unit))
	}
	return slices.ContainsFunc(paths, func(path string) bool {
		_, err := os.Lstat(s.path(path))
		return err == nil
	})
}

func (s system) unlink(ctx context.Context, out io.Writer) error {
	if !s.installed() {
		fmt.Fprintln(out, "this machine is not linked: nothing to do")
		return nil
	}
	if s.uid != 0 {
		return errors.New("unlinking removes services, which is root's to do: run sudo hanzo unlink")
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	// A disk that takes no more keeps nobody from unlinking.
	if err := errors.Join(durable.MkdirAll(s.dir, 0o755), durable.WriteFile(filepath.Join(s.dir, markerFile), nil, 0o644)); err != nil {
		fmt.Fprintf(out, "%v: so the agent takes its end for the machine's, and the rest of what it recorded may stay here; going on\n", err)
	}
	fmt.Fprintln(out, "ending all work; the agent then sends what was recorded, which takes a minute and a half at most")
	steps, err := s.Stop(ctx)
	tell(out, steps...)
	if err != nil {
		return fmt.Errorf("the services were not stopped, so nothing is taken away: %w: run sudo hanzo unlink again", err)
	}
	address := ""
	if l, err := agent.ReadLink(s.dir); err == nil {
		address = l.API
	}
	note, cloud := s.end(ctx)
	if ctx.Err() != nil {
		return fmt.Errorf("%w: the services are stopped; run sudo hanzo unlink again", ctx.Err())
	}
	if note != "" {
		fmt.Fprintln(out, note)
	}
	steps, err = s.Remove(ctx)
	tell(out, steps...)
	if err == nil {
		err = removeFile(filepath.Join(s.dir, markerFile))
	}
	if err == nil && cloud == nil {
		err = s.forget()
	}
	if cloud != nil {
		cloud = fmt.Errorf("the services are stopped and all work has ended, and the control plane does not know yet: %w", cloud)
	}
	if err != nil {
		err = fmt.Errorf("the services are stopped, and not all that is to go could be removed: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	switch {
	case cloud != nil && err != nil:
		return fmt.Errorf("%w; %w: run sudo hanzo unlink again when both can be", cloud, err)
	case cloud != nil:
		return fmt.Errorf("%w: run sudo hanzo unlink again when it can", cloud)
	case err != nil:
		return fmt.Errorf("%w: see to that and run sudo hanzo unlink again", err)
	}
	if ids := kept(s.dir); len(ids) > 0 {
		fmt.Fprintln(out, tellKept(s.dir, address, ids))
	}
	also := ""
	if _, err := os.Lstat(s.path(policy.Path)); err == nil {
		also = policy.Path + ", and "
	}
	fmt.Fprintf(out, "unlinked; yours, and kept: %sin %s the audit log, the store and the records of runs; and the users hanzo-link and hanzo-work, whose files those are\n", also, systemd.State)
	return nil
}

// end tells the control plane, where there is a link to end.
func (s system) end(ctx context.Context) (note string, err error) {
	credential, err := s.credential()
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	l, err := agent.ReadLink(s.dir)
	if err != nil {
		return "", err
	}
	return s.leave(ctx, l, credential)
}

// readCredential reads the agent's own file and no other: the agent could have put a link
// there, to something that root may read and it may not.
func (s system) readCredential() (string, error) {
	path := filepath.Join(s.dir, credentialFile)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	uid, _, err := s.lookup()
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != uid || st.Nlink != 1 {
		return "", fmt.Errorf("%s is not a file of the agent's own: remove it, and an admin of the org removes this machine", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, 16<<10))
	return strings.TrimSpace(string(text)), err
}
