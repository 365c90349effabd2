package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// ours counts the goroutines that run this package's code, tests aside.
func ours() (n int, stacks string) {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for g := range bytes.SplitSeq(buf, []byte("\n\n")) {
		if bytes.Contains(g, []byte("proxy.(*Server)")) || bytes.Contains(g, []byte("proxy.(*session)")) || bytes.Contains(g, []byte("proxy.(*exchange)")) {
			n++
			stacks += string(g) + "\n\n"
		}
	}
	return n, stacks
}

func descriptors(t *testing.T) int {
	all, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Skipf("listing descriptors: %v", err)
	}
	return len(all)
}

// TestClose: in whatever state connections are, Close ends them at once, and nothing
// is left.
func TestClose(t *testing.T) {
	silent := peer(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	flood := peer(t, func(c *net.TCPConn) {
		for b := make([]byte, 1<<16); ; {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
	before := descriptors(t)
	r := start(t, Options{HeadTimeout: patience, ResolveTimeout: patience}, []string{"127.0.0.1:*", "hangs.example"})
	r.names.hang = true
	var conns []net.Conn
	say := func(text string) {
		conn := dial(t, r.addr)
		_, _ = io.WriteString(conn, text)
		conns = append(conns, conn)
	}
	for range 10 {
		say("")
		say("GET http://")
		say("\x05\x01")
		say(fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", silent, silent))
		say(fmt.Sprintf("POST http://%s/ HTTP/1.1\r\nHost: %s\r\nContent-Length: 100\r\n\r\nx", silent, silent))
		say("GET http://hangs.example/ HTTP/1.1\r\nHost: hangs.example\r\n\r\n")
		say("\x05\x01\x00\x05\x01\x00\x03\x0dhangs.example\x00\x50")
		for _, w := range ways {
			for _, to := range []string{silent.String(), flood.String()} { // the flood is not read
				conn, _ := w.open(r, t, to)
				conns = append(conns, conn)
			}
		}
	}
	eventually(t, "not all are served", func() bool { return r.Stats().Active == 110 && len(r.names.questions()) == 20 })
	if n, _ := ours(); n < 110 {
		t.Fatalf("only %d goroutines are seen", n)
	}
	began := time.Now()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d > closeTimeout {
		t.Errorf("it took %v", d)
	}
	if err := <-r.done; err != nil {
		t.Error(err)
	}
	r.done <- nil // for the clean-up
	if a := r.Stats().Active; a != 0 {
		t.Errorf("%d are still served", a)
	}
	for _, c := range conns {
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}
	var stacks string
	eventually(t, "goroutines are left", func() bool { n := 0; n, stacks = ours(); return n == 0 })
	_ = stacks
	eventually(t, "descriptors are left", func() bool { return descriptors(t) <= before+1 })
	if err := r.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	l := listenLoopback(t)
	if err := r.Serve(l); err != nil {
		t.Errorf("serving after the end: %v", err)
	}
	if _, err := l.Accept(); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("the listener was left open: %v", err)
	}
}

// TestAcceptFails: a listener that is broken ends Serve, with the error.
func TestAcceptFails(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := listenLoopback(t)
	_ = l.Close()
	if err := s.Serve(l); err == nil {
		t.Error("a closed listener is no error")
	}
}

// TestMemory: neither heads nor hosts that send more than is read make the proxy keep
// much.
func TestMemory(t *testing.T) {
	flood := peer(t, func(c *net.TCPConn) {
		for b := make([]byte, 1<<16); ; {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
	r := start(t, Options{HeadTimeout: patience}, []string{"127.0.0.1:*"})
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	const each = 50
	part := "GET http://a.example/ HTTP/1.1\r\n" + strings.Repeat("X: "+strings.Repeat("y", 8<<10)+"\r\n", 7)
	for range each {
		conn := dial(t, r.addr)
		_, _ = io.WriteString(conn, part)
		r.connect(t, flood.String())
		conn = dial(t, r.addr)
		fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", flood, flood) // no response, but much of it
	}
	eventually(t, "not all are served", func() bool { return r.Stats().Active >= 2*each })
	if used := int64(heap()) - int64(before); used > 3*each*(maxHead+4*copyBuffer)+maxBulk*bulkBuffer {
		t.Errorf("%d KiB are kept", used>>10)
	}
}
