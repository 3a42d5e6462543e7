//go:build linux

package launcher

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
	"golang.org/x/sys/unix"
)

// The users of these tests: numbers that no account has.
var (
	agentUser = User{64011, 64011}
	workUser  = User{64012, 64012}
)

// patience is how long anything may take that must happen.
const patience = time.Minute

// role makes the test binary play a part when it is started again: see puppet.
const role = "LAUNCHER_TEST_ROLE"

// built holds the programs that the tests run.
var built string

func TestMain(m *testing.M) {
	if os.Getenv(role) != "" {
		puppet()
		os.Exit(0)
	}
	os.Exit(withPrograms(m))
}

func withPrograms(m *testing.M) int {
	var err error
	if built, err = os.MkdirTemp("", "launcher-programs-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(built)
	for name, pkg := range map[string]string{"hanzo-stage": "../cmd/hanzo-stage", "train": "./testdata/train"} {
		// Where there is no compiler, in a test machine, they lie beside the tests.
		if src, err := os.ReadFile(name); err == nil {
			os.WriteFile(filepath.Join(built, name), src, 0o755)
			continue
		}
		build := exec.Command("go", "build", "-o", filepath.Join(built, name), pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
			return 1
		}
	}
	return m.Run()
}

// A rig is an installed host in a folder and a control group of its own.
type rig struct {
	testing.TB
	Config
	dir    string
	log    *journal
	cancel context.CancelFunc
	ended  chan error
}

// Log is the test's and not the Config's.
func (r *rig) Log(args ...any) { r.TB.Log(args...) }

// unified is where this host has cgroup v2, all of it or beside v1.
func unified(t testing.TB) string {
	t.Helper()
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return path
		}
	}
	t.Skip("this host has no control groups v2 where one looks for them")
	return ""
}

// controllers is what the kernel offers of the launcher's three: all, or on a host
// that has them on v1, none.
func controllers(t testing.TB) []string {
	src, err := os.ReadFile(filepath.Join(unified(t), "cgroup.subtree_control"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(strings.Fields(string(src)), c) {
			return []string{}
		}
	}
	return nil
}

// newRig installs a host; change is made to its Config before Run has it.
func newRig(t testing.TB, change ...func(*Config)) *rig {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the launcher is root, and so are its tests")
	}
	dir, err := os.MkdirTemp("", "launcher-test-")
	if err != nil {
		t.Fatal(err)
	}
	group, err := os.MkdirTemp(unified(t), "launcher-test-")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{TB: t, dir: dir, log: &journal{}, ended: make(chan error, 1)}
	t.Cleanup(func() {
		os.WriteFile(filepath.Join(group, "cgroup.kill"), []byte("1"), 0)
		for _, sub := range []string{"work", "agent", "forged", ""} {
			path := filepath.Join(group, sub)
			r.until("the group "+path+" is empty", func() bool {
				err := unix.Rmdir(path)
				return err == nil || errors.Is(err, unix.ENOENT)
			})
		}
		os.RemoveAll(dir)
	})
	for _, sub := range []string{"lib", "etc", "state", "state/store", "state/store/trees"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// As systemd/hanzo-link.tmpfiles has it.
	state := filepath.Join(dir, "state")
	r.must(os.Chmod(dir, 0o711), os.Chown(state, 0, int(agentUser.GID)), os.Chmod(state, os.ModeSticky|0o771))
	for _, sub := range []string{"state/store", "state/store/trees"} {
		r.must(os.Chown(filepath.Join(dir, sub), int(agentUser.UID), int(agentUser.GID)))
	}
	r.must(os.Mkdir(filepath.Join(group, "agent"), 0o755))
	r.delegate(group)
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, "launcher.sock"), Net: "unixpacket"})
	r.must(err, os.Chmod(filepath.Join(dir, "launcher.sock"), 0o777)) // that others are refused is not left to the mode here
	r.Config = Config{
		Listener: listener, Agent: agentUser, Work: workUser,
		Group: group, Run: dir + "/state/run", Spool: dir + "/state/spool", Store: dir + "/state/store",
		Lib: dir + "/lib", Policy: dir + "/etc/policy.json",
		Controllers: controllers(t),
		Log:         slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, name := range []string{"hanzo-stage", "train"} {
		r.must(os.Link(filepath.Join(built, name), filepath.Join(r.Lib, name)))
	}
	r.pin()
	r.policy(nil)
	for _, c := range change {
		c(&r.Config)
	}
	return r
}

