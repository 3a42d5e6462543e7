//go:build linux

package filter

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A target is one committed program.
type target struct {
	arch    string
	audit   uint32
	inet    bool
	program []unix.SockFilter
}

func (t target) String() string {
	if t.inet {
		return t.arch + "+inet"
	}
	return t.arch
}

var targets = []target{
	{"amd64", unix.AUDIT_ARCH_X86_64, false, amd64Closed[:]},
	{"amd64", unix.AUDIT_ARCH_X86_64, true, amd64Inet[:]},
	{"arm64", unix.AUDIT_ARCH_AARCH64, false, arm64Closed[:]},
	{"arm64", unix.AUDIT_ARCH_AARCH64, true, arm64Inet[:]},
}

// ask interprets the program as the kernel does, and says what it returns.
func (t target) ask(tb testing.TB, number, audit uint32, args [6]uint64) string {
	tb.Helper()
	data := binary.LittleEndian.AppendUint32(nil, number) // struct seccomp_data
	data = binary.LittleEndian.AppendUint32(data, audit)
	data = binary.LittleEndian.AppendUint64(data, 0)
	for _, arg := range args {
		data = binary.LittleEndian.AppendUint64(data, arg)
	}
	var a uint32
	for pc := 0; pc < len(t.program); pc++ {
		op := t.program[pc]
		jump := func(yes bool) {
			if yes {
				pc += int(op.Jt)
			} else {
				pc += int(op.Jf)
			}
		}
		switch op.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = binary.LittleEndian.Uint32(data[op.K:])
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= op.K
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(op.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(a == op.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(a >= op.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(a&op.K != 0)
		case unix.BPF_RET | unix.BPF_K:
			switch {
			case op.K == unix.SECCOMP_RET_ALLOW:
				return "allow"
			case op.K == unix.SECCOMP_RET_KILL_PROCESS:
				return "kill"
			case op.K&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO:
				return unix.ErrnoName(unix.Errno(op.K & unix.SECCOMP_RET_DATA))
			}
			tb.Fatalf("%v: %d: returns %#x", t, pc, op.K)
		default:
			tb.Fatalf("%v: %d: instruction %#x", t, pc, op.Code)
		}
	}
	tb.Fatalf("%v: number %d runs off the end", t, number)
	return ""
}

// last is the highest number asked about, far above what Linux has.
const last = 600

// A call is a line of a golden table.
type call struct {
	number  uint32
	name    string
	verdict string // allow, EPERM, ENOSYS, or arg… when the arguments decide
}

// golden reads what an architecture's table says of every number up to last.
func golden(arch string, inet bool) ([]call, error) {
	table, err := os.ReadFile("testdata/" + arch + ".txt")
	if err != nil {
		return nil, err
	}
	calls := make([]call, last+1)
	for i := range calls {
		calls[i] = call{uint32(i), "number " + strconv.Itoa(i), "ENOSYS"}
	}
	for line := range strings.Lines(string(table)) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, verdict, _ := strings.Cut(rest, " ")
		i, err := strconv.Atoi(number)
		if err != nil || i > last || verdict == "" {
			return nil, fmt.Errorf("%s: %q is no line of a golden table", arch, line)
		}
		name, forInet := strings.CutSuffix(name, "+inet")
		if !forInet || inet {
			calls[i] = call{uint32(i), name, verdict}
		}
	}
	return calls, nil
}

func (t target) calls(tb testing.TB) []call {
	tb.Helper()
	calls, err := golden(t.arch, t.inet)
	if err != nil {
		tb.Fatal(err)
	}
	return calls
}

// ofZeros is what the arguments decide when all are zero.
var ofZeros = map[string]string{
	"open": "allow", "openat": "allow", "creat": "allow", "chmod": "allow", "fchmod": "allow", "fchmodat": "allow", "fchmodat2": "allow",
	"fcntl": "allow", "shmget": "allow", "fallocate": "ENOTSUP",
	"clone": "allow", "ioctl": "allow", "madvise": "allow", "memfd_create": "allow", "mmap": "allow", "mknod": "allow", "mknodat": "allow",
	"personality": "allow", "prctl": "allow", "prlimit64": "allow", "setrlimit": "allow", "socket": "EAFNOSUPPORT", "socketpair": "EAFNOSUPPORT",
}

// zeros is the verdict on a call with no argument set.
func (c call) zeros() string {
	if strings.HasPrefix(c.verdict, "arg") {
		return ofZeros[c.name]
	}
	return c.verdict
}

func TestEveryNumberIsAsTheGoldenTableSays(t *testing.T) {
	for _, target := range targets {
		for _, call := range target.calls(t) {
			if got := target.ask(t, call.number, target.audit, [6]uint64{}); got != call.zeros() {
				t.Errorf("%v: %s (%d): %s, the table says %s", target, call.name, call.number, got, call.zeros())
			}
			if strings.HasPrefix(call.verdict, "arg") {
				continue
			}
			ones := [6]uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}
			if got := target.ask(t, call.number, target.audit, ones); got != call.verdict {
				t.Errorf("%v: %s (%d): %s by its arguments, the table says %s", target, call.name, call.number, got, call.verdict)
			}
		}
		if got := target.ask(t, 0x3fffffff, target.audit, [6]uint64{}); got != "ENOSYS" {
			t.Errorf("%v: the highest number: %s", target, got)
		}
	}
}

