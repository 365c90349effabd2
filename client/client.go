package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"sandboxd/internal/listen"
	"sandboxd/protocol"
)

// Auto is the socket of whichever daemon there is: see docs/protocol.md, Transport.
const Auto = "auto"

// writeTime bounds how long the daemon may not read: it reads always.
const writeTime = 30 * time.Second

// ErrNoDaemon is that nobody listens at the socket, or that there is none.
var ErrNoDaemon = listen.ErrNoDaemon

// ConnError is the end of a connection, or that there is none: the daemon is not there,
// is not to be trusted, has gone, or does not speak the protocol. Launches that were
// under way count as unknown; the daemon ends their workers, but for those with Keep.
type ConnError struct {
	Socket string
	Err    error
	// Hint is what to do, or empty.
	Hint string
}

func (e *ConnError) Error() string { return fmt.Sprintf("the daemon at %s: %v", e.Socket, e.Err) }
func (e *ConnError) Unwrap() error { return e.Err }

// errClosed is the end of a connection by [Client.Close].
var errClosed = errors.New("the connection was closed here")

// errGone is the end of a connection by the daemon.
var errGone = errors.New("it closed the connection")

// Client is a connection to a daemon.
type Client struct {
	socket string
	conn   *net.UnixConn
	hello  *protocol.DaemonHello

	writing sync.Mutex // one frame at a time
	frame   []byte

	mu    sync.Mutex
	last  int64
	calls map[int64]receiver
	err   error         // why it has ended
	ended chan struct{} // closed with it
}

// receiver gets a request's answers, in order, from the goroutine that reads: it must
// not wait. lost is called instead of a final answer, with the connection's end.
type receiver interface {
	answer(m protocol.Message) error
	lost(err error)
}