// delegate gives the group to the agent, as systemd does.
func (r *rig) delegate(group string) {
	for _, name := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "agent", "agent/cgroup.procs", "agent/cgroup.subtree_control", "agent/cgroup.threads"} {
		r.must(os.Chown(filepath.Join(group, name), int(agentUser.UID), int(agentUser.GID)))
	}
}

// pin writes the manifest of what stands in lib.
func (r *rig) pin() {
	r.Helper()
	pins := make(map[string]string)
	for _, name := range []string{"hanzo-stage", "train"} {
		src, err := os.ReadFile(filepath.Join(r.Lib, name))
		r.must(err)
		sum := sha256.Sum256(src)
		pins[name] = hex.EncodeToString(sum[:])
	}
	r.write(filepath.Join(r.Lib, ManifestName), Manifest{pins})
}

// write replaces a file, as an editor or an installation does.
func (r *rig) write(path string, v any) {
	r.Helper()
	src, err := json.Marshal(v)
	r.must(err, os.WriteFile(path+".new", src, 0o644), os.Chmod(path+".new", 0o644), os.Rename(path+".new", path))
}

// policy writes a policy that admits the tests' work, with changes.
func (r *rig) policy(change map[string]any) {
	r.Helper()
	p := map[string]any{
		"kinds": []string{policy.TrainFit}, "orgs": []string{"acme"}, "concurrency": 4, "maxSec": 86400,
		"caps": map[string]any{"vram": 0, "memory": 1 << 30, "cpus": 16, "disk": 64 << 20},
	}
	for k, v := range change {
		p[k] = v
	}
	r.write(r.Policy, p)
}

// must fails the test on the first error.
func (r *rig) must(errs ...error) {
	r.Helper()
	for _, err := range errs {
		if err != nil {
			r.Fatalf("%v\n%s", err, r.log)
		}
	}
}

// until waits for what the kernel or another process does in its own time.
func (r *rig) until(what string, is func() bool) {
	r.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("never: %s\n%s", what, r.log)
		}
	}
}

// serve runs the launcher until the test ends, when nothing may be left of it.
func (r *rig) serve() *rig {
	r.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.ended <- Run(ctx, r.Config) }()
	r.Cleanup(func() {
		cancel()
		if err := <-r.ended; err != nil {
			r.Errorf("Run: %v", err)
		}
		r.ended <- nil
		if left, _ := os.ReadDir(r.Run); len(left) > 0 {
			r.Errorf("run directories are left: %v", left)
		}
		if left, _ := filepath.Glob(filepath.Join(r.Group, workName, "*/cgroup.procs")); len(left) > 0 {
			r.Errorf("control groups are left: %v", left)
		}
		if r.Failed() {
			r.Logf("the launcher's log:\n%s", r.log)
		}
	})
	return r
}

// tree puts a tree with one file into the store.
func (r *rig) tree(name, content string) string {
	r.Helper()
	sum := sha256.Sum256([]byte(content))
	hash := policy.TreeHash([]policy.TreeFile{{Path: name, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(content))}})
	dir := filepath.Join(r.Store, "trees", hash)
	if _, err := os.Lstat(dir); err != nil { // one that is there may be in use
		r.must(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, name), []byte(content), 0o444))
	}
	return hash
}

