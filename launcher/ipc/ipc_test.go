//go:build linux

package ipc

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/spool/canon"
	"golang.org/x/sys/unix"
)

// pair is a connection's two sides.
func pair(t *testing.T) (agent, launcher *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c.(*net.UnixConn)
		conns[i].SetDeadline(time.Now().Add(time.Minute))
		t.Cleanup(func() { c.Close() })
	}
	return conns[0], conns[1]
}

var start = activity.Envelope{
	Activity: "act_01JB7Q8ZK3M2N4P5R6S7T8V9W0", Kind: "train.fit", Org: "acme", Project: "default", Requester: "acme/alice",
	Issued: "2026-10-22T17:04:05Z", Deadline: "2026-10-22T17:24:05Z", Input: canon.Raw(`{"a":1}`),
}

func TestRequestsAndRepliesArriveAsTheyWere(t *testing.T) {
	a, l := pair(t)
	agent, launcher := NewConn(a), NewConn(l)
	for _, want := range []Request{{Start: &start}, {Stop: &Stop{"act_1", activity.Cancel}}} {
		if err := agent.WriteRequest(want); err != nil {
			t.Fatal(err)
		}
		got, err := launcher.ReadRequest()
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("read %+v, %v, want %+v", got, err, want)
		}
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, c := range []struct {
		reply Reply
		files []*os.File
	}{
		{Reply{Ready: &Ready{Version: Version, Kinds: []string{"train.fit"}, Reasons: []string{}}}, nil},
		{Reply{Started: &Started{Activity: "act_1"}}, nil},
		{Reply{Started: &Started{Activity: "act_1", PidFD: true}}, []*os.File{null}},
		{Reply{Started: &Started{Activity: "act_1", Socket: true, PidFD: true}}, []*os.File{null, null}},
		{Reply{Ended: &Ended{Activity: "act_1", State: activity.Stopped, Reason: activity.Done}}, nil},
		{Reply{Ended: &Ended{Activity: "act_1", State: activity.Failed, Code: activity.Crash, Message: "exited", Exit: 1, Stderr: 7}}, []*os.File{null}},
		{Reply{Refused: &Refused{Code: activity.Schema, Message: "no"}}, nil},
	} {
		if err := launcher.WriteReply(c.reply, c.files...); err != nil {
			t.Fatal(err)
		}
		got, files, err := agent.ReadReply()
		if err != nil || !cmp.Equal(got, c.reply) || len(files) != len(c.files) {
			t.Errorf("read %+v with %d files, %v, want %+v with %d", got, len(files), err, c.reply, len(c.files))
		}
		for _, f := range files {
			flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
			if err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("a received descriptor stays open on exec")
			}
			f.Close()
		}
	}
}

func TestReplyWithAnotherNumberOfDescriptors(t *testing.T) {
	a, l := pair(t)
	agent, launcher := NewConn(a), NewConn(l)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, c := range []struct {
		reply Reply
		files []*os.File
	}{
		{Reply{Started: &Started{Activity: "act_1", PidFD: true}}, nil},
		{Reply{Started: &Started{Activity: "act_1"}}, []*os.File{null}},
		{Reply{Started: &Started{Activity: "act_1"}}, []*os.File{null, null, null, null}},
	} {
		if err := launcher.WriteReply(c.reply, c.files...); err != nil {
			t.Fatal(err)
		}
		_, files, err := agent.ReadReply()
		if _, ok := errors.AsType[Malformed](err); !ok || files != nil {
			t.Errorf("%d descriptors with %+v: %v", len(c.files), c.reply.Started, err)
		}
	}
}

