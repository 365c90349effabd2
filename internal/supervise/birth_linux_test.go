package supervise

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestIdentifyByBirth: without sock_diag only a socket that is younger than the
// bind is taken for the worker's; a host's, renamed onto the name, is not.
func TestIdentifyByBirth(t *testing.T) {
	dir := t.TempDir()
	listen := func(name string) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		t.Cleanup(func() { l.Close() })
	}
	listen("host")
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // more than a tick
	since := coarseNow()
	listen("own")
	if err := os.Symlink("own", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	parent, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(parent)
	for name, want := range map[string]error{"own": nil, "host": unix.ESTALE, "file": unix.ESTALE, "link": unix.ESTALE, "none": unix.ENOENT} {
		o := newOwnSet()
		err := o.identifyByBirth(parent, name, since)
		if errors.Is(err, unix.ENOTSUP) {
			o.close()
			t.Skipf("%s has no birth times", dir)
		}
		if !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
		if n := o.size(); (n == 1) != (want == nil) {
			t.Errorf("%s: %d sockets are counted as the worker's own", name, n)
		}
		o.close()
	}
}
