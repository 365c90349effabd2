package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// upstream is a connection to a host for plain HTTP. It serves the requests of one
// connection of the worker, one after the other, while they go to the same host.
type upstream struct {
	conn net.Conn
	in   *idleConn
	br   *bufio.Reader
	host host
	port uint16
}

// serveHTTP answers requests until the connection is a tunnel or ends.
func (c *session) serveHTTP() {
	var up *upstream
	defer func() { c.s.dropUpstream(up) }()
	for {
		q, ok := c.nextRequest()
		if !ok {
			return
		}
		c.s.requests.Add(1)
		if q.method == "CONNECT" {
			c.serveConnect(q)
			return
		}
		var keep bool
		if up, keep = c.forward(q, up); !keep {
			return
		}
		if c.awaitNext() != nil {
			return
		}
	}
}

// awaitNext waits for a request's first byte.
func (c *session) awaitNext() error {
	wait := nextRequestTimeout
	if idle := c.s.opts.IdleTimeout; idle > 0 {
		wait = min(wait, idle)
	}
	c.in.idle = 0
	if c.br.Buffered() == 0 {
		_ = c.conn.SetReadDeadline(time.Now().Add(wait))
		if _, err := c.br.Peek(1); err != nil {
			return err
		}
	}
	return c.conn.SetReadDeadline(time.Now().Add(c.s.opts.HeadTimeout))
}

// nextRequest reads a request that may be judged; others it answers itself.
func (c *session) nextRequest() (*request, bool) {
	h, err := readHead(c.br)
	if err != nil {
		c.refuseHead(h, err)
		return nil, false
	}
	_ = c.conn.SetReadDeadline(time.Time{})
	c.in.idle = c.s.opts.IdleTimeout
	if c.busy {
		c.refuse(bad(Busy, "the sandbox has %d connections already", c.s.opts.MaxConns))
		return nil, false
	}
	q, asked, f := parseRequest(h)
	if f != nil {
		p := HTTP
		if strings.HasPrefix(h.first, "CONNECT ") {
			p = Connect
		}
		c.s.tell(p, asked, 0, f)
		c.refuse(f)
		return nil, false
	}
	return q, true
}

// refuseHead answers what is no request.
func (c *session) refuseHead(h head, err error) {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.refuse(bad(RequestTimeout, "the request did not come in time"))
	case errors.Is(err, errLineTooLong):
		c.refuse(bad(TargetTooLong, "%v", err))
	case errors.Is(err, errHeadTooLong):
		c.refuse(bad(HeadTooLarge, "%v", err))
	case isNet(err):
	default:
		c.refuse(bad(BadRequest, "%v", err))
	}
}

// isNet tells a connection that failed or ended from words that are wrong.
func isNet(err error) bool {
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &op)
}

// refuse answers with a reason, and closes: what follows in the stream may be a body.
func (c *session) refuse(f *failure) {
	a := answers[f.reason]
	text := "sbx: " + clipLong(f.text) + "\n"
	if f.hint != "" {
		text += "sbx: hint: " + clipLong(f.hint) + "\n"
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", a.status, a.title)
	fmt.Fprintf(&b, "Content-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nX-Content-Type-Options: nosniff\r\n", len(text))
	fmt.Fprintf(&b, "X-Sbx-Reason: %s\r\nProxy-Status: sbx; error=%s\r\n", f.reason, a.error)
	b.WriteString("Cache-Control: no-store\r\nConnection: close\r\n\r\n" + text)
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.s.opts.HeadTimeout))
	if _, err := c.conn.Write(b.Bytes()); err == nil {
		c.linger()
	}
}

// clipLong is for our own text with a host in it, which is canonical or clipped.
func clipLong(s string) string {
	const most = 600
	return s[:min(len(s), most)]
}

