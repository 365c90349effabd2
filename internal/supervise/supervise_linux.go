package supervise

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sandboxd/internal/sys"

	"golang.org/x/sys/unix"
)

// Supervisor answers the trapped calls of one worker's tree.
type Supervisor struct {
	cfg      Config
	listener int
	wake     int // eventfd: closing a listener does not wake its reader
	shm      int
	roots    roots
	ruleset  int
	root     identity // the launcher's own root directory
	netns    fileID
	pid      int
	ruid     int
	same     bool // the launcher's threads have the worker's credentials
	own      *ownSet
	pool     pool
	lost     journal
	turns    turns

	closing chan struct{}
	slots   chan struct{}
	calls   sync.WaitGroup
	loop    chan struct{} // closed when the loop has ended
	close   sync.Once
	closed  chan struct{} // closed when everything is released

	stats struct{ calls, performed, continued, denied, gaps, replayed atomic.Uint64 }
}

// Start supervises the calls that arrive on listenerFD, which it owns from here
// on, also when it returns an error.
func Start(listenerFD int, cfg Config) (*Supervisor, error) {
	s := &Supervisor{
		cfg:      cfg,
		listener: listenerFD,
		wake:     -1,
		shm:      -1,
		ruleset:  -1,
		pid:      os.Getpid(),
		ruid:     os.Getuid(),
		closing:  make(chan struct{}),
		slots:    make(chan struct{}, maxInFlight),
		loop:     make(chan struct{}),
		closed:   make(chan struct{}),
	}
	s.own = newOwnSet()
	if err := s.open(); err != nil {
		s.release()
		return nil, fmt.Errorf("seccomp supervisor: %w", err)
	}
	s.pool.enter = sys.DeputyCreds{UID: cfg.UID, GID: cfg.GID, Groups: cfg.Groups, DropCaps: cfg.DropCaps, Ruleset: s.ruleset}
	s.same = sys.DeputySame(s.pool.enter)
	go s.serve()
	return s, nil
}

func (s *Supervisor) open() error {
	unix.CloseOnExec(s.listener)
	if err := sys.NotifSizes(); err != nil {
		return err
	}
	var err error
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	if s.root, err = identify("/"); err != nil {
		return fmt.Errorf("statx /: %w", err)
	}
	if s.netns, err = statID("/proc/self/ns/net"); err != nil {
		return fmt.Errorf("stat /proc/self/ns/net: %w", err)
	}
	if s.cfg.Shm != "" {
		if s.shm, err = unix.Open(s.cfg.Shm, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open shm directory %s: %w", s.cfg.Shm, err)
		}
	}
	// A root or a socket that is not there grants nothing: a gap, no failure.
	for _, path := range s.cfg.WritableRoots {
		if err := s.roots.add(path); err != nil {
			s.missing(path, "writable root", err)
		}
	}
	for _, path := range s.cfg.AllowSockets {
		if err := s.own.allow(path); err != nil {
			s.missing(path, "allowed socket", err)
		}
	}
	if s.cfg.noLandlock {
		return nil
	}
	s.ruleset, err = s.roots.ruleset(s.shm)
	switch {
	case err == nil:
	case errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EOPNOTSUPP):
		if s.cfg.Truncate {
			return fmt.Errorf("judging truncate needs Landlock: %w", err)
		}
		s.ruleset = -1
	default:
		return err
	}
	return nil
}

func (s *Supervisor) missing(path, what string, err error) {
	s.emit(Event{Op: "start", Path: path, Errno: errnoOf(err), Gap: what + " cannot be opened"})
}

// serve takes one notification and handles it, on the thread that the kernel
// woke, while another goroutine takes its place: handing the call over instead
// would cost each call a second wake-up.
func (s *Supervisor) serve() {
	select {
	case s.slots <- struct{}{}:
	case <-s.closing:
		close(s.loop)
		return
	}
	defer func() { <-s.slots }()
	n, ok := s.next()
	if !ok {
		close(s.loop)
		return
	}
	s.stats.calls.Add(1)
	s.calls.Add(1)
	defer s.calls.Done()
	go s.serve()
	s.handle(n)
}

