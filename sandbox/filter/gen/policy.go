//go:build linux

package main

import "golang.org/x/sys/unix"

// policy is the whole of it: what becomes of each call, by name. A word and a
// colon begin a group. Every call that golang.org/x/sys knows for a generated
// architecture must stand here once, and nothing else may, so that a newer table
// stops the generator instead of deciding by silence.
//
//	allow   the call is made
//	EPERM   known and refused: a caller is to learn that it may not
//	ENOSYS  not there, as on an older kernel: callers have a way without it
//	check   its arguments decide: see checks
//
// Allowed is what an ordinary program does to itself, its own files, its own
// children, and what the namespaces around it make its own (System V and POSIX
// IPC, signals, abstract sockets). The kernel's own checks still hold: the
// workload has no capability. The list leans to allowing what is harmless, for
// what runs here is Go, glibc, Python with its numeric libraries, and the user
// space of CUDA and ROCm.
const policy = `
# Reading and writing.
allow: read write pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2
allow: lseek sendfile splice tee vmsplice copy_file_range readahead fadvise64
allow: fsync fdatasync sync syncfs sync_file_range truncate ftruncate
allow: flock dup dup2 dup3 pipe pipe2 close close_range
check: fallocate fcntl

# Files by name.
allow: access faccessat faccessat2
allow: stat fstat lstat newfstatat statx statfs fstatfs getdents getdents64
allow: rename renameat renameat2 link linkat symlink symlinkat readlink readlinkat
allow: unlink unlinkat mkdir mkdirat rmdir chdir fchdir getcwd umask
allow: chown fchown lchown fchownat
allow: utime utimes futimesat utimensat
allow: setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr
allow: flistxattr removexattr lremovexattr fremovexattr
allow: setxattrat getxattrat listxattrat removexattrat
check: open openat creat chmod fchmod fchmodat fchmodat2 mknod mknodat ioctl

# Waiting on descriptors.
allow: poll ppoll select pselect6 eventfd eventfd2 signalfd signalfd4
allow: epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
allow: timerfd_create timerfd_settime timerfd_gettime

# Memory. The NUMA calls act on the caller's own pages; ROCm and BLAS libraries
# place buffers with mbind. mlock is bounded by RLIMIT_MEMLOCK.
allow: mprotect munmap mremap msync mincore brk mlock mlock2 munlock mlockall
allow: munlockall membarrier pkey_mprotect pkey_alloc pkey_free
allow: map_shadow_stack mseal mbind set_mempolicy get_mempolicy set_mempolicy_home_node
check: mmap memfd_create madvise

# Processes, threads, identity. The kernel refuses what needs a capability.
# uretprobe and uprobe serve the owner's own tracing: the kernel puts them into a
# traced program, and since 6.14 it does not ask the filter.
allow: fork vfork execve execveat exit exit_group wait4 waitid
allow: getpid getppid gettid getpgid setpgid getpgrp getsid setsid
allow: getuid geteuid getgid getegid getresuid getresgid getgroups
allow: setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups
allow: capget capset arch_prctl set_tid_address set_robust_list get_robust_list rseq
allow: rseq_slice_yield futex futex_waitv futex_wait futex_wake futex_requeue
allow: getrlimit getrusage getpriority setpriority
allow: ioprio_get ioprio_set sched_yield sched_setaffinity sched_getaffinity
allow: sched_setparam sched_getparam sched_setscheduler sched_getscheduler
allow: sched_setattr sched_getattr sched_get_priority_max sched_get_priority_min
allow: sched_rr_get_interval getcpu pidfd_open pidfd_send_signal process_mrelease
allow: restart_syscall uretprobe uprobe
check: clone prctl personality setrlimit prlimit64

# A workload may restrict itself further.
allow: seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self

# Signals and time.
allow: rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait
allow: rt_sigqueueinfo rt_tgsigqueueinfo rt_sigsuspend sigaltstack
allow: kill tkill tgkill pause alarm getitimer setitimer nanosleep
allow: clock_gettime clock_getres clock_nanosleep gettimeofday time times
allow: timer_create timer_settime timer_gettime timer_getoverrun timer_delete

# Sockets: the family decides when one is made, and nothing after that.
allow: connect accept accept4 bind listen shutdown getsockname getpeername
allow: sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg setsockopt getsockopt
check: socket socketpair

# IPC, inside an IPC namespace of its own.
check: shmget
allow: shmat shmctl shmdt semget semop semtimedop semctl
allow: msgget msgsnd msgrcv msgctl
allow: mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr

# The machine, to read.
allow: uname sysinfo getrandom

# Other processes' memory and descriptors, and the tools of a debugger.
EPERM: ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd
EPERM: perf_event_open bpf userfaultfd lookup_dcookie move_pages migrate_pages

# Mounts and namespaces.
EPERM: mount umount2 open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick
EPERM: mount_setattr pivot_root chroot unshare setns

# Files other than by a path that is visible, and other people's events and quotas: a
# watch on /usr sees what the owner runs, for the files are the same ones.
EPERM: open_by_handle_at name_to_handle_at fanotify_init fanotify_mark
EPERM: inotify_init inotify_init1 inotify_add_watch inotify_rm_watch
EPERM: quotactl quotactl_fd

# Keys: the session keyring is the sandbox's own, the user keyring is not.
EPERM: add_key request_key keyctl

# The machine, to change.
EPERM: reboot kexec_load kexec_file_load swapon swapoff acct syslog vhangup
EPERM: settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname
EPERM: create_module init_module finit_module delete_module query_module
EPERM: iopl ioperm modify_ldt

# clone3 keeps its flags in memory, where a filter does not see CLONE_NEW*, and
# openat2 its mode; callers fall back to clone and openat. io_uring makes calls that
# no filter sees.
ENOSYS: clone3 openat2 io_uring_setup io_uring_enter io_uring_register

# Kernel AIO counts against one number for the whole machine (fs.aio-max-nr),
# which a workload could use up for the owner's databases.
ENOSYS: io_setup io_destroy io_getevents io_submit io_cancel io_pgetevents

# memfd_secret hides pages from the owner. statmount, listmount and listns tell
# what the namespaces are there to hide. cachestat told, before 6.16, of any
# readable file whether others use it. file_setattr sets a project, and with it
# whose quota pays; see ioctl. Nobody needs the lsm calls.
ENOSYS: memfd_secret statmount listmount listns cachestat file_getattr file_setattr
ENOSYS: lsm_get_self_attr lsm_set_self_attr lsm_list_modules

# Dead or never alive: the kernel itself has no code behind most of these.
ENOSYS: uselib ustat sysfs _sysctl nfsservctl getpmsg putpmsg afs_syscall tuxcall
ENOSYS: security vserver get_kernel_syms set_thread_area get_thread_area
ENOSYS: epoll_ctl_old epoll_wait_old remap_file_pages arch_specific_syscall
`