func (c *session) serveConnect(q *request) {
	up, f := c.s.open(Connect, q.host, q.port)
	if f != nil {
		c.refuse(f)
		return
	}
	defer c.s.drop(up)
	if _, err := io.WriteString(c.conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	c.tunnel(up, nil)
}

// upstream gives a connection for a request: the present one if it is to the same
// host, and repeating the request is harmless should the host have closed it.
func (c *session) upstream(q *request, up *upstream) (next *upstream, used bool, f *failure) {
	if up != nil {
		if up.host == q.host && up.port == q.port && repeatable(q) {
			return up, true, nil
		}
		c.s.dropUpstream(up)
	}
	conn, f := c.s.open(HTTP, q.host, q.port)
	if f != nil {
		return nil, false, f
	}
	in := &idleConn{Conn: conn, idle: c.s.opts.IdleTimeout}
	return &upstream{conn: conn, in: in, br: bufio.NewReaderSize(in, readBuffer), host: q.host, port: q.port}, false, nil
}

// repeatable requests may be sent again if no answer came (RFC 9110, 9.2.2).
func repeatable(q *request) bool {
	return slices.Contains([]string{"GET", "HEAD", "OPTIONS"}, q.method) && !q.hasBody() && !q.upgrade
}

func (s *Server) dropUpstream(up *upstream) {
	if up != nil {
		s.drop(up.conn)
	}
}

// forward sends a request to its host and the response back. It gives the
// connection to the host, if that can be used again, and tells whether the worker's
// can.
func (c *session) forward(q *request, old *upstream) (*upstream, bool) {
	if _, f := c.s.judge(q.host, q.port); f != nil { // also if a connection is there
		c.s.dropUpstream(old)
		c.s.tell(HTTP, q.host.String(), q.port, f)
		c.refuse(f)
		return nil, false
	}
	up, used, f := c.upstream(q, old)
	if f != nil {
		c.refuse(f)
		return nil, false
	}
	x := &exchange{c: c, q: q, up: up}
	p, err := x.ask()
	if err != nil && used && isNet(err) && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.s.dropUpstream(up)
		if up, _, f = c.upstream(q, nil); f != nil {
			c.refuse(f)
			return nil, false
		}
		x = &exchange{c: c, q: q, up: up}
		p, err = x.ask()
	}
	if err != nil {
		x.fail(err)
		return nil, false
	}
	if p.status == 101 {
		x.switchOver(p)
		return nil, false
	}
	again, keep := x.answer(p)
	if !again {
		c.s.dropUpstream(up)
		up = nil
	}
	return up, keep
}

// exchange is one request and its response.
type exchange struct {
	c    *session
	q    *request
	up   *upstream
	sent chan error // how the sending of the body ended, if there is one to send beside
	// bad is set, before sent is, if the worker's body is malformed.
	bad bool
}

// ask sends the request and reads the response's head. Interim responses are handed
// on as they come.
func (x *exchange) ask() (*response, error) {
	if _, err := x.up.in.Write(x.q.encode()); err != nil {
		return nil, err
	}
	if x.q.hasBody() {
		x.sent = make(chan error, 1)
		go x.sendBody()
	}
	for range maxInterim {
		p, err := readResponse(x.up.br)
		if err != nil {
			return nil, err
		}
		if p.status >= 200 || p.status == 101 {
			if p.status == 101 && !(x.q.upgrade && p.has("upgrade", "websocket")) {
				return nil, errors.New("it switches to a protocol that was not asked for")
			}
			return p, nil
		}
		if x.q.minor == 1 { // HTTP/1.0 has none (RFC 9110, 15.2)
			if _, err := x.c.in.Write(p.encode(framing{length: -1}, "")); err != nil {
				return nil, err
			}
		}
	}
	return nil, errors.New("there are too many interim responses")
}

// maxInterim is how many responses of status 1xx may come before the final one.
const maxInterim = 16

func (x *exchange) sendBody() {
	reading, err := sendBody(x.up.in, x.q.body.body(x.c.br), x.q.body.chunked, func(n int) { x.c.s.fromWorker.Add(int64(n)) })
	if reading {
		x.bad = errors.Is(err, errBody)
		_ = x.up.conn.Close() // the host must not take what came for all of it
	}
	x.sent <- err
}

