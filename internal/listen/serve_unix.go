//go:build linux || darwin

package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Waits of the accept loop after a failure: doubled from the first to the last.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

// burst is how many waiting connections are refused at a time in a shortage.
const burst = 64

// Serve accepts connections and calls handle with each in a goroutine of its
// own, until ctx is done (its error is returned), the listener is closed (nil),
// or accept(2) fails for good. The handler closes the connection. Serve does not
// wait for handlers.
//
// In a shortage of descriptors it lets go of one that it keeps for that, and
// accepts and closes what waits: clients see an end instead of waiting, and the
// loop neither spins nor stops. After each failure it pauses, from 5 ms doubled
// to 1 s. Serve is called once at a time.
func (l *Listener) Serve(ctx context.Context, handle func(*net.UnixConn)) error {
	defer l.sock.SetDeadline(time.Time{})
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_ = l.sock.SetDeadline(time.Unix(1, 0)) // accept returns
	})
	defer func() {
		if !stop() {
			<-woken // before the deadline is taken back
		}
	}()
	return l.serve(ctx, l.sock.AcceptUnix, handle)
}

func (l *Listener) serve(ctx context.Context, accept func() (*net.UnixConn, error), handle func(*net.UnixConn)) error {
	pause := time.Duration(0)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		conn, err := accept()
		if err == nil {
			pause = 0
			l.accepted.Add(1)
			go handle(conn)
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
			l.failed.Add(1)
			l.refuse()
		case passing(err):
			l.failed.Add(1)
		default:
			return fmt.Errorf("accepting: %w", err)
		}
		pause = min(max(2*pause, firstPause), lastPause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// passing tells whether accept failed for a reason that passes: a shortage of
// memory, or a connection that came to nothing (accept(2)).
func passing(err error) bool {
	for _, errno := range []unix.Errno{unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EPROTO, unix.EPERM, unix.EINTR, unix.EAGAIN} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// refuse accepts what waits in place of the spare descriptor, and closes it.
func (l *Listener) refuse() {
	l.spareMu.Lock()
	defer l.spareMu.Unlock()
	if l.spare < 0 { // others took it; maybe there is one again
		if l.spare = openSpare(); l.spare < 0 {
			return
		}
	}
	raw, err := l.sock.SyscallConn()
	if err != nil {
		return
	}
	_ = unix.Close(l.spare)
	l.spare = -1
	_ = raw.Control(func(fd uintptr) {
		for range burst {
			conn, err := acceptRaw(int(fd))
			if err != nil { // EAGAIN: nobody waits any more; EMFILE: others were faster
				return
			}
			_ = unix.Close(conn)
			l.refused.Add(1)
		}
	})
	l.spare = openSpare()
}

// dropSpare is for the end.
func (l *Listener) dropSpare() {
	l.spareMu.Lock()
	defer l.spareMu.Unlock()
	if l.spare >= 0 {
		_ = unix.Close(l.spare)
	}
	l.spare = -1
}

// openSpare opens a descriptor on nothing much; -1 if it cannot.
func openSpare() int {
	fd, err := openAt(unix.AT_FDCWD, "/", searchFlags, 0)
	if err != nil {
		return -1
	}
	return fd
}
