package terminal

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// feed passes standard input on until it ends, and then lets the worker see that
// end. It reads no more than the worker's terminal takes.
func (t *Terminal) feed() {
	buf := make([]byte, 4096)
	for t.await() {
		n, err := unix.Read(int(t.stdin.Fd()), buf)
		if n > 0 {
			if _, err := t.master.Write(buf[:n]); err != nil {
				return // the worker's terminal is gone
			}
			continue
		}
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		t.end()
		return
	}
}

// await waits for input; false if Close came first. A read would keep what comes
// after the worker's end from the caller's next program.
//
// A job in the background leaves the caller's keys alone, and looks now and then
// whether it was brought to the front: nobody tells a job that has not stopped.
func (t *Terminal) await() bool {
	fds := []unix.PollFd{{Fd: int32(t.woken.Fd()), Events: unix.POLLIN}, {Fd: int32(t.stdin.Fd()), Events: unix.POLLIN}}
	for {
		timeout := -1
		fds[1].Events = unix.POLLIN
		if t.outer != nil && !t.outer.enter() {
			timeout = int(latest.Milliseconds())
			if t.outer.keys {
				fds[1].Events = 0 // an end (POLLHUP) is told nevertheless
			}
		}
		n, err := unix.Poll(fds, timeout)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return true // the read will tell
		case n > 0 && fds[0].Revents != 0:
			return false
		case n > 0 && (fds[1].Revents&^unix.POLLIN != 0 || !t.outer.hasKeys() || t.outer.enter()):
			return true
		}
	}
}

// How often is looked at what nobody tells of.
const (
	soonest = 5 * time.Millisecond
	latest  = 250 * time.Millisecond
)

// end lets each read of the worker find the end of its input, as it would on a
// pipe. A terminal has but one character for that (VEOF, termios(3)), which ends
// one read, and on a line that has begun only completes that. So one is sent
// whenever the worker has read all that came before, the last one too.
//
// A program that reads single keys gets the key that it may take for an end, once,
// for it would take more of them for keys.
func (t *Terminal) end() {
	told := false // to a program that reads keys
	wait := soonest
	for {
		lines, eof, read, err := t.state()
		if err != nil {
			return
		}
		var keys []byte
		switch {
		case !read:
		case lines:
			keys = eof
		case !told:
			keys = []byte{4} // Ctrl-D
		}
		told = !lines && (told || read)
		wait = min(2*wait, latest)
		if len(keys) > 0 {
			wait = soonest
			if _, err := t.master.Write(keys); err != nil {
				return
			}
		}
		fds := []unix.PollFd{{Fd: int32(t.woken.Fd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, int(wait.Milliseconds())); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// state tells whether the worker reads lines, with which character as their end,
// and whether it has read all that it was sent.
func (t *Terminal) state() (lines bool, eof []byte, read bool, err error) {
	err = control(t.Output.Worker, func(fd int) error {
		s, err := unix.IoctlGetTermios(fd, getTermios)
		if err != nil {
			return err
		}
		lines = s.Lflag&unix.ICANON != 0
		if c := s.Cc[unix.VEOF]; c != disabled {
			eof = []byte{c}
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, err = unix.Poll(fds, 0)
		read = fds[0].Revents&unix.POLLIN == 0
		return err
	})
	return lines, eof, read, err
}
