// Package offer says what this host would offer to the cloud, and why not the rest,
// without asking anybody: from the owner's policy, the installed binaries and what
// the host can build. It is what hanzo link, policy and doctor print.
//
// It decides nothing. The launcher asks the same questions when the agent connects,
// and judges every start anew. It says one thing more than the launcher does: a kind
// whose caps admit no workload is not offered here, for its owner waits in vain.
package offer

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/policy"
)

// Kinds are all there are, in the order in which they are told.
var Kinds = []string{policy.TrainFit, policy.EngineServe, policy.StudioRender, policy.FnRun}

// A Verdict is one kind and whether this host would offer it.
type Verdict struct {
	Kind    string `json:"kind"`
	Offered bool   `json:"offered"`
	Why     string `json:"why"` // why not, and what to do; or how much it may take
}

// found is what was found out about a host.
type found struct {
	unable   string           // why no sandbox can be built here; "" when none is known
	binaries map[string]error // what is wrong with each of those that a kind needs
	policy   policy.Policy
	unread   error  // of the policy
	untried  string // why it is not known yet that a sandbox can be built
}

// binaries of each kind that this version runs.
var binaries = map[string][]string{policy.TrainFit: {"hanzo-launcher", "hanzo-stage", "hanzo-link", "train"}}

func (f found) judge() []Verdict {
	var all []Verdict
	for _, kind := range Kinds {
		why := f.against(kind)
		if why != "" {
			all = append(all, Verdict{kind, false, why})
			continue
		}
		all = append(all, Verdict{kind, true, Room(f.policy)})
	}
	return all
}

// against is the first reason not to offer a kind, from what stands most in the way to
// what is soonest mended.
func (f found) against(kind string) string {
	needs, runs := binaries[kind]
	admitted := slices.Contains(f.policy.Kinds, kind)
	switch {
	case !runs && admitted:
		return "the policy admits it, and this version of hanzo link does not run it"
	case !runs:
		return "this version of hanzo link does not run it"
	case f.unable != "":
		return f.unable
	}
	for _, name := range needs {
		if err := f.binaries[name]; err != nil {
			return err.Error()
		}
	}
	switch {
	case f.unread != nil:
		return "the policy cannot be used: " + f.unread.Error()
	case !admitted:
		return "the policy does not admit it: sudo hanzo policy allow " + kind
	case len(f.policy.Orgs) == 0:
		return "the policy takes work of no org: write yours in " + policy.Path + ` as "orgs": ["NAME"]`
	case len(f.policy.TrainFitLacks()) > 0:
		return fmt.Sprintf("the policy admits it and gives it nothing, for %s: sudo hanzo policy allow %s says how", strings.Join(f.policy.TrainFitLacks(), ", "), kind)
	}
	return f.untried
}

// Room says how much a policy lets work take.
func Room(p policy.Policy) string {
	vram := "no accelerator"
	if p.Caps.VRAM > 0 {
		vram = term.Bytes(p.Caps.VRAM) + " of accelerator memory"
	}
	return fmt.Sprintf("%s of memory, %s, %s of disk and %s; %s at once", term.Bytes(p.Caps.Memory), count(p.Caps.CPUs, "core"),
		term.Bytes(p.Caps.Disk), vram, count(p.Concurrency, "workload"))
}

// Print says it to a person: a line for each kind, or for several of the same fate.
func Print(w io.Writer, all []Verdict) {
	offered := 0
	for len(all) > 0 {
		v := all[0]
		names := []string{v.Kind}
		for all = all[1:]; len(all) > 0 && all[0].Offered == v.Offered && all[0].Why == v.Why; all = all[1:] {
			names = append(names, all[0].Kind)
		}
		if v.Offered {
			offered++
			fmt.Fprintf(w, "  offered      %s: %s\n", strings.Join(names, ", "), v.Why)
		} else {
			fmt.Fprintf(w, "  not offered  %s: %s\n", strings.Join(names, ", "), v.Why)
		}
	}
	if offered == 0 {
		fmt.Fprintln(w, "  so this host would offer nothing now")
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
