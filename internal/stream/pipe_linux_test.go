package stream

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEnlargedPipe: a worker can leave more in its pipe than a usual pipe holds
// (F_SETPIPE_SZ), and all of it arrives.
func TestEnlargedPipe(t *testing.T) {
	to := &slow{pause: time.Millisecond}
	tap := tap(t, to)
	size := 1 << 20 // what anybody may have: pipe(7), pipe-max-size
	if got, err := unix.FcntlInt(tap.Worker.Fd(), unix.F_SETPIPE_SZ, 8<<20); err == nil {
		size = got
	} else if _, err := unix.FcntlInt(tap.Worker.Fd(), unix.F_SETPIPE_SZ, size); err != nil {
		t.Skipf("a larger pipe: %v", err)
	}
	if _, err := tap.Worker.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	_ = tap.Worker.Close()
	if err := tap.Drain(time.Millisecond, nil); err != nil || to.Len() != size {
		t.Errorf("%d of %d bytes, %v", to.Len(), size, err)
	}
}
