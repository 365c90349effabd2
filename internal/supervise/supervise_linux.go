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

// Supervisor answers the trapped calls of one worker's tree. One goroutine, the
// loop, takes and judges them one after the other; a call that would block is set
// aside and tried again. So however many calls block, no thread is needed for them.
type Supervisor struct {
	cfg      Config
	listener int
	attached bool // there is a loop
	ready    *readiness
	shm      int
	roots    roots
	ruleset  int
	root     identity // the launcher's own root directory
	netns    fileID
	pid      int
	ruid     int
	same     bool // the launcher's threads have the worker's credentials
	filters  int  // seccomp filters of the launcher itself
	reach    func(tid int) error
	own      *ownSet
	enter    sys.DeputyCreds
	deputy   *deputy // nil until a call needs it
	turn     turn
	limits   limits

	// The loop's own.
	lost    journal
	waits   []*call
	watched int // descriptors held for them
	tick    time.Time
	asked   int // where the waiting calls begin that are asked next

	closing chan struct{}
	loop    chan struct{} // closed when the loop has ended
	close   sync.Once
	closed  chan struct{} // closed when everything is released

	stats struct{ calls, performed, continued, denied, gaps, replayed, inFlight, deputies atomic.Uint64 }
}

// limits bound the descriptors held for one worker, also where the launcher may
// have few. What it needs for one call comes to some ten more.
type limits struct {
	paths   int // sockets bound by path
	watched int // sockets of calls that wait
	rights  int // passed with one message
}

func limitsFor(files uint64) limits {
	n := int(min(files, 1<<20))
	return limits{paths: min(maxSockets, n/4), watched: min(maxWatched, n/16), rights: min(maxFDs, n/4)}
}

// Start is [New] and [Supervisor.Attach]. It owns the listener from here on, also
// when it returns an error.
func Start(listenerFD int, cfg Config) (*Supervisor, error) {
	s, err := New(cfg)
	if err != nil {
		unix.Close(listenerFD)
		return nil, err
	}
	s.Attach(listenerFD)
	return s, nil
}

// New makes a supervisor with the threads and descriptors that its worker could
// use up. It needs no listener yet, so that a launch does it while it makes one.
// It must be closed.
func New(cfg Config) (*Supervisor, error) {
	s := &Supervisor{
		cfg:      cfg,
		listener: -1,
		shm:      -1,
		ruleset:  -1,
		pid:      os.Getpid(),
		ruid:     os.Getuid(),
		closing:  make(chan struct{}),
		loop:     make(chan struct{}),
		closed:   make(chan struct{}),
	}
	s.own = newOwnSet()
	s.filters = ownFilters()
	crew := enlist()
	err := s.open()
	crew.wait()
	if err != nil {
		dismiss()
		s.release()
		return nil, fmt.Errorf("seccomp supervisor: %w", err)
	}
	s.enter = sys.DeputyCreds{UID: cfg.UID, GID: cfg.GID, Groups: cfg.Groups, DropCaps: cfg.DropCaps, Ruleset: s.ruleset}
	s.same = sys.DeputySame(s.enter)
	return s, nil
}

// ownFilters counts the main thread's seccomp filters. It is never confined, and has
// those that it was started with.
var ownFilters = sync.OnceValue(func() int {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	return parseStatus(text).filters
})

// Scope names who knows the worker's tasks from others: reach answers nil for the
// worker's, EPERM for others, ESRCH where there is no such task. It is asked by the
// goroutine that answers all calls, so it must not wait for the worker. It comes
// before Attach; without it tasks are told by their seccomp filters.
func (s *Supervisor) Scope(reach func(tid int) error) { s.reach = reach }

// AskIn has the worker's sockets asked for in its network namespace, where it has one of
// its own: sock_diag tells of no others. fd is such a socket made there, which the
// supervisor owns from here on. It comes before Attach.
func (s *Supervisor) AskIn(fd int) {
	unix.CloseOnExec(fd)
	s.own.askIn(fd)
}

// Attach supervises the calls that arrive on the listener, which it owns from
// here on. It comes once, before Close, and must return before the worker runs.
func (s *Supervisor) Attach(listenerFD int) {
	unix.CloseOnExec(listenerFD)
	s.listener = listenerFD
	s.attached = true
	go s.serve(s.ready.add(listenerFD, unix.EPOLLIN))
}