// next waits for a notification. There is one reader, so a listener that polls
// readable has one to give, or none any more (ENOENT): RECV does not block.
func (s *Supervisor) next() (sys.Notif, bool) {
	fds := []unix.PollFd{{Fd: int32(s.listener), Events: unix.POLLIN}, {Fd: int32(s.wake), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != nil {
			if err == unix.EINTR {
				continue
			}
			return sys.Notif{}, false
		}
		if fds[1].Revents != 0 {
			return sys.Notif{}, false
		}
		if fds[0].Revents&unix.POLLIN != 0 {
			n, err := sys.NotifRecv(s.listener)
			switch err {
			case nil:
				return n, true
			case unix.ENOENT, unix.EINTR:
				continue
			}
			return sys.Notif{}, false
		}
		if fds[0].Revents != 0 { // POLLHUP: nobody is left under the filter
			return sys.Notif{}, false
		}
	}
}

// closeGrace is how long Close waits for calls that do not come back, such as
// one on a dead network file system.
const closeGrace = 2 * time.Second

// Close ends the loop, the calls in flight, the deputies, and lets go of all
// handles. Calls that a living worker makes afterwards fail with ENOSYS. If a
// call cannot be ended in time Close says so and the rest follows behind it.
func (s *Supervisor) Close() error {
	s.close.Do(func() {
		close(s.closing)
		unix.Write(s.wake, []byte{1, 0, 0, 0, 0, 0, 0, 1})
		go func() {
			<-s.loop
			s.calls.Wait()
			s.pool.stop()
			s.release()
			close(s.closed)
		}()
	})
	select {
	case <-s.closed:
		return nil
	case <-time.After(closeGrace):
		return fmt.Errorf("seccomp supervisor: %d calls have not ended: %w", len(s.slots), syscall.EBUSY)
	}
}

func (s *Supervisor) release() {
	for _, fd := range []int{s.listener, s.wake, s.shm, s.ruleset} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	s.roots.close()
	s.own.close()
}

// Stats returns the counts so far.
func (s *Supervisor) Stats() Stats {
	return Stats{
		Calls:     s.stats.calls.Load(),
		Performed: s.stats.performed.Load(),
		Continued: s.stats.continued.Load(),
		Denied:    s.stats.denied.Load(),
		Gaps:      s.stats.gaps.Load(),
		Replayed:  s.stats.replayed.Load(),
		InFlight:  s.pool.busy(),
		Deputies:  s.pool.size(),
		Sockets:   s.own.size(),
	}
}

func (s *Supervisor) emit(e Event) {
	if e.Gap != "" {
		s.stats.gaps.Add(1)
	} else {
		s.stats.denied.Add(1)
	}
	if s.cfg.OnEvent != nil {
		s.cfg.OnEvent(e)
	}
}

// handler performs one trapped call and returns what the worker gets.
type handler struct {
	op  string
	run func(*call) (int64, error)
}

var handlers = map[int32]handler{
	unix.SYS_CONNECT:  {"connect", (*call).connect},
	unix.SYS_BIND:     {"bind", (*call).bind},
	unix.SYS_SENDTO:   {"sendto", (*call).sendto},
	unix.SYS_SENDMSG:  {"sendmsg", (*call).sendmsg},
	unix.SYS_SENDMMSG: {"sendmmsg", (*call).sendmmsg},
	unix.SYS_OPENAT:   {"open", (*call).openat},
	unix.SYS_LINKAT:   {"link", (*call).linkat},
	unix.SYS_UNLINKAT: {"unlink", (*call).unlinkat},
	unix.SYS_TRUNCATE: {"truncate", (*call).truncate},
}

// Answers that are not a value or an errno.
var (
	errContinue = errors.New("the worker's own thread makes the call")
	errAnswered = errors.New("answered already")
	errGone     = errors.New("the trapped thread is gone")
)

// refusal is an answer that is ours and not the kernel's.
type refusal struct {
	errno         syscall.Errno
	path, address string
	gap           string
}

func (r *refusal) Error() string { return r.errno.Error() + " " + r.path + r.address + r.gap }

func gap(why string, err error) error {
	if err != nil {
		why += ": " + err.Error()
	}
	return &refusal{errno: unix.EACCES, gap: why}
}

// handle never lets a call continue but on errContinue.
func (s *Supervisor) handle(n sys.Notif) {
	defer s.turns.take(n.PID)()
	c := &call{s: s, n: n, tid: int(n.PID), pidfd: -1}
	defer c.release()
	h, ok := handlers[n.Nr]
	if !ok || n.Arch != sys.NotifArch {
		c.op = fmt.Sprintf("call %d", n.Nr)
		c.refuse(&refusal{errno: unix.ENOSYS, gap: "no handler for this call"})
		return
	}
	c.op = h.op
	if n.PID == 0 {
		c.refuse(&refusal{errno: unix.EACCES, gap: "the worker is in a PID namespace that the launcher cannot see"})
		return
	}
	if a, ok := s.lost.take(n); ok {
		s.stats.replayed.Add(1)
		c.effect = true // this answer can be lost as well
		c.answer(a.val, a.errno)
		return
	}
	val, err := h.run(c)
	var r *refusal
	switch {
	case err == nil:
		c.answer(val, 0)
	case err == errContinue:
		s.stats.continued.Add(1)
		sys.NotifContinue(s.listener, n.ID)
	case err == errAnswered:
		s.stats.performed.Add(1)
	case err == errGone:
		sys.NotifSend(s.listener, n.ID, 0, unix.EINTR)
	case errors.As(err, &r):
		c.refuse(r)
	default:
		c.answer(0, errnoOf(err))
	}
}

func (c *call) answer(val int64, errno syscall.Errno) {
	c.s.stats.performed.Add(1)
	if err := sys.NotifSend(c.s.listener, c.n.ID, val, errno); err == unix.ENOENT && c.effect {
		c.s.lost.put(c.n, result{val, errno})
	}
}

func (c *call) refuse(r *refusal) {
	exe, _ := os.Readlink(c.proc("exe"))
	sys.NotifSend(c.s.listener, c.n.ID, 0, r.errno)
	c.s.emit(Event{Op: c.op, Path: r.path, Address: r.address, Errno: r.errno, PID: c.tid, Exe: exe, Gap: r.gap})
}

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if !errors.As(err, &errno) || errno == 0 {
		return unix.EIO
	}
	return errno
}

