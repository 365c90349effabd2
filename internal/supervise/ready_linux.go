package supervise

import (
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// readiness is what one loop waits for: an epoll of its own, which stands in that of
// Go's runtime (epoll(7): one can be in another), so that a loop that waits takes no
// thread.
type readiness struct {
	fd     int
	file   *os.File
	conn   syscall.RawConn
	events [16]unix.EpollEvent
	armed  []int // sockets that are ready

	mu     sync.Mutex
	until  time.Time
	ending bool
}

func newReadiness() (*readiness, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil { // or package os would not wait for it
		_ = unix.Close(fd)
		return nil, err
	}
	r := &readiness{fd: fd, file: os.NewFile(uintptr(fd), "epoll")}
	if r.conn, err = r.file.SyscallConn(); err == nil {
		err = r.file.SetReadDeadline(time.Time{}) // ErrNoDeadline: the runtime does not wait for it
	}
	if err != nil {
		_ = r.file.Close()
		return nil, err
	}
	return r, nil
}

func (r *readiness) add(fd int, events uint32) error {
	return unix.EpollCtl(r.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// remove comes before a descriptor is closed: the worker has the same socket, which
// stays in the epoll as long as that.
func (r *readiness) remove(fd int) { _ = unix.EpollCtl(r.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// arm waits for room in a socket, once.
func (r *readiness) arm(fd int) {
	_ = unix.EpollCtl(r.fd, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: int32(fd)})
}

// is tells whether the last wait found room in a socket.
func (r *readiness) is(fd int) bool { return slices.Contains(r.armed, fd) }

// wait waits for the listener, for what is armed, or a time; zero is no such time. It
// returns the listener's events, and false at the end.
func (r *readiness) wait(listener int, until time.Time) (events uint32, ok bool) {
	r.armed = r.armed[:0]
	if !r.deadline(until) {
		return 0, false
	}
	var n int
	var err error
	look := func(fd uintptr) bool {
		n, err = unix.EpollWait(int(fd), r.events[:], 0)
		return n != 0 || err != nil && err != unix.EINTR
	}
	if until.IsZero() || time.Now().Before(until) {
		if rerr := r.conn.Read(look); rerr != nil {
			err = rerr
		}
	} else { // package os does not look when it is late
		look(uintptr(r.fd))
	}
	switch {
	case r.isEnding():
		return 0, false
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.EINTR):
		n = 0
	case err != nil:
		return 0, false
	}
	for _, e := range r.events[:n] {
		if int(e.Fd) == listener {
			events = e.Events
		} else {
			r.armed = append(r.armed, int(e.Fd))
		}
	}
	return events, true
}

func (r *readiness) deadline(until time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending {
		return false
	}
	if !until.Equal(r.until) {
		_ = r.file.SetReadDeadline(until)
		r.until = until
	}
	return true
}

func (r *readiness) isEnding() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ending
}

// end ends the wait, and all to come.
func (r *readiness) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ending = true
	_ = r.file.SetReadDeadline(time.Unix(1, 0))
}

func (r *readiness) close() { _ = r.file.Close() }
