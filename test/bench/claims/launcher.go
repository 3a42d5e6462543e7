//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
)

// A launcher is a node's, simulated: it speaks launcher/ipc as the real one does,
// and its workloads are timers. What it tells the history is what did run.
type launcher struct {
	node    string
	most    int           // workloads at once
	longest time.Duration // that a workload runs; each takes a random part of it
	history *history

	one sync.Mutex // held by the session that is served: the next waits for its end
}

// dial is a connection of an agent's. Its end, from either side, ends all of its
// work; so does ctx's.
func (l *launcher) dial(ctx context.Context) (*ipc.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var ends [2]*ipc.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "launcher")
		conn, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return nil, err
		}
		ends[i] = ipc.NewConn(conn.(*net.UnixConn))
	}
	s := &session{launcher: l, conn: ends[1], running: make(map[string]chan activity.Reason)}
	go s.serve(ctx)
	return ends[0], nil
}

// A session is one connection.
type session struct {
	*launcher
	conn *ipc.Conn
	jobs sync.WaitGroup

	mu      sync.Mutex // guards running, and each write to conn
	running map[string]chan activity.Reason
}

func (s *session) serve(ctx context.Context) {
	s.one.Lock()
	defer s.one.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer s.conn.Close()
	defer s.jobs.Wait() // they have told the history
	defer cancel()
	context.AfterFunc(ctx, func() { s.conn.Close() })
	s.reply(ipc.Reply{Ready: &ipc.Ready{Version: ipc.Version, Kinds: []string{policy.TrainFit}, Reasons: []string{}}})
	for {
		r, err := s.conn.ReadRequest()
		if err != nil {
			return // a malformed packet too: an agent sends none
		}
		switch {
		case r.Stop != nil:
			s.stop(*r.Stop)
		case r.Forget != nil: // its workloads record nothing
			s.reply(ipc.Reply{Forgotten: &ipc.Forgotten{Activity: r.Forget.Activity}})
		default:
			s.start(ctx, *r.Start)
		}
	}
}

// reply writes one; a write that fails is the connection's end, which the reader
// sees.
func (s *session) reply(r ipc.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn.WriteReply(r)
}

func (s *session) start(ctx context.Context, e activity.Envelope) {
	id := e.Activity
	s.mu.Lock()
	_, runs := s.running[id]
	full := len(s.running) >= s.most
	stop := make(chan activity.Reason, 1)
	if !runs && !full {
		s.running[id] = stop
	}
	s.mu.Unlock()
	switch {
	case runs:
		s.reply(ipc.Reply{Started: &ipc.Started{Activity: id}})
		return
	case full:
		s.reply(ipc.Reply{Refused: &ipc.Refused{Activity: id, Code: activity.Denied, Message: fmt.Sprintf("concurrency: %d run", s.most)}})
		return
	}
	s.history.tell(entry{What: started, Node: s.node, Activity: id})
	s.reply(ipc.Reply{Started: &ipc.Started{Activity: id}})
	s.jobs.Go(func() {
		over := time.NewTimer(rand.N(s.longest + 1))
		defer over.Stop()
		why := activity.Done
		select {
		case <-over.C:
		case why = <-stop:
		case <-ctx.Done():
			s.history.tell(entry{What: torn, Node: s.node, Activity: id})
			return
		}
		s.history.tell(entry{What: finished, Node: s.node, Activity: id, State: activity.Stopped, End: string(why)})
		s.mu.Lock()
		delete(s.running, id)
		s.mu.Unlock()
		s.reply(ipc.Reply{Ended: &ipc.Ended{Activity: id, State: activity.Stopped, Reason: why}})
	})
}

func (s *session) stop(r ipc.Stop) {
	s.mu.Lock()
	stop := s.running[r.Activity]
	s.mu.Unlock()
	if stop == nil {
		s.reply(ipc.Reply{Refused: &ipc.Refused{Activity: r.Activity, Code: activity.Lost, Message: "no such activity"}})
		return
	}
	select {
	case stop <- r.Reason:
	default: // what was asked for first is its reason
	}
}
