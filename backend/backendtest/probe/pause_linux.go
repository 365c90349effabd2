package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandboxd/backend/backendtest/attempt"
)

func symbol(errno syscall.Errno) string {
	if name := unix.ErrnoName(errno); name != "" {
		return name
	}
	return fmt.Sprintf("errno %d", int(errno))
}

func signalName(sig syscall.Signal) string { return unix.SignalName(sig) }

// pause is the process that others attempt to touch: it holds a file and the
// file's text, and tells about each signal that reaches it.
func pause(args []string) error {
	ready := attempt.Ready{PID: os.Getpid(), FD: -1}
	var text []byte
	if len(args) > 0 {
		f, err := os.OpenFile(args[0], os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if text, err = io.ReadAll(f); err != nil {
			return err
		}
		ready.FD = int(f.Fd())
	}
	if len(text) > 0 {
		ready.Addr = uint64(uintptr(unsafe.Pointer(&text[0])))
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGUSR1, unix.SIGUSR2)
	enc := json.NewEncoder(os.Stdout)
	if err := enc.Encode(ready); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(done)
	}()
	for {
		select {
		case s := <-signals:
			if err := enc.Encode(attempt.Received{Signal: signalName(s.(syscall.Signal))}); err != nil {
				return err
			}
		case <-done:
			runtime.KeepAlive(text)
			return nil
		}
	}
}

// become changes this process in one way that its successor inherits, and turns
// into it: "umask=0057", "ignore=1" or "block=28" (signals by number).
func become(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: probe -become WHAT PROGRAM [ARG...]")
	}
	what, value, _ := strings.Cut(args[0], "=")
	n, err := strconv.ParseUint(value, 0, 16)
	if err != nil {
		return err
	}
	switch what {
	case "umask":
		unix.Umask(int(n))
	case "ignore":
		signal.Ignore(syscall.Signal(n))
	case "block":
		runtime.LockOSThread() // a mask is a thread's
		var set unix.Sigset_t
		set.Val[0] = 1 << (n - 1)
		if err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil); err != nil {
			return err
		}
	default:
		return fmt.Errorf("unknown change %q", what)
	}
	return unix.Exec(args[1], args[1:], os.Environ())
}

// gaps are the ranges of numbers that no descriptor has.
func gaps() ([][2]uint, error) {
	// The runtime opens its poller with the first pipe, and keeps it.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, _ = r.Close(), w.Close()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	var open []int
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, err
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil { // else it was the listing's
			open = append(open, fd)
		}
	}
	slices.Sort(open)
	var free [][2]uint
	next := uint(0)
	for _, fd := range open {
		if uint(fd) > next {
			free = append(free, [2]uint{next, uint(fd) - 1})
		}
		next = uint(fd) + 1
	}
	return append(free, [2]uint{next, math.MaxUint32}), nil
}

func closeAll(ranges [][2]uint) error {
	for _, r := range ranges {
		if err := unix.CloseRange(r[0], r[1], 0); err != nil {
			return err
		}
	}
	return nil
}
