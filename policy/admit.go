package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Ask is what a workload would be, as its admitted fields say. Bytes, logical
// cores and seconds. Memory, CPUs, Disk and MaxSec are at least 1: a workload
// always takes some of each, and a 0 would read as no limit further on.
type Ask struct {
	Activity, Kind, Org string
	Model               string // host/owner/name, or that @<40 hex>; "" for kinds that load none
	VRAM                int64  // 0: no accelerator
	Memory              int64
	CPUs                int
	Disk                int64
	IdleSec             int // 0: the kind never idles
	MaxSec              int
}

// Held is what running work holds, all together: how many workloads, and the sum
// of what each was admitted with. The workload that is asked about is not in it. Disk
// is also what ended work has left, where that is known.
type Held struct {
	Count        int
	VRAM, Memory int64
	CPUs         int
	Disk         int64
}

// Denied is a refusal: the rule that refuses and, for a person, what was asked
// and what is allowed.
type Denied struct{ Rule, Reason string }

func (d Denied) Error() string { return "policy refuses by rule " + d.Rule + ": " + d.Reason }

// Code is HIP-1172 A5's code of the error: "capacity" for the rules of
// [Policy.Capacity], which another time may not refuse, and "denied" for those
// of [Policy.Admit].
func (d Denied) Code() string {
	if strings.HasPrefix(d.Rule, "capacity.") {
		return "capacity"
	}
	return "denied"
}

func deny(rule, format string, args ...any) error {
	return Denied{rule, fmt.Sprintf(format, args...)}
}

// Admit returns nil when the owner admits a workload beside what is running, or
// else the [Denied] of the first rule that refuses, in this order:
//
//	kind         Kind is one of Kinds
//	org          Org is one of Orgs, byte for byte
//	source       Model is under a source; engine.serve names one, train.fit none
//	model        Models is empty, or holds Model or its repository
//	caps.vram    VRAM is within 0 and its cap
//	caps.memory  Memory is within 1 and its cap
//	caps.cpus    CPUs is within 1 and its cap
//	caps.disk    Disk is within 1 and its cap
//	concurrency  fewer workloads than Concurrency are running
//	idleSec      IdleSec is within 0 and its ceiling
//	maxSec       MaxSec is within 1 and its ceiling
//
// The order goes from what the work is to how much it wants, so that the reason
// an owner reads first is the one that no smaller request would mend.
//
// Of held only Count matters: caps here are what the ask could ever have, and
// what is left of them is [Policy.Capacity]'s question. To find what a changed
// policy no longer admits, ask about the running workloads in the order in which
// they started, each with the Count of those kept before it.
func (p Policy) Admit(a Ask, held Held) error {
	if !slices.Contains(p.Kinds, a.Kind) {
		return deny("kind", "asked for %.80q, allowed are %s", a.Kind, list(p.Kinds))
	}
	if !slices.Contains(p.Orgs, a.Org) {
		return deny("org", "asked by %.80q, allowed are %s", a.Org, list(p.Orgs))
	}
	if err := p.admitModel(a); err != nil {
		return err
	}
	for _, n := range []struct {
		rule         string
		asked, least int64
		allowed      int64
	}{
		{"caps.vram", a.VRAM, 0, p.Caps.VRAM},
		{"caps.memory", a.Memory, 1, p.Caps.Memory},
		{"caps.cpus", int64(a.CPUs), 1, int64(p.Caps.CPUs)},
		{"caps.disk", a.Disk, 1, p.Caps.Disk},
	} {
		if err := within(n.rule, n.asked, n.least, n.allowed); err != nil {
			return err
		}
	}
	if held.Count < 0 || held.Count >= p.Concurrency {
		return deny("concurrency", "%d workloads are running, allowed are %d at once", held.Count, p.Concurrency)
	}
	if err := within("idleSec", int64(a.IdleSec), 0, int64(p.IdleSec)); err != nil {
		return err
	}
	return within("maxSec", int64(a.MaxSec), 1, int64(p.MaxSec))
}

