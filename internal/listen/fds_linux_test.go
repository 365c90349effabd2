package listen

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// files opens so many descriptors.
func files(t *testing.T, n int) []int {
	t.Helper()
	var all []int
	for range n {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		all = append(all, fd)
	}
	t.Cleanup(func() { CloseAll(all) })
	return all
}

func TestPassing(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 16, 252, 253} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			noLeak(t)
			a, b := pair(t, unix.SOCK_STREAM)
			must(t, Send(a, []byte("word"), files(t, n)))
			buf := make([]byte, 100)
			got, fds, err := Recv(b, buf, n)
			if err != nil || string(buf[:got]) != "word" || len(fds) != n {
				t.Fatalf("%q with %d descriptors, %v", buf[:got], len(fds), err)
			}
			for _, fd := range fds {
				if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
					t.Errorf("descriptor %d: flags %d, %v", fd, flags, err)
				}
			}
			CloseAll(fds)
		})
	}
}

// TestPassedIsTheFile: what arrives is what was sent.
func TestPassedIsTheFile(t *testing.T) {
	noLeak(t)
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	a, b := pair(t, unix.SOCK_STREAM)
	must(t, Send(a, []byte{1}, []int{int(w.Fd())}))
	keep(w)
	_, fds, err := Recv(b, make([]byte, 1), 1)
	must(t, err)
	defer CloseAll(fds)
	if _, err := unix.Write(fds[0], []byte("through")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 20)
	n, err := r.Read(buf)
	if string(buf[:n]) != "through" {
		t.Errorf("%q, %v", buf[:n], err)
	}
}

// TestLargeSend: data that does not fit at once is all sent, and the descriptors
// with the first byte of it and once.
func TestLargeSend(t *testing.T) {
	noLeak(t)
	a, b := pair(t, unix.SOCK_STREAM)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	fds := files(t, 3)
	sent := make(chan error, 1)
	go func() { sent <- Send(a, data, fds); _ = a.Close() }()
	var all []byte
	buf := make([]byte, 30000)
	for first := true; ; first = false {
		n, got, err := Recv(b, buf, 3)
		if err == io.EOF {
			break
		}
		must(t, err)
		if want := map[bool]int{true: 3}[first]; len(got) != want {
			t.Errorf("%d descriptors, want %d", len(got), want)
		}
		CloseAll(got)
		all = append(all, buf[:n]...)
	}
	must(t, <-sent)
	if !bytes.Equal(all, data) {
		t.Errorf("%d of %d bytes, or others", len(all), len(data))
	}
}

// TestSendsDoNotMix: each is whole, whoever else sends.
func TestSendsDoNotMix(t *testing.T) {
	noLeak(t)
	a, b := pair(t, unix.SOCK_STREAM)
	const size = 500_000 // more than the socket holds
	var wg sync.WaitGroup
	for i := range byte(4) {
		wg.Go(func() {
			if err := Send(a, bytes.Repeat([]byte{i}, size), nil); err != nil {
				t.Error(err)
			}
		})
	}
	buf := make([]byte, size)
	for range 4 {
		if _, err := io.ReadFull(b, buf); err != nil {
			t.Fatal(err)
		}
		if bytes.Count(buf, buf[:1]) != size {
			t.Error("two are mixed")
		}
	}
	wg.Wait()
}

func TestSendRefused(t *testing.T) {
	noLeak(t)
	a, b := pair(t, unix.SOCK_STREAM)
	if err := Send(a, nil, files(t, 1)); !errors.Is(err, ErrNoBytes) {
		t.Errorf("no data: %v", err)
	}
	must(t, Send(a, nil, nil))
	if err := Send(a, []byte{1}, files(t, maxFDs+1)); !errors.Is(err, ErrTooManyFDs) {
		t.Errorf("too many: %v", err)
	}
	if err := Send(a, []byte{1}, []int{1 << 20}); !errors.Is(err, unix.EBADF) {
		t.Errorf("not open: %v", err)
	}
	must(t, a.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	if err := Send(a, make([]byte, 8<<20), nil); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nobody reads: %v", err)
	}
	must(t, a.SetWriteDeadline(time.Time{}))
	_ = b.Close()
	if err := Send(a, []byte{1}, files(t, 1)); !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the other end is closed: %v", err)
	}
	_ = a.Close()
	if err := Send(a, []byte{1}, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func TestRecvRefused(t *testing.T) {
	for _, c := range []struct {
		sent, limit int
		want        error
	}{
		{1, 0, nil}, {2, 1, nil}, {3, 1, nil}, {4, 3, nil}, {253, 2, nil}, {20, 1, ErrTruncated}, {11, 1, ErrTruncated}, {3, 1, ErrTooManyFDs},
	} {
		t.Run(fmt.Sprint(c.sent, " for ", c.limit), func(t *testing.T) {
			noLeak(t)
			a, b := pair(t, unix.SOCK_STREAM)
			must(t, Send(a, []byte("x"), files(t, c.sent)))
			n, fds, err := Recv(b, make([]byte, 10), c.limit)
			if n != 0 || fds != nil || !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrTooManyFDs) || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%d, %v, %v", n, fds, err)
			}
		})
	}
	a, b := pair(t, unix.SOCK_STREAM)
	for _, limit := range []int{-1, 0} {
		if _, _, err := Recv(b, make([]byte, -limit), limit); err == nil || err == io.EOF {
			t.Errorf("no room: %v", err)
		}
	}
	must(t, b.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	if _, _, err := Recv(b, make([]byte, 1), 1); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nothing comes: %v", err)
	}
	must(t, b.SetReadDeadline(time.Time{}))
	_ = a.Close()
	if _, _, err := Recv(b, make([]byte, 1), 1); err != io.EOF {
		t.Errorf("the end: %v", err)
	}
	_ = b.Close()
	if _, _, err := Recv(b, make([]byte, 1), 1); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestUnreadDescriptors: what was sent and never read is closed with the socket.
