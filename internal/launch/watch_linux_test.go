package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCommandWaitsForWatchdog: a command starts when its watchdog watches, or is known
// not to, and not before. This one is stopped before it does.
func TestCommandWaitsForWatchdog(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	dir := t.TempDir()
	cwd, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cwd.Close()
	var thread *Thread
	for try := 0; ; try++ {
		if thread, err = NewThread(); err != nil {
			t.Fatal(err)
		}
		stopped := false
		if err := thread.Do(func() error {
			thread.Watch(func() error { return nil }) // no domain: it ends when it goes on
			if thread.watchdog == nil {
				return thread.unwatched
			}
			if err := unix.Kill(thread.watchdog.PID(), unix.SIGSTOP); err != nil {
				return err
			}
			var info unix.Siginfo
			if err := unix.Waitid(unix.P_PID, thread.watchdog.PID(), &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil); err != nil {
				return err
			}
			const stop = 5 // CLD_STOPPED
			stopped = info.Code == stop
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if stopped {
			break
		}
		thread.Close() // it had ended already
		if try == 100 {
			t.Fatal("the watchdog cannot be stopped in time")
		}
	}
	watchdog := thread.watchdog.PID()
	began := make(chan *Process, 1)
	go func() {
		p, err := thread.Start(Request{
			Path: "/bin/sh", Argv: []string{"sh", "-c", ": > ran"}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: cwd,
			Stdio: [3]*os.File{null, null, null}, OwnTree: true,
		})
		if err != nil {
			t.Error(err)
		}
		began <- p
	}()
	select {
	case p := <-began:
		began <- p
		t.Error("it started without a watchdog")
	case <-time.After(100 * time.Millisecond):
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("the command has run")
	}
	if err := unix.Kill(watchdog, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p := <-began
	if p == nil {
		return
	}
	p.Wait()
	if warnings := strings.Join(p.Warnings(), "; "); !strings.Contains(warnings, "watch") {
		t.Errorf("nobody was told: %q", warnings)
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err != nil {
		t.Error(err)
	}
}
