//go:build linux

package attempt

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// processEfforts reach for other processes and for more rights.
var processEfforts = []effort{
	{1, "trace pid 1, a child, a sibling", "EPERM", tracing},
	{2, "read and steal from another process's memory and descriptors", "EPERM", otherMemory},
	{3, "open /proc/1/mem, environ, root, cwd, fd, exe, maps", "EACCES", initFiles},
	{4, "kill and stop pid 1", "no effect", killInit},
	{6, "see or signal a process of the host", "ESRCH", hostProcesses},
	{7, "become root or another user", "EPERM", otherUser},
	{8, "run programs that grant rights: set-user-ID, capabilities", "user unchanged", rightsPrograms},
	{9, "raise capabilities", "EPERM, none held", capabilities},
	{11, "leave a core dump", "none written", coreDump},
	{18, "take priority over others", "EPERM or EACCES", priority},
	{19, "leave 1000 zombies to pid 1", "reaped", zombies},
	{106, "be killed no sooner than others when memory runs out", "EACCES, or noted", oomScore},
	{107, "run code of its own from memory: memfd, execveat", "noted", fromMemory},
}

func tracing(t *trial) {
	child, end, err := bystander()
	if err != nil {
		t.failed("no child to trace: %v", err)
		return
	}
	defer end()
	t.refused("attach to a child", sys(unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(child)), unix.EPERM)
	t.denied(unix.EPERM, "attach to a sibling", unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(child))
	t.denied(unix.EPERM, "seize pid 1", unix.SYS_PTRACE, unix.PTRACE_SEIZE, 1) // which stops nothing
}

func otherMemory(t *trial) {
	child, end, err := bystander()
	if err != nil {
		t.failed("no child to read: %v", err)
		return
	}
	defer end()
	var word uint64
	local := unix.Iovec{Base: (*byte)(unsafe.Pointer(&word)), Len: 8}
	remote := unix.RemoteIovec{Base: address(&word), Len: 8}
	l, r := address(&local), address(&remote)
	for _, pid := range []int{1, child} {
		p, of := uintptr(pid), map[int]string{1: " of pid 1", child: " of a child"}[pid]
		t.denied(unix.EPERM, "process_vm_readv"+of, unix.SYS_PROCESS_VM_READV, p, l, 1, r, 1, 0)
		t.denied(unix.EPERM, "process_vm_writev"+of, unix.SYS_PROCESS_VM_WRITEV, p, l, 0, r, 0, 0)
		t.denied(unix.EPERM, "kcmp"+of, unix.SYS_KCMP, p, p, 0, 0, 0)
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.failed("pidfd_open%s: %v", of, err)
			continue
		}
		t.denied(unix.EPERM, "pidfd_getfd"+of, unix.SYS_PIDFD_GETFD, uintptr(fd), 1, 0)
		t.denied(unix.EPERM, "process_madvise"+of, unix.SYS_PROCESS_MADVISE, uintptr(fd), r, 1, unix.MADV_COLD, 0)
		unix.Close(fd)
	}
}

func initFiles(t *trial) {
	for _, name := range []string{"mem", "environ", "root", "cwd", "fd", "exe", "maps", "auxv", "syscall", "stack", "io"} {
		path := "/proc/1/" + name
		t.refused(path, tryOpen(path, unix.O_RDONLY), unix.EACCES, unix.EPERM, unix.ENOENT)
	}
	t.refused("/proc/1/mem to write", tryOpen("/proc/1/mem", unix.O_RDWR), unix.EACCES, unix.EPERM)
}

// killInit sends what a kernel never delivers to a pid 1 from within. Were it
// delivered, this line would not come.
func killInit(t *trial) {
	for _, signal := range []unix.Signal{unix.SIGKILL, unix.SIGSTOP} {
		if err := unix.Kill(1, signal); err != nil {
			t.held(answer(err))
		}
	}
	state, _, err := processStat(1)
	switch {
	case err != nil:
		t.failed("pid 1 cannot be seen: %v", err)
	case strings.Contains("TtZX", state):
		t.gaveWay("pid 1 is in state %s", state)
	default:
		t.held("no effect")
	}
}

// processStat is the state letter and the parent of a process.
func processStat(pid int) (state string, parent int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, err
	}
	// pid (name) state ppid ...: the name may hold anything, but ends last
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 2 {
		return "", 0, fmt.Errorf("/proc/%d/stat is short", pid)
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0], parent, err
}

