package sys

import (
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWatchdogOutsideOfADomain: a watchdog that nothing keeps from signalling others
// does nothing, and that is told.
func TestWatchdogOutsideOfADomain(t *testing.T) {
	runtime.LockOSThread() // not unlocked: the thread ends with the test
	other, err := os.StartProcess("/bin/sleep", []string{"sleep", "300"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Kill()
		_, _ = other.Wait()
	}()
	w, err := StartWatchdog()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Ready(); err == nil {
		t.Error("it says that it watches")
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_PID, w.PID(), &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil); err != nil {
			t.Fatal(err)
		}
		if info.Signo != 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it watches")
		}
	}
	if err := w.Dismiss(); err == nil {
		t.Error("a watchdog that could signal everybody is taken for a good one")
	}
	if err := unix.Kill(other.Pid, 0); err != nil {
		t.Errorf("another process: %v", err)
	}
}
