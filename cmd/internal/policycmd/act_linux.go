package policycmd

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/cmd/internal/offer"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/sandbox"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/durable"
)

// read reads a policy that only root can have written. Its faults have their exit
// status.
func (h host) read() (policy.Policy, []byte, error) {
	src, err := policy.ReadTrusted(h.path, policy.MaxSize)
	if errors.Is(err, fs.ErrNotExist) && h.unfit() != "" {
		return policy.Policy{}, nil, fmt.Errorf("there is no %s, and it would admit nothing: this host cannot build the sandbox, for %s; hanzo doctor says more", h.path, h.unfit())
	}
	if errors.Is(err, fs.ErrNotExist) {
		return policy.Policy{}, nil, fmt.Errorf("there is no %s, so this machine offers nothing: sudo hanzo link writes one", h.path)
	}
	if err != nil {
		return policy.Policy{}, nil, fmt.Errorf("the policy is not trusted, so this machine offers nothing: %w", err)
	}
	p, err := policy.Parse(src)
	if err != nil {
		return policy.Policy{}, nil, term.Exit(term.Usage, fmt.Errorf("the policy is not valid, so this machine offers nothing: %s: %w; %s", h.path, err, policy.Mend))
	}
	return p, src, nil
}

func (h host) check(streams term.IO, asJSON bool) error {
	_, src, err := h.read()
	if asJSON {
		out := struct {
			Path   string       `json:"path"`
			OK     bool         `json:"ok"`
			Error  string       `json:"error,omitzero"`
			SHA256 canon.SHA256 `json:"sha256,omitzero"`
		}{Path: h.path, OK: err == nil}
		if err != nil {
			out.Error = err.Error()
		} else {
			out.SHA256 = canon.Sum(src)
		}
		return errors.Join(err, term.PrintJSON(streams.Out, out))
	}
	if err == nil {
		fmt.Fprintf(streams.Out, "%s is root's alone and valid (SHA-256 %s)\n", h.path, canon.Sum(src))
	}
	return err
}

func (h host) show(ctx context.Context, streams term.IO, asJSON bool) error {
	p, src, err := h.read()
	if err != nil {
		if asJSON {
			err = errors.Join(err, term.PrintJSON(streams.Out, struct {
				Path  string `json:"path"`
				Error string `json:"error"`
			}{h.path, err.Error()}))
		}
		return err
	}
	offers, err := h.offers(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return term.PrintJSON(streams.Out, struct {
			Path   string          `json:"path"`
			SHA256 canon.SHA256    `json:"sha256"`
			Policy policy.Policy   `json:"policy"`
			Offers []offer.Verdict `json:"offers"`
		}{h.path, canon.Sum(src), p, offers})
	}
	fmt.Fprintf(streams.Out, "%s admits\n", h.path)
	table := term.NewTable(streams.Out)
	table.Row("  kinds", listed(p.Kinds, "none, so nothing runs here"))
	table.Row("  orgs", listed(p.Orgs, "none, so nothing runs here"))
	table.Row("  memory", size(p.Caps.Memory))
	table.Row("  cores", upTo(p.Caps.CPUs))
	table.Row("  disk", size(p.Caps.Disk))
	table.Row("  accelerator", size(p.Caps.VRAM))
	table.Row("  at once", upTo(p.Concurrency))
	table.Row("  life", fmt.Sprintf("at most %d s, idle at most %d s", p.MaxSec, p.IdleSec))
	if slices.Contains(p.Kinds, policy.EngineServe) {
		var from []string
		for _, s := range p.Sources {
			from = append(from, s.Prefix)
		}
		table.Row("  models", listed(p.Models, "every one")+", from "+listed(from, "nowhere"))
	}
	table.Flush()
	fmt.Fprintln(streams.Out, "and this host, now:")
	offer.Print(streams.Out, offers)
	return nil
}

func listed(all []string, none string) string {
	if len(all) == 0 {
		return none
	}
	return strings.Join(all, ", ")
}

