//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/agent"
	"github.com/hanzoai/link/agent/facts"
	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
)

const (
	user = 3000000001 // the agent's; no host has it

	// Where hanzo link installs things, below folders that a mount hides.
	state  = "/var/lib/hanzo/link"
	socket = "/run/hanzo-link/launcher.sock"

	asMachine = "as-machine"
)

// A cloud is a control plane that counts requests.
type cloud struct {
	base     string
	token    string
	requests atomic.Int64
	claims   atomic.Int64
	stop     func() error
}

func newCloud(ctx context.Context, dir string) (*cloud, error) {
	store, err := db.Open(dir, nil)
	if err != nil {
		return nil, err
	}
	c := &cloud{}
	if c.token, err = store.Mint(ctx, api.Identity{Owner: "acme", Name: "alice", Project: "default", Admin: true}); err != nil {
		store.Close()
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		store.Close()
		return nil, err
	}
	c.base = "http://" + l.Addr().String()
	server := &http.Server{Handler: c.counted(control.New(control.Config{Store: store}))}
	go server.Serve(l)
	c.stop = func() error { return errors.Join(server.Close(), store.Close()) }
	return c, nil
}

func (c *cloud) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.requests.Add(1)
		if strings.HasSuffix(r.URL.Path, "/claim") {
			c.claims.Add(1)
		}
		next.ServeHTTP(w, r)
	})
}

