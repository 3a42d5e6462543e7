package sandbox

import "context"

// Check is one thing that a host must or may have to build a sandbox.
type Check struct {
	Name   string // a short noun phrase
	OK     bool
	Need   bool   // whether no sandbox can be offered without it
	Detail string // one line in plain words: what was found and, when not OK, what to do
}

// Probe tries what this host can build.
func Probe(ctx context.Context, cfg Config) []Check { return nil }

// Offers reports whether every needed check holds and, when not, the first that
// does not.
func Offers(checks []Check) (bool, string) {
	for _, c := range checks {
		if c.Need && !c.OK {
			return false, c.Detail
		}
	}
	return true, ""
}
