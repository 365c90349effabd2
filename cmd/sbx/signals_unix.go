package main

import (
	"errors"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that the worker must see when somebody sends them
// to sbx. SIGTSTP and SIGCONT are not among them: the worker shares sbx's
// process group, so the terminal stops and continues both, and the shell's job
// control works as for any pipeline.
var forwarded = []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2}

// controlled is what of a worker signals are about.
type controlled interface {
	Signal(os.Signal) error
	Stop(grace time.Duration) bool
}

// signals are those that came for the worker.
type signals struct {
	ch chan os.Signal
	// early came before there could be a worker.
	early []os.Signal
}

// catchSignals keeps signals for the worker before there is one: a signal
// during the launch is passed on once it runs. A signal that the caller had
// ignored (nohup) stays ignored for both. It answers when all are caught, which
// costs the runtime two changes of thread each, so the launch goes on meanwhile.
func catchSignals() <-chan *signals {
	done := make(chan *signals, 1)
	go func() {
		s := &signals{ch: make(chan os.Signal, 16)}
		// Else the runtime ends this process when it writes to a standard
		// output or error that nobody reads (os/signal, SIGPIPE), before it has
		// cleaned up. To ignore it would make the worker ignore it, too.
		signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
		for _, sig := range forwarded {
			if !signal.Ignored(sig) {
				signal.Notify(s.ch, sig)
			}
		}
		// Asked for, so that a reader who is gone is an error (EPIPE) and does not
		// end sbx before its worker (os/signal, "SIGPIPE").
		signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
		done <- s
	}()
	return done
}

// beforeWorker is called before the worker is forked: what has come by now, it
// has not seen, from the terminal neither.
func (s *signals) beforeWorker() {
	for len(s.ch) > 0 {
		s.early = append(s.early, <-s.ch)
	}
}

// forwardTo passes signals on to the worker until stop is called.
//
// Ctrl-C and Ctrl-\ reach the whole foreground process group, the worker
// included; passing them on as well would deliver them twice, which many
// programs take for "stop at once". So while sbx stands in the foreground of
// its terminal those two are left to the terminal, if it is the worker's, too
// (shared).
//
// The signals stay caught after stop: between the worker's end and its own a
// Ctrl-C must not end sbx before it has cleaned up and written its report.
//
// SIGTERM asks the whole tree to end, and the command is killed when its grace is
// over: whoever sends it wants an end. The others are the command's to judge.
func (s *signals) forwardTo(w controlled, grace time.Duration, shared bool) (stop func()) {
	done := make(chan struct{})
	pass := func(sig os.Signal) {
		if sig == unix.SIGTERM {
			w.Stop(max(grace, time.Nanosecond)) // it is asked, always
			return
		}
		_ = w.Signal(sig)
	}
	go func() {
		for _, sig := range s.early {
			pass(sig)
		}
		for {
			select {
			case sig := <-s.ch:
				if (sig == unix.SIGINT || sig == unix.SIGQUIT) && shared && inForeground() {
					continue
				}
				pass(sig)
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

// inForeground tells whether this process' group is the one that its
// controlling terminal sends keyboard signals to.
func inForeground() bool {
	tty, group := foreground()
	if tty != nil {
		_ = tty.Close()
	}
	return group == unix.Getpgrp()
}

// foreground opens the controlling terminal and tells which group stands in its
// foreground; nil and 0 if there is none.
func foreground() (tty *os.File, group int) {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0
	}
	if group, err = unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP); err != nil {
		return tty, 0
	}
	return tty, group
}

// reclaimTerminal puts sbx back into the foreground if the worker had put a group
// of its own there (an interactive shell does) and was killed before it could give
// the terminal back. A caller that is a script could not use it otherwise.
func reclaimTerminal() {
	tty, group := foreground()
	if tty == nil {
		return
	}
	defer tty.Close()
	if group <= 1 || group == unix.Getpgrp() || !errors.Is(unix.Kill(-group, 0), unix.ESRCH) {
		return
	}
	signal.Ignore(unix.SIGTTOU) // or it would stop us, in the background (tcsetpgrp(3))
	_ = unix.IoctlSetPointerInt(int(tty.Fd()), unix.TIOCSPGRP, unix.Getpgrp())
}
