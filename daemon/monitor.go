package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"sandboxd/backend"
	"sandboxd/daemon/internal/link"
	"sandboxd/internal/audit"
	"sandboxd/internal/listen"
	"sandboxd/internal/run"
	"sandboxd/policy"
	"sandboxd/protocol"
)

// Options configure a daemon.
type Options struct {
	// Socket says where and for whom it listens.
	Socket listen.Options
	// Listener is a socket that the service manager made; nil: it is made as Socket
	// says. Its mode is judged by whoever hands it in.
	Listener *listen.Listener
	// Version is the program's.
	Version string
	// Backends are the candidates for launches as a user, in the order of preference; a
	// user of nil is this process' own. It is called once for each user. Nil stands for
	// all of this build, as a daemon needs them.
	Backends func(*User) []backend.Backend
	// Features is what `sbx features --json` prints.
	Features func() any
	// Ceilings are what users may have at most.
	Ceilings Ceilings
	// FrontPath is the program to run as the front, with argv[0] [FrontName]; empty is
	// this one. FrontArgs are its arguments.
	FrontPath string
	FrontArgs []string
	// Audit is the log that each launch is in before it begins. It stays the caller's
	// to close, after Run. NoAudit says that there is none; one of the two is needed.
	Audit   *audit.Log
	NoAudit bool
	Log     *slog.Logger
}

// FrontName is the front's argv[0].
const FrontName = "sandboxd-front"

// Monitor is the half that can do things.
type Monitor struct {
	o        Options
	listener *listen.Listener
	log      *slog.Logger
	ceilings atomic.Pointer[Ceilings]
	room     room
	places   atomic.Int64  // of workers, that are held: see launch.hold
	begun    chan struct{} // closed when a front was ready for the first time
	abort    chan struct{} // closed when nothing is waited for any more
	begin    sync.Once
	aborting sync.Once

	mu       sync.Mutex
	front    *front // nil while there is none
	stopping bool
	waiting  map[int]int // connections that no front has yet, by user
	launches sync.WaitGroup
	ready    *sync.Cond // a front is there, or never will be
	// unaudited is why no launch is taken: an end is not in the audit log.
	unaudited error
	shared    run.Cache
	// candidates are the backends of users: see backendsOf.
	candidates map[string][]backend.Backend
	guarded    bool // a guard is there
}

// front is one life of the front, with all that belongs to it.
type front struct {
	link   *link.Link
	out    *link.Outbox
	cmd    *exec.Cmd
	ledger link.Ledger
	conns  map[link.Conn]*connection
	work   map[*launch]bool
	gone   bool
}

// connection is a client's, as far as the monitor has to know.
type connection struct {
	who      identity
	asker    audit.Request // what the log says of the client
	launches map[int64]*launch
}

// New opens the socket. Nothing is served before [Monitor.Run].
func New(o Options) (*Monitor, error) {
	m := &Monitor{o: o, log: o.Log, listener: o.Listener, begun: make(chan struct{}), abort: make(chan struct{})}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.o.FrontPath == "" {
		m.o.FrontPath = "/proc/self/exe"
	}
	if m.o.Backends == nil {
		m.o.Backends = Backends
	}
	m.ready, m.waiting, m.candidates = sync.NewCond(&m.mu), map[int]int{}, map[string][]backend.Backend{}
	m.SetCeilings(o.Ceilings)
	err := o.auditing()
	if err != nil {
		return nil, err
	}
	if o.NoAudit {
		m.log.Warn("there is no audit log: nobody will know what was launched")
	}
	if m.room, err = roomFor(o.Socket.Mode); err != nil {
		return nil, err
	}
	m.shared.Plans = m.room.plans
	if m.listener == nil {
		m.listener, err = listen.Open(o.Socket)
	}
	return m, err
}

// SetCeilings replaces the ceilings. They hold for what is asked from now on;
// workers and connections that there are stay.
func (m *Monitor) SetCeilings(c Ceilings) { m.ceilings.Store(&c) }

// Begun is closed when the daemon serves: a front is there and confined.
func (m *Monitor) Begun() <-chan struct{} { return m.begun }

// Abort ends a [Monitor.Run] that waits for workers.
func (m *Monitor) Abort() { m.aborting.Do(func() { close(m.abort) }) }

// Alive returns when the monitor could answer: it is asked by a watchdog, and hangs
// with what it is to watch. The error is that clients cannot find the socket.
func (m *Monitor) Alive() error {
	m.mu.Lock()
	f := m.front
	m.mu.Unlock()
	if f == nil {
		m.log.Debug("there is no front at the moment")
	}
	return m.listener.Check()
}

