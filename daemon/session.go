package daemon

import (
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/internal/link"
	"sandboxd/internal/listen"
	"sandboxd/protocol"
)

const (
	// helloTime is how long a client may take to say hello.
	helloTime = 10 * time.Second
	// readerTime is how long a client may take to read what is said to it.
	readerTime = 30 * time.Second
	// stdinWindow is what a client may send ahead of the worker's reading, in bytes:
	// about what a pipe holds.
	stdinWindow = 64 << 10
)

// session is a client's connection.
type session struct {
	hall *hall
	id   link.Conn
	uid  int64
	conn *net.UnixConn
	// inbox is what is to be done with what the monitor said, in its order.
	inbox chan func(*session)
	waits atomic.Bool // for bytes of the client

	saying sync.Mutex // of one message
	buf    []byte

	mu       sync.Mutex
	ended    bool
	inFlight protocol.InFlight
	launches map[int64]*stage
	asks     map[uint64]asked
	lastAsk  uint64
	subs     map[int64]*subscription
}

// asked is a request that the monitor has to answer.
type asked struct {
	id  int64
	of  string
	yes func(payload []byte) protocol.Message
	// late, if it is set, is the answer if the worker has ended meanwhile.
	late func() (protocol.Message, bool)
}

// incoming reads frames with the descriptors that come along.
type incoming struct {
	conn *net.UnixConn
	fds  []int
	// waits is set while it waits for bytes, and while they are not taken.
	waits *atomic.Bool
}

func (r *incoming) Read(p []byte) (int, error) {
	r.waits.Store(true)
	defer r.waits.Store(false)
	n, fds, err := listen.Recv(r.conn, p, protocol.MaxDescriptors-len(r.fds))
	r.fds = append(r.fds, fds...)
	return n, err
}

// take returns what has come since the last time.
func (r *incoming) take() []*os.File {
	var files []*os.File
	for _, fd := range r.fds {
		files = append(files, os.NewFile(uintptr(fd), "passed"))
	}
	r.fds = nil
	return files
}

// serve is the session's life.
func (s *session) serve() {
	defer s.end()
	in := &incoming{conn: s.conn, waits: &s.waits}
	defer func() { link.CloseFiles(in.take()) }()
	frames := protocol.NewReader(in, protocol.MaxFrame)
	_ = s.conn.SetReadDeadline(time.Now().Add(helloTime))
	greeted := false
	for {
		frame, err := frames.ReadFrame()
		files := in.take()
		if err != nil {
			link.CloseFiles(files)
			s.lastWord(err, greeted)
			return
		}
		m, err := protocol.ParseRequest(frame)
		if err == nil {
			if want := descriptorsOf(m); len(files) != want {
				err = protocol.Errorf(protocol.BadDescriptors, "%d descriptors came with a frame that names %d", len(files), want).For(protocol.ID(m), m.Type())
			}
		}
		if err != nil {
			err = s.ofAnother(err)
		}
		_, hello := m.(*protocol.ClientHello)
		switch {
		case err == nil && hello && greeted:
			err = protocol.Errorf(protocol.HelloRepeated, "the connection is open").For(0, "hello")
		case err == nil && !hello && !greeted:
			err = protocol.Errorf(protocol.HelloExpected, "a %s before hello", m.Type()).For(protocol.ID(m), m.Type())
		case err == nil && hello:
			if err = s.greet(m.(*protocol.ClientHello)); err == nil {
				greeted = true
				s.hall.known(s)
				_ = s.conn.SetReadDeadline(time.Time{})
			}
		case err == nil:
			err = s.hear(m, frame, files)
			files = nil
		}
		link.CloseFiles(files)
		var wrong *protocol.Error
		switch {
		case err == nil:
		case !errors.As(err, &wrong):
			return
		case s.say(wrong) != nil || wrong.Fatal || !greeted && !hello:
			return
		}
	}
}

