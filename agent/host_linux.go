package agent

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/hanzoai/link/policy"
)

// readPolicy reads the owner's policy as it is now.
func readPolicy(path string) reading {
	if path == "" {
		return reading{err: errPresence}
	}
	src, err := policy.ReadTrusted(path, policy.MaxSize)
	var p policy.Policy
	if err == nil {
		p, err = policy.Parse(src)
	}
	if err != nil {
		// The same again, in better words.
		if _, _, worded := policy.Load(path); worded != nil {
			err = worded
		}
		return reading{err: err}
	}
	sum := sha256.Sum256(src)
	return reading{policy: p, src: src, sum: hex.EncodeToString(sum[:])}
}
