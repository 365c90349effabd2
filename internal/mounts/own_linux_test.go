package mounts

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwn: of this kernel's own table nothing is left out, and what it says of the
// root is true.
func TestOwn(t *testing.T) {
	var root *Mount
	for try := 1; ; try++ { // others may mount meanwhile
		text, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		n, lines := 0, bytes.Count(text, []byte("\n"))
		if err := Own(func(m Mount) bool {
			if n++; m.Point == "/" {
				root = &m // the last is on top
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		if n == lines {
			break
		}
		if try == 20 {
			t.Fatalf("%d mounts of %d lines", n, lines)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err != nil {
		t.Fatal(err)
	}
	if root != nil && root.ReadOnly() != (st.Flags&unix.ST_RDONLY != 0) {
		t.Errorf("%+v, and statfs says %#x", root, st.Flags)
	}
}
