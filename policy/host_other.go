//go:build !linux

package policy

import "errors"

// HostFree measures nothing where no workload runs.
func HostFree(string) (Free, error) {
	return Free{}, errors.New("this system runs no workload, so nothing is set aside for any")
}
