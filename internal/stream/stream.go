// Package stream stands between a worker's output and whoever reads it, where
// something must be known of it: when the last byte came, or how many came. Where
// nothing must be known a worker writes to its caller's descriptors itself.
package stream

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// Tap copies what a worker writes, as it comes, unchanged. It holds one buffer,
// whatever the worker writes and however slowly it is read.
type Tap struct {
	// Worker is the end that the worker gets.
	Worker   *os.File
	terminal bool // Worker is a terminal's end, and stays open until Drain
	from     *os.File
	to       io.Writer
	bytes    atomic.Int64
	last     atomic.Int64 // when the last byte came, Unix nanoseconds
	until    atomic.Int64 // how many bytes are copied at most; 0 is no end
	done     chan struct{}
	err      error // what ended the copy early; set when done is closed
}

// bufferSize is what one Tap holds.
const bufferSize = 64 << 10

// maxPipe is what a pipe can hold that a process without privileges has enlarged
// (pipe(7), pipe-max-size).
const maxPipe = 1 << 20

// NewTap starts to copy what comes through a new pipe to a writer.
func NewTap(to io.Writer) (*Tap, error) {
	from, worker, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return start(&Tap{Worker: worker, from: from, to: to}), nil
}

// NewTerminalTap starts to copy what comes through a pseudo-terminal, and takes
// both of its ends: the master, which must be non-blocking, is closed with the
// copy's end, and the worker sees a terminal that hangs up then. The worker's end
// is held here as well until Drain: the kernel takes a terminal from its session
// when the last descriptor of it is closed, which a worker may do that opens it
// again later.
func NewTerminalTap(master, worker *os.File, to io.Writer) *Tap {
	return start(&Tap{Worker: worker, terminal: true, from: master, to: to})
}

func start(t *Tap) *Tap {
	t.done = make(chan struct{})
	t.last.Store(time.Now().UnixNano())
	go t.copy()
	return t
}

// Launched is called once the worker has its end.
func (t *Tap) Launched() {
	if !t.terminal {
		_ = t.Worker.Close()
	}
}

// Discard ends a tap whose worker was not launched.
func (t *Tap) Discard() { _ = t.Worker.Close() }

func (t *Tap) copy() {
	defer close(t.done)
	// A reader that is gone: the worker's next write fails as it would without
	// us (EPIPE, SIGPIPE), for ours is the only reading end. From a terminal it
	// gets a SIGHUP.
	defer t.from.Close()
	buf := make([]byte, bufferSize)
	for read := t.from.Read; ; {
		n, err := read(buf)
		if n > 0 {
			t.last.Store(time.Now().UnixNano())
			t.bytes.Add(int64(n))
			if _, werr := t.to.Write(buf[:n]); werr != nil {
				t.err = werr
				return
			}
		}
		if until := t.until.Load(); until > 0 && t.Bytes() >= until {
			return
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			read = t.readNow // what is in the pipe is the worker's yet
		default:
			// EIO is how Linux tells a master that all other ends are closed.
			if !errors.Is(err, io.EOF) && !(t.terminal && errors.Is(err, syscall.EIO)) {
				t.err = err
			}
			return
		}
	}
}

// readNow reads what is there; io.EOF if nothing is.
func (t *Tap) readNow(buf []byte) (n int, err error) {
	conn, err := t.from.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := conn.Control(func(fd uintptr) { n, err = syscall.Read(int(fd), buf) }) // the end is non-blocking
	switch {
	case cerr != nil:
		return 0, cerr
	case err == syscall.EINTR:
		return 0, nil
	case err == syscall.EAGAIN || err == nil && n == 0:
		return 0, io.EOF
	case err != nil:
		return 0, err
	}
	return n, nil
}

// Bytes is how many bytes came so far.
func (t *Tap) Bytes() int64 { return t.bytes.Load() }

// Last is when the last byte came; before the first, when the tap was made.
func (t *Tap) Last() time.Time { return time.Unix(0, t.last.Load()) }

// Drain waits until everything that was written has been copied. The worker's
// tree is gone then, so that is at once but for a slow reader, whom it waits for.
// A process that still holds the other end keeps it no longer than grace without
// a byte, nor by writing more than the worker can have left in the pipe. It
// returns why output was lost; a reader that went away is no error.
func (t *Tap) Drain(grace time.Duration) error {
	if t.terminal {
		_ = t.Worker.Close()
	}
	t.until.Store(t.Bytes() + maxPipe + bufferSize)
	for before := int64(-1); ; before = t.Bytes() {
		select {
		case <-t.done:
			if errors.Is(t.err, syscall.EPIPE) {
				return nil
			}
			return t.err
		case <-time.After(grace):
		}
		if before == t.Bytes() { // none came in all that time
			_ = t.from.SetReadDeadline(time.Now()) // ends a Read, not a Write
		}
	}
}