func TestArguments(t *testing.T) {
	type args = [6]uint64
	const inetOnly = "EAFNOSUPPORT, allow with Inet"
	tests := []struct {
		name string
		args args
		want string
	}{
		{"clone", args{uint64(unix.SIGCHLD)}, "allow"}, // fork
		{"clone", args{unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PIDFD | uint64(unix.SIGCHLD)}, "allow"},
		// A thread, as Go and as glibc make it.
		{"clone", args{unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM | unix.CLONE_THREAD}, "allow"},
		{"clone", args{0x3d0f00}, "allow"},
		{"clone", args{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, "EPERM"},
		{"clone", args{unix.CLONE_NEWNS}, "EPERM"},
		{"clone", args{unix.CLONE_NEWPID}, "EPERM"},
		{"clone", args{unix.CLONE_NEWNET}, "EPERM"},
		{"clone", args{unix.CLONE_NEWIPC}, "EPERM"},
		{"clone", args{unix.CLONE_NEWUTS}, "EPERM"},
		{"clone", args{unix.CLONE_NEWCGROUP}, "EPERM"},
		{"clone", args{unix.CLONE_NEWTIME}, "EPERM"},

		{"ioctl", args{0, unix.TIOCGWINSZ}, "allow"},
		{"ioctl", args{0, 0x541b}, "allow"},     // FIONREAD
		{"ioctl", args{0, 0xc020462a}, "allow"}, // NV_ESC_RM_CONTROL: a GPU is driven by ioctl
		{"ioctl", args{0, unix.TIOCSTI}, "EPERM"},
		{"ioctl", args{0, unix.TIOCLINUX}, "EPERM"},
		{"ioctl", args{unix.TIOCSTI, unix.TCGETS, unix.TIOCSTI}, "allow"},
		{"ioctl", args{0, 0x801c581f}, "allow"}, // FS_IOC_FSGETXATTR
		{"ioctl", args{0, 0x401c5820}, "EPERM"}, // FS_IOC_FSSETXATTR
		{"ioctl", args{0, unix.FS_IOC_GETFLAGS}, "allow"},
		{"ioctl", args{0, unix.FS_IOC_SETFLAGS}, "EPERM"},

		{"ioctl", args{0, 0x5000940e}, "EPERM"}, // BTRFS_IOC_SUBVOL_CREATE
		{"ioctl", args{0, 0x50009418}, "EPERM"}, // BTRFS_IOC_SUBVOL_CREATE_V2
		{"ioctl", args{0, 0x50009401}, "EPERM"}, // BTRFS_IOC_SNAP_CREATE
		{"ioctl", args{0, 0x50009417}, "EPERM"}, // BTRFS_IOC_SNAP_CREATE_V2
		{"ioctl", args{0, 0x40049409}, "allow"}, // FICLONE, of the same family

		{"setrlimit", args{unix.RLIMIT_NOFILE}, "allow"},
		{"setrlimit", args{unix.RLIMIT_CORE}, "EPERM"},
		{"prlimit64", args{0, unix.RLIMIT_NOFILE, 0x1000}, "allow"},
		{"prlimit64", args{0, unix.RLIMIT_CORE, 0x1000}, "EPERM"},

		{"personality", args{0}, "allow"},
		{"personality", args{0xffffffff}, "allow"},
		{"personality", args{0x0400000}, "EPERM"}, // READ_IMPLIES_EXEC
		{"personality", args{0x0040000}, "EPERM"}, // ADDR_NO_RANDOMIZE
		{"personality", args{8}, "EPERM"},         // PER_LINUX32

		{"socket", args{unix.AF_UNIX, unix.SOCK_STREAM}, "allow"},
		{"socket", args{unix.AF_UNIX, unix.SOCK_SEQPACKET | unix.SOCK_CLOEXEC, 1}, "allow"},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, "allow"},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, "EAFNOSUPPORT"},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, "EAFNOSUPPORT"},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT}, "EAFNOSUPPORT"},
		{"socket", args{unix.AF_INET, unix.SOCK_STREAM, 0}, inetOnly},
		{"socket", args{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, unix.IPPROTO_TCP}, inetOnly},
		{"socket", args{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, inetOnly},
		{"socket", args{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, "EAFNOSUPPORT, EPROTONOSUPPORT with Inet"},
		{"socket", args{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, "EAFNOSUPPORT, EPROTONOSUPPORT with Inet"},
		{"socket", args{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, "EAFNOSUPPORT, EPROTONOSUPPORT with Inet"},
		{"socket", args{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}, "EAFNOSUPPORT, EPROTONOSUPPORT with Inet"},
		{"socket", args{unix.AF_VSOCK, unix.SOCK_STREAM}, "EAFNOSUPPORT"},
		{"socket", args{unix.AF_PACKET, unix.SOCK_RAW}, "EAFNOSUPPORT"},
		{"socket", args{unix.AF_ALG, unix.SOCK_SEQPACKET}, "EAFNOSUPPORT"},
		{"socket", args{unix.AF_XDP, unix.SOCK_RAW}, "EAFNOSUPPORT"},
		{"socket", args{unix.AF_TIPC, unix.SOCK_RDM}, "EAFNOSUPPORT"},
		{"socket", args{unix.AF_RDS, unix.SOCK_SEQPACKET}, "EAFNOSUPPORT"},
		{"socket", args{unix.AF_BLUETOOTH, unix.SOCK_RAW}, "EAFNOSUPPORT"},
		{"socketpair", args{unix.AF_UNIX, unix.SOCK_STREAM}, "allow"},
		{"socketpair", args{unix.AF_TIPC, unix.SOCK_STREAM}, "EAFNOSUPPORT"},
		{"socketpair", args{unix.AF_INET, unix.SOCK_STREAM}, "EAFNOSUPPORT"},

		{"openat", args{0, 0, unix.O_RDONLY, 0o6755}, "allow"}, // nothing is made: the mode means nothing
		{"openat", args{0, 0, unix.O_CREAT | unix.O_WRONLY, 0o755}, "allow"},
		{"openat", args{0, 0, unix.O_CREAT | unix.O_WRONLY, 0o4755}, "EPERM"},
		{"openat", args{0, 0, unix.O_TMPFILE | unix.O_RDWR, 0o2755}, "EPERM"},
		{"openat", args{0, 0, unix.O_DIRECTORY, 0o6755}, "allow"},
		{"open", args{0, unix.O_CREAT, 0o644}, "allow"},
		{"open", args{0, unix.O_CREAT, 0o2644}, "EPERM"},
		{"creat", args{0, 0o644}, "allow"},
		{"creat", args{0, 0o4644}, "EPERM"},
		{"chmod", args{0, 0o1777}, "allow"},
		{"chmod", args{0, 0o6755}, "EPERM"},
		{"fchmod", args{0, 0o2755}, "EPERM"},
		{"fchmod", args{0, 0o755}, "allow"},
		{"fchmodat", args{0, 0, 0o4755}, "EPERM"},
		{"fchmodat2", args{0, 0, 0o4755}, "EPERM"},
		{"fchmodat2", args{0, 0, 0o755}, "allow"},
		{"mknod", args{0, unix.S_IFREG | 0o4755}, "EPERM"},
		{"fallocate", args{3, 0, 0, 1 << 30}, "ENOTSUP"},
		{"fallocate", args{3, unix.FALLOC_FL_KEEP_SIZE, 0, 1 << 30}, "ENOTSUP"},
		{"fallocate", args{3, unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE, 0, 1 << 30}, "allow"},
		{"fcntl", args{3, unix.F_GETFL}, "allow"},
		{"fcntl", args{3, unix.F_NOTIFY, 1}, "EPERM"},

		{"mknod", args{0, unix.S_IFREG | 0o600}, "allow"},
		{"mknod", args{0, unix.S_IFIFO | 0o600}, "allow"},
		{"mknod", args{0, unix.S_IFSOCK | 0o600}, "allow"},
		{"mknod", args{0, unix.S_IFCHR | 0o600}, "EPERM"},
		{"mknod", args{0, unix.S_IFBLK | 0o600}, "EPERM"},
		{"mknodat", args{0, unix.S_IFCHR, unix.S_IFIFO | 0o600}, "allow"},
		{"mknodat", args{0, 0, 0o600}, "allow"},
		{"mknodat", args{0, 0, unix.S_IFCHR | 0o600}, "EPERM"},
		{"mknodat", args{0, 0, unix.S_IFBLK | 0o600}, "EPERM"},
		// The kernel reads sixteen bits of the mode.
		{"mknodat", args{0, 0, 0x50000 | unix.S_IFCHR}, "EPERM"},

		{"prctl", args{unix.PR_SET_NAME}, "allow"},
		{"prctl", args{unix.PR_SET_VMA}, "allow"},
		{"prctl", args{unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_CREATE}, "EPERM"},
		{"prctl", args{unix.PR_SET_MEMORY_MERGE, 1}, "EPERM"},
		{"mmap", args{0, 4096, unix.PROT_READ, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS}, "allow"},
		{"mmap", args{0, 2 << 20, unix.PROT_READ, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_HUGETLB}, "ENOMEM"},
		{"shmget", args{0, 4096, 0o1600}, "allow"}, // IPC_CREAT
		{"shmget", args{0, 2 << 20, 0o1600 | 0o4000}, "ENOMEM"},
		{"memfd_create", args{0, unix.MFD_CLOEXEC}, "allow"},
		{"memfd_create", args{0, unix.MFD_CLOEXEC | unix.MFD_HUGETLB | unix.MFD_HUGE_1GB}, "ENOMEM"},
		{"madvise", args{0, 0, unix.MADV_DONTNEED}, "allow"},
		{"madvise", args{0, 0, unix.MADV_HUGEPAGE}, "allow"},
		{"madvise", args{0, 0, unix.MADV_MERGEABLE}, "EINVAL"},
	}
	for _, target := range targets {
		numbers := make(map[string]uint32)
		for _, call := range target.calls(t) {
			numbers[call.name] = call.number
		}
		for _, test := range tests {
			number, exists := numbers[test.name]
			if !exists {
				if target.arch != "arm64" || !slices.Contains([]string{"open", "creat", "chmod", "mknod"}, test.name) {
					t.Errorf("%v has no %s", target, test.name)
				}
				continue
			}
			want, otherwise, differs := strings.Cut(test.want, ", ")
			if differs && target.inet {
				want = strings.TrimSuffix(otherwise, " with Inet")
			}
			if got := target.ask(t, number, target.audit, test.args); got != want {
				t.Errorf("%v: %s%x: %s, want %s", target, test.name, test.args, got, want)
			}
			// What lies above the low half is not the kernel's concern, nor ours.
			high := test.args
			for i := range high {
				high[i] |= 0xdeadbeef_00000000
			}
			if got := target.ask(t, number, target.audit, high); got != want {
				t.Errorf("%v: %s%x: %s with high bits set, want %s", target, test.name, high, got, want)
			}
		}
	}
}

// A null pointer is null in both halves: one to memory at 4 GiB is not.
func TestCoreLimitIsReadAndNotSet(t *testing.T) {
	for _, target := range targets {
		for _, call := range target.calls(t) {
			if call.name != "prlimit64" {
				continue
			}
			for pointer, want := range map[uint64]string{0: "allow", 1: "EPERM", 1 << 32: "EPERM", 1<<32 | 1: "EPERM"} {
				if got := target.ask(t, call.number, target.audit, [6]uint64{0, unix.RLIMIT_CORE, pointer}); got != want {
					t.Errorf("%v: a new limit at %#x: %s, want %s", target, pointer, got, want)
				}
			}
		}
	}
}

func TestForeignArchitecturesAreKilled(t *testing.T) {
	for _, target := range targets {
		for _, foreign := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_AARCH64, 0} {
			for number := range uint32(last + 1) {
				if got := target.ask(t, number, foreign, [6]uint64{}); foreign != target.audit && got != "kill" {
					t.Fatalf("%v: number %d of architecture %#x: %s", target, number, foreign, got)
				}
			}
		}
		if target.arch != "amd64" {
			continue
		}
		for number := range uint32(last + 1) { // x32
			if got := target.ask(t, 0x40000000|number, target.audit, [6]uint64{}); got != "kill" {
				t.Fatalf("%v: x32 number %d: %s", target, number, got)
			}
		}
	}
}

func TestProgramsAreSmall(t *testing.T) {
	for _, target := range targets {
		t.Logf("%v: %d instructions", target, len(target.program))
		if len(target.program) >= 300 {
			t.Errorf("%v: %d instructions", target, len(target.program))
		}
	}
}
