package supervise

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCanAskNames: what it says is what a question about a real name gets.
func TestCanAskNames(t *testing.T) {
	name := "@sbx-can-ask-" + t.Name()
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.(*net.UnixListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if cerr := raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	o := newOwnSet()
	defer o.close()
	if err := o.openDiag(); err != nil {
		t.Fatal(err)
	}
	b, err := o.ask(st.Ino)
	if told := err == nil && "@"+b.name == name; told != CanAskNames() {
		t.Errorf("CanAskNames is %t, and the kernel says %+v, %v of %s", !told, b, err, name)
	}
}
