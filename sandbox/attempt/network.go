//go:build linux

package attempt

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// networkEfforts try to reach anyone. None waits longer than patience.
var networkEfforts = []effort{
	{40, "connect to the host's Unix sockets, abstract ones too", "ECONNREFUSED, ENOENT", unixSockets},
	{68, "reach the network, the host and its own ports", "loopback only, unreachable", reach},
	{69, "listen on 0.0.0.0:80, :8080 and a port taken on the host", "refused, or its own network's", listening},
	{70, "multicast and link-local", "unreachable", multicast},
	{71, "add links and routes, make a tun", "EPERM", links},
}

// patience is how long an address may take to answer. Unreachable is known at
// once; only a packet that left would be waited for.
const patience = 2 * time.Second

// unreachable is what an address answers that cannot be had, or not be asked for.
var unreachable = []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT, unix.EACCES}

func unixSockets(t *trial) {
	paths := []string{
		"/run/hanzo-link/launcher.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/socket",
		"/run/docker.sock", "/run/containerd/containerd.sock", "/run/nscd/socket", "/dev/log", "/tmp/.X11-unix/X0",
	}
	if t.Abstract != "" {
		paths = append(paths, "\x00"+t.Abstract)
	}
	paths = append(paths, "\x00/tmp/.X11-unix/X0", "\x00/containerd-shim/")
	for _, path := range paths {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET} {
			fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.failed("no Unix sockets at all: %v", err)
				return
			}
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
			unix.Close(fd)
			t.refused("connect to "+strings.ReplaceAll(path, "\x00", "@"), err,
				unix.ECONNREFUSED, unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.EPERM)
		}
	}
}

func reach(t *trial) {
	interfaces, err := net.Interfaces()
	if err != nil {
		t.failed("the interfaces cannot be listed: %v", err)
	}
	for _, i := range interfaces {
		if i.Name != "lo" {
			t.gaveWay("there is an interface %s", i.Name)
		}
		t.held("lo only")
	}
	for name, address := range map[string]unix.Sockaddr{
		"1.1.1.1":              &unix.SockaddrInet4{Addr: [4]byte{1, 1, 1, 1}, Port: 443},
		"DNS at 8.8.8.8":       &unix.SockaddrInet4{Addr: [4]byte{8, 8, 8, 8}, Port: 53},
		"the cloud's metadata": &unix.SockaddrInet4{Addr: [4]byte{169, 254, 169, 254}, Port: 80},
		"10.0.0.1":             &unix.SockaddrInet4{Addr: [4]byte{10, 0, 0, 1}, Port: 80},
		"172.17.0.1":           &unix.SockaddrInet4{Addr: [4]byte{172, 17, 0, 1}, Port: 80},
		"192.168.1.1":          &unix.SockaddrInet4{Addr: [4]byte{192, 168, 1, 1}, Port: 80},
		"2606:4700:4700::1111": &unix.SockaddrInet6{Addr: [16]byte{0x26, 0x06, 0x47, 0, 0x47, 0, 14: 0x11, 15: 0x11}, Port: 443},
	} {
		t.refused(name, dial(address, unix.SOCK_STREAM), unreachable...)
		t.refused(name, dial(address, unix.SOCK_DGRAM), unreachable...)
	}
	ports := []int{22, 53, 111, 631, 2375, 3000, 5432, 6379, 8080, 11434}
	if t.Port != 0 {
		ports = append(ports, t.Port) // one that is open for certain
	}
	for _, port := range ports {
		t.refused(fmt.Sprintf("127.0.0.1:%d of the host", port),
			dial(&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port}, unix.SOCK_STREAM),
			unix.ECONNREFUSED, unix.EAFNOSUPPORT, unix.EACCES)
	}
}

// dial sends one packet, or connects, within patience.
func dial(to unix.Sockaddr, kind int) error {
	family := unix.AF_INET
	if _, six := to.(*unix.SockaddrInet6); six {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if kind == unix.SOCK_DGRAM {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
		return unix.Sendto(fd, []byte{0}, 0, to)
	}
	err = unix.Connect(fd, to)
	if err != unix.EINPROGRESS {
		return err
	}
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(ready, int(patience.Milliseconds())); err != nil || n == 0 {
		return fmt.Errorf("a packet went out and was not answered")
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	return asErrno(code)
}

// listening binds. A port that is taken on the host is free in a network of the
// workload's own.
func listening(t *trial) {
	for _, port := range []int{80, 8080, t.Port} {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: port})
			unix.Close(fd)
		}
		if err == nil && port != 0 && t.Port != 0 {
			t.held("its own network's")
			continue
		}
		t.refused(fmt.Sprintf("port %d", port), err, unix.EAFNOSUPPORT, unix.EACCES, unix.EPERM)
	}
}

func multicast(t *trial) {
	for name, address := range map[string]unix.Sockaddr{
		"mDNS over IPv4":       &unix.SockaddrInet4{Addr: [4]byte{224, 0, 0, 251}, Port: 5353},
		"broadcast":            &unix.SockaddrInet4{Addr: [4]byte{255, 255, 255, 255}, Port: 67},
		"mDNS over IPv6":       &unix.SockaddrInet6{Addr: [16]byte{0xff, 2, 15: 0xfb}, Port: 5353, ZoneId: 2},
		"a link-local address": &unix.SockaddrInet6{Addr: [16]byte{0xfe, 0x80, 15: 1}, Port: 80, ZoneId: 2},
	} {
		t.refused(name, dial(address, unix.SOCK_DGRAM), append(unreachable, unix.ENODEV)...)
	}
}

func links(t *trial) {
	for _, change := range []struct {
		name string
		kind uint16
		body []byte
	}{
		// struct ifinfomsg and an interface's name and kind; struct rtmsg of a
		// default route over link 1.
		{"add a link", unix.RTM_NEWLINK, slices.Concat(make([]byte, 16), attribute(unix.IFLA_IFNAME, []byte("attempt\x00")),
			attribute(unix.IFLA_LINKINFO, attribute(unix.IFLA_INFO_KIND, []byte("dummy\x00"))))},
		{"add a route", unix.RTM_NEWROUTE, slices.Concat(
			[]byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_LINK, unix.RTN_UNICAST, 0, 0, 0, 0},
			attribute(unix.RTA_OIF, []byte{1, 0, 0, 0}))},
	} {
		t.refused(change.name, netlink(change.kind, change.body), unix.EPERM, unix.EAFNOSUPPORT, unix.EACCES)
	}
	t.refused("make a tun", tryOpen("/dev/net/tun", unix.O_RDWR), unix.ENOENT, unix.EPERM, unix.EACCES)
}

// attribute is a netlink attribute, padded.
func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// netlink asks the kernel for a change and answers what it said.
func netlink(kind uint16, body []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	message := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	message = binary.NativeEndian.AppendUint16(message, kind)
	message = binary.NativeEndian.AppendUint16(message, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE)
	message = binary.NativeEndian.AppendUint32(message, 1) // sequence number
	message = binary.NativeEndian.AppendUint32(message, 0) // to the kernel
	message = append(message, body...)
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	reply := make([]byte, 512) // struct nlmsghdr, and the errno with a minus
	if n, _, err := unix.Recvfrom(fd, reply, 0); err != nil || n < unix.NLMSG_HDRLEN+4 {
		return fmt.Errorf("an answer of %d bytes (%v)", n, err)
	}
	return asErrno(-int(int32(binary.NativeEndian.Uint32(reply[unix.NLMSG_HDRLEN:]))))
}