// measure starts a machine and looks at its agent for that long.
func measure(ctx context.Context, long time.Duration, said io.Writer) (_ *report, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a mount namespace and the agent's own user need root: run it as root")
	}
	dir, err := os.MkdirTemp("", "rest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil { // the agent's user passes through it
		return nil, err
	}
	binary := filepath.Join(dir, "hanzo-link")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, "github.com/hanzoai/link/cmd/hanzo-link")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the agent: %w: %s", err, out)
	}
	c, err := newCloud(ctx, filepath.Join(dir, "cloud"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	pid, end, err := startMachine(binary, c, said)
	if err != nil {
		return nil, err
	}
	defer end()
	info, err := os.Stat(binary)
	if err != nil {
		return nil, err
	}
	return watch(ctx, pid, c, long, info.Size())
}

// startMachine runs this program as the machine, and answers its agent's pid.
func startMachine(binary string, c *cloud, said io.Writer) (pid int, end func(), err error) {
	runtime.LockOSThread() // the death signal is sent when this thread ends
	m := exec.Command("/proc/self/exe", asMachine, binary, c.base)
	m.Stderr = said
	m.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	in, err := m.StdinPipe()
	if err != nil {
		return 0, nil, err
	}
	out, err := m.StdoutPipe()
	if err != nil {
		return 0, nil, err
	}
	if err := m.Start(); err != nil {
		return 0, nil, err
	}
	end = func() {
		in.Close()
		m.Wait()
	}
	fmt.Fprintln(in, c.token) // not an argument: those can be read
	if n, err := fmt.Fscan(bufio.NewReader(out), &pid); n != 1 {
		end()
		return 0, nil, fmt.Errorf("the machine did not start: %w", err)
	}
	return pid, end, nil
}

// watch waits for the second claim and then measures.
func watch(ctx context.Context, pid int, c *cloud, long time.Duration, binary int64) (*report, error) {
	for deadline := time.Now().Add(2 * time.Minute); c.claims.Load() < 2; {
		if time.Now().After(deadline) {
			return nil, errors.New("the agent has made no second claim")
		}
		if err := pause(ctx, pid, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
	requests, cpu, switches, began := c.requests.Load(), busy(pid), wakes(pid), time.Now()
	r := &report{Binary: binary}
	for time.Since(began) < long {
		if err := pause(ctx, pid, min(5*time.Second, long-time.Since(began)+time.Millisecond)); err != nil {
			return nil, err
		}
		r.RssMax = max(r.RssMax, kib(pid, "status", "VmRSS"))
	}
	r.Seconds = time.Since(began).Seconds()
	r.Requests = int(c.requests.Load() - requests)
	r.CPU = (busy(pid) - cpu).Seconds() / r.Seconds * 100
	r.Switches = wakes(pid) - switches
	r.Rss, r.Pss = kib(pid, "smaps_rollup", "Rss"), kib(pid, "smaps_rollup", "Pss")
	if r.Requests > 0 {
		r.Every = r.Seconds / float64(r.Requests)
	}
	if r.Rss == 0 {
		return nil, errors.New("the agent has ended meanwhile")
	}
	return r, nil
}

func pause(ctx context.Context, pid int, d time.Duration) error {
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/stat", pid)); err != nil {
		return errors.New("the agent has ended")
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// busy is a process's processor time so far, of the threads that it still has: Go
// ends none. The ticks of /proc/PID/stat are too coarse for it.
func busy(pid int) time.Duration {
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0
	}
	sum := int64(0)
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		ran, _, _ := strings.Cut(string(text), " ")
		n, _ := strconv.ParseInt(ran, 10, 64)
		sum += n
	}
	return time.Duration(sum)
}

// wakes is how often its threads have waited for something.
func wakes(pid int) int {
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		return 0
	}
	sum := 0
	for _, file := range all {
		n, _ := strconv.Atoi(value(file, "voluntary_ctxt_switches"))
		sum += n
	}
	return sum
}

func kib(pid int, file, name string) int {
	n, _, _ := strings.Cut(value(fmt.Sprintf("/proc/%d/%s", pid, file), name), " ")
	kib, _ := strconv.Atoi(n)
	return kib
}

// value is that of the first line "name: value" of a file.
func value(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(text) {
		if key, v, found := strings.Cut(string(line), ":"); found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// machine is a linked machine: it is in a mount namespace of its own, hides the
// folders that hanzo link writes to, links, listens as the launcher, runs the agent,
// says its pid, and ends it when standard input does. The person's token is the first
// line there.
func machine(binary, base string) error {
	in := bufio.NewReader(os.Stdin)
	token, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	token = strings.TrimSpace(token)
	for _, hidden := range []string{"/var/lib", "/run", "/etc"} {
		if err := unix.Mount("tmpfs", hidden, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return fmt.Errorf("hiding %s: %w", hidden, err)
		}
	}
	for _, d := range []string{state, state + "/spool", state + "/store", state + "/store/trees", filepath.Dir(socket) + "/agent"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
		if err := os.Chown(d, user, user); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(policy.Path), 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf(`{"kinds":[%q],"orgs":["acme"],"caps":{"memory":4294967296,"cpus":2,"disk":4294967296}}`, policy.TrainFit)
	if err := os.WriteFile(policy.Path, []byte(text), 0o644); err != nil {
		return err
	}
	ctx := context.Background()
	host, err := facts.Read(ctx, "/", "", state)
	if err != nil {
		return err
	}
	if host.Hostname == "" {
		host.Hostname = "rest"
	}
	client := &api.Client{Base: base, Token: func() (string, error) { return token, nil }}
	link, credential, err := agent.Register(ctx, client, state, host, user, user)
	if err != nil {
		return err
	}
	if err := link.Write(state, credential, user, user); err != nil {
		return err
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := os.Chmod(socket, 0o666); err != nil {
		return err
	}
	go launch(listener)
	a := exec.Command(binary)
	a.Env, a.Dir, a.Stderr = []string{}, "/", os.Stderr
	a.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	if err := a.Start(); err != nil {
		return err
	}
	fmt.Println(a.Process.Pid)
	over := make(chan error, 1)
	go func() { over <- a.Wait() }()
	told := make(chan struct{})
	go func() {
		defer close(told)
		io.Copy(io.Discard, in)
	}()
	select {
	case err := <-over:
		return fmt.Errorf("the agent has ended: %w", err)
	case <-told:
	}
	return errors.Join(a.Process.Signal(syscall.SIGTERM), <-over)
}

// launch answers as a launcher to which nothing is given.
func launch(listener *net.UnixListener) {
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			c := ipc.NewConn(conn)
			if c.WriteReply(ipc.Reply{Ready: &ipc.Ready{Version: ipc.Version, Kinds: []string{policy.TrainFit}, Reasons: []string{}}}) != nil {
				return
			}
			for {
				if _, err := c.ReadRequest(); err != nil {
					return
				}
			}
		}()
	}
}