func TestUnreadDescriptors(t *testing.T) {
	noLeak(t)
	a, b := pair(t, unix.SOCK_STREAM)
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	must(t, Send(a, []byte("x"), []int{int(w.Fd())}))
	_ = w.Close()
	_, _ = a.Close(), b.Close()
	if n, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%d, %v", n, err)
	}
}

// TestOtherAncillaryData: credentials are passed over, with descriptors, without,
// and at the end; a handle on the sender's process is closed.
func TestOtherAncillaryData(t *testing.T) {
	for name, opts := range map[string][]int{
		"credentials": {unix.SO_PASSCRED}, "handle": {unix.SO_PASSPIDFD}, "both": {unix.SO_PASSCRED, unix.SO_PASSPIDFD},
	} {
		t.Run(name, func(t *testing.T) {
			noLeak(t)
			a, b := pair(t, unix.SOCK_STREAM)
			for _, opt := range opts {
				if err := setsockopt(t, b, opt, 1); errors.Is(err, unix.ENOPROTOOPT) && !kernelAtLeast(6, 5) {
					t.Skip("SO_PASSPIDFD is of Linux 6.5")
				} else {
					must(t, err)
				}
			}
			must(t, Send(a, []byte("x"), files(t, 8)))
			n, fds, err := Recv(b, make([]byte, 10), 8)
			// The handle may find no room: that is an error, and no leak.
			if name != "credentials" && errors.Is(err, ErrTruncated) {
				return
			}
			if n != 1 || len(fds) != 8 || err != nil {
				t.Fatalf("%d, %v, %v", n, fds, err)
			}
			CloseAll(fds)
			must(t, Send(a, []byte("y"), nil))
			if n, fds, err := Recv(b, make([]byte, 10), 8); n != 1 || len(fds) != 0 || err != nil {
				t.Errorf("%d, %v, %v", n, fds, err)
			}
			_ = a.Close()
			if n, fds, err := Recv(b, make([]byte, 10), 8); n != 0 || fds != nil || err != io.EOF {
				t.Errorf("the end: %d, %v, %v", n, fds, err)
			}
		})
	}
}

// TestMessages: a socket of messages can carry descriptors without bytes, and
// messages that do not fit.
func TestMessages(t *testing.T) {
	noLeak(t)
	a, b := pair(t, unix.SOCK_DGRAM)
	raw, err := a.SyscallConn()
	must(t, err)
	fd := files(t, 1)
	var serr error
	must(t, raw.Control(func(s uintptr) { serr = unix.Sendmsg(int(s), nil, unix.UnixRights(fd...), nil, 0) }))
	must(t, serr)
	if n, fds, err := Recv(b, make([]byte, 10), 2); !errors.Is(err, ErrNoBytes) || n != 0 || fds != nil {
		t.Errorf("%d, %v, %v", n, fds, err)
	}
	a, b = pair(t, unix.SOCK_SEQPACKET)
	must(t, Send(a, []byte("longer than that"), fd))
	if n, fds, err := Recv(b, make([]byte, 10), 2); !errors.Is(err, io.ErrShortBuffer) || n != 0 || fds != nil {
		t.Errorf("%d, %v, %v", n, fds, err)
	}
}

// TestRecvWithoutDescriptors: where there is no room in the process, what did
// arrive is closed and the rest is said to be missing.
func TestRecvWithoutDescriptors(t *testing.T) {
	if got := say(t, child(t, "recv-emfile")); got != "cut off, all closed" {
		t.Error(got)
	}
}

func init() {
	children["recv-emfile"] = func([]string) string {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err.Error()
		}
		f := os.NewFile(uintptr(pair[0]), "pair")
		c, err := net.FileConn(f)
		if err != nil {
			return err.Error()
		}
		_ = f.Close()
		if err := unix.Sendmsg(pair[1], []byte("x"), unix.UnixRights(0, 1, 2, 0, 1, 2), nil, 0); err != nil {
			return err.Error()
		}
		all := exhaust()
		CloseAll(all[len(all)-3:]) // room for three of six
		n, fds, err := Recv(c.(*net.UnixConn), make([]byte, 4), 6)
		if n != 0 || fds != nil || !errors.Is(err, ErrTruncated) {
			return fmt.Sprint(n, fds, err)
		}
		if again := exhaust(); len(again) != 3 {
			return fmt.Sprint("room for ", len(again), " is left, of 3")
		}
		return "cut off, all closed"
	}
}

// TestClosedWhileReceiving: a connection that is closed under its reader leaves
// nothing open.
func TestClosedWhileReceiving(t *testing.T) {
	noLeak(t)
	for range 200 {
		a, b := pair(t, unix.SOCK_STREAM)
		fd := files(t, 1)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, fds, _ := Recv(b, make([]byte, 1), 1)
			CloseAll(fds)
		})
		wg.Go(func() { _ = Send(a, []byte("x"), fd) })
		wg.Go(func() { _ = b.Close() })
		wg.Wait()
		_ = a.Close()
		CloseAll(fd)
		fd[0] = -1
	}
}

// FuzzDescriptors: no control data makes it fail otherwise than by an error.
func FuzzDescriptors(f *testing.F) {
	f.Add(unix.UnixRights(1<<30, 1<<30))
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, oob []byte) {
		if bytes.Contains(oob, []byte{scmPIDFD}) {
			return // its descriptors would be closed, and they are invented
		}
		fds, err := descriptors(oob)
		if err == nil && len(fds)*4 > len(oob) {
			t.Errorf("%d descriptors of %d bytes", len(fds), len(oob))
		}
	})
}