// checks says what the arguments of a call decide; inet is Profile.Inet.
func checks(inet bool) map[string]verdict {
	// The bits that lend a file's user or group to whoever executes it. In a sandbox
	// they do nothing; a file that is kept would have them outside.
	plain := func(mode int, otherwise verdict) verdict {
		return check{arg: mode, mask: unix.S_ISUID | unix.S_ISGID, cases: []one{{0, otherwise}}, rest: eperm}
	}
	mknod := func(mode int) verdict {
		// Named pipes, sockets and files are the workload's own; a device node is a
		// door to the machine, even where no one could open it.
		return plain(mode, check{arg: mode, mask: unix.S_IFMT, cases: []one{
			{unix.S_IFCHR, eperm}, {unix.S_IFBLK, eperm},
		}, rest: allow})
	}
	// The mode means something only where a file is made; else it may be anything.
	open := func(flags int) verdict {
		return check{arg: flags, mask: unix.O_CREAT | tmpfile, cases: []one{{0, allow}}, rest: plain(flags+1, allow)}
	}
	socket := check{arg: 0, mask: all, cases: []one{
		{unix.AF_UNIX, allow},
		// Routes, addresses and links, which getaddrinfo and NCCL list. Other
		// netlink families (audit, netfilter, xfrm) load modules and have bugs.
		{unix.AF_NETLINK, check{arg: 2, mask: all, cases: []one{
			{unix.NETLINK_ROUTE, allow},
		}, rest: eafnosupport}},
	}, rest: eafnosupport} // AF_VSOCK above all: no network namespace holds it
	if inet {
		// SCTP, DCCP, L2TP, SMC and MPTCP would be loaded for anyone who asks by
		// number. Programs that prefer MPTCP (Go's listeners) fall back to TCP.
		protocols := check{arg: 2, mask: all, cases: []one{
			{0, allow}, {unix.IPPROTO_TCP, allow}, {unix.IPPROTO_UDP, allow},
		}, rest: eprotonosupport}
		socket.cases = append(socket.cases, one{unix.AF_INET, protocols}, one{unix.AF_INET6, protocols})
	}
	// Huge pages come from what the owner has set aside, for a database or virtual
	// machines, and no memory limit counts them. ENOMEM is what an empty pool says.
	huge := func(flags int, bit uint32) verdict {
		return check{arg: flags, mask: bit, cases: []one{{0, allow}}, rest: enomem}
	}
	return map[string]verdict{
		"mmap":         huge(3, unix.MAP_HUGETLB),
		"memfd_create": huge(1, unix.MFD_HUGETLB),
		"shmget":       huge(2, shmHuge),

		"open":      open(1),
		"openat":    open(2),
		"creat":     plain(1, allow),
		"chmod":     plain(1, allow),
		"fchmod":    plain(1, allow),
		"fchmodat":  plain(2, allow),
		"fchmodat2": plain(2, allow),

		// Space by the gigabyte in one call: with KEEP_SIZE past the largest file, in
		// files without a name past what is counted. Callers of posix_fallocate write
		// instead. Giving space back is allowed.
		"fallocate": check{arg: 1, mask: all, cases: []one{
			{unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, allow},
		}, rest: eopnotsupp},

		// The old way to watch a directory, as inotify.
		"fcntl": check{arg: 1, mask: all, cases: []one{{unix.F_NOTIFY, eperm}}, rest: allow},

		"mknod":   mknod(1),
		"mknodat": mknod(2),
		"socket":  socket,
		// The kernel makes the socket, and loads its family's module, before it
		// finds that the family has no pairs; TIPC has.
		"socketpair": check{arg: 0, mask: all, cases: []one{{unix.AF_UNIX, allow}}, rest: eafnosupport},

		"clone": check{arg: 0, mask: namespaces, cases: []one{{0, allow}}, rest: eperm},

		"ioctl": check{arg: 1, mask: all, cases: []one{
			// Both type into a terminal as if its user had (CVE-2017-5226).
			{unix.TIOCSTI, eperm}, {unix.TIOCLINUX, eperm},
			// A file's owner may set its project, or stop it from inheriting one, and
			// so leave the quota that the sandbox put on the run directory.
			{fsSetXattr, eperm}, {unix.FS_IOC_SETFLAGS, eperm},
			// btrfs lets anyone make a subvolume, which nothing can be moved out of,
			// and set it read-only: the run directory could not be removed any more.
			{btrfsSnapshot, eperm}, {btrfsSnapshot2, eperm}, {btrfsSubvolume, eperm}, {btrfsSubvolume2, eperm},
		}, rest: allow},

		// The limit of core files is 1, for which the kernel dumps none (package
		// stage). With 0 it would dump to a core_pattern that is a program, and run
		// that, outside and as root, on what the workload prepared.
		"setrlimit": check{arg: 0, mask: all, cases: []one{{unix.RLIMIT_CORE, eperm}}, rest: allow},
		"prlimit64": check{arg: 1, mask: all, cases: []one{
			// Without a new limit it asks.
			{unix.RLIMIT_CORE, check{arg: 2, mask: all, cases: []one{
				{0, check{arg: 2, high: true, mask: all, cases: []one{{0, allow}}, rest: eperm}},
			}, rest: eperm}},
		}, rest: allow},

		// Ask and do nothing. READ_IMPLIES_EXEC, ADDR_NO_RANDOMIZE and the like
		// would weaken set-user-ID programs once, and still weaken a child.
		"personality": check{arg: 0, mask: all, cases: []one{{0, allow}, {0xffffffff, allow}}, rest: eperm},

		"prctl": check{arg: 0, mask: all, cases: []one{
			// A core of one's own keeps its other hardware thread idle, which the
			// group's cpu.max does not pay for.
			{unix.PR_SCHED_CORE, eperm},
			// As MADV_MERGEABLE, for a whole process.
			{unix.PR_SET_MEMORY_MERGE, eperm},
		}, rest: allow},

		// Where the owner runs same-page merging (for virtual machines), the time a
		// write takes tells whether someone else has that page too. EINVAL is what
		// a kernel without it says.
		"madvise": check{arg: 2, mask: all, cases: []one{{unix.MADV_MERGEABLE, einval}}, rest: allow},
	}
}

const (
	all = 0xffffffff

	// CLONE_NEWTIME lies in the byte that clone reads as the exit signal, where no
	// signal has that number.
	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME

	tmpfile = 0x400000 // __O_TMPFILE of asm-generic/fcntl.h; O_TMPFILE has O_DIRECTORY too

	shmHuge = 0o4000 // SHM_HUGETLB of linux/shm.h

	fsSetXattr = 0x401c5820 // FS_IOC_FSSETXATTR of linux/fs.h, _IOW('X', 32, struct fsxattr)

	// BTRFS_IOC_SNAP_CREATE, BTRFS_IOC_SUBVOL_CREATE and their V2 of linux/btrfs.h.
	btrfsSnapshot, btrfsSnapshot2   = 0x50009401, 0x50009417
	btrfsSubvolume, btrfsSubvolume2 = 0x5000940e, 0x50009418
)
