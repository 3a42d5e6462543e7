//go:build linux

package filter

import "golang.org/x/sys/unix"

var amd64Closed, amd64Inet [0]unix.SockFilter