func size(n int64) string {
	if n == 0 {
		return "none"
	}
	return term.Bytes(n) + " together"
}

func upTo(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("up to %d", n)
}

func (h host) allow(ctx context.Context, streams term.IO, kind string, c caps) error {
	before, after, err := h.change("policy allow "+kind, func(src []byte, p policy.Policy) ([]byte, error) {
		var err error
		if !slices.Contains(p.Kinds, kind) {
			if src, err = allow(src, kind); err != nil {
				return nil, err
			}
		}
		return c.set(src)
	})
	if err != nil {
		return err
	}
	if slices.Contains(before.Kinds, kind) {
		fmt.Fprintf(streams.Out, "%s was admitted already\n", kind)
	} else {
		fmt.Fprintf(streams.Out, "%s is admitted, for %s\n", kind, listed(after.Orgs, `no org yet: write yours in `+h.path+` as "orgs": ["NAME"]`))
	}
	if before.Caps != after.Caps {
		fmt.Fprintf(streams.Out, "work may have %s\n", offer.Room(after))
	}
	h.advise(streams.Out, kind, after)
	if free, _, err := offer.Free(); err == nil {
		excess(streams.Out, after.Caps, free, runtime.NumCPU())
	}
	return h.tell(ctx, streams.Out)
}

func (h host) deny(ctx context.Context, streams term.IO, kind string) error {
	before, _, err := h.change("policy deny "+kind, func(src []byte, _ policy.Policy) ([]byte, error) { return deny(src, kind) })
	if err != nil {
		return err
	}
	if !slices.Contains(before.Kinds, kind) {
		fmt.Fprintf(streams.Out, "%s was not admitted\n", kind)
	} else {
		fmt.Fprintf(streams.Out, "%s is no longer admitted; what runs of it is stopped within seconds\n", kind)
	}
	return h.tell(ctx, streams.Out)
}

// tell prints what comes of a change.
func (h host) tell(ctx context.Context, w io.Writer) error {
	offers, err := h.offers(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "this host, now:")
	offer.Print(w, offers)
	return nil
}

// excess says which caps no work can use, for the host has less. They may stand: a host
// grows.
func excess(w io.Writer, c policy.Caps, free policy.Free, cpus int) {
	var has []string
	if c.Memory > free.MemoryTotal {
		has = append(has, term.Bytes(free.MemoryTotal)+" of memory")
	}
	if c.CPUs > cpus {
		has = append(has, fmt.Sprintf("%d cores", cpus))
	}
	if c.Disk > free.DiskTotal {
		has = append(has, term.Bytes(free.DiskTotal)+" of disk")
	}
	if len(has) > 0 {
		fmt.Fprintf(w, "note: that is more than this host has, %s: work that asks for more than it has is refused\n", strings.Join(has, ", "))
	}
}

// advise says which caps are still too small for a kind, what this host has, and what
// to write.
func (h host) advise(w io.Writer, kind string, p policy.Policy) {
	if kind != policy.TrainFit || len(p.TrainFitLacks()) == 0 {
		return
	}
	fmt.Fprintf(w, "it can run nothing yet, for %s", strings.Join(p.TrainFitLacks(), ", "))
	free, _, err := offer.Free()
	if err != nil {
		fmt.Fprintln(w)
		return
	}
	gpus := "no accelerator"
	if all, _ := sandbox.Accelerators("/"); len(all) > 0 {
		var names []string
		for _, a := range all {
			names = append(names, a.Name)
		}
		gpus = strings.Join(names, ", ")
	}
	fmt.Fprintf(w, "; this host has %s of memory, %d cores, %s of disk free and %s\n", term.Bytes(free.MemoryTotal), runtime.NumCPU(), term.Bytes(free.Disk), gpus)
	c := suggest(p.Caps, free, runtime.NumCPU())
	fmt.Fprintf(w, "to lend half of it, write in %s\n  \"caps\": {\"vram\": %d, \"memory\": %d, \"cpus\": %d, \"disk\": %d}\n", h.path, c.VRAM, c.Memory, c.CPUs, c.Disk)
	fmt.Fprintf(w, "which is what this does: sudo hanzo policy allow %s --memory %s --cpus %d --disk %s\n", kind, flagSize(c.Memory), c.CPUs, flagSize(c.Disk))
	if p.Concurrency == 0 || p.MaxSec < 60 {
		fmt.Fprintln(w, "concurrency and maxSec are numbers beside the caps: write at least 1 and 60")
	}
}

