//go:build linux

package attempt

import "io"

var (
	descriptorEfforts, kernelEfforts, fileEfforts, networkEfforts, lateEfforts []effort
)

func descriptors() []int                                  { return nil }
func behave(mode string, args []string, w io.Writer) int { return 2 }