// Socket is the path of the socket.
func (m *Monitor) Socket() string { return m.listener.Path() }

// Back-off between lives of the front: one that has lived for a while begins anew.
const (
	firstPause  = 100 * time.Millisecond
	longestWait = 5 * time.Second
	longLife    = time.Minute
	// firstLives is how many fronts in a row may fail before any has served. Such a
	// daemon would never serve, and its manager should hear so.
	firstLives = 3
)

// Run serves until ctx is done, then takes no more launches, waits for those under
// way, at most for drain, and ends what is left.
func (m *Monitor) Run(ctx context.Context, drain time.Duration) error {
	defer m.listener.Close()
	g, err := m.startGuard()
	if err != nil {
		return err
	}
	unguarded := make(chan struct{})
	guarding, endGuard := context.WithCancel(context.Background())
	defer func() { // after all workers
		m.shared.Close()
		endGuard()
		<-unguarded
	}()
	go func() {
		defer close(unguarded)
		m.keepGuard(guarding, g)
	}()
	go m.sweep()
	accepting, stopAccepting := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- m.listener.Serve(accepting, m.accept) }()
	ended := make(chan error, 1)
	go func() { ended <- m.keepFront(ctx) }()
	select {
	case <-ctx.Done():
	case err = <-served:
	case err = <-ended:
		ended <- nil
	}
	stopAccepting()
	m.stop(drain)
	<-ended
	if ctx.Err() != nil { // that the listener says so too is no failure
		return nil
	}
	return err
}

// stop lets launches under way end, for a time.
func (m *Monitor) stop(drain time.Duration) {
	m.mu.Lock()
	m.stopping = true
	f := m.front
	m.ready.Broadcast()
	m.mu.Unlock()
	if f != nil {
		_ = f.out.Put(&link.Stopping{}, nil) // one that is gone need not hear it
	}
	done := make(chan struct{})
	go func() {
		m.launches.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-m.abort:
	case <-time.After(drain):
	}
	if f != nil {
		m.endFront(f, errStopping)
	}
	<-done
}