// input is an input of train.fit whose workload does as it is told.
func (r *rig) input(do string, n int) map[string]any {
	r.Helper()
	return map[string]any{
		"stage": r.tree("stage.json", fmt.Sprintf(`{"do":%q,"n":%d}`, do, n)), "base": r.tree("base", "base"),
		"memory": 128 << 20, "cpus": 1, "disk": 4 << 20, "vram": 0, "gpus": []int{}, "maxSec": 3600,
	}
}

var activities int

// envelope is a start as the cloud would ask for it.
func (r *rig) envelope(input map[string]any) *activity.Envelope {
	r.Helper()
	activities++
	src, err := json.Marshal(input)
	r.must(err)
	now := time.Now().UTC()
	return &activity.Envelope{
		Activity: fmt.Sprintf("act_%d", activities), Kind: policy.TrainFit, Org: "acme", Project: "default", Requester: "acme/alice",
		Issued: now.Format(time.RFC3339), Deadline: now.Add(time.Hour).Format(time.RFC3339), Input: canon.Raw(src),
	}
}

// An agent is a process with the agent's user in the agent's control group, and its
// connection, which the test holds.
type agent struct {
	*rig
	cmd     *exec.Cmd
	control *net.UnixConn
	conn    *ipc.Conn
	raw     *net.UnixConn
	files   []*os.File // of the last reply
}

// identity of a puppet, as tests change it.
type stranger struct {
	user  User
	group string // within the rig's group; "/" is outside of it
	flags uintptr
}

// connect starts an agent and connects it.
func (r *rig) connect() *agent { r.Helper(); return r.connectAs(stranger{agentUser, "agent", 0}) }

func (r *rig) connectAs(s stranger) *agent {
	r.Helper()
	a := r.puppet(s)
	a.dial()
	return a
}

// dial has the puppet connect, for the test to hold until its end.
func (a *agent) dial() {
	a.Helper()
	a.raw = a.dialed()
	a.conn = ipc.NewConn(a.raw)
	a.Cleanup(func() { a.raw.Close() })
}

// dialed has the puppet connect and hand the connection over.
func (a *agent) dialed() *net.UnixConn {
	a.Helper()
	a.send(deed{Do: "connect", Path: a.Listener.Addr().String()})
	var answer [64]byte
	oob := make([]byte, unix.CmsgSpace(4))
	a.must(a.control.SetReadDeadline(time.Now().Add(patience)))
	n, oobn, _, _, err := a.control.ReadMsgUnix(answer[:], oob)
	if err != nil || string(answer[:n]) != "connected" {
		a.Fatalf("the agent did not connect: %q %v\n%s", answer[:n], err, a.log)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	a.must(err)
	fds, err := unix.ParseUnixRights(&messages[0])
	a.must(err)
	f := os.NewFile(uintptr(fds[0]), "connection")
	defer f.Close()
	conn, err := net.FileConn(f)
	a.must(err)
	return conn.(*net.UnixConn)
}

// puppet starts a process that does what it is told.
func (r *rig) puppet(s stranger) *agent {
	r.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	r.must(err)
	ours, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	r.must(err)
	path := filepath.Join(r.Group, s.group)
	if s.group == "/" {
		path = unified(r)
	}
	group, err := os.Open(path)
	r.must(err)
	defer group.Close()
	a := &agent{rig: r, control: conn.(*net.UnixConn)}
	a.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"puppet"}, Env: []string{role + "=puppet"}, Dir: "/",
		Stderr: os.Stderr, ExtraFiles: []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: s.user.UID, Gid: s.user.GID},
			UseCgroupFD: true, CgroupFD: int(group.Fd()),
			Cloneflags: s.flags,
		},
	}
	if s.flags&unix.CLONE_NEWUSER != 0 {
		a.cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(s.user.UID), HostID: int(s.user.UID), Size: 1}}
		a.cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(s.user.GID), HostID: int(s.user.GID), Size: 1}}
	}
	r.must(a.cmd.Start())
	r.Cleanup(a.end)
	return a
}

