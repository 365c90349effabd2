package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestSOCKS(t *testing.T) {
	at := peer(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	r := start(t, Options{}, []string{"a.example:*", "127.0.0.1:*"}, "a.example", "127.0.0.1")
	for _, q := range []socksRequest{
		{addr: at.Addr(), port: at.Port()},
		{addr: netip.AddrFrom16(at.Addr().As16()), port: at.Port()}, // mapped
		{name: "a.example", port: at.Port()},
		{name: "A.EXAMPLE.", port: at.Port()},
		{name: "127.0.0.1", port: at.Port()}, // an address, spelled as a name
	} {
		conn, code := r.socks(t, q)
		if code != socksOK {
			t.Fatalf("%+v is answered with %d", q, code)
		}
		_, _ = io.WriteString(conn, "hello")
		_ = conn.CloseWrite()
		if all, err := io.ReadAll(conn); err != nil || string(all) != "hello" {
			t.Errorf("%q, %v", all, err)
		}
	}
	if q := r.names.questions(); fmt.Sprint(q) != "[a.example a.example]" {
		t.Errorf("asked for %v", q)
	}
	if len(r.events()) != 0 {
		t.Errorf("%v", r.events())
	}
}

// TestSOCKSDenied has the replies, and what is told of them.
func TestSOCKSDenied(t *testing.T) {
	rules := []string{"a.example", "in.example", "0.0.0.0/0", "::/0"}
	for _, c := range []struct {
		name   string
		q      socksRequest
		code   byte
		reason Reason
	}{
		{"other name", socksRequest{name: "b.example", port: 80}, socksNotAllowed, HostNotAllowed},
		{"other port", socksRequest{name: "a.example", port: 22}, socksNotAllowed, PortNotAllowed},
		{"inside", socksRequest{name: "in.example", port: 80}, socksNotAllowed, AddressNotPublic},
		{"loopback", socksRequest{addr: netip.MustParseAddr("127.0.0.1"), port: 80}, socksNotAllowed, AddressNotPublic},
		{"loopback 6", socksRequest{addr: netip.MustParseAddr("::1"), port: 80}, socksNotAllowed, AddressNotPublic},
		{"mapped", socksRequest{addr: netip.MustParseAddr("::ffff:10.0.0.1"), port: 80}, socksNotAllowed, AddressNotPublic},
		{"NAT64", socksRequest{addr: netip.MustParseAddr("64:ff9b::a9fe:a9fe"), port: 80}, socksNotAllowed, AddressNotPublic},
		{"6to4", socksRequest{addr: netip.MustParseAddr("2002:7f00:1::"), port: 80}, socksNotAllowed, AddressNotPublic},
		{"NUL", socksRequest{name: "a.example\x00.b.example", port: 80}, socksNotAllowed, BadHost},
		{"NUL at the end", socksRequest{name: "a.example\x00", port: 80}, socksNotAllowed, BadHost},
		{"empty", socksRequest{name: "", port: 80}, socksNotAllowed, BadHost},
		{"control", socksRequest{name: "a.example\r\n", port: 80}, socksNotAllowed, BadHost},
		{"number", socksRequest{name: "2130706433", port: 80}, socksNotAllowed, BadHost},
		{"octal", socksRequest{name: "0177.0.0.1", port: 80}, socksNotAllowed, BadHost},
		{"zone", socksRequest{name: "fe80::1%lo", port: 80}, socksNotAllowed, BadHost},
		{"brackets", socksRequest{name: "[::1]", port: 80}, socksNotAllowed, BadHost},
		{"port in the name", socksRequest{name: "a.example:80", port: 80}, socksNotAllowed, BadHost},
		{"port 0", socksRequest{name: "a.example", port: 0}, socksNotAllowed, BadHost},
		{"BIND", socksRequest{command: 2, name: "a.example", port: 80}, socksNoCommand, ""},
		{"UDP", socksRequest{command: 3, name: "a.example", port: 80}, socksNoCommand, ""},
		{"no answer", socksRequest{name: "a.example", port: 80}, socksHostUnreachable, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, Options{Dial: func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, errNever }}, rules, "a.example", "1.1.1.1", "in.example", "10.0.0.1")
			conn, code := r.socks(t, c.q)
			if code != c.code {
				t.Errorf("the reply is %d, want %d", code, c.code)
			}
			if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
				t.Errorf("behind the reply: %q, %v", rest, err)
			}
			if c.reason == "" {
				if e := r.events(); len(e) != 0 {
					t.Errorf("%v", e)
				}
				return
			}
			if e := r.only(c.reason); e.Protocol != SOCKS5 || e.Port != c.q.port || strings.ContainsAny(e.Host, "\x00\r\n") {
				t.Errorf("%+v", e)
			}
		})
	}
}

// TestSOCKSWords: handshakes that are none.
func TestSOCKSWords(t *testing.T) {
	r := start(t, Options{}, []string{"a.example"})
	for _, c := range []struct{ name, say, hear string }{
		{"password only", "\x05\x01\x02", "\x05\xff"},
		{"GSSAPI only", "\x05\x01\x01", "\x05\xff"},
		{"no methods", "\x05\x00", ""},
		{"version changes", "\x05\x01\x00\x04\x01\x00\x01\x01\x01\x01\x01\x00\x50", "\x05\x00\x05\x01\x00\x01\x00\x00\x00\x00\x00\x00"},
		{"reserved byte", "\x05\x01\x00\x05\x01\x01\x01\x01\x01\x01\x01\x00\x50", "\x05\x00\x05\x01\x00\x01\x00\x00\x00\x00\x00\x00"},
		{"address type", "\x05\x01\x00\x05\x01\x00\x02\x01\x01\x01\x01\x00\x50", "\x05\x00\x05\x08\x00\x01\x00\x00\x00\x00\x00\x00"},
		{"SOCKS4", "\x04\x01\x00\x50\x01\x01\x01\x01\x00", "\x00\x5b\x00\x00\x00\x00\x00\x00"},
		{"SOCKS4a", "\x04\x01\x00\x50\x00\x00\x00\x01me\x00a.example\x00", "\x00\x5b\x00\x00\x00\x00\x00\x00"},
	} {
		if got := r.raw(c.say); got != c.hear {
			t.Errorf("%s: %q, want %q", c.name, got, c.hear)
		}
	}
	if e := r.events(); len(e) != 0 {
		t.Errorf("%v", e)
	}
}