// A reader without room for descriptors is given none by the kernel.
func TestDescriptorsWithARequestAreDropped(t *testing.T) {
	a, l := pair(t)
	launcher := NewConn(l)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, _, err := a.WriteMsgUnix([]byte(`{"stop":{"activity":"act_1","reason":"cancel"}}`), unix.UnixRights(int(w.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	w.Close()
	_, err = launcher.ReadRequest()
	if _, ok := errors.AsType[Malformed](err); !ok {
		t.Errorf("a request with a descriptor: %v", err)
	}
	// Nobody holds the pipe's writing end any more.
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("the descriptor is held somewhere: %d, %v", n, err)
	}
}

// The end of a connection is no packet, and what lies before it is still read.
func TestEnd(t *testing.T) {
	a, l := pair(t)
	agent, launcher := NewConn(a), NewConn(l)
	if launcher.Closed() {
		t.Error("closed while both sides are open")
	}
	if err := agent.WriteRequest(Request{Stop: &Stop{"act_1", activity.Cancel}}); err != nil {
		t.Fatal(err)
	}
	agent.Close()
	if !launcher.Closed() {
		t.Error("not closed although the other side is")
	}
	if r, err := launcher.ReadRequest(); err != nil || r.Stop == nil {
		t.Errorf("the last request: %+v, %v", r, err)
	}
	if _, err := launcher.ReadRequest(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v, want %v", err, io.EOF)
	}
	if err := launcher.WriteReply(Reply{Ready: &Ready{}}); !errors.Is(err, unix.EPIPE) {
		t.Errorf("writing after the end: %v", err)
	}
}

func TestPacketThatIsTooLong(t *testing.T) {
	a, l := pair(t)
	launcher := NewConn(l)
	if err := launcher.WriteReply(Reply{Refused: &Refused{Code: activity.Schema, Message: strings.Repeat("x", MaxPacket)}}); err == nil {
		t.Error("a packet above the limit was written")
	}
	for _, n := range []int{MaxPacket, MaxPacket + 1, 200_000} {
		packet := []byte(`{"stop":{"activity":"act_1","reason":"cancel"}}`)
		packet = append(packet, strings.Repeat(" ", n-len(packet))...)
		if _, err := a.Write(packet); err != nil {
			t.Fatal(err)
		}
		_, err := launcher.ReadRequest()
		if _, malformed := errors.AsType[Malformed](err); malformed != (n > MaxPacket) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestPeerOfThisProcess(t *testing.T) {
	_, l := pair(t)
	p, err := PeerOf(l)
	if err != nil {
		t.Fatal(err)
	}
	defer p.PidFD.Close()
	if p.PID != os.Getpid() || p.UID != uint32(os.Getuid()) || p.GID != uint32(os.Getgid()) || !p.Alive() {
		t.Errorf("the peer is %+v", p)
	}
	// Closing ends a wait for a process that goes on.
	waited := make(chan error)
	go func() { waited <- p.Wait() }()
	p.PidFD.Close()
	if err := <-waited; err == nil {
		t.Error("this process has ended")
	}
}

// FuzzRequest reads what an agent may send: whatever it is, it is a request that
// reads back as itself, or malformed.
func FuzzRequest(f *testing.F) {
	for _, r := range []Request{{Start: &start}, {Stop: &Stop{"act_1", activity.Cancel}}} {
		src, err := canon.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	f.Add([]byte(`{"start":null,"stop":null}`))
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) == 0 || len(packet) > MaxPacket {
			return
		}
		a, l := pair(t)
		if _, err := a.Write(packet); err != nil {
			t.Fatal(err)
		}
		r, err := NewConn(l).ReadRequest()
		if err != nil {
			if _, ok := errors.AsType[Malformed](err); !ok {
				t.Fatalf("%q: %v", packet, err)
			}
			return
		}
		if err := NewConn(a).WriteRequest(r); err != nil {
			t.Fatalf("%q was read and cannot be written: %v", packet, err)
		}
		again, err := NewConn(l).ReadRequest()
		if err != nil || !cmp.Equal(r, again) {
			t.Fatalf("%q reads as %+v and again as %+v, %v", packet, r, again, err)
		}
	})
}