// processes are the pids that /proc lists.
func processes() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// hostProcesses looks for a process that does not descend from pid 1 of this
// namespace. A host has its own pid 1, so a parent of 0 is told apart by there
// being exactly one.
func hostProcesses(t *trial) {
	pids, err := processes()
	if err != nil {
		t.failed("/proc cannot be listed: %v", err)
		return
	}
	for _, pid := range pids {
		_, parent, err := processStat(pid)
		if err != nil {
			continue // it ended
		}
		if pid != 1 && (parent == 0 || !slices.Contains(pids, parent)) {
			t.gaveWay("process %d has parent %d", pid, parent)
		}
	}
	if len(pids) > 16 {
		t.gaveWay("/proc lists %d processes", len(pids))
	}
	const last = 1 << 16 // what a host that was not told otherwise numbers up to twice
	for pid := 2; pid < last; pid++ {
		if unix.Kill(pid, 0) == unix.ESRCH {
			continue
		}
		status, err := procStatus(fmt.Sprintf("/proc/%d/status", pid)) // also of a thread's id
		if err != nil && unix.Kill(pid, 0) == unix.ESRCH {
			continue // it ended
		}
		if group, _ := strconv.Atoi(status["Tgid"]); !slices.Contains(pids, group) {
			t.gaveWay("a signal reaches %d, which /proc does not list", pid)
		}
	}
	t.held("ESRCH")
}

func otherUser(t *trial) {
	keep, root, other := ^uintptr(0), uintptr(0), uintptr(os.Getuid()+1)
	t.denied(unix.EPERM, "setuid(0)", unix.SYS_SETUID, root)
	t.denied(unix.EPERM, "setresuid to another user", unix.SYS_SETRESUID, other, other, other)
	t.denied(unix.EPERM, "setresuid to root, saved", unix.SYS_SETRESUID, keep, keep, root)
	t.denied(unix.EPERM, "setreuid(0, 0)", unix.SYS_SETREUID, root, root)
	t.denied(unix.EPERM, "setgid(0)", unix.SYS_SETGID, root)
	t.denied(unix.EPERM, "setresgid to root", unix.SYS_SETRESGID, root, root, root)
	t.denied(unix.EPERM, "setgroups of root", unix.SYS_SETGROUPS, 1, address(new(uint32)))
	for _, number := range []uintptr{unix.SYS_SETFSUID, unix.SYS_SETFSGID} {
		value(number, 0) // answers the old one, whatever it did
		if now, _ := value(number, keep); now == 0 {
			t.gaveWay("file access as root")
		}
	}
	status, err := procStatus("/proc/thread-self/status")
	if err != nil {
		t.failed("own status: %v", err)
		return
	}
	if fields := strings.Fields(status["Uid"] + " " + status["Gid"]); slices.Contains(fields, "0") {
		t.gaveWay("an id is 0: %v", fields)
	}
	if slices.Contains(strings.Fields(status["Groups"]), "0") {
		t.gaveWay("in group 0")
	}
	if status["NoNewPrivs"] != "1" {
		t.gaveWay("programs may gain rights when executed")
	}
	if status["Seccomp"] != "2" {
		t.gaveWay("no system call filter")
	}
}

// procStatus is a status file of /proc as fields.
func procStatus(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields, nil
}

// grantsRights reports whether executing a file would grant rights: by its mode, or
// by capabilities stored with it.
func grantsRights(path string, entry fs.DirEntry) bool {
	info, err := entry.Info()
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return false
	}
	size, err := unix.Lgetxattr(path, "security.capability", nil)
	return info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 || err == nil && size > 0
}

func rightsPrograms(t *trial) {
	for _, dir := range []string{"/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/usr/libexec", "/usr/lib", "/opt"} {
		filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
			case entry.IsDir() && strings.Count(strings.TrimPrefix(path, dir), "/") > 1:
				return filepath.SkipDir
			case !entry.IsDir() && grantsRights(path, entry):
				t.execute(path)
			}
			return nil
		})
	}
	if len(t.answers) == 0 && len(t.gave) == 0 {
		t.held("none to be found")
	}
}

