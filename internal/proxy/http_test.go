package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func hello(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "hello from %s%s", r.Host, r.URL)
}

// TestGet fetches by plain HTTP, and has denied what is not on the list.
func TestGet(t *testing.T) {
	var seen http.Header
	at := web(t, func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		w.Header().Set("Connection", "X-Own")
		w.Header().Set("X-Own", "of one connection")
		w.Header().Set("Proxy-Authenticate", "Basic")
		w.Header().Set("X-Kept", "yes")
		hello(w, r)
	})
	r := start(t, Options{}, []string{"site.example:*", "127.0.0.1:*"}, "site.example", "127.0.0.1")
	url := fmt.Sprintf("http://site.example:%d", at.Port())
	host := url[len("http://"):]
	got := r.raw("GET " + url + "?q=1 HTTP/1.1\r\nHost: " + host + "\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\nProxy-Authorization: secret\r\nproxy-connection: keep-alive\r\n" +
		"Keep-Alive: 1\r\nTE: trailers\r\nUpgrade: h2c\r\nX-Kept: 2\r\n\r\n")
	want(t, got, "HTTP/1.1 200 OK\r\n", "X-Kept: yes\r\n", "Connection: close\r\n", "Via: 1.1 sbx\r\n", "\r\n\r\nhello from "+host+"/?q=1")
	if strings.Contains(got, "X-Own") || strings.Contains(got, "Proxy-Auth") {
		t.Errorf("fields of another connection arrived: %q", got)
	}
	if seen.Get("X-Kept") != "2" || seen.Get("Via") != "1.1 sbx" {
		t.Errorf("fields were lost: %v", seen)
	}
	for _, name := range []string{"X-Mine", "Proxy-Authorization", "Proxy-Connection", "Keep-Alive", "Te", "Upgrade", "Connection"} {
		if v, there := seen[name]; there {
			t.Errorf("%s: %v was handed on", name, v)
		}
	}

	got = r.get("http://other.example/")
	want(t, got, "HTTP/1.1 403 Forbidden\r\n", "X-Sbx-Reason: host-not-allowed\r\n", "Proxy-Status: sbx; error=http_request_denied\r\n", "Content-Type: text/plain", "Connection: close\r\n",
		"other.example is not on the list", "--net-allow other.example\n")
	e := r.only(HostNotAllowed)
	if e.Host != "other.example" || e.Port != 80 || e.Protocol != HTTP || e.Hint != "--net-allow other.example" {
		t.Errorf("the event is %+v", e)
	}
	if slices.Contains(r.names.questions(), "other.example") {
		t.Error("a name that is not allowed was resolved")
	}
	if s := r.Stats(); s.Connections != 2 || s.Requests != 2 || s.Denials != 1 || s.ToWorker == 0 {
		t.Errorf("%+v", s)
	}
}

