//go:build linux

package systemd

import (
	"context"
	"debug/buildinfo"
	"errors"
)

// Lib is where an installed host has its binaries and their manifest.
const Lib = "/usr/local/lib/hanzo/link"

// Binaries are what is installed in Lib, by name. Optional says which may be absent
// from a release.
var Binaries = []string{"hanzo-link", "hanzo-launcher", "hanzo-stage", "train", "hanzo-gpu"}

// A Step is one thing that an installation did or found done.
type Step struct {
	Did  string // wrote, removed, ran, or current: it was left alone
	What string // a file, a user, a command
}

// A Host is a machine that hanzo link is installed on, or taken from.
type Host struct {
	Root  string               // "/", or a folder that stands for it
	Run   func(ctx context.Context, name string, args ...string) error
	Build *buildinfo.BuildInfo // of the program that installs; nil asks only that the binaries are of one build
}

// Check says why the binaries of a folder cannot be installed on this host. It
// writes nothing.
func (h Host) Check(dir string) error { return errors.New("systemd: not built yet") }

// Place puts files, users and folders in place; nothing is started.
func (h Host) Place(ctx context.Context, dir string) ([]Step, error) {
	return nil, errors.New("systemd: not built yet")
}

// Start enables the units and starts them, again where what they run has changed.
func (h Host) Start(ctx context.Context) ([]Step, error) {
	return nil, errors.New("systemd: not built yet")
}

// Stop stops the services, waits for them, and keeps them from starting at boot.
func (h Host) Stop(ctx context.Context) ([]Step, error) {
	return nil, errors.New("systemd: not built yet")
}

// Remove takes away what Place put there, less the users and what is the owner's.
func (h Host) Remove(ctx context.Context) ([]Step, error) {
	return nil, errors.New("systemd: not built yet")
}
