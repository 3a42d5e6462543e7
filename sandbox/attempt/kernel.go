//go:build linux

package attempt

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelEfforts reach for parts of the kernel that a workload has no business
// with.
var kernelEfforts = []effort{
	{34, "type into a terminal: TIOCSTI, TIOCLINUX, high bits set", "EPERM", terminal},
	{36, "keys: keyctl, add_key, request_key", "EPERM", keys},
	{37, "io_uring", "ENOSYS", ioUring},
	{38, "bpf, perf_event_open, userfaultfd", "EPERM", kernelCode},
	{41, "AF_VSOCK, which no namespace holds", "EAFNOSUPPORT", vsock},
	{42, "every other socket family; raw sockets", "refused", families},
	{44, "write kernel settings", "EROFS, EACCES or ENOENT", settings},
	{45, "read kernel log, addresses and memory", "denied, empty or zero", kernelMemory},
	{74, "see the load of the host in /proc", "ENOENT, or noted where a GPU needs all of /proc", load},
	{79, "set the clock", "EPERM", clock},
	{104, "take huge pages that the owner has set aside", "ENOMEM", hugePages},
}

func terminal(t *trial) {
	const sti, linux = 0x5412, 0x541c
	char := address(new([16]byte))
	for _, fd := range t.opened {
		for _, request := range []uintptr{sti, linux} {
			// The kernel reads 32 bits of the request; a filter that compares 64
			// lets the second one by (CVE-2019-10063).
			for _, high := range []uintptr{0, 1 << 32} {
				t.refused(fmt.Sprintf("ioctl %#x on %d", request|high, fd), sys(unix.SYS_IOCTL, uintptr(fd), request|high, char), unix.EPERM)
			}
		}
	}
	t.refused("open a terminal", tryOpen("/dev/ptmx", unix.O_RDWR), unix.ENOENT)
}

func keys(t *trial) {
	const getKeyring, joinSession, readKey = 0, 1, 11
	const user, userSession = 1<<32 - 4, 1<<32 - 5 // -4 and -5, as the 32 bits that they are
	t.denied(unix.EPERM, "keyctl read of the user's keyring", unix.SYS_KEYCTL, readKey, user, 0, 0)
	t.denied(unix.EPERM, "keyctl get the user's keyring", unix.SYS_KEYCTL, getKeyring, user, 1)
	t.denied(unix.EPERM, "keyctl join a session", unix.SYS_KEYCTL, joinSession, 0)
	value := address(new([1]byte))
	t.denied(unix.EPERM, "add_key", unix.SYS_ADD_KEY, pointer("user"), pointer("attempt"), value, 1, userSession)
	t.denied(unix.EPERM, "request_key", unix.SYS_REQUEST_KEY, pointer("user"), pointer("attempt"), 0, 0)
}

func ioUring(t *trial) {
	t.denied(unix.ENOSYS, "io_uring_setup", unix.SYS_IO_URING_SETUP, 1, address(new([120]byte)))
	t.denied(unix.ENOSYS, "io_uring_enter", unix.SYS_IO_URING_ENTER, 0, 0, 0, 0, 0, 0)
	t.denied(unix.ENOSYS, "io_uring_register", unix.SYS_IO_URING_REGISTER, ^uintptr(0), 0, 0, 0)
}

func kernelCode(t *trial) {
	attr := address(new([128]byte))
	const mapCreate, userModeOnly = 0, 1
	t.denied(unix.EPERM, "bpf", unix.SYS_BPF, mapCreate, attr, 128)
	t.denied(unix.EPERM, "perf_event_open", unix.SYS_PERF_EVENT_OPEN, attr, 0, ^uintptr(0), ^uintptr(0), 0)
	t.denied(unix.EPERM, "userfaultfd", unix.SYS_USERFAULTFD, unix.O_CLOEXEC|userModeOnly)
}

// trySocket makes a socket and closes it.
func trySocket(family, kind, protocol int) error {
	fd, err := value(unix.SYS_SOCKET, uintptr(family), uintptr(kind|unix.SOCK_CLOEXEC), uintptr(protocol))
	if err == nil {
		unix.Close(int(fd))
	}
	return err
}

func vsock(t *trial) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET} {
		fd, err := unix.Socket(unix.AF_VSOCK, kind, 0)
		if err == nil {
			// cid 2 is the host of a virtual machine.
			err := unix.Connect(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_HOST, Port: 22})
			unix.Close(fd)
			t.gaveWay("a vsock socket was made; connecting to the host answers %v", err)
			continue
		}
		t.refused("vsock", err, unix.EAFNOSUPPORT)
	}
	t.refused("a vsock with high bits set", sys(unix.SYS_SOCKET, 1<<32|unix.AF_VSOCK, unix.SOCK_STREAM, 0), unix.EAFNOSUPPORT)
}

