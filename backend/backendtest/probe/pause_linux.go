package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
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
