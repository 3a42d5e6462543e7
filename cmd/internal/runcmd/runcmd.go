// Package runcmd is how somebody gives work to a linked machine and sees what comes of
// it: hanzo run, follow and cancel, and hanzo nodes, activities and remove.
//
// It is a client of the control plane and nothing more: what a node admits its policy
// says, and what ran is told by its record. Files that an input names as folders are
// sent by content, so what the organisation holds already is not sent again, and a run
// that was interrupted while it sent goes on where it was. A request to run is made
// once: whether one that was not answered was taken, hanzo activities tells.
package runcmd

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/cmd/internal/logincmd"
	"github.com/hanzoai/link/cmd/internal/offer"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/policy"
)

// Commands are run, follow, cancel, nodes, activities and remove.
var Commands = []term.Command{Run, Follow, Cancel, Nodes, Activities, Remove}

// every is how often what is followed is looked at; tests look more often.
var every = time.Second

// Run is hanzo run.
var Run = term.Command{
	Name: "run", Args: "NODE",
	Short: "ask a linked machine of your org for work",
	Long: `
--input is the kind's input, as JSON. In one of train.fit, "stage" and "base" may be
folders, relative to the file, in place of the hashes of their trees: what of them the
control plane does not have is sent first. Their files are regular, with names of
A-Z a-z 0-9 . _ - only.

The machine's owner decides what it runs: a refusal names the rule of the policy there.

--follow shows what becomes of it, until its end: it exits 0 when the run is done, 3 when
it ended and its gate failed, 1 when it failed or was stopped. Ctrl-C stops following and
not the run.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		kind := flags.String("kind", "", "the `kind` of work: "+strings.Join(offer.Kinds, ", "))
		input := flags.String("input", "", "the kind's input, as JSON, is in this `file`")
		follow := flags.Bool("follow", false, "show what becomes of it, until its end")
		asJSON := flags.Bool("json", false, "print JSON instead of text: the activity, or with --follow a line for each state and event")
		return func(ctx context.Context, streams term.IO, args []string) error {
			node, err := term.One(args, "the machine to run on, as hanzo nodes lists them")
			if err != nil {
				return err
			}
			if *kind == "" || *input == "" {
				return term.Usagef("run needs --kind and --input: hanzo run %s --kind %s --input FILE", node, policy.TrainFit)
			}
			if err := oneOf("--kind", *kind, offer.Kinds); err != nil {
				return err
			}
			client, err := logincmd.Client()
			if err != nil {
				return err
			}
			act, err := enqueue(ctx, streams, client, node, *kind, *input)
			if err != nil {
				return err
			}
			switch {
			case *follow:
				return newFollower(client, streams, *asJSON).follow(ctx, act)
			case *asJSON:
				return term.PrintJSON(streams.Out, act)
			}
			fmt.Fprintf(streams.Out, "%s is requested of %s: hanzo follow %s\n", act.Activity, act.Node, act.Activity)
			return nil
		}
	},
}

// Follow is hanzo follow.
var Follow = term.Command{
	Name: "follow", Args: "ACTIVITY",
	Short: "show what becomes of an activity, until its end",
	Long: `
It exits as hanzo run --follow does: 0 when the run is done, 3 when it ended and its gate
failed, 1 when it failed or was stopped. Ctrl-C stops following and not the run.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		asJSON := flags.Bool("json", false, "print a line of JSON for each state and event")
		return func(ctx context.Context, streams term.IO, args []string) error {
			client, act, err := one(ctx, args)
			if err != nil {
				return err
			}
			return newFollower(client, streams, *asJSON).follow(ctx, act)
		}
	},
}

// one is the activity that a command names.
func one(ctx context.Context, args []string) (*api.Client, api.Activity, error) {
	name, err := term.One(args, "an activity, as hanzo activities lists them")
	if err != nil {
		return nil, api.Activity{}, err
	}
	client, err := logincmd.Client()
	if err != nil {
		return nil, api.Activity{}, err
	}
	act, err := client.Activity(ctx, name)
	if api.Is(err, api.NotFound) {
		err = fmt.Errorf("your org has no activity %.80q: hanzo activities lists them", name)
	}
	return client, act, err
}

// Cancel is hanzo cancel.
var Cancel = term.Command{
	Name: "cancel", Args: "ACTIVITY",
	Short: "end an activity",
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			client, act, err := one(ctx, args)
			if err != nil {
				return err
			}
			ended := act.State.Ended()
			if act, err = client.Cancel(ctx, act.Activity); err != nil {
				return err
			}
			switch {
			case *asJSON:
				return term.PrintJSON(streams.Out, act)
			case ended:
				fmt.Fprintf(streams.Out, "%s had ended already: %s\n", act.Activity, fate(act))
			case act.State.Ended():
				fmt.Fprintf(streams.Out, "%s is cancelled; %s had not begun it\n", act.Activity, act.Node)
			default:
				fmt.Fprintf(streams.Out, "%s is told to end it: hanzo follow %s\n", act.Node, act.Activity)
			}
			return nil
		}
	},
}

// fate is where an activity is, in a few words.
func fate(a api.Activity) string {
	switch {
	case a.State == activity.Stopped:
		return "stopped: " + string(a.Reason)
	case a.State == activity.Failed && a.Error != nil:
		return "failed: " + string(a.Error.Code)
	case a.Stopping != "":
		return fmt.Sprintf("%s, to be stopped: %s", a.State, a.Stopping)
	}
	return string(a.State)
}

