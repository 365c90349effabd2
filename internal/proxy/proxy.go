package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Resolver gives the addresses of a name; [*net.Resolver] is one. It must return
// when its context is done.
type Resolver interface {
	// LookupNetIP is called with the network "ip" and a name in canonical form,
	// without a trailing dot.
	LookupNetIP(ctx context.Context, network, name string) ([]netip.Addr, error)
}

// Options are what a proxy does. The zero value refuses everything.
type Options struct {
	Allow Rules
	// Resolver is nil for the host's own, which does not apply a search list to
	// names with a dot in them.
	Resolver Resolver
	// Dial connects to exactly this address, and returns when its context is done.
	// It is nil for TCP from where the proxy runs. No proxy of the environment is
	// used, whatever it says.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Denied is called with each refusal of the policy, from several goroutines.
	// It should return soon, as the worker's answer waits for it; what it is told
	// is not deduplicated.
	Denied func(Event)

	// MaxConns is how many connections of the worker are served at once; 0 is
	// 256. More are answered with 503, or SOCKS reply 1.
	MaxConns int
	// HeadTimeout is how long a worker may take for a request's head or a
	// handshake, from its first byte; for the first of a connection, from its
	// beginning. 0 is 15 s.
	HeadTimeout time.Duration
	// ResolveTimeout bounds the resolution of a name, 0 is 10 s; DialTimeout all
	// attempts to connect together, 0 is 30 s.
	ResolveTimeout, DialTimeout time.Duration
	// IdleTimeout ends a connection on which no byte went either way for so long,
	// and at most twice that; 0 is never, as the worker's own end is a bound. A
	// connection of plain HTTP that waits for its next request is closed after two
	// minutes, or IdleTimeout if that is less.
	IdleTimeout time.Duration
}

const (
	defaultMaxConns       = 256
	defaultHeadTimeout    = 15 * time.Second
	defaultResolveTimeout = 10 * time.Second
	defaultDialTimeout    = 30 * time.Second
	nextRequestTimeout    = 2 * time.Minute
)

// refusers are the connections beyond MaxConns that are told so at the same time;
// more are closed without a word.
const refusers = 16

// closeTimeout bounds Close.
const closeTimeout = 5 * time.Second

// Stats count since the proxy was made. Bytes are those of tunnels and bodies.
type Stats struct {
	Connections uint64 // accepted, those of Busy among them
	Active      int    // being served now
	Busy        uint64 // turned away because of MaxConns
	Requests    uint64 // destinations asked for
	Denials     uint64 // refused by the policy: the events
	FromWorker  uint64 // bytes to hosts
	ToWorker    uint64 // bytes from hosts
}

// Server is a running proxy, made by [New].
type Server struct {
	opts    Options
	ctx     context.Context
	end     context.CancelFunc
	slots   chan struct{} // of connections that are served
	spare   chan struct{} // of connections that are refused
	bulk    chan struct{} // of copies with a large buffer
	splices chan struct{} // of copies by the kernel

	connections, busy, requests, denials atomic.Uint64
	fromWorker, toWorker                 atomic.Int64

	mu        sync.Mutex
	closed    bool
	listeners map[net.Listener]bool
	conns     map[net.Conn]bool // of workers and hosts
	running   sync.WaitGroup    // handlers; Add under mu, before closed
}

// New makes a proxy, which serves nothing yet.
func New(opts Options) (*Server, error) {
	if opts.MaxConns < 0 || opts.HeadTimeout < 0 || opts.ResolveTimeout < 0 || opts.DialTimeout < 0 || opts.IdleTimeout < 0 {
		return nil, errors.New("a limit of the proxy is negative")
	}
	setDefault(&opts.MaxConns, defaultMaxConns)
	setDefault(&opts.HeadTimeout, defaultHeadTimeout)
	setDefault(&opts.ResolveTimeout, defaultResolveTimeout)
	setDefault(&opts.DialTimeout, defaultDialTimeout)
	if opts.Resolver == nil {
		opts.Resolver = hostResolver{}
	}
	if opts.Dial == nil {
		opts.Dial = dialTCP
	}
	s := &Server{
		opts:      opts,
		slots:     make(chan struct{}, opts.MaxConns),
		spare:     make(chan struct{}, refusers),
		bulk:      make(chan struct{}, maxBulk),
		splices:   make(chan struct{}, maxSplice),
		listeners: map[net.Listener]bool{},
		conns:     map[net.Conn]bool{},
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s, nil
}

func setDefault[T int | time.Duration](v *T, value T) {
	if *v == 0 {
		*v = value
	}
}

// Pauses of the accept loop after a failure: doubled from the first to the last.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

// Serve accepts connections until [Server.Close], which closes the listener and
// makes Serve return nil, or until accept fails for good. A shortage of
// descriptors or memory is waited out.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = l.Close()
		return nil
	}
	s.listeners[l] = true
	s.mu.Unlock()
	defer func() {
		_ = l.Close()
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	pause := time.Duration(0)
	for {
		conn, err := l.Accept()
		if err == nil {
			pause = 0
			s.start(conn)
			continue
		}
		switch {
		case s.ctx.Err() != nil:
			return nil
		case !passing(err):
			return fmt.Errorf("accepting a worker's connection: %w", err)
		}
		pause = min(max(2*pause, firstPause), lastPause)
		select {
		case <-s.ctx.Done():
		case <-time.After(pause):
		}
	}
}