// TestDenied has the words of each refusal over HTTP.
func TestDenied(t *testing.T) {
	rules := []string{"site.example", "inside.example:*", "10.0.0.0/8:22", "0.0.0.0/0", "gone.example", "meta.example", "*.wild.example:8443"}
	table := []string{"inside.example", "10.1.2.3 ::1", "meta.example", "169.254.169.254 fd00:ec2::254 ::ffff:169.254.169.254"}
	for _, c := range []struct {
		target, host string
		port         uint16
		reason       Reason
		body         []string
	}{
		{"other.example:443", "other.example", 443, HostNotAllowed, []string{"--net-allow other.example\n"}},
		{"other.example:22", "other.example", 22, HostNotAllowed, []string{"--net-allow other.example:22\n"}},
		{"site.example:22", "site.example", 22, PortNotAllowed, []string{"port 22", "--net-allow site.example:22\n"}},
		{"a.wild.example:443", "a.wild.example", 443, PortNotAllowed, []string{"--net-allow a.wild.example:443\n"}},
		{"wild.example:8443", "wild.example", 8443, HostNotAllowed, nil},
		{"EVIL.site.example.:443", "evil.site.example", 443, HostNotAllowed, nil},
		{"[2001:db8::1]:443", "2001:db8::1", 443, HostNotAllowed, []string{"--net-allow [2001:db8::1]\n"}},
		{"10.1.2.3:22", "10.1.2.3", 22, "", nil}, // a rule names it
		{"10.1.2.3:80", "10.1.2.3", 80, AddressNotPublic, []string{"private", "--net-allow 10.1.2.3:80\n"}},
		{"127.0.0.1:80", "127.0.0.1", 80, AddressNotPublic, []string{"loopback", "only a wider rule"}},
		{"[::ffff:127.0.0.1]:80", "127.0.0.1", 80, AddressNotPublic, []string{"loopback"}},
		{"127.0.0.1.:80", "127.0.0.1", 80, AddressNotPublic, []string{"loopback"}},
		{"inside.example:80", "inside.example", 80, AddressNotPublic, []string{"inside.example is at 10.1.2.3", "(private)", "--net-allow 10.1.2.3:80\n"}},
		{"meta.example:80", "meta.example", 80, AddressNotPublic, []string{"(metadata)", "--net-allow 169.254.169.254:80\n"}},
		{"localhost:80", "localhost", 80, HostNotAllowed, nil},
		{"2130706433:80", "2130706433:80", 0, BadHost, nil},
		{"0x7f.1:80", "0x7f.1:80", 0, BadHost, nil},
		{"[fe80::1%25lo]:80", "[fe80::1%25lo]:80", 0, BadHost, nil},
		{"site.example@evil.example:443", "site.example@evil.example:443", 0, BadHost, nil},
		{"site.example\xe2\x80\xae:443", "", 0, BadHost, nil},
		{`site.example\.evil.example:443`, `site.example\.evil.example:443`, 0, BadHost, nil},
	} {
		t.Run(c.target, func(t *testing.T) {
			r := start(t, Options{Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) { return nil, errNever }}, rules, table...)
			got := r.raw("CONNECT " + c.target + " HTTP/1.1\r\n\r\n")
			if c.reason == "" {
				want(t, got, "HTTP/1.1 502 ")
				return
			}
			want(t, got, "HTTP/1.1 403 Forbidden\r\n", "X-Sbx-Reason: "+string(c.reason)+"\r\n")
			want(t, got, c.body...)
			e := r.only(c.reason)
			if e.Protocol != Connect || e.Port != c.port || c.host != "" && e.Host != c.host {
				t.Errorf("the event is %+v", e)
			}
			if (c.reason == AddressNotPublic) != (e.Address.IsValid() && e.Rule != "") {
				t.Errorf("address and rule are %v, %q", e.Address, e.Rule)
			}
			if head, body, _ := strings.Cut(got, "\r\n\r\n"); len(body) > 1500 || strings.ContainsAny(body, "\r\x00\x1b") || strings.Contains(head, "\u202e") {
				t.Errorf("the answer is not bounded or escaped: %q", got)
			}
		})
	}
}

// TestPinned: the address that was screened is the one that is dialled, though the
// name has another at the next question (DNS rebinding).
func TestPinned(t *testing.T) {
	var dialled []string
	r := start(t, Options{Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		dialled = append(dialled, to.String())
		return nil, errNever
	}}, []string{"moves.example", "mixed.example", "bad.example"},
		"moves.example", "1.1.1.1|127.0.0.1|127.0.0.1", "mixed.example", "127.0.0.1 10.0.0.1 8.8.8.8 ::1 8.8.8.8", "bad.example", "fe80::1%lo 169.254.169.254")
	want(t, r.get("http://moves.example/"), " 502 ")
	want(t, r.get("http://moves.example/"), " 403 ", "127.0.0.1")
	want(t, r.get("http://mixed.example/"), " 502 ")
	want(t, r.get("http://bad.example/"), " 403 ")
	if fmt.Sprint(dialled) != "[1.1.1.1:80 8.8.8.8:80]" {
		t.Errorf("dialled were %v", dialled)
	}
	if fmt.Sprint(r.names.questions()) != "[moves.example moves.example mixed.example bad.example]" {
		t.Errorf("asked for %v", r.names.questions())
	}
}