// end ends the process; it has no way to refuse.
func (a *agent) end() {
	a.control.Close()
	if a.cmd.ProcessState == nil {
		a.cmd.Process.Kill()
		a.cmd.Wait()
	}
}

func (a *agent) send(d deed) {
	a.Helper()
	src, err := json.Marshal(d)
	a.must(err)
	_, err = a.control.Write(src)
	a.must(err)
}

// try has the process attempt something, and returns the error's name or "done".
func (a *agent) try(do, path, data string) string {
	a.Helper()
	a.send(deed{do, path, data})
	var answer [256]byte
	a.must(a.control.SetReadDeadline(time.Now().Add(patience)))
	n, err := a.control.Read(answer[:])
	a.must(err)
	return string(answer[:n])
}

// reply reads the next reply that is not ready, which comes whenever the policy has
// changed. The files that came are the test's until it ends.
func (a *agent) reply() ipc.Reply {
	a.Helper()
	for {
		if r := a.next(); r.Ready == nil {
			return r
		}
	}
}

// next reads the next reply.
func (a *agent) next() ipc.Reply {
	a.Helper()
	a.must(a.conn.SetReadDeadline(time.Now().Add(patience)))
	r, files, err := a.conn.ReadReply()
	if err != nil {
		a.Fatalf("no reply: %v\n%s", err, a.log)
	}
	a.files = files
	a.Cleanup(func() {
		for _, f := range files {
			f.Close()
		}
	})
	return r
}

// ready reads the first reply.
func (a *agent) ready() ipc.Ready {
	a.Helper()
	r := a.next()
	if r.Ready == nil {
		a.Fatalf("not ready: %+v\n%s", r.Refused, a.log)
	}
	return *r.Ready
}

// offered reads the first reply, which must offer train.fit.
func (a *agent) offered() *agent {
	a.Helper()
	if r := a.ready(); !slices.Equal(r.Kinds, []string{policy.TrainFit}) {
		a.Fatalf("ready with kinds %q: %q", r.Kinds, r.Reasons)
	}
	return a
}

// ask asks for a start and returns what is answered to it.
func (a *agent) ask(s *activity.Envelope) ipc.Reply {
	a.Helper()
	a.must(a.conn.WriteRequest(ipc.Request{Start: s}))
	return a.reply()
}

// start starts a workload, which must be admitted.
func (a *agent) start(do string, n int) *activity.Envelope {
	a.Helper()
	s := a.envelope(a.input(do, n))
	a.started(a.ask(s), s)
	return s
}

func (a *agent) started(r ipc.Reply, s *activity.Envelope) {
	a.Helper()
	if r.Started == nil || r.Started.Activity != s.Activity {
		a.Fatalf("not started: %+v %+v\n%s", r.Refused, r.Ended, a.log)
	}
}

// running waits until the workload of an activity says that it runs.
func (a *agent) running(s *activity.Envelope) {
	a.Helper()
	a.until(s.Activity+" runs", func() bool {
		_, err := os.Stat(filepath.Join(a.Spool, s.Activity, "running"))
		return err == nil
	})
}

func (a *agent) stop(s *activity.Envelope, reason activity.Reason) {
	a.Helper()
	a.must(a.conn.WriteRequest(ipc.Request{Stop: &ipc.Stop{Activity: s.Activity, Reason: reason}}))
}

// ended reads the next reply, which must be of this activity's end.
func (a *agent) ended(s *activity.Envelope) ipc.Ended {
	a.Helper()
	r := a.reply()
	if r.Ended == nil || r.Ended.Activity != s.Activity {
		a.Fatalf("%s did not end: %+v %+v\n%s", s.Activity, r.Refused, r.Ended, a.log)
	}
	return *r.Ended
}

// refused checks a reply that must be a refusal, with these words in it.
func (a *agent) refused(r ipc.Reply, code activity.Code, words string) {
	a.Helper()
	if r.Refused == nil || r.Refused.Code != code || !strings.Contains(r.Refused.Message, words) {
		a.Errorf("got %+v %+v, want a refusal with code %s and %q", r.Refused, r.Started, code, words)
	}
}

