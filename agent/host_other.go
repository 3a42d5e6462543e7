//go:build !linux

package agent

import "github.com/hanzoai/link/policy"

// readPolicy finds none: only Linux has what a policy could admit.
func readPolicy(string) reading { return reading{err: errPresence} }

// hostFree is not asked where nothing is admitted.
func hostFree(string) (policy.Free, error) { return policy.Free{}, errPresence }
