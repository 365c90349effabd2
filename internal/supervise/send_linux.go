package supervise

import (
	"encoding/binary"

	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// message is one message to send, still mostly in the worker's memory.
type message struct {
	addr    []byte // nil: none
	vectors []vector
	total   uint64
	control []byte
	flags   int
}

func (c *call) sendto() (int64, error) {
	if err := c.enabled(c.s.cfg.Unix); err != nil {
		return 0, err
	}
	a := c.n.Args
	sock, err := c.socket(int32(a[0]))
	if err != nil {
		return 0, err
	}
	m := message{flags: int(uint32(a[3]))}
	m.total = min(a[2], maxRW)
	m.vectors = []vector{{a[1], m.total}}
	if a[4] != 0 {
		if m.addr, err = c.address(a[4], int32(a[5])); err != nil {
			return 0, err
		}
	}
	n, err := c.send(sock, m)
	return int64(n), err
}

func (c *call) sendmsg() (int64, error) {
	if err := c.enabled(c.s.cfg.Unix); err != nil {
		return 0, err
	}
	a := c.n.Args
	sock, err := c.socket(int32(a[0]))
	if err != nil {
		return 0, err
	}
	m, err := c.message(sock, a[1], int(uint32(a[2])))
	if err != nil {
		return 0, err
	}
	n, err := c.send(sock, m)
	return int64(n), err
}

// sendmmsg sends one message after the other. An error after the first is told
// by the count alone, as by the kernel.
func (c *call) sendmmsg() (int64, error) {
	if err := c.enabled(c.s.cfg.Unix); err != nil {
		return 0, err
	}
	a := c.n.Args
	sock, err := c.socket(int32(a[0]))
	if err != nil {
		return 0, err
	}
	// The handle stays with this address space whatever becomes of the thread
	// id, so the lengths cannot be written into a stranger.
	mem, err := sys.NotifOpenMem(c.tid, unix.O_RDWR)
	if err != nil {
		return 0, unreachable("the worker's memory cannot be written", err)
	}
	c.hold(mem)
	if err := c.check(); err != nil {
		return 0, err
	}
	count := uint64(min(uint32(a[2]), maxVectors))
	mark := len(c.held)
	for c.msgs < count {
		at := a[1] + c.msgs*mheaderSize
		var m message
		if m, err = c.message(sock, at, int(uint32(a[3]))); err != nil {
			break
		}
		var n int
		if n, err = c.send(sock, m); err != nil {
			break
		}
		var size [4]byte
		binary.NativeEndian.PutUint32(size[:], uint32(n))
		if _, err := unix.Pwrite(mem, size[:], int64(at+headerSize)); err != nil {
			if c.msgs == 0 {
				return 0, unix.EFAULT
			}
			break
		}
		c.msgs++
		c.sent = 0
		c.drop(mark)
	}
	if err == errLater || c.msgs == 0 {
		return 0, err
	}
	return int64(c.msgs), nil
}

// message reads a msghdr and what it points to, but for the data.
func (c *call) message(sock socket, at uint64, flags int) (message, error) {
	m := message{flags: flags}
	var raw [headerSize]byte
	if err := c.read(at, raw[:]); err != nil {
		return m, err
	}
	h, errno := parseHeader(raw)
	if errno != 0 {
		return m, errno
	}
	if h.nameLen > 0 {
		var err error
		if m.addr, err = c.address(h.name, h.nameLen); err != nil {
			return m, err
		}
	}
	vectors := make([]byte, h.vectorsLen*vectorSize)
	if err := c.read(h.vectors, vectors); err != nil {
		return m, err
	}
	if m.vectors, m.total, errno = parseVectors(vectors); errno != 0 {
		return m, errno
	}
	if h.controlLen == 0 {
		return m, nil
	}
	m.control = make([]byte, h.controlLen)
	return m, c.read(h.control, m.control)
}

// translate makes control messages ours: descriptors are duplicated from the
// worker, the pid of credentials is the launcher's, who sends. The kernel checks
// uid and gid against the deputy's.
func (c *call) translate(sock socket, m *message) error {
	var failed error
	creds, rights := false, 0
	if len(m.control) > 0 {
		e := controlEdit{pid: int32(c.s.pid), fd: func(n int32) (int32, unix.Errno) {
			if rights++; rights > c.s.limits.rights {
				return -1, unix.ENOBUFS
			}
			fd, err := c.fd(n)
			if err != nil {
				failed = err
				return -1, errnoOf(err)
			}
			return int32(fd), 0
		}}
		var errno unix.Errno
		m.control, creds, errno = e.edit(m.control)
		if failed != nil {
			return failed
		}
		if errno != 0 {
			return errno
		}
	}
	// Without explicit credentials a receiver with SO_PASSCRED is shown the real
	// ids, and a deputy's are the launcher's.
	if sock.domain == unix.AF_UNIX && !creds && c.s.ruid != c.s.cfg.UID {
		m.control = appendCredentials(m.control, c.s.pid, c.s.cfg.UID, c.s.cfg.GID)
	}
	return nil
}

// send sends one message and returns how much of it.
func (c *call) send(sock socket, m message) (int, error) {
	if m.flags&unix.MSG_ZEROCOPY != 0 {
		return 0, unix.ENOBUFS // the pages would be ours
	}
	var t *target
	if m.addr != nil {
		var err error
		if t, err = c.target(sock, m.addr); err != nil {
			return 0, err
		}
		defer t.close()
	}
	if c.sent > 0 {
		m.control = nil // went with the first bytes
	} else if err := c.translate(sock, &m); err != nil {
		return 0, err
	}
	limit := chunk
	if sock.kind != unix.SOCK_STREAM {
		limit = maxMessage
		// No domain takes a datagram that is larger than the send buffer, so
		// nothing larger is copied.
		if size, err := unix.GetsockoptInt(sock.fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil {
			limit = min(limit, max(size, 64<<10))
		}
		if m.total > uint64(limit) {
			return 0, unix.EMSGSIZE
		}
	}
	if err := c.check(); err != nil {
		return 0, err
	}
	flags, err := unix.FcntlInt(uintptr(sock.fd), unix.F_GETFL, 0)
	if err != nil {
		return 0, err
	}
	s := sender{c: c, sock: sock, to: t, block: flags&unix.O_NONBLOCK == 0 && m.flags&unix.MSG_DONTWAIT == 0}
	err = s.all(m, limit)
	if err == errLater {
		return 0, err
	}
	n := int(c.sent)
	if n > 0 {
		c.effect = true
	}
	if err == nil {
		c.effect = true
		if t != nil || len(m.control) > 0 {
			c.recordAutobind(sock)
		}
		return n, nil
	}
	if n > 0 {
		return n, nil // an error after a part shows itself with the next call
	}
	if err == unix.EPIPE && sock.kind == unix.SOCK_STREAM && m.flags&unix.MSG_NOSIGNAL == 0 {
		c.effect = true // an interrupt by this very signal shall not repeat it
		c.kill(unix.SIGPIPE)
	}
	return 0, err
}

// sender pushes a message through a socket that may be full.
type sender struct {
	c     *call
	sock  socket
	to    *target
	block bool
}

// all goes on where the last attempt stopped. The worker may have changed the
// lengths since.
func (s *sender) all(m message, limit int) error {
	c := s.c
	if c.sent > 0 && c.sent >= m.total {
		return nil
	}
	buf := make([]byte, min(m.total-c.sent, uint64(limit)))
	for {
		data := buf[:min(m.total-c.sent, uint64(limit))]
		if err := s.copy(data, m.vectors, c.sent); err != nil {
			return err
		}
		flags := m.flags
		if c.sent+uint64(len(data)) < m.total {
			flags &^= unix.MSG_OOB // the last byte of all, not of each part
		}
		n, err := s.one(data, m.control, flags)
		c.sent += uint64(n)
		switch {
		case err == unix.EAGAIN && s.block:
			return c.later(s.sock, s.sock.kind == unix.SOCK_STREAM, unix.EAGAIN)
		case err != nil, c.sent >= m.total, s.sock.kind != unix.SOCK_STREAM:
			return err
		case n < len(data) && !s.block:
			return nil
		}
		if n > 0 {
			m.control = nil // went with the first bytes
			c.progress()
		}
	}
}

func (s *sender) copy(data []byte, vectors []vector, off uint64) error {
	for _, seg := range segments(vectors, off, len(data)) {
		if err := s.c.read(seg.addr, data[:seg.len]); err != nil {
			return err
		}
		data = data[seg.len:]
	}
	return nil
}

// one makes one call that does not wait.
func (s *sender) one(data, control []byte, flags int) (n int, err error) {
	err = s.c.asWorkerNow(func() error {
		var name []byte
		if s.to != nil {
			if err := s.to.open(s.c.s); err != nil {
				return err
			}
			name = s.to.addr
		}
		return s.c.again(func() (err error) {
			n, err = sys.DeputySend(s.sock.fd, name, data, control, flags|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			return err
		})
	})
	return n, err
}