// TestLocalhost: the name is loopback for whoever has named it, and nobody is asked.
func TestLocalhost(t *testing.T) {
	at := web(t, hello)
	r := start(t, Options{}, []string{"localhost:*", "*.localhost:*"}, "localhost", "1.1.1.1")
	for _, host := range []string{"localhost", "LOCALHOST.", "app.localhost"} {
		want(t, r.get(fmt.Sprintf("http://%s:%d/x", host, at.Port())), " 200 OK", "hello from ")
	}
	want(t, r.get(fmt.Sprintf("http://127.0.0.1:%d/x", at.Port())), " 403 ", "host-not-allowed")
	if q := r.names.questions(); len(q) != 0 {
		t.Errorf("asked for %v", q)
	}
}

// TestEachRequest: a connection that began with an allowed request gets no other.
func TestEachRequest(t *testing.T) {
	var conns atomic.Int32
	at := web(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-First") != "" {
			conns.Add(1)
		}
		hello(w, r)
	})
	r := start(t, Options{}, []string{"a.example:*", "b.example:*", "127.0.0.1:*"}, "a.example", "127.0.0.1", "b.example", "127.0.0.1")
	a, b := fmt.Sprintf("a.example:%d", at.Port()), fmt.Sprintf("b.example:%d", at.Port())
	one := func(host, path string) string {
		return "GET http://" + host + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
	}
	// All in one write: pipelined.
	got := r.raw(one(a, "/1") + one(a, "/2") + one(b, "/3") + one("c.example", "/4") + one(a, "/5"))
	want(t, got, "hello from "+a+"/1", "hello from "+a+"/2", "hello from "+b+"/3", " 403 Forbidden")
	if strings.Contains(got, "/5") || strings.Count(got, "HTTP/1.1 ") != 4 {
		t.Errorf("%q", got)
	}
	if e := r.only(HostNotAllowed); e.Host != "c.example" {
		t.Errorf("%+v", e)
	}
	// The same host again does not cost another connection.
	if q := r.names.questions(); fmt.Sprint(q) != "[a.example b.example]" {
		t.Errorf("asked for %v", q)
	}
}

