package daemon

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"sandboxd/daemon/internal/link"
	"sandboxd/protocol"
)

// frontLink is the front's descriptor for its link.
const frontLink = 3

// FrontOptions are what the front has to know, beside what the monitor tells.
type FrontOptions struct {
	Version string
	// Confine gives up all rights, before anything of a stranger is read. It returns
	// what it found of its own confinement, for the log.
	Confine func() (string, error)
	System  bool
}

// Front is the front's life. It ends with the link.
func Front(o FrontOptions) error {
	posture, err := o.Confine()
	if err != nil {
		return fmt.Errorf("the front cannot be confined: %w", err)
	}
	l, err := link.Front(os.NewFile(frontLink, "link"))
	if err != nil {
		return err
	}
	if err := l.Send(&link.Ready{Posture: posture}, nil); err != nil {
		return err
	}
	h := &hall{o: o, link: l, began: time.Now(), sessions: map[link.Conn]*session{}, strangers: map[int64][]*session{}, asked: map[ask]protocol.WorkerInfo{}, workers: map[string]*worker{}, subscribers: map[*subscription]bool{}, checks: map[string]*link.Check{}}
	for {
		m, payload, files, err := l.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		h.hear(m, payload, files)
	}
}

// hall is what the front's sessions share.
type hall struct {
	o     FrontOptions
	link  *link.Link
	began time.Time

	mu          sync.Mutex
	stopping    bool
	checks      map[string]*link.Check
	sessions    map[link.Conn]*session
	strangers   map[int64][]*session        // that have not said hello, by user, the oldest first
	asked       map[ask]protocol.WorkerInfo // launches that have not started
	workers     map[string]*worker          // under way, and those that have ended lately
	past        map[int64]*past             // of users, what of workers has ended
	subscribers map[*subscription]bool
}

// ask is a launch by its connection.
type ask struct {
	conn   link.Conn
	launch int64
}

// worker is what is remembered of one.
type worker struct {
	info   protocol.WorkerInfo
	report protocol.Object
}

// can are the capabilities.
func (h *hall) can() []protocol.Capability {
	return protocol.History()
}

// past is what is remembered of a user's workers that have ended.
type past struct {
	names []string // the oldest first
	bytes int      // of their reports
}

// How many workers of a user that have ended are listed still, and how many bytes
// their reports may have together; and that of all users.
const (
	remembered      = 256
	rememberedBytes = 4 << 20
	rememberedOfAll = 16
)

// remember notes a worker's end. When there are too many of its user, that user's
// oldest go; when there are too many of all, those of the user who has most.
func (h *hall) remember(w *worker, report protocol.Object) {
	w.info.State, w.info.Ended = "ended", time.Now().UnixMilli()
	w.report = report
	if h.past == nil {
		h.past = map[int64]*past{}
	}
	own := h.past[w.info.UID]
	if own == nil {
		own = &past{}
		h.past[w.info.UID] = own
	}
	own.names = append(own.names, w.info.Worker)
	own.bytes += len(report)
	for len(own.names) > remembered || own.bytes > rememberedBytes && len(own.names) > 0 {
		h.forgetOldest(w.info.UID)
	}
	for {
		names, bytes, most := 0, 0, w.info.UID
		for uid, p := range h.past {
			names, bytes = names+len(p.names), bytes+p.bytes
			if m := h.past[most]; m == nil || p.bytes > m.bytes {
				most = uid
			}
		}
		if names <= rememberedOfAll*remembered && bytes <= rememberedOfAll*rememberedBytes {
			return
		}
		h.forgetOldest(most)
	}
}

func (h *hall) forgetOldest(uid int64) {
	p := h.past[uid]
	p.bytes -= len(h.workers[p.names[0]].report)
	delete(h.workers, p.names[0])
	if p.names = slices.Delete(p.names, 0, 1); len(p.names) == 0 {
		delete(h.past, uid)
	}
}

// ask sends to the monitor. Without it there is nothing to do here.
func (h *hall) ask(m link.Message, payload []byte, files ...*os.File) {
	if err := h.link.Send(m, payload, files...); err != nil {
		_ = h.link.Close() // Front returns
	}
}

