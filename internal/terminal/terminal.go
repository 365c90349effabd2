// Package terminal gives a worker a pseudo-terminal of its own (pty(7)) and stands
// between that and the caller's standard streams, so that the worker holds no
// descriptor of the caller's terminal.
package terminal

import (
	"fmt"
	"os"
	"os/signal"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"sandboxd/internal/stream"
	"sandboxd/internal/sys"
)

// Terminal is a worker's terminal. Its worker's end is Output.Worker.
type Terminal struct {
	// Output copies what the worker writes to the caller's standard output.
	Output *stream.Tap
	master *os.File
	stdin  *os.File
	outer  *outer // nil if no stream of the caller's is a terminal

	signals chan os.Signal
	wake    *os.File // Close closes it, and so ends the wait for input
	woken   *os.File // the input's own, from Start on
	started bool
	closed  bool
}

// Open makes a terminal for a worker, with the settings and the size of the
// caller's, and makes that one raw: its keys and the worker's output go through
// it untouched. [Terminal.Close] gives it back, on every path.
func Open(stdin, stdout, stderr *os.File) (_ *Terminal, err error) {
	// Its copying waits in system calls, on four threads at most.
	<-sys.SpareThreads(4)
	master, worker, err := open()
	if err != nil {
		return nil, err
	}
	t := &Terminal{master: master, stdin: stdin, outer: findOuter(stdin, stdout, stderr), signals: make(chan os.Signal, 64)}
	if t.woken, t.wake, err = os.Pipe(); err == nil {
		err = t.adopt(worker)
	}
	if err != nil {
		for _, f := range []*os.File{master, worker, t.woken, t.wake} {
			_ = f.Close() // of one that is not there, too
		}
		return nil, err
	}
	t.Output = stream.NewTerminalTap(master, worker, stdout)
	t.resize()
	t.catchSignals()
	t.outer.enter()
	return t, nil
}

// open makes the two ends of a new terminal.
func open() (master, worker *os.File, err error) {
	m, worker, err := pty.Open()
	if err != nil {
		return nil, nil, fmt.Errorf("making a terminal: %w", err)
	}
	defer m.Close()
	// A descriptor for the runtime's poller: package pty's is blocking by now, and
	// so cannot be read with a deadline.
	fd, err := unix.FcntlInt(m.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		if err = unix.SetNonblock(fd, true); err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		_ = worker.Close()
		return nil, nil, fmt.Errorf("making a terminal: %w", err)
	}
	return os.NewFile(uintptr(fd), m.Name()), worker, nil
}

// adopt gives the worker's end the caller's settings: its erase characters, its
// encoding. What does not come from a keyboard is not echoed, as nobody typed it
// who would want to see it.
func (t *Terminal) adopt(worker *os.File) error {
	err := t.outer.copySettings(worker)
	if err == nil && !t.outer.hasKeys() {
		err = changeSettings(worker, func(s *unix.Termios) { s.Lflag &^= unix.ECHO })
	}
	return err
}

// Start begins to pass input on. It is called once the worker runs.
func (t *Terminal) Start() {
	t.started = true
	go func() {
		defer t.rescue()
		defer t.woken.Close()
		t.feed()
	}()
}

// Close gives the caller's terminal back, and passes no more input on. It may be
// called more than once, and on nil.
func (t *Terminal) Close() {
	if t == nil || t.closed {
		return
	}
	t.closed = true
	t.outer.close()
	signal.Stop(t.signals)
	close(t.signals)
	_ = t.wake.Close()
	_ = t.master.Close() // or a terminal that is full would hold the input
	if !t.started {
		_ = t.woken.Close()
	}
}

// rescue gives the caller's terminal back if this goroutine panics, which ends the
// process without running what others have deferred.
func (t *Terminal) rescue() {
	if p := recover(); p != nil {
		t.outer.leave()
		panic(p)
	}
}

// resize passes the size of the caller's terminal on, pixels too. The kernel tells
// the worker (SIGWINCH) if it has changed.
func (t *Terminal) resize() {
	size := unix.Winsize{Row: 24, Col: 80} // where there is no screen, or one that does not know its size
	if s := t.outer.size(); s != nil && s.Rows > 0 && s.Cols > 0 {
		size = unix.Winsize{Row: s.Rows, Col: s.Cols, Xpixel: s.X, Ypixel: s.Y}
	}
	_ = control(t.master, func(fd int) error { return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &size) })
}

// repaint asks the programs in the foreground to paint their screen anew.
func (t *Terminal) repaint() {
	var group int
	err := control(t.master, func(fd int) (err error) {
		group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP) // by the master: the worker's end is none of our session's (ENOTTY)
		return err
	})
	if err == nil && group > 1 {
		_ = unix.Kill(-group, unix.SIGWINCH)
	}
}

// control runs f on a descriptor that nobody closes meanwhile. File.Fd would
// make it a blocking one.
func control(file *os.File, f func(fd int) error) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := conn.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}
