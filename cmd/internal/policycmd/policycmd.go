// Package policycmd is hanzo policy: it shows what the owner of this machine admits,
// and changes that as root.
//
// The file is the owner's. A change here leaves every byte of it that says something
// else, so their order and layout stand; it is judged before and after, and takes
// the file's place whole: written beside it, put on stable storage, renamed. So a
// reader, and a machine that loses power, has the old file or the new. Two of these
// commands wait for each other; an editor that saved meanwhile wins, and the command
// says so. Nothing has to be restarted: the launcher and the agent watch the file.
package policycmd

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/hanzoai/link/cmd/internal/offer"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/policy"
)

// Commands are hanzo policy's.
var Commands = host{policy.Path, offer.Host, offer.Unfit}.commands()

// host is where the policy lies, and who says what comes of it.
type host struct {
	path   string
	offers func(context.Context) ([]offer.Verdict, error)
	unfit  func() string // why no sandbox can be built here, as offer.Unfit has it
}

// caps are what the flags of allow say.
type caps struct {
	memory, disk, vram                        int64
	cpus                                      int
	memoryGiven, diskGiven, vramGiven, cpusOK bool
}

func (h host) commands() []term.Command {
	return []term.Command{
		{
			Name:  "policy check",
			Short: "say whether this machine's policy is root's alone and valid",
			Long: `
The policy is ` + policy.Path + `. It is trusted when nobody but root can have
written it, and valid when it says nothing but what a policy can: a member that is not
known makes the machine offer nothing. It exits 0 when the file is both, 1 when it is
absent or not trusted, and 2 when it says something it may not.`,
			Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
				asJSON := term.AsJSON(flags)
				return func(_ context.Context, streams term.IO, args []string) error {
					if len(args) > 0 {
						return term.Usagef("policy check takes no arguments: it reads %s", h.path)
					}
					return h.check(streams, *asJSON)
				}
			},
		},
		{
			Name:  "policy show",
			Short: "show what this machine admits, and what it would offer now",
			Long: `
As root it tries to build a sandbox, and so knows what would be offered; anybody else is
told what can be known without.`,
			Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
				asJSON := term.AsJSON(flags)
				return func(ctx context.Context, streams term.IO, args []string) error {
					if len(args) > 0 {
						return term.Usagef("policy show takes no arguments: it reads %s", h.path)
					}
					return h.show(ctx, streams, *asJSON)
				}
			},
		},
		{
			Name: "policy allow", Args: "KIND",
			Short: "admit a kind of work, as root",
			Long: `
KIND is one of ` + strings.Join(offer.Kinds, ", ") + `. Work of it may then come from
the orgs that the policy names, within its caps. Caps of 0 admit nothing: the flags set
them, and caps that no flag names are left as they are.

It takes effect within seconds; work that is running goes on.`,
			Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
				var c caps
				term.SizeFlag(flags, &c.memory, &c.memoryGiven, "memory", "let all work together have this `size` of memory, such as 8GiB")
				term.SizeFlag(flags, &c.disk, &c.diskGiven, "disk", "let it have this `size` of disk")
				term.SizeFlag(flags, &c.vram, &c.vramGiven, "vram", "let it have this `size` of accelerator memory")
				term.Natural(flags, &c.cpus, "cpus", "let it have this `number` of cores")
				return func(ctx context.Context, streams term.IO, args []string) error {
					kind, err := kindOf(args)
					if err != nil {
						return err
					}
					flags.Visit(func(f *flag.Flag) { c.cpusOK = c.cpusOK || f.Name == "cpus" })
					return h.allow(ctx, streams, kind, c)
				}
			},
		},
		{
			Name: "policy deny", Args: "KIND",
			Short: "admit a kind of work no longer, as root",
			Long: `
Work of that kind that is running is stopped within seconds.`,
			Setup: func(*flag.FlagSet) func(context.Context, term.IO, []string) error {
				return func(ctx context.Context, streams term.IO, args []string) error {
					kind, err := kindOf(args)
					if err != nil {
						return err
					}
					return h.deny(ctx, streams, kind)
				}
			},
		},
	}
}

func kindOf(args []string) (string, error) {
	kind, err := term.One(args, "a kind of work: "+strings.Join(offer.Kinds, ", "))
	if err == nil && !slices.Contains(offer.Kinds, kind) {
		err = term.Usagef("%.80q is no kind of work: kinds are %s", kind, strings.Join(offer.Kinds, ", "))
	}
	return kind, err
}

// set applies the flags to a policy's text.
func (c caps) set(src []byte) ([]byte, error) {
	for _, n := range []struct {
		name  string
		value int64
		given bool
	}{
		{"vram", c.vram, c.vramGiven}, {"memory", c.memory, c.memoryGiven}, {"cpus", int64(c.cpus), c.cpusOK}, {"disk", c.disk, c.diskGiven},
	} {
		if !n.given {
			continue
		}
		var err error
		if src, err = putCap(src, n.name, n.value); err != nil {
			return nil, fmt.Errorf("caps.%s: %w", n.name, err)
		}
	}
	return src, nil
}
