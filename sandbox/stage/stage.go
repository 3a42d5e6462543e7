//go:build linux

// Package stage is pid 1 of a sandbox: a small program that builds the world a
// workload sees, gives up root, and stays to reap.
//
//	host                                stage
//	 │ clone into group and namespaces    │
//	 │──────────────────────────────────▶ │ root of tmpfs, /usr, /etc, /dev, loopback; pivot;
//	 │                                    │ root's groups and the bounding set given up
//	 │ ◀──────────────────────── parked ──│ (waits here: a stage can be made ahead of need)
//	 │ order + detached mounts            │
//	 │──────────────────────────────────▶ │ mounts, /proc, masks; user, Landlock, seccomp
//	 │ ◀─────────────────────── started ──│ the workload's exec has succeeded
//	 │ ◀───────────────────────── ended ──│ the workload's status; then pid 1 exits
//
// Every process of the workload is this one's child or is given to it, so none is
// left a zombie, and when it exits the kernel kills the rest. It exits when the
// workload's main process has ended, or at once when the control socket closes: a
// workload does not outlive its host.
//
// It ignores every signal it can, SIGTERM too: the host sends SIGTERM to each of
// the workload's processes itself, and a pid 1 that ended on it would take away
// their ten seconds. It runs as the workload's user under the workload's filter,
// with nothing of it readable (not dumpable), so owning it would gain nothing.
//
// Package-level state, flags, logs and HTTP have no place here: what this program
// imports is start time of every workload.
package stage

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/sandbox/filter"
)

// Main is hanzo-stage. It is started by package sandbox alone, with the control
// socket as descriptor 3, in namespaces of its own; its argument is the workload's
// uid and gid.
func Main() {
	// Credentials, capabilities and Landlock are a thread's; the workload is
	// forked from this one.
	runtime.LockOSThread()
	if err := run(); err != nil {
		report(Report{Failed: err.Error()})
		os.Exit(1)
	}
}

func run() error {
	if os.Getpid() != 1 || len(os.Args) != 2 {
		return errors.New("hanzo-stage is started by the launcher, as pid 1 of a sandbox")
	}
	signal.Notify(make(chan os.Signal, 1)) // delivered and dropped: pid 1 is not ended by a signal from inside
	user, err := strconv.Atoi(os.Args[1])
	if err != nil || user <= 0 {
		return fmt.Errorf("%q is no user for a workload", os.Args[1])
	}
	if err := prepare(user); err != nil {
		return err
	}
	if err := shed(user); err != nil {
		return err
	}
	// Decoding the first order costs 0.25 ms and any other 0.05 ms; nobody waits yet.
	json.Unmarshal([]byte(`{"Args":[""],"Mounts":[{}]}`), new(Order))
	if err := report(Report{Parked: true}); err != nil {
		return err
	}
	order, fds, err := receive()
	if err != nil {
		return err
	}
	go dieWithHost()
	if err := furnish(order, fds); err != nil {
		return err
	}
	if err := confine(user, order); err != nil {
		return err
	}
	pid, err := syscall.ForkExec(order.Program, order.Args, &syscall.ProcAttr{Env: order.Env, Files: []uintptr{0, 1, 2}})
	if err != nil {
		return fmt.Errorf("start %s: %w", order.Program, err)
	}
	if err := report(Report{Started: true}); err != nil {
		return err
	}
	return reap(pid)
}

// confine gives up what the workload must not have. After it this process is the
// workload's user, on every thread, for good.
func confine(user int, o Order) error {
	if err := limits(o); err != nil {
		return err
	}
	unix.Umask(o.Umask)
	if err := os.Chdir(o.Run); err != nil {
		return err
	}
	if err := become(user, o.Groups); err != nil {
		return err
	}
	if err := restrict(o); err != nil {
		return err
	}
	if err := filter.Install(filter.Profile{Inet: o.Inet}); err != nil {
		return err
	}
	// Nothing of ours passes the exec; descriptors 0, 1 and 2 do.
	if err := unix.CloseRange(ControlFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close_range: %w", err)
	}
	return nil
}

// reap waits for every process that ends, until the main one has.
func reap(main int) error {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		case pid == main && (status.Exited() || status.Signaled()):
			r := Report{Ended: true, Code: status.ExitStatus()}
			if status.Signaled() {
				r.Signal = int(status.Signal())
			}
			return report(r)
		}
	}
}

// receive waits for the order.
func receive() (Order, []int, error) {
	buf := make([]byte, MaxOrder)
	oob := make([]byte, unix.CmsgSpace(4*(MaxMounts+2)))
	n, oobn, flags, _, err := recvmsg(buf, oob)
	if err != nil {
		return Order{}, nil, fmt.Errorf("order: %w", err)
	}
	if n == 0 {
		os.Exit(0) // the host has no use for this stage
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return Order{}, nil, errors.New("order: larger than a packet may be")
	}
	var o Order
	if err := json.Unmarshal(buf[:n], &o); err != nil {
		return Order{}, nil, fmt.Errorf("order: %w", err)
	}
	var fds []int
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return Order{}, nil, fmt.Errorf("order: %w", err)
	}
	for i := range messages {
		got, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return Order{}, nil, fmt.Errorf("order: %w", err)
		}
		fds = append(fds, got...)
	}
	if len(fds) != len(o.Mounts)+2 {
		return Order{}, nil, fmt.Errorf("order: %d descriptors for %d mounts", len(fds), len(o.Mounts)+2)
	}
	return o, fds, nil
}

func recvmsg(buf, oob []byte) (n, oobn, flags int, from unix.Sockaddr, err error) {
	for {
		n, oobn, flags, from, err = unix.Recvmsg(ControlFD, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			return n, oobn, flags, from, err
		}
	}
}

// dieWithHost ends this process, and with it the workload, when the host closes
// the control socket. The host sends nothing after its order.
func dieWithHost() {
	recvmsg(make([]byte, 1), nil)
	os.Exit(1)
}

func report(r Report) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return unix.Sendto(ControlFD, b, unix.MSG_NOSIGNAL, nil)
}
