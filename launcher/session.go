//go:build linux

package launcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/sandbox"
	"golang.org/x/sys/unix"
)

// session is one agent's connection. Its context ends when the connection closes
// or the agent's process ends, and with it every workload that the agent started.
type session struct {
	conn     *ipc.Conn
	peer     ipc.Peer
	ctx      context.Context
	cancel   context.CancelFunc
	requests chan incoming
	tasks    sync.WaitGroup

	// The loop's.
	host      *sandbox.Host // nil when nothing can be started
	unable    error         // why
	malformed int           // packets so far
}

// incoming is a packet: a request, or why it is none.
type incoming struct {
	request ipc.Request
	err     error
}

func newSession(conn *net.UnixConn, peer ipc.Peer, pace *bucket) *session {
	ctx, cancel := context.WithCancel(context.Background())
	s := &session{conn: ipc.NewConn(conn), peer: peer, ctx: ctx, cancel: cancel, requests: make(chan incoming)}
	s.tasks.Go(func() { s.read(pace) })
	s.tasks.Go(func() {
		defer cancel()
		peer.Wait()
	})
	return s
}

// read reads packets until the connection closes.
func (s *session) read(pace *bucket) {
	defer s.cancel()
	for pace.wait(s.ctx) {
		request, err := s.conn.ReadRequest()
		if _, malformed := errors.AsType[ipc.Malformed](err); err != nil && !malformed {
			return
		}
		select {
		case s.requests <- incoming{request, err}:
		case <-s.ctx.Done():
			return
		}
	}
}

// over reports whether the agent has closed the connection or is gone, also when
// read has not come to it yet.
func (s *session) over() bool { return s.ctx.Err() != nil || s.conn.Closed() || !s.peer.Alive() }

// close ends the connection and waits for what reads it. The session has no jobs.
func (s *session) close() {
	s.cancel()
	s.conn.Close()
	s.peer.PidFD.Close()
	s.tasks.Wait()
	if s.host != nil {
		s.host.Close()
	}
}

// reply writes a reply. An agent that does not take it loses its connection.
func (l *launcher) reply(r ipc.Reply, files ...*os.File) {
	s := l.session
	if s == nil || s.ctx.Err() != nil {
		return
	}
	s.conn.SetWriteDeadline(time.Now().Add(replyLimit))
	if err := s.conn.WriteReply(r, files...); err != nil {
		l.quiet.warn("connection closed: a reply could not be written", "pid", s.peer.PID, "err", err)
		s.cancel()
	}
}

// refuse answers a request that comes to nothing. The error's code is a refusal's
// or the policy's.
func (l *launcher) refuse(id string, err error) {
	code := codeOf(err)
	switch {
	case id == "":
	case code == activity.Schema: // the error may quote the input, which is nobody's to log
		l.quiet.warn("refused", "activity", id, "code", code)
	default:
		l.quiet.warn("refused", "activity", id, "code", code, "err", err)
	}
	l.reply(ipc.Reply{Refused: &ipc.Refused{Activity: id, Code: code, Message: clip(err.Error())}})
}

func (l *launcher) replyStarted(j *job) {
	var files []*os.File
	if j.pidfd != nil {
		files = append(files, j.pidfd)
	}
	l.reply(ipc.Reply{Started: &ipc.Started{Activity: j.activity, PidFD: j.pidfd != nil}}, files...)
}

func (l *launcher) replyEnded(e event) {
	ended := e.ended
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, stream := range []struct {
		name   string
		data   []byte
		length *int
	}{{"stdout", e.exit.Stdout, &ended.Stdout}, {"stderr", e.exit.Stderr, &ended.Stderr}} {
		if len(stream.data) == 0 {
			continue
		}
		f, err := sealed(stream.name, stream.data)
		if err != nil {
			l.Log.Error("output could not be kept", "activity", ended.Activity, "err", err)
			ended.Truncated = true
			continue
		}
		files = append(files, f)
		*stream.length = len(stream.data)
	}
	l.reply(ipc.Reply{Ended: ended}, files...)
}

// sealed is a memory file that nobody can change any more.
func sealed(name string, data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(data)
	if err == nil {
		_, err = f.Seek(0, 0)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("memory file: %w", err)
	}
	return f, nil
}