// admitModel is the rules source and model.
func (p Policy) admitModel(a Ask) error {
	switch {
	case a.Model == "" && a.Kind == EngineServe:
		return deny("source", "%s asked for no model", a.Kind)
	case a.Model == "":
		return nil
	case a.Kind == TrainFit:
		return deny("source", "%s asked for the model %.200q, and takes its base by hash", a.Kind, a.Model)
	}
	if _, ok := p.SourceOf(a.Model); !ok {
		var prefixes []string
		for _, s := range p.Sources {
			prefixes = append(prefixes, s.Prefix)
		}
		return deny("source", "asked for %.200q, allowed are models under %s", a.Model, list(prefixes))
	}
	repository, _, _ := strings.Cut(a.Model, "@")
	if len(p.Models) > 0 && !slices.Contains(p.Models, a.Model) && !slices.Contains(p.Models, repository) {
		return deny("model", "asked for %.200q, allowed are %s", a.Model, list(p.Models))
	}
	return nil
}

func within(rule string, asked, least, allowed int64) error {
	if asked < least {
		return deny(rule, "asked for %d, which is less than %d", asked, least)
	}
	if asked > allowed {
		return deny(rule, "asked for %d, allowed are %d", asked, allowed)
	}
	return nil
}

// list names what is allowed, at most eight of them: a reason is one line of a
// log and one field of a packet.
func list(allowed []string) string {
	const shown = 8
	switch n := len(allowed); {
	case n == 0:
		return "none"
	case n > shown:
		return fmt.Sprintf("%s and %d more", strings.Join(allowed[:shown], ", "), n-shown)
	}
	return strings.Join(allowed, ", ")
}

// Free is what a host has. Bytes.
type Free struct {
	Memory      int64 // what could be had now without swapping: MemAvailable, page cache included
	MemoryTotal int64
	Disk        int64 // what others than root may still write on the store's file system
	DiskTotal   int64
}

// Capacity returns nil when there is room for a workload now, or a [Denied] of the
// first of these that has none (HIP-1172 A5):
//
//	capacity.vram    its cap, less what running work holds
//	capacity.memory  its cap, less what running work holds; then the host's
//	                 memory, of which a tenth stays free
//	capacity.cpus    its cap, less what running work holds
//	capacity.disk    its cap, less what running work holds; then the store's
//	                 file system, of which a tenth stays free
//
// That a tenth stays free is asked twice, of what is free now and of the whole
// less all that is held: work that has just started has not yet taken what it
// was admitted with, so what is free now may be promised already. A caller that
// measures what running work has taken can make it exact, by subtracting the
// rest from free before it asks.
//
// Capacity does not judge the ask; that is [Policy.Admit]'s, first.
func (p Policy) Capacity(a Ask, held Held, free Free) error {
	for _, n := range []struct {
		rule             string
		asked, held, cap int64
		free, total      int64 // total -1: the cap alone bounds it
	}{
		{"capacity.vram", a.VRAM, held.VRAM, p.Caps.VRAM, 0, -1},
		{"capacity.memory", a.Memory, held.Memory, p.Caps.Memory, free.Memory, free.MemoryTotal},
		{"capacity.cpus", int64(a.CPUs), int64(held.CPUs), int64(p.Caps.CPUs), 0, -1},
		{"capacity.disk", a.Disk, held.Disk, p.Caps.Disk, free.Disk, free.DiskTotal},
	} {
		// Subtractions of what is not negative: nothing overflows.
		if left := n.cap - n.held; n.asked > left {
			return deny(n.rule, "asked for %d, left are %d of the cap of %d", n.asked, max(left, 0), n.cap)
		}
		if n.total < 0 {
			continue
		}
		reserve := n.total/10 + min(n.total%10, 1) // a tenth, rounded up
		if n.free-n.asked < reserve {
			return deny(n.rule, "asked for %d of %d that are free, and a tenth of %d must stay free", n.asked, n.free, n.total)
		}
		if n.total-n.held-n.asked < reserve {
			return deny(n.rule, "asked for %d beside %d that running work holds, and a tenth of %d must stay free", n.asked, n.held, n.total)
		}
	}
	return nil
}
