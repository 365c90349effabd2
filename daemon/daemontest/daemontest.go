// Package daemontest runs a daemon inside of a test's process.
package daemontest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"sandboxd/backend/landlock"
	"sandboxd/daemon"
	"sandboxd/internal/confine"
	"sandboxd/internal/listen"
)

// Main is to be called by TestMain, first thing: a daemon starts the test's program
// again, as its front and as its guard.
func Main() {
	switch os.Args[0] {
	case daemon.GuardName:
		os.Exit(daemon.Guard())
	case daemon.FrontName:
		err := daemon.Front(daemon.FrontOptions{Version: "test", Confine: func() (string, error) {
			return daemon.Confine(&confine.IDs{UID: 65534, GID: 65534}, true) // a race detector's threads are not Go's
		}})
		if err != nil {
			fmt.Fprintln(os.Stderr, "front:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// Start runs a daemon of this user, without an audit log, until stop is called, at the
// latest at the test's end, and returns its socket.
func Start(t testing.TB) (socket string, stop func()) {
	t.Helper()
	if !landlock.New(landlock.Options{}).Probe().Usable {
		t.Skip("this kernel has no Landlock")
	}
	dir, err := os.MkdirTemp("", "sbx-daemon-") // short: a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m, err := daemon.New(daemon.Options{
		Socket: listen.Options{Path: filepath.Join(dir, "run", "s"), Mode: listen.User}, Version: "test", NoAudit: true,
		Features: func() any { return map[string]int{"schema": 1} },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, 0) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the daemon: %v", err)
		}
	})
	t.Cleanup(stop)
	return m.Socket(), stop
}
