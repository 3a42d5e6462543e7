package compute

import (
	"errors"
	"slices"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/policy"
)

// mirror is the policy that a node sent here. One that is missing or that we cannot
// read admits nothing.
func mirror(w api.WorkerFacts) policy.Policy {
	if w.Policy == nil {
		return policy.Policy{}
	}
	p, err := policy.Parse(w.Policy)
	if err != nil {
		return policy.Policy{}
	}
	return p
}

// ask is what an input of a kind would be to the policy. Of the kinds that this
// control plane does not run it says the kind alone, for the rules kind and org come
// before all others.
func ask(kind, org string, input []byte) (policy.Ask, error) {
	switch kind {
	case policy.TrainFit:
		in, err := policy.ParseTrainFit(input)
		if err != nil {
			return policy.Ask{}, api.Refuse(api.Invalid, "input: %v", err)
		}
		return in.Ask("", org), nil
	case policy.EngineServe, policy.StudioRender, policy.FnRun:
		return policy.Ask{Kind: kind, Org: org, Memory: 1, CPUs: 1, Disk: 1, MaxSec: 1}, nil
	}
	return policy.Ask{}, api.Refuse(api.Invalid, "kind: %.80q is none; kinds are train.fit, engine.serve, studio.render, fn.run", kind)
}

// admits answers what reports whether a node's mirror lets an activity start beside
// running others, and the node offers its kind.
func admits(w api.WorkerFacts) func(e activity.Envelope, running int) bool {
	own := mirror(w)
	return func(e activity.Envelope, running int) bool {
		a, err := ask(e.Kind, e.Org, e.Input)
		return err == nil && refuse(own, w.Offers, a, running) == nil
	}
}

// refuse is why a node of this mirror and these offers would not take what is asked,
// beside held others.
func refuse(own policy.Policy, offers []string, a policy.Ask, held int) error {
	if err := own.Admit(a, policy.Held{Count: held}); err != nil {
		p := api.Refuse(api.Denied, "the node's policy: %v", err)
		if denied, ok := errors.AsType[policy.Denied](err); ok {
			p = api.Refuse(api.Denied, "the node's policy refuses by rule %s: %s", denied.Rule, denied.Reason)
			p.Rule = denied.Rule
		}
		return p
	}
	if !slices.Contains(offers, a.Kind) {
		p := api.Refuse(api.Denied, "the node's policy admits %s, and the node cannot run it now: hanzo doctor says there why", a.Kind)
		p.Rule = "offers"
		return p
	}
	return nil
}
