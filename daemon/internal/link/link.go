// Package link is how the two halves of the daemon speak: messages of a fixed
// table, with descriptors, over a socket pair. The monitor takes what the front
// says for a stranger's word: what is not exactly of the table's shape ends the
// link, and [Ledger] says what may be asked when.
//
// A message is a head of 12 bytes (the kind, the number of descriptors, two bytes
// 0, the length of the body, the length of the payload; numbers big-endian), the
// body as JSON in the one form that encoding/json gives it, and the payload, whose
// form is its reader's to check. The descriptors come with the head.
package link

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/listen"
	"sandboxd/protocol"
)

const (
	maxRequest = protocol.MaxFrame
	maxReport  = protocol.MaxAnswer
	maxFiles   = protocol.MaxDescriptors
	headLen    = 12
)

// Patience is how long the other half may take to read what is sent: neither
// waits for the other for longer than a busy moment.
const Patience = 20 * time.Second

// Link is one end.
type Link struct {
	conn   *net.UnixConn
	shapes func(kind) (shape, bool) // of what is read here

	mu  sync.Mutex // of writers
	buf []byte
}

// Pair makes a link: the monitor's end, and the descriptor for the front, which is
// the caller's to close.
func Pair() (monitor *Link, front *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	mine := os.NewFile(uintptr(fds[0]), "link")
	front = os.NewFile(uintptr(fds[1]), "link")
	if monitor, err = open(mine, toMonitor); err != nil {
		_ = front.Close()
		return nil, nil, err
	}
	return monitor, front, nil
}

// Front is the front's end, of the descriptor that it was given.
func Front(file *os.File) (*Link, error) { return open(file, toFront) }

func open(file *os.File, shapes func(kind) (shape, bool)) (*Link, error) {
	c, err := net.FileConn(file) // a duplicate
	_ = file.Close()
	if err != nil {
		return nil, fmt.Errorf("the link: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("the link is no unix socket")
	}
	return &Link{conn: u, shapes: shapes}, nil
}

// Close ends the link; a Receive returns.
func (l *Link) Close() error { return l.conn.Close() }

// Send sends a message with its payload and descriptors, which stay the caller's.
// After an error the link is of no more use.
func (l *Link) Send(m Message, payload []byte, files ...*os.File) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	s, ok := toMonitor(m.kind())
	if !ok {
		s, _ = toFront(m.kind())
	}
	if len(body) > maxBody || len(payload) > s.payload || len(files) > s.files {
		return fmt.Errorf("a message %T of %d and %d bytes and %d descriptors", m, len(body), len(payload), len(files))
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	head := [headLen]byte{byte(m.kind()), byte(len(files))}
	binary.BigEndian.PutUint32(head[4:], uint32(len(body)))
	binary.BigEndian.PutUint32(head[8:], uint32(len(payload)))
	l.buf = append(append(l.buf[:0], head[:]...), body...)
	if len(payload) <= maxBody {
		l.buf, payload = append(l.buf, payload...), nil
	}
	if err := l.conn.SetWriteDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	if err := listen.Send(l.conn, l.buf, fds); err != nil {
		return err
	}
	return listen.Send(l.conn, payload, nil)
}

// Receive waits for the next message. The descriptors are the caller's to close.
// At the other end's end it is io.EOF; any error ends the link.
func (l *Link) Receive() (m Message, payload []byte, files []*os.File, err error) {
	defer func() {
		if err != nil {
			CloseFiles(files)
			m, payload, files = nil, nil, nil
		}
	}()
	var head [headLen]byte
	for got := 0; got < headLen; {
		limit := 0
		if got == 0 {
			limit = maxFiles
		}
		n, fds, err := listen.Recv(l.conn, head[got:], limit)
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
		if err != nil {
			if got > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, nil, files, err
		}
		got += n
	}
	s, ok := l.shapes(kind(head[0]))
	bodyLen, payloadLen := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[8:])
	switch {
	case !ok:
		return nil, nil, files, fmt.Errorf("a message of kind %d", head[0])
	case int(head[1]) != len(files) || len(files) > s.files:
		return nil, nil, files, fmt.Errorf("a message of kind %d with %d descriptors, which tells of %d", head[0], len(files), head[1])
	case head[2] != 0 || head[3] != 0 || bodyLen > maxBody || int64(payloadLen) > int64(s.payload):
		return nil, nil, files, fmt.Errorf("a message of kind %d of %d and %d bytes", head[0], bodyLen, payloadLen)
	}
	body, err := l.read(int(bodyLen))
	if err == nil {
		payload, err = l.read(int(payloadLen))
	}
	if err != nil {
		return nil, nil, files, err
	}
	m = s.fresh()
	if err := json.Unmarshal(body, m); err != nil {
		return nil, nil, files, fmt.Errorf("a message of kind %d: %w", head[0], err)
	}
	// Only one text stands for a message: no member is there twice, unknown, in
	// other letters, or with what a reader might take in another way.
	if again, err := json.Marshal(m); err != nil || !bytes.Equal(again, body) {
		return nil, nil, files, fmt.Errorf("a message of kind %d in another form than its own", head[0])
	}
	return m, payload, files, nil
}

// read reads n bytes. Memory grows with what comes.
func (l *Link) read(n int) ([]byte, error) {
	var b []byte
	for len(b) < n {
		at := len(b)
		b = append(b, make([]byte, min(n-at, max(64<<10, at)))...)
		// No descriptor may come here: listen.Recv closes those that do.
		for at < len(b) {
			got, _, err := listen.Recv(l.conn, b[at:], 0)
			if err != nil {
				if errors.Is(err, io.EOF) {
					err = io.ErrUnexpectedEOF
				}
				return nil, err
			}
			at += got
		}
	}
	return b, nil
}

// CloseFiles closes what Receive returned.
func CloseFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
