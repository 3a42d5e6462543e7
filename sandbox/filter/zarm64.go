//go:build linux

package filter

import "golang.org/x/sys/unix"

var arm64Closed, arm64Inet [0]unix.SockFilter
