//go:build !linux

package agent

// readPolicy finds none: only Linux has what a policy could admit.
func readPolicy(string) reading { return reading{err: errPresence} }
