package terminal

import (
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Caller is the caller's side of a worker's terminal that another process has, a
// daemon: it makes the caller's terminal raw, and tells of its size.
type Caller struct {
	outer   *outer
	stdin   *os.File
	signals chan os.Signal
	resized chan struct{}
	closed  bool
	cut     bool // the input's last line has no end
	ended   int  // ends of input that were given
}

// NewCaller takes the caller's terminal, if one of the streams is one.
// [Caller.Close] gives it back, on every path.
func NewCaller(stdin, stdout, stderr *os.File) *Caller {
	c := &Caller{outer: findOuter(stdin, stdout, stderr), stdin: stdin, signals: make(chan os.Signal, 64), resized: make(chan struct{}, 1)}
	for _, sig := range slices.Concat([]os.Signal{unix.SIGWINCH, unix.SIGCONT, unix.SIGTSTP}, deadly, deadlyHere) {
		if !signal.Ignored(sig) {
			signal.Notify(c.signals, sig)
		}
	}
	go func() {
		for sig := range c.signals {
			c.take(sig.(syscall.Signal))
		}
	}()
	c.outer.enter()
	return c
}

func (c *Caller) take(sig syscall.Signal) {
	switch sig {
	case unix.SIGWINCH, unix.SIGCONT:
	default:
		c.outer.leave()
		raiseDefault(sig) // of SIGTSTP: this process stands still here
	}
	c.outer.back()
	select {
	case c.resized <- struct{}{}:
	default: // it is told of already
	}
}

// Size is the size of the caller's terminal, or that of one that does not know its
// own.
func (c *Caller) Size() (rows, cols uint16) {
	if s := c.outer.size(); s != nil && s.Rows > 0 && s.Cols > 0 {
		return s.Rows, s.Cols
	}
	return 24, 80
}

// Resized tells, now and then too often, that the size may be another.
func (c *Caller) Resized() <-chan struct{} { return c.resized }

// Close gives the caller's terminal back. It may be called more than once, and on nil.
func (c *Caller) Close() {
	if c == nil || c.closed {
		return
	}
	c.closed = true
	c.outer.close()
	signal.Stop(c.signals)
	close(c.signals)
}

// Read reads the caller's standard input, and after its end gives the character that is
// one to a terminal (VEOF, termios(3)): once, or if a line has begun, which the first
// only completes, twice.
func (c *Caller) Read(b []byte) (int, error) {
	if c.ended > 0 {
		return c.end(b)
	}
	n, err := c.stdin.Read(b)
	if n > 0 {
		c.cut = b[n-1] != '\n' && b[n-1] != '\r'
		return n, nil
	}
	if err != nil {
		return c.end(b)
	}
	return n, err
}

const endOfInput = 4 // Ctrl-D, as a new terminal has it

func (c *Caller) end(b []byte) (int, error) {
	c.ended++
	if len(b) == 0 || c.ended > 2 || c.ended == 2 && !c.cut {
		return 0, io.EOF
	}
	b[0] = endOfInput
	return 1, nil
}