func (s *Supervisor) open() error {
	if err := sys.NotifSizes(); err != nil {
		return err
	}
	var err error
	if s.ready, err = newReadiness(); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	if s.root, err = identify("/"); err != nil {
		return fmt.Errorf("statx /: %w", err)
	}
	if s.netns, err = statID("/proc/self/ns/net"); err != nil {
		return fmt.Errorf("stat /proc/self/ns/net: %w", err)
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("getrlimit: %w", err)
	}
	s.limits = limitsFor(files.Cur)
	s.own.limit = s.limits.paths
	if s.cfg.Unix {
		if err := s.own.openDiag(); err != nil {
			return fmt.Errorf("open sock_diag: %w", err)
		}
	}
	if s.cfg.Shm != "" {
		if s.shm, err = unix.Open(s.cfg.Shm, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open shm directory %s: %w", s.cfg.Shm, err)
		}
	}
	// A root or a socket that is not there grants nothing: a gap, no failure.
	for _, path := range s.cfg.WritableRoots {
		if err := s.roots.add(path); err != nil {
			s.missing(KindFile, path, "writable root", err)
		}
	}
	for _, path := range s.cfg.AllowSockets {
		if err := s.own.allow(path); err != nil {
			s.missing(KindUnixPath, path, "allowed socket", err)
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

func (s *Supervisor) missing(kind Kind, path, what string, err error) {
	s.emit(Event{Kind: kind, Op: "start", Path: path, Errno: errnoOf(err), Gap: what + " cannot be opened"})
}

// serve is the loop.
func (s *Supervisor) serve(err error) {
	defer close(s.loop)
	defer s.drop()
	for err == nil {
		notified, ok := s.poll()
		if !ok {
			return
		}
		s.turn.begin()
		err = s.step(notified)
		s.turn.end()
		s.stats.inFlight.Store(uint64(len(s.waits)))
	}
}

// step takes the notification that there is, and makes the attempts that are due.
func (s *Supervisor) step(notified bool) error {
	if notified {
		// There is one reader, so a listener that polls readable has one to
		// give, or none any more (ENOENT): RECV does not block.
		switch n, err := sys.NotifRecv(s.listener); err {
		case nil:
			s.begin(n)
		case unix.ENOENT, unix.EINTR:
		default:
			return err
		}
	}
	s.retry()
	return nil
}

// closeGrace is how long Close waits for calls that do not come back, such as
// one on a dead network file system.
const closeGrace = 2 * time.Second

// Close ends the loop, the calls in flight, the deputy, and lets go of all
// handles. Calls that a living worker makes afterwards fail with ENOSYS. If a
// call cannot be ended in time Close says so and the rest follows behind it.
func (s *Supervisor) Close() error {
	s.close.Do(func() {
		close(s.closing)
		if !s.attached {
			close(s.loop)
		}
		s.ready.end()
		go func() {
			<-s.loop
			if s.deputy != nil {
				s.deputy.stop()
				s.stats.deputies.Store(0)
			} else {
				dismiss()
			}
			s.release()
			close(s.closed)
		}()
	})
	select {
	case <-s.closed:
		return nil
	case <-time.After(closeGrace):
		return fmt.Errorf("seccomp supervisor: a call has not ended: %w", syscall.EBUSY)
	}
}

func (s *Supervisor) release() {
	if s.ready != nil {
		s.ready.close()
	}
	for _, fd := range []int{s.listener, s.shm, s.ruleset} {
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
		InFlight:  int(s.stats.inFlight.Load()),
		Deputies:  int(s.stats.deputies.Load()),
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

// handler performs one trapped call and returns what the worker gets. It may
// return errLater, and is called again then.
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

	unix.SYS_SCHED_SETAFFINITY:  {"sched_setaffinity", (*call).scheduleTask},
	unix.SYS_SCHED_SETATTR:      {"sched_setattr", (*call).scheduleTask},
	unix.SYS_SCHED_SETPARAM:     {"sched_setparam", (*call).scheduleTask},
	unix.SYS_SCHED_SETSCHEDULER: {"sched_setscheduler", (*call).scheduleTask},
	unix.SYS_SETPRIORITY:        {"setpriority", (*call).setpriority},
	unix.SYS_IOPRIO_SET:         {"ioprio_set", (*call).ioprioSet},
}

// Answers that are not a value or an errno.
var (
	errContinue = errors.New("the worker's own thread makes the call")
	errAnswered = errors.New("answered already")
	errGone     = errors.New("the trapped thread is gone")
)

// refusal is an answer that is ours and not the kernel's.
type refusal struct {
	kind          Kind // zero: the call's
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

// begin handles a new notification.
func (s *Supervisor) begin(n sys.Notif) {
	s.stats.calls.Add(1)
	s.interrupted(n.PID)
	c := &call{s: s, n: n, tid: int(n.PID), pidfd: -1, kind: KindOther}
	c.watch = -1
	h, ok := handlers[n.Nr]
	if !ok || n.Arch != sys.NotifArch {
		c.op = fmt.Sprintf("call %d", n.Nr)
		c.refuse(&refusal{errno: unix.ENOSYS, gap: "no handler for this call"})
		return
	}
	c.op, c.run = h.op, h.run
	if n.PID == 0 {
		c.refuse(&refusal{errno: unix.EACCES, gap: "the worker is in a PID namespace that the launcher cannot see"})
		return
	}
	if a, ok := s.lost.take(n); ok {
		s.stats.replayed.Add(1)
		c.effect = true // this answer can be lost as well
		if !a.resume {
			c.answer(a.val, a.errno)
			return
		}
		c.sent, c.msgs = a.sent, a.msgs
	}
	if s.attempt(c) || s.park(c) {
		return
	}
	c.giveUp = unix.EAGAIN
	s.attempt(c)
}

// attempt makes the call once and tells whether it is done with. It never lets a
// call continue but on errContinue.
func (s *Supervisor) attempt(c *call) bool {
	val, err := c.run(c)
	c.release()
	if err == errLater {
		return false
	}
	c.unwatch()
	var r *refusal
	switch {
	case err == nil:
		c.answer(val, 0)
	case err == errContinue:
		s.stats.continued.Add(1)
		sys.NotifContinue(s.listener, c.n.ID)
	case err == errAnswered:
		s.stats.performed.Add(1)
	case err == errGone:
		s.forget(c)
		sys.NotifSend(s.listener, c.n.ID, 0, unix.EINTR)
	case errors.As(err, &r):
		c.refuse(r)
	default:
		c.answer(0, errnoOf(err))
	}
	return true
}

func (c *call) answer(val int64, errno syscall.Errno) {
	c.s.stats.performed.Add(1)
	if err := sys.NotifSend(c.s.listener, c.n.ID, val, errno); err == unix.ENOENT && c.effect {
		c.s.lost.put(c.n, lostResult{val: val, errno: errno})
	}
}

func (c *call) refuse(r *refusal) {
	exe, _ := os.Readlink(c.proc("exe"))
	sys.NotifSend(c.s.listener, c.n.ID, 0, r.errno)
	kind := r.kind
	if kind == "" {
		kind = c.kind
	}
	c.s.emit(Event{Kind: kind, Op: c.op, Path: r.path, Address: r.address, Errno: r.errno, PID: c.tid, Exe: exe, Gap: r.gap})
}

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if !errors.As(err, &errno) || errno == 0 {
		return unix.EIO
	}
	return errno
}

// journal keeps results whose answer found nobody. An interrupted thread makes
// the same call next, unless its program gave up or its handler made another;
// two seconds bound what a mistake can cost.
type journal struct {
	list map[uint32]lostResult
}

type lostResult struct {
	val        int64
	errno      syscall.Errno
	resume     bool // it is not finished: go on from here
	sent, msgs uint64
	nr         int32
	args       [6]uint64
	at         time.Time
}

const (
	lostFor = 2 * time.Second
	maxLost = 256
)

func (j *journal) put(n sys.Notif, r lostResult) {
	if j.list == nil || len(j.list) >= maxLost {
		j.list = map[uint32]lostResult{}
	}
	r.nr, r.args, r.at = n.Nr, n.Args, time.Now()
	j.list[n.PID] = r
}

func (j *journal) take(n sys.Notif) (lostResult, bool) {
	l, ok := j.list[n.PID]
	if !ok || l.nr != n.Nr || l.args != n.Args {
		return lostResult{}, false
	}
	delete(j.list, n.PID)
	return l, time.Since(l.at) < lostFor
}
