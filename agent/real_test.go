//go:build linux

package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/control/api"
	real "github.com/hanzoai/link/launcher"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/durable"
	"golang.org/x/sys/unix"
)

// role makes the test binary an agent when it is started again, by its configuration.
const role = "AGENT_TEST_CONFIG"

func TestMain(m *testing.M) {
	if cfg := os.Getenv(role); cfg != "" {
		live(cfg)
	}
	os.Exit(m.Run())
}

// live is an agent's life in a process of its own.
func live(src string) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var dirs struct{ Dir, Spool, Store, Policy, Status, Socket string }
	if err := json.Unmarshal([]byte(src), &dirs); err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := run(ctx, Config{
		Dir: dirs.Dir, Spool: dirs.Spool, Store: dirs.Store, Policy: dirs.Policy, Status: dirs.Status, Log: log,
		Dial: func() (Launcher, error) {
			c, err := ipc.Dial(dirs.Socket)
			if err != nil {
				return nil, err
			}
			return c, nil
		},
		Facts: func(context.Context) (api.WorkerFacts, error) { return hostFacts(), nil },
	}, parts{disk: durable.On(durable.OS), pace: hurried})
	if err != nil {
		log.Error(err.Error())
		os.Exit(1)
	}
	os.Exit(0)
}

// A host has a real launcher, and an agent that is a process of another user.
type host struct {
	testing.TB
	*cloud
	dir, group string
	env        string
	log        *syncBuffer
	agent      *exec.Cmd
}

func (h *host) Helper() { h.TB.Helper() }

const agentUser, workUser = 64021, 64022 // numbers that no account has

// newHost installs what hanzo link installs, in a folder and a control group of its
// own.
func newHost(t *testing.T) *host {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the launcher is root, and so are the tests that run it")
	}
	if testing.Short() {
		t.Skip("builds programs")
	}
	unified := ""
	for _, path := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		var st unix.Statfs_t
		if unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			unified = path
		}
	}
	if unified == "" {
		t.Skip("this host has no control groups v2 where one looks for them")
	}
	must := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	h := &host{TB: t, cloud: newCloud(t), log: &syncBuffer{}}
	var err error
	h.dir, err = os.MkdirTemp("", "agent-test-")
	must(err)
	h.group, err = os.MkdirTemp(unified, "agent-test-")
	must(err)
	t.Cleanup(func() {
		os.WriteFile(filepath.Join(h.group, "cgroup.kill"), []byte("1"), 0)
		for _, sub := range []string{"work", "agent", ""} {
			until(t, "the group "+sub+" is empty", func() bool {
				err := unix.Rmdir(filepath.Join(h.group, sub))
				return err == nil || err == unix.ENOENT
			})
		}
		os.RemoveAll(h.dir)
		if t.Failed() {
			t.Logf("the logs:\n%s", h.log)
		}
	})
	must(os.Chmod(h.dir, 0o755))
	state := filepath.Join(h.dir, "state")
	for _, sub := range []string{"lib", "etc", "state", "state/store"} {
		must(os.Mkdir(filepath.Join(h.dir, sub), 0o755))
	}
	must(os.Chown(state, 0, agentUser), os.Chmod(state, os.ModeSticky|0o771), os.Chown(state+"/store", agentUser, agentUser))
	must(os.Mkdir(h.group+"/agent", 0o755))
	for _, name := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "agent", "agent/cgroup.procs"} {
		must(os.Chown(filepath.Join(h.group, name), agentUser, agentUser))
	}
	pins := map[string]string{}
	for name, pkg := range map[string]string{"hanzo-stage": "../cmd/hanzo-stage", "train": "../launcher/testdata/train"} {
		path := filepath.Join(h.dir, "lib", name)
		build := exec.Command("go", "build", "-o", path, pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Skipf("no compiler: %v %s", err, out)
		}
		src, err := os.ReadFile(path)
		must(err)
		sum := sha256.Sum256(src)
		pins[name] = hex.EncodeToString(sum[:])
	}
	write := func(path string, v any) {
		src, err := json.Marshal(v)
		must(err, os.WriteFile(path, src, 0o644))
	}
	write(filepath.Join(h.dir, "lib", real.ManifestName), real.Manifest{Binaries: pins})
	write(filepath.Join(h.dir, "etc/policy.json"), map[string]any{
		"kinds": []string{policy.TrainFit}, "orgs": []string{"acme"}, "concurrency": 4,
		"caps": map[string]any{"vram": 0, "memory": 1 << 30, "cpus": 16, "disk": 64 << 20},
	})
	socket := filepath.Join(h.dir, "launcher.sock")
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	must(err, os.Chmod(socket, 0o777))
	controllers := []string{}
	if src, err := os.ReadFile(unified + "/cgroup.subtree_control"); err == nil {
		if has := strings.Fields(string(src)); slices.Contains(has, "cpu") && slices.Contains(has, "memory") && slices.Contains(has, "pids") {
			controllers = nil
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- real.Run(ctx, real.Config{
			Listener: listener, Agent: real.User{UID: agentUser, GID: agentUser}, Work: real.User{UID: workUser, GID: workUser},
			Group: h.group, Run: state + "/run", Spool: state + "/spool", Store: state + "/store",
			Lib: h.dir + "/lib", Policy: h.dir + "/etc/policy.json", Controllers: controllers,
			Log: slog.New(slog.NewTextHandler(h.log, nil)),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the launcher: %v", err)
		}
	})
	link, credential, err := Register(t.Context(), h.person, state, hostFacts(), agentUser, agentUser)
	must(err)
	must(link.Write(state, credential, agentUser, agentUser))
	env, err := json.Marshal(map[string]string{
		"Dir": state, "Spool": state + "/spool", "Store": state + "/store", "Policy": h.dir + "/etc/policy.json",
		"Status": state + "/status.json", "Socket": socket,
	})
	must(err)
	h.env = string(env)
	return h
}