// TestSmuggling: what two readers could take for different requests is refused, and
// nothing of it reaches a host.
func TestSmuggling(t *testing.T) {
	var reached atomic.Int32
	at := peer(t, func(c *net.TCPConn) {
		if n, _ := io.Copy(io.Discard, c); n > 0 {
			reached.Add(1)
		}
	})
	r := start(t, Options{}, []string{"a.example:*", "127.0.0.1:*"}, "a.example", "127.0.0.1")
	host := fmt.Sprintf("a.example:%d", at.Port())
	long := strings.Repeat("x", maxLine+1)
	for _, c := range []struct{ name, text, status string }{
		{"length and coding", "POST http://H/ HTTP/1.1\r\nHost: H\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		{"two lengths", "POST http://H/ HTTP/1.1\r\nHost: H\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "400"},
		{"two equal lengths", "POST http://H/ HTTP/1.1\r\nHost: H\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "400"},
		{"list of lengths", "POST http://H/ HTTP/1.1\r\nHost: H\r\nContent-Length: 5, 5\r\n\r\nhello", "400"},
		{"signed length", "POST http://H/ HTTP/1.1\r\nHost: H\r\nContent-Length: +5\r\n\r\nhello", "400"},
		{"hex length", "POST http://H/ HTTP/1.1\r\nHost: H\r\nContent-Length: 0x5\r\n\r\nhello", "400"},
		{"huge length", "POST http://H/ HTTP/1.1\r\nHost: H\r\nContent-Length: 99999999999999999999\r\n\r\n", "400"},
		{"other coding", "POST http://H/ HTTP/1.1\r\nHost: H\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "400"},
		{"strange coding", "POST http://H/ HTTP/1.1\r\nHost: H\r\nTransfer-Encoding: xchunked\r\n\r\n", "400"},
		{"two codings", "POST http://H/ HTTP/1.1\r\nHost: H\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", "400"},
		{"coding in 1.0", "POST http://H/ HTTP/1.0\r\nHost: H\r\nTransfer-Encoding: chunked\r\n\r\n", "400"},
		{"space before colon", "POST http://H/ HTTP/1.1\r\nHost: H\r\nTransfer-Encoding : chunked\r\n\r\n", "400"},
		{"folded field", "GET http://H/ HTTP/1.1\r\nHost: H\r\nX: 1\r\n Y: 2\r\n\r\n", "400"},
		{"folded first", "GET http://H/ HTTP/1.1\r\n Host: H\r\n\r\n", "400"},
		{"bare LF", "GET http://H/ HTTP/1.1\nHost: H\n\n", "400"},
		{"bare LF in the head", "GET http://H/ HTTP/1.1\r\nHost: H\r\nX: 1\nY: 2\r\n\r\n", "400"},
		{"bare CR", "GET http://H/ HTTP/1.1\r\nHost: H\r\nX: 1\rY: 2\r\n\r\n", "400"},
		{"NUL in a field", "GET http://H/ HTTP/1.1\r\nHost: H\r\nX: a\x00b\r\n\r\n", "400"},
		{"no colon", "GET http://H/ HTTP/1.1\r\nHost: H\r\nX\r\n\r\n", "400"},
		{"two hosts", "GET http://H/ HTTP/1.1\r\nHost: H\r\nHost: H\r\n\r\n", "400"},
		{"no host", "GET http://H/ HTTP/1.1\r\n\r\n", "400"},
		{"other host", "GET http://H/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", "400"},
		{"other port", "GET http://H/ HTTP/1.1\r\nHost: a.example\r\n\r\n", "400"},
		{"host with user", "GET http://H/ HTTP/1.1\r\nHost: u@H\r\n\r\n", "400"},
		{"user in the target", "GET http://u:p@H/ HTTP/1.1\r\nHost: H\r\n\r\n", "403"},
		{"user as the target", `GET http://H\@evil.example/ HTTP/1.1` + "\r\nHost: H\r\n\r\n", "403"},
		{"fragment", "GET http://H#@evil.example/ HTTP/1.1\r\nHost: H\r\n\r\n", "400"},
		{"origin form", "GET / HTTP/1.1\r\nHost: H\r\n\r\n", "400"},
		{"authority form", "GET H HTTP/1.1\r\nHost: H\r\n\r\n", "400"},
		{"https", "GET https://H/ HTTP/1.1\r\nHost: H\r\n\r\n", "501"},
		{"ftp", "GET ftp://H/ HTTP/1.1\r\nHost: H\r\n\r\n", "501"},
		{"two spaces", "GET  http://H/ HTTP/1.1\r\nHost: H\r\n\r\n", "400"},
		{"space in the target", "GET http://H/a b HTTP/1.1\r\nHost: H\r\n\r\n", "400"},
		{"tab in the target", "GET http://H/a\tb HTTP/1.1\r\nHost: H\r\n\r\n", "400"},
		{"version 0.9", "GET http://H/\r\n\r\n", "400"},
		{"version 2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"},
		{"strange method", "G(T http://H/ HTTP/1.1\r\nHost: H\r\n\r\n", "400"},
		{"CONNECT without port", "CONNECT a.example HTTP/1.1\r\nHost: a.example\r\n\r\n", "400"},
		{"CONNECT with a body", "CONNECT H HTTP/1.1\r\nHost: H\r\nContent-Length: 1\r\n\r\nx", "400"},
		{"CONNECT with another Host", "CONNECT H HTTP/1.1\r\nHost: evil.example\r\n\r\n", "400"},
		{"CONNECT with control characters", "CONNECT a.example\x0b:443 HTTP/1.1\r\n\r\n", "400"},
		{"long target", "GET http://H/" + long + " HTTP/1.1\r\nHost: H\r\n\r\n", "414"},
		{"long field", "GET http://H/ HTTP/1.1\r\nHost: H\r\nX: " + long + "\r\n\r\n", "431"},
		{"long head", "GET http://H/ HTTP/1.1\r\nHost: H\r\n" + strings.Repeat("X: "+long[:8000]+"\r\n", 9) + "\r\n", "431"},
		{"many fields", "GET http://H/ HTTP/1.1\r\nHost: H\r\n" + strings.Repeat("X: 1\r\n", maxFields+1) + "\r\n", "431"},
		{"TLS", "\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\r\n\r\n", "400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := r.raw(strings.ReplaceAll(c.text, "H/", host+"/"))
			if strings.Contains(c.text, ": H") || strings.Contains(c.text, " H ") {
				text := strings.NewReplacer("http://H", "http://"+host, "ftp://H", "ftp://"+host, "https://H", "https://"+host, ": H\r", ": "+host+"\r", ": H\n", ": "+host+"\n", "u@H", "u@"+host, "p@H", "p@"+host, " H ", " "+host+" ").Replace(c.text)
				got = r.raw(text)
			}
			want(t, got, "HTTP/1.1 "+c.status+" ", "X-Sbx-Reason: ")
			if strings.Count(got, "X-Sbx-Reason: ") != 1 {
				t.Errorf("more than one answer: %q", got)
			}
		})
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d of them reached the host", n)
	}
}

// TestBadChunks: a body that breaks its framing ends both connections, so that the
// host cannot take it for a whole one.
func TestBadChunks(t *testing.T) {
	for _, body := range []string{"5\r\nhelloX\r\n0\r\n\r\n", "5\nhello\n0\n\n", "-5\r\nhello\r\n0\r\n\r\n", "0x5\r\nhello\r\n0\r\n\r\n", " 5\r\nhello\r\n0\r\n\r\n", "5 \r\nhello\r\n0\r\n\r\n",
		"\r\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\r\nbad trailer\r\n\r\n", "5\r\nhello\r\n0\r\n folded: 1\r\n\r\n", "5\r\nhello\r0\r\n\r\n", "ffffffffffffffffff\r\nhello", "7fffffffffffffff\r\nhello",
		"5;" + strings.Repeat("x", 2000) + "\r\nhello\r\n0\r\n\r\n", "0\r\n" + strings.Repeat("X: 1\r\n", 10000) + "\r\n", "zz\r\n"} {
		saw := make(chan string, 1)
		at := peer(t, func(c *net.TCPConn) {
			all, _ := io.ReadAll(c)
			saw <- string(all)
		})
		r := start(t, Options{}, []string{"127.0.0.1:*"})
		got := r.raw(fmt.Sprintf("POST http://%s/ HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n%s", at, at, body))
		want(t, got, "HTTP/1.1 400 Bad Request\r\n", "chunks are malformed")
		if all := <-saw; strings.HasSuffix(all, "0\r\n\r\n") {
			t.Errorf("the host took %q for a body: %q", body, all)
		}
	}
}

// TestBodies go both ways in each framing, and are framed anew.
func TestBodies(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 20000)
	at := web(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.Header.Get("X-Trailer") != "" || len(r.Trailer) != 0 {
			t.Errorf("a trailer became a field: %v %v", r.Header, r.Trailer)
		}
		if r.URL.Path == "/chunked" {
			w.(http.Flusher).Flush()
		}
		if r.URL.Path == "/none" {
			w.WriteHeader(204)
			return
		}
		fmt.Fprintf(w, "%d %s", len(body), body)
	})
	r := start(t, Options{}, []string{"127.0.0.1:*"})
	for _, c := range []struct {
		path, request, body string
		length              int64
	}{
		{"/", "Content-Length: 5\r\n\r\nhello", "5 hello", 7},
		{"/", "Content-Length: 0\r\n\r\n", "0 ", 2},
		{"/", "Transfer-Encoding: Chunked\r\n\r\n3;ext=1\r\nhel\r\n2 ;x\r\nlo\r\n0\r\nX-Trailer: 1\r\n\r\n", "5 hello", 7},
		{"/chunked", "Content-Length: 5\r\n\r\nhello", "5 hello", -1},
		{"/none", "Content-Length: 5\r\n\r\nhello", "", 0},
		{"/", fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(big), big), fmt.Sprintf("%d %s", len(big), big), -1},
		{"/", "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(big), big), fmt.Sprintf("%d %s", len(big), big), -1},
	} {
		req := fmt.Sprintf("POST http://%s%s HTTP/1.1\r\nHost: %s\r\n", at, c.path, at)
		// Twice on one connection, so that each ends where it should.
		br := bufio.NewReader(strings.NewReader(r.raw(req + c.request + req + "Connection: close\r\n" + c.request)))
		for range 2 {
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil || string(body) != c.body || resp.ContentLength != c.length {
				t.Errorf("%.80q: %.80q, length %d, %v", c.request, body, resp.ContentLength, err)
			}
		}
	}
	// An old client gets an old response.
	got := r.raw(fmt.Sprintf("POST http://%s/chunked HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello", at))
	want(t, got, "Connection: close\r\n", "\r\n\r\n5 hello")
	if strings.Contains(got, "chunked") {
		t.Errorf("%q", got)
	}
	want(t, r.raw(fmt.Sprintf("HEAD http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", at, at)), " 200 OK", "Content-Length: 2\r\n")
}

