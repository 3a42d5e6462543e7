//go:build linux

package sandboxcmd

import (
	"cmp"
	"context"
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
	dir   string // the folder, root's: run/, in/, spool/ and a secret
	group string // the control group, "" on a host where there is none to be had
	on    []string
	stage *os.File
	user  uint32

	secret   string       // a file that anyone on the host may read
	tcp      net.Listener // a port of 127.0.0.1
	abstract net.Listener // an abstract Unix socket
	reached  atomic.Int32 // how often somebody connected to either

	undo []func() error
}

// newGround prepares it. That there is no control group to be had is for the probe
// to say, and no error.
func newGround() (_ *ground, err error) {
	g := new(ground)
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	where := "/var/lib/hanzo/link" // so that it is the file system of real work
	if info, err := os.Stat(where); err != nil || !info.IsDir() {
		where = ""
	}
	sweep(append(tops, cmp.Or(where, os.TempDir()))...)
	if g.dir, err = os.MkdirTemp(where, fmt.Sprintf(prefix+"%d-*", os.Getpid())); err != nil {
		return nil, err
	}
	g.later(func() error { return os.RemoveAll(g.dir) })
	for _, name := range []string{"run", "in"} {
		if err := os.Mkdir(filepath.Join(g.dir, name), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(g.dir, 0o755); err != nil { // only the sandbox hides what follows
		return nil, err
	}
	g.secret = filepath.Join(g.dir, "secret")
	if err := os.WriteFile(g.secret, []byte("of the host\n"), 0o644); err != nil {
		return nil, err
	}
	if g.user, err = worker(); err != nil {
		return nil, err
	}
	if err := g.makeGroup(); err != nil {
		return nil, err
	}
	if err := g.listen(); err != nil {
		return nil, err
	}
	if g.stage, err = openStage(); err != nil {
		return nil, err
	}
	g.later(g.stage.Close)
	return g, nil
}

// prefix begins the names of all folders and groups; the number of the check's
// process follows.
const prefix = "hanzo-check-"

// tops are where a host has control groups v2.
var tops = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// sweep takes away from dirs what checks left that were killed: their workloads
// died with them. What cannot be taken away yet, the next check finds again.
func sweep(dirs ...string) {
	for _, dir := range dirs {
		left, _ := filepath.Glob(filepath.Join(dir, prefix+"*"))
		for _, path := range left {
			number, _, whole := strings.Cut(strings.TrimPrefix(filepath.Base(path), prefix), "-")
			if pid, err := strconv.Atoi(number); whole && err == nil && pid > 0 && unix.Kill(pid, 0) == unix.ESRCH {
				os.RemoveAll(path)
			}
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

// config is the ground as package sandbox wants it.
func (g *ground) config() sandbox.Config {
	return sandbox.Config{Group: g.group, Run: filepath.Join(g.dir, "run"), Stage: g.stage, User: g.user}
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
	if err := os.WriteFile(control, []byte("+"+controller), 0); err != nil {
		return err
	}
	g.later(func() error {
		err := os.WriteFile(control, []byte("-"+controller), 0)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EBUSY) {
			return nil // the group is gone, or another needs it by now
		}
		return err
	})
	return nil
}

// openStage opens hanzo-stage: the one beside this program, or the installed one.
func openStage() (*os.File, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	beside := filepath.Dir(self)
	for _, dir := range []string{beside, lib} {
		f, err := os.Open(filepath.Join(dir, "hanzo-stage"))
		if !errors.Is(err, os.ErrNotExist) {
			return f, err
		}
	}
	return nil, fmt.Errorf("hanzo-stage, which builds a sandbox from inside, is neither in %s nor in %s: put it beside this program", beside, lib)
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