// Dial connects to the daemon at socket, or, if that is empty or [Auto], to the first
// there is of the user's and the system's. name and version are the program's, for the
// daemon's log. ctx bounds the connection and the exchange of hellos.
//
// A daemon of another user than root and the caller is refused, and so is a socket in
// whose place such a one could listen.
func Dial(ctx context.Context, socket, name, version string) (*Client, error) {
	c := &Client{socket: socket, calls: map[int64]receiver{}, ended: make(chan struct{})}
	var err error
	if socket == "" || socket == Auto {
		if c.conn, c.socket, err = listen.DialAuto(ctx); c.socket == "" {
			c.socket = Auto
		}
	} else {
		c.conn, err = listen.Dial(ctx, socket)
	}
	if err != nil {
		return nil, c.connError(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	r := protocol.NewReader(c.conn, protocol.MaxAnswer)
	err = c.greet(r, name, version)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = c.conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	go c.read(r)
	return c, nil
}

func (c *Client) connError(err error) error {
	e := &ConnError{Socket: c.socket, Err: err}
	var le *listen.Error
	if errors.As(err, &le) && le.Hint != "" {
		e.Hint = le.Hint
		plain := *le // whose text has no hint
		plain.Hint = ""
		e.Err = &plain
	}
	return e
}

// greet exchanges hellos.
func (c *Client) greet(r *protocol.Reader, name, version string) error {
	hello := &protocol.ClientHello{Versions: protocol.Versions(), Client: protocol.Peer{Name: name, Version: version}}
	hello.Grease()
	sent := c.send(hello, nil) // a daemon that is full says so and closes without reading
	frame, err := r.ReadFrame()
	if err != nil {
		return c.connError(errors.Join(err, sent))
	}
	m, err := protocol.ParseAnswer(frame)
	switch m := m.(type) {
	case *protocol.DaemonHello:
		if !slices.Contains(protocol.Versions(), m.Version) {
			return c.connError(fmt.Errorf("it speaks version %d, which was not offered", m.Version))
		}
		c.hello = m
		return nil
	case *protocol.Error:
		return m
	}
	return c.connError(errors.Join(errors.New("it does not answer with a hello"), err))
}

// Socket is the path of the daemon's socket.
func (c *Client) Socket() string { return c.socket }

// Hello is what the daemon said of itself. It is not to be changed.
func (c *Client) Hello() *protocol.DaemonHello { return c.hello }

// Has tells whether the daemon has a capability: one of protocol's Cap constants.
func (c *Client) Has(capability string) bool {
	return slices.ContainsFunc(c.hello.Capabilities, func(h protocol.Capability) bool { return h.Name == capability })
}

// Close ends the connection, and with it all workers of its launches but those with
// Keep.
func (c *Client) Close() error {
	c.end(errClosed)
	return nil
}

// Ended is closed when the connection has ended.
func (c *Client) Ended() <-chan struct{} { return c.ended }

// Err is why the connection has ended; nil while it has not.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// end ends the connection, once.
func (c *Client) end(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	var e *protocol.Error // a fatal one says more than that the daemon has closed
	if !errors.As(err, &e) {
		err = c.connError(err)
	}
	c.err = err
	calls := c.calls
	c.calls = nil
	c.mu.Unlock()
	_ = c.conn.Close()
	for _, r := range calls {
		r.lost(err)
	}
	close(c.ended)
}

// read gives answers to whom they belong, until the connection ends.
func (c *Client) read(r *protocol.Reader) {
	for {
		frame, err := r.ReadFrame()
		if err != nil {
			var e *protocol.Error
			switch {
			case errors.As(err, &e): // of this end's making: the daemon sends no frames
				err = fmt.Errorf("it breaks the protocol: %s", e.Message)
			case errors.Is(err, net.ErrClosed):
				err = errClosed
			default:
				err = fmt.Errorf("%w: %w", errGone, err)
			}
			c.end(err)
			return
		}
		m, err := protocol.ParseAnswer(frame)
		if err == nil {
			err = c.dispatch(m)
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

// dispatch gives an answer to its request's receiver. An error ends the connection.
func (c *Client) dispatch(m protocol.Message) error {
	if e, ok := m.(*protocol.Error); ok && e.Fatal {
		return e
	}
	id := protocol.ID(m)
	c.mu.Lock()
	r := c.calls[id]
	if r != nil && protocol.Final(m) {
		delete(c.calls, id)
	}
	c.mu.Unlock()
	switch m := m.(type) {
	case *protocol.Unknown:
		return nil
	case *protocol.DaemonHello:
		return errors.New("it breaks the protocol: a second hello")
	case *protocol.Error:
		if r == nil && m.ID == 0 {
			return m // of nobody's request, or of one whose id it could not read
		}
	}
	if r == nil {
		return fmt.Errorf("it breaks the protocol: %s for %d, which is no request in flight", m.Type(), id)
	}
	if err := r.answer(m); err != nil {
		r.lost(err)
		return fmt.Errorf("it breaks the protocol: %w", err)
	}
	return nil
}

// reserved is how many of the requests that may be in flight are never launches or
// subscriptions, which take long: one who has as many as may be can still end them.
const reserved = 8

// open registers a request; long is one that is in flight for as long as its worker.
func (c *Client) open(r receiver, long bool) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	limit := c.hello.Limits.Requests
	if long {
		limit = max(limit/2, limit-reserved)
	}
	if int64(len(c.calls)) >= limit {
		return 0, protocol.Errorf(protocol.TooManyRequests, "%d requests are in flight, as many as may be", limit)
	}
	c.last++
	c.calls[c.last] = r
	return c.last, nil
}

// drop forgets a request that was not sent.
func (c *Client) drop(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, id)
}

// send writes a message, with descriptors. A message that cannot be encoded is a
// [*protocol.Error], and nothing was sent; any other error ends the connection, as a
// part of a frame may have been written.
func (c *Client) send(m protocol.Message, fds []int) error {
	limit := protocol.MaxFrame
	if c.hello != nil {
		limit = int(min(c.hello.Limits.Frame, protocol.MaxFrame))
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	frame, err := protocol.AppendFrame(c.frame[:0], m, limit)
	if err != nil {
		return err
	}
	if cap(frame) <= 64<<10 {
		c.frame = frame
	}
	if c.hello != nil {
		_ = c.conn.SetWriteDeadline(time.Now().Add(writeTime))
	}
	if err := listen.Send(c.conn, frame, fds); err != nil {
		if c.hello != nil {
			c.end(fmt.Errorf("%w: %w", errGone, err))
		}
		return c.connError(err)
	}
	return nil
}

// call is a request with one answer.
type call struct{ done chan result }

type result struct {
	m   protocol.Message
	err error
}

func (x *call) answer(m protocol.Message) error { x.done <- result{m: m}; return nil }
func (x *call) lost(err error)                  { x.done <- result{err: err} }

// ask sends a request and waits for its one answer. The answer that comes after ctx
// is done is thrown away.
func ask[T protocol.Message](ctx context.Context, c *Client, request func(id int64) protocol.Message) (answer T, err error) {
	x := &call{make(chan result, 2)}
	id, err := c.open(x, false)
	if err != nil {
		return answer, err
	}
	if err := c.send(request(id), nil); err != nil {
		c.drop(id)
		return answer, err
	}
	select {
	case <-ctx.Done():
		return answer, ctx.Err()
	case r := <-x.done:
		if r.err != nil {
			return answer, r.err
		}
		if e, ok := r.m.(*protocol.Error); ok {
			return answer, e
		}
		answer, ok := r.m.(T)
		if !ok {
			err := fmt.Errorf("it breaks the protocol: %s as the answer to %s", r.m.Type(), request(id).Type())
			c.end(err)
			return answer, c.connError(err)
		}
		return answer, nil
	}
}

// Ping asks whether the daemon still answers on this connection.
func (c *Client) Ping(ctx context.Context) error {
	_, err := ask[*protocol.Pong](ctx, c, func(id int64) protocol.Message { return &protocol.Ping{ID: id} })
	return err
}

// Health asks how the daemon is.
func (c *Client) Health(ctx context.Context) (*protocol.HealthResult, error) {
	return ask[*protocol.HealthResult](ctx, c, func(id int64) protocol.Message { return &protocol.Health{ID: id} })
}

// Features asks what the host can enforce: the JSON that `sbx features --json` prints.
func (c *Client) Features(ctx context.Context) ([]byte, error) {
	r, err := ask[*protocol.FeaturesResult](ctx, c, func(id int64) protocol.Message { return &protocol.Features{ID: id} })
	if err != nil {
		return nil, err
	}
	return r.Features, nil
}

// List lists the workers of the peer's user, the latest first; with ended, those too
// that have ended and are still remembered.
func (c *Client) List(ctx context.Context, ended bool) (*protocol.ListResult, error) {
	return ask[*protocol.ListResult](ctx, c, func(id int64) protocol.Message { return &protocol.List{ID: id, Ended: ended} })
}

// Inspect tells all about a worker of the peer's user.
func (c *Client) Inspect(ctx context.Context, worker string) (*protocol.InspectResult, error) {
	return ask[*protocol.InspectResult](ctx, c, func(id int64) protocol.Message { return &protocol.Inspect{ID: id, Worker: worker} })
}

// CancelWorker ends a worker of the peer's user, of any connection: SIGTERM, and after
// grace SIGKILL. A negative grace is the launch's own.
func (c *Client) CancelWorker(ctx context.Context, worker string, grace time.Duration) error {
	return c.cancel(ctx, protocol.Cancel{Worker: worker}, grace)
}

func (c *Client) cancel(ctx context.Context, m protocol.Cancel, grace time.Duration) error {
	if grace >= 0 {
		ms := grace.Milliseconds()
		m.Grace = &ms
	}
	_, err := ask[*protocol.CancelResult](ctx, c, func(id int64) protocol.Message { m.ID = id; return &m })
	return err
}

// SignalWorker sends a signal, by its name ("SIGHUP"), to the command of a worker of the
// peer's user.
func (c *Client) SignalWorker(ctx context.Context, worker, signal string) error {
	_, err := ask[*protocol.SignalResult](ctx, c, func(id int64) protocol.Message {
		return &protocol.Signal{ID: id, Worker: worker, Signal: signal}
	})
	return err
}
