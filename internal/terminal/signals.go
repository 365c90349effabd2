package terminal

import (
	"os"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// deadly are the signals that end a Go program and that nobody passes on to the
// worker. They are caught only to give the terminal back first.
var deadly = []os.Signal{unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGSEGV, unix.SIGSYS, unix.SIGTRAP}

func (t *Terminal) catchSignals() {
	for _, sig := range slices.Concat([]os.Signal{unix.SIGWINCH, unix.SIGCONT, unix.SIGTSTP}, deadly, deadlyHere) {
		if !signal.Ignored(sig) {
			signal.Notify(t.signals, sig)
		}
	}
	go func() {
		defer t.rescue()
		for sig := range t.signals {
			t.take(sig.(syscall.Signal))
		}
	}()
}

func (t *Terminal) take(sig syscall.Signal) {
	switch sig {
	case unix.SIGWINCH:
		t.resize()
	case unix.SIGTSTP:
		t.outer.leave()
		raiseDefault(sig) // sbx stands still here
		t.resume()
	case unix.SIGCONT:
		t.resume()
	default:
		t.outer.leave()
		raiseDefault(sig)
	}
}

func (t *Terminal) resume() {
	t.outer.back()
	t.resize()
	t.repaint()
}