func families(t *trial) {
	const last = 64 // Linux 6.18 knows 46
	for family := range last {
		switch family {
		case unix.AF_UNIX, unix.AF_NETLINK, unix.AF_VSOCK:
			continue
		case unix.AF_INET, unix.AF_INET6:
			if t.Inet {
				continue
			}
		}
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
			t.refused(fmt.Sprintf("socket of family %d, kind %d", family, kind), trySocket(family, kind, 0), unix.EAFNOSUPPORT)
		}
	}
	for _, raw := range []struct {
		name                   string
		family, kind, protocol int
	}{
		{"raw IPv4", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		{"raw IPv6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6},
		{"ping", unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP},
		{"SCTP", unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP},
		{"packets", unix.AF_PACKET, unix.SOCK_RAW, 0x0300},
	} {
		t.refused(raw.name, trySocket(raw.family, raw.kind, raw.protocol),
			unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.EPERM, unix.EACCES)
	}
	for _, protocol := range []int{unix.NETLINK_AUDIT, unix.NETLINK_NETFILTER, unix.NETLINK_XFRM, unix.NETLINK_KOBJECT_UEVENT, unix.NETLINK_GENERIC} {
		t.refused(fmt.Sprintf("netlink protocol %d", protocol), trySocket(unix.AF_NETLINK, unix.SOCK_RAW, protocol),
			unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT)
	}
	var pair [2]int32
	t.refused("a pair of TIPC sockets", sys(unix.SYS_SOCKETPAIR, unix.AF_TIPC, unix.SOCK_STREAM, 0, address(&pair)), unix.EAFNOSUPPORT)
}

func settings(t *trial) {
	for _, path := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sys/kernel/randomize_va_space",
		"/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches",
		"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/ping_group_range", "/proc/sys/user/max_user_namespaces",
		"/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/fs/nfsd/unlock_filesystem",
		"/sys/kernel/uevent_helper", "/sys/kernel/mm/ksm/run", "/sys/power/state", "/sys/fs/cgroup/release_agent", "/proc/mtrr", "/proc/acpi/wakeup",
	} {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil && isNull(fd) {
			err = unix.EACCES // masked by /dev/null: nothing is there to write
		}
		if fd >= 0 {
			unix.Close(fd)
		}
		t.refused(path, err, unix.EROFS, unix.EACCES, unix.ENOENT, unix.EPERM, unix.ENOTDIR)
	}
}

func isNull(fd int) bool {
	var file, null unix.Stat_t
	return unix.Fstat(fd, &file) == nil && unix.Stat("/dev/null", &null) == nil &&
		file.Mode&unix.S_IFMT == unix.S_IFCHR && file.Rdev == null.Rdev
}

func kernelMemory(t *trial) {
	const readAll = 3
	buffer := address(new([4096]byte))
	t.refused("read the kernel log", sys(unix.SYS_SYSLOG, readAll, buffer, 4096), unix.EPERM)
	for _, path := range []string{
		"/dev/kmsg", "/dev/mem", "/dev/port", "/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/sched_debug",
		"/proc/kpagecount", "/proc/kpageflags", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/latency_stats", "/proc/config.gz",
		"/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/btf/vmlinux", "/sys/firmware/acpi/tables/DSDT",
	} {
		t.unread(path, func([]byte) bool { return path == "/proc/config.gz" }) // that one is public
	}
	for _, path := range []string{"/proc/kallsyms", "/proc/iomem", "/proc/modules", "/proc/ioports"} {
		t.unread(path, onlyZeros)
	}
}

// unread judges what can be read of a path: nothing, or what harmless allows.
func (t *trial) unread(path string, harmless func([]byte) bool) {
	f, err := os.Open(path)
	if err != nil {
		t.held("denied")
		return
	}
	defer f.Close()
	buffer := make([]byte, 1<<16)
	n, _ := f.Read(buffer)
	switch {
	case n <= 0:
		t.held("empty")
	case harmless(buffer[:n]):
		t.held("zero")
	default:
		t.gaveWay("%s can be read", path)
	}
}

// onlyZeros reports whether all addresses in the listing are 0, as the kernel
// shows them to those who may not know.
func onlyZeros(b []byte) bool {
	for line := range bytes.Lines(b) {
		for _, word := range strings.FieldsFunc(string(line), func(r rune) bool { return r == ' ' || r == '-' || r == '\n' || r == ':' }) {
			word = strings.TrimPrefix(word, "0x")
			if len(word) >= 8 && strings.Trim(word, "0123456789abcdef") == "" && strings.Trim(word, "0") != "" {
				return false
			}
		}
	}
	return true
}

// load looks at what /proc tells of the whole host. A workload that has all of
// /proc for its GPU sees it, and that is noted.
func load(t *trial) {
	for _, path := range []string{"/proc/loadavg", "/proc/stat", "/proc/meminfo", "/proc/uptime"} {
		_, err := os.ReadFile(path)
		if err == nil && t.WholeProc {
			t.held("noted: " + path + " is seen")
			continue
		}
		t.refused(path, err, unix.ENOENT)
	}
}

func clock(t *trial) {
	now := address(new([2]int64))
	timex := address(&unix.Timex{Modes: unix.ADJ_FREQUENCY})
	t.denied(unix.EPERM, "settimeofday", unix.SYS_SETTIMEOFDAY, now, 0)
	t.denied(unix.EPERM, "clock_settime", unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, now)
	t.denied(unix.EPERM, "adjtimex", unix.SYS_ADJTIMEX, timex)
	t.denied(unix.EPERM, "clock_adjtime", unix.SYS_CLOCK_ADJTIME, unix.CLOCK_REALTIME, timex)
}

func hugePages(t *trial) {
	const size = 2 << 20
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB)
	if err == nil {
		unix.Munmap(b)
	}
	t.refused("mmap", err, unix.ENOMEM)
	t.denied(unix.ENOMEM, "memfd_create", unix.SYS_MEMFD_CREATE, pointer("huge"), unix.MFD_HUGETLB)
	const hugeSegment = 0o4000 // SHM_HUGETLB of linux/shm.h
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, size, hugeSegment|unix.IPC_CREAT|0o600)
	if err == nil {
		unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
	t.refused("shmget", err, unix.ENOMEM, unix.EPERM)
}
