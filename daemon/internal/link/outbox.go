package link

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// What may wait to be sent: more than an honest reader ever lets wait, as it takes
// what comes at once. A single message may be longer.
const (
	outboxMessages = 8192
	outboxBytes    = 64 << 20
)

// ErrBehind ends a link whose other end does not keep up.
var ErrBehind = errors.New("the other end of the link does not read what is said to it")

// Outbox sends messages in their order from a goroutine of its own, so that who has
// something to say waits for nobody.
type Outbox struct {
	link *Link

	mu     sync.Mutex
	filled *sync.Cond
	queue  []letter
	bytes  int
	closed bool
}

type letter struct {
	m       Message
	payload []byte
	files   []*os.File // the outbox' own
}

// NewOutbox begins to send. After an error of the link, which failed is told of once,
// nothing more is sent.
func NewOutbox(l *Link, failed func(error)) *Outbox {
	o := &Outbox{link: l}
	o.filled = sync.NewCond(&o.mu)
	go func() {
		for {
			next, more := o.next()
			if !more {
				return
			}
			err := l.Send(next.m, next.payload, next.files...)
			CloseFiles(next.files)
			if err != nil {
				o.Close()
				failed(err)
				return
			}
		}
	}()
	return o
}

func (o *Outbox) next() (letter, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) == 0 && !o.closed {
		o.filled.Wait()
	}
	if o.closed {
		return letter{}, false
	}
	next := o.queue[0]
	o.queue[0] = letter{}
	if o.queue = o.queue[1:]; len(o.queue) == 0 {
		o.queue = nil // or what a busy moment took stays
	}
	o.bytes -= len(next.payload)
	return next, true
}

// Put queues a message. The files stay the caller's. An error says that it is not
// going to be sent, and that nothing more should be: the link is to be ended.
func (o *Outbox) Put(m Message, payload []byte, files ...*os.File) error {
	var own []*os.File
	for _, f := range files {
		fd, err := duplicate(f)
		if err != nil {
			CloseFiles(own)
			return err
		}
		own = append(own, os.NewFile(uintptr(fd), f.Name()))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		CloseFiles(own)
		return os.ErrClosed
	case len(o.queue) >= outboxMessages || len(o.queue) > 0 && o.bytes+len(payload) > outboxBytes:
		CloseFiles(own)
		return ErrBehind
	}
	o.queue = append(o.queue, letter{m, payload, own})
	o.bytes += len(payload)
	o.filled.Signal()
	return nil
}

// duplicate is another descriptor of an open file, which keeps being non-blocking if
// it is.
func duplicate(f *os.File) (fd int, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	if cerr := conn.Control(func(p uintptr) { fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil {
		return -1, cerr
	}
	return fd, err
}

// Close drops what has not been sent.
func (o *Outbox) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, l := range o.queue {
		CloseFiles(l.files)
	}
	o.queue, o.bytes = nil, 0
	o.filled.Signal()
}