// closed reads to the connection's end.
func (a *agent) closed() {
	a.Helper()
	a.must(a.conn.SetReadDeadline(time.Now().Add(patience)))
	for {
		_, files, err := a.conn.ReadReply()
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			return
		}
		if err != nil {
			a.Fatalf("the connection did not end: %v\n%s", err, a.log)
		}
		for _, f := range files {
			f.Close()
		}
	}
}

// nothingRuns waits until no process of the workloads' user runs.
func (r *rig) nothingRuns() {
	r.Helper()
	r.until("no workload runs", func() bool { return len(r.workers()) == 0 })
}

// workers are the processes of the workloads' user in the rig's group.
func (r *rig) workers() (pids []string) {
	groups, _ := filepath.Glob(filepath.Join(r.Group, workName, "*/cgroup.procs"))
	for _, g := range groups {
		src, _ := os.ReadFile(g)
		for _, pid := range strings.Fields(string(src)) {
			var st unix.Stat_t
			if unix.Stat("/proc/"+pid+"/task", &st) != nil {
				continue
			}
			status, _ := os.ReadFile("/proc/" + pid + "/status")
			if bytes.Contains(status, fmt.Appendf(nil, "Uid:\t%d", workUser.UID)) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// journal is what the launcher has logged.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

// deed is what a puppet is told to do.
type deed struct{ Do, Path, Data string }

// puppet is the test binary as another process: it does what it is told by packets
// on descriptor 3, until that closes.
func puppet() {
	f := os.NewFile(3, "control")
	c, err := net.FileConn(f)
	if err != nil {
		panic(err)
	}
	f.Close()
	control := c.(*net.UnixConn)
	var held []int // descriptors that were opened and kept
	buf := make([]byte, 4096)
	for {
		n, err := control.Read(buf)
		if err != nil {
			return
		}
		var d deed
		if err := json.Unmarshal(buf[:n], &d); err != nil {
			panic(err)
		}
		if d.Do == "connect" {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				err = unix.Connect(fd, &unix.SockaddrUnix{Name: d.Path})
			}
			if err != nil {
				control.Write([]byte(err.Error()))
				continue
			}
			control.WriteMsgUnix([]byte("connected"), unix.UnixRights(fd), nil)
			unix.Close(fd)
			continue
		}
		err = attempt(d, &held)
		answer := "done"
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			answer = unix.ErrnoName(errno)
		} else if err != nil {
			answer = err.Error()
		}
		control.Write([]byte(answer))
	}
}

// attempt is what a compromised agent tries.
func attempt(d deed, held *[]int) error {
	switch d.Do {
	case "write":
		fd, err := unix.Open(d.Path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte(d.Data))
		return err
	case "hold": // opens for writing, and keeps it
		fd, err := unix.Open(d.Path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			*held = append(*held, fd)
		}
		return err
	case "write-held":
		_, err := unix.Write((*held)[len(*held)-1], []byte(d.Data))
		return err
	case "create":
		fd, err := unix.Open(d.Path, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		if err == nil {
			unix.Close(fd)
		}
		return err
	case "read":
		_, err := os.ReadFile(d.Path)
		return err
	case "mkdir":
		return unix.Mkdir(d.Path, 0o755)
	case "rmdir":
		return unix.Rmdir(d.Path)
	case "rename":
		return unix.Rename(d.Path, d.Data)
	case "chmod":
		return unix.Chmod(d.Path, 0o777)
	case "signal":
		var pid int
		fmt.Sscan(d.Path, &pid)
		return unix.Kill(pid, unix.SIGKILL)
	case "ptrace":
		var pid int
		fmt.Sscan(d.Path, &pid)
		return unix.PtraceAttach(pid)
	}
	return fmt.Errorf("no such deed: %s", d.Do)
}