// hear takes what the monitor says.
func (h *hall) hear(m link.Message, payload []byte, files []*os.File) {
	switch m := m.(type) {
	case *link.Accepted:
		h.accepted(m, files[0])
	case *link.Started:
		h.begin(m)
		if !h.deliver(m.Conn, func(s *session) { s.started(m, files) }) {
			link.CloseFiles(files)
		}
	case *link.Ended:
		h.ends(m, payload)
	case *link.Refused:
		h.forget(m.Conn, m.Launch)
		h.deliver(m.Conn, func(s *session) {
			e := protocol.Errorf(protocol.Code(m.Code), "%s", m.Message)
			e.Field = m.Field
			if m.Hint != "" {
				e.Hint = m.Hint
			}
			s.finish(m.Launch, e.For(m.Launch, "launch"))
		})
	case *link.Planned:
		h.forget(m.Conn, m.Launch)
		h.deliver(m.Conn, func(s *session) {
			s.finish(m.Launch, &protocol.Planned{ID: m.Launch, Plan: protocol.Object(payload)})
		})
	case *link.Answer:
		h.deliver(m.Conn, func(s *session) { s.answered(m, payload) })
	case *link.Check:
		h.mu.Lock()
		h.checks[m.Name] = m
		h.mu.Unlock()
	case *link.Stopping:
		h.mu.Lock()
		h.stopping = true
		h.mu.Unlock()
		h.publish(nil, &protocol.Event{Kind: protocol.EventStopping})
	}
}

// inbox is how much the monitor can have said to a session that has not read it:
// more than a start, an end and an answer for each request in flight.
const inbox = 4 * protocol.MaxRequests

// deliver has a session do something, which may wait for its client, beside all
// others. It is false if the session has ended.
func (h *hall) deliver(c link.Conn, do func(*session)) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[c]
	if s == nil {
		return false
	}
	select {
	case s.inbox <- do:
		return true
	default:
		_ = s.conn.Close() // cannot be, or it is long dead
		return false
	}
}

func (h *hall) accepted(m *link.Accepted, file *os.File) {
	conn, err := net.FileConn(file)
	_ = file.Close()
	u, ok := conn.(*net.UnixConn)
	if err != nil || !ok {
		h.ask(&link.Hangup{Conn: m.Conn}, nil)
		return
	}
	s := &session{hall: h, id: m.Conn, uid: int64(m.UID), conn: u, inbox: make(chan func(*session), inbox), launches: map[int64]*stage{}, asks: map[uint64]asked{}, subs: map[int64]*subscription{}}
	h.mu.Lock()
	h.sessions[m.Conn] = s
	oldest := h.stranger(s, m.Left)
	h.mu.Unlock()
	if oldest != nil {
		go oldest.shed()
	}
	go func() {
		for do := range s.inbox {
			do(s)
		}
	}()
	go func() {
		s.serve()
		h.known(s)
		h.mu.Lock()
		delete(h.sessions, m.Conn)
		close(s.inbox)
		h.mu.Unlock()
		h.ask(&link.Hangup{Conn: m.Conn}, nil)
	}()
}

// spare is how many connections of a user are kept free of those that say nothing,
// for one that does.
const spare = protocol.MaxConnections / 4

// stranger notes a connection without a hello, and returns the one that has to go for
// it: the oldest silent one, if its user may have only so many more.
func (h *hall) stranger(s *session, left int) (oldest *session) {
	list := h.strangers[s.uid]
	if left < spare {
		if i := slices.IndexFunc(list, (*session).silent); i >= 0 {
			oldest = list[i]
			list = slices.Delete(list, i, i+1)
		}
	}
	h.strangers[s.uid] = append(list, s)
	return oldest
}

// known notes that a connection is a stranger's no longer.
func (h *hall) known(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.strangers[s.uid]
	if i := slices.Index(list, s); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if h.strangers[s.uid] = list; len(list) == 0 {
		delete(h.strangers, s.uid)
	}
}

// want notes a launch.
func (h *hall) want(c link.Conn, launch int64, info protocol.WorkerInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked[ask{c, launch}] = info
}

