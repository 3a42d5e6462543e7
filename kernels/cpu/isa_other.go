//go:build !amd64

package cpu

// tables are this machine's instruction sets, the best first.
func tables() []table { return []table{scalar} }
