//go:build linux

package sandboxcmd

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/sandbox"
)

// ground is where the check builds: a control group and a folder of its own, and
// things of the host that a workload must not reach.
type ground struct {
	where string   // the folder in which ours is made
	dir   string   // ours, which root alone can pass; "" when it could not be made
	root  *os.Root // the same, open: run/, in/, spools and a secret
	group string   // the control group, "" on a host where there is none to be had
	on    []string // the controllers that it can limit with
	stage *os.File
	user  uint32

	secret   string       // a file below dir
	tcp      net.Listener // a port of 127.0.0.1
	abstract net.Listener // an abstract Unix socket
	reached  atomic.Int32 // how often somebody connected to either

	record []string // the controllers that were turned on above the group
	undo   []func() error
}

// newGround prepares it. With an error nothing can be tried on it, but the probe can
// still say what this host has; the caller closes it in any case. That there is no
// control group to be had is for the probe to say, and no error.
func newGround() (*ground, error) {
	g := &ground{where: place()}
	return g, g.make()
}

func (g *ground) make() (err error) {
	if err := owned(g.where); err != nil {
		return err
	}
	for _, where := range places {
		sweep(where)
	}
	for _, top := range tops {
		sweep(top)
	}
	if err := room(g.where); err != nil {
		return err
	}
	if err := fileSizes(); err != nil {
		return err
	}
	if g.user, err = worker(); err != nil {
		return err
	}
	if g.dir, err = os.MkdirTemp(g.where, fmt.Sprintf(prefix+"%d-*", os.Getpid())); err != nil {
		return err
	}
	g.later(func() error { return os.RemoveAll(g.dir) })
	if g.root, err = os.OpenRoot(g.dir); err != nil {
		return err
	}
	g.later(g.root.Close)
	for _, name := range []string{"run", "in"} {
		if err := g.root.Mkdir(name, 0o700); err != nil {
			return err
		}
	}
	g.secret = filepath.Join(g.dir, "secret")
	if err := g.write("secret", 0o644); err != nil {
		return err
	}
	if err := g.makeGroup(); err != nil {
		return err
	}
	if err := g.listen(); err != nil {
		return err
	}
	if g.stage, err = openStage(); err != nil {
		return err
	}
	g.later(g.stage.Close)
	return nil
}

// write makes a new file in the folder.
func (g *ground) write(name string, mode os.FileMode) error {
	f, err := g.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString("{}\n")
	return errors.Join(err, f.Chmod(mode), f.Close())
}

// prefix begins the names of all folders and groups; the number of the check's
// process follows.
const prefix = "hanzo-check-"

// tops are where a host has control groups v2.
var tops = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// places are where a check makes its folder: where real work lies and, before
// anything is installed, above it, so that it is the same file system.
var places = []string{"/var/lib/hanzo/link", "/var/lib"}

// place is the first that there is. The path's own, for the sandbox follows no link.
func place() string {
	for _, path := range places {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return real
		}
	}
	return places[len(places)-1]
}

// owned checks that nobody but root can put something else where root is about to
// write: that every folder down to dir is root's and, where others may write, sticky.
func owned(dir string) error {
	for path := dir; ; path = filepath.Dir(path) {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "stat", Path: path, Err: err}
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 || st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
			return fmt.Errorf("others than root can replace what is in %s (user %d, mode %04o), so nothing is made in %s: give it to root, with mode 0755",
				path, st.Uid, st.Mode&0o7777, dir)
		}
		if path == "/" {
			return nil
		}
	}
}

// What an attempt may write before it is stopped, and what all files take beside it.
const (
	roomBytes = 4*disk + 64<<20
	roomFiles = 4096
)

// room checks that a file system has it, since one that is full answers as a limit
// would.
func room(where string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(where, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: where, Err: err}
	}
	if free := int64(st.Bavail) * st.Bsize; free < roomBytes {
		return fmt.Errorf("not enough room in %s: %d MiB are free and %d MiB needed, for attempts to fill it", where, free>>20, roomBytes>>20)
	}
	// Those without a fixed number of files say 0.
	if st.Files > 0 && st.Ffree < roomFiles {
		return fmt.Errorf("not enough room in %s: %d more files can be made and %d are needed", where, st.Ffree, roomFiles)
	}
	return nil
}

// fileSizes lifts this process's own limit on files, below which a workload could not
// be seen to meet its own.
func fileSizes() error {
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &now); err != nil {
		return err
	}
	if now.Cur >= disk {
		return nil
	}
	most := now.Max
	if most < disk {
		most = unix.RLIM_INFINITY // which takes CAP_SYS_RESOURCE
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: most, Max: most}); err != nil {
		return fmt.Errorf("a limit (ulimit -f) lets files have only %d bytes and the attempts need %d: start it from a shell without that limit", now.Max, int64(disk))
	}
	return nil
}

// onRecord is the attribute of a control group that says which controllers were
// turned on above it for its sake. It goes with the group.
const onRecord = "trusted.hanzo.on"

// sweep takes away from a folder, or from the top of the control groups, what checks
// left that were killed: their workloads died with them. What cannot be taken away
// yet, the next check finds again. What is not root's is no check's, whatever its
// name; it is removed without following links.
func sweep(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, prefix+"*"))
	for _, path := range left {
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil || st.Uid != 0 || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		number, _, whole := strings.Cut(strings.TrimPrefix(filepath.Base(path), prefix), "-")
		pid, err := strconv.Atoi(number)
		if !whole || err != nil || pid <= 0 || unix.Kill(pid, 0) != unix.ESRCH {
			continue
		}
		record := make([]byte, 256)
		n, _ := unix.Lgetxattr(path, onRecord, record)
		if kill, err := os.OpenFile(filepath.Join(path, "cgroup.kill"), os.O_WRONLY, 0); err == nil {
			kill.WriteString("1") // those of its workloads that are not dead yet
			kill.Close()
		}
		if os.RemoveAll(path) != nil {
			continue
		}
		for _, controller := range strings.Fields(string(record[:max(n, 0)])) {
			turnOff(dir, controller)
		}
	}
}

