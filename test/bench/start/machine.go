//go:build linux

package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/launcher"
	"github.com/hanzoai/link/sandbox/stage"
)

const (
	agent = worker + 1 // the agent's user and group; no host has it either

	// The store's trees. A launcher opens them by name; it is the agent that has
	// compared the contents with it, and here there is none.
	empties = "00000000000000000000000000000000000000000000000000000000000000aa"
	idles   = "00000000000000000000000000000000000000000000000000000000000000bb" // its workload waits
)

// machine is a linked machine in small: a launcher in a process of its own behind
// its socket, with a policy, a manifest and a store, and an agent that asks it.
// The manifest's train is the benchmark's workload.
type machine struct {
	group  string
	daemon *exec.Cmd
	asker  *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	said   [2]bytes.Buffer // by the daemon and by the agent, on stderr
	starts int
}

// newMachine installs one in dir and starts it. pid1 and program are binaries, the
// stage and the workload.
func newMachine(dir, group, pid1, program string, w workload) (_ *machine, err error) {
	m := &machine{group: filepath.Join(group, "machine")}
	dir = filepath.Join(dir, "machine")
	if err := install(dir, map[string]string{"hanzo-stage": pid1, "train": program}); err != nil {
		return nil, err
	}
	for _, name := range []string{"daemon", "agent"} {
		if err := build(filepath.Join(dir, name), module+"/"+name, false); err != nil {
			return nil, err
		}
	}
	own := filepath.Join(m.group, "agent")
	if err := os.MkdirAll(own, 0o755); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	socket := filepath.Join(dir, "socket")
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return m, err
	}
	defer listener.Close() // the daemon has its own
	listener.SetUnlinkOnClose(false)
	file, err := listener.File()
	if err != nil {
		return m, err
	}
	defer file.Close()
	if err := os.Chown(socket, agent, agent); err != nil {
		return m, err
	}
	m.daemon = exec.Command(filepath.Join(dir, "daemon"), append([]string{dir, m.group, strconv.Itoa(agent), strconv.Itoa(worker)}, w.controllers()...)...)
	m.daemon.ExtraFiles, m.daemon.Stderr = []*os.File{file}, &m.said[0]
	m.daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := m.daemon.Start(); err != nil {
		return m, err
	}
	home, err := os.Open(own)
	if err != nil {
		return m, err
	}
	defer home.Close()
	m.asker = exec.Command(filepath.Join(dir, "agent"), socket)
	m.asker.Stderr = &m.said[1]
	m.asker.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, UseCgroupFD: true, CgroupFD: int(home.Fd()),
		Credential: &syscall.Credential{Uid: agent, Gid: agent},
	}
	out, err := m.asker.StdoutPipe()
	if err != nil {
		return m, err
	}
	m.out = bufio.NewScanner(out)
	if m.in, err = m.asker.StdinPipe(); err != nil {
		return m, err
	}
	return m, m.asker.Start()
}

// install writes what hanzo link would: binaries with their manifest, a policy,
// and a store with the two trees.
func install(dir string, binaries map[string]string) error {
	lib := filepath.Join(dir, "lib")
	for _, tree := range []string{empties, idles} {
		if err := os.MkdirAll(filepath.Join(dir, "store", "trees", tree), 0o755); err != nil {
			return err
		}
	}
	err := errors.Join(os.Mkdir(lib, 0o755), os.WriteFile(filepath.Join(dir, "store", "trees", idles, "wait"), nil, 0o644))
	pins := launcher.Manifest{Binaries: make(map[string]string)}
	for name, path := range binaries {
		code, failed := os.ReadFile(path)
		sum := sha256.Sum256(code)
		pins.Binaries[name] = hex.EncodeToString(sum[:])
		err = errors.Join(err, failed, os.WriteFile(filepath.Join(lib, name), code, 0o755))
	}
	manifest, failed := json.Marshal(pins)
	return errors.Join(err, failed,
		os.WriteFile(filepath.Join(lib, launcher.ManifestName), manifest, 0o644),
		os.WriteFile(filepath.Join(dir, "policy.json"), []byte(`{"kinds":["train.fit"],"orgs":["bench"],"caps":{"memory":4294967296,"cpus":4,"disk":4294967296},"concurrency":4}`), 0o644))
}