// start starts the agent, as its user and in its control group.
func (h *host) start() {
	h.Helper()
	group, err := os.Open(h.group + "/agent")
	if err != nil {
		h.Fatal(err)
	}
	defer group.Close()
	h.agent = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"agent"}, Env: []string{role + "=" + h.env}, Dir: "/",
		Stdout: h.log, Stderr: h.log,
		SysProcAttr: &syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: agentUser, Gid: agentUser},
			UseCgroupFD: true, CgroupFD: int(group.Fd()),
		},
	}
	if err := h.agent.Start(); err != nil {
		h.Fatal(err)
	}
	agent := h.agent
	h.Cleanup(func() {
		agent.Process.Kill()
		agent.Wait()
	})
	until(h, "the node offers train.fit", func() bool {
		w, err := h.person.Workers(h.Context())
		return err == nil && len(w) == 1 && w[0].Status == api.Online && slices.Contains(w[0].Offers, policy.TrainFit)
	})
}

// enqueue asks for work that does what it is told.
func (h *host) enqueue(do string, n int) string {
	h.Helper()
	in := h.input()
	in["stage"] = h.tree("stage.json", fmt.Sprintf(`{"do":%q,"n":%d}`, do, n))
	src, err := json.Marshal(in)
	if err != nil {
		h.Fatal(err)
	}
	a, err := h.person.Enqueue(h.Context(), api.Enqueue{Node: "evo", Kind: policy.TrainFit, Input: src})
	if err != nil {
		h.Fatal(err)
	}
	return a.Activity
}

// TestRealLauncher: with the real store, launcher and sandbox, work is pulled, runs,
// ends, is cancelled, and is lost with an agent that is killed, whose next life knows
// it.
func TestRealLauncher(t *testing.T) {
	h := newHost(t)
	h.start()
	a := h.ended(h.enqueue("talk", 70<<10), "done")
	if a.Output == nil || len(a.Output.Stdout) != api.MaxOutput || !a.Output.Truncated {
		t.Errorf("it put out %d bytes, truncated %v", len(a.Output.Stdout), a.Output.Truncated)
	}
	a = h.ended(h.enqueue("exit", 7), "crash")
	if a.Output == nil || a.Output.Exit != 7 || !strings.Contains(a.Output.Stderr, "did not go well") {
		t.Errorf("it put out %+v", a.Output)
	}

	act := h.enqueue("sleep", 0)
	h.becomes(act, activity.Ready)
	if _, err := h.person.Cancel(t.Context(), act); err != nil {
		t.Fatal(err)
	}
	h.ended(act, "cancel")

	act = h.enqueue("stubborn", 0)
	h.becomes(act, activity.Ready)
	h.agent.Process.Kill()
	h.agent.Wait()
	h.start()
	h.ended(act, "lost")
	h.ended(h.enqueue("exit", 0), "done")

	act = h.enqueue("sleep", 0)
	h.becomes(act, activity.Ready)
	h.agent.Process.Signal(syscall.SIGTERM)
	if err := h.agent.Wait(); err != nil {
		t.Errorf("the agent: %v", err)
	}
	h.ended(act, "lost")
}