// stopBody ends the sending of the body, and tells whether it had ended well.
func (x *exchange) stopBody(patience time.Duration) bool {
	if x.sent == nil {
		return true
	}
	select {
	case err := <-x.sent:
		x.sent = nil
		return err == nil
	case <-time.After(patience):
		return false
	}
}

// joinBody waits for the sending of the body, which it makes end.
func (x *exchange) joinBody() {
	if x.sent == nil {
		return
	}
	x.c.in.stop()
	_ = x.up.conn.SetWriteDeadline(longAgo)
	<-x.sent
	x.sent = nil
}

// fail answers for a host that did not.
func (x *exchange) fail(err error) {
	timeout := errors.Is(err, os.ErrDeadlineExceeded)
	x.joinBody()
	switch {
	case x.bad:
		x.c.refuse(bad(BadRequest, "%v", errBody))
	case timeout:
		x.c.refuse(bad(ConnectTimeout, "%s did not answer in time", x.q.host))
	case isNet(err):
		x.c.refuse(bad(ResponseCutShort, "%s closed the connection before its response", x.q.host))
	default:
		x.c.refuse(bad(BadResponse, "the response of %s is malformed: %v", x.q.host, err))
	}
	x.c.s.dropUpstream(x.up)
}

// bodyPatience is how long a response waits for the body of its request to have been
// sent, after which the connection is closed behind it. A host that has read the
// body answers a moment before its sender knows that it is sent.
const bodyPatience = 50 * time.Millisecond

// answer hands the response on, and tells which of the two connections can be used
// again.
func (x *exchange) answer(p *response) (again, keep bool) {
	whole := x.stopBody(bodyPatience)
	bodiless := p.bodiless(x.q.method)
	out := p.body
	switch {
	case bodiless && (p.status == 204 || p.body.chunked):
		out = framing{length: -1}
	case bodiless: // the length that a body would have
	case p.body.chunked && x.q.minor == 0:
		out = framing{length: -1}
	}
	delimited := bodiless || out.chunked || out.length >= 0
	keep = whole && delimited && !x.q.last()
	again = keep && p.minor == 1 && !p.has("connection", "close")
	connection := ""
	if !keep {
		connection = "close"
	}
	if _, err := x.c.in.Write(p.encode(out, connection)); err != nil {
		x.joinBody()
		return false, false
	}
	if !bodiless {
		if _, err := sendBody(x.c.in, p.body.body(x.up.br), out.chunked, func(n int) { x.c.s.toWorker.Add(int64(n)) }); err != nil {
			x.joinBody()
			x.c.abort() // what came must not be taken for all of it
			return false, false
		}
	}
	if !whole {
		x.joinBody()
	}
	if !keep {
		x.c.linger()
	}
	// A host that says more than it was asked for is not asked again.
	return again && x.up.br.Buffered() == 0, keep
}

// switchOver makes a tunnel of a WebSocket's two connections.
func (x *exchange) switchOver(p *response) {
	defer x.c.s.dropUpstream(x.up)
	if _, err := x.c.in.Write(p.encode(framing{length: -1}, "Upgrade")); err != nil {
		return
	}
	_ = x.up.conn.SetDeadline(time.Time{})
	x.c.tunnel(x.up.conn, buffered(x.up.br))
}

// encode is the response as the worker gets it.
func (p *response) encode(body framing, connection string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", p.status, p.title)
	writeFields(&b, p.endToEnd())
	switch {
	case body.chunked:
		b.WriteString("Transfer-Encoding: chunked\r\n")
	case body.length >= 0:
		fmt.Fprintf(&b, "Content-Length: %d\r\n", body.length)
	}
	if connection != "" {
		b.WriteString("Connection: " + connection + "\r\n")
	}
	if p.status == 101 {
		b.WriteString("Upgrade: websocket\r\n")
	}
	b.WriteString("Via: " + via + "\r\n\r\n")
	return b.Bytes()
}

// abort ends a connection by a reset.
func (c *session) abort() {
	if tcp, ok := c.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.conn.Close()
}