// Nodes is hanzo nodes.
var Nodes = term.Command{
	Name:  "nodes",
	Short: "list the linked machines of your org",
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) > 0 {
				return term.Usagef("nodes takes no arguments")
			}
			client, err := logincmd.Client()
			if err != nil {
				return err
			}
			nodes, err := client.Workers(ctx)
			if err != nil {
				return err
			}
			if *asJSON {
				return term.PrintJSON(streams.Out, api.Workers{Workers: nodes})
			}
			if len(nodes) == 0 {
				fmt.Fprintln(streams.Out, "your org has no linked machine: run hanzo link on one of yours")
				return nil
			}
			table := term.NewTable(streams.Out)
			table.Row("node", "status", "offers", "cores", "memory", "accelerators", "works on", "linked by")
			for _, n := range nodes {
				var gpus, live []string
				for _, g := range n.GPUs {
					gpus = append(gpus, g.Name)
				}
				for _, w := range n.Workloads {
					live = append(live, fmt.Sprintf("%s (%s)", w.Activity, w.State))
				}
				table.Row(n.ID, n.Status, words(n.Offers), fmt.Sprint(n.CPUs), term.Bytes(n.Memory), words(gpus), words(live), term.Plain(n.LinkedBy))
			}
			table.Flush()
			return nil
		}
	},
}

// Remove is hanzo remove.
var Remove = term.Command{
	Name: "remove", Args: "NODE",
	Short: "remove a linked machine from your org, as an admin or as who linked it",
	Long: `
What runs on the machine is stopped, and its credential opens nothing from then on. On
the machine itself hanzo unlink does the same, and puts away what it left there.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		return func(ctx context.Context, streams term.IO, args []string) error {
			node, err := term.One(args, "a machine, as hanzo nodes lists them")
			if err != nil {
				return err
			}
			client, err := logincmd.Client()
			if err != nil {
				return err
			}
			nodes, err := client.Workers(ctx)
			if err != nil {
				return err
			}
			if err := known(node, nodes); err != nil {
				return err
			}
			w := nodes[slices.IndexFunc(nodes, func(w api.Worker) bool { return w.ID == node })]
			err = client.DeleteWorker(ctx, node)
			switch {
			case api.Is(err, api.Forbidden):
				return fmt.Errorf("%s was linked by %s: only they or an admin of your org may remove it", node, term.Plain(w.LinkedBy))
			case api.Is(err, api.NotFound):
				return fmt.Errorf("%s has been removed meanwhile", node)
			case err != nil:
				return fmt.Errorf("removing %s: %w", node, err)
			}
			fmt.Fprintf(streams.Out, "%s is removed, and its credential opens nothing any more\n", node)
			for _, l := range w.Workloads {
				fmt.Fprintf(streams.Out, "%s is stopped (%s)\n", l.Activity, activity.Unlink)
			}
			return nil
		}
	},
}

// states are what --state takes.
var states = []string{
	string(activity.Requested), string(activity.Pulling), string(activity.Starting), string(activity.Ready),
	string(activity.Idle), string(activity.Stopped), string(activity.Failed),
}

// oneOf refuses a flag's value that is none of those it takes.
func oneOf(flag, value string, all []string) error {
	if slices.Contains(all, value) {
		return nil
	}
	return term.Usagef("%s %.80q is none: give one of %s; did you mean %s?", flag, value, strings.Join(all, ", "), term.Nearest(value, all))
}

// words lists what others named, in one cell.
func words(all []string) string {
	if len(all) == 0 {
		return "–"
	}
	return term.Plain(strings.Join(all, ", "))
}

// Activities is hanzo activities.
var Activities = term.Command{
	Name:  "activities",
	Short: "list what was asked of the linked machines of your org, the newest first",
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		asJSON := term.AsJSON(flags)
		q := api.ActivityQuery{Limit: 20}
		flags.StringVar(&q.Node, "node", "", "of this `node` alone")
		flags.StringVar((*string)(&q.State), "state", "", "in this `state` alone, such as ready or failed")
		term.Natural(flags, &q.Limit, "limit", "at most this `number`; 20 when it is not given")
		return func(ctx context.Context, streams term.IO, args []string) error {
			if len(args) > 0 {
				return term.Usagef("activities takes no arguments; --node and --state choose among them")
			}
			if q.State != "" {
				if err := oneOf("--state", string(q.State), states); err != nil {
					return err
				}
			}
			if q.Limit < 1 || q.Limit > api.MaxPage {
				return term.Usagef("--limit %d: give 1 to %d", q.Limit, api.MaxPage)
			}
			client, err := logincmd.Client()
			if err != nil {
				return err
			}
			all, err := client.Activities(ctx, q)
			if err != nil {
				return err
			}
			if len(all) == 0 && q.Node != "" {
				// A node that was removed still has its activities; this one has none.
				nodes, err := client.Workers(ctx)
				if err == nil {
					err = known(q.Node, nodes)
				}
				if err != nil {
					return err
				}
			}
			if *asJSON {
				return term.PrintJSON(streams.Out, api.Activities{Activities: slices.Clip(all)})
			}
			if len(all) == 0 {
				fmt.Fprintln(streams.Out, "there is none")
				return nil
			}
			table := term.NewTable(streams.Out)
			table.Row("activity", "node", "kind", "state", "since", "asked by")
			for _, a := range all {
				table.Row(a.Activity, a.Node, a.Kind, fate(a), a.Updated, term.Plain(a.Requester))
			}
			table.Flush()
			return nil
		}
	},
}
