package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience ends a test that hangs; nothing in a test waits for it.
const patience = 60 * time.Second

// names is a resolver with answers of its own.
type names struct {
	mu    sync.Mutex
	table map[string][]string // name to addresses; the next answer of "a|b" each time
	asked []string
	hang  bool // until the context is done
}

func (n *names) LookupNetIP(ctx context.Context, network, name string) ([]netip.Addr, error) {
	n.mu.Lock()
	n.asked = append(n.asked, name)
	hang := n.hang
	var found []netip.Addr
	for i, text := range n.table[name] {
		first, rest, more := strings.Cut(text, "|")
		if more {
			n.table[name][i] = rest
		}
		found = append(found, netip.MustParseAddr(first))
	}
	n.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if found == nil {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return found, nil
}

func (n *names) questions() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.asked...)
}

// rig is a proxy on a real socket, with what it refused.
type rig struct {
	*Server
	t     *testing.T
	addr  string
	names *names
	mu    sync.Mutex
	told  []Event
	done  chan error
}

// start runs a proxy. Names are resolved by table, in pairs of a name and its
// addresses, separated by spaces.
func start(t testing.TB, opts Options, rules []string, table ...string) *rig {
	t.Helper()
	r := &rig{names: &names{table: map[string][]string{}}, done: make(chan error, 1)}
	r.t, _ = t.(*testing.T)
	for i := 0; i < len(table); i += 2 {
		r.names.table[table[i]] = strings.Fields(table[i+1])
	}
	var err error
	if opts.Allow, err = ParseRules(rules); err != nil {
		t.Fatal(err)
	}
	opts.Resolver = r.names
	opts.Denied = func(e Event) {
		r.mu.Lock()
		r.told = append(r.told, e)
		r.mu.Unlock()
	}
	if r.Server, err = New(opts); err != nil {
		t.Fatal(err)
	}
	l := listenLoopback(t)
	r.addr = l.Addr().String()
	go func() { r.done <- r.Serve(l) }()
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := <-r.done; err != nil {
			t.Errorf("Serve ended with %v", err)
		}
	})
	return r
}

func (r *rig) events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Event(nil), r.told...)
}

// only gives the one event that there must be.
func (r *rig) only(want Reason) Event {
	r.t.Helper()
	all := r.events()
	if len(all) != 1 || all[0].Reason != want {
		r.t.Fatalf("the events are %+v, want one of %s", all, want)
	}
	if e := all[0]; e.Time.IsZero() || e.Detail == "" {
		r.t.Errorf("the event says not enough: %+v", e)
	}
	return all[0]
}

func listenLoopback(t testing.TB) *net.TCPListener {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener)
}

// dial connects to the proxy, or a host.
func dial(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

// raw says something to the proxy and gives all that it answers, to its end.
func (r *rig) raw(text string) string {
	r.t.Helper()
	conn := dial(r.t, r.addr)
	if _, err := io.WriteString(conn, text); err != nil {
		r.t.Fatal(err)
	}
	all, err := io.ReadAll(conn)
	if err != nil {
		r.t.Fatalf("after %q: %v", all, err)
	}
	return string(all)
}

// get asks the proxy for a URL, once.
func (r *rig) get(url string) string {
	r.t.Helper()
	host, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	return r.raw(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", url, host))
}

// connect makes a tunnel by CONNECT.
func (r *rig) connect(t testing.TB, target string) (*net.TCPConn, *bufio.Reader) {
	t.Helper()
	conn := dial(t, r.addr)
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"})
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("CONNECT %s: %v, %v", target, resp, err)
	}
	return conn, br
}

// socks makes a tunnel by SOCKS5, or gives the reply's code.
func (r *rig) socks(t testing.TB, q socksRequest) (*net.TCPConn, byte) {
	t.Helper()
	conn := dial(t, r.addr)
	q.command = max(q.command, socksConnect)
	_, _ = conn.Write([]byte{5, 1, 0})
	_, _ = conn.Write(q.encode())
	var reply [12]byte
	if _, err := io.ReadFull(conn, reply[:]); err != nil {
		t.Fatalf("after %v: %v", reply, err)
	}
	if reply[0] != 5 || reply[1] != 0 || reply[2] != 5 {
		t.Fatalf("the reply is %v", reply)
	}
	return conn, reply[3]
}

// host is a web server on loopback, and its port.
func web(t testing.TB, h http.HandlerFunc) (addr netip.AddrPort) {
	t.Helper()
	s := &httptest.Server{Listener: listenLoopback(t), Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
	return netip.MustParseAddrPort(s.Listener.Addr().String())
}

// peer is a host on loopback that does what it is told with each connection.
func peer(t testing.TB, serve func(*net.TCPConn)) (addr netip.AddrPort) {
	t.Helper()
	l := listenLoopback(t)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.AcceptTCP()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(patience))
				serve(conn)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return netip.MustParseAddrPort(l.Addr().String())
}

// want fails unless a text has all of the parts.
func want(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("no %.200q in %.2000q", p, text)
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

var errNever = errors.New("nobody dials in this test")