// TestExpect: a client that waits for a 100 gets it from its host.
func TestExpect(t *testing.T) {
	at := web(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(417)
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "got %s", body)
	})
	r := start(t, Options{}, []string{"127.0.0.1:*"})
	conn := dial(t, r.addr)
	br := bufio.NewReader(conn)
	fmt.Fprintf(conn, "PUT http://%s/ HTTP/1.1\r\nHost: %s\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", at, at)
	if line, err := br.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("%q, %v", line, err)
	}
	fmt.Fprint(conn, "hello")
	for range 3 {
		_, _ = br.ReadString('\n') // the rest of the 100
		if b, _ := br.Peek(4); string(b) == "HTTP" {
			break
		}
	}
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "got hello" {
		t.Fatalf("%q, %v", body, err)
	}
	// One that is refused before its body.
	got := r.raw(fmt.Sprintf("PUT http://%s/no HTTP/1.1\r\nHost: %s\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", at, at))
	want(t, got, "HTTP/1.1 417 ", "Connection: close\r\n")
}

// TestResponses: a host cannot make the worker's client see another response than
// there is, nor one for another request.
func TestResponses(t *testing.T) {
	for _, c := range []struct{ name, answer, status string }{
		{"length and coding", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "502"},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "502"},
		{"folded", "HTTP/1.1 200 OK\r\nX: 1\r\n Y: 2\r\n\r\n", "502"},
		{"no HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n", "502"},
		{"long head", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("y", 8000)+"\r\n", 10) + "\r\n", "502"},
		{"nothing", "", "502"},
		{"half a head", "HTTP/1.1 200 OK\r\nX: 1", "502"},
		{"a switch that nobody asked for", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "502"},
		{"interim without end", strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 100), "102"},
		{"until the end", "HTTP/1.0 200 OK\r\n\r\nall of it", "200"},
		{"two responses", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", "200"},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := peer(t, func(conn *net.TCPConn) {
				_, _ = readHead(bufio.NewReader(conn))
				_, _ = io.WriteString(conn, c.answer)
			})
			r := start(t, Options{}, []string{"127.0.0.1:*"})
			req := fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", at, at)
			got := r.raw(req + strings.Replace(req, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
			want(t, got, "HTTP/1.1 "+c.status+" ")
			if strings.Contains(got, "evil") || strings.Contains(got, "101") {
				t.Errorf("%q", got)
			}
			if c.name == "until the end" {
				want(t, got, "Connection: close\r\n", "\r\n\r\nall of it")
			}
		})
	}
	// A body that ends early is a reset, not an end.
	for _, head := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
		at := peer(t, func(conn *net.TCPConn) {
			_, _ = readHead(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n"+head+"\r\n\r\n5\r\nhel")
		})
		r := start(t, Options{}, []string{"127.0.0.1:*"})
		conn := dial(t, r.addr)
		fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", at, at)
		if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
			if body, err := io.ReadAll(resp.Body); err == nil {
				t.Errorf("%s: %q seems to be all", head, body)
			}
		}
	}
}

