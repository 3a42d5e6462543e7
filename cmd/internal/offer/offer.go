// Package offer says what this host would offer to the cloud, and why not the rest,
// without asking anybody: from the owner's policy, the installed binaries and what
// the host can build. It is what hanzo link, policy and doctor print.
//
// It decides nothing. The launcher asks the same questions when the agent connects,
// and judges every start anew.
package offer

import (
	"github.com/hanzoai/link/policy"
)

// Kinds are all there are, in the order in which they are told.
var Kinds = []string{policy.TrainFit, policy.EngineServe, policy.StudioRender, policy.FnRun}

// A Verdict is one kind and whether this host would offer it.
type Verdict struct {
	Kind    string `json:"kind"`
	Offered bool   `json:"offered"`
	Why     string `json:"why"` // in one sentence: why not, or what it may take
}