// suggest is half of a host, in round numbers, where the policy says too little. A
// tenth of its memory and disk stays free anyway.
func suggest(have policy.Caps, free policy.Free, cpus int) policy.Caps {
	round := func(n, least int64) int64 {
		for _, unit := range []int64{1 << 30, 64 << 20, 1 << 20} {
			if n >= 2*unit {
				return n / unit * unit
			}
		}
		return least
	}
	if have.Memory < policy.TrainFitLeast.Memory {
		have.Memory = max(round(free.MemoryTotal/2, policy.TrainFitLeast.Memory), policy.TrainFitLeast.Memory)
	}
	if have.Disk < policy.TrainFitLeast.Disk {
		have.Disk = max(round((free.Disk-free.DiskTotal/10)/2, policy.TrainFitLeast.Disk), policy.TrainFitLeast.Disk)
	}
	if have.CPUs < policy.TrainFitLeast.CPUs {
		have.CPUs = max(cpus/2, 1)
	}
	return have
}

// flagSize is a size as a flag takes it.
func flagSize(n int64) string {
	s := strings.ReplaceAll(term.Bytes(n), " ", "")
	if back, err := term.ParseBytes(s); err == nil && back == n {
		return s
	}
	return fmt.Sprintf("%dB", n)
}

// change reads, judges, edits, judges again and replaces the policy.
func (h host) change(command string, edit func([]byte, policy.Policy) ([]byte, error)) (before, after policy.Policy, err error) {
	if uid := os.Geteuid(); uid != 0 {
		return before, after, fmt.Errorf("this is user %d, and the policy is root's to change: sudo hanzo %s", uid, command)
	}
	if before, _, err = h.read(); err != nil {
		return before, after, err
	}
	unlock, err := lock(h.path + ".lock")
	if err != nil {
		return before, after, err
	}
	defer unlock()
	before, src, err := h.read()
	if err != nil {
		return before, after, err
	}
	next, err := edit(slices.Clone(src), before)
	if err == nil {
		after, err = policy.Parse(next)
	}
	if err != nil {
		return before, after, term.Exit(term.Usage, fmt.Errorf("%s would not be valid, so it stays as it is: %w", h.path, err))
	}
	if bytes.Equal(next, src) {
		return before, after, nil
	}
	now, err := policy.ReadTrusted(h.path, policy.MaxSize)
	if err == nil && !bytes.Equal(now, src) {
		err = errors.New("it has been changed meanwhile")
	}
	if err == nil {
		err = durable.On(open{durable.OS}).WriteFile(h.path, next, 0o644)
	}
	if err != nil {
		return before, after, fmt.Errorf("the policy stays as it is: %w; run hanzo %s again", err, command)
	}
	if _, sum, err := policy.Load(h.path); err != nil || hex.EncodeToString(sum[:]) != string(canon.Sum(next)) {
		return before, after, fmt.Errorf("the policy was written and does not read back (%v): look at %s", err, h.path)
	}
	return before, after, nil
}

// lock waits for a lock that root alone can hold: on a file of its own, for the policy
// is replaced and anybody may open it.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// open makes files that everybody may read, whatever the process's umask: the agent
// reads the policy, and is not root.
type open struct{ durable.FS }

func (o open) OpenFile(name string, flag int, perm fs.FileMode) (durable.Handle, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	if flag&os.O_CREATE != 0 {
		if err := f.Chmod(perm); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}