// TestReset: of a body that only the connection's end delimits, a reset is no end.
func TestReset(t *testing.T) {
	read := make(chan struct{})
	at := peer(t, func(conn *net.TCPConn) {
		_, _ = readHead(bufio.NewReader(conn))
		_, _ = io.WriteString(conn, "HTTP/1.0 200 OK\r\n\r\npart")
		<-read
		_ = conn.SetLinger(0)
	})
	r := start(t, Options{}, []string{"127.0.0.1:*"})
	conn := dial(t, r.addr)
	fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", at, at)
	br := bufio.NewReader(conn)
	if _, err := readHead(br); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(br, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	close(read)
	if rest, err := io.ReadAll(br); err == nil {
		t.Errorf("a part seems to be all, with %q", rest)
	}
}

// TestStale: a connection to a host that was closed meanwhile is made again.
func TestStale(t *testing.T) {
	closed := make(chan struct{}, 8)
	at := peer(t, func(conn *net.TCPConn) {
		_, _ = readHead(bufio.NewReader(conn))
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		_ = conn.Close()
		closed <- struct{}{}
	})
	r := start(t, Options{}, []string{"127.0.0.1:*"})
	conn := dial(t, r.addr)
	br := bufio.NewReader(conn)
	for i := range 3 {
		fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", at, at)
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("request %d: %v, %v", i, resp, err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "ok" {
			t.Fatalf("request %d: %q, %v", i, body, err)
		}
		<-closed
	}
}

// TestWebSocket goes through by plain HTTP; another protocol does not.
func TestWebSocket(t *testing.T) {
	at := peer(t, func(conn *net.TCPConn) {
		br := bufio.NewReader(conn)
		h, err := readHead(br)
		if err != nil {
			return
		}
		if !h.has("upgrade", "websocket") || !h.has("connection", "upgrade") {
			_, _ = io.WriteString(conn, "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n")
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\nearly ")
		_, _ = io.Copy(conn, br)
	})
	r := start(t, Options{}, []string{"127.0.0.1:*"})
	ask := func(protocol string) string {
		conn := dial(t, r.addr)
		fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: keep-alive, Upgrade\r\nUpgrade: %s\r\nSec-WebSocket-Key: x\r\n\r\nechoed", at, at, protocol)
		_ = conn.CloseWrite()
		all, _ := io.ReadAll(conn)
		return string(all)
	}
	got := ask("websocket")
	want(t, got, "HTTP/1.1 101 Switching Protocols\r\n", "Connection: Upgrade\r\n", "Upgrade: websocket\r\n", "Sec-WebSocket-Accept: x\r\n", "\r\n\r\nearly echoed")
	want(t, ask("h2c"), "HTTP/1.1 426 ")
}

// TestSlow: a head that trickles in ends at its deadline, on each protocol, and a
// later request of a connection has one, too.
func TestSlow(t *testing.T) {
	at := web(t, hello)
	r := start(t, Options{HeadTimeout: 100 * time.Millisecond}, []string{"127.0.0.1:*"})
	whole := fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", at, at)
	for _, c := range []struct{ say, want string }{
		{"", ""},
		{"GET http://a.example/ HT", "HTTP/1.1 408 "},
		{"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n", "HTTP/1.1 408 "},
		{whole + "GET ", "HTTP/1.1 408 "},
		{"\x05", ""},
		{"\x05\x01\x00", "\x05\x00"},
		{"\x05\x01\x00\x05\x01\x00\x03\xff", "\x05\x00"},
	} {
		want(t, r.raw(c.say), c.want) // raw ends when the proxy has closed
	}
	eventually(t, "a slow connection is still there", func() bool { return r.Stats().Active == 0 })
	// A drop now and then does not help.
	conn := dial(t, r.addr)
	var failed bool
	for range 10000 {
		if _, err := conn.Write([]byte("x")); err != nil {
			failed = true
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if !failed {
		t.Error("a trickle is read for ever")
	}
}

// TestBusy: connections beyond the limit are told so, and one that ends makes room.
func TestBusy(t *testing.T) {
	at := peer(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	r := start(t, Options{MaxConns: 2}, []string{"127.0.0.1:*"})
	first, _ := r.connect(t, at.String())
	r.connect(t, at.String())
	got := r.get("http://" + at.String() + "/")
	want(t, got, "HTTP/1.1 503 ", "too-many-connections", "2 connections")
	if _, code := r.socks(t, socksRequest{addr: at.Addr(), port: at.Port()}); code != socksFailure {
		t.Errorf("SOCKS is answered with %d", code)
	}
	_ = first.Close()
	eventually(t, "no connection became free", func() bool { return r.Stats().Active < 2 })
	r.connect(t, at.String())
	if s := r.Stats(); s.Busy != 2 || len(r.events()) != 0 {
		t.Errorf("%+v, %v", s, r.events())
	}
	// A flood leaves nothing behind and no more goroutines than may be.
	for range 200 {
		_ = dial(t, r.addr)
	}
	eventually(t, "the flood is not seen", func() bool { return r.Stats().Busy >= 100 })
	if n := len(r.spare); n > refusers {
		t.Errorf("%d connections are being refused", n)
	}
}

// TestFailures: what is no denial is told as what it is, and is no event.
func TestFailures(t *testing.T) {
	closed := listenLoopback(t)
	port := netip.MustParseAddrPort(closed.Addr().String()).Port()
	_ = closed.Close()
	r := start(t, Options{}, []string{"gone.example", "127.0.0.1:*"})
	want(t, r.get("http://gone.example/"), " 502 ", "X-Sbx-Reason: resolve-failed", "error=dns_error")
	want(t, r.get(fmt.Sprintf("http://127.0.0.1:%d/", port)), " 502 ", "X-Sbx-Reason: connect-refused", "error=connection_refused")
	if _, code := r.socks(t, socksRequest{name: "gone.example", port: 80}); code != socksHostUnreachable {
		t.Errorf("SOCKS is answered with %d", code)
	}
	if _, code := r.socks(t, socksRequest{name: "127.0.0.1", port: port}); code != socksRefused {
		t.Errorf("SOCKS is answered with %d", code)
	}

	slow := start(t, Options{ResolveTimeout: 50 * time.Millisecond, DialTimeout: 50 * time.Millisecond,
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }}, []string{"a.example", "1.1.1.1"})
	slow.names.hang = true
	want(t, slow.get("http://a.example/"), " 504 ", "resolve-timeout")
	want(t, slow.get("http://1.1.1.1/"), " 504 ", "connect-timeout")
	if e := append(r.events(), slow.events()...); len(e) != 0 {
		t.Errorf("a failure is a denial: %v", e)
	}
}

// TestAddresses: the next address is tried when one fails or is silent, a name with
// very many is bounded, and what lost the race is closed.
func TestAddresses(t *testing.T) {
	at := web(t, hello)
	var tried atomic.Int32
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("1.1.1.%d", i))
	}
	opts := Options{DialTimeout: patience, Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		tried.Add(1)
		switch to.Addr().String() {
		case "8.8.8.8":
			<-ctx.Done() // a black hole
			return nil, ctx.Err()
		case "9.9.9.9":
			return dialTCP(ctx, at)
		}
		return nil, errNever
	}}
	r := start(t, opts, []string{"hole.example", "dead.example", "many.example"}, "hole.example", "8.8.8.8 9.9.9.9", "dead.example", "1.1.1.1 1.1.1.2 9.9.9.9", "many.example", strings.Join(many, " "))
	want(t, r.get("http://dead.example/"), " 200 OK")
	if n := tried.Swap(0); n != 3 {
		t.Errorf("%d attempts", n)
	}
	want(t, r.get("http://hole.example/"), " 200 OK")
	tried.Store(0)
	want(t, r.get("http://many.example/"), " 502 ")
	if n := tried.Load(); n != maxAddresses {
		t.Errorf("%d attempts", n)
	}
}

// TestNoUpstream: what the environment says of proxies is for others.
func TestNoUpstream(t *testing.T) {
	trap := web(t, func(w http.ResponseWriter, r *http.Request) { t.Error("the proxy used a proxy") })
	for _, v := range Environment(trap) {
		name, value, _ := strings.Cut(v, "=")
		if !strings.Contains(strings.ToLower(name), "no_proxy") {
			t.Setenv(name, value)
		}
	}
	t.Setenv("NO_PROXY", "")
	t.Setenv("no_proxy", "")
	at := web(t, hello)
	r := start(t, Options{}, []string{"a.example:*", "127.0.0.1:*"}, "a.example", "127.0.0.1")
	want(t, r.get(fmt.Sprintf("http://a.example:%d/", at.Port())), " 200 OK")
}

// TestOptions: limits that make no sense are refused.
func TestOptions(t *testing.T) {
	for _, o := range []Options{{MaxConns: -1}, {HeadTimeout: -1}, {ResolveTimeout: -1}, {DialTimeout: -1}, {IdleTimeout: -1}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	for r, a := range answers {
		if a.status < 400 || a.title == "" || a.error == "" || a.socks == socksOK || a.denial != slices.Contains([]Reason{HostNotAllowed, PortNotAllowed, AddressNotPublic, BadHost, HostMismatch}, r) {
			t.Errorf("%s: %+v", r, a)
		}
	}
	var b bytes.Buffer
	if _, err := sendBody(&b, strings.NewReader("hello"), true, func(int) {}); err != nil || b.String() != "5\r\nhello\r\n0\r\n\r\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}