// execute runs a program until it can be stopped, before it has done much, and
// looks at who it is. One that has ended by then is looked at as a zombie.
func (t *trial) execute(path string) {
	pid, err := syscall.ForkExec(path, []string{path}, &syscall.ProcAttr{}) // without any descriptor
	if err != nil {
		t.refused("running "+path, err, unix.EACCES, unix.EPERM)
		return
	}
	defer func() {
		unix.Kill(pid, unix.SIGKILL)
		reap(pid)
	}()
	unix.Kill(pid, unix.SIGSTOP)
	unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
	status, err := procStatus(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.gaveWay("%s: %v", path, err)
		return
	}
	uid, gid := strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid())
	others := func(id string) bool { return id != uid && id != gid }
	if slices.ContainsFunc(strings.Fields(status["Uid"]+" "+status["Gid"]), others) {
		t.gaveWay("%s runs as user %s, group %s", path, status["Uid"], status["Gid"])
	}
	if strings.Trim(status["CapEff"]+status["CapPrm"], "0") != "" {
		t.gaveWay("%s runs with capabilities %s", path, status["CapPrm"])
	}
	t.held("user unchanged")
}

func capabilities(t *trial) {
	status, err := procStatus("/proc/thread-self/status")
	if err != nil {
		t.failed("own status: %v", err)
		return
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if strings.Trim(status[set], "0") != "" {
			t.gaveWay("%s is %s", set, status[set])
		}
	}
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		t.denied(unix.EPERM, fmt.Sprintf("ambient capability %d", c), unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c, 0, 0)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	all := [2]unix.CapUserData{{Effective: ^uint32(0), Permitted: ^uint32(0)}, {Effective: 0x1ff, Permitted: 0x1ff}}
	t.denied(unix.EPERM, "capset of all", unix.SYS_CAPSET, address(&header), address(&all[0]))
	t.denied(unix.EPERM, "drop what makes root safe", unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, 0x1)
	path := filepath.Join(t.Run, "capable")
	if os.WriteFile(path, nil, 0o755) == nil {
		defer os.Remove(path)
		grant := []byte{1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0}
		t.refused("give a file capabilities", unix.Setxattr(path, "security.capability", grant, 0), unix.EPERM, unix.EOPNOTSUPP)
	}
}

// coreDump raises what it may and crashes a child that allows to be dumped.
func coreDump(t *trial) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err == nil && limit.Max > 1 {
		t.gaveWay("a core dump may have %d bytes", limit.Max)
	}
	t.refused("raise the limit of core dumps",
		unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}), unix.EPERM)
	// With 0 the kernel still runs a core_pattern that is a program.
	none := address(&unix.Rlimit{})
	t.denied(unix.EPERM, "setrlimit to 0", unix.SYS_SETRLIMIT, unix.RLIMIT_CORE, none)
	t.denied(unix.EPERM, "prlimit to 0", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, none, 0)
	child, errno := fork()
	if errno != 0 {
		t.failed("no child: %v", errno)
		return
	}
	if child == 0 {
		unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1, 0, 0, 0, 0)
		// Go handles the signals that dump core, so back to the kernel's default.
		unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGABRT), defaultAddress, 0, 8, 0, 0)
		unix.RawSyscall6(unix.SYS_KILL, ownPid(), uintptr(unix.SIGABRT), 0, 0, 0, 0)
		exit(1)
	}
	status, err := reap(child)
	switch {
	case err != nil:
		t.failed("wait: %v", err)
	case status.CoreDump():
		t.gaveWay("the kernel wrote or handed over a core dump")
	case !status.Signaled():
		t.gaveWay("the child did not crash but ended with %#x", uint32(status))
	}
	if cores, _ := filepath.Glob(filepath.Join(t.Run, "core*")); len(cores) > 0 {
		t.gaveWay("left %s", cores[0])
		for _, path := range cores {
			os.Remove(path)
		}
		return
	}
	t.held("none written")
}

// defaultAction is struct sigaction for SIG_DFL.
var (
	defaultAction  [4]uint64
	defaultAddress = address(&defaultAction)
)

//go:nosplit
func ownPid() uintptr {
	pid, _, _ := unix.RawSyscall6(unix.SYS_GETPID, 0, 0, 0, 0, 0, 0)
	return pid
}

