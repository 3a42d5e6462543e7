//go:build linux

package attempt

var refusedHere, unmakeableHere, fatalCalls []uintptr

// foreign has nothing to try: a process cannot leave arm64 within itself.
func foreign(*trial) {}