// keepFront lives the front's lives, one after the other. The error is that none of
// the first has served.
func (m *Monitor) keepFront(ctx context.Context) error {
	lives := 0
	for pause := firstPause; ; pause = min(2*pause, longestWait) {
		began := time.Now()
		err := m.oneFront()
		m.mu.Lock()
		stopping := m.stopping
		m.mu.Unlock()
		if stopping || ctx.Err() != nil {
			return nil
		}
		m.log.Error("the front has ended", "error", err)
		select {
		case <-m.begun:
		default:
			if lives++; lives >= firstLives {
				return fmt.Errorf("the front cannot start: %w", err)
			}
		}
		if time.Since(began) > longLife {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// oneFront starts a front and hears it until it ends, or says what none does.
func (m *Monitor) oneFront() error {
	f, err := m.startFront()
	if err != nil {
		return err
	}
	err = m.hear(f)
	m.endFront(f, err)
	werr := f.cmd.Wait()
	m.launches.Wait() // nothing of one life reaches into the next
	return errors.Join(err, werr)
}

func (m *Monitor) startFront() (*front, error) {
	l, theirs, err := link.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := &exec.Cmd{
		Path: m.o.FrontPath, Args: append([]string{FrontName}, m.o.FrontArgs...), Dir: "/", Env: []string{}, Stderr: os.Stderr, ExtraFiles: []*os.File{theirs},
		SysProcAttr: frontSysProcAttr(),
	}
	err = closeInherited()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("starting the front: %w", err)
	}
	f := &front{link: l, cmd: cmd, conns: map[link.Conn]*connection{}, work: map[*launch]bool{}}
	f.out = link.NewOutbox(l, func(err error) { m.endFront(f, err) })
	m.mu.Lock()
	stopping := m.stopping
	if !stopping {
		m.front = f
	}
	m.mu.Unlock()
	if stopping { // whoever stops has not seen it
		m.endFront(f, errStopping)
		return nil, errors.Join(errStopping, cmd.Wait())
	}
	return f, nil
}

var errStopping = errors.New("the daemon stops")

// endFront ends a front, and all workers that it was the way to.
func (m *Monitor) endFront(f *front, cause error) {
	m.mu.Lock()
	if m.front == f {
		m.front = nil
	}
	already := f.gone
	f.gone = true
	var work []*launch
	for l := range f.work {
		work = append(work, l)
	}
	m.mu.Unlock()
	if !already {
		m.log.Info("ending the front", "cause", cause, "workers", len(work))
	}
	_ = f.cmd.Process.Kill()
	f.out.Close()
	_ = f.link.Close()
	for _, l := range work {
		l.cancel(0)
	}
}

// accept hands a connection to the front.
func (m *Monitor) accept(c *net.UnixConn) {
	defer c.Close()
	peer, err := listen.PeerOf(c)
	if err != nil {
		m.log.Warn("a connection without a peer", "error", err)
		return
	}
	defer peer.Close()
	who, err := m.identify(peer)
	if err != nil {
		m.log.Warn("a connection is refused", "uid", peer.UID, "pid", peer.PID, "error", err)
		sayLast(c, protocol.Errorf(protocol.NotPermitted, "this daemon does not serve you"))
		return
	}
	var exe policy.Raw
	if path, err := peer.Exe(); err == nil { // for the log alone
		exe = policy.Raw(path)
	}
	file, err := c.File()
	if err != nil {
		m.log.Error("a connection cannot be handed on", "error", err)
		return
	}
	defer file.Close()
	asker := audit.Request{UID: int(peer.UID), GID: int(peer.GID), PID: peer.PID, Exe: exe}
	if last := m.admit(file, who, asker); last != nil {
		sayLast(c, last)
	}
}

// admit hands a connection to the front, once there is one, or says why not.
func (m *Monitor) admit(file *os.File, who identity, asker audit.Request) *protocol.Error {
	uid := uint32(who.uid) // of a user's daemon root is that user
	most := protocol.MaxConnections
	if own := m.ceiling(who).Connections; own > 0 {
		most = min(own, most)
	}
	tooMany := protocol.Errorf(protocol.TooManyConnections, "user %d has %d connections", uid, most)
	m.mu.Lock()
	defer m.mu.Unlock()
	all := 0
	for _, n := range m.waiting {
		all += n
	}
	switch {
	case m.waiting[who.uid] >= most:
		return tooMany
	case all >= m.room.connections:
		return protocol.Errorf(protocol.Overloaded, "%d connections wait already", all)
	}
	m.waiting[who.uid]++
	for !m.stopping && (m.front == nil || !m.front.ledger.Ready()) {
		m.ready.Wait()
	}
	if m.waiting[who.uid]--; m.waiting[who.uid] == 0 {
		delete(m.waiting, who.uid)
	}
	f := m.front
	switch {
	case m.stopping || f == nil:
		return protocol.Errorf(protocol.ShuttingDown, "the daemon is stopping")
	case f.ledger.Open(uid) >= most:
		return tooMany
	case len(f.conns) >= m.room.connections:
		return protocol.Errorf(protocol.Overloaded, "there are %d connections, for more of which the daemon has no descriptors", len(f.conns))
	}
	id := f.ledger.Accept(uid)
	asker.Conn = strconv.FormatUint(uint64(id), 10)
	f.conns[id] = &connection{who: who, asker: asker, launches: map[int64]*launch{}}
	m.tell(f, &link.Accepted{Conn: id, UID: uid, GID: uint32(asker.GID), PID: asker.PID, Left: most - f.ledger.Open(uid)}, nil, file)
	return nil
}

// sayLast tells a client why it is not served. It waits for nobody.
func sayLast(c *net.UnixConn, e *protocol.Error) {
	e.Fatal = true
	_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_ = protocol.NewWriter(c, protocol.MaxAnswer).Write(e)
}

// hear takes what the front says, until it ends or says what no front does.
func (m *Monitor) hear(f *front) error {
	for {
		msg, payload, files, err := f.link.Receive()
		if err != nil {
			return err
		}
		err = m.heard(f, msg, payload, files)
		if err != nil {
			return err
		}
	}
}

// heard carries out one message. The ledger decides under the lock; an error ends
// the front.
func (m *Monitor) heard(f *front, msg link.Message, payload []byte, files []*os.File) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := f.ledger.Hear(msg)
	var answer *protocol.Error
	if err != nil && !errors.As(err, &answer) {
		link.CloseFiles(files)
		return err
	}
	switch msg := msg.(type) {
	case *link.Ready:
		m.log.Info("the front is ready", "pid", f.cmd.Process.Pid, "posture", msg.Posture)
		m.tellChecks()
		m.ready.Broadcast()
		m.begin.Do(func() { close(m.begun) })
	case *link.Launch:
		c := f.conns[msg.Conn]
		l := newLaunch(m, f, msg, c, files)
		if most := m.ceiling(c.who).Workers; most > 0 && f.workersOf(c.who.uid) >= most {
			l.refusal = protocol.Errorf(protocol.Overloaded, "user %d has %d workers, as many as may be", c.who.uid, most)
		} else if len(f.work) >= m.room.workers {
			l.refusal = protocol.Errorf(protocol.Overloaded, "there are %d workers, for more of which the daemon has no descriptors", len(f.work))
		}
		if !m.guarded {
			l.refusal = errUnguarded
		}
		c.launches[msg.Launch] = l
		f.work[l] = true
		m.launches.Add(1)
		go l.run(payload)
	case *link.Cancel:
		if answer == nil {
			grace := time.Duration(msg.Grace) * time.Millisecond
			if l := f.find(msg.Conn, msg.Launch, msg.Worker); l != nil {
				go l.cancel(grace)
			}
		}
		m.answer(f, msg.Conn, msg.Ask, answer, nil)
	case *link.Signal:
		if answer == nil {
			answer = f.find(0, 0, msg.Worker).signal(msg.Signal)
		}
		m.answer(f, msg.Conn, msg.Ask, answer, nil)
	case *link.Resize:
		if answer == nil {
			answer = f.find(0, 0, msg.Worker).resize(msg.Rows, msg.Cols)
		}
		m.answer(f, msg.Conn, msg.Ask, answer, nil)
	case *link.Policy:
		var text []byte
		if answer == nil {
			text, answer = f.find(0, 0, msg.Worker).policyText()
		}
		m.answer(f, msg.Conn, msg.Ask, answer, text)
	case *link.Features:
		conn, ask := msg.Conn, msg.Ask
		go func() {
			text, err := json.Marshal(m.o.Features())
			var answer *protocol.Error
			if err != nil {
				answer = protocol.Errorf(protocol.Internal, "%v", err)
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			m.answer(f, conn, ask, answer, text)
		}()
	case *link.Hangup:
		c := f.conns[msg.Conn]
		delete(f.conns, msg.Conn)
		for _, l := range c.launches {
			if !l.keep.Load() {
				go l.cancel(0)
			}
		}
	}
	return nil
}

// workersOf counts a user's launches under way.
func (f *front) workersOf(uid int) (n int) {
	for l := range f.work {
		if l.who.uid == uid {
			n++
		}
	}
	return n
}

// find is the launch by its connection's id, or of a worker.
func (f *front) find(c link.Conn, id int64, worker string) *launch {
	if id != 0 {
		return f.conns[c].launches[id]
	}
	for l := range f.work {
		if l.worker == worker {
			return l
		}
	}
	return nil
}

func (m *Monitor) answer(f *front, c link.Conn, ask uint64, err *protocol.Error, payload []byte) {
	if _, open := f.ledger.UID(c); !open {
		return
	}
	a := &link.Answer{Conn: c, Ask: ask}
	if err != nil {
		a.Code, a.Message, a.Hint = string(err.Code), err.Message, err.Hint
	}
	m.tell(f, a, payload)
}

// tellChecks tells the front, which answers for the daemon's health, how what launches
// depend on is. It is called under the lock.
func (m *Monitor) tellChecks() {
	if m.front == nil || !m.front.ledger.Ready() {
		return
	}
	checks := []*link.Check{{Name: "guard", OK: m.guarded}}
	if !m.guarded {
		checks[0].Message, checks[0].Hint = errUnguarded.Message, "no launch begins until it is there; the daemon's log says why it ended"
	}
	if m.o.Audit != nil {
		audit := &link.Check{Name: "audit", OK: m.unaudited == nil}
		if !audit.OK {
			audit.Message, audit.Hint = m.unaudited.Error(), "see to the disk of the audit log, and start the daemon again: until then no launch is taken"
		}
		checks = append(checks, audit)
	}
	for _, c := range checks {
		m.tell(m.front, c, nil)
	}
}

// tell says something to the front, and waits for nothing. One that does not listen
// is ended.
func (m *Monitor) tell(f *front, msg link.Message, payload []byte, files ...*os.File) {
	if f.gone {
		return
	}
	if err := f.out.Put(msg, payload, files...); err != nil {
		go m.endFront(f, err)
	}
}
