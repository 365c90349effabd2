package proxy

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// way makes a tunnel to a host on loopback.
type way struct {
	name string
	open func(*rig, testing.TB, string) (net.Conn, io.Reader)
}

var ways = []way{
	{"connect", func(r *rig, t testing.TB, to string) (net.Conn, io.Reader) { return r.connect(t, to) }},
	{"socks", func(r *rig, t testing.TB, to string) (net.Conn, io.Reader) {
		h, port, err := parseAuthority(to)
		if err != nil {
			t.Fatal(err)
		}
		conn, code := r.socks(t, socksRequest{addr: h.addr, port: port})
		if code != socksOK {
			t.Fatalf("reply %d", code)
		}
		return conn, conn
	}},
}

// TestHalfClose: each end can stop to send and still hear the other, and large
// streams arrive whole both ways at once.
func TestHalfClose(t *testing.T) {
	data := make([]byte, 5<<20) // more than bulkAfter
	_, _ = rand.Read(data)
	at := peer(t, func(c *net.TCPConn) {
		all, err := io.ReadAll(c) // ends only by the other's half close
		if err != nil {
			t.Error(err)
		}
		sum := sha256.Sum256(all)
		_, _ = c.Write(sum[:])
		_, _ = c.Write(all)
	})
	first := peer(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("bye"))
		_ = c.CloseWrite()
		all, _ := io.ReadAll(c)
		if string(all) != "still heard" {
			t.Errorf("the host heard %q", all)
		}
	})
	for _, idle := range []time.Duration{0, patience} {
		r := start(t, Options{IdleTimeout: idle}, []string{"127.0.0.1:*"})
		for _, w := range ways {
			t.Run(fmt.Sprint(w.name, idle), func(t *testing.T) {
				conn, from := w.open(r, t, at.String())
				if _, err := conn.Write(data); err != nil {
					t.Fatal(err)
				}
				_ = conn.(*net.TCPConn).CloseWrite()
				all, err := io.ReadAll(from)
				sum := sha256.Sum256(data)
				if err != nil || !bytes.Equal(all, append(sum[:], data...)) {
					t.Errorf("%d bytes came back, %v", len(all), err)
				}

				conn, from = w.open(r, t, first.String())
				if all, err := io.ReadAll(from); err != nil || string(all) != "bye" {
					t.Errorf("%q, %v", all, err)
				}
				_, _ = io.WriteString(conn, "still heard")
				_ = conn.(*net.TCPConn).CloseWrite()
			})
		}
		eventually(t, "tunnels do not end", func() bool { return r.Stats().Active == 0 })
		if s := r.Stats(); s.FromWorker != uint64(2*(len(data)+len("still heard"))) || s.ToWorker != uint64(2*(len(data)+32+3)) {
			t.Errorf("%+v", s)
		}
	}
}

// TestEarly: what a client says before it has an answer is not lost, and what a
// denied one says does not become a request.
func TestEarly(t *testing.T) {
	at := peer(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	r := start(t, Options{}, []string{"127.0.0.1:*"})
	conn := dial(t, r.addr)
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\n\r\nearly", at)
	_ = conn.CloseWrite()
	all, _ := io.ReadAll(conn)
	want(t, string(all), " 200 Connection established\r\n\r\nearly")

	conn = dial(t, r.addr)
	_, _ = conn.Write(append(append([]byte{5, 1, 0}, socksRequest{command: 1, addr: at.Addr(), port: at.Port()}.encode()...), "early"...))
	_ = conn.CloseWrite()
	if all, _ := io.ReadAll(conn); len(all) != 12+5 || string(all[12:]) != "early" {
		t.Errorf("%q", all)
	}

	got := r.raw(fmt.Sprintf("CONNECT 10.0.0.1:80 HTTP/1.1\r\n\r\nGET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", at, at))
	want(t, got, " 403 ")
	if r.Stats().Requests != 3 {
		t.Errorf("%+v", r.Stats())
	}
}

// TestIdle: a tunnel on which nothing goes either way ends; one direction is enough
// to keep it.
func TestIdle(t *testing.T) {
	at := peer(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	r := start(t, Options{IdleTimeout: 100 * time.Millisecond}, []string{"127.0.0.1:*"})
	for _, w := range ways {
		_, from := w.open(r, t, at.String())
		if all, _ := io.ReadAll(from); len(all) != 0 {
			t.Errorf("%q", all)
		}
	}
	// In both kinds of copy, and while plain HTTP waits for a response.
	conn, from := ways[0].open(r, t, at.String())
	if _, err := conn.Write(make([]byte, 2*bulkAfter)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(from)
	want(t, r.get("http://"+at.String()+"/"), " 504 ")
	eventually(t, "an idle tunnel stays", func() bool { return r.Stats().Active == 0 })

	calm := start(t, Options{IdleTimeout: 2 * time.Second}, []string{"127.0.0.1:*"})
	chatty := peer(t, func(c *net.TCPConn) {
		for range 30 {
			if _, err := c.Write([]byte("x")); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	_, from = ways[0].open(calm, t, chatty.String())
	if all, err := io.ReadAll(from); err != nil || len(all) != 30 {
		t.Errorf("%d bytes in 3 s, %v", len(all), err)
	}
}

// TestSlowAfterBulk: what the kernel moves counts, long before it was so much that it
// tells; on one direction and on both.
func TestSlowAfterBulk(t *testing.T) {
	const drops, pause = 30, 50 * time.Millisecond
	at := peer(t, func(c *net.TCPConn) {
		_, _ = c.Write(make([]byte, 2*bulkAfter))
		for range drops {
			time.Sleep(pause)
			if _, err := c.Write([]byte("x")); err != nil {
				return
			}
		}
		_, _ = io.Copy(io.Discard, c)
	})
	r := start(t, Options{IdleTimeout: 500 * time.Millisecond}, []string{"127.0.0.1:*"})
	for _, w := range ways {
		_, from := w.open(r, t, at.String())
		began := time.Now()
		all, err := io.ReadAll(from)
		if err != nil || len(all) != 2*bulkAfter+drops {
			t.Errorf("%s: %d bytes, %v", w.name, len(all), err)
		}
		if took := time.Since(began); took < drops*pause {
			t.Errorf("%s: it ended after %s", w.name, took)
		}
	}
	eventually(t, "an idle tunnel stays", func() bool { return r.Stats().Active == 0 })
}

// TestBroken: an end that breaks off ends the tunnel.
func TestBroken(t *testing.T) {
	var once sync.Once
	gone := make(chan struct{})
	at := peer(t, func(c *net.TCPConn) {
		_, err := io.Copy(io.Discard, c)
		once.Do(func() { close(gone) })
		_ = err
	})
	reset := peer(t, func(c *net.TCPConn) {
		time.Sleep(50 * time.Millisecond) // or its connect(2) would have failed
		_ = c.SetLinger(0)
		_ = c.Close()
	})
	r := start(t, Options{}, []string{"127.0.0.1:*"})
	conn, _ := r.connect(t, at.String())
	_ = conn.SetLinger(0)
	_ = conn.Close()
	<-gone
	conn, from := r.connect(t, reset.String())
	_, _ = io.ReadAll(from)
	_ = conn.Close()
	eventually(t, "a broken tunnel stays", func() bool { return r.Stats().Active == 0 })
}
