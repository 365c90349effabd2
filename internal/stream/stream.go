// Package stream stands between a worker's output and whoever reads it, where
// something must be known of it (when the last byte came, or how many came), or
// where it is kept. Otherwise a worker writes to its caller's descriptors itself.
package stream

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
	last     atomic.Int64 // when the last byte came or was taken, Unix nanoseconds
	taking   atomic.Bool  // the reader is being waited for
	until    atomic.Int64 // what is more than that is not the tree's; 0 is no bound
	done     chan struct{}
	err      error // what ended the copy early; set when done is closed
}

// What Drain says of output that is not all there.
var (
	// ErrHeld: a process that outlived the worker's tree still holds the output.
	// All that the tree wrote was passed on.
	ErrHeld = errors.New("a process that outlived the worker holds its output open; what it writes from now on is not read")
	// ErrNotTaken: the reader did not take what is left.
	ErrNotTaken = errors.New("its reader did not take it in time")
)

// A buffer grows from the first to the second, for most workers write little.
const (
	firstBuffer = 4 << 10
	bufferSize  = 64 << 10
)

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
	buf := make([]byte, firstBuffer)
	for read := t.from.Read; ; {
		n, err := read(buf)
		if n > 0 {
			t.bytes.Add(int64(n))
			if t.err = t.pass(buf[:n]); t.err != nil {
				return
			}
			if n == len(buf) && n < bufferSize {
				buf = make([]byte, 4*n)
			}
		}
		if until := t.until.Load(); until > 0 && t.Bytes() > until {
			t.err = ErrHeld
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

// pass hands bytes on.
func (t *Tap) pass(p []byte) error {
	t.taking.Store(true)
	defer func() {
		t.last.Store(time.Now().UnixNano())
		t.taking.Store(false)
	}()
	for {
		n, err := t.to.Write(p)
		if !errors.Is(err, syscall.EAGAIN) {
			return err
		}
		// O_NONBLOCK is the open file's and not the descriptor's (fcntl(2)): a
		// worker that sets it on its standard input has set it here, too, where
		// both are one terminal or socket.
		p = p[n:]
		if err := awaitWritable(t.to); err != nil {
			return err
		}
	}
}

func awaitWritable(to io.Writer) error {
	file, ok := to.(syscall.Conn)
	if !ok {
		return syscall.EAGAIN
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var perr error
	err = conn.Control(func(fd uintptr) {
		_, perr = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
	})
	if perr != unix.EINTR {
		err = errors.Join(err, perr)
	}
	return err
}

// readNow reads what is there: io.EOF if nobody can write any more, ErrHeld if
// somebody can and has not.
func (t *Tap) readNow(buf []byte) (n int, err error) {
	cerr := t.control(func(fd int) { n, err = syscall.Read(fd, buf) }) // the end is non-blocking
	switch {
	case cerr != nil:
		return 0, cerr
	case err == syscall.EINTR:
		return 0, nil
	case err == syscall.EAGAIN:
		return 0, ErrHeld
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (t *Tap) control(f func(fd int)) error {
	conn, err := t.from.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Control(func(fd uintptr) { f(int(fd)) })
}

// Bytes is how many bytes came so far.
func (t *Tap) Bytes() int64 { return t.bytes.Load() }

// Last is when the last byte came; before the first, when the tap was made.
// While the reader has not taken what came it is now: a worker that is kept from
// writing is not idle.
func (t *Tap) Last() time.Time {
	if t.taking.Load() {
		return time.Now()
	}
	return time.Unix(0, t.last.Load())
}

// Drain waits until everything that was written has been passed on. The worker's
// tree is gone then, so that is at once but for a slow reader, whom it waits for;
// once hurry is closed, it gives up a reader who takes nothing for grace, with
// ErrNotTaken. A process that still holds the other end keeps it no longer than
// grace, nor by writing, and gives ErrHeld. Other errors are why output was
// lost; a reader that went away is none. Drain may be called again.
func (t *Tap) Drain(grace time.Duration, hurry <-chan struct{}) error {
	if t.terminal {
		_ = t.Worker.Close()
	}
	// All that the tree wrote is in the pipe by now, or in the buffer.
	var inPipe int
	_ = t.control(func(fd int) { inPipe, _ = unix.IoctlGetInt(fd, fionread) }) // fails once it is closed
	t.until.Store(t.Bytes() + int64(inPipe) + bufferSize)
	_ = t.from.SetReadDeadline(time.Now().Add(grace)) // ends a Read, not a Write
	select {
	case <-t.done:
		return t.result()
	case <-hurry:
	}
	for {
		before := t.last.Load()
		select {
		case <-t.done:
			return t.result()
		case <-time.After(grace):
		}
		if t.taking.Load() && before == t.last.Load() {
			return ErrNotTaken
		}
	}
}

func (t *Tap) result() error {
	if errors.Is(t.err, syscall.EPIPE) {
		return nil
	}
	return t.err
}