// passing tells whether accept failed for a reason that passes (accept(2)).
func passing(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EPROTO, syscall.EPERM, syscall.EINTR, syscall.EAGAIN} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// start serves a connection in a goroutine of its own, or refuses it.
func (s *Server) start(conn net.Conn) {
	s.connections.Add(1)
	slots, busy := s.slots, false
	select {
	case slots <- struct{}{}:
	default:
		s.busy.Add(1)
		slots, busy = s.spare, true
		select {
		case slots <- struct{}{}:
		default:
			_ = conn.Close()
			return
		}
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = conn.Close()
		<-slots
		return
	}
	s.conns[conn] = true
	s.running.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.running.Done()
		defer func() { <-slots }()
		defer s.drop(conn)
		in := &idleConn{Conn: conn}
		(&session{s: s, conn: conn, in: in, br: bufio.NewReaderSize(in, readBuffer), busy: busy}).serve()
	}()
}

// keep lists a host's connection for Close; if that was called, it closes it.
func (s *Server) keep(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close()
		return false
	}
	s.conns[conn] = true
	return true
}

func (s *Server) drop(conn net.Conn) {
	_ = conn.Close()
	s.mu.Lock()
	delete(s.conns, conn)
	s.mu.Unlock()
}

// Close ends everything: listeners, connections, what is being resolved or
// dialled. It waits for all of it, five seconds at most; an error says that a
// resolver or a callback has not returned by then. It may be called again.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.end()
	for l := range s.listeners {
		_ = l.Close()
	}
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(closeTimeout):
		return fmt.Errorf("the proxy's connections did not end within %v", closeTimeout)
	}
}

// Stats are the counters now.
func (s *Server) Stats() Stats {
	return Stats{
		Connections: s.connections.Load(),
		Active:      len(s.slots),
		Busy:        s.busy.Load(),
		Requests:    s.requests.Load(),
		Denials:     s.denials.Load(),
		FromWorker:  uint64(s.fromWorker.Load()),
		ToWorker:    uint64(s.toWorker.Load()),
	}
}

// tell counts and hands on what the policy refused.
func (s *Server) tell(p Protocol, host string, port uint16, f *failure) {
	if !answers[f.reason].denial {
		return
	}
	s.denials.Add(1)
	if s.opts.Denied != nil {
		s.opts.Denied(Event{Time: time.Now(), Protocol: p, Host: clip(host), Port: port, Address: f.addr,
			Reason: f.reason, Rule: f.rule, Detail: clip(f.text), Hint: f.hint})
	}
}

// readBuffer is what a connection's reader holds, in bytes.
const readBuffer = 4 << 10

// session is one connection of the worker.
type session struct {
	s    *Server
	conn net.Conn
	in   *idleConn // conn, with a deadline on each read once a head has been read
	br   *bufio.Reader
	busy bool // it is served only to be told that there are too many
}

func (c *session) serve() {
	_ = c.conn.SetReadDeadline(time.Now().Add(c.s.opts.HeadTimeout))
	first, err := c.br.Peek(1)
	if err != nil {
		return
	}
	switch first[0] {
	case 5:
		c.serveSOCKS5()
	case 4:
		c.refuseSOCKS4()
	default:
		c.serveHTTP()
	}
}

// tunnel hands the connection over, with what has been read already of both ends.
func (c *session) tunnel(up net.Conn, early []byte) {
	_ = c.conn.SetDeadline(time.Time{})
	c.s.tunnel(c.conn, up, buffered(c.br), early)
}

// buffered is what a reader holds.
func buffered(r *bufio.Reader) []byte {
	b, _ := r.Peek(r.Buffered())
	return b
}

// What is read of a connection after the last word to it, so that the word is not
// lost: closing with bytes unread is a reset, and the other end's system may drop
// what it has not read yet (RFC 9112, 9.6).
const (
	lingerBytes = 1 << 20
	lingerTime  = time.Second
)

// linger closes a connection in such a way.
func (c *session) linger() {
	half, ok := c.conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	c.in.idle = 0
	_ = c.conn.SetReadDeadline(time.Now().Add(lingerTime))
	buf := make([]byte, readBuffer)
	for total := 0; total < lingerBytes; {
		n, err := c.conn.Read(buf)
		if err != nil {
			return
		}
		total += n
	}
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// idleConn gives each read and write a deadline of its own, if idle is set.
type idleConn struct {
	net.Conn
	idle    time.Duration
	stopped atomic.Bool
}

func (c *idleConn) Read(p []byte) (int, error) {
	if c.idle > 0 {
		_ = c.SetReadDeadline(time.Now().Add(c.idle))
		if c.stopped.Load() {
			_ = c.SetReadDeadline(longAgo)
		}
	}
	return c.Conn.Read(p)
}

func (c *idleConn) Write(p []byte) (int, error) {
	if c.idle > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(c.idle))
	}
	return c.Conn.Write(p)
}

// stop ends the reads of another goroutine, now and later.
func (c *idleConn) stop() {
	c.stopped.Store(true)
	_ = c.SetReadDeadline(longAgo)
}