func priority(t *trial) {
	t.refused("nice -20", sys(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, ^uintptr(19)), unix.EPERM, unix.EACCES)
	one := int32(1)
	param := address(&one)
	const fifo, roundRobin, deadline, ioRealtime = 1, 2, 6, 1 << 13
	t.denied(unix.EPERM, "SCHED_FIFO", unix.SYS_SCHED_SETSCHEDULER, 0, fifo, param)
	t.denied(unix.EPERM, "SCHED_RR", unix.SYS_SCHED_SETSCHEDULER, 0, roundRobin, param)
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: deadline, Runtime: 1e7, Deadline: 1e8, Period: 1e8}
	t.denied(unix.EPERM, "SCHED_DEADLINE", unix.SYS_SCHED_SETATTR, 0, address(&attr), 0)
	t.denied(unix.EPERM, "realtime disk priority", unix.SYS_IOPRIO_SET, 1, 0, ioRealtime)
	for _, limit := range []int{unix.RLIMIT_NICE, unix.RLIMIT_RTPRIO} {
		t.refused("raise the limit of priority", unix.Setrlimit(limit, &unix.Rlimit{Cur: 20, Max: 20}), unix.EPERM)
	}
	err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	t.refused("be spared when memory runs out", err, unix.EACCES, unix.EPERM, unix.EROFS)
}

// oomScore takes back what the sandbox gave it, by which it dies before what is the
// owner's. The kernel lets nobody go below what root with CAP_SYS_RESOURCE has set;
// where the launcher has not that, this is possible, and the limit on memory stays.
func oomScore(t *trial) {
	const path = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(path)
	if err != nil {
		t.failed("%v", err)
		return
	}
	defer os.WriteFile(path, before, 0)
	err = os.WriteFile(path, []byte("0"), 0)
	if err == nil {
		t.held("noted: can be taken back to 0")
		return
	}
	t.refused("writing 0", err, unix.EACCES, unix.EPERM, unix.EROFS)
}

// fromMemory executes a copy of this program that is in no file. Mounts that execute
// nothing keep no one from it: a workload runs what it likes, and that is no wall.
func fromMemory(t *trial) {
	code, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.failed("%v", err)
		return
	}
	fd, err := unix.MemfdCreate("code", unix.MFD_CLOEXEC)
	if err != nil {
		t.held(answer(err))
		return
	}
	f := os.NewFile(uintptr(fd), "code")
	defer f.Close()
	if _, err := f.Write(code); err != nil {
		t.failed("%v", err)
		return
	}
	const wrongly = 2 // the status of Main that is called without a mode
	empty := pointer("")
	args := address(&[]uintptr{pointer("code"), pointer(Argument), 0}[0])
	env := address(new(uintptr))
	child, errno := fork()
	if errno != 0 {
		t.failed("no child: %v", errno)
		return
	}
	if child == 0 {
		_, _, e := unix.RawSyscall6(unix.SYS_EXECVEAT, uintptr(fd), empty, args, env, unix.AT_EMPTY_PATH, 0)
		exit(uintptr(e))
	}
	status, err := reap(child)
	switch {
	case err != nil:
		t.failed("wait: %v", err)
	case status.Exited() && status.ExitStatus() == wrongly:
		t.held("noted: possible")
	case status.Exited():
		t.held(answer(asErrno(status.ExitStatus())))
	default:
		t.held(unix.SignalName(status.Signal()))
	}
}

func zombies(t *trial) {
	const number, batch = 1000, 100 // a zombie still counts as a process
	for made := 0; made < number; made += batch {
		if err := orphan(batch); err != nil {
			t.failed("after %d: %v", made, err)
			return
		}
		if left := awaitReaped(10 * time.Second); left > 0 {
			t.gaveWay("%d zombies are left", left)
			return
		}
	}
	t.held("reaped")
}

// orphan leaves n ended processes to pid 1.
func orphan(n int) error {
	parent, errno := fork()
	if errno != 0 {
		return errno
	}
	if parent == 0 {
		for range n {
			child, errno := fork()
			if errno != 0 {
				exit(uintptr(errno))
			}
			if child == 0 {
				exit(0)
			}
		}
		exit(0)
	}
	status, err := reap(parent)
	if err != nil {
		return err
	}
	return asErrno(status.ExitStatus())
}

// awaitReaped is how many zombies pid 1 still has when there are none any more or
// the time is up.
func awaitReaped(limit time.Duration) int {
	for end := time.Now().Add(limit); ; {
		pids, err := processes()
		if err != nil {
			return -1
		}
		left := 0
		for _, pid := range pids {
			if state, parent, err := processStat(pid); err == nil && state == "Z" && parent == 1 {
				left++
			}
		}
		if left == 0 || time.Now().After(end) {
			return left
		}
		time.Sleep(time.Millisecond)
	}
}
