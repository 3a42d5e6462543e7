//go:build !linux

package main

import (
	"errors"

	"github.com/hanzoai/link/agent"
)

// system finds none: what the launcher builds, only Linux has.
func system(*agent.Config) error {
	return errors.New("this system cannot build the sandbox: start hanzo-link with --presence")
}