// ofAnother is what is wrong with a request. One whose id is in flight is answered
// with that, whatever else is wrong: or its answer would be taken for the other's.
func (s *session) ofAnother(err error) error {
	var wrong *protocol.Error
	if !errors.As(err, &wrong) || wrong.Fatal || wrong.ID == 0 || wrong.Of == "stdin" || wrong.Of == "credit" {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.inFlight.Has(wrong.ID) {
		return err
	}
	return protocol.Errorf(protocol.IDInUse, "request %d is in flight", wrong.ID).For(wrong.ID, wrong.Of)
}

func descriptorsOf(m protocol.Message) int {
	if l, ok := m.(*protocol.Launch); ok {
		return l.Attached()
	}
	return 0
}

// lastWord tells a client why nothing more of it is read.
func (s *session) lastWord(err error, greeted bool) {
	var wrong *protocol.Error
	var late net.Error
	switch {
	case errors.As(err, &wrong):
	case errors.As(err, &late) && late.Timeout() && !greeted:
		wrong = protocol.Errorf(protocol.TooSlow, "no hello came within %v", helloTime)
	case errors.Is(err, listen.ErrTooManyFDs), errors.Is(err, listen.ErrTruncated), errors.Is(err, listen.ErrNoBytes):
		wrong = protocol.Errorf(protocol.TooManyDescriptors, "%v", err)
		wrong.Fatal = true // its bytes are lost
	default:
		return
	}
	_ = s.say(wrong)
}

// silent tells whether all that the client has sent was read and looked at. A hello
// that only waits for this process to run is none of a silent one's.
func (s *session) silent() bool {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return true
	}
	nothing := true
	_ = raw.Control(func(fd uintptr) {
		// Descriptors that come along are not taken where there is no room for them.
		_, _, _, _, err := unix.Recvmsg(int(fd), make([]byte, 1), nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		nothing = err != nil
	})
	return nothing && s.waits.Load()
}

// shed ends a session that has not said hello, for others that wait.
func (s *session) shed() {
	e := protocol.Errorf(protocol.TooSlow, "no hello came, and others wait")
	e.Fatal = true
	sayLast(s.conn, e)
	_ = s.conn.Close()
}

// say sends one message. A client that does not read is hung up on.
func (s *session) say(m protocol.Message) error {
	s.saying.Lock()
	defer s.saying.Unlock()
	frame, err := protocol.AppendFrame(s.buf[:0], m, protocol.MaxAnswer)
	if err != nil {
		e := protocol.Errorf(protocol.Internal, "an answer could not be written: %v", err)
		if frame, err = protocol.AppendFrame(s.buf[:0], e.For(protocol.ID(m), ""), protocol.MaxAnswer); err != nil {
			return err
		}
	}
	if cap(frame) <= 16<<10 { // a larger one is not kept for each client
		s.buf = frame
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(readerTime))
	if _, err := s.conn.Write(frame); err != nil {
		_ = s.conn.Close()
		return io.ErrClosedPipe
	}
	return nil
}

// end lets go of everything.
func (s *session) end() {
	_ = s.conn.Close()
	s.mu.Lock()
	s.ended = true
	launches, subs := s.launches, s.subs
	s.launches, s.subs = nil, nil
	s.mu.Unlock()
	for _, l := range launches {
		l.end()
	}
	for _, sub := range subs {
		s.unsubscribe(sub)
	}
}

func (s *session) greet(m *protocol.ClientHello) error {
	version, err := protocol.Negotiate(m)
	if err != nil {
		return err
	}
	mode := "user"
	if s.hall.o.System {
		mode = "system"
	}
	return s.say(&protocol.DaemonHello{
		Version: version, Daemon: protocol.Peer{Name: "sandboxd", Version: s.hall.o.Version}, Capabilities: s.hall.can(),
		Limits: protocol.DefaultLimits(), Mode: mode, UID: s.uid,
	})
}

// hear carries out one request. The files are its own from here on.
func (s *session) hear(m protocol.Message, frame []byte, files []*os.File) error {
	defer link.CloseFiles(files)
	switch m := m.(type) {
	case *protocol.Stdin:
		return s.stdin(m)
	case *protocol.Credit:
		return s.credit(m)
	}
	id := protocol.ID(m)
	s.mu.Lock()
	err := s.inFlight.Open(id)
	s.mu.Unlock()
	if err != nil {
		var wrong *protocol.Error
		if errors.As(err, &wrong) {
			return wrong.For(id, m.Type())
		}
		return err
	}
	answer := func(a protocol.Message) error {
		s.close(id)
		return s.say(a)
	}
	no := func(code protocol.Code, format string, args ...any) error {
		return answer(protocol.Errorf(code, format, args...).For(id, m.Type()))
	}
	switch m := m.(type) {
	case *protocol.Launch:
		s.hall.mu.Lock()
		stopping := s.hall.stopping
		s.hall.mu.Unlock()
		if stopping {
			return no(protocol.ShuttingDown, "the daemon is stopping")
		}
		s.launch(m, frame, files)
		return nil
	case *protocol.Cancel:
		grace := int64(-1)
		if m.Grace != nil {
			grace = *m.Grace
		}
		s.giveUp(m.Launch, m.Worker)
		s.askMonitor(&link.Cancel{Launch: m.Launch, Worker: m.Worker, Grace: grace}, asked{id: id, of: m.Type(), yes: func([]byte) protocol.Message { return &protocol.CancelResult{ID: id} }})
		return nil
	case *protocol.Signal:
		worker, ok := s.workerOf(m.Launch, m.Worker)
		if !ok {
			return no(protocol.NotFound, "the launch has no worker yet, or none more")
		}
		s.askMonitor(&link.Signal{Worker: worker, Signal: m.Signal}, asked{id: id, of: m.Type(), yes: func([]byte) protocol.Message { return &protocol.SignalResult{ID: id} }})
		return nil
	case *protocol.Resize:
		worker, ok := s.workerOf(m.Launch, m.Worker)
		if !ok {
			return no(protocol.NotFound, "the launch has no worker yet, or none more")
		}
		s.askMonitor(&link.Resize{Worker: worker, Rows: uint16(m.Size.Rows), Cols: uint16(m.Size.Cols)}, asked{id: id, of: m.Type(), yes: func([]byte) protocol.Message { return &protocol.ResizeResult{ID: id} }})
		return nil
	case *protocol.Features:
		s.askMonitor(&link.Features{}, asked{id: id, of: m.Type(), yes: func(p []byte) protocol.Message {
			return &protocol.FeaturesResult{ID: id, Features: protocol.Object(p)}
		}})
		return nil
	case *protocol.List:
		return answer(&protocol.ListResult{ID: id, Workers: s.hall.list(s.uid, m.Ended)})
	case *protocol.Inspect:
		w, ok := s.hall.inspect(s.uid, m.Worker)
		if !ok {
			return no(protocol.NotFound, "no such worker")
		}
		if w.info.State == "ended" { // its policy is in its report
			return answer(&protocol.InspectResult{ID: id, Info: w.info, Report: w.report})
		}
		s.askMonitor(&link.Policy{Worker: m.Worker}, asked{
			id: id, of: m.Type(),
			yes: func(p []byte) protocol.Message {
				return &protocol.InspectResult{ID: id, Info: w.info, Policy: protocol.Object(p)}
			},
			late: func() (protocol.Message, bool) {
				w, ok := s.hall.inspect(s.uid, m.Worker)
				return &protocol.InspectResult{ID: id, Info: w.info, Report: w.report}, ok
			},
		})
		return nil
	case *protocol.Health:
		return answer(s.health(id))
	case *protocol.Subscribe:
		return s.subscribe(m)
	case *protocol.Unsubscribe:
		s.mu.Lock()
		sub := s.subs[m.Subscription]
		s.mu.Unlock()
		if sub == nil {
			return no(protocol.NotFound, "no such subscription")
		}
		s.unsubscribe(sub)
		return answer(&protocol.UnsubscribeResult{ID: id})
	case *protocol.Ping:
		return answer(&protocol.Pong{ID: id})
	}
	return no(protocol.UnknownType, "a %s is nothing to ask", m.Type())
}

func (s *session) close(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight.Close(id)
}

// askMonitor passes a request on, with the session's number and one for the answer.
func (s *session) askMonitor(m link.Message, a asked) {
	s.mu.Lock()
	s.lastAsk++
	ask := s.lastAsk
	s.asks[ask] = a
	s.mu.Unlock()
	switch m := m.(type) {
	case *link.Cancel:
		m.Conn, m.Ask = s.id, ask
	case *link.Signal:
		m.Conn, m.Ask = s.id, ask
	case *link.Resize:
		m.Conn, m.Ask = s.id, ask
	case *link.Features:
		m.Conn, m.Ask = s.id, ask
	case *link.Policy:
		m.Conn, m.Ask = s.id, ask
	}
	s.hall.ask(m, nil)
}

func (s *session) answered(m *link.Answer, payload []byte) {
	s.mu.Lock()
	a, ok := s.asks[m.Ask]
	delete(s.asks, m.Ask)
	s.mu.Unlock()
	if !ok {
		return
	}
	s.close(a.id)
	if m.Code == "" {
		_ = s.say(a.yes(payload))
		return
	}
	if a.late != nil && m.Code == string(protocol.NotFound) {
		if late, ok := a.late(); ok {
			_ = s.say(late)
			return
		}
	}
	e := protocol.Errorf(protocol.Code(m.Code), "%s", m.Message)
	if m.Hint != "" {
		e.Hint = m.Hint
	}
	_ = s.say(e.For(a.id, a.of))
}

// giveUp notes that a launch of this session is canceled. One of another's worker
// leaves that one's outputs to whom they go.
func (s *session) giveUp(launch int64, worker string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, l := range s.launches {
		l.mu.Lock()
		if id == launch || worker != "" && l.worker == worker {
			l.canceled = true
		}
		l.mu.Unlock()
		l.wake()
	}
}

// workerOf is the worker that a request names, or its launch's.
func (s *session) workerOf(launch int64, worker string) (string, bool) {
	if launch == 0 {
		return worker, true
	}
	s.mu.Lock()
	l := s.launches[launch]
	s.mu.Unlock()
	if l == nil {
		return "", false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.worker, l.worker != ""
}

func (s *session) health(id int64) *protocol.HealthResult {
	h := s.hall
	r := &protocol.HealthResult{ID: id, Status: "ok", Uptime: time.Since(h.began).Milliseconds()}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(h.checks)) {
		c := h.checks[name]
		if !c.OK {
			r.Status = "degraded"
		}
		r.Checks = append(r.Checks, protocol.HealthCheck{Name: c.Name, OK: c.OK, Message: c.Message, Hint: c.Hint})
	}
	if h.stopping {
		r.Status = "stopping"
	}
	for _, o := range h.sessions {
		if o.uid == s.uid {
			r.Connections++
		}
	}
	for _, w := range h.workers {
		if w.info.UID == s.uid && w.info.State != "ended" {
			r.Workers++
		}
	}
	return r
}

func (s *session) subscribe(m *protocol.Subscribe) error {
	sub := &subscription{s: s, id: m.ID, kinds: map[string]bool{}, wake: make(chan struct{}, 1)}
	answer := &protocol.Subscribed{ID: m.ID, Events: []string{}}
	for _, k := range []string{protocol.EventWorkerStarted, protocol.EventWorkerEnded, protocol.EventStopping} {
		for _, asked := range m.Events {
			if k == asked && !sub.kinds[k] {
				sub.kinds[k] = true
				answer.Events = append(answer.Events, k)
			}
		}
	}
	if err := s.say(answer); err != nil {
		return err
	}
	s.mu.Lock()
	if s.subs == nil {
		s.mu.Unlock()
		return io.ErrClosedPipe
	}
	s.subs[m.ID] = sub
	s.mu.Unlock()
	s.hall.mu.Lock()
	s.hall.subscribers[sub] = true
	s.hall.mu.Unlock()
	go sub.feed()
	return nil
}

// unsubscribe ends a subscription, whose final answer comes after what is queued.
func (s *session) unsubscribe(sub *subscription) {
	s.hall.mu.Lock()
	delete(s.hall.subscribers, sub)
	s.hall.mu.Unlock()
	s.mu.Lock()
	delete(s.subs, sub.id)
	s.mu.Unlock()
	sub.mu.Lock()
	if sub.closed {
		sub.mu.Unlock()
		return
	}
	sub.closed = true
	queue, lost := sub.queue, sub.lost
	sub.queue = nil
	sub.mu.Unlock()
	close(sub.wake)
	for _, e := range queue {
		_ = s.say(e)
	}
	s.close(sub.id)
	_ = s.say(&protocol.SubscribeResult{ID: sub.id, Lost: lost})
}