// turns lets the calls of one thread through one after the other. A thread has
// one call at a time; a second means that the first was interrupted, and its
// result must be known before the same call is made again.
type turns struct {
	mu   sync.Mutex
	last map[uint32]chan struct{}
}

func (t *turns) take(tid uint32) (done func()) {
	mine := make(chan struct{})
	t.mu.Lock()
	if t.last == nil {
		t.last = map[uint32]chan struct{}{}
	}
	before := t.last[tid]
	t.last[tid] = mine
	t.mu.Unlock()
	if before != nil {
		<-before
	}
	return func() {
		t.mu.Lock()
		if t.last[tid] == mine {
			delete(t.last, tid)
		}
		t.mu.Unlock()
		close(mine)
	}
}

// journal keeps results whose answer found nobody. An interrupted thread makes
// the same call next, unless its program gave up or its handler made another;
// two seconds bound what a mistake can cost.
type journal struct {
	mu   sync.Mutex
	list map[uint32]lostResult
}

type result struct {
	val   int64
	errno syscall.Errno
}

type lostResult struct {
	result
	nr   int32
	args [6]uint64
	at   time.Time
}

const (
	lostFor = 2 * time.Second
	maxLost = 256
)

func (j *journal) put(n sys.Notif, r result) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.list == nil || len(j.list) >= maxLost {
		j.list = map[uint32]lostResult{}
	}
	j.list[n.PID] = lostResult{r, n.Nr, n.Args, time.Now()}
}

func (j *journal) take(n sys.Notif) (result, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.list) == 0 {
		return result{}, false
	}
	l, ok := j.list[n.PID]
	if !ok || l.nr != n.Nr || l.args != n.Args {
		return result{}, false
	}
	delete(j.list, n.PID)
	return l.result, time.Since(l.at) < lostFor
}