// later adds a step of close.
func (g *ground) later(undo func() error) { g.undo = append(g.undo, undo) }

// close takes everything away, the last first.
func (g *ground) close() error {
	var errs []error
	for _, undo := range slices.Backward(g.undo) {
		errs = append(errs, undo())
	}
	g.undo = nil
	return errors.Join(errs...)
}

// config is the ground as package sandbox wants it. What there is not has the name
// that it would have.
func (g *ground) config() sandbox.Config {
	return sandbox.Config{
		Group: cmp.Or(g.group, filepath.Join(tops[0], prefix+"group")),
		Run:   filepath.Join(cmp.Or(g.dir, g.where), "run"),
		Stage: g.stage, User: g.user,
	}
}

// limited reports whether the group can limit with this controller.
func (g *ground) limited(controller string) bool { return slices.Contains(g.on, controller) }

// worker is the user that workloads run as: hanzo-work where the host has it, and
// otherwise a number that no account has.
func worker() (uint32, error) {
	if u, err := user.Lookup("hanzo-work"); err == nil {
		n, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil || n == 0 {
			return 0, fmt.Errorf("the user hanzo-work has the number %s", u.Uid)
		}
		return uint32(n), nil
	}
	const first, last = 64000, 64999 // beyond what adduser gives out, below nobody
	for n := first; n <= last; n++ {
		if _, err := user.LookupId(strconv.Itoa(n)); err != nil {
			return uint32(n), nil
		}
	}
	return 0, fmt.Errorf("every user number from %d to %d is an account's", first, last)
}

// makeGroup makes a group of our own at the top of the host's tree, with the
// controllers that limits need where there are any. The real one lies in the
// agent's unit; which of the two it is makes no difference to a workload.
func (g *ground) makeGroup() error {
	for _, top := range tops {
		var st unix.Statfs_t
		if unix.Statfs(top, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		group := filepath.Join(top, filepath.Base(g.dir))
		if err := os.Mkdir(group, 0o755); err != nil {
			return err
		}
		g.group = group
		for _, c := range []string{"cpu", "memory", "pids"} {
			// systemd has a controller on at the top when some unit asked for it.
			if g.turnOn(top, c) == nil && g.turnOn(group, c) == nil {
				g.on = append(g.on, c)
			}
		}
		g.later(func() error { return os.Remove(group) })
		return nil
	}
	return nil // the probe says so
}

// turnOn turns a controller on for the groups in dir, and off again afterwards,
// unless it was on.
func (g *ground) turnOn(dir, controller string) error {
	control := filepath.Join(dir, "cgroup.subtree_control")
	b, err := os.ReadFile(control)
	if err != nil {
		return err
	}
	if slices.Contains(strings.Fields(string(b)), controller) {
		return nil
	}
	if dir != g.group {
		// First, for a check that is killed. A kernel without such attributes keeps
		// the controllers on then, until the next boot.
		g.record = append(g.record, controller)
		unix.Setxattr(g.group, onRecord, []byte(strings.Join(g.record, " ")), 0)
	}
	if err := os.WriteFile(control, []byte("+"+controller), 0); err != nil {
		return err
	}
	g.later(func() error { return turnOff(dir, controller) })
	return nil
}

// turnOff leaves a controller on that another has need of by now.
func turnOff(dir, controller string) error {
	err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("-"+controller), 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}

const (
	stageName    = "hanzo-stage"
	stagePackage = "github.com/hanzoai/link/cmd/hanzo-stage" // as every Go program says of itself
)

// openStage opens hanzo-stage: the one beside this program, or the installed one.
func openStage() (*os.File, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	beside := filepath.Dir(self)
	for _, dir := range []string{beside, lib} {
		path := filepath.Join(dir, stageName)
		// Not blocking, for it may be a FIFO.
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := isStage(f); err != nil {
			f.Close()
			return nil, fmt.Errorf("%s %w: put the hanzo-stage there that was built with this program", path, err)
		}
		return f, nil
	}
	return nil, fmt.Errorf("hanzo-stage, which builds a sandbox from inside, is neither in %s nor in %s: put it beside this program", beside, lib)
}

func isStage(f *os.File) error {
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return errors.New("is a folder")
	case !info.Mode().IsRegular():
		return errors.New("is no file")
	case info.Mode()&0o111 == 0:
		return errors.New("is not executable")
	}
	built, err := buildinfo.Read(f)
	if err != nil {
		return errors.New("is another program or none")
	}
	if built.Path != stagePackage {
		return fmt.Errorf("is another program, %s", built.Path)
	}
	return nil
}

// listen opens what a program on the host itself could connect to.
func (g *ground) listen() error {
	name := "@" + filepath.Base(g.dir)
	for _, l := range []struct {
		network, address string
		to               *net.Listener
	}{{"tcp4", "127.0.0.1:0", &g.tcp}, {"unix", name, &g.abstract}} {
		listener, err := new(net.ListenConfig).Listen(context.Background(), l.network, l.address)
		if err != nil {
			return err
		}
		*l.to = listener
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				g.reached.Add(1)
				c.Close()
			}
		}()
		g.later(func() error {
			err := listener.Close()
			<-done
			return err
		})
	}
	return nil
}

func (g *ground) port() int { return g.tcp.Addr().(*net.TCPAddr).Port }

func (g *ground) abstractName() string {
	return strings.TrimPrefix(g.abstract.Addr().String(), "@")
}
