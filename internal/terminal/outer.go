package terminal

import (
	"os"
	"sync"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// outer is the caller's terminal. Its methods do nothing on nil, which stands for
// none.
type outer struct {
	file *os.File
	keys bool // it is standard input: its keys are the worker's

	mu     sync.Mutex
	old    *term.State // as it was found; nil as long as it was not ours to change
	raw    bool
	away   bool // between leave and back
	closed bool
}

// findOuter returns the first of the streams that is a terminal.
func findOuter(stdin, stdout, stderr *os.File) *outer {
	for _, f := range []*os.File{stdin, stdout, stderr} {
		if term.IsTerminal(int(f.Fd())) {
			return &outer{file: f, keys: f == stdin}
		}
	}
	return nil
}

func (o *outer) hasKeys() bool { return o != nil && o.keys }

// enter makes the terminal pass everything through. Where input is from
// elsewhere, its keys stay what they are, so that Ctrl-C still ends something;
// only its treatment of output goes, which the worker's terminal has done. It
// reports whether the terminal is so now.
func (o *outer) enter() bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.away || o.raw || !o.find() {
		return o.raw
	}
	if o.keys {
		_, err := term.MakeRaw(int(o.file.Fd()))
		o.raw = err == nil
	} else {
		o.raw = changeSettings(o.file, func(s *unix.Termios) { s.Oflag &^= unix.OPOST }) == nil
	}
	return o.raw
}

// find remembers the terminal as it is, once. One that is not ours to change has
// somebody else's settings.
func (o *outer) find() bool {
	if !o.foreground() {
		return false
	}
	if o.old == nil {
		o.old, _ = term.GetState(int(o.file.Fd()))
	}
	return o.old != nil
}

// leave makes the terminal what it was found as, and keeps it so until back.
func (o *outer) leave() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.away = true
	if o.raw && o.foreground() {
		_ = term.Restore(int(o.file.Fd()), o.old)
	}
	o.raw = false
}

// back is called when this process goes on. Whoever had the terminal meanwhile, a
// shell after a SIGSTOP, may have changed it.
func (o *outer) back() {
	if o == nil {
		return
	}
	o.mu.Lock()
	o.away, o.raw = o.closed, false
	o.mu.Unlock()
	o.enter()
}

// close leaves for good.
func (o *outer) close() {
	if o == nil {
		return
	}
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.leave()
}

// foreground tells whether the terminal is ours to change. A job in the
// background would be stopped for it (SIGTTOU, termios(3)), and who is in the
// foreground has made its own settings.
func (o *outer) foreground() bool {
	group, err := unix.IoctlGetInt(int(o.file.Fd()), unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp() // ENOTTY: it controls nobody in this session
}

func (o *outer) size() *pty.Winsize {
	if o == nil {
		return nil
	}
	size, err := pty.GetsizeFull(o.file)
	if err != nil {
		return nil
	}
	return size
}

// copySettings gives another terminal this one's settings.
func (o *outer) copySettings(to *os.File) error {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.find() {
		return nil
	}
	return term.Restore(int(to.Fd()), o.old)
}

// changeSettings is for what package term has no word for.
func changeSettings(f *os.File, change func(*unix.Termios)) error {
	return control(f, func(fd int) error {
		s, err := unix.IoctlGetTermios(fd, getTermios)
		if err != nil {
			return err
		}
		change(s)
		return unix.IoctlSetTermios(fd, setTermios, s)
	})
}