// contender is a start as the agent sees it: the request's packet, the launcher's
// own check of peer, policy and binaries, and the sandbox.
func (m *machine) contender() contender {
	return contender{
		name: "hanzo-launcher", build: "its socket, a stage parked", note: "the same, asked by the agent; policy read, binary's pin checked",
		start: func() (time.Duration, error) {
			asked, main, err := m.ask("run", empties)
			return main - asked, err
		},
	}
}

// ask has the agent start one activity. The second time is what its workload
// printed, 0 for one that is idle.
func (m *machine) ask(what, stage string) (asked, main time.Duration, err error) {
	m.starts++
	_, err = fmt.Fprintf(m.in, "%s act_%d %s %s\n", what, m.starts, stage, empties)
	if err != nil || !m.out.Scan() {
		return 0, 0, fmt.Errorf("the agent is gone: %s; the launcher said: %s", last(m.said[1].String()), last(m.said[0].String()))
	}
	var times [2]int64
	if n, _ := fmt.Sscan(m.out.Text(), &times[0], &times[1]); n == 0 || what == "run" && n != 2 {
		return 0, 0, fmt.Errorf("the agent said %q", m.out.Text())
	}
	return time.Duration(times[0]), time.Duration(times[1]), nil
}

// resident measures the launcher and its stages while one workload is idle.
func (m *machine) resident() ([]memory, error) {
	if _, _, err := m.ask("idle", idles); err != nil {
		return nil, err
	}
	if err := m.parked(); err != nil {
		return nil, err
	}
	self, err := rollup("launcher", m.daemon.Process.Pid)
	if err != nil {
		return nil, err
	}
	found := []memory{self}
	groups, err := filepath.Glob(filepath.Join(m.group, "work", "*"))
	if err != nil {
		return nil, err
	}
	for _, group := range groups {
		pids, err := members(group)
		if err != nil {
			continue // a file
		}
		of := "stage of the workload"
		if len(pids) == 1 {
			of = "stage parked for the next"
		}
		pid, err := first(group)
		if err != nil {
			return nil, err
		}
		held, err := rollup(of, pid)
		if err != nil {
			return nil, err
		}
		found = append(found, held)
	}
	return append(found, total(found)), nil
}

// parked waits until a stage waits for the next start: until the only process of
// some group is in recvmsg on the stage's control socket.
func (m *machine) parked() error {
	waits := fmt.Sprintf("%d 0x%x ", unix.SYS_RECVMSG, stage.ControlFD)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		groups, err := filepath.Glob(filepath.Join(m.group, "work", "*"))
		if err != nil {
			return err
		}
		for _, group := range groups {
			pids, err := members(group)
			if err != nil || len(pids) != 1 {
				continue
			}
			in, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pids[0]))
			if err == nil && strings.HasPrefix(string(in), waits) {
				return nil
			}
		}
	}
	return errors.New("the launcher parked no stage for the next start")
}

// close ends the agent, so that the launcher ends what it started, and then the
// launcher. A second call does nothing.
func (m *machine) close() error {
	asker, daemon := m.asker, m.daemon
	m.asker, m.daemon = nil, nil
	var err error
	if asker != nil && asker.Process != nil {
		m.in.Close()
		err = asker.Wait()
	}
	if daemon != nil && daemon.Process != nil {
		err = errors.Join(err, daemon.Process.Signal(syscall.SIGTERM), daemon.Wait())
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(m.said[0].String()+m.said[1].String()))
	}
	return nil
}
