package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func init() {
	// caller connects, says so, and then becomes another user if told to.
	children["caller"] = func(args []string) string {
		conn, err := net.Dial("unix", args[0])
		if err != nil {
			return err.Error()
		}
		if args[1] != "" {
			if err := syscall.Setuid(4712); err != nil {
				return err.Error()
			}
		}
		fmt.Println("connected")
		untilEOF()
		_ = conn.Close()
		return ""
	}
}

func connected(t *testing.T, l *Listener) *net.UnixConn {
	t.Helper()
	c, err := l.Accept()
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestPeer(t *testing.T) {
	noLeak(t)
	l := open(t)
	d := begin(t, child(t, "caller", l.Path(), ""))
	conn := connected(t, l)
	p, err := PeerOf(conn)
	must(t, err)
	defer p.Close()
	if p.UID != uint32(os.Geteuid()) || p.GID != uint32(os.Getegid()) || p.PID != d.Process.Pid {
		t.Errorf("%+v, want pid %d", p, d.Process.Pid)
	}
	groups, err := os.Getgroups()
	must(t, err)
	for _, g := range groups {
		if !slices.Contains(p.Groups, uint32(g)) || !p.MemberOf(uint32(g)) {
			t.Errorf("group %d is not in %v", g, p.Groups)
		}
	}
	if len(groups) != len(p.Groups) || !p.MemberOf(p.GID) || p.MemberOf(4713) {
		t.Errorf("groups %v, want %v", p.Groups, groups)
	}
	if p.Exact != kernelAtLeast(6, 5) {
		t.Errorf("Exact is %v", p.Exact)
	}
	if flags, err := unix.FcntlInt(uintptr(p.PIDFD()), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the handle's flags are %d, %v", flags, err)
	}
	if alive, err := p.Alive(); !alive || err != nil {
		t.Errorf("alive: %v, %v", alive, err)
	}
	self, err := os.Executable()
	must(t, err)
	if exe, err := p.Exe(); exe != self || err != nil {
		t.Errorf("%q, %v, want %q", exe, err, self)
	}
	d.kill()
	if alive, err := p.Alive(); alive || err != nil {
		t.Errorf("alive after its end: %v, %v", alive, err)
	}
	if exe, err := p.Exe(); err == nil {
		t.Errorf("the program of a dead process: %q", exe)
	}
	// Another process, this one, has taken the pid over.
	p.PID = os.Getpid()
	if exe, err := p.Exe(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("the program of another process: %q, %v", exe, err)
	}
	must(t, p.Close())
	must(t, p.Close())
	if _, err := p.Alive(); err == nil || p.PIDFD() != -1 {
		t.Errorf("after Close: %v", err)
	}
}

// TestPeerGone: the credentials stay when the process has ended and was reaped.
func TestPeerGone(t *testing.T) {
	noLeak(t)
	l := open(t)
	d := begin(t, child(t, "caller", l.Path(), ""))
	conn := connected(t, l)
	d.kill()
	p, err := PeerOf(conn)
	must(t, err)
	defer p.Close()
	if p.UID != uint32(os.Geteuid()) || p.PID != d.Process.Pid {
		t.Errorf("%+v", p)
	}
	if alive, err := p.Alive(); alive || err != nil {
		t.Errorf("alive: %v, %v", alive, err)
	}
	if _, err := p.Exe(); err == nil {
		t.Error("it has a program")
	}
}

// TestPeerOfAnotherUser: what counts is who connected, with its groups, and not
// what it became.
func TestPeerOfAnotherUser(t *testing.T) {
	needRoot(t)
	noLeak(t)
	dir := tempDir(t)
	must(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "sys", "d.sock")
	l, err := Open(Options{Path: path, Mode: System, Group: "4242"})
	must(t, err)
	defer l.Close()
	many := []uint32{4242}
	for g := range uint32(300) { // more than one look holds
		many = append(many, 5000+g)
	}
	cmd := as(t, child(t, "caller", path, ""), 4711, 4710, many...)
	begin(t, cmd)
	p, err := PeerOf(connected(t, l))
	must(t, err)
	defer p.Close()
	if p.UID != 4711 || p.GID != 4710 || len(p.Groups) != len(many) || !p.MemberOf(5299) || !p.MemberOf(4242) || p.MemberOf(5300) {
		t.Errorf("%d:%d with %d groups", p.UID, p.GID, len(p.Groups))
	}

	d := begin(t, child(t, "caller", path, "become another"))
	q, err := PeerOf(connected(t, l))
	must(t, err)
	defer q.Close()
	if now, err := processUser(d.Process.Pid); now != 4712 || err != nil {
		t.Errorf("control: it is user %d now, %v", now, err)
	}
	if q.UID != 0 {
		t.Errorf("it is user %d", q.UID)
	}
}

func TestOpenByPID(t *testing.T) {
	noLeak(t)
	l := open(t)
	d := begin(t, child(t, "caller", l.Path(), ""))
	uid := uint32(os.Geteuid())
	p := &Peer{UID: uid, PID: d.Process.Pid, pidfd: -1}
	must(t, p.openByPID())
	defer p.Close()
	if alive, err := p.Alive(); !alive || err != nil || p.Exact {
		t.Errorf("%v, %v, %+v", alive, err, p)
	}
	if exe, err := p.Exe(); err != nil || exe == "" {
		t.Errorf("%q, %v", exe, err)
	}
	stranger := &Peer{UID: uid + 1, PID: d.Process.Pid, pidfd: -1}
	must(t, stranger.openByPID())
	if _, err := stranger.Alive(); !errors.Is(err, errNoHandle) {
		t.Errorf("another user's process was taken for it: %v", err)
	}
	if _, err := stranger.Exe(); !errors.Is(err, errNoHandle) {
		t.Errorf("its program: %v", err)
	}
	d.kill()
	for _, pid := range []int{d.Process.Pid, 0} {
		q := &Peer{UID: uid, PID: pid, pidfd: -1}
		must(t, q.openByPID())
		if alive, _ := q.Alive(); alive || q.PIDFD() != -1 {
			t.Errorf("pid %d lives", pid)
		}
	}
}

func TestPeerOfNobody(t *testing.T) {
	noLeak(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	if p, err := peerOf(fd); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("%+v, %v", p, err)
	}
	a, _ := pair(t, unix.SOCK_STREAM)
	p, err := PeerOf(a)
	must(t, err)
	if p.PID != os.Getpid() {
		t.Errorf("%+v", p)
	}
	_ = p.Close()
	_ = a.Close()
	if _, err := PeerOf(a); err == nil {
		t.Error("of a closed connection")
	}
}

// TestPeerWithoutDescriptors: a shortage is an error, and not a peer of which
// less is known.
func TestPeerWithoutDescriptors(t *testing.T) {
	if got := say(t, child(t, "peer-emfile")); !strings.Contains(got, "too many open files") {
		t.Error(got)
	}
}

func init() {
	children["peer-emfile"] = func([]string) string {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err.Error()
		}
		exhaust()
		_, err = peerOf(fds[0])
		return fmt.Sprint(err)
	}
}

// exhaust opens descriptors until there are none left, and returns them.
func exhaust() (all []int) {
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64})
	for {
		fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return all
		}
		all = append(all, fd)
	}
}
