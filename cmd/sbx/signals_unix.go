package main

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
)

// forwarded are the signals that the worker must see when somebody sends them
// to sbx. SIGTSTP and SIGCONT are not among them: the worker shares sbx's
// process group, so the terminal stops and continues both, and the shell's job
// control works as for any pipeline.
var forwarded = []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2}

// forwardSignals passes signals on to the worker until stop is called. A signal
// that the caller had ignored (nohup) stays ignored for both.
//
// Ctrl-C and Ctrl-\ reach the whole foreground process group, the worker
// included; passing them on as well would deliver them twice, which many
// programs take for "stop at once". So while sbx stands in the foreground of
// its terminal those two are left to the terminal.
func forwardSignals(w backend.Worker) (stop func()) {
	ch := make(chan os.Signal, 16)
	for _, s := range forwarded {
		if !signal.Ignored(s) {
			signal.Notify(ch, s)
		}
	}
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-ch:
				if (s == unix.SIGINT || s == unix.SIGQUIT) && inForeground() {
					continue
				}
				_ = w.Signal(s)
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		// Left registered: between here and exit a Ctrl-C must not end sbx
		// before it has cleaned up and written its report.
	}
}

// inForeground tells whether this process' group is the one that its
// controlling terminal sends keyboard signals to.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	pgrp, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && pgrp == unix.Getpgrp()
}
