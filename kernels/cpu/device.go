// Package cpu computes the operations of [kernels.Device] on the processor.
package cpu

// Device is the processor.
type Device struct{ Reference }

// New returns a device of threads threads; 0 takes GOMAXPROCS.
func New(threads int) *Device { return &Device{} }