func (h *hall) forget(c link.Conn, launch int64) protocol.WorkerInfo {
	h.mu.Lock()
	defer h.mu.Unlock()
	info := h.asked[ask{c, launch}]
	delete(h.asked, ask{c, launch})
	return info
}

// begin notes a worker.
func (h *hall) begin(m *link.Started) {
	info := h.forget(m.Conn, m.Launch)
	info.Worker, info.State, info.PID, info.Started = m.Worker, "running", int64(m.PID), time.Now().UnixMilli()
	info.Mode, info.Net, info.Backend, info.Level = m.Mode, m.Net, m.Backend, m.Level
	h.mu.Lock()
	h.workers[info.Worker] = &worker{info: info}
	h.mu.Unlock()
	h.publish(&info, &protocol.Event{Kind: protocol.EventWorkerStarted, Info: &info})
}

// ends notes the end of a launch, and passes it on.
func (h *hall) ends(m *link.Ended, payload []byte) {
	text := protocol.Object(payload)
	h.forget(m.Conn, m.Launch)
	h.mu.Lock()
	w := h.workers[m.Worker]
	var info protocol.WorkerInfo
	if w != nil {
		h.remember(w, text)
		info = w.info
	}
	h.mu.Unlock()
	if w != nil && h.told(&info, protocol.EventWorkerEnded) {
		h.publish(&info, &protocol.Event{Kind: protocol.EventWorkerEnded, Info: &info, Outcome: outcomeOf(payload)})
	}
	h.deliver(m.Conn, func(s *session) { s.exited(m, text) })
}

// list is what a user may see, the latest first.
func (h *hall) list(uid int64, ended bool) (list []protocol.WorkerInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range maps.Values(h.workers) {
		if (w.info.UID == uid || uid == 0) && (ended || w.info.State != "ended") {
			list = append(list, w.info)
		}
	}
	slices.SortFunc(list, func(a, b protocol.WorkerInfo) int { return int(b.Started - a.Started) })
	return list
}

func (h *hall) inspect(uid int64, name string) (worker, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.workers[name]
	if w == nil || w.info.UID != uid && uid != 0 {
		return worker{}, false
	}
	return *w, true
}

// subscription gets events, some of which it may lose.
type subscription struct {
	s      *session
	id     int64
	kinds  map[string]bool
	mu     sync.Mutex
	queue  []*protocol.Event
	seq    int64
	lost   int64
	wake   chan struct{}
	closed bool
}

// queued is how many events wait for a slow subscriber.
const queued = 256

// told tells whether anybody is to be told of such an event of a worker.
func (h *hall) told(of *protocol.WorkerInfo, kind string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for sub := range h.subscribers {
		if (sub.s.uid == of.UID || sub.s.uid == 0) && sub.kinds[kind] {
			return true
		}
	}
	return false
}

// publish tells the subscribers of an event of a worker, or of all of them.
func (h *hall) publish(of *protocol.WorkerInfo, e *protocol.Event) {
	e.At = time.Now().UnixMilli()
	h.mu.Lock()
	defer h.mu.Unlock()
	for sub := range h.subscribers {
		if of == nil || sub.s.uid == of.UID || sub.s.uid == 0 {
			sub.put(*e)
		}
	}
}

func (sub *subscription) put(e protocol.Event) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if sub.closed || !sub.kinds[e.Kind] {
		return
	}
	sub.seq++
	if len(sub.queue) >= queued {
		sub.lost++
		return
	}
	e.ID, e.Seq, e.Lost = sub.id, sub.seq, sub.lost
	sub.lost = 0
	sub.queue = append(sub.queue, &e)
	select {
	case sub.wake <- struct{}{}:
	default:
	}
}

// feed sends events until the subscription ends, then its final answer.
func (sub *subscription) feed() {
	for range sub.wake {
		for {
			sub.mu.Lock()
			queue := sub.queue
			sub.queue = nil
			sub.mu.Unlock()
			if len(queue) == 0 {
				break
			}
			for _, e := range queue {
				if sub.s.say(e) != nil {
					return
				}
			}
		}
	}
}
