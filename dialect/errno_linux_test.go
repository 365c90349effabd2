package dialect_test

import (
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestErrnosAreTheKernels: the names and texts of the other tests are what
// this system says.
func TestErrnosAreTheKernels(t *testing.T) {
	known := map[string]string{}
	for n := syscall.Errno(1); n < 200; n++ {
		if name := unix.ErrnoName(n); name != "" {
			known[name] = strings.ToLower(n.Error())
		}
	}
	for name, text := range errnos {
		if known[name] != text {
			t.Errorf("%s prints %q, not %q", name, known[name], text)
		}
	}
}
