//go:build !linux

package store

import (
	"errors"

	"github.com/hanzoai/link/policy"
)

// space is not measured where no workload runs, and so no tree is needed.
func space(string) (policy.Free, error) {
	return policy.Free{}, errors.New("this system runs no workloads, so its store keeps nothing")
}
