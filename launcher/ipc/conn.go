//go:build linux

package ipc

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/hanzoai/link/spool/canon"
	"golang.org/x/sys/unix"
)

// Malformed is the error of a packet that was read whole, or as far as it could
// be, and is no message. The connection can go on.
type Malformed struct{ Err error }

func (m Malformed) Error() string { return "malformed packet: " + m.Err.Error() }
func (m Malformed) Unwrap() error { return m.Err }

// A Conn is one side of a connection. One goroutine may read and another write.
// It holds one buffer of MaxPacket bytes and no other memory between calls.
type Conn struct {
	conn *net.UnixConn
	buf  []byte
}

// NewConn speaks over conn, which is of network unixpacket and from now on the
// Conn's.
func NewConn(conn *net.UnixConn) *Conn {
	// A longer packet is cut by the kernel, which says so (MSG_TRUNC).
	return &Conn{conn: conn, buf: make([]byte, MaxPacket)}
}

// Dial connects an agent to the launcher that listens at path.
func Dial(path string) (*Conn, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return NewConn(conn), nil
}

// Close ends the connection, and a read or write that waits.
func (c *Conn) Close() error { return c.conn.Close() }

// SetReadDeadline bounds the reads from now on, in time.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.conn.SetReadDeadline(t) }

// SetWriteDeadline bounds the writes from now on, in time.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.conn.SetWriteDeadline(t) }

// ReadRequest reads what an agent asks. Descriptors that came along are closed by
// the kernel, and make the packet malformed. An error that is not Malformed ends
// the connection; io.EOF is the agent's end.
func (c *Conn) ReadRequest() (Request, error) {
	// No room for control data: the kernel never installs a descriptor that the
	// agent chose in this process.
	n, _, flags, _, err := c.conn.ReadMsgUnix(c.buf, nil)
	if err != nil {
		return Request{}, err
	}
	var r Request
	switch {
	case flags&unix.MSG_TRUNC != 0:
		return r, Malformed{fmt.Errorf("longer than %d bytes", MaxPacket)}
	case flags&unix.MSG_CTRUNC != 0:
		return r, Malformed{errors.New("descriptors are not taken")}
	}
	if err := canon.Unmarshal(c.buf[:n], &r); err != nil {
		return r, Malformed{err}
	}
	if err := r.check(); err != nil {
		return r, Malformed{err}
	}
	return r, nil
}

// WriteRequest writes what an agent asks.
func (c *Conn) WriteRequest(r Request) error {
	if err := r.check(); err != nil {
		return err
	}
	return c.write(r, nil)
}

// WriteReply writes a reply and passes copies of files along, which stay the
// caller's.
func (c *Conn) WriteReply(r Reply, files ...*os.File) error { return c.write(r, files) }

// ReadReply reads what a launcher says, with the files that came along, which are
// closed on exec and the caller's to close.
func (c *Conn) ReadReply() (Reply, []*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(maxFiles*4))
	n, oobn, flags, _, err := c.conn.ReadMsgUnix(c.buf, oob)
	files, ferr := received(oob[:oobn])
	if err == nil {
		err = ferr
	}
	var r Reply
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = Malformed{errors.New("longer than it may be")}
	}
	if err == nil {
		if uerr := canon.Unmarshal(c.buf[:n], &r); uerr != nil {
			err = Malformed{uerr}
		} else if len(files) != r.files() {
			err = Malformed{fmt.Errorf("%d descriptors where %d belong", len(files), r.files())}
		}
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return Reply{}, nil, err
	}
	return r, files, nil
}

// maxFiles is the most descriptors that a reply brings: a workload's two streams,
// or its socket and pidfd.
const maxFiles = 2

// files is how many descriptors belong to a reply.
func (r Reply) files() int {
	n := 0
	switch {
	case r.Started != nil:
		if r.Started.Socket {
			n++
		}
		if r.Started.PidFD {
			n++
		}
	case r.Ended != nil:
		if r.Ended.Stdout > 0 {
			n++
		}
		if r.Ended.Stderr > 0 {
			n++
		}
	}
	return n
}

// write sends one packet. On a seqpacket socket it goes whole or not at all.
func (c *Conn) write(v any, files []*os.File) error {
	packet, err := canon.Marshal(v)
	if err != nil {
		return err
	}
	if len(packet) > MaxPacket {
		return fmt.Errorf("a packet of %d bytes, where %d is the most", len(packet), MaxPacket)
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, 0, len(files))
		for _, f := range files {
			// Not Fd, which would take the file out of non-blocking mode.
			raw, err := f.SyscallConn()
			if err != nil {
				return err
			}
			if err := raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) }); err != nil {
				return err
			}
		}
		oob = unix.UnixRights(fds...)
	}
	_, _, err = c.conn.WriteMsgUnix(packet, oob, nil)
	runtime.KeepAlive(files)
	return err
}

// received makes files of the descriptors in a packet's control data.
func received(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // not descriptors
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// Closed reports whether the peer has closed the connection, whatever it left to
// be read.
func (c *Conn) Closed() bool {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return true
	}
	closed := true
	raw.Control(func(fd uintptr) {
		ask := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(ask, 0)
		closed = err == nil && n == 1
	})
	return closed
}
