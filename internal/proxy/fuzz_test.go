package proxy

import (
	"bufio"
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
)

// FuzzHost: what is a host is the same host when it is written again, and is made of
// what a resolver can take.
func FuzzHost(f *testing.F) {
	for _, s := range []string{"example.com", "EXAMPLE.com.", "bücher.example", "xn--bcher-kva.example", "127.0.0.1", "::1", "0x7f.1", "::ffff:1.2.3.4", "a%b", "a\x00b", "１２７.1", "faß.example", "a。b", "xn--a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := parseHost(s)
		if err != nil {
			return
		}
		again, err := parseHost(h.String())
		if err != nil || again != h {
			t.Fatalf("%q is %v, which is %v, %v", s, h, again, err)
		}
		if h.addr.IsValid() {
			if h.addr.Zone() != "" || h.addr.Is4In6() || h.name != "" {
				t.Fatalf("%q is the address %v", s, h.addr)
			}
			return
		}
		if len(h.name) == 0 || len(h.name) > maxName || strings.Trim(h.name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || endsInNumber(h.name) {
			t.Fatalf("%q is the name %q", s, h.name)
		}
		if dotted, err := parseHost(strings.ToUpper(h.name) + "."); err != nil || dotted != h {
			t.Fatalf("%q. is %v, %v", h.name, dotted, err)
		}
		at, port, err := parseAuthority(h.authority() + ":443")
		if err != nil || at != h || port != 443 {
			t.Fatalf("%v as an authority: %v %d %v", h, at, port, err)
		}
	})
}

// FuzzRule: what is a rule reads as itself from its own words, and its own host is
// what it matches.
func FuzzRule(f *testing.F) {
	for _, s := range []string{"example.com", "*.example.com:443", "[::1]:8080", "192.0.2.0/24:1-5,3,7", "2001:db8::/32:22", "a:*", "*", "::1", "bücher.example:80", "[::ffff:0:0/96]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRule(s)
		if err != nil {
			if msg := err.Error(); len(msg) > 2000 || strings.ContainsAny(msg, "\n\x00\x1b") {
				t.Fatalf("%q: %q", s, msg)
			}
			return
		}
		again, err := ParseRule(r.String())
		if err != nil || again.name != r.name || again.below != r.below || again.prefix != r.prefix || !slices.Equal(again.ports, r.ports) {
			t.Fatalf("%q is %v, which is %v, %v", s, r, again, err)
		}
		h := host{name: r.name, addr: r.prefix.Addr()}
		if r.matchesHost(h) == r.below || !r.matchesPort(r.ports[0].first) || r.matchesPort(0) {
			t.Fatalf("%v does not match its own host", r)
		}
	})
}

// FuzzSOCKS: a handshake is read with no more than its bytes, and reads as itself.
func FuzzSOCKS(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x03\x09a.example\x00\x50rest"))
	f.Add([]byte("\x05\x02\x00\x02\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"))
	f.Add([]byte("\x05\x01\x00\x05\x03\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x50"))
	f.Add([]byte("\x05\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		br := bufio.NewReaderSize(bytes.NewReader(in), readBuffer)
		if _, err := readGreeting(br); err != nil {
			return
		}
		start := len(in) - len(remaining(t, br))
		br = bufio.NewReader(bytes.NewReader(in[start:]))
		q, err := readSOCKSRequest(br)
		if err != nil {
			return
		}
		used := len(in) - start - len(remaining(t, br))
		if out := q.encode(); !bytes.Equal(out, in[start:start+used]) {
			t.Fatalf("%q reads as %q", in[start:start+used], out)
		}
		if h, err := q.host(); err == nil {
			if _, err := parseHost(h.String()); err != nil {
				t.Fatalf("%v: %v", h, err)
			}
		}
	})
}

func remaining(t *testing.T, r io.Reader) []byte {
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// FuzzRequest: what is handed on is a request by the same rules, for the same host,
// with the same body, and nothing in it is for one connection only.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		"GET http://a.example/x?y HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"POST http://a.example:8080 HTTP/1.1\r\nHost: a.example:8080\r\nContent-Length: 3\r\nConnection: X\r\nX: 1\r\n\r\nabc",
		"POST http://[::1]/ HTTP/1.1\r\nHost: [::1]:80\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"GET http://a.example/ HTTP/1.1\r\nHost: A.example.\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"OPTIONS http://a.example HTTP/1.0\r\n\r\n",
		"GET http://a@b/ HTTP/1.1\r\nHost: b\r\n\r\n", "\r\n\r\n", "GET",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		h, err := readHead(bufio.NewReaderSize(bytes.NewReader(in), readBuffer))
		if err != nil {
			return
		}
		q, _, fail := parseRequest(h)
		if fail != nil {
			if _, known := answers[fail.reason]; !known || fail.text == "" {
				t.Fatalf("%+v", fail)
			}
			return
		}
		if q.method == "CONNECT" {
			return
		}
		out := q.encode()
		sent, err := readHead(bufio.NewReader(bytes.NewReader(out)))
		if err != nil {
			t.Fatalf("%q is sent as %q: %v", in, out, err)
		}
		line := strings.Split(sent.first, " ")
		if len(line) != 3 || line[0] != q.method || line[1] != q.path || line[2] != "HTTP/1.1" || q.path == "" || q.path[0] != '/' && q.path != "*" {
			t.Fatalf("the first line is %q", sent.first)
		}
		// As its host's own reader would see it: in absolute form it is the same again.
		sent.first = q.method + " http://" + q.authority() + strings.TrimPrefix(q.path, "*") + " HTTP/1.1"
		again, _, fail := parseRequest(sent)
		if fail != nil || again.host != q.host || again.port != q.port || again.body != q.body || again.path != q.path && q.path != "*" || again.upgrade != q.upgrade {
			t.Fatalf("%+v is sent as %+v, %+v", q, again, fail)
		}
		for _, f := range sent.fields {
			if strings.HasPrefix(lower(f.name), "proxy-") || slices.Contains([]string{"keep-alive", "te", "trailer"}, lower(f.name)) {
				t.Fatalf("%s is handed on", f.name)
			}
		}
	})
}

// FuzzChunks: a chunked body that is taken is the same body when it is sent on.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{"3\r\nabc\r\n0\r\n\r\n", "3;x=y\r\nabc\r\n0\r\nT: 1\r\n\r\n", "0\r\n\r\n", "A\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\nrest", "-1\r\n", "3\nabc\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		read := func(in []byte) ([]byte, error) {
			return io.ReadAll(framing{length: -1, chunked: true}.body(bufio.NewReader(bytes.NewReader(in))))
		}
		body, err := read(in)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if _, err := sendBody(&out, bytes.NewReader(body), true, func(int) {}); err != nil {
			t.Fatal(err)
		}
		if again, err := read(out.Bytes()); err != nil || !bytes.Equal(again, body) {
			t.Fatalf("%q is sent as %q: %v", in, out.Bytes(), err)
		}
	})
}
